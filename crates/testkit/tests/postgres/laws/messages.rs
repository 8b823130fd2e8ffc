//! Laws 7 and 8: messages tell only of committed grants and changes, and a session that hears nothing is noticed.

use std::time::{Duration, Instant};

use lockkeeper_core::store::{Answer, Left, Topic, Verdict, Wake, WakeSink};
use lockkeeper_testkit::{
    proxy::{Fault, Proxy},
    servers::{Postgres, PostgresEnd, PostgresOptions},
};
use tokio::{sync::mpsc, time::timeout};

use crate::{
    asker::Asker,
    millis,
    plain::{backends, session},
    secs,
};

use super::is_granted;

/// Law 7. A grant is told only once it is committed: not if the commit itself fails, behind which the message travels in
/// the same flight.
#[tokio::test(flavor = "multi_thread")]
async fn law_7_a_grant_that_was_not_committed_is_told_to_nobody() {
    let server = Postgres::start().expect("started");
    let (holder, (sender, mut told)) = (Asker::connect(&server.url()).await, mpsc::unbounded_channel());
    let wakes = WakeSink::new(move |wake| {
        if let Wake::Granted(_, notice) = wake {
            let _ = sender.send(notice.contender.seq);
        }
    });
    let waiter = Asker::connect_with(&server.url(), wakes).await.expect("connected");
    assert!(is_granted(&holder.ask_once("a", 1).await));
    let _watch = waiter.store.watch(&Topic::Grants(holder.claim("a", 1).name)).await.expect("subscribed");
    assert!(matches!(waiter.ask_once("a", 2).await, Verdict::Busy { .. }));
    let fails = "CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'at commit'; END $$;
                 CREATE CONSTRAINT TRIGGER fail AFTER UPDATE ON lockkeeper.resource DEFERRABLE INITIALLY DEFERRED
                     FOR EACH ROW EXECUTE FUNCTION fail()";
    server.sql(fails).expect("made");
    holder.give_back_once("a", 1).await.expect_err("not committed");
    assert_eq!(holder.holders("a").await, [1]);
    server.sql("DROP TRIGGER fail ON lockkeeper.resource").expect("dropped");
    // If the failed one had been told, it would have come before this one.
    let plain = session(&server).await;
    plain.batch_execute("SELECT 1").await.expect("asked");
    assert!(timeout(millis(300), told.recv()).await.is_err(), "told before it was committed");
    holder.give_back_once("a", 1).await.expect("answered");
    assert_eq!(timeout(secs(10), told.recv()).await.expect("in time"), Some(2));
}

/// Law 7. A full queue of notifications fails no release. It cannot be filled quickly, so the function that sends is taken
/// away from the user instead.
#[tokio::test(flavor = "multi_thread")]
async fn law_7_a_message_that_cannot_be_sent_fails_no_release() {
    let server = Postgres::start().expect("started");
    server.sql("CREATE ROLE app LOGIN; GRANT CREATE ON DATABASE lockkeeper TO app").expect("made");
    let (holder, waiter) = (
        Asker::connect(&server.url_as("app", None)).await,
        Asker::connect(&server.url_as("app", None)).await,
    );
    assert!(is_granted(&holder.ask_once("a", 1).await));
    assert!(matches!(waiter.ask_once("a", 2).await, Verdict::Busy { .. }));
    server.sql("REVOKE EXECUTE ON FUNCTION pg_notify(text, text) FROM PUBLIC").expect("revoked");
    let left = holder.give_back_once("a", 1).await.expect("answered").each;
    assert!(matches!(left[..], [Answer::Leave(Left::Released)]), "{left:?}");
    assert_eq!(holder.holders("a").await, [2]);
    assert!(is_granted(&holder.ask_once("b", 3).await), "the connection goes on");
}

/// Law 7. A queue of notifications that is half full makes the server warn the session that notifies. The warning is not about
/// the commit before it, so it makes no release unknown and ends no session. A function in front of the server's warns here.
#[tokio::test(flavor = "multi_thread")]
async fn law_7_a_warning_about_messages_is_no_warning_about_the_commit() {
    let server = Postgres::start().expect("started");
    let warns = "CREATE SCHEMA front;
                 CREATE FUNCTION front.pg_notify(text, text) RETURNS void LANGUAGE plpgsql AS $$ BEGIN
                     RAISE WARNING 'half full'; PERFORM pg_catalog.pg_notify($1, $2);
                 END $$;
                 ALTER ROLE lockkeeper SET search_path = front, pg_catalog";
    server.sql(warns).expect("made");
    let (holder, waiter) = (Asker::connect(&server.url()).await, Asker::connect(&server.url()).await);
    let sessions =
        "SELECT string_agg(pid::text, ' ') FROM pg_stat_activity WHERE application_name = 'lockkeeper'";
    let before = server.sql(sessions).expect("asked");
    for round in 0..50 {
        let (held, waits) = (2 * round + 1, 2 * round + 2);
        assert!(is_granted(&holder.ask_once("a", held).await));
        assert!(matches!(waiter.ask_once("a", waits).await, Verdict::Busy { .. }));
        let left = holder.give_back_once("a", held).await.expect("answered").each;
        assert!(matches!(left[..], [Answer::Leave(Left::Released)]), "{left:?}");
        waiter.give_back_once("a", waits).await.expect("answered");
    }
    assert_eq!(server.sql(sessions).expect("asked"), before, "no session was lost");
}

