//! The open database by itself: without a writer's thread or a keeper.

use std::{fs, path::Path, sync::mpsc};

use lockkeeper_core::{
    ContenderId, Name, Units,
    store::{Claim, Leave, Verdict, Wake},
    testing::{self, VirtualClock},
};
use rusqlite::params;

use super::*;
use crate::paths::wake_name;

fn opening(folder: &Path, keeper: KeeperId, clock: &VirtualClock, sink: WakeSink) -> OpenOptions {
    OpenOptions {
        path: folder.join("locks.db"),
        keeper,
        clock: clock.clock(),
        sink,
        limit: Duration::from_secs(10),
        background: Handle::current(),
        on_crash: Box::new(|_| {}),
    }
}

fn quiet() -> WakeSink {
    WakeSink::new(|_| {})
}

fn stock() -> Name {
    Name::new("stock").expect("valid")
}

fn claim(keeper: KeeperId, seq: u64, units: Units, lease: Duration) -> Claim {
    Claim { units, lease, stamp: 1, ..testing::claim(&stock(), ContenderId { keeper, seq }) }
}

fn leave(keeper: KeeperId, seq: u64) -> Request {
    let contender = ContenderId { keeper, seq };
    Request::Leave(Leave { name: stock(), contender, tombstone_until: None, hold_at_least: Duration::ZERO })
}

/// No time passes in these tests but by the clock's own suspensions.
const LEASE: Duration = Duration::from_secs(1);

impl Database {
    fn asked(&mut self, request: Request) -> Answer {
        let mut answers = self.apply(&Ticket::new(), &[request]).expect("applied");
        answers.each.remove(0)
    }

    /// Whether a claim is granted at once.
    fn grants(&mut self, claim: Claim) -> bool {
        matches!(self.asked(Request::Claim(claim)), Answer::Claim(Verdict::Granted(_)))
    }
}

/// Makes a crashed keeper.
fn crashed_keeper(database: &Database, id: u128) -> KeeperId {
    let keeper = KeeperId::from_u128(id);
    fs::write(database.file.keepers.join(format!("{keeper}.life")), "").expect("written");
    keeper
}

/// A power cut may undo positions in queues and releases, but nothing that gives a lock.
#[tokio::test(start_paused = true)]
async fn transactions_that_give_a_lock_are_synced_and_no_others() {
    let folder = tempfile::tempdir().expect("a folder");
    let clock = VirtualClock::new();
    let own = KeeperId::from_u128(1);
    let (mut database, _) = Database::open(opening(folder.path(), own, &clock, quiet())).expect("opened");
    let claim = |seq, again| Request::Claim(Claim { again, ..claim(own, seq, Units::All, LEASE) });
    let leave = |seq| leave(own, seq);
    let mut done = |request| (format!("{:?}", database.asked(request)), database.durability);
    for (request, answer, durability) in [
        (claim(1, false), "Granted", Durability::Synced),
        (claim(2, false), "Busy", Durability::Unsynced),
        (claim(2, true), "Busy", Durability::Unsynced),
        (leave(1), "Released", Durability::Synced),
        (leave(2), "Released", Durability::Unsynced),
        (claim(3, false), "Granted", Durability::Synced),
        (claim(4, false), "Busy", Durability::Unsynced),
        (claim(5, false), "Busy", Durability::Unsynced),
        (claim(6, false), "Busy", Durability::Unsynced),
        // Others wait, before and behind the one that leaves.
        (leave(5), "LeftQueue", Durability::Unsynced),
    ] {
        let told = done(request.clone());
        assert!(told.0.contains(answer) && told.1 == durability, "{request:?}: {told:?}");
    }
    // The rows show a holder, so the first guess is that the claim only keeps its position.
    clock.suspend(Duration::from_secs(2));
    let told = done(claim(4, true));
    assert!(told.0.contains("Granted") && told.1 == Durability::Synced, "{told:?}");
}

/// Else the kernel would make a pause of 50 µs twice as long, and the lock would lie unused meanwhile.
#[tokio::test(start_paused = true)]
async fn a_writer_s_pauses_end_on_time() {
    let folder = tempfile::tempdir().expect("a folder");
    let options = opening(folder.path(), KeeperId::from_u128(1), &VirtualClock::new(), quiet());
    let _opened = Database::open(options).expect("opened");
    assert_eq!(rustix::thread::current_timer_slack().expect("told"), 1, "in nanoseconds");
}

/// Code of users runs on the writer's thread, such as a subscriber to events. If it panics, the process goes on, and so
/// do its guards.
#[tokio::test(start_paused = true)]
async fn a_panic_frees_nothing_that_a_live_process_holds() {
    let folder = tempfile::tempdir().expect("a folder");
    let clock = VirtualClock::new();
    let (ours, theirs) = (KeeperId::from_u128(1), KeeperId::from_u128(2));
    let panics = WakeSink::new(|_| panic!("as a subscriber may"));
    let (mut database, opened) =
        Database::open(opening(folder.path(), ours, &clock, panics)).expect("opened");
    let runtime = Handle::current();
    let writer = thread::spawn(move || {
        // In this runtime no time passes.
        let _paused = runtime.enter();
        assert!(database.grants(claim(ours, 1, Units::All, LEASE)));
        assert!(!database.grants(claim(ours, 2, Units::All, LEASE)));
        database.asked(leave(ours, 1));
    });
    writer.join().expect_err("it panics with the wake for the second grant");
    let (mut database, _) = Database::open(opening(folder.path(), theirs, &clock, quiet())).expect("opened");
    assert!(!database.grants(claim(theirs, 1, Units::All, LEASE)), "the second is held");
    drop(opened.life_line);
    assert!(database.grants(claim(theirs, 1, Units::All, LEASE)), "and free once the process has ended");
}

