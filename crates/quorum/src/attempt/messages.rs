//! The requests of an attempt to members, and their answers: plain values.

use std::{sync::Arc, time::Duration};

use lockkeeper_core::{GrantNumber, clock::BootTime};

/// Whether others may hold at the same time.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Sharing {
    /// Nobody else holds.
    Exclusive,
    /// Others that share may hold.
    Shared,
}

/// Orders the requests of one attempt.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Stamp(pub u32);

/// A request to one member, with its stamp.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Ask {
    /// The index of the member.
    pub member: usize,
    /// To be given back with the answer.
    pub stamp: Stamp,
    /// The request itself.
    pub request: Request,
}

/// The kinds of requests to members.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Request {
    /// Claim, or ask again.
    Claim {
        /// Whether to wait in the queue there.
        queue: bool,
        /// The number is to be at least this.
        at_least: GrantNumber,
    },
    /// Raise the number of the hold, and the member's high-water mark with it. The lease is not extended.
    Raise {
        /// To this, if it is below.
        to: GrantNumber,
    },
    /// Extend the lease, and raise the number.
    Renew {
        /// To this, if it is below.
        at_least: GrantNumber,
    },
    /// Give a hold or a position back.
    Leave {
        /// Whether a copy of a claim may still arrive, so that a tombstone is needed.
        tombstone: bool,
    },
}

/// The answer of a member.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Said {
    /// The contender holds there.
    Held {
        /// With this number.
        number: GrantNumber,
        /// The smallest number that holds there.
        floor: GrantNumber,
        /// The time that is left of the lease.
        remaining: Duration,
        /// Whether the member votes, judged in the same step.
        votes: bool,
        /// The mark with which it began to vote.
        since: GrantNumber,
    },
    /// Somebody else holds there.
    Busy {
        /// Whether the contender waits in the queue.
        in_queue: bool,
    },
    /// The contender does not hold there.
    Gone,
    /// The claim did nothing: it came too late for the clock of the member, or a leave has left a tombstone for the
    /// contender.
    Stale,
    /// An operator wants it back, for this reason.
    Evicted(Option<Arc<str>>),
    /// The contender has left.
    Left,
}

/// The hold of a contender.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Hold {
    /// The number of its token.
    pub number: GrantNumber,
    /// The smallest number that may hold beside it.
    pub floor: GrantNumber,
    /// The time until which it may act.
    pub deadline: BootTime,
}

/// The end of an attempt.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Ended {
    /// Too few members have it still.
    Lost,
    /// An operator wanted it back, for this reason.
    Evicted(Option<Arc<str>>),
    /// It was given back, or up.
    Left,
}