/// A message that a keeper with this id hears, if it listens.
fn message(server: &Postgres, asker: &Asker, name: &str) {
    let text = format!(
        "SELECT pg_notify('lk_{}', 'lockkeeper 1' || chr(10) || 'latch' || chr(9) || '{name}')",
        asker.keeper
    );
    server.sql(&text).expect("sent");
}

/// The wakes of an asker.
fn listener() -> (WakeSink, mpsc::UnboundedReceiver<Wake>) {
    let (sender, wakes) = mpsc::unbounded_channel();
    (WakeSink::new(move |wake| drop(sender.send(wake))), wakes)
}

/// Waits for a wake, and skips others.
async fn until_woken(
    wakes: &mut mpsc::UnboundedReceiver<Wake>,
    within: Duration,
    by: impl Fn(&Wake) -> bool,
) -> bool {
    let woken = async {
        while let Some(wake) = wakes.recv().await {
            if by(&wake) {
                return true;
            }
        }
        false
    };
    timeout(within, woken).await.unwrap_or(false)
}

fn is_change(wake: &Wake) -> bool {
    matches!(wake, Wake::Changed(_))
}

fn is_resync(wake: &Wake) -> bool {
    matches!(wake, Wake::Resync)
}

/// Law 8. The keeper listens only while somebody waits or watches, on one session, and on no connection more than three.
#[tokio::test(flavor = "multi_thread")]
async fn law_8_only_those_who_wait_listen() {
    let server = Postgres::start().expect("started");
    let (sink, mut wakes) = listener();
    let asker = Asker::connect_with(&server.url(), sink).await.expect("connected");
    message(&server, &asker, "early");
    let name = asker.claim("a", 1).name;
    let first = asker.store.watch(&Topic::Grants(name.clone())).await.expect("subscribed");
    let last = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'LISTEN%'";
    assert_eq!(server.sql(last).expect("asked"), "1");
    let second = asker.store.watch(&Topic::Changes(name)).await.expect("subscribed");
    assert_eq!(backends(&server).len(), 2, "requests and messages; nothing was renewed yet");
    message(&server, &asker, "heard");
    let is_heard = |wake: &Wake| {
        let Wake::Changed(Topic::Latch(name)) = wake else { return false };
        assert_eq!(name.as_str(), "heard", "it did not listen before");
        true
    };
    assert!(until_woken(&mut wakes, secs(10), is_heard).await, "it listens");
    drop((first, second));
    while server.sql("SELECT count(*) FROM lockkeeper.watcher").expect("asked") != "0" {
        tokio::time::sleep(millis(10)).await;
    }
    let started = Instant::now();
    loop {
        message(&server, &asker, "late");
        if !until_woken(&mut wakes, millis(300), is_change).await {
            break;
        }
        assert!(started.elapsed() < secs(10), "it listens although nobody cares");
    }
    // Its session does not listen either: nothing has come there when somebody cares again.
    message(&server, &asker, "unheard");
    let again = asker.store.watch(&Topic::Grants(asker.claim("a", 1).name)).await.expect("subscribed");
    message(&server, &asker, "heard");
    let is_heard = |wake: &Wake| {
        let Wake::Changed(Topic::Latch(name)) = wake else { return false };
        assert_ne!(name.as_str(), "unheard", "it listened although nobody cared");
        name.as_str() == "heard"
    };
    assert!(until_woken(&mut wakes, secs(10), is_heard).await, "it listens again");
    drop(again);
    asker.store.renew(&[asker.renewal("a", 1)]).await.expect("answered");
    assert_eq!(backends(&server).len(), 3, "and renewals");
}

