//! Another server takes over, and commits that wait for replicas.

use std::sync::Arc;

use lockkeeper_core::{
    StoreErrorKind,
    store::{Answer, Topic, Verdict, Wake, WakeSink},
};
use lockkeeper_testkit::{
    proxy::Proxy,
    servers::{Postgres, PostgresOptions},
};
use tokio::{sync::mpsc, time::timeout};

use crate::{
    asker::Asker,
    millis,
    replicas::{cancel_waits, until_one_waits, wait_for},
    secs,
};

/// One session of the keeper finds another primary, while the old one lives on. All its sessions go along: every lock
/// that the old one grants from now on, the new one may grant as well.
#[tokio::test(flavor = "multi_thread")]
async fn all_sessions_follow_the_first_one_to_a_new_primary() {
    let old = Postgres::start().expect("started");
    let proxy = Proxy::start(old.address()).expect("started");
    let (sender, mut told) = mpsc::unbounded_channel();
    let wakes = WakeSink::new(move |wake| {
        if matches!(wake, Wake::Reconfirm) {
            let _ = sender.send(());
        }
    });
    let url = format!("postgres://lockkeeper@{}/lockkeeper", proxy.address());
    let asker = Asker::connect_with(&url, wakes).await.expect("connected");
    assert!(matches!(asker.ask_once("a", 1).await, Verdict::Granted(_)));
    let new = old.replica().expect("follows");
    new.promote().expect("promoted");
    proxy.lead_to(new.address());
    // Renewals have a session of their own, which is opened now.
    asker.store.renew(&[asker.renewal("a", 1)]).await.expect("answered");
    timeout(secs(10), told.recv()).await.expect("told to renew everything");
    assert!(matches!(asker.ask_once("b", 2).await, Verdict::Granted(_)));
    let held = "SELECT count(*) FROM lockkeeper.resource WHERE name = 'b' AND holder IS NOT NULL";
    assert_eq!((old.sql(held).expect("asked"), new.sql(held).expect("asked")), ("0".into(), "1".into()));
    // The old one is not believed any more, also if it is found again.
    proxy.lead_to(old.address());
    proxy.cut_all();
    let error = loop {
        match asker.claims(&[("b", 3)]).await {
            // The cut may fall on either side of an answer.
            Err(error) if !error.to_string().contains("replaced") => {}
            answer => break answer.expect_err("refused"),
        }
    };
    assert!(error.is_passing() && !error.maybe_applied(), "{error}");
}

/// A commit whose wait for a replica is cancelled is an unknown outcome for the releasing keeper, also if warnings are
/// switched off for its user. The waiter is not told: nobody knows whether the grant outlives a failover.
#[tokio::test(flavor = "multi_thread")]
async fn a_commit_that_no_longer_waits_for_its_replicas_is_told_to_nobody() {
    let server = Postgres::start().expect("started");
    server.sql("ALTER ROLE lockkeeper SET client_min_messages = 'error'").expect("set");
    let holder = Arc::new(Asker::connect(&server.url()).await);
    let (sender, mut told) = mpsc::unbounded_channel();
    let wakes = WakeSink::new(move |wake| {
        if let Wake::Granted(_, notice) = wake {
            let _ = sender.send(notice.contender.seq);
        }
    });
    let waiter = Asker::connect_with(&server.url(), wakes).await.expect("connected");
    assert!(matches!(holder.ask_once("a", 1).await, Verdict::Granted(_)));
    let _watch = waiter.store.watch(&Topic::Grants(holder.claim("a", 1).name)).await.expect("subscribed");
    assert!(matches!(waiter.ask_once("a", 2).await, Verdict::Busy { .. }));
    wait_for(&server, "nobody");
    let leaving = tokio::spawn({
        let holder = holder.clone();
        async move { holder.give_back_once("a", 1).await }
    });
    until_one_waits(&server, &leaving, "leave").await;
    cancel_waits(&server);
    let error = leaving.await.expect("no panic").expect_err("not known");
    assert!(error.maybe_applied() && error.is_passing(), "{error}");
    assert!(timeout(millis(300), told.recv()).await.is_err(), "told of a grant that may be lost");
    // Asking is safe: it writes and so waits by itself.
    wait_for(&server, "");
    assert!(matches!(waiter.ask_once("a", 2).await, Verdict::Granted(_)));
    // Messages are sent all the same where commits wait for a replica that is there.
    let replica = server.replica().expect("follows");
    let name = server.sql("SELECT application_name FROM pg_stat_replication").expect("asked");
    wait_for(&server, &name);
    assert!(matches!(holder.ask_once("b", 3).await, Verdict::Granted(_)));
    assert!(matches!(waiter.ask_once("b", 4).await, Verdict::Busy { .. }));
    let left = holder.give_back_once("b", 3).await.expect("answered").each;
    assert!(matches!(left[..], [Answer::Leave(_)]), "{left:?}");
    assert_eq!(timeout(secs(10), told.recv()).await.expect("in time"), Some(4));
    wait_for(&server, "");
    drop(replica);
}

