//! A user who may not make tables: an administrator runs the SQL that `lockkeeper schema` prints, and that is enough.

use std::time::Instant;

use lockkeeper_testkit::{databases, servers::MariaDb};

use crate::secs;

/// The definitions of all tables with a prefix, without it.
fn tables(server: &MariaDb, prefix: &str) -> Vec<String> {
    let names = format!(
        "SELECT table_name FROM information_schema.tables WHERE table_schema = DATABASE() AND table_name LIKE '{prefix}%' \
         AND table_name NOT LIKE '%member' ORDER BY table_name"
    );
    let names = server.sql(&names).expect("asked");
    let made = names.lines().map(|name| server.sql(&format!("SHOW CREATE TABLE {name}")).expect("asked"));
    made.map(|text| text.replace(prefix, "")).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_printed_sql_is_all_that_a_plain_user_needs() {
    let server = MariaDb::start().expect("started");
    server.sql("CREATE USER 'a b'@'%'; CREATE TABLE theirs (x INT)").expect("made");
    let url = server.url_as("a%20b", None);
    let printed = lockkeeper::schema::sql(&url).expect("printed");
    server.sql(&printed).expect("an administrator may");
    // Also again, for anything that was forgotten: it changes nothing that is there.
    let id = server.sql("SELECT id FROM lockkeeper_store").expect("asked");
    server.sql(&lockkeeper::schema::sql(&url).expect("printed")).expect("again");
    assert_eq!(server.sql("SELECT id FROM lockkeeper_store").expect("asked"), id);
    // The store makes the same.
    drop(lockkeeper::connect(&format!("{}?prefix=other_", server.url())).await.expect("connected"));
    let made = tables(&server, "lockkeeper_");
    assert_eq!((made.len(), &made), (7, &tables(&server, "other_")));

    databases::is_member(&url).await;
    let waits = "SELECT COUNT(*) FROM lockkeeper_entry WHERE entry IS NOT NULL";
    databases::uses_everything(&url, || server.sql(waits).expect("asked") != "0").await;
    let old = "UPDATE lockkeeper_resource SET used = 1, ends = 1, holder = NULL; UPDATE lockkeeper_latch SET used = 1; \
               UPDATE lockkeeper_store SET swept = 0";
    server.sql(old).expect("aged");
    let _sweeps = lockkeeper::connect(&url).await.expect("connected");
    let left = "SELECT (SELECT COUNT(*) FROM lockkeeper_resource) + (SELECT COUNT(*) FROM lockkeeper_latch)";
    let started = Instant::now();
    while server.sql(left).expect("asked") != "0" {
        assert!(started.elapsed() < secs(30), "nobody sweeps");
    }
    let rights = server.sql("SHOW GRANTS FOR 'a b'@'%'").expect("asked");
    assert!(!rights.contains("theirs") && !rights.contains("ALL PRIVILEGES"), "{rights}");
}

/// An account that may connect from one address only: the SQL of the error names it.
#[tokio::test(flavor = "multi_thread")]
async fn the_error_names_the_account_as_the_server_knows_it() {
    let server = MariaDb::start().expect("started");
    server.sql("CREATE USER app@'127.0.0.1'; GRANT SELECT ON lockkeeper.* TO app@'127.0.0.1'").expect("made");
    let url = server.url_as("app", None);
    let refused = lockkeeper::connect(&url).await.map(drop).expect_err("no rights").to_string();
    assert!(
        refused.contains("lockkeeper schema --store") && refused.contains("TO `app`@`127.0.0.1`;"),
        "{refused}"
    );
    let (_, sql) = refused.split_once("URL:\n").expect("the SQL");
    server.sql(sql.rsplit_once(";\n").expect("its end").0).expect("it is good SQL");
    let keeper = lockkeeper::connect(&url).await.expect("it may use the tables");
    keeper.mutex("a").lock().await.expect("locked").release().await.expect("released");
}
