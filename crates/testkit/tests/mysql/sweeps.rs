//! Law 1, the sweep: free names go, numbers go on, and nobody who comes back meanwhile is harmed.

use std::time::Instant;

use lockkeeper_core::store::Verdict;
use lockkeeper_testkit::{asker::Asker, servers::MariaDb};

use crate::{
    millis,
    plain::{Gate, is_granted},
    secs,
};

/// Makes all rows look as if they were not used for long, and lets the next keeper that connects sweep.
fn make_old(server: &MariaDb) {
    server
        .sql(
            "UPDATE lockkeeper_resource SET used = 1; UPDATE lockkeeper_latch SET used = 1; \
              UPDATE lockkeeper_store SET swept = 0",
        )
        .expect("changed");
}

async fn until(server: &MariaDb, question: &str, answer: &str) {
    let started = Instant::now();
    while server.sql(question).expect("asked") != answer {
        assert!(started.elapsed() < secs(30), "{question}: {:?}", server.sql(question));
        tokio::time::sleep(millis(20)).await;
    }
}

/// A name that was swept goes on above the numbers that it had, even if the clock does not.
#[tokio::test(flavor = "multi_thread")]
async fn numbers_go_on_after_a_sweep() {
    let server = MariaDb::start().expect("started");
    let asker = Asker::connect(&server.url()).await;
    assert!(is_granted(&asker.ask("a", 1).await) && is_granted(&asker.ask("held", 2).await));
    asker.give_back("a", 1).await.expect("answered");
    // As if the clock was set back by an hour since.
    let mark = server
        .sql(
            "UPDATE lockkeeper_resource SET high_water = high_water + 3600000000 WHERE name = 'a'; \
              SELECT high_water FROM lockkeeper_resource WHERE name = 'a'",
        )
        .expect("changed");
    let mark: u64 = mark.parse().expect("a number");
    make_old(&server);
    let sweeper = Asker::connect(&server.url()).await;
    until(&server, "SELECT COUNT(*) FROM lockkeeper_resource", "1").await;
    let Verdict::Granted(grant) = sweeper.ask("a", 1).await else { panic!("free") };
    assert!(grant.number > mark, "{} after {mark}", grant.number);
    assert_eq!(sweeper.holders("held").await, [2], "what is held stays");
}

/// One sweep removes all free names, however many there are, and settles those that have ended.
#[tokio::test(flavor = "multi_thread")]
async fn one_sweep_removes_all_that_is_free() {
    let server = MariaDb::start().expect("started");
    let asker = Asker::connect(&server.url()).await;
    assert!(is_granted(&asker.ask("a", 1).await));
    assert!(matches!(asker.ask("a", 2).await, Verdict::Busy { .. }));
    asker.give_back("a", 2).await.expect("answered");
    assert!(is_granted(&asker.ask("ended", 3).await));
    // Its lease is over, and nobody asks.
    server
        .sql("UPDATE lockkeeper_resource SET holder = REPLACE(holder, CONCAT(' ', ends, ' '), ' 1 '), ends = 1 \
              WHERE name = 'ended'")
        .expect("changed");
    server
        .sql("INSERT INTO lockkeeper_resource (name) SELECT CONCAT('free/', seq) FROM seq_1_to_2600")
        .expect("made");
    server
        .sql(
            "INSERT INTO lockkeeper_latch (name) SELECT CONCAT('free/', seq) FROM seq_1_to_1200; \
              INSERT INTO lockkeeper_tombstone SELECT CONCAT('x', seq), 1 FROM seq_1_to_1200",
        )
        .expect("made");
    make_old(&server);
    let _sweeper = Asker::connect(&server.url()).await;
    until(&server, "SELECT COUNT(*) FROM lockkeeper_resource WHERE name LIKE 'free/%'", "0").await;
    until(&server, "SELECT COUNT(*) FROM lockkeeper_latch", "0").await;
    until(&server, "SELECT COUNT(*) FROM lockkeeper_tombstone", "0").await;
    assert_eq!(asker.holders("a").await, [1]);
    let ended = "SELECT COUNT(*) FROM lockkeeper_resource WHERE holder IS NOT NULL";
    until(&server, ended, "1").await;
}

