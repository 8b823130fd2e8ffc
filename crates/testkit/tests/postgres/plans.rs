//! The plans of the server for the statements of requests: made once for a session, by primary keys.

use lockkeeper_testkit::servers::PostgresOptions;

use crate::{plain::backends, secs};

/// How often each mutex is locked and released.
const PAIRS: u64 = 100;

#[tokio::test]
async fn requests_are_not_planned_anew_each_time() {
    let server = PostgresOptions::default()
        .setting("shared_preload_libraries = 'pg_stat_statements'")
        .setting("pg_stat_statements.track_planning = on")
        .start()
        .expect("a server");
    server.sql("CREATE EXTENSION pg_stat_statements").expect("made");
    let keeper = lockkeeper::connect(&server.url()).await.expect("connected");
    for _ in 0..PAIRS {
        keeper.mutex("planned").lock().await.expect("free").release().await.expect("held");
    }
    let often =
        "SELECT count(*), max(plans) FROM pg_stat_statements WHERE query LIKE '%resource%' AND calls >= 100";
    let found = server.sql(often).expect("asked");
    let (statements, plans) = found.split_once('|').expect("two columns");
    // Locking, reading, writing.
    assert!(statements.parse::<u64>().expect("a number") >= 3, "{found}");
    assert!(plans.parse::<u64>().expect("a number") < 10, "{found}");
    keeper.close().await;
}

#[tokio::test]
async fn a_table_that_was_small_when_a_session_began_is_not_scanned_as_a_whole() {
    let server = PostgresOptions::default().setting("autovacuum = off").start().expect("a server");
    let keeper = lockkeeper::connect(&server.url()).await.expect("connected");
    let pair = async || keeper.mutex("planned").lock().await.expect("free").release().await.expect("held");
    pair().await;
    let many =
        "INSERT INTO lockkeeper.resource (name) SELECT ('many/' || n)::bytea FROM generate_series(1, 5000) n";
    server.sql(many).expect("made");
    for _ in 0..20 {
        pair().await;
    }
    keeper.close().await;
    // A session writes down its numbers before it is gone.
    let started = std::time::Instant::now();
    while !backends(&server).is_empty() {
        assert!(started.elapsed() < secs(20), "sessions do not end");
    }
    let scans = "SELECT coalesce(sum(seq_tup_read), 0) FROM pg_stat_user_tables WHERE relname = 'resource'";
    let scanned: u64 = server.sql(scans).expect("asked").parse().expect("a number");
    assert!(scanned < 5000, "{scanned} rows were scanned");
}
