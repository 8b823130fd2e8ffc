//! Laws 1, 3 and 4: the row is locked first, clock and rows are read after that, and all times and numbers are the server's.

use std::time::{Duration, SystemTime};

use lockkeeper_core::store::{Answer, Left, Request, StoreTime, Topic, Verdict, Wake, WakeSink};
use lockkeeper_testkit::{proxy::Proxy, servers::Postgres};
use tokio::{sync::mpsc, task::JoinSet, time::timeout};

use crate::{
    asker::Asker,
    millis,
    plain::{CLOCK, Freeing, lock_row, session},
    secs,
};

use super::is_granted;

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
        let mut asked = JoinSet::new();
        for asker in &askers {
            let (asker, name) = (asker.clone(), name.clone());
            asked.spawn(async move { asker.ask_once(&name, round + 1).await });
        }
        let granted = asked.join_all().await.iter().filter(|verdict| is_granted(verdict)).count();
        assert!(granted <= 1, "{granted} hold {name}");
        let holders = askers[0].holders(&name).await;
        assert_eq!(holders.len(), 1, "{holders:?}");
    }
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
    assert!(matches!(asker.ask_once("new", 1).await, Verdict::Stale));
    assert!(is_granted(&asker.ask_once("new", 2).await));
}

/// Law 1. A leave with a tombstone locks the row of a name that is new. Otherwise a claim could be granted between its two
/// flights, which neither the leave nor the tombstone would undo.
#[tokio::test(flavor = "multi_thread")]
async fn law_1_a_leave_with_a_tombstone_orders_itself_with_a_claim_under_way() {
    let server = Postgres::start().expect("started");
    let proxy = Proxy::start(server.address()).expect("started");
    let url = format!("postgres://lockkeeper@{}/lockkeeper?request_limit=30s", proxy.address());
    let (slow, quick) = (Asker::connect(&url).await, Asker::connect(&server.url()).await);
    assert!(is_granted(&slow.ask_once("warm", 1).await));
    assert!(is_granted(&quick.ask_once("hot", 1).await));
    proxy.delay(millis(150));
    let mut leave = quick.leave("new", 2);
    leave.tombstone_until = Some(StoreTime(u64::MAX / 4));
    let leaving = tokio::spawn(async move { slow.store.apply(&[Request::Leave(leave)]).await });
    let between = "SELECT count(*) FROM pg_stat_activity WHERE state = 'idle in transaction'";
    while server.sql(between).expect("asked") == "0" {
        assert!(!leaving.is_finished(), "its flights were not seen");
    }
    while matches!(quick.ask_once("new", 2).await, Verdict::NotNow(_)) {}
    leaving.await.expect("no panic").expect("answered");
    assert_eq!(quick.holders("new").await, [] as [u64; 0], "it has left");
}

/// Law 1. The sweep takes rows of names that nobody used for long, and raises the floor to their numbers. A name that
/// comes back goes on above it, whatever time the clock shows, even if it comes back in that very moment.
#[tokio::test(flavor = "multi_thread")]
async fn law_1_numbers_grow_although_rows_are_swept() {
    let server = Postgres::start().expect("started");
    let (asker, plain) = (Asker::connect(&server.url()).await, session(&server).await);
    let ahead: i64 = plain.query_one(CLOCK, &[]).await.expect("asked").get::<_, i64>(0) + 1_000_000_000_000;
    let url = server.url();
    let age = "UPDATE lockkeeper.resource SET used = 1, high_water = $1 WHERE name = 'a'";
    for round in 0..30_u32 {
        let (seq, mark) = (u64::from(round) + 1, ahead + i64::from(round) * 1_000_000);
        assert!(is_granted(&asker.ask_once("a", seq).await));
        asker.give_back_once("a", seq).await.expect("answered");
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
        asker.give_back_once("a", 100 + seq).await.expect("answered");
        // For sure once it is gone.
        plain.execute(age, &[&(mark + 1000)]).await.expect("aged");
        lockkeeper_postgres::sweep(&url).await.expect("swept");
        assert_eq!(server.sql("SELECT count(*) FROM lockkeeper.resource").expect("asked"), "0");
        let Verdict::Granted(grant) = asker.ask_once("a", 200 + seq).await else { panic!("not granted") };
        assert!(grant.number.cast_signed() > mark + 1000, "{} after {mark}", grant.number);
        asker.give_back_once("a", 200 + seq).await.expect("answered");
    }
}

