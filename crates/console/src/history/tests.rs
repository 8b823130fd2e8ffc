//! A world of samples in virtual time, and the history that they make.

use std::{
    num::NonZeroU32,
    sync::Arc,
    time::{Duration, SystemTime},
};

use lockkeeper::{
    Token,
    store::{
        Capacity, ContenderId, Details, HolderView, KeeperId, Kind, Name, ProcessInfo, ResourceView, Units,
        WaiterView,
    },
};

use super::*;

/// Samples, one a second.
pub(crate) struct World {
    pub(crate) history: History,
    pub(crate) now: Millis,
}

/// The first moment of every world.
pub(crate) const START: Millis = 1_800_000_000_000;

/// A lock as a sample shows it.
#[derive(Clone)]
pub(crate) struct Seen {
    pub(crate) name: &'static str,
    kind: Kind,
    capacity: Capacity,
    holders: Vec<(u64, u64, Units, Lease)>,
    waiters: Vec<(u64, u64)>,
}

#[derive(Clone, Copy)]
struct Lease {
    length: u64,
    left: Option<u64>,
    renewed: bool,
    evicted: bool,
    since: Option<Millis>,
}

const RENEWED: Lease =
    Lease { length: 30_000, left: Some(25_000), renewed: true, evicted: false, since: None };

pub(crate) fn resource(name: &'static str) -> Seen {
    Seen { name, kind: Kind::Mutex, capacity: Capacity::All, holders: Vec::new(), waiters: Vec::new() }
}

impl Seen {
    pub(crate) fn election(mut self) -> Self {
        self.kind = Kind::Election;
        self
    }

    pub(crate) fn rw_lock(mut self) -> Self {
        self.kind = Kind::RwLock;
        self
    }

    pub(crate) fn semaphore(mut self, permits: u32) -> Self {
        (self.kind, self.capacity) =
            (Kind::Semaphore, Capacity::Count(NonZeroU32::new(permits).expect("some")));
        self
    }

    /// Adds a holder: a process with one acquisition, whose token has the process's number.
    pub(crate) fn held_by(self, who: u64) -> Self {
        self.held_by_task(who, who)
    }

    pub(crate) fn held_by_task(mut self, who: u64, task: u64) -> Self {
        self.holders.push((who, task, Units::All, RENEWED));
        self
    }

    pub(crate) fn read_by(mut self, who: u64) -> Self {
        self.holders.push((who, who, Units::ONE, RENEWED));
        self
    }

    fn holder(mut self, change: impl FnOnce(&mut Lease)) -> Self {
        change(&mut self.holders.last_mut().expect("a holder").3);
        self
    }

    /// Sets the length of the last holder's lease, instead of 30 s.
    pub(crate) fn with_lease(self, length: u64) -> Self {
        self.holder(|lease| lease.length = length)
    }

    /// Sets the rest of the last holder's lease.
    pub(crate) fn with_left(self, left: u64) -> Self {
        self.holder(|lease| lease.left = Some(left))
    }

    pub(crate) fn not_renewed(self) -> Self {
        self.holder(|lease| lease.renewed = false)
    }

    pub(crate) fn being_evicted(self) -> Self {
        self.holder(|lease| lease.evicted = true)
    }

    pub(crate) fn since(self, since: Millis) -> Self {
        self.holder(|lease| lease.since = Some(since))
    }

    pub(crate) fn waited_by(self, who: u64) -> Self {
        self.waited_by_task(who, who)
    }

    pub(crate) fn waited_by_task(mut self, who: u64, task: u64) -> Self {
        self.waiters.push((who, task));
        self
    }

    fn details(&self, who: u64) -> Details {
        let pid = u32::try_from(who).expect("small");
        let process = ProcessInfo { host: "host-1".into(), pid, program: format!("worker-{who}") };
        Details { kind: self.kind, process: Arc::new(process), label: None, value: None }
    }

