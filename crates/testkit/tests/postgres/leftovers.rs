//! The remains of holders that are killed, of replies that never come, and of many sections on a few names.
//! `LOCKKEEPER_KILLS` and `LOCKKEEPER_SWALLOWED` set how many of the former two there are.

use lockkeeper_testkit::{
    databases,
    servers::{Postgres, PostgresOptions},
};

use crate::{WORKER, crews::nothing_is_left, millis};

/// A holder that is killed inside of its section blocks the others for the rest of its lease, and for 250 ms at most.
#[test]
fn i8_a_killed_holder_is_passed_when_its_lease_ends() {
    let server = Postgres::start().expect("started");
    databases::killed_holders(WORKER, &server.url(), millis(250));
    nothing_is_left(&server);
}

/// Each connection goes silent for good; only the client's own limit ends the wait.
#[tokio::test(flavor = "multi_thread")]
async fn i9_a_swallowed_reply_is_asked_for_again() {
    let server = Postgres::start().expect("started");
    let url = |address| format!("postgres://lockkeeper@{address}/lockkeeper");
    databases::swallowed_replies(server.address(), url, 700).await;
    tokio::task::spawn_blocking(move || nothing_is_left(&server)).await.expect("no panic");
}

/// How many bytes the rows of each table have, with its indexes. The maps of free and of visible pages are left out: the
/// first vacuum makes them, 32 KiB for each table, whenever it comes.
fn sizes(server: &Postgres) -> Vec<(String, u64)> {
    let question = "SELECT relname, pg_relation_size(oid, 'main') + pg_indexes_size(oid) FROM pg_class WHERE relkind = 'r' \
                    AND relnamespace = 'lockkeeper'::regnamespace ORDER BY relname";
    let rows = server.sql(question).expect("asked");
    let row = |row: &str| {
        row.split_once('|').map(|(table, size)| (table.to_owned(), size.parse().expect("a number")))
    };
    rows.lines().filter_map(row).collect()
}

/// Rows are updated in place, so ten thousand sections on a few names need at most twice the room of a thousand.
///
/// The server's own vacuum is off: while one of its transactions lasts, no room is used again, and afterwards it would hide what
/// the sections leave behind. One thing remains that is nobody's fault. A session that waits for a row keeps the row's page
/// pinned, and nothing is tidied up on a page with a pin. On a very busy machine somebody may wait for a hot row at each moment,
/// for seconds. So the tables may grow now and then, but not each time.
#[tokio::test(flavor = "multi_thread")]
async fn tables_do_not_grow_with_the_number_of_sections() {
    const TRIES: usize = 5;
    let mut grown = Vec::new();
    while grown.len() < TRIES {
        let server = PostgresOptions::default().setting("autovacuum = off").start().expect("started");
        let measured = databases::room_after_sections(&server.url(), || sizes(&server)).await;
        if measured.last().expect("measured") <= &(2 * measured[0]) {
            return;
        }
        grown.push(measured);
    }
    panic!("the tables grow with the sections: {grown:?}");
}
