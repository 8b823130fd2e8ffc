//! One test per law of the protocol.

use std::time::{Duration, Instant, SystemTime};

use lockkeeper_core::store::{Answer, Left, Renewed, Request, StoreTime, Topic, Verdict, Wake, WakeSink};
use lockkeeper_testkit::{
    proxy::{Fault, Proxy},
    servers::Postgres,
};
use tokio::{sync::mpsc, time::timeout};

use crate::{
    asker::{Asker, CLOCK, lock_row, session},
    millis, secs,
};

fn is_granted(verdict: &Verdict) -> bool {
    matches!(verdict, Verdict::Granted(_))
}

/// Law 1. Names that have no row yet are claimed by many at the same moment: `FOR UPDATE` on no row would lock nothing.
#[tokio::test(flavor = "multi_thread")]
async fn law_1_a_new_name_has_one_holder() {
    let server = Postgres::start().expect("started");
    let mut askers = Vec::new();
    for _ in 0..6 {
        askers.push(Asker::connect(&server.url()).await);
    }
    for round in 0..40 {
        let name = format!("new/{round}");
        let asked = askers.iter().map(|asker| asker.ask(&name, round + 1));
        let mut granted = 0;
        for verdict in futures_of(asked).await {
            granted += usize::from(is_granted(&verdict));
        }
        assert!(granted <= 1, "{granted} hold {name}");
        let mut holders = askers[0].holders(&name).await;
        assert_eq!(holders.len(), 1, "{holders:?}");
        holders.clear();
    }
}

