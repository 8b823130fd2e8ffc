//! The README's guarantee table says what the stores say of themselves, no more and no less.

use lockkeeper::memory;

const README: &str = include_str!("../../../README.md");

#[test]
fn the_guarantee_table_is_that_of_the_stores() {
    let stores = [
        &memory::CAPABILITY,
        &lockkeeper_sqlite::CAPABILITY,
        &lockkeeper_redis::CAPABILITY,
        &lockkeeper_zookeeper::CAPABILITY,
    ];
    let (_, after) = README.split_once("\n|---|---|---|---|---|---|---|\n").expect("the table's head");
    let (table, _) = after.split_once("\n\n").expect("the table's end");
    let rows: Vec<String> = stores.iter().map(|store| store.table_row()).collect();
    assert_eq!(table, rows.join("\n"));
}
