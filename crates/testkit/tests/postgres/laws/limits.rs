//! Laws 5 and 6: a client that stops in a transaction is ended, and half a transaction is never committed.

use std::time::Instant;

use lockkeeper_core::store::{Answer, Left, Request, Verdict};
use lockkeeper_testkit::{
    proxy::{Fault, Proxy},
    servers::Postgres,
};

use crate::{asker::Asker, millis, plain::backends, secs};

use super::is_granted;

/// Law 5. A client that stops between the flights keeps its names from others for about a second. Here it is a network
/// that swallows the answer to the first flight.
#[tokio::test(flavor = "multi_thread")]
async fn law_5_a_client_that_stops_in_a_transaction_is_ended() {
    let server = Postgres::start().expect("started");
    let proxy = Proxy::start(server.address()).expect("started");
    let slow = format!("postgres://lockkeeper@{}/lockkeeper?request_limit=50s", proxy.address());
    let (stopped, other) = (Asker::connect(&slow).await, Asker::connect(&server.url()).await);
    assert!(is_granted(&other.ask_once("a", 1).await));
    other.give_back_once("a", 1).await.expect("answered");
    // Its statements are prepared after this, so the next request is two flights and nothing else.
    assert!(is_granted(&stopped.ask_once("b", 1).await));
    assert!(is_granted(&stopped.ask_once("a", 2).await));
    stopped.give_back_once("a", 2).await.expect("answered");
    proxy.now(Fault::SILENCE);
    let asking = tokio::spawn(async move { stopped.claims(&[("a", 3)]).await });
    let idle = "SELECT count(*) FROM pg_stat_activity WHERE state = 'idle in transaction'";
    while server.sql(idle).expect("asked") == "0" {
        tokio::time::sleep(millis(5)).await;
    }
    let started = Instant::now();
    while !is_granted(&other.ask_once("a", 4).await) {
        assert!(started.elapsed() < secs(3), "the name stays locked");
    }
    assert!(started.elapsed() > millis(300), "it was locked in the first place");
    asking.abort();
}

/// Law 5. The limits that a transaction sets are in force, over TCP: also for a client that is not idle, but does not read.
#[tokio::test(flavor = "multi_thread")]
async fn law_5_each_transaction_has_its_limits() {
    let server = Postgres::start().expect("started");
    let asker = Asker::connect(&server.url()).await;
    let notes = "CREATE TABLE seen (name text, value text);
                 CREATE FUNCTION see() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
                     INSERT INTO seen SELECT name, current_setting(name) FROM unnest(ARRAY[
                         'idle_in_transaction_session_timeout', 'tcp_user_timeout', 'lock_timeout', 'statement_timeout',
                         'transaction_isolation', 'client_min_messages']) AS n(name);
                     RETURN NEW;
                 END $$;
                 CREATE TRIGGER see BEFORE UPDATE ON lockkeeper.resource FOR EACH ROW EXECUTE FUNCTION see()";
    server.sql(notes).expect("made");
    assert!(is_granted(&asker.ask_once("a", 1).await));
    asker.store.renew(&[asker.renewal("a", 1)]).await.expect("answered");
    let left = asker.store.apply_alone(&[Request::Leave(asker.leave("a", 1))]).await.expect("answered").each;
    assert!(matches!(left[..], [Answer::Leave(Left::Released)]), "{left:?}");
    let seen =
        server.sql("SELECT name, value, count(*) FROM seen GROUP BY 1, 2 ORDER BY 1, 2").expect("asked");
    let expected = "client_min_messages|warning|3\nidle_in_transaction_session_timeout|1s|3\nlock_timeout|250ms|2\n\
                    lock_timeout|30ms|1\nstatement_timeout|5s|3\ntcp_user_timeout|2000|3\n\
                    transaction_isolation|read committed|3";
    assert_eq!(seen, expected);
}