/// Law 8. Messages are relied on once they are proved to arrive. Where they do not, the keeper polls. Here a function in front
/// of the server's swallows them, as some poolers do.
#[tokio::test(flavor = "multi_thread")]
async fn law_8_messages_that_do_not_arrive_are_noticed() {
    let server = Postgres::start().expect("started");
    let swallows = "CREATE SCHEMA front;
                    CREATE FUNCTION front.pg_notify(text, text) RETURNS void LANGUAGE sql AS $$ $$;
                    ALTER ROLE lockkeeper SET search_path = front, pg_catalog";
    server.sql(swallows).expect("made");
    let (sink, mut wakes) = listener();
    let asker = Asker::connect_with(&server.url(), sink).await.expect("connected");
    let _watch = asker.store.watch(&Topic::Grants(asker.claim("a", 1).name)).await.expect("subscribed");
    for poll in 0..4 {
        assert!(until_woken(&mut wakes, secs(5), is_resync).await, "poll {poll}");
    }
}

/// Law 8. A keeper that cannot listen, because the server has no connection left for it, polls and says so.
#[tokio::test(flavor = "multi_thread")]
async fn law_8_a_keeper_without_a_session_to_listen_on_polls() {
    crate::log::listen();
    let server = Postgres::start().expect("started");
    server
        .sql("CREATE ROLE app LOGIN CONNECTION LIMIT 1; GRANT CREATE ON DATABASE lockkeeper TO app")
        .expect("made");
    let (sink, mut wakes) = listener();
    let asker = Asker::connect_with(&server.url_as("app", None), sink).await.expect("connected");
    let watching = asker.store.watch(&Topic::Grants(asker.claim("a", 1).name)).await;
    for poll in 0..4 {
        assert!(until_woken(&mut wakes, secs(5), is_resync).await, "poll {poll}");
    }
    assert!(crate::log::has("cannot listen"), "nothing was said");
    // Once there is a session, it hears.
    server.sql("ALTER ROLE app CONNECTION LIMIT 3").expect("changed");
    until_heard(&server, &asker, &mut wakes).await;
    drop(watching);
}

/// Law 8. A session that was lost is replaced, and everything is asked again then. A silent one is noticed by its heartbeat.
#[tokio::test(flavor = "multi_thread")]
async fn law_8_a_lost_session_is_replaced() {
    let server = Postgres::start().expect("started");
    let proxy = Proxy::start(server.address()).expect("started");
    let url = format!("postgres://lockkeeper@{}/lockkeeper?request_limit=2s", proxy.address());
    let (sink, mut wakes) = listener();
    let asker = Asker::connect_with(&url, sink).await.expect("connected");
    let _watch = asker.store.watch(&Topic::Grants(asker.claim("a", 1).name)).await.expect("subscribed");
    assert!(until_woken(&mut wakes, secs(5), is_resync).await, "it listens");
    server
        .sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE 'LISTEN%'")
        .expect("killed");
    assert!(until_woken(&mut wakes, secs(5), is_resync).await, "it was noticed");
    until_heard(&server, &asker, &mut wakes).await;
    proxy.now(Fault::SILENCE);
    assert!(until_woken(&mut wakes, secs(30), is_resync).await, "it was noticed");
    until_heard(&server, &asker, &mut wakes).await;
}

/// Waits until a keeper hears messages again.
async fn until_heard(server: &Postgres, asker: &Asker, wakes: &mut mpsc::UnboundedReceiver<Wake>) {
    let started = Instant::now();
    loop {
        message(server, asker, "heard");
        if until_woken(wakes, millis(300), is_change).await {
            return;
        }
        assert!(started.elapsed() < secs(20), "it does not listen");
    }
}

/// Law 8. A subscription to changes outlives a crash of the server, which takes along rows that were not synced.
#[tokio::test(flavor = "multi_thread")]
async fn law_8_a_subscription_outlives_a_crash() {
    let server = PostgresOptions::default().setting("wal_writer_delay = 10s").start().expect("started");
    let (sink, mut wakes) = listener();
    let (asker, other) = (
        Asker::connect_with(&server.url(), sink).await.expect("connected"),
        Asker::connect(&server.url()).await,
    );
    let name = asker.claim("a", 1).name;
    assert!(is_granted(&other.ask_once("a", 1).await));
    let _watch = asker.store.watch(&Topic::Changes(name)).await.expect("subscribed");
    server.restart(PostgresEnd::Immediate).expect("restarted");
    assert_eq!(server.sql("SELECT count(*) FROM lockkeeper.watcher").expect("asked"), "0", "it was lost");
    assert!(until_woken(&mut wakes, secs(10), |wake| matches!(wake, Wake::Reconfirm)).await, "it is back");
    assert!(until_woken(&mut wakes, secs(10), is_change).await, "it may have missed something");
    while other.give_back_once("a", 1).await.is_err() {}
    assert!(until_woken(&mut wakes, secs(1), is_change).await, "it is told");
}