    pub(crate) fn view(&self, now: Millis) -> ResourceView {
        let wall = |at: Millis| SystemTime::UNIX_EPOCH + Duration::from_millis(at);
        let contender = |task: u64| ContenderId { keeper: KeeperId::from_u128(1), seq: task };
        let holder = |(who, task, units, lease): &(u64, u64, Units, Lease)| HolderView {
            contender: contender(*task),
            token: Token::new(task + 1, 0),
            units: *units,
            details: self.details(*who),
            since: wall(lease.since.unwrap_or(now)),
            lease: Duration::from_millis(lease.length),
            remaining: lease.left.map(Duration::from_millis),
            renewed: lease.renewed,
            evicted: lease.evicted,
            detached: false,
        };
        let waiter = |(who, task): &(u64, u64)| WaiterView {
            contender: contender(*task),
            units: Units::All,
            details: self.details(*who),
            since: wall(now),
        };
        ResourceView {
            name: Name::new(self.name).expect("a name"),
            capacity: self.capacity,
            holders: self.holders.iter().map(holder).collect(),
            waiters: self.waiters.iter().map(waiter).collect(),
        }
    }
}

/// Makes a sample of these locks.
pub(crate) fn sample(now: Millis, seen: &[Seen]) -> Sample {
    let mut locks: Vec<_> = seen.iter().map(|seen| Arc::new(seen.view(now))).collect();
    locks.sort_by(|one, other| one.name.cmp(&other.name));
    Sample { at: now, took: 0, every: 1000, locks, latches: Vec::new() }
}

impl World {
    pub(crate) fn new() -> Self {
        Self { history: History::default(), now: START }
    }

    /// Takes a sample, a second after the one before.
    pub(crate) fn sample(&mut self, seen: &[Seen]) {
        self.pass(1);
        self.history.observe(&sample(self.now, seen));
    }

    pub(crate) fn pass(&mut self, seconds: u64) {
        self.now += seconds * 1000;
    }

    fn record(&self) -> &Record {
        self.history.record(&Name::new("a").expect("a name")).expect("a record")
    }

    /// Returns the holds and waits that are over, each with its process, its moments and its end.
    fn past(&self) -> Vec<String> {
        let at = |moment: Millis| (moment - START) / 1000;
        let each = self.record().past().map(|past| match past {
            Past::Hold(hold) => format!(
                "{} held {}-{} {:?}",
                hold.who.pid,
                at(hold.from),
                at(hold.to),
                hold.end.expect("over")
            ),
            Past::Wait(wait) => format!(
                "{} waited {}-{} {:?}",
                wait.who.pid,
                at(wait.from),
                at(wait.to),
                wait.end.expect("over")
            ),
        });
        each.collect()
    }
}

#[test]
fn holds_and_waits_are_seen_from_begin_to_end() {
    let mut world = World::new();
    world.sample(&[]);
    world.sample(&[resource("a").held_by(1)]);
    world.sample(&[resource("a").held_by(1).waited_by(2).waited_by(3)]);
    world.sample(&[resource("a").held_by(2).waited_by(3)]);
    world.sample(&[resource("a").held_by(2)]);
    world.sample(&[]);
    assert_eq!(
        world.past(),
        ["2 waited 3-4 Granted", "1 held 2-4 Released", "3 waited 3-5 Left", "2 held 4-6 Released"]
    );
    assert!(!world.record().is_live());
}

#[test]
fn what_was_there_before_the_first_sample_began_when_the_store_says() {
    let mut world = World::new();
    world.sample(&[resource("a").held_by(1).since(START - 60_000)]);
    assert_eq!(world.record().holds()[0].from, START - 60_000);
    // Its changes are not counted: nobody saw them.
    assert_eq!(world.record().fine.sum(world.now, 300_000), crate::curve::Use::default());
    // Later on, a store whose clock is behind or ahead is not believed.
    world.sample(&[resource("a").held_by(2).since(START - 3_600_000)]);
    assert_eq!(world.record().holds()[0].from, START + 1000);
    world.sample(&[resource("a").held_by(3).since(START + 3_600_000)]);
    assert_eq!(world.record().holds()[0].from, START + 3000);
}

#[test]
fn a_lease_that_was_not_renewed_is_a_loss() {
    let mut world = World::new();
    for second in 0..10 {
        world.sample(&[resource("a").held_by(1).with_left(9_000 - second * 1000)]);
    }
    world.sample(&[resource("a").held_by(2)]);
    assert_eq!(world.past(), ["1 held 1-10 Lost"]);
}