/// Law 5. Both flights run on the keeper's thread: a program that blocks its own runtime in between keeps no name locked.
#[test]
fn law_5_a_blocked_runtime_keeps_no_name_locked() {
    let server = Postgres::start().expect("started");
    let (blocks, other) = (runtime(), runtime());
    let proxy = Proxy::start(server.address()).expect("started");
    let url = format!("postgres://lockkeeper@{}/lockkeeper", proxy.address());
    let blocked = blocks.block_on(lockkeeper::connect(&url)).expect("connected");
    let keeper = other.block_on(lockkeeper::connect(&server.url())).expect("connected");
    // Statements are prepared, and the row is there.
    for keeper in [&blocked, &keeper] {
        other.block_on(async {
            keeper.mutex("a").lock().await.expect("free").release().await.expect("held");
        });
    }
    proxy.delay(millis(20));
    let (sender, sent) = std::sync::mpsc::channel();
    let thread = std::thread::spawn(move || {
        blocks.block_on(async {
            let mutex = blocked.mutex("a");
            let mut locking = Box::pin(mutex.lock());
            // It sends its claim, and then the whole runtime does nothing for a while.
            let sent =
                std::future::poll_fn(|context| std::task::Poll::Ready(locking.as_mut().poll(context))).await;
            assert!(sent.is_pending());
            sender.send(()).expect("somebody waits");
            std::thread::sleep(millis(1500));
            locking.await.expect("free").release().await.expect("held");
        });
        blocks.block_on(blocked.close());
    });
    sent.recv().expect("sent");
    // When its first flight has been answered, the row is locked.
    std::thread::sleep(millis(100));
    let started = Instant::now();
    let tried = other.block_on(keeper.mutex("a").try_lock()).expect("answered");
    assert!(tried.is_none(), "the blocked one holds it");
    assert!(started.elapsed() < millis(500), "answered after {:?}", started.elapsed());
    thread.join().expect("no panic");
    other.block_on(keeper.close());
}

/// Law 6. A write that fails undoes its whole transaction, although the commit behind it is answered. The claim that
/// failed is not held, and says that nothing was done.
#[tokio::test(flavor = "multi_thread")]
async fn law_6_half_a_transaction_is_never_committed() {
    let server = Postgres::start().expect("started");
    let asker = Asker::connect(&server.url()).await;
    for (name, seq) in [("a", 1), ("b", 2)] {
        assert!(is_granted(&asker.ask_once(name, seq).await));
        asker.give_back_once(name, seq).await.expect("answered");
    }
    let refuses = "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
                       IF NEW.name = 'b' AND NEW.holder IS NOT NULL THEN RAISE 'refused'; END IF; RETURN NEW;
                   END $$;
                   CREATE TRIGGER refuse BEFORE UPDATE ON lockkeeper.resource FOR EACH ROW EXECUTE FUNCTION refuse()";
    server.sql(refuses).expect("made");
    let before = backends(&server);
    let error = asker.claims(&[("a", 3), ("b", 4)]).await.expect_err("refused");
    assert!(!error.maybe_applied() && error.to_string().contains("refused"), "{error}");
    assert_eq!(asker.holders("a").await, [] as [u64; 0]);
    // After any error, that session is not used again.
    assert_ne!(backends(&server), before, "the session was closed");
    // A trigger that drops a write is noticed as well.
    let drops = "CREATE OR REPLACE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
                     IF NEW.name = 'b' AND NEW.holder IS NOT NULL THEN RETURN NULL; END IF; RETURN NEW;
                 END $$";
    server.sql(drops).expect("made");
    let error = asker.claims(&[("a", 3), ("b", 4)]).await.expect_err("nothing was written");
    assert!(!error.maybe_applied(), "{error}");
    assert_eq!(asker.holders("a").await, [] as [u64; 0]);
    server.sql("DROP TRIGGER refuse ON lockkeeper.resource").expect("dropped");
    let answers = asker.claims(&[("a", 3), ("b", 4)]).await.expect("answered").each;
    assert!(answers.iter().all(|answer| matches!(answer, Answer::Claim(Verdict::Granted(_)))), "{answers:?}");
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime")
}
