//! One test per law of the protocol, and more.

mod counters;
mod limits;
mod openings;

use std::time::{Duration, Instant, SystemTime};

use lockkeeper_core::{
    Capacity, Units,
    store::{Answer, Left, Renewed, Request, StoreTime, Topic, Verdict, Wake, WakeSink},
};
use lockkeeper_testkit::{
    asker::Asker,
    proxy::{Fault, Proxy},
    servers::MariaDb,
};
use mysql_async::prelude::Queryable as _;
use tokio::{sync::mpsc, time::timeout};

use crate::{
    millis,
    plain::{
        Gate, LOCK_WAITS, claim_while_locked, commit, is_granted, is_locked, lock_rows, number, session,
    },
    secs,
};

/// Law 1. Names that have no row yet are claimed by many at the same moment: `FOR UPDATE` on no row would lock nothing.
#[tokio::test(flavor = "multi_thread")]
async fn law_1_a_new_name_has_one_holder() {
    let server = MariaDb::start().expect("started");
    let mut askers = Vec::new();
    for _ in 0..6 {
        askers.push(Asker::connect(&server.url()).await);
    }
    for round in 0..40 {
        let name = format!("new/{round}");
        let asking: Vec<_> = askers
            .iter()
            .map(|asker| {
                let (asker, name) = (asker.clone(), name.clone());
                tokio::spawn(async move { asker.ask(&name, round + 1).await })
            })
            .collect();
        let mut granted = 0;
        for asked in asking {
            granted += usize::from(is_granted(&asked.await.expect("no panic")));
        }
        assert!(granted <= 1, "{granted} hold {name}");
        let holders = askers[0].holders(&name).await;
        assert_eq!(holders.len(), 1, "{holders:?}");
    }
}

/// Law 1. A leave that leaves a tombstone makes a row and locks it, although the name is new. So a late copy of its claim,
/// which another transaction works on, comes before the tombstone or after it.
#[tokio::test(flavor = "multi_thread")]
async fn law_1_a_tombstone_orders_itself_with_late_claims_of_a_new_name() {
    let server = MariaDb::start().expect("started");
    let asker = Asker::connect(&server.url()).await;
    let mut leave = asker.leave("new", 1);
    leave.tombstone_until = Some(StoreTime(u64::MAX / 4));
    // As the late copy does it: it has made the row, and has not committed yet.
    let mut other = session(&server).await;
    other
        .query_drop("START TRANSACTION; INSERT INTO lockkeeper_resource (name) VALUES ('new')")
        .await
        .expect("made");
    let left = asker.store.apply(&[Request::Leave(leave.clone())]).await.expect("answered");
    assert!(matches!(left.each[..], [Answer::Leave(Left::NotNow)]), "{left:?}");
    commit(&mut other).await;
    let left = asker.lone(Request::Leave(leave)).await.expect("answered");
    assert!(matches!(left.each[..], [Answer::Leave(Left::NotThere)]), "{left:?}");
    assert!(matches!(asker.ask("new", 1).await, Verdict::Stale));
    assert!(is_granted(&asker.ask("new", 2).await));
}

/// Law 1. The same for a late copy that comes while the leave is under way: it finds the row locked, and then the tombstone.
#[tokio::test(flavor = "multi_thread")]
async fn law_1_a_leave_with_a_tombstone_keeps_late_claims_of_a_new_name_out() {
    let server = MariaDb::start().expect("started");
    let asker = Asker::connect(&format!("{}?request_limit=30s", server.url())).await;
    let mut leave = asker.leave("new", 1);
    leave.tombstone_until = Some(StoreTime(u64::MAX / 4));
    server
        .sql(
            "CREATE TRIGGER waits BEFORE INSERT ON lockkeeper_tombstone FOR EACH ROW DO GET_LOCK('gate', 10)",
        )
        .expect("made");
    let mut gate = Gate::close(&server).await;
    let group = [Request::Leave(leave)];
    let (left, ()) = tokio::join!(asker.store.apply(&group), async {
        gate.until_met().await;
        let late = asker.ask_alone("new", 1).await.each;
        assert!(matches!(late[..], [Answer::Claim(Verdict::NotNow(_))]), "{late:?}");
        gate.open().await;
    });
    let left = left.expect("answered").each;
    assert!(matches!(left[..], [Answer::Leave(Left::NotThere)]), "{left:?}");
    assert!(matches!(asker.ask("new", 1).await, Verdict::Stale));
}