#[test]
fn a_fresh_grant_has_a_short_lease_and_is_not_late() {
    let mut world = World::new();
    world.sample(&[]);
    for left in [3000, 2000, 1000] {
        world.sample(&[resource("a").held_by(1).with_left(left)]);
        assert_eq!(world.record().holds()[0].late(), None);
    }
    world.sample(&[]);
    assert_eq!(world.past(), ["1 held 2-5 Released"]);
}

#[test]
fn a_fixed_lease_runs_out_and_an_evicted_holder_was_evicted() {
    let mut world = World::new();
    world.sample(&[resource("a").held_by(1).not_renewed().with_left(500)]);
    world.sample(&[resource("a").held_by(2).being_evicted()]);
    world.sample(&[]);
    assert_eq!(world.past(), ["1 held 1-1 RanOut", "2 held 2-3 Evicted"]);
}

#[test]
fn an_eviction_at_once_is_known_from_the_operator() {
    let mut world = World::new();
    world.sample(&[resource("a").held_by(1)]);
    let eviction = Arc::new(Eviction { by: "ops".into(), reason: "stuck".into(), immediate: true });
    let name = Name::new("a").expect("a name");
    world.history.evicted(&name, Token::new(9, 0), &eviction);
    world.history.evicted(&name, Token::new(2, 0), &eviction);
    world.sample(&[resource("a").held_by(2)]);
    assert_eq!(world.past(), ["1 held 1-2 Evicted"]);
}

#[test]
fn an_hour_is_kept() {
    let mut world = World::new();
    world.sample(&[resource("a").held_by(1)]);
    world.sample(&[]);
    assert_eq!(world.history.kept(), 1);
    world.pass(3600);
    for _ in 0..40 {
        world.sample(&[]);
    }
    assert_eq!(world.history.kept(), 0);
    assert_eq!(world.history.records().count(), 0);
    assert_eq!(world.history.gaps().count(), 1);
}

#[test]
fn one_busy_lock_does_not_take_the_room_of_others() {
    let mut world = World::new();
    let crowd =
        |first: u64| (first..first + 100).fold(resource("a").semaphore(100), |seen, who| seen.read_by(who));
    world.sample(&[resource("b").held_by(1)]);
    world.sample(&[]);
    for turn in 0..60 {
        world.sample(&[crowd(turn * 100)]);
    }
    assert_eq!(world.record().past().count(), MOST_OF_ONE);
    let name = Name::new("b").expect("a name");
    assert_eq!(world.history.record(&name).expect("a record").past().count(), 1);
}

#[test]
fn a_busy_lock_counts_with_what_is_there_of_it() {
    let mut world = World::new();
    let crowd =
        |first: u64| (first..first + 200).fold(resource("a").semaphore(200), |seen, who| seen.read_by(who));
    world.sample(&[resource("b").held_by(1)]);
    world.sample(&[]);
    for turn in 0..700 {
        world.sample(&[crowd(turn * 200)]);
    }
    let name = Name::new("b").expect("a name");
    assert_eq!(world.history.record(&name).expect("a record").past().count(), 1);
    assert_eq!(world.history.kept(), MOST_OF_ONE + 1);
    assert!(world.history.over.len() <= 2 * world.history.kept() + ROOM);
    assert_eq!(world.history.whole_since(), None, "the others are whole");
    // The busy lock does not look free before the rest of its history.
    let since = world.history.seen_since(Some(world.record())).expect("seen");
    assert!(since > world.now - 30_000, "{since}");
}

#[test]
fn room_that_was_short_is_forgotten_after_an_hour() {
    let mut world = World::new();
    let names: Vec<&'static str> = (0..60).map(|place| &*format!("lock-{place}").leak()).collect();
    for turn in 0..20 {
        let crowd = |name: &&'static str| {
            (turn * 100..turn * 100 + 100).fold(resource(name).semaphore(100), |seen, who| seen.read_by(who))
        };
        world.sample(&names.iter().map(crowd).collect::<Vec<_>>());
    }
    assert!(world.history.whole_since().is_some());
    world.pass(3600);
    world.sample(&[]);
    assert_eq!(world.history.whole_since(), None);
}

