//! Runs the examples on real servers, and holds the statements of the documentation to them.
#![cfg(target_os = "linux")]

#[expect(dead_code, reason = "main is for the command line")]
#[path = "../examples/fence_mysql_async.rs"]
mod fence_mysql_async;
#[expect(dead_code, reason = "main is for the command line")]
#[path = "../examples/fence_sqlx.rs"]
mod fence_sqlx;
#[expect(dead_code, reason = "main is for the command line")]
#[path = "../examples/fence_tokio_postgres.rs"]
mod fence_tokio_postgres;

use lockkeeper_testkit::servers::{MariaDb, Postgres};
use rusqlite::{Connection, OptionalExtension as _, TransactionBehavior, params};

const PAGE: &str = include_str!("../../../docs/design.md");

/// The fence that `Keeper::fence` shows a token to is the same one.
async fn is_the_stores_own(url: &str, name: &str) {
    let keeper = lockkeeper::connect(url).await.expect("connected");
    let guard = keeper.mutex(name).lock().await.expect("locked");
    keeper.fence(name).admit(guard.token()).await.expect("the newest token");
    let old = lockkeeper::Token::try_from(1024).expect("a token");
    keeper.fence(name).admit(old).await.expect_err("an example has shown a newer one");
    guard.release().await.expect("released");
    keeper.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_late_worker_sells_nothing_on_postgresql() {
    let server = Postgres::start().expect("started");
    // They can be run again.
    for _ in 0..2 {
        fence_sqlx::run(&server.url()).await.expect("sqlx");
        fence_tokio_postgres::run(&server.url()).await.expect("tokio-postgres");
    }
    is_the_stores_own(&server.url(), "example/stock/42").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_late_worker_sells_nothing_on_mariadb() {
    let server = MariaDb::start().expect("started");
    for _ in 0..2 {
        fence_mysql_async::run(&server.url()).await.expect("mysql_async");
    }
    is_the_stores_own(&server.url(), "example/stock/42").await;
}

#[test]
fn the_page_shows_what_the_examples_run() {
    assert_eq!(fence_sqlx::FENCE, fence_tokio_postgres::FENCE);
    for statement in [fence_sqlx::FENCE, fence_mysql_async::RAISE, fence_mysql_async::DECIDE] {
        assert!(PAGE.contains(statement), "docs/design.md lacks:\n{statement}");
    }
}

/// In SQLite the fence is a table of the program's own: nothing else may write to the file of the locks.
#[test]
fn the_statement_for_sqlite_refuses_old_tokens() {
    let (_, rest) = PAGE.split_once("-- SQLite\n").expect("it is there");
    let mut statements = rest.split("```").next().expect("split gives one").split(";\n");
    let (table, fence) = (statements.next().expect("the table"), statements.next().expect("the fence"));
    let mut db = Connection::open_in_memory().expect("opened");
    db.execute_batch(table).expect("made");
    let mut admits = |token: i64| {
        let transaction = db.transaction_with_behavior(TransactionBehavior::Immediate).expect("begun");
        let row =
            transaction.query_row(fence, params!["stock", token], |row| row.get::<_, i64>(0)).optional();
        let admitted = row.expect("good SQL").is_some();
        if admitted {
            transaction.commit().expect("committed");
        }
        admitted
    };
    assert_eq!([2048, 2048, 1024, 3072, 2048].map(&mut admits), [true, true, false, true, false]);
}