/// Laws 2 and 9. Of several names, those that somebody has locked are left out, and the others are served at once. A lone
/// name is waited for, but not for long. Nothing was done for those that are told so.
#[tokio::test(flavor = "multi_thread")]
async fn law_2_a_busy_name_delays_no_other() {
    let server = MariaDb::start().expect("started");
    let asker = Asker::connect(&server.url()).await;
    for (name, seq) in [("a", 1), ("b", 2), ("c", 3)] {
        assert!(is_granted(&asker.ask(name, seq).await));
    }
    asker.give_back("b", 2).await.expect("answered");
    let mut other = session(&server).await;
    lock_rows(&mut other, &["a", "b"]).await;
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
    commit(&mut other).await;
    let waited = claim_while_locked(&server, &asker, "b", 4, "").await;
    assert!(is_granted(&waited.verdict), "{:?}", waited.verdict);
    assert_eq!(asker.holders("a").await, [1], "nothing was done before");
}

/// Law 2. A name that others have locked most of the time is served all the same once it is asked for alone.
#[tokio::test(flavor = "multi_thread")]
async fn law_2_a_name_that_is_always_busy_is_served() {
    let server = MariaDb::start().expect("started");
    let asker = Asker::connect(&server.url()).await;
    assert!(is_granted(&asker.ask("hot", 1).await));
    assert!(is_granted(&asker.ask("cold", 2).await));
    let others: Vec<_> = (0..4)
        .map(|_| {
            let url = format!("mysql://lockkeeper@{}/lockkeeper?prefer_socket=false", server.address());
            tokio::spawn(async move {
                let mut session = mysql_async::Conn::from_url(url).await.expect("connected");
                loop {
                    let lock = "START TRANSACTION; SELECT 1 FROM lockkeeper_resource WHERE name = 'hot' FOR UPDATE; \
                                DO SLEEP(0.002); COMMIT";
                    // It may wait for longer than the server lets it.
                    drop(session.query_drop(lock).await);
                }
            })
        })
        .collect();
    let mut monitor = session(&server).await;
    while number(&mut monitor, LOCK_WAITS).await < 2 {}
    let started = Instant::now();
    loop {
        // Meanwhile no other request of the keeper waits.
        let leave = [Request::Leave(asker.leave("hot", 1))];
        let alone = asker.store.apply_alone(&leave);
        let (answers, other) = tokio::join!(alone, asker.claims(&[("cold", 2), ("cool", 3)]));
        other.expect("answered");
        let answers = answers.expect("answered").each;
        if matches!(answers[..], [Answer::Leave(Left::Released)]) {
            break;
        }
        assert!(started.elapsed() < secs(20), "it is skipped for ever");
    }
    others.iter().for_each(tokio::task::JoinHandle::abort);
}

/// Law 2. Renewals have a connection of their own, and busy names starve none of the others, however many they are.
#[tokio::test(flavor = "multi_thread")]
async fn law_2_busy_names_starve_no_renewal() {
    let server = MariaDb::start().expect("started");
    let asker = Asker::connect(&format!("{}?request_limit=2s", server.url())).await;
    let names: Vec<String> = (0..42).map(|number| format!("name/{number:02}")).collect();
    for (name, seq) in names.iter().zip(1..) {
        assert!(is_granted(&asker.ask(name, seq).await));
    }
    let mut other = session(&server).await;
    let busy: Vec<&str> = names[..40].iter().map(String::as_str).collect();
    lock_rows(&mut other, &busy).await;
    let leases: Vec<_> = names.iter().zip(1..).map(|(name, seq)| asker.renewal(name, seq)).collect();
    let answers = asker.store.renew(&leases).await.expect("answered").each;
    let held = |answer: &Renewed| matches!(answer, Renewed::Held(_));
    assert_eq!(answers.iter().filter(|answer| held(answer)).count(), 2, "{answers:?}");
    assert!(answers[40..].iter().all(held), "{answers:?}");
    let own = "SELECT COUNT(*) FROM information_schema.processlist WHERE user = 'lockkeeper' \
               AND id <> CONNECTION_ID()";
    assert_eq!(number(&mut other, own).await, 2, "one for requests, one for renewals");
    commit(&mut other).await;
    let answers = asker.store.renew(&leases).await.expect("answered").each;
    assert!(answers.iter().all(held), "{answers:?}");
}

