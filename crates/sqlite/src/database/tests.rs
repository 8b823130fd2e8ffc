//! The open file, by itself: without a writer's thread or a keeper.

use std::{fs, sync::mpsc};

use lockkeeper_core::{
    Capacity, ContenderId, Units,
    store::{Claim, Details, Kind, Leave, ProcessInfo, Verdict, Wake},
    testing::VirtualClock,
};
use rusqlite::{StatementStatus, params};

use super::*;
use crate::{codec::LOAD, liveness::wake_name};

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
    let process =
        Arc::new(ProcessInfo { host: "host".into(), pid: std::process::id(), program: "test".into() });
    Claim {
        name: stock(),
        contender: ContenderId { keeper, seq },
        units,
        capacity: Capacity::All,
        lease,
        queue: true,
        detachable: false,
        min_hold: Duration::ZERO,
        not_after: StoreTime(u64::MAX),
        stamp: 1,
        again: false,
        details: Details { kind: Kind::Mutex, process, label: None, value: None },
    }
}

fn leave(keeper: KeeperId, seq: u64) -> Request {
    let contender = ContenderId { keeper, seq };
    Request::Leave(Leave { name: stock(), contender, tombstone_until: None, hold_at_least: Duration::ZERO })
}

/// No time passes in these tests but by the clock's own suspensions.
const LEASE: Duration = Duration::from_secs(1);

impl Database {
    fn asked(&mut self, request: Request) -> Answer {
        let (mut answers, _) = self.apply(&Ticket::new(), &[request]).expect("applied");
        answers.remove(0)
    }

    /// Whether a claim is granted at once.
    fn grants(&mut self, claim: Claim) -> bool {
        matches!(self.asked(Request::Claim(claim)), Answer::Claim(Verdict::Granted(_)))
    }
}

/// Makes a keeper whose process has ended.
fn dead_keeper(database: &Database, id: u128) -> KeeperId {
    let keeper = KeeperId::from_u128(id);
    fs::write(database.file.keepers.join(format!("{keeper}.life")), "").expect("written");
    keeper
}

/// With less, a power cut could take back a grant that was answered.
#[test]
fn what_is_answered_is_synced() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = DatabaseFile::prepare(&folder.path().join("locks.db")).expect("prepared");
    let connection = connect(&file.path, Duration::from_secs(1)).expect("connected");
    let setting = |name| connection.pragma_query_value(None, name, |row| row.get::<_, String>(0));
    assert_eq!(setting("journal_mode").expect("read"), "wal");
    let synchronous = connection.pragma_query_value(None, "synchronous", |row| row.get::<_, i64>(0));
    assert_eq!(synchronous.expect("read"), 2, "FULL");
}

/// That was most of the cost of a claim.
#[test]
fn statements_are_not_compiled_anew_for_each_name() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = DatabaseFile::prepare(&folder.path().join("locks.db")).expect("prepared");
    let mut connection = connect(&file.path, Duration::from_secs(1)).expect("connected");
    layout::settle(&mut connection, &file.path, "boot", || Ok(false)).expect("made");
    for name in ["a", "b", "c"] {
        let mut load = connection.prepare_cached(LOAD).expect("compiled");
        assert!(!load.exists([name]).expect("read"));
        assert_eq!(load.get_status(StatementStatus::RePrepare), 0, "{name}");
    }
}

/// Places in line and releases may be lost in a power cut; whatever gives somebody a lock may not.
#[tokio::test(start_paused = true)]
async fn what_gives_somebody_a_lock_is_synced_and_nothing_else_is() {
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
    ] {
        let told = done(request.clone());
        assert!(told.0.contains(answer) && told.1 == durability, "{request:?}: {told:?}");
    }
    // It looks as if somebody held it, so a place in line is all that is expected.
    clock.suspend(Duration::from_secs(2));
    let told = done(claim(4, true));
    assert!(told.0.contains("Granted") && told.1 == Durability::Synced, "{told:?}");
}

