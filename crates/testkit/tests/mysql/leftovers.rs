//! The remains of holders that are killed, of replies that never come, and of many sections on a few names.
//! `LOCKKEEPER_KILLS` and `LOCKKEEPER_SWALLOWED` set how many of the former two there are.

use lockkeeper_testkit::{databases, servers::MariaDb};

use crate::{WORKER, crews::nothing_is_left, secs};

/// A holder that is killed inside of its section blocks the others for the rest of its lease, and for a second at most.
#[test]
fn i8_a_killed_holder_is_passed_when_its_lease_ends() {
    let server = MariaDb::start().expect("started");
    databases::killed_holders(WORKER, &server.url(), secs(1));
    nothing_is_left(&server);
}

/// Each connection goes silent for good; only the client's own limit ends the wait.
#[tokio::test(flavor = "multi_thread")]
async fn i9_a_swallowed_reply_is_asked_for_again() {
    let server = MariaDb::start().expect("started");
    let url = |address| format!("mysql://lockkeeper@{address}/lockkeeper");
    databases::swallowed_replies(server.address(), url, 1100).await;
    tokio::task::spawn_blocking(move || nothing_is_left(&server)).await.expect("no panic");
}

/// How many bytes the file of each table has, with its indexes.
fn sizes(server: &MariaDb) -> Vec<(String, u64)> {
    let question = "SELECT name, file_size FROM information_schema.innodb_sys_tablespaces \
                    WHERE name LIKE 'lockkeeper/%' ORDER BY name";
    let rows = server.sql(question).expect("asked");
    let row = |row: &str| {
        row.split_once('\t').map(|(table, size)| (table.to_owned(), size.parse().expect("a number")))
    };
    rows.lines().filter_map(row).collect()
}

/// Rows are updated in place, so many sections on a few names need no more room than some.
#[tokio::test(flavor = "multi_thread")]
async fn tables_do_not_grow_with_the_number_of_sections() {
    let server = MariaDb::start().expect("started");
    databases::tables_do_not_grow(&server.url(), || sizes(&server)).await;
}