/// Law 3. A claim that waited for the lock is judged by the time after the wait, and by the rows as they are then.
#[tokio::test(flavor = "multi_thread")]
async fn law_3_clock_and_rows_are_read_after_the_lock() {
    let server = MariaDb::start().expect("started");
    // No matter what others have set: our connections choose the isolation that they need.
    server.sql("SET GLOBAL TRANSACTION ISOLATION LEVEL SERIALIZABLE").expect("allowed");
    let (asker, rival) = (Asker::connect(&server.url()).await, Asker::connect(&server.url()).await);
    assert!(is_granted(&asker.ask("a", 1).await) && is_granted(&asker.ask("b", 2).await));
    asker.give_back("a", 1).await.expect("answered");
    let waited = claim_while_locked(&server, &rival, "a", 2, "").await;
    assert!(waited.now.0 >= waited.freed, "{} is before {}", waited.now.0, waited.freed);
    let Verdict::Granted(grant) = waited.verdict else { panic!("{:?}", waited.verdict) };
    assert!(grant.number >= waited.freed);
    rival.give_back("a", 2).await.expect("answered");
    // Somebody takes it meanwhile.
    let taken = "UPDATE lockkeeper_resource AS a, lockkeeper_resource AS b SET a.holder = b.holder, a.ends = b.ends \
                 WHERE a.name = 'a' AND b.name = 'b'";
    let waited = claim_while_locked(&server, &rival, "a", 3, taken).await;
    assert!(matches!(waited.verdict, Verdict::Busy { .. }), "{:?}", waited.verdict);
}

/// Law 4. A grant that is told to a waiter of the same keeper says how long ago the waiter asked, by the server's clock,
/// however slow the network is: no waiter believes that it holds for longer than the server does.
#[tokio::test(flavor = "multi_thread")]
async fn law_4_a_told_grant_is_never_believed_for_too_long() {
    let server = MariaDb::start().expect("started");
    let proxy = Proxy::start(server.address()).expect("started");
    let (sender, mut told) = mpsc::unbounded_channel();
    let wakes = WakeSink::new(move |wake| {
        if let Wake::Granted(_, notice) = wake {
            let _ = sender.send(notice);
        }
    });
    let slow =
        format!("mysql://lockkeeper@{}/lockkeeper?request_limit=30s&connect_limit=10s", proxy.address());
    let asker = Asker::connect_with(&slow, wakes).await.expect("connected");
    assert!(is_granted(&asker.ask("a", 1).await));
    proxy.delay(millis(100));
    let asked = SystemTime::now();
    assert!(matches!(asker.ask("a", 2).await, Verdict::Busy { .. }));
    asker.give_back("a", 1).await.expect("answered");
    let notice = timeout(secs(10), told.recv()).await.expect("in time").expect("told");
    let granted = SystemTime::UNIX_EPOCH + Duration::from_micros(notice.number);
    // The waiter counts from when it sent its claim. The server asked its clock at least one way later.
    let believed = asked + notice.waited;
    assert!(believed + millis(90) < granted, "{:?} after it was granted", believed.duration_since(granted));
}

/// Law 4. A grant that a poll finds may not be on disk yet, so it is told in a way that nobody believes.
#[tokio::test(flavor = "multi_thread")]
async fn law_4_a_grant_that_a_poll_finds_is_a_hint() {
    let server = MariaDb::start().expect("started");
    let (sender, mut told) = mpsc::unbounded_channel();
    let wakes = WakeSink::new(move |wake| {
        let _ = sender.send(wake);
    });
    let holder = Asker::connect(&server.url()).await;
    let waiter = Asker::connect_with(&server.url(), wakes).await.expect("connected");
    assert!(is_granted(&holder.ask("a", 1).await));
    assert!(matches!(waiter.ask("a", 2).await, Verdict::Busy { .. }));
    holder.give_back("a", 1).await.expect("answered");
    let wake = timeout(secs(10), told.recv()).await.expect("in time").expect("told");
    assert!(matches!(wake, Wake::Changed(Topic::Grants(_))), "{wake:?}");
    // The claim that follows is a transaction that is on disk when it is answered.
    let writes = "SHOW GLOBAL STATUS LIKE 'Innodb_os_log_written'";
    let before = server.sql(writes).expect("asked");
    let mut again = waiter.claim("a", 2);
    again.again = true;
    let answers = waiter.lone(Request::Claim(again.clone())).await.expect("answered").each;
    assert!(matches!(answers[..], [Answer::Claim(Verdict::Granted(_))]), "{answers:?}");
    let after = server.sql(writes).expect("asked");
    assert_ne!(before, after);
    // So is one that finds nothing to change.
    let answers = waiter.lone(Request::Claim(again)).await.expect("answered").each;
    assert!(matches!(answers[..], [Answer::Claim(Verdict::Granted(_))]), "{answers:?}");
    assert_ne!(after, server.sql(writes).expect("asked"));
}