/// Claims until it is granted.
async fn granted_within(asker: &Asker, name: &str, seq: u64, limit: std::time::Duration) {
    let granted = async {
        loop {
            let answers = asker.claims(&[(name, seq)]).await;
            if answers.is_ok_and(|it| matches!(it.each[..], [Answer::Claim(Verdict::Granted(_))])) {
                return;
            }
            tokio::time::sleep(millis(20)).await;
        }
    };
    timeout(limit, granted).await.expect("granted in time");
}

/// The first server of the URL takes connections and answers nothing, as one whose disk hangs. The next one is used, and
/// stays in use when the first one is back.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_hangs_or_comes_back_stops_no_failover() {
    let old = Postgres::start().expect("started");
    Asker::connect(&old.url()).await;
    let new = old.replica().expect("follows");
    let url =
        format!("postgres://lockkeeper@{},{}/lockkeeper?request_limit=1s", old.address(), new.address());
    let asker = Asker::connect(&url).await;
    granted_within(&asker, "a", 1, secs(10)).await;
    old.until_followed_by(&new).expect("it follows");
    old.pause();
    new.promote().expect("promoted");
    granted_within(&asker, "b", 2, secs(15)).await;
    let held = "SELECT count(*) FROM lockkeeper.resource WHERE name = 'b' AND holder IS NOT NULL";
    assert_eq!(new.sql(held).expect("asked"), "1");
    // A keeper that comes now does the same.
    let late = Asker::connect_with(&url, WakeSink::new(|_| {})).await.expect("the second server is good");
    granted_within(&late, "c", 1, secs(10)).await;
    old.resume();
    let cut =
        "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE application_name = 'lockkeeper'";
    new.sql(cut).expect("cut");
    granted_within(&asker, "d", 3, secs(10)).await;
    let held = "SELECT count(*) FROM lockkeeper.resource WHERE name = 'd'";
    assert_eq!((old.sql(held).expect("asked"), new.sql(held).expect("asked")), ("0".into(), "1".into()));
}

/// No matter why a server of the URL fails, the others are tried; an error that does not pass by itself is told.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_refuses_this_user_stops_no_failover() {
    let strict = PostgresOptions::default().password("canary").start().expect("started");
    let good = Postgres::start().expect("started");
    let both = format!("postgres://lockkeeper:wrong@{},{}/lockkeeper", strict.address(), good.address());
    let asker = Asker::connect(&both).await;
    assert!(matches!(asker.ask_once("a", 1).await, Verdict::Granted(_)));
    let none = format!("postgres://lockkeeper:wrong@{},127.0.0.1:1/lockkeeper", strict.address());
    let error = Asker::connect_with(&none, WakeSink::new(|_| {})).await.expect_err("refused");
    assert_eq!(error.kind(), StoreErrorKind::Denied, "{error}");
    let missing = format!("postgres://lockkeeper@{}/lockkeeper", strict.address());
    let error = Asker::connect_with(&missing, WakeSink::new(|_| {})).await.expect_err("refused");
    assert!(error.kind() == StoreErrorKind::Denied && error.to_string().contains("password"), "{error}");
}