/// Claims that race with sweeps are granted, once.
#[tokio::test(flavor = "multi_thread")]
async fn claims_beside_sweeps_have_one_holder() {
    let server = MariaDb::start().expect("started");
    let asker = Asker::connect(&server.url()).await;
    let mut last = 0;
    for round in 0..3 {
        let _sweeper = Asker::connect(&server.url()).await;
        let started = Instant::now();
        while started.elapsed() < millis(2200) {
            make_old(&server);
            let Verdict::Granted(grant) = asker.ask("a", round + 1).await else { panic!("free") };
            assert!(grant.number > last, "{} after {last}", grant.number);
            last = grant.number;
            assert_eq!(asker.holders("a").await, [round + 1]);
            asker.give_back("a", round + 1).await.expect("answered");
        }
    }
}

/// A keeper whose sweep may be held up, and a name that it used.
async fn sweeper(server: &MariaDb) -> Asker {
    let asker = Asker::connect(&format!("{}?request_limit=30s", server.url())).await;
    assert!(is_granted(&asker.ask("a", 1).await));
    asker.give_back("a", 1).await.expect("answered");
    asker
}

/// The sweep has seen that a name is free, and is held up before it removes its row. A contender that takes the name
/// meanwhile keeps it: the sweep looks again under the lock.
#[tokio::test(flavor = "multi_thread")]
async fn a_name_that_is_taken_after_the_sweep_looked_stays() {
    let server = MariaDb::start().expect("started");
    let sweeper = sweeper(&server).await;
    for (name, seq) in [("b", 2), ("ended", 3)] {
        assert!(is_granted(&sweeper.ask(name, seq).await));
    }
    sweeper.give_back("b", 2).await.expect("answered");
    let mut gate = Gate::close(&server).await;
    // Names that have ended are settled before free names are removed. One ends in the statement that ages the others.
    server
        .sql(
            "CREATE TRIGGER waits BEFORE UPDATE ON lockkeeper_resource FOR EACH ROW \
             DO IF(NEW.name = 'ended' AND NEW.used > 1, GET_LOCK('gate', 10), 0); \
             UPDATE lockkeeper_resource SET used = 1, \
             holder = IF(name = 'ended', REPLACE(holder, CONCAT(' ', ends, ' '), ' 1 '), holder), \
             ends = IF(name = 'ended', 1, ends); \
             UPDATE lockkeeper_store SET swept = 0",
        )
        .expect("made");
    gate.until_met().await;
    // Another keeper, whose requests do not wait for the sweep. It does not sweep again.
    let asker = Asker::connect(&server.url()).await;
    assert!(is_granted(&asker.ask("a", 1).await));
    assert!(matches!(asker.ask("a", 4).await, Verdict::Busy { .. }));
    gate.open().await;
    until(&server, "SELECT COUNT(*) FROM lockkeeper_resource WHERE name = 'b'", "0").await;
    assert_eq!(asker.holders("a").await, [1]);
    let waiters = server.sql("SELECT COUNT(*) FROM lockkeeper_entry WHERE name = 'a' AND entry IS NOT NULL");
    assert_eq!(waiters.expect("asked"), "1", "who waits keeps its place");
}

/// The sweep is held up after it has looked under the lock. Nobody takes the name meanwhile.
#[tokio::test(flavor = "multi_thread")]
async fn a_name_that_the_sweep_removes_is_locked() {
    let server = MariaDb::start().expect("started");
    let _sweeper = sweeper(&server).await;
    let mut gate = Gate::close(&server).await;
    server
        .sql(
            "CREATE TRIGGER waits BEFORE UPDATE ON lockkeeper_store FOR EACH ROW \
              DO IF(NEW.floor <> OLD.floor, GET_LOCK('gate', 10), 0)",
        )
        .expect("made");
    make_old(&server);
    gate.until_met().await;
    let asker = Asker::connect(&server.url()).await;
    let verdict = asker.ask_once("a", 1).await;
    assert!(matches!(verdict, Verdict::NotNow(_)), "{verdict:?}");
    gate.open().await;
    assert!(is_granted(&asker.ask("a", 1).await));
    assert_eq!(asker.holders("a").await, [1]);
}