/// A keeper without an inbox polls. It still sends wakes to others and to the tasks of its own process.
#[tokio::test(start_paused = true)]
async fn a_keeper_without_an_inbox_sends_wakes_all_the_same() {
    let folder = tempfile::tempdir().expect("a folder");
    let clock = VirtualClock::new();
    let (deaf, other) = (KeeperId::from_u128(1), KeeperId::from_u128(2));
    let (mut theirs, at_theirs) =
        Database::open(opening(folder.path(), other, &clock, quiet())).expect("opened");
    fs::write(theirs.file.keepers.join(wake_name(deaf)), "the name is taken").expect("written");
    let (tell, told) = mpsc::channel();
    let sink = WakeSink::new(move |wake| drop(tell.send(wake)));
    let (mut database, opened) = Database::open(opening(folder.path(), deaf, &clock, sink)).expect("opened");
    assert!(opened.inbox.is_none(), "it has no socket");
    assert!(database.grants(claim(deaf, 1, Units::All, LEASE)));
    assert!(!database.grants(claim(deaf, 2, Units::All, LEASE)));
    assert!(!theirs.grants(claim(other, 3, Units::All, LEASE)));
    database.asked(leave(deaf, 1));
    assert!(matches!(told.try_recv(), Ok(Wake::Granted(..))), "its own task hears of its grant");
    database.asked(leave(deaf, 2));
    let heard = at_theirs.inbox.expect("it has one").recv(&mut [0; 1000]);
    assert!(heard.is_ok(), "the other keeper hears of its grant: {heard:?}");
}

/// Puts waiters of crashed keepers in the queue, with positions that have not expired.
fn enqueue_crashed(database: &mut Database, count: u64) {
    let began = database.now().lease.0.cast_signed();
    let crashed: Vec<KeeperId> =
        (0..count).map(|id| crashed_keeper(database, 1000 + u128::from(id))).collect();
    let transaction = database.connection.transaction().expect("begun");
    let mut insert = transaction
        .prepare(
            "INSERT INTO entry (name, queued, turn, keeper, seq, capacity, units, lease, began, since, stamp, kind,
             host, pid, program) VALUES ('stock', 1, ?, ?, 1, 0, 0, 1000000, ?, 1, 1, 'mutex', 'h', 1, 'p')",
        )
        .expect("prepared");
    for (turn, keeper) in crashed.iter().enumerate() {
        insert.execute(params![turn as i64 + 1, keeper.to_string(), began]).expect("written");
    }
    drop(insert);
    transaction.commit().expect("committed");
}

/// A container with thousands of waiting processes may be killed.
#[tokio::test(start_paused = true)]
async fn any_number_of_crashed_waiters_is_passed_at_once() {
    let folder = tempfile::tempdir().expect("a folder");
    let clock = VirtualClock::new();
    let own = KeeperId::from_u128(1);
    let (mut database, _) = Database::open(opening(folder.path(), own, &clock, quiet())).expect("opened");
    assert!(database.grants(claim(own, 1, Units::All, LEASE)));
    enqueue_crashed(&mut database, 20_000);
    database.asked(leave(own, 1));
    assert!(database.grants(claim(own, 2, Units::All, LEASE)));
    let left = fs::read_dir(&database.file.keepers).expect("listed").count();
    assert_eq!(left, 2, "only what the live keeper has");
}

/// A try does not wait until the position of a crashed waiter expires.
#[tokio::test(start_paused = true)]
async fn a_crashed_waiter_keeps_no_try_away() {
    let folder = tempfile::tempdir().expect("a folder");
    let clock = VirtualClock::new();
    let own = KeeperId::from_u128(1);
    let (mut database, _) = Database::open(opening(folder.path(), own, &clock, quiet())).expect("opened");
    let read = |seq| Claim { queue: false, ..claim(own, seq, Units::ONE, LEASE) };
    assert!(database.grants(read(1)));
    enqueue_crashed(&mut database, 2);
    assert!(database.grants(read(2)), "no live keeper waits to write");
}

/// The lease of a holder has ended, and the next waiter has crashed.
#[tokio::test(start_paused = true)]
async fn a_lock_that_only_crashed_keepers_wait_for_is_free_when_its_lease_ends() {
    let folder = tempfile::tempdir().expect("a folder");
    let clock = VirtualClock::new();
    let own = KeeperId::from_u128(1);
    let (mut database, _) = Database::open(opening(folder.path(), own, &clock, quiet())).expect("opened");
    assert!(database.grants(claim(own, 1, Units::All, LEASE)));
    enqueue_crashed(&mut database, 1);
    clock.suspend(LEASE * 2);
    assert!(database.grants(Claim { queue: false, ..claim(own, 2, Units::All, LEASE) }));
}
