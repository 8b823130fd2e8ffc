//! The steps of a refinement run, drawn from dice. A step names contenders and resources by small numbers and means
//! something in every state, so any step can be left out when a failing run is shortened.

use std::time::Duration;

use crate::dice::Dice;

/// Keepers of a run, and contenders of each: contender `who` belongs to keeper `who / EACH`.
pub(super) const KEEPERS: usize = 3;
pub(super) const EACH: usize = 4;
/// Resources of a run: the first two have no limit but "all", the last has permits.
pub(super) const RESOURCES: usize = 3;
/// Latches of a run, and operations on them that may be repeated.
pub(super) const LATCHES: usize = 1;
pub(super) const OPERATIONS: usize = 6;

/// How time passes in a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TimeMode {
    /// Time costs nothing: it passes often, and leases of all lengths end.
    Virtual,
    /// Time is real: most leases outlast the run, some are short, and now and then their end is
    /// awaited.
    Real,
}

/// One entry of a group.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Entry {
    Claim {
        who: usize,
        resource: usize,
        units: u32,
        lease: Duration,
        queue: bool,
        /// How long from now on it may take effect, in milliseconds; negative: it comes too late.
        life: i64,
        /// Asks for another capacity than the others.
        mismatch: bool,
        detachable: bool,
        /// Whether it is born detached, if the store can do that.
        born_detached: bool,
        renewed: bool,
    },
    Leave {
        who: usize,
        /// Whether it leaves a tombstone against late copies.
        tombstone: bool,
        hold_at_least: Duration,
    },
}

/// One entry of a renewal.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Renewal {
    pub(super) who: usize,
    pub(super) lease: Duration,
    pub(super) lower: bool,
    pub(super) detach: bool,
}

/// The operation on a latch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum LatchAction {
    Create(u64),
    Down(u64),
    Reset,
    Delete,
    Read,
}

/// One step.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Step {
    /// One request of one keeper.
    Group {
        keeper: usize,
        entries: Vec<Entry>,
    },
    /// The group sent so many groups ago arrives once more: a doubled request or a late copy.
    Repeat {
        ago: usize,
    },
    Renew {
        keeper: usize,
        renewals: Vec<Renewal>,
    },
    /// `wrong`: with a number that is not the holder's.
    Evict {
        who: usize,
        now: bool,
        wrong: bool,
        reason: bool,
    },
    Count {
        latch: usize,
        operation: usize,
        again: bool,
        action: LatchAction,
        late: bool,
    },
    Fence {
        number: u64,
        below: u64,
    },
    List {
        limit: usize,
    },
    Pass(Duration),
    /// Time passes until the next lease, of a holder or a waiter, has just ended.
    PassUntilNextEnd,
}

/// Draws `count` steps, after those that every run begins with.
pub(super) fn draw(dice: &mut Dice, count: usize, time_mode: TimeMode) -> Vec<Step> {
    let drawn = (0..count).map(|_| step(dice, time_mode));
    lone_holder().into_iter().chain(drawn).collect()
}

/// A lone holder, with an empty queue and nothing left by others, renews for longer, as long, shorter, and not at all
/// (I11). Most locks are used like this, stores have a shortcut for it, and dice seldom lead there.
fn lone_holder() -> Vec<Step> {
    let (keeper, who) = (0, 0);
    let alone = |entry| Step::Group { keeper, entries: vec![entry] };
    let hour = Duration::from_secs(3600);
    let mut steps = vec![alone(Entry::Claim {
        who,
        resource: 0,
        units: 0,
        lease: hour,
        queue: true,
        life: 5_000,
        mismatch: false,
        detachable: false,
        born_detached: false,
        renewed: true,
    })];
    for lease in [hour, 2 * hour, hour, Duration::from_secs(2), Duration::ZERO] {
        let renewals = vec![Renewal { who, lease, lower: false, detach: false }];
        steps.push(Step::Renew { keeper, renewals });
    }
    steps.push(alone(Entry::Leave { who, tombstone: false, hold_at_least: Duration::ZERO }));
    steps
}