#[test]
fn names_are_bounded() {
    let mut world = World::new();
    world.sample(&[]);
    let mut first = None;
    for turn in 0..1000 {
        let names = (0..300).map(|place| resource(format!("job/{turn}/{place}").leak()).held_by(place));
        let mut seen: Vec<Seen> = names.collect();
        seen.push(resource("a").held_by(1));
        world.sample(&seen);
        first.get_or_insert_with(|| seen[0].name);
    }
    assert_eq!(world.history.records().count(), MOST_RECORDS);
    assert_eq!(world.history.live().count(), 301);
    assert!(world.history.free.len() <= 2 * MOST_RECORDS + ROOM);
    let past: usize = world.history.records().map(|(_, record)| record.past_len()).sum();
    assert_eq!(past, world.history.kept());
    // A forgotten lock is unknown, not free.
    let name = Name::new(first.expect("one")).expect("a name");
    assert!(world.history.record(&name).is_none());
    assert!(world.history.seen_since(None) > Some(world.now - 400_000));
    assert!(world.history.whole_since().is_some());
    // The history of the lock that is in use the whole time is whole.
    assert_eq!(world.history.seen_since(Some(world.record())), world.history.first);
}

#[test]
fn locks_that_come_and_go_leave_no_trail() {
    let mut world = World::new();
    for turn in 0..20_000 {
        let seen = [resource("a").held_by(1)];
        world.sample(if turn % 2 == 0 { &seen } else { &[] });
    }
    assert!(world.history.free.len() <= ROOM + 2);
}

#[test]
fn a_time_in_which_nothing_was_seen_is_not_waited() {
    let mut world = World::new();
    world.sample(&[]);
    world.sample(&[resource("a").held_by(1).waited_by(2)]);
    world.pass(3600);
    world.sample(&[resource("a").held_by(1).waited_by(2)]);
    assert!(world.record().fine.sum(world.now, 60_000).waited <= 60_000);
}

#[test]
fn an_eviction_that_was_seen_before_it_was_told_is_one() {
    let mut world = World::new();
    world.sample(&[resource("a").held_by(1)]);
    world.sample(&[]);
    let eviction = Arc::new(Eviction { by: "ops".into(), reason: "stuck".into(), immediate: true });
    world.history.evicted(&Name::new("a").expect("a name"), Token::new(2, 0), &eviction);
    assert_eq!(world.past(), ["1 held 1-2 Evicted"]);
}

#[test]
fn room_is_bounded_over_all() {
    let mut world = World::new();
    let names: Vec<&'static str> = (0..60).map(|place| &*format!("lock-{place}").leak()).collect();
    for turn in 0..20 {
        let crowd = |name: &&'static str| {
            (turn * 100..turn * 100 + 100).fold(resource(name).semaphore(100), |seen, who| seen.read_by(who))
        };
        let seen: Vec<Seen> = names.iter().map(crowd).collect();
        world.sample(&seen);
    }
    assert_eq!(world.history.kept(), MOST);
    assert!(world.history.whole_since().is_some_and(|since| since > START));
}

#[test]
fn a_long_queue_that_moves_up_is_recognized() {
    let mut world = World::new();
    world.sample(&[]);
    for first in 0..50 {
        let seen =
            (first + 1..first + 100).fold(resource("a").held_by(first), |seen, who| seen.waited_by(who));
        world.sample(&[seen]);
    }
    let left = world.past().iter().filter(|past| past.ends_with("Left")).count();
    assert_eq!(left, 0);
    assert_eq!(world.record().waits().len(), 99);
}

#[test]
fn a_clock_that_goes_back_does_no_harm() {
    let mut world = World::new();
    world.sample(&[resource("a").held_by(1).waited_by(2)]);
    world.now -= 10_000;
    world.sample(&[resource("a").held_by(1).waited_by(2)]);
    assert!(world.record().holds()[0].to >= world.record().holds()[0].from);
}
