//! What this keeper has at ZooKeeper: its claims, where their nodes are and how they state. Kept in
//! memory, so asking again costs no request; the nodes are the truth.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use lockkeeper_core::{
    Capacity, ContenderId, GrantNumber, Name, Units,
    clock::BootTime,
    model::{FIRST_LEASE, Tombstones, WAIT_LEASE},
    store::{Counted, Grant, Left},
};
use tokio::task::AbortHandle;

use crate::{codec::ClaimData, session::Session};

/// A background task that ends with whoever has it.
#[derive(Debug)]
pub(crate) struct Task(pub(crate) AbortHandle);

impl Drop for Task {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// One claim of this keeper.
#[derive(Debug)]
pub(crate) struct ClaimRecord {
    pub(crate) name: Name,
    pub(crate) units: Units,
    pub(crate) capacity: Capacity,
    /// What its node lives in.
    pub(crate) session: Arc<Session>,
    /// Whether that session serves this claim alone and outlives the process.
    pub(crate) own_session: bool,
    /// The path of its node; empty while it is not known whether there is one.
    pub(crate) node: String,
    pub(crate) markers: Vec<String>,
    pub(crate) number: GrantNumber,
    /// What stands in its node, and in which version that was.
    pub(crate) note: ClaimData,
    pub(crate) version: i32,
    pub(crate) state: ClaimState,
    /// Who stood behind it when it was admitted, in order; `None` if that is not known.
    pub(crate) behind: Option<Vec<String>>,
    /// Waits for its turn, or tells those behind it that it came.
    pub(crate) waits: Option<Task>,
}

/// How a claim stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ClaimState {
    /// Its node was asked for at this time, and whether it came to be is not known.
    Unknown {
        asked: BootTime,
    },
    Waiting {
        ahead: usize,
        asked: BootTime,
    },
    Holding(HoldRecord),
    /// Left before its minimum hold, and kept until then.
    Retired {
        until: BootTime,
    },
    /// Its node is to go, and what to answer when it is gone.
    Leaving(Left),
}

/// A hold.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct HoldRecord {
    pub(crate) granted: BootTime,
    pub(crate) expires: BootTime,
    pub(crate) confirmed: bool,
    pub(crate) floor: GrantNumber,
}

impl HoldRecord {
    /// A hold whose owner asks right now.
    pub(crate) fn confirmed(now: BootTime, lease: Duration, floor: GrantNumber) -> Self {
        Self { granted: now, expires: now.after(lease), confirmed: true, floor }
    }

    /// A hold whose owner is yet to hear of it.
    pub(crate) fn pushed(now: BootTime, lease: Duration, floor: GrantNumber) -> Self {
        Self { granted: now, expires: now.after(lease.min(FIRST_LEASE)), confirmed: false, floor }
    }

    /// Its owner was heard of: the first short lease becomes the full one, counted from the grant.
    pub(crate) fn confirm(&mut self, lease: Duration) {
        if !self.confirmed {
            self.confirmed = true;
            self.expires = self.expires.max(self.granted.after(lease));
        }
    }
}

impl ClaimRecord {
    /// What is left of its lease: never more than its session certainly lives.
    pub(crate) fn remaining(&self, hold: &HoldRecord, now: BootTime) -> Duration {
        hold.expires.min(self.session.deadline()).since(now)
    }

    pub(crate) fn grant(&self, hold: &HoldRecord, now: BootTime) -> Grant {
        Grant { number: self.number, floor: hold.floor, remaining: self.remaining(hold, now) }
    }

    /// It is on its way out: whoever waits for it stops.
    pub(crate) fn leave(&mut self, left: Left) {
        self.state = ClaimState::Leaving(left);
        self.waits = None;
    }

    /// When it ends by itself, or has to be looked at.
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

/// All claims of this keeper, and what it remembers.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    pub(crate) records: HashMap<ContenderId, ClaimRecord>,
    /// Those who left while a copy of their claim may still be under way.
    pub(crate) left: Tombstones<()>,
    /// Latch operations of this keeper whose outcome is known.
    pub(crate) counted: Tombstones<Counted>,
    /// Latch operations that were sent and not answered.
    pub(crate) unanswered: HashSet<ContenderId>,
    /// Answers kept at the store that this keeper has heard.
    pub(crate) heard: Vec<String>,
    /// Foreign children that were reported.
    pub(crate) reported: HashSet<String>,
}