async fn futures_of<T>(futures: impl Iterator<Item = impl Future<Output = T>>) -> Vec<T> {
    let mut pending: Vec<_> = futures.map(Box::pin).collect();
    let mut done: Vec<Option<T>> = pending.iter().map(|_| None).collect();
    std::future::poll_fn(|context| {
        for (future, done) in pending.iter_mut().zip(&mut done).filter(|(_, done)| done.is_none()) {
            if let std::task::Poll::Ready(value) = future.as_mut().poll(context) {
                *done = Some(value);
            }
        }
        if done.iter().all(Option::is_some) { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
    })
    .await;
    done.into_iter().flatten().collect()
}

/// Law 1. A leave that leaves a tombstone orders itself with late copies of its claim, although the name is new.
#[tokio::test(flavor = "multi_thread")]
async fn law_1_a_tombstone_stops_a_late_claim_of_a_new_name() {
    let server = Postgres::start().expect("started");
    let asker = Asker::connect(&server.url()).await;
    let mut leave = asker.leave("new", 1);
    leave.tombstone_until = Some(StoreTime(u64::MAX / 4));
    let left = asker.store.apply(&[Request::Leave(leave)]).await.expect("answered");
    assert!(matches!(left.each[..], [Answer::Leave(Left::NotThere)]), "{left:?}");
    assert!(matches!(asker.ask("new", 1).await, Verdict::Stale));
    assert!(is_granted(&asker.ask("new", 2).await));
}

/// Laws 2 and 9. Of several names, those that somebody has locked are left out, and the others are served at once. A lone
/// name is waited for, but not for long. Nothing was done for those that are told so.
#[tokio::test(flavor = "multi_thread")]
async fn law_2_a_busy_name_delays_no_other() {
    let server = Postgres::start().expect("started");
    let asker = Asker::connect(&server.url()).await;
    for (name, seq) in [("a", 1), ("b", 2), ("c", 3)] {
        assert!(is_granted(&asker.ask(name, seq).await));
    }
    asker.give_back("b", 2).await.expect("answered");
    let other = session(&server).await;
    lock_row(&other, "a").await;
    lock_row_too(&other, "b").await;
    let started = Instant::now();
    let group = [
        Request::Leave(asker.leave("a", 1)),
        Request::Claim(asker.claim("b", 4)),
        Request::Leave(asker.leave("c", 3)),
    ];
    let answers = asker.store.apply(&group).await.expect("answered").each;
    let [Answer::Leave(Left::NotNow), Answer::Claim(Verdict::NotNow(error)), Answer::Leave(Left::Released)] =
        &answers[..]
    else {
        panic!("{answers:?}")
    };
    assert!(!error.maybe_applied() && error.is_passing(), "{error}");
    assert!(started.elapsed() < millis(200), "it waited for {:?}", started.elapsed());
    // Alone it waits, is told the same, and the session goes on.
    let answers = asker.claims(&[("b", 4)]).await.expect("answered").each;
    assert!(matches!(answers[..], [Answer::Claim(Verdict::NotNow(_))]), "{answers:?}");
    let (answers, _) = tokio::join!(asker.claims(&[("b", 4)]), free_once_awaited(&server, &other));
    let answers = answers.expect("answered").each;
    assert!(matches!(answers[..], [Answer::Claim(Verdict::Granted(_))]), "{answers:?}");
    assert_eq!(asker.holders("a").await, [1], "nothing was done before");
}

async fn lock_row_too(session: &tokio_postgres::Client, name: &str) {
    let lock = "SELECT 1 FROM lockkeeper.resource WHERE name = $1 FOR UPDATE";
    assert_eq!(session.query(lock, &[&name.as_bytes()]).await.expect("locked").len(), 1, "{name} has a row");
}

/// Ends the transaction of `locks` as soon as another one waits for it, and returns the server's clock before that.
async fn free_once_awaited(server: &Postgres, locks: &tokio_postgres::Client) -> i64 {
    let monitor = session(server).await;
    let waits = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'";
    while monitor.query_one(waits, &[]).await.expect("asked").get::<_, i64>(0) == 0 {}
    let freed = locks.query_one(CLOCK, &[]).await.expect("asked").get(0);
    locks.batch_execute("COMMIT").await.expect("ended");
    freed
}

/// Law 2. Renewals have a connection of their own, and a busy name is renewed as soon as it is free.
#[tokio::test(flavor = "multi_thread")]
async fn law_2_a_busy_name_starves_no_renewal() {
    let server = Postgres::start().expect("started");
    let asker = Asker::connect(&server.url()).await;
    for (name, seq) in [("a", 1), ("b", 2), ("c", 3)] {
        assert!(is_granted(&asker.ask(name, seq).await));
    }
    let other = session(&server).await;
    lock_row(&other, "b").await;
    let leases = [("a", 1), ("b", 2), ("c", 3)].map(|(name, seq)| asker.renewal(name, seq));
    let answers = asker.store.renew(&leases).await.expect("answered").each;
    assert!(matches!(answers[..], [Renewed::Held(_), Renewed::Unknown, Renewed::Held(_)]), "{answers:?}");
    let (answers, _) = tokio::join!(asker.store.renew(&leases), free_once_awaited(&server, &other));
    let answers = answers.expect("answered").each;
    assert!(answers.iter().all(|answer| matches!(answer, Renewed::Held(_))), "{answers:?}");
}

/// Law 3. A claim that waited for the lock is judged by the time after the wait, and by the rows as they are then.
#[tokio::test(flavor = "multi_thread")]
async fn law_3_the_clock_is_read_after_the_lock() {
    let server = Postgres::start().expect("started");
    let (asker, rival) = (Asker::connect(&server.url()).await, Asker::connect(&server.url()).await);
    // Whatever others have set: our transactions say what they need.
    server.sql("ALTER ROLE lockkeeper SET default_transaction_isolation = 'serializable'").expect("allowed");
    assert!(is_granted(&asker.ask("a", 1).await));
    asker.give_back("a", 1).await.expect("answered");
    let other = session(&server).await;
    lock_row(&other, "a").await;
    let (answers, freed) = tokio::join!(rival.claims(&[("a", 2)]), free_once_awaited(&server, &other));
    let answers = answers.expect("answered");
    assert!(answers.now.0 >= freed.cast_unsigned(), "{} is before {freed}", answers.now.0);
    let [Answer::Claim(Verdict::Granted(grant))] = &answers.each[..] else { panic!("{answers:?}") };
    assert!(grant.number >= freed.cast_unsigned());
    // Sessions that are opened from now on begin with another isolation level.
    let late = Asker::connect(&server.url()).await;
    assert!(matches!(late.ask("a", 3).await, Verdict::Busy { .. }));
}

/// Law 4. A pushed grant says how long ago its waiter asked, by the server's clock, however slow the network is: no waiter
/// believes that it holds for longer than the server does.
#[tokio::test(flavor = "multi_thread")]
async fn law_4_a_pushed_grant_is_never_believed_for_too_long() {
    let server = Postgres::start().expect("started");
    let proxy = Proxy::start(server.address()).expect("started");
    let holder = Asker::connect(&server.url()).await;
    assert!(is_granted(&holder.ask("a", 1).await));
    let (sender, mut told) = mpsc::unbounded_channel();
    let wakes = WakeSink::new(move |wake| {
        if let Wake::Granted(_, notice) = wake {
            let _ = sender.send(notice);
        }
    });
    let slow =
        format!("postgres://lockkeeper@{}/lockkeeper?request_limit=30s&connect_limit=10s", proxy.address());
    let waiter = Asker::connect_with(&slow, wakes).await.expect("connected");
    proxy.delay(millis(100));
    let name = holder.claim("a", 1).name;
    let _watch = waiter.store.watch(&Topic::Grants(name)).await.expect("subscribed");
    let asked = SystemTime::now();
    assert!(matches!(waiter.ask("a", 2).await, Verdict::Busy { .. }));
    // The subscription may be younger than the claim.
    tokio::time::sleep(secs(2)).await;
    holder.give_back("a", 1).await.expect("answered");
    let notice = timeout(secs(10), told.recv()).await.expect("in time").expect("told");
    let granted = SystemTime::UNIX_EPOCH + Duration::from_micros(notice.number);
    // The waiter counts from when it sent its claim. The server asked its clock at least one way later.
    let believed = asked + notice.waited;
    assert!(believed + millis(90) < granted, "{:?} after it was granted", believed.duration_since(granted));
}

/// Law 5. A client that stops between the flights keeps its names from others for about a second. Here it is a network
/// that swallows the answer to the first flight.
#[tokio::test(flavor = "multi_thread")]
async fn law_5_a_client_that_stops_in_a_transaction_is_ended() {
    let server = Postgres::start().expect("started");
    let proxy = Proxy::start(server.address()).expect("started");
    let slow = format!("postgres://lockkeeper@{}/lockkeeper?request_limit=50s", proxy.address());
    let (stopped, other) = (Asker::connect(&slow).await, Asker::connect(&server.url()).await);
    assert!(is_granted(&other.ask("a", 1).await));
    other.give_back("a", 1).await.expect("answered");
    // Its statements are prepared after this, so the next request is two flights and nothing else.
    assert!(is_granted(&stopped.ask("b", 1).await));
    assert!(is_granted(&stopped.ask("a", 2).await));
    stopped.give_back("a", 2).await.expect("answered");
    proxy.now(Fault::SILENCE);
    let asking = tokio::spawn(async move { stopped.claims(&[("a", 3)]).await });
    let idle = "SELECT count(*) FROM pg_stat_activity WHERE state = 'idle in transaction'";
    while server.sql(idle).expect("asked") == "0" {
        tokio::time::sleep(millis(5)).await;
    }
    let started = Instant::now();
    while !is_granted(&other.ask("a", 4).await) {
        assert!(started.elapsed() < secs(3), "the name stays locked");
    }
    assert!(started.elapsed() > millis(300), "it was locked in the first place");
    asking.abort();
}

/// Law 6. A write that fails undoes its whole transaction, although the commit behind it is answered. The claim that
/// failed is not held, and says that nothing was done.
#[tokio::test(flavor = "multi_thread")]
async fn law_6_half_a_transaction_is_never_committed() {
    let server = Postgres::start().expect("started");
    let asker = Asker::connect(&server.url()).await;
    for (name, seq) in [("a", 1), ("b", 2)] {
        assert!(is_granted(&asker.ask(name, seq).await));
        asker.give_back(name, seq).await.expect("answered");
    }
    let refuses = "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
                       IF NEW.name = 'b' AND NEW.holder IS NOT NULL THEN RAISE 'refused'; END IF; RETURN NEW;
                   END $$;
                   CREATE TRIGGER refuse BEFORE UPDATE ON lockkeeper.resource FOR EACH ROW EXECUTE FUNCTION refuse()";
    server.sql(refuses).expect("made");
    let error = asker.claims(&[("a", 3), ("b", 4)]).await.expect_err("refused");
    assert!(!error.maybe_applied() && error.to_string().contains("refused"), "{error}");
    assert_eq!(asker.holders("a").await, [] as [u64; 0]);
    // A rule that drops the write is noticed as well.
    server.sql("DROP TRIGGER refuse ON lockkeeper.resource").expect("dropped");
    server
        .sql("CREATE RULE deaf AS ON UPDATE TO lockkeeper.resource WHERE NEW.name = 'b' DO INSTEAD NOTHING")
        .expect("made");
    let error = asker.claims(&[("a", 3), ("b", 4)]).await.expect_err("nothing was written");
    assert!(!error.maybe_applied(), "{error}");
    assert_eq!(asker.holders("a").await, [] as [u64; 0]);
    server.sql("DROP RULE deaf ON lockkeeper.resource").expect("dropped");
    let answers = asker.claims(&[("a", 3), ("b", 4)]).await.expect("answered").each;
    assert!(answers.iter().all(|answer| matches!(answer, Answer::Claim(Verdict::Granted(_)))), "{answers:?}");
}

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
    assert!(is_granted(&holder.ask("a", 1).await));
    let _watch = waiter.store.watch(&Topic::Grants(holder.claim("a", 1).name)).await.expect("subscribed");
    assert!(matches!(waiter.ask("a", 2).await, Verdict::Busy { .. }));
    let fails = "CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'at commit'; END $$;
                 CREATE CONSTRAINT TRIGGER fail AFTER UPDATE ON lockkeeper.resource DEFERRABLE INITIALLY DEFERRED
                     FOR EACH ROW EXECUTE FUNCTION fail()";
    server.sql(fails).expect("made");
    holder.give_back("a", 1).await.expect_err("not committed");
    assert_eq!(holder.holders("a").await, [1]);
    server.sql("DROP TRIGGER fail ON lockkeeper.resource").expect("dropped");
    // If the failed one had been told, it would have come before this one.
    let plain = session(&server).await;
    plain.batch_execute("SELECT 1").await.expect("asked");
    assert!(timeout(millis(300), told.recv()).await.is_err(), "told before it was committed");
    holder.give_back("a", 1).await.expect("answered");
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
    assert!(is_granted(&holder.ask("a", 1).await));
    assert!(matches!(waiter.ask("a", 2).await, Verdict::Busy { .. }));
    server.sql("REVOKE EXECUTE ON FUNCTION pg_notify(text, text) FROM PUBLIC").expect("revoked");
    let left = holder.give_back("a", 1).await.expect("answered").each;
    assert!(matches!(left[..], [Answer::Leave(Left::Released)]), "{left:?}");
    assert_eq!(holder.holders("a").await, [2]);
    assert!(is_granted(&holder.ask("b", 3).await), "the connection goes on");
}

/// Law 8. The keeper listens only while somebody waits or watches, on one session.
#[tokio::test(flavor = "multi_thread")]
async fn law_8_only_those_who_wait_listen() {
    let server = Postgres::start().expect("started");
    let asker = Asker::connect(&server.url()).await;
    let last = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'LISTEN%' OR query LIKE 'UNLISTEN%'";
    assert_eq!(server.sql(last).expect("asked"), "0");
    let name = asker.claim("a", 1).name;
    let first = asker.store.watch(&Topic::Grants(name.clone())).await.expect("subscribed");
    let second = asker.store.watch(&Topic::Changes(name)).await.expect("subscribed");
    assert_eq!(server.sql(last).expect("asked"), "1");
    let sessions = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'lockkeeper'";
    assert_eq!(server.sql(sessions).expect("asked"), "2", "requests and messages; nothing was renewed yet");
    drop((first, second));
    let unlistened = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'UNLISTEN%'";
    while server.sql(unlistened).expect("asked") == "0" {
        tokio::time::sleep(millis(10)).await;
    }
    while server.sql("SELECT count(*) FROM lockkeeper.watcher").expect("asked") != "0" {
        tokio::time::sleep(millis(10)).await;
    }
}