/// Law 5. A client that stops between the flights keeps its names from others for about a second. Here it is a network
/// that swallows the answer to the first flight.
#[tokio::test(flavor = "multi_thread")]
async fn law_5_a_client_that_stops_in_a_transaction_is_ended() {
    let server = MariaDb::start().expect("started");
    let proxy = Proxy::start(server.address()).expect("started");
    let slow = format!("mysql://lockkeeper@{}/lockkeeper?request_limit=50s", proxy.address());
    let (stopped, other) = (Asker::connect(&slow).await, Asker::connect(&server.url()).await);
    assert!(is_granted(&other.ask("a", 1).await));
    other.give_back("a", 1).await.expect("answered");
    assert!(is_granted(&stopped.ask("b", 1).await));
    proxy.now(Fault::SILENCE);
    let asking = tokio::spawn(async move { stopped.claims(&[("a", 3)]).await });
    let mut monitor = session(&server).await;
    while !is_locked(&mut monitor, "a").await {}
    let started = Instant::now();
    while !is_granted(&other.ask("a", 4).await) {
        assert!(started.elapsed() < secs(5), "the name stays locked");
    }
    assert!(started.elapsed() > millis(300), "it was locked in the first place");
    asking.abort();
}

/// The row of a name, but for the time of its last use.
fn row(server: &MariaDb, name: &str) -> String {
    let row =
        format!("SELECT high_water, capacity, used, holder FROM lockkeeper_resource WHERE name = '{name}'");
    server.sql(&row).expect("asked")
}

/// Returns the connections of keepers.
fn connections(server: &MariaDb) -> String {
    let all = "SELECT id FROM information_schema.processlist WHERE user = 'lockkeeper' ORDER BY id";
    server.sql(all).expect("asked")
}

/// Laws 6 and 9. A statement that fails undoes its whole transaction, whether it ends the connection or only lost
/// against another transaction. Otherwise the beginning of the next one would commit the rest. Nothing was done, and
/// the error says so.
#[tokio::test(flavor = "multi_thread")]
async fn law_6_half_a_transaction_is_never_committed() {
    let server = MariaDb::start().expect("started");
    let asker = Asker::connect(&server.url()).await;
    let two = Capacity::count(2).expect("a capacity");
    let permit =
        |seq| lockkeeper_core::store::Claim { units: Units::ONE, capacity: two, ..asker.claim("a", seq) };
    let first = asker.lone(Request::Claim(permit(1))).await.expect("answered").each;
    assert!(matches!(first[..], [Answer::Claim(Verdict::Granted(_))]), "{first:?}");
    let (before, mut monitor) = (row(&server, "a"), session(&server).await);
    // The second permit needs the row, which is written first, and an entry.
    for error in [1205, 1213, 1644] {
        let refuses = format!(
            "CREATE TRIGGER refuse BEFORE INSERT ON lockkeeper_entry FOR EACH ROW \
             SIGNAL SQLSTATE '45000' SET MYSQL_ERRNO = {error}, MESSAGE_TEXT = 'refused'"
        );
        server.sql(&refuses).expect("made");
        let second = asker.store.apply_alone(&[Request::Claim(permit(2))]).await;
        match &second.map(|answers| answers.each) {
            Err(failed) => assert!(error == 1644 && !failed.maybe_applied(), "{failed}"),
            Ok(answers) => match &answers[..] {
                [Answer::Claim(Verdict::NotNow(why))] => {
                    assert!(error != 1644 && !why.maybe_applied(), "{why}");
                }
                answers => panic!("{answers:?}"),
            },
        }
        assert_eq!(row(&server, "a"), before, "nothing was written");
        // Where the connection goes on, the rollback was answered. Where it is closed, the server soon hears of it.
        assert!(error == 1644 || !is_locked(&mut monitor, "a").await, "the half is still there");
        let failed_on = connections(&server);
        server.sql("DROP TRIGGER refuse").expect("dropped");
        // The next transaction on the same connection, on another name, takes nothing of it along.
        let next = asker.ask_alone(&format!("b/{error}"), 3).await.each;
        assert!(matches!(next[..], [Answer::Claim(Verdict::Granted(_))]), "{next:?}");
        assert_eq!(row(&server, "a"), before, "nothing was committed");
        assert_eq!(connections(&server) == failed_on, error != 1644, "the connection after error {error}");
    }
    let second = asker.lone(Request::Claim(permit(2))).await.expect("answered").each;
    assert!(matches!(second[..], [Answer::Claim(Verdict::Granted(_))]), "{second:?}");
}

