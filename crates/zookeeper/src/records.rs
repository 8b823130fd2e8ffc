//! A keeper's records of its own claims and latch operations. Touches no server.
//!
//! Repeated requests are answered from here without asking the servers. The nodes are the truth.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use lockkeeper_core::{
    Capacity, ContenderId, GrantNumber, Name, Units,
    clock::BootTime,
    model::{FIRST_LEASE, Tombstones, WAIT_LEASE},
    store::{Claim, Counted, Grant, Left},
    support::background::Background,
};

use crate::{codec::ClaimData, session::Session};

/// One claim of this keeper.
#[derive(Debug)]
pub(crate) struct ClaimRecord {
    pub(crate) name: Name,
    pub(crate) units: Units,
    pub(crate) capacity: Capacity,
    /// The session that its node belongs to.
    pub(crate) session: Arc<Session>,
    /// The path of its node; empty while it is not known whether there is one.
    pub(crate) node: String,
    /// The paths of its markers.
    pub(crate) markers: Vec<String>,
    pub(crate) number: GrantNumber,
    /// The data of its node, and the version in which it was read.
    pub(crate) data: ClaimData,
    pub(crate) version: i32,
    pub(crate) state: ClaimState,
    /// The claims behind it when it was admitted, in order; `None` if they are not known.
    pub(crate) behind: Option<Vec<String>>,
    /// Waits until it is admitted, or marks its node after that.
    pub(crate) task: Option<Background>,
}

/// The state of a claim.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ClaimState {
    /// Its node was asked for at this time, and it is not known whether it was made.
    Unknown {
        asked: BootTime,
    },
    Waiting {
        ahead: usize,
        asked: BootTime,
    },
    Holding(HoldRecord),
    /// Its owner left before the minimum hold. The node is kept until then.
    Retired {
        until: BootTime,
    },
    /// Its node is to be removed. Then this is the answer.
    Leaving(Left),
}

/// A hold of this keeper.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct HoldRecord {
    pub(crate) granted: BootTime,
    pub(crate) expires: BootTime,
    /// Whether its owner knows of it.
    pub(crate) confirmed: bool,
    pub(crate) floor: GrantNumber,
}

impl HoldRecord {
    /// A hold whose owner hears of it right now.
    pub(crate) fn confirmed(now: BootTime, lease: Duration, floor: GrantNumber) -> Self {
        Self { granted: now, expires: now.after(lease), confirmed: true, floor }
    }

    /// A hold whose owner is yet to hear of it. Until then it has a short lease.
    pub(crate) fn pushed(now: BootTime, lease: Duration, floor: GrantNumber) -> Self {
        Self { granted: now, expires: now.after(lease.min(FIRST_LEASE)), confirmed: false, floor }
    }

    /// Makes the first short lease the full one, counted from the grant, since its owner has heard of it.
    pub(crate) fn confirm(&mut self, lease: Duration) {
        if !self.confirmed {
            self.confirmed = true;
            self.expires = self.expires.max(self.granted.after(lease));
        }
    }
}

impl ClaimRecord {
    pub(crate) fn new(
        claim: &Claim,
        session: &Arc<Session>,
        node: String,
        number: GrantNumber,
        state: ClaimState,
    ) -> Self {
        Self {
            name: claim.name.clone(),
            units: claim.units,
            capacity: claim.capacity,
            session: session.clone(),
            node,
            markers: Vec::new(),
            number,
            data: ClaimData::of(claim),
            version: 0,
            state,
            behind: None,
            task: None,
        }
    }

    /// Returns the rest of its lease, which is never longer than its session certainly lives.
    pub(crate) fn remaining(&self, hold: &HoldRecord, now: BootTime) -> Duration {
        hold.expires.min(self.session.deadline()).since(now)
    }

    pub(crate) fn grant(&self, hold: &HoldRecord, now: BootTime) -> Grant {
        Grant { number: self.number, floor: hold.floor, remaining: self.remaining(hold, now) }
    }

    /// Marks a claim whose node is to be removed, and ends its task.
    pub(crate) fn leave(&mut self, left: Left) {
        self.state = ClaimState::Leaving(left);
        self.task = None;
    }

    /// The time at which the reaper has to look at it.
    pub(crate) fn due(&self) -> BootTime {
        let ends = match self.state {
            ClaimState::Leaving(_) => BootTime::NEVER,
            ClaimState::Unknown { asked } | ClaimState::Waiting { asked, .. } => asked.after(WAIT_LEASE),
            ClaimState::Holding(hold) => hold.expires,
            ClaimState::Retired { until } => until,
        };
        ends.min(self.session.deadline())
    }
}

/// A keeper's memory of its claims and latch operations.
#[derive(Debug, Default)]
pub(crate) struct Records {
    /// Its claims.
    pub(crate) claims: HashMap<ContenderId, ClaimRecord>,
    /// Contenders that left while a copy of their claim may still be in flight.
    pub(crate) left: Tombstones<()>,
    /// Answers to latch operations.
    pub(crate) counted: Tombstones<Counted>,
    /// Latch operations that are in flight, or whose answer was lost.
    pub(crate) unanswered: HashSet<ContenderId>,
    /// The paths of latch answers at the store that this keeper has read.
    pub(crate) read_answers: Vec<String>,
    /// The paths of foreign nodes that were warned of.
    pub(crate) warned_of: HashSet<String>,
}
