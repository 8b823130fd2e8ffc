//! The README is right: its guarantee table agrees with the stores, its fence works, its features exist. Its Rust code
//! is a documentation test of the crate.

use lockkeeper::{Token, memory};

const README: &str = include_str!("../../../README.md");

#[test]
fn the_guarantee_table_is_that_of_the_stores() {
    let stores = [
        &memory::CAPABILITY,
        &lockkeeper_sqlite::CAPABILITY,
        &lockkeeper_postgres::CAPABILITY,
        &lockkeeper_mysql::CAPABILITY,
        &lockkeeper_redis::CAPABILITY,
        &lockkeeper_zookeeper::CAPABILITY,
        &lockkeeper_quorum::CAPABILITY,
    ];
    let (_, after) = README.split_once("\n|---|---|---|---|---|---|---|\n").expect("the table's head");
    let (table, _) = after.split_once("\n\n").expect("the table's end");
    let rows: Vec<String> = stores.iter().map(|store| store.table_row()).collect();
    assert_eq!(table, rows.join("\n"));
}

/// The text between the fences of the README's first block in this language.
fn block(language: &str) -> &'static str {
    let (_, after) = README.split_once(&format!("\n```{language}\n")).expect(language);
    after.split_once("\n```").expect("its end").0
}

/// Two holders on one row: after the later one has written, the earlier one changes nothing.
#[test]
fn the_fence_in_sql_stops_an_old_holder() {
    let database = rusqlite::Connection::open_in_memory().expect("opened");
    let table = "CREATE TABLE stock (item TEXT PRIMARY KEY, amount INTEGER NOT NULL, token BIGINT NOT NULL);
                 INSERT INTO stock VALUES ('42', 10, 0), ('43', 10, 0)";
    database.execute_batch(table).expect("made");
    let sell = |token: Token| {
        let parameters = rusqlite::named_params! { ":token": i64::from(token), ":item": "42" };
        database.execute(block("sql"), parameters).expect("done")
    };
    let (old, new) = (Token::new(7, 0), Token::new(7, 1));
    assert_eq!([sell(old), sell(old), sell(new), sell(old), sell(new)], [1, 1, 1, 0, 1]);
    let left = |item: &str| -> i64 {
        database.query_row("SELECT amount FROM stock WHERE item = ?", [item], |row| row.get(0)).expect("read")
    };
    assert_eq!([left("42"), left("43")], [6, 10]);
}

#[test]
fn the_features_that_it_names_exist() {
    let line = block("toml").lines().find(|line| line.starts_with("lockkeeper = ")).expect("the dependency");
    let manifest = include_str!("../Cargo.toml");
    for feature in ["redis", "sqlite", "postgres", "redis-tls"] {
        assert!(line.contains(feature), "{line}");
        assert!(manifest.contains(&format!("\n{feature} = [")), "{feature}");
    }
}