/// Law 7. A grant is told only once it is committed.
#[tokio::test(flavor = "multi_thread")]
async fn law_7_a_grant_that_was_not_committed_is_told_to_nobody() {
    let server = MariaDb::start().expect("started");
    let (sender, mut told) = mpsc::unbounded_channel();
    let wakes = WakeSink::new(move |wake| {
        if let Wake::Granted(_, notice) = wake {
            let _ = sender.send(notice.contender.seq);
        }
    });
    let asker = Asker::connect_with(&server.url(), wakes).await.expect("connected");
    assert!(is_granted(&asker.ask("a", 1).await));
    assert!(matches!(asker.ask("a", 2).await, Verdict::Busy { .. }));
    server
        .sql(
            "CREATE TRIGGER refuse BEFORE UPDATE ON lockkeeper_entry FOR EACH ROW \
             SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'refused'",
        )
        .expect("made");
    asker.give_back("a", 1).await.expect_err("not committed");
    assert_eq!(asker.holders("a").await, [1]);
    assert!(timeout(millis(300), told.recv()).await.is_err(), "told before it was committed");
    server.sql("DROP TRIGGER refuse").expect("dropped");
    asker.give_back("a", 1).await.expect("answered");
    assert_eq!(timeout(secs(10), told.recv()).await.expect("in time"), Some(2));
}

/// Law 8. There is no session that listens. A keeper polls only while somebody waits or watches, and rarely once the queue
/// rests.
#[tokio::test(flavor = "multi_thread")]
async fn law_8_only_those_who_wait_are_polled_for() {
    let server = MariaDb::start().expect("started");
    let (holder, waiter) = (Asker::connect(&server.url()).await, Asker::connect(&server.url()).await);
    for name in 0..30 {
        assert!(is_granted(&holder.ask(&format!("name/{name}"), name + 1).await));
    }
    let mut monitor = session(&server).await;
    // One question is that of the monitor. A sweep falls into none of these spans, or is a handful of statements.
    assert!(questions(&mut monitor, millis(1500)).await <= 12, "nobody waits");
    for name in 0..30 {
        let verdict = waiter.ask(&format!("name/{name}"), name + 1).await;
        assert!(matches!(verdict, Verdict::Busy { .. }), "{verdict:?}");
    }
    monitor.query_drop("UPDATE lockkeeper_resource SET moved = moved - 60000000").await.expect("changed");
    tokio::time::sleep(secs(2)).await;
    let resting = questions(&mut monitor, secs(3)).await;
    assert!((3..=15).contains(&resting), "{resting} questions in three seconds");
    for name in 0..30 {
        waiter.give_back(&format!("name/{name}"), name + 1).await.expect("answered");
    }
    // Whoever was polled for now would be polled for often.
    let moves = "UPDATE lockkeeper_resource SET moved = moved + 3600000000";
    monitor.query_drop(moves).await.expect("changed");
    assert!(questions(&mut monitor, secs(2)).await <= 12, "nobody waits any more");
}

/// How many packets the server gets within a time, without those of the monitor.
async fn questions(monitor: &mut mysql_async::Conn, span: Duration) -> i64 {
    // A packet counts for each of its statements. All of them but polls have several.
    let count =
        "SELECT variable_value FROM information_schema.global_status WHERE variable_name = 'QUESTIONS'";
    let before = number(monitor, count).await;
    tokio::time::sleep(span).await;
    number(monitor, count).await - before - 1
}
