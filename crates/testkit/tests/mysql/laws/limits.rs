//! Limits of time, laws 2 and 5: how short they are, and that each ends with the work that it is for.

use std::time::Instant;

use lockkeeper_core::store::{Answer, Left, Renewed, Verdict};
use lockkeeper_testkit::{
    asker::Asker,
    servers::{MariaDb, MariaDbOptions},
};

use crate::{
    millis,
    plain::{LOCK_WAITS, commit, is_granted, lock_rows, number, session},
};

/// How often something is tried that has little time. The machine may be busy.
const TRIES: usize = 10;

/// Law 2. A lone name that others have locked is waited for, but for a moment only: other requests wait behind it.
#[tokio::test(flavor = "multi_thread")]
async fn law_2_a_busy_name_is_waited_for_only_a_moment() {
    let server = MariaDb::start().expect("started");
    let asker = Asker::connect(&server.url()).await;
    assert!(is_granted(&asker.ask("a", 1).await));
    let mut other = session(&server).await;
    lock_rows(&mut other, &["a"]).await;
    let mut fastest = millis(10_000);
    for _ in 0..TRIES {
        let started = Instant::now();
        assert!(matches!(asker.ask_once("a", 2).await, Verdict::NotNow(_)));
        fastest = fastest.min(started.elapsed());
    }
    commit(&mut other).await;
    // The server's own limit is a second.
    assert!((millis(20)..millis(500)).contains(&fastest), "{fastest:?}");
}

/// Law 5. The limit for a client that stops in a transaction ends with the transaction, however that ended: a connection that
/// is not used for a while stays open.
#[tokio::test(flavor = "multi_thread")]
async fn law_5_a_connection_without_a_transaction_is_not_ended() {
    // Whatever others are allowed: a keeper's connections may idle.
    let server = MariaDbOptions::default().setting("wait_timeout = 2").start().expect("started");
    let asker = Asker::connect(&server.url()).await;
    let connections = || {
        let all = "SELECT id FROM information_schema.processlist WHERE user = 'lockkeeper' ORDER BY id";
        server.sql(all).expect("asked")
    };
    // A transaction that was committed.
    assert!(is_granted(&asker.ask("a", 1).await));
    let before = connections();
    tokio::time::sleep(millis(2500)).await;
    assert_eq!(connections(), before, "ended after a commit");
    // One that had nothing to write.
    let left = asker.give_back_once("a", 2).await.expect("answered").each;
    assert!(matches!(left[..], [Answer::Leave(Left::NotThere)]), "{left:?}");
    tokio::time::sleep(millis(2500)).await;
    assert_eq!(connections(), before, "ended after a rollback");
}

/// Law 2. A name that is asked for alone waits beside the other requests of its keeper, not before them.
#[tokio::test(flavor = "multi_thread")]
async fn law_2_a_busy_name_occupies_no_connection_that_others_need() {
    let server = MariaDb::start().expect("started");
    let asker = Asker::connect(&server.url()).await;
    assert!(is_granted(&asker.ask("a", 1).await) && is_granted(&asker.ask("b", 2).await));
    let (mut other, mut monitor) = (session(&server).await, session(&server).await);
    lock_rows(&mut other, &["a"]).await;
    for _ in 0..TRIES {
        let alone = tokio::spawn({
            let asker = asker.clone();
            async move { asker.ask_alone("a", 3).await }
        });
        while !alone.is_finished() && number(&mut monitor, LOCK_WAITS).await == 0 {}
        let verdict = asker.ask_once("b", 4).await;
        assert!(matches!(verdict, Verdict::Busy { .. }), "{verdict:?}");
        let waits_still = !alone.is_finished();
        alone.await.expect("no panic");
        if waits_still {
            return;
        }
    }
    panic!("others waited for a busy name");
}

/// Law 2. A lease whose name was busy when the others of its group were renewed is renewed in the same request, once its name
/// is not busy any more.
#[tokio::test(flavor = "multi_thread")]
async fn law_2_a_busy_name_is_renewed_soon() {
    let server = MariaDb::start().expect("started");
    let asker = Asker::connect(&server.url()).await;
    assert!(is_granted(&asker.ask("a", 1).await) && is_granted(&asker.ask("b", 2).await));
    let (mut other, mut monitor) = (session(&server).await, session(&server).await);
    for _ in 0..TRIES {
        lock_rows(&mut other, &["a"]).await;
        let renewing = tokio::spawn({
            let asker = asker.clone();
            let leases = [asker.renewal("a", 1), asker.renewal("b", 2)];
            async move { asker.store.renew(&leases).await.expect("answered").each }
        });
        while !renewing.is_finished() && number(&mut monitor, LOCK_WAITS).await == 0 {}
        commit(&mut other).await;
        let renewed = renewing.await.expect("no panic");
        assert!(matches!(renewed[1], Renewed::Held(_)), "{renewed:?}");
        if matches!(renewed[0], Renewed::Held(_)) {
            return;
        }
    }
    panic!("a busy name was not asked for again");
}