/// Code of others runs on the writer's thread, such as a subscriber to events. If it panics, the process lives on, and
/// so do its guards.
#[tokio::test(start_paused = true)]
async fn a_panic_frees_nothing_that_a_living_process_holds() {
    let folder = tempfile::tempdir().expect("a folder");
    let clock = VirtualClock::new();
    let (ours, theirs) = (KeeperId::from_u128(1), KeeperId::from_u128(2));
    let panics = WakeSink::new(|_| panic!("as a subscriber may"));
    let (mut database, opened) =
        Database::open(opening(folder.path(), ours, &clock, panics)).expect("opened");
    let runtime = Handle::current();
    let writer = thread::spawn(move || {
        // Where no time passes.
        let _paused = runtime.enter();
        assert!(database.grants(claim(ours, 1, Units::All, LEASE)));
        assert!(!database.grants(claim(ours, 2, Units::All, LEASE)));
        database.asked(leave(ours, 1));
    });
    writer.join().expect_err("it tells of the second grant");
    let (mut database, _) = Database::open(opening(folder.path(), theirs, &clock, quiet())).expect("opened");
    assert!(!database.grants(claim(theirs, 1, Units::All, LEASE)), "the second is held");
    drop(opened.life_line);
    assert!(database.grants(claim(theirs, 1, Units::All, LEASE)), "and free once the process has ended");
}

/// A keeper that hears nobody polls. That is no reason not to tell others, nor the tasks of its own process.
#[tokio::test(start_paused = true)]
async fn who_cannot_hear_tells_all_the_same() {
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

/// Puts waiters of dead keepers in line behind nobody, with places that last.
fn line_up_the_dead(database: &mut Database, count: u64) {
    let began = database.now().lease.0.cast_signed();
    let dead: Vec<KeeperId> = (0..count).map(|id| dead_keeper(database, 1000 + u128::from(id))).collect();
    let transaction = database.connection.transaction().expect("begun");
    let mut insert = transaction
        .prepare(
            "INSERT INTO entry (name, queued, turn, keeper, seq, capacity, units, lease, began, since, stamp, kind,
             host, pid, program) VALUES ('stock', 1, ?, ?, 1, 0, 0, 1000000, ?, 1, 1, 'mutex', 'h', 1, 'p')",
        )
        .expect("prepared");
    for (turn, keeper) in dead.iter().enumerate() {
        insert.execute(params![turn as i64 + 1, keeper.to_string(), began]).expect("written");
    }
    drop(insert);
    transaction.commit().expect("committed");
}

/// As when a container with thousands of waiting processes is killed.
#[tokio::test(start_paused = true)]
async fn however_many_died_in_line_all_are_passed_at_once() {
    let folder = tempfile::tempdir().expect("a folder");
    let clock = VirtualClock::new();
    let own = KeeperId::from_u128(1);
    let (mut database, _) = Database::open(opening(folder.path(), own, &clock, quiet())).expect("opened");
    assert!(database.grants(claim(own, 1, Units::All, LEASE)));
    line_up_the_dead(&mut database, 20_000);
    database.asked(leave(own, 1));
    assert!(database.grants(claim(own, 2, Units::All, LEASE)));
    let left = fs::read_dir(&database.file.keepers).expect("listed").count();
    assert_eq!(left, 2, "only what the living keeper has");
}

/// Who only tries does not wait for the place of somebody who died to end.
#[tokio::test(start_paused = true)]
async fn a_dead_waiter_keeps_nobody_away() {
    let folder = tempfile::tempdir().expect("a folder");
    let clock = VirtualClock::new();
    let own = KeeperId::from_u128(1);
    let (mut database, _) = Database::open(opening(folder.path(), own, &clock, quiet())).expect("opened");
    let read = |seq| Claim { queue: false, ..claim(own, seq, Units::ONE, LEASE) };
    assert!(database.grants(read(1)));
    line_up_the_dead(&mut database, 2);
    assert!(database.grants(read(2)), "nobody alive waits to write");
}

/// The lease of a holder has ended, and who comes next has died.
#[tokio::test(start_paused = true)]
async fn what_only_the_dead_wait_for_is_free_when_its_lease_ends() {
    let folder = tempfile::tempdir().expect("a folder");
    let clock = VirtualClock::new();
    let own = KeeperId::from_u128(1);
    let (mut database, _) = Database::open(opening(folder.path(), own, &clock, quiet())).expect("opened");
    assert!(database.grants(claim(own, 1, Units::All, LEASE)));
    line_up_the_dead(&mut database, 1);
    clock.suspend(LEASE * 2);
    assert!(database.grants(Claim { queue: false, ..claim(own, 2, Units::All, LEASE) }));
}
