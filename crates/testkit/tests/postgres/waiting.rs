//! The cost of waiting for the server, while nothing happens.

use std::time::Instant;

use lockkeeper::Keeper;
use lockkeeper_testkit::{
    counting::RequestCounter,
    servers::{Postgres, PostgresOptions},
};

use crate::{millis, secs};

/// How often the statement ran that every request of a waiter has once, whether it is a plain read or a transaction.
fn reads(server: &Postgres) -> u64 {
    let reads =
        "SELECT coalesce(sum(calls), 0) FROM pg_stat_statements WHERE query LIKE '%UNION ALL%tombstone%'";
    server.sql(reads).expect("asked").parse().expect("a number")
}

/// How many requests were sent, and how many reads ran, at a moment at which none is under way.
async fn at_rest(requests: &RequestCounter, server: &Postgres) -> (u64, u64) {
    let sample = || (requests.so_far(), reads(server));
    let mut before = sample();
    loop {
        tokio::time::sleep(millis(200)).await;
        let now = sample();
        if now == before {
            return now;
        }
        before = now;
    }
}

/// The version of the only waiter's row: another one whenever its position was written.
fn version(server: &Postgres) -> String {
    server.sql("SELECT xmin FROM lockkeeper.entry WHERE entry IS NOT NULL").expect("asked")
}

/// A position has to be written anew from time to time. The keeper knows when, and does not read before.
#[tokio::test(flavor = "multi_thread")]
async fn each_request_of_a_waiter_reads_once_also_if_its_position_is_written_anew() {
    let server = PostgresOptions::default()
        .setting("shared_preload_libraries = 'pg_stat_statements'")
        .start()
        .expect("a server");
    server.sql("CREATE EXTENSION pg_stat_statements").expect("made");
    let holder = lockkeeper::connect(&server.url()).await.expect("connected");
    let requests = RequestCounter::default();
    let store = requests.of(lockkeeper_postgres::connector(&server.url()).expect("a good URL"));
    let waiter = Keeper::builder(store).connect().await.expect("connected");
    // It is not renewed meanwhile.
    let guard = holder.mutex("stock").lease(secs(300)).lock().await.expect("free");
    let waiting = {
        let mutex = waiter.mutex("stock");
        tokio::spawn(async move { mutex.lock().await.expect("locked").release().await.expect("released") })
    };
    let started = Instant::now();
    while version(&server).is_empty() {
        assert!(started.elapsed() < secs(20), "nobody waits");
        tokio::time::sleep(millis(5)).await;
    }
    let (before, first) = (at_rest(&requests, &server).await, version(&server));
    while version(&server) == first {
        assert!(started.elapsed() < secs(20), "its position is not written anew");
        tokio::time::sleep(millis(5)).await;
    }
    let after = at_rest(&requests, &server).await;
    let (asked, read) = (after.0 - before.0, after.1 - before.1);
    assert!(asked >= 3, "the others were plain reads");
    assert_eq!(read, asked);
    guard.release().await.expect("released");
    waiting.await.expect("no panic");
    for keeper in [holder, waiter] {
        keeper.close().await;
    }
}
