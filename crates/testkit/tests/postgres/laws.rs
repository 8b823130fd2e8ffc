//! One test per law of the protocol.

use std::time::{Duration, Instant, SystemTime};

use lockkeeper_core::store::{Answer, Left, Renewed, Request, StoreTime, Topic, Verdict, Wake, WakeSink};
use lockkeeper_testkit::{
    proxy::{Fault, Proxy},
    servers::{Postgres, PostgresEnd, PostgresOptions},
};
use tokio::{sync::mpsc, time::timeout};

use crate::{
    asker::{Asker, CLOCK, Freeing, backends, lock_row, session},
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

/// Law 1. A leave with a tombstone locks the row of a name that is new. Otherwise a claim could be granted between its two
/// flights, which neither the leave nor the tombstone would undo.
#[tokio::test(flavor = "multi_thread")]
async fn law_1_a_leave_with_a_tombstone_orders_itself_with_a_claim_under_way() {
    let server = Postgres::start().expect("started");
    let proxy = Proxy::start(server.address()).expect("started");
    let url = format!("postgres://lockkeeper@{}/lockkeeper?request_limit=30s", proxy.address());
    let (slow, quick) = (Asker::connect(&url).await, Asker::connect(&server.url()).await);
    assert!(is_granted(&slow.ask("warm", 1).await));
    assert!(is_granted(&quick.ask("hot", 1).await));
    proxy.delay(millis(150));
    let mut leave = quick.leave("new", 2);
    leave.tombstone_until = Some(StoreTime(u64::MAX / 4));
    let leaving = tokio::spawn(async move { slow.store.apply(&[Request::Leave(leave)]).await });
    let between = "SELECT count(*) FROM pg_stat_activity WHERE state = 'idle in transaction'";
    while server.sql(between).expect("asked") == "0" {
        assert!(!leaving.is_finished(), "its flights were not seen");
    }
    while matches!(quick.ask("new", 2).await, Verdict::NotNow(_)) {}
    leaving.await.expect("no panic").expect("answered");
    assert_eq!(quick.holders("new").await, [] as [u64; 0], "it has left");
}

/// Law 1. The sweep takes rows of names that nobody used for long, and raises the floor to their numbers. A name that comes
/// back goes on above it, whatever the clock says, also if that happens in the very moment.
#[tokio::test(flavor = "multi_thread")]
async fn law_1_numbers_grow_although_rows_are_swept() {
    let server = Postgres::start().expect("started");
    let (asker, plain) = (Asker::connect(&server.url()).await, session(&server).await);
    let ahead: i64 = plain.query_one(CLOCK, &[]).await.expect("asked").get::<_, i64>(0) + 1_000_000_000_000;
    let url = server.url();
    let age = "UPDATE lockkeeper.resource SET used = 1, high_water = $1 WHERE name = 'a'";
    for round in 0..30_u32 {
        let (seq, mark) = (u64::from(round) + 1, ahead + i64::from(round) * 1_000_000);
        assert!(is_granted(&asker.ask("a", seq).await));
        asker.give_back("a", seq).await.expect("answered");
        plain.execute(age, &[&mark]).await.expect("aged");
        let sweeping = lockkeeper_postgres::sweep(&url);
        // Before, after, and at the same time.
        let claimed = async {
            if round % 3 != 0 {
                tokio::time::sleep(millis(u64::from(round % 11))).await;
            }
            asker.ask_alone("a", 100 + seq).await
        };
        let (swept, mut claimed) = tokio::join!(sweeping, claimed);
        swept.expect("swept");
        while matches!(claimed.each[..], [Answer::Claim(Verdict::NotNow(_))]) {
            claimed = asker.ask_alone("a", 100 + seq).await;
        }
        let [Answer::Claim(Verdict::Granted(grant))] = &claimed.each[..] else { panic!("{claimed:?}") };
        assert!(grant.number.cast_signed() > mark, "{} after {mark}", grant.number);
        asker.give_back("a", 100 + seq).await.expect("answered");
        // For sure once it is gone.
        plain.execute(age, &[&(mark + 1000)]).await.expect("aged");
        lockkeeper_postgres::sweep(&url).await.expect("swept");
        assert_eq!(server.sql("SELECT count(*) FROM lockkeeper.resource").expect("asked"), "0");
        let Verdict::Granted(grant) = asker.ask("a", 200 + seq).await else { panic!("not granted") };
        assert!(grant.number.cast_signed() > mark + 1000, "{} after {mark}", grant.number);
        asker.give_back("a", 200 + seq).await.expect("answered");
    }
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
    let freeing = Freeing::of(&server).await;
    let answers = asker.ask_alone("b", 4).await.each;
    assert!(matches!(answers[..], [Answer::Claim(Verdict::NotNow(_))]), "{answers:?}");
    let (answers, _) = tokio::join!(asker.ask_alone("b", 4), freeing.once_awaited(&other));
    let answers = answers.each;
    assert!(matches!(answers[..], [Answer::Claim(Verdict::Granted(_))]), "{answers:?}");
    assert_eq!(asker.holders("a").await, [1], "nothing was done before");
}

/// Law 2. A name that is busy for long stops neither claims of other names nor operations that have to wait themselves.
#[tokio::test(flavor = "multi_thread")]
async fn law_2_a_busy_name_occupies_no_connection_that_others_need() {
    let server = Postgres::start().expect("started");
    let asker = Asker::connect(&server.url()).await;
    for (name, seq) in [("a", 1), ("b", 2)] {
        assert!(is_granted(&asker.ask(name, seq).await));
        asker.give_back(name, seq).await.expect("answered");
        asker.ask_alone(name, seq).await;
        asker.give_back(name, seq).await.expect("answered");
    }
    let other = session(&server).await;
    lock_row(&other, "a").await;
    // The quickest of several rounds: a busy machine delays some of them, a wait for the row all.
    let mut quickest = Duration::MAX;
    for round in 0..5 {
        let started = Instant::now();
        let served = async {
            assert!(is_granted(&asker.ask("b", 10 + round).await));
            let took = started.elapsed();
            asker.give_back("b", 10 + round).await.expect("answered");
            took
        };
        let (alone, lone, took) =
            tokio::join!(biased; asker.ask_alone("a", 3), asker.claims(&[("a", 4)]), served);
        assert!(matches!(alone.each[..], [Answer::Claim(Verdict::NotNow(_))]), "{alone:?}");
        let lone = lone.expect("answered").each;
        assert!(matches!(lone[..], [Answer::Claim(Verdict::NotNow(_))]), "{lone:?}");
        quickest = quickest.min(took);
    }
    assert!(quickest < millis(100), "it waited for {quickest:?}");
    assert!(backends(&server).len() <= 3, "three connections at most");
}

/// Law 2. What is skipped is asked again alone, and waits for its turn: a keeper that works on many names can release one
/// that others lock back to back.
#[tokio::test(flavor = "multi_thread")]
async fn law_2_a_name_that_is_always_busy_is_released_all_the_same() {
    let server = Postgres::start().expect("started");
    let keeper = lockkeeper::connect(&server.url()).await.expect("connected");
    let hot = keeper.mutex("hot").lease(secs(60)).lock().await.expect("free");
    let mut tasks = tokio::task::JoinSet::new();
    for task in 0..16 {
        let mutex = keeper.mutex(&format!("other/{task}"));
        tasks.spawn(async move {
            loop {
                mutex.lock().await.expect("free").release().await.expect("held");
            }
        });
    }
    for _ in 0..8 {
        let session = session(&server).await;
        tasks.spawn(async move {
            let lock = "BEGIN; SELECT 1 FROM lockkeeper.resource WHERE name = 'hot' FOR UPDATE; SELECT pg_sleep(0.001)";
            loop {
                session.batch_execute(lock).await.expect("locked");
                session.batch_execute("COMMIT").await.expect("ended");
            }
        });
    }
    tokio::time::sleep(millis(200)).await;
    let started = Instant::now();
    hot.release().await.expect("held");
    let took = started.elapsed();
    // And a claim is answered, too.
    let again = keeper.mutex("hot").try_lock().await.expect("answered").expect("free");
    println!("released after {took:?}, claimed after {:?}", started.elapsed());
    assert!(took < millis(500), "released after {took:?}");
    tasks.shutdown().await;
    again.release().await.expect("held");
    keeper.close().await;
}

async fn lock_row_too(session: &tokio_postgres::Client, name: &str) {
    let lock = "SELECT 1 FROM lockkeeper.resource WHERE name = $1 FOR UPDATE";
    assert_eq!(session.query(lock, &[&name.as_bytes()]).await.expect("locked").len(), 1, "{name} has a row");
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
    let freeing = Freeing::of(&server).await;
    let (answers, _) = tokio::join!(asker.store.renew(&leases), freeing.once_awaited(&other));
    let answers = answers.expect("answered").each;
    assert!(answers.iter().all(|answer| matches!(answer, Renewed::Held(_))), "{answers:?}");
}

/// Law 2. However many names are busy, the others are renewed, and their answers come in time.
#[tokio::test(flavor = "multi_thread")]
async fn law_2_many_busy_names_starve_no_renewal() {
    let server = Postgres::start().expect("started");
    let asker = Asker::connect(&format!("{}?request_limit=2s", server.url())).await;
    let names: Vec<String> = (0..12).map(|number| format!("name/{number:02}")).collect();
    let mut leases = Vec::new();
    for (name, seq) in names.iter().zip(1..) {
        assert!(is_granted(&asker.ask(name, seq).await));
        leases.push(asker.renewal(name, seq));
    }
    let other = session(&server).await;
    lock_row(&other, &names[0]).await;
    for name in &names[1..10] {
        lock_row_too(&other, name).await;
    }
    for _ in 0..3 {
        let answers = asker.store.renew(&leases).await.expect("answered").each;
        let held = |answer: &&Renewed| matches!(answer, Renewed::Held(_));
        assert_eq!(answers.iter().filter(held).count(), 2, "{answers:?}");
        assert!(answers[10..].iter().all(|answer| held(&answer)), "{answers:?}");
    }
    // Many renewals at once: those behind one that meets busy names have their turn.
    let before = backends(&server);
    let mut renewing = tokio::task::JoinSet::new();
    for _ in 0..40 {
        let (store, leases) = (asker.store.clone(), leases.clone());
        renewing.spawn(async move { store.renew(&leases).await });
    }
    for answers in renewing.join_all().await {
        let answers = answers.expect("answered").each;
        assert!(answers[10..].iter().all(|answer| matches!(answer, Renewed::Held(_))), "{answers:?}");
    }
    assert_eq!(backends(&server), before, "no session was lost");
    other.batch_execute("COMMIT").await.expect("ended");
    let answers = asker.store.renew(&leases).await.expect("answered").each;
    assert!(answers.iter().all(|answer| matches!(answer, Renewed::Held(_))), "{answers:?}");
}

/// Law 2. Renewals have a connection of their own: one that hangs with a claim does not concern them.
#[tokio::test(flavor = "multi_thread")]
async fn law_2_renewals_do_not_wait_for_claims() {
    let server = Postgres::start().expect("started");
    let proxy = Proxy::start(server.address()).expect("started");
    let url = format!("postgres://lockkeeper@{}/lockkeeper?request_limit=30s", proxy.address());
    let asker = Asker::connect(&url).await;
    assert!(is_granted(&asker.ask("a", 1).await));
    proxy.now(Fault::SILENCE);
    let claim = asker.claims(&[("b", 2)]);
    let leases = [asker.renewal("a", 1)];
    let renewed = timeout(secs(10), asker.store.renew(&leases));
    tokio::select! {
        biased;
        claimed = claim => panic!("{claimed:?}"),
        renewed = renewed => {
            let renewed = renewed.expect("in time").expect("answered").each;
            assert!(matches!(renewed[..], [Renewed::Held(_)]), "{renewed:?}");
        }
    }
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
    let (other, freeing) = (session(&server).await, Freeing::of(&server).await);
    lock_row(&other, "a").await;
    let (answers, freed) = tokio::join!(rival.ask_alone("a", 2), freeing.once_awaited(&other));
    assert!(answers.now.0 >= freed.cast_unsigned(), "{} is before {freed}", answers.now.0);
    let [Answer::Claim(Verdict::Granted(grant))] = &answers.each[..] else { panic!("{answers:?}") };
    assert!(grant.number >= freed.cast_unsigned());
    rival.give_back("a", 2).await.expect("answered");
}

/// Law 3. The rows that decide are read after the lock as well, in a view of their own: a holder that came meanwhile is seen,
/// also by sessions that begin with another isolation level.
#[tokio::test(flavor = "multi_thread")]
async fn law_3_the_rows_are_read_after_the_lock() {
    let server = Postgres::start().expect("started");
    let early = Asker::connect(&server.url()).await;
    server.sql("ALTER ROLE lockkeeper SET default_transaction_isolation = 'serializable'").expect("allowed");
    // Sessions that are opened from now on begin with another isolation level.
    let late = Asker::connect(&server.url()).await;
    let (other, freeing) = (session(&server).await, Freeing::of(&server).await);
    other.batch_execute("SET default_transaction_isolation = 'read committed'").await.expect("set");
    assert!(is_granted(&early.ask("a", 1).await));
    let all = "SELECT high_water, capacity, used, ends, holder FROM lockkeeper.resource";
    let held = server.sql(all).expect("asked");
    let [high_water, capacity, used, ends, holder] = held.split('|').collect::<Vec<_>>()[..] else {
        panic!("{held}")
    };
    let hold = format!(
        "UPDATE lockkeeper.resource SET high_water = {high_water}, capacity = {capacity}, used = {used}, ends = {ends}, \
         holder = '{holder}'"
    );
    early.give_back("a", 1).await.expect("answered");
    // Their sessions are there, and their statements prepared.
    for (asker, seq) in [(&early, 2), (&late, 3)] {
        let answers = asker.ask_alone("a", seq).await.each;
        assert!(matches!(answers[..], [Answer::Claim(Verdict::Granted(_))]), "{answers:?}");
        asker.give_back("a", seq).await.expect("answered");
    }
    for (asker, seq) in [(&early, 4), (&late, 5)] {
        lock_row(&other, "a").await;
        other.batch_execute(&hold).await.expect("held");
        let (answers, _) = tokio::join!(asker.ask_alone("a", seq), freeing.once_awaited(&other));
        let answers = answers.each;
        assert!(matches!(answers[..], [Answer::Claim(Verdict::Busy { .. })]), "{answers:?}");
        asker.give_back("a", seq).await.expect("answered");
        early.give_back("a", 1).await.expect("answered");
    }
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
    // Its statements are prepared after this, so that the claim which is timed is two flights and nothing else.
    assert!(is_granted(&waiter.ask("warm", 1).await));
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
    assert!(is_granted(&asker.ask("a", 1).await));
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

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime")
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
    let before = backends(&server);
    let error = asker.claims(&[("a", 3), ("b", 4)]).await.expect_err("refused");
    assert!(!error.maybe_applied() && error.to_string().contains("refused"), "{error}");
    assert_eq!(asker.holders("a").await, [] as [u64; 0]);
    // Whatever the error was, that session is not used again.
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
        assert!(is_granted(&holder.ask("a", held).await));
        assert!(matches!(waiter.ask("a", waits).await, Verdict::Busy { .. }));
        let left = holder.give_back("a", held).await.expect("answered").each;
        assert!(matches!(left[..], [Answer::Leave(Left::Released)]), "{left:?}");
        waiter.give_back("a", waits).await.expect("answered");
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

/// Law 8. A subscription to changes outlives a crash of the server, which takes along what was not synced.
#[tokio::test(flavor = "multi_thread")]
async fn law_8_a_subscription_outlives_a_crash() {
    let server = PostgresOptions::default().setting("wal_writer_delay = 10s").start().expect("started");
    let (sink, mut wakes) = listener();
    let (asker, other) = (
        Asker::connect_with(&server.url(), sink).await.expect("connected"),
        Asker::connect(&server.url()).await,
    );
    let name = asker.claim("a", 1).name;
    assert!(is_granted(&other.ask("a", 1).await));
    let _watch = asker.store.watch(&Topic::Changes(name)).await.expect("subscribed");
    server.restart(PostgresEnd::Immediate).expect("restarted");
    assert_eq!(server.sql("SELECT count(*) FROM lockkeeper.watcher").expect("asked"), "0", "it was lost");
    assert!(until_woken(&mut wakes, secs(10), |wake| matches!(wake, Wake::Reconfirm)).await, "it is back");
    assert!(until_woken(&mut wakes, secs(10), is_change).await, "it may have missed something");
    while other.give_back("a", 1).await.is_err() {}
    assert!(until_woken(&mut wakes, secs(1), is_change).await, "it is told");
}

/// Law 9. A transaction that loses against another one did nothing, is answered so, and its session is used on.
#[tokio::test(flavor = "multi_thread")]
async fn law_9_a_lost_race_is_not_now() {
    let server = Postgres::start().expect("started");
    let asker = Asker::connect(&server.url()).await;
    assert!(is_granted(&asker.ask("a", 1).await));
    asker.give_back("a", 1).await.expect("answered");
    let before = backends(&server);
    for (seq, code) in (2..).zip(["40P01", "40001", "55P03"]) {
        let loses = format!(
            "CREATE OR REPLACE FUNCTION lose() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
                 IF NEW.name = 'a' THEN RAISE 'lost' USING ERRCODE = '{code}'; END IF; RETURN NEW;
             END $$;
             CREATE OR REPLACE TRIGGER lose BEFORE UPDATE ON lockkeeper.resource FOR EACH ROW EXECUTE FUNCTION lose()"
        );
        server.sql(&loses).expect("made");
        for _ in 0..2 {
            let Verdict::NotNow(error) = asker.ask("a", seq).await else { panic!("{code}") };
            assert!(error.is_passing() && !error.maybe_applied(), "{code}: {error}");
        }
        assert_eq!(backends(&server), before, "{code}: the session is used on");
        server.sql("DROP TRIGGER lose ON lockkeeper.resource").expect("dropped");
        assert!(is_granted(&asker.ask("a", seq).await), "{code}");
        asker.give_back("a", seq).await.expect("answered");
    }
}