/// Law 3. A claim that waited for the lock is judged by the time after the wait, and by the rows as they are then.
#[tokio::test(flavor = "multi_thread")]
async fn law_3_the_clock_is_read_after_the_lock() {
    let server = Postgres::start().expect("started");
    let (asker, rival) = (Asker::connect(&server.url()).await, Asker::connect(&server.url()).await);
    // No matter what others have set: our transactions choose the isolation that they need.
    server.sql("ALTER ROLE lockkeeper SET default_transaction_isolation = 'serializable'").expect("allowed");
    assert!(is_granted(&asker.ask_once("a", 1).await));
    asker.give_back_once("a", 1).await.expect("answered");
    let (other, freeing) = (session(&server).await, Freeing::of(&server).await);
    lock_row(&other, "a").await;
    let (answers, freed) = tokio::join!(rival.ask_alone("a", 2), freeing.once_awaited(&other));
    assert!(answers.now.0 >= freed.cast_unsigned(), "{} is before {freed}", answers.now.0);
    let [Answer::Claim(Verdict::Granted(grant))] = &answers.each[..] else { panic!("{answers:?}") };
    assert!(grant.number >= freed.cast_unsigned());
    rival.give_back_once("a", 2).await.expect("answered");
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
    assert!(is_granted(&early.ask_once("a", 1).await));
    let all = "SELECT high_water, capacity, used, ends, holder FROM lockkeeper.resource";
    let held = server.sql(all).expect("asked");
    let [high_water, capacity, used, ends, holder] = held.split('|').collect::<Vec<_>>()[..] else {
        panic!("{held}")
    };
    let hold = format!(
        "UPDATE lockkeeper.resource SET high_water = {high_water}, capacity = {capacity}, used = {used}, ends = {ends}, \
         holder = '{holder}'"
    );
    early.give_back_once("a", 1).await.expect("answered");
    // Their sessions are there, and their statements prepared.
    for (asker, seq) in [(&early, 2), (&late, 3)] {
        let answers = asker.ask_alone("a", seq).await.each;
        assert!(matches!(answers[..], [Answer::Claim(Verdict::Granted(_))]), "{answers:?}");
        asker.give_back_once("a", seq).await.expect("answered");
    }
    for (asker, seq) in [(&early, 4), (&late, 5)] {
        lock_row(&other, "a").await;
        other.batch_execute(&hold).await.expect("held");
        let (answers, _) = tokio::join!(asker.ask_alone("a", seq), freeing.once_awaited(&other));
        let answers = answers.each;
        assert!(matches!(answers[..], [Answer::Claim(Verdict::Busy { .. })]), "{answers:?}");
        asker.give_back_once("a", seq).await.expect("answered");
        early.give_back_once("a", 1).await.expect("answered");
    }
}

/// Law 4. A pushed grant says how long ago its waiter asked, by the server's clock, however slow the network is: no waiter
/// believes that it holds for longer than the server does.
#[tokio::test(flavor = "multi_thread")]
async fn law_4_a_pushed_grant_is_never_believed_for_too_long() {
    let server = Postgres::start().expect("started");
    let proxy = Proxy::start(server.address()).expect("started");
    let holder = Asker::connect(&server.url()).await;
    assert!(is_granted(&holder.ask_once("a", 1).await));
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
    assert!(is_granted(&waiter.ask_once("warm", 1).await));
    proxy.delay(millis(100));
    let name = holder.claim("a", 1).name;
    let _watch = waiter.store.watch(&Topic::Grants(name)).await.expect("subscribed");
    let asked = SystemTime::now();
    assert!(matches!(waiter.ask_once("a", 2).await, Verdict::Busy { .. }));
    // The subscription may be younger than the claim.
    tokio::time::sleep(secs(2)).await;
    holder.give_back_once("a", 1).await.expect("answered");
    let notice = timeout(secs(10), told.recv()).await.expect("in time").expect("told");
    let granted = SystemTime::UNIX_EPOCH + Duration::from_micros(notice.number);
    // The waiter counts from when it sent its claim. The server asked its clock at least one way later.
    let believed = asked + notice.waited;
    assert!(believed + millis(90) < granted, "{:?} after it was granted", believed.duration_since(granted));
}