fn step(dice: &mut Dice, time_mode: TimeMode) -> Step {
    let time = match time_mode {
        TimeMode::Virtual => 160,
        TimeMode::Real => 30,
    };
    match dice.below(1000) {
        at if at < time => match time_mode {
            TimeMode::Virtual if dice.chance(400) => Step::PassUntilNextEnd,
            // Now and then longer than a waiter's lease.
            TimeMode::Virtual => {
                let most = if dice.chance(50) { 20_000 } else { 2_500 };
                Step::Pass(dice.up_to(most))
            }
            TimeMode::Real if dice.chance(500) => Step::PassUntilNextEnd,
            TimeMode::Real => Step::Pass(dice.up_to(200)),
        },
        at if at < 600 => {
            let keeper = pick(dice, KEEPERS);
            let entries = (0..=pick(dice, 4)).map(|_| entry(dice, keeper, time_mode)).collect();
            Step::Group { keeper, entries }
        }
        at if at < 680 => Step::Repeat { ago: pick(dice, 12) },
        at if at < 830 => {
            let keeper = pick(dice, KEEPERS);
            let renewals = (0..=pick(dice, 3)).map(|_| renewal(dice, keeper, time_mode)).collect();
            Step::Renew { keeper, renewals }
        }
        at if at < 870 => Step::Evict {
            who: pick(dice, KEEPERS * EACH),
            now: dice.chance(500),
            wrong: dice.chance(200),
            reason: dice.chance(500),
        },
        at if at < 940 => Step::Count {
            latch: pick(dice, LATCHES),
            operation: pick(dice, OPERATIONS),
            again: dice.chance(300),
            action: match dice.below(10) {
                0..=2 => LatchAction::Create(dice.below(12)),
                3..=6 => LatchAction::Down(dice.below(4)),
                7 => LatchAction::Reset,
                8 => LatchAction::Delete,
                _ => LatchAction::Read,
            },
            late: dice.chance(100),
        },
        at if at < 980 => Step::Fence { number: dice.below(20), below: dice.below(5) },
        _ => Step::List { limit: 1 + pick(dice, 4) },
    }
}

fn pick(dice: &mut Dice, limit: usize) -> usize {
    dice.below(limit as u64) as usize
}

fn who(dice: &mut Dice, keeper: usize) -> usize {
    keeper * EACH + pick(dice, EACH)
}

fn lease(dice: &mut Dice, time_mode: TimeMode) -> Duration {
    match time_mode {
        // Equal and round leases are frequent, so that moments coincide.
        TimeMode::Virtual if dice.chance(500) => Duration::from_secs(1 + dice.below(6)),
        TimeMode::Virtual => Duration::from_millis(10) + dice.up_to(8_000),
        TimeMode::Real if dice.chance(200) => Duration::from_secs(2) + dice.up_to(1_000),
        TimeMode::Real => Duration::from_secs(3600),
    }
}

fn entry(dice: &mut Dice, keeper: usize, time_mode: TimeMode) -> Entry {
    let who = who(dice, keeper);
    if dice.chance(650) {
        Entry::Claim {
            who,
            resource: pick(dice, RESOURCES),
            units: dice.below(4) as u32,
            lease: lease(dice, time_mode),
            queue: dice.chance(800),
            life: if dice.chance(80) { -1 - dice.below(2_000) as i64 } else { 5_000 },
            mismatch: dice.chance(40),
            detachable: dice.chance(300),
            born_detached: dice.chance(100),
            renewed: dice.chance(700),
        }
    } else {
        let hold_at_least = if dice.chance(200) { dice.up_to(3_000) } else { Duration::ZERO };
        Entry::Leave { who, tombstone: dice.chance(500), hold_at_least }
    }
}

fn renewal(dice: &mut Dice, keeper: usize, time_mode: TimeMode) -> Renewal {
    Renewal {
        who: who(dice, keeper),
        lease: if dice.chance(300) { Duration::ZERO } else { lease(dice, time_mode) },
        lower: dice.chance(150),
        detach: dice.chance(100),
    }
}
