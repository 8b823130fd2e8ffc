//! A world: the clients that want the lock, and the faults that may happen.

use lockkeeper_core::{Capacity, GrantNumber, Units};

use super::{Fault, Quorum, member::Record};
use crate::{Attempt, Majority, Sharing, attempt::Mistake};

/// A client that wants the lock.
#[derive(Clone, Debug)]
pub(super) struct Who {
    pub(super) units: Units,
    pub(super) quorum: Quorum,
    /// Its members, the gate first.
    pub(super) members: Vec<usize>,
    /// Whether its answers may be late or lost. Otherwise a request that is done is answered at once, but requests may
    /// be late or lost all the same.
    pub(super) lags: bool,
    /// It begins at this tick at the latest.
    pub(super) begins: u32,
    /// How often it renews.
    pub(super) renewals: u8,
    /// Whether it gives its hold back.
    pub(super) leaves: bool,
    /// How often it gives way and comes again.
    pub(super) gives_way: u8,
    /// Whether another process may go on with its hold.
    pub(super) adopts: bool,
    /// Whether it asks its gate first, and all members when that says by itself that it has granted.
    pub(super) asks_gate_first: bool,
}

#[derive(Clone, Debug)]
pub(super) struct World {
    pub(super) fault: Fault,
    pub(super) clients: Vec<Who>,
    pub(super) capacity: Capacity,
    /// The marks that members begin with: numbers differ if other names of a store are busy.
    pub(super) marks: Vec<Vec<GrantNumber>>,
    pub(super) records: Vec<Option<Record>>,
    /// In ticks.
    pub(super) lease: u32,
    pub(super) last_tick: u32,
    /// How many members may restart without data, one after another.
    pub(super) restarts: u8,
    /// How many restarts may be at a time.
    pub(super) together: usize,
    pub(super) gate_changes: u8,
    /// Whether an operator takes the lock back from the first client.
    pub(super) evicts: bool,
    /// Whether the first member is replaced by the last.
    pub(super) replaces: bool,
    /// Whether the others count for both quorums meanwhile, and clients of the old one learn of the new one from them.
    pub(super) learns: bool,
    /// Whether the quorums have to be founded first.
    pub(super) founds: bool,
    /// How many raises get no answer in time, although they may still arrive.
    pub(super) silences: u8,
    /// How often other names of a member are granted.
    pub(super) bumps: u8,
    /// The steps before the exploration begins.
    pub(super) prefix: Vec<Step>,
}

/// A step of a prefix.
#[derive(Clone, Copy, Debug)]
pub(super) enum Step {
    Tick,
    Begin(usize),
    Renew(usize),
    Poll(usize),
    Leave(usize),
    /// The oldest request of a client to a member arrives and is answered.
    Do(usize, usize),
    /// The same, but the answer is still under way.
    Arrive(usize, usize),
    Restart(usize),
    Watch(usize),
    GiveWay(usize),
    Remove(usize),
    /// A member learns of another quorum.
    Record(usize),
}
impl Who {
    fn new(units: Units, members: Vec<usize>) -> Self {
        Self {
            units,
            quorum: Quorum::One,
            members,
            lags: false,
            begins: 0,
            renewals: 0,
            leaves: true,
            gives_way: 0,
            adopts: false,
            asks_gate_first: false,
        }
    }

    /// A mutex's or a writer's claim.
    pub(super) fn exclusive() -> Self {
        Self::new(Units::All, vec![0, 1, 2])
    }

    pub(super) fn reader() -> Self {
        Self::new(Units::ONE, vec![0, 1, 2])
    }
}

impl World {
    /// Three members that vote, equal marks, three ticks to a lease, and no trouble but slow and lost messages.
    pub(super) fn of(clients: Vec<Who>) -> Self {
        let votes = Some(Record::voting(Quorum::One));
        Self {
            fault: Fault::None,
            clients,
            capacity: Capacity::All,
            marks: vec![vec![0; 3]],
            records: vec![votes; 3],
            lease: 3,
            last_tick: 3,
            restarts: 0,
            together: 1,
            gate_changes: 0,
            evicts: false,
            replaces: false,
            learns: false,
            founds: false,
            silences: 0,
            bumps: 0,
            prefix: Vec::new(),
        }
    }

    pub(super) fn with(self, fault: Fault) -> Self {
        Self { fault, ..self }
    }

    pub(super) fn needed(&self) -> usize {
        self.majority().needed()
    }

    fn majority(&self) -> Majority {
        Majority::of(self.clients[0].members.len()).expect("an odd number")
    }

    pub(super) fn is_exclusive(&self, client: usize) -> bool {
        self.clients[client].units == Units::All
    }

    /// Whether members may forget a hold before its lease ends.
    pub(super) fn is_troubled(&self) -> bool {
        self.restarts > 0 || self.evicts || self.replaces
    }

    pub(super) fn attempt(&self, client: usize) -> Attempt {
        let sharing = if self.is_exclusive(client) { Sharing::Exclusive } else { Sharing::Shared };
        let mistake = match self.fault {
            Fault::Attempt(mistake) => Some(mistake),
            _ => None,
        };
        Attempt::new(self.majority(), sharing, 0).making(mistake)
    }

    pub(super) fn adopting(&self, number: GrantNumber) -> Attempt {
        Attempt::adopt(self.majority(), number)
    }

    /// Whether a fault makes contenders take answers in any order.
    pub(super) fn is_unordered(&self) -> bool {
        self.fault == Fault::Attempt(Mistake::LateAnswers)
    }
}
