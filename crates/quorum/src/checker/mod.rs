//! The protocol in every order of events that small worlds allow, with [`Attempt`](crate::Attempt) as the contender and
//! the real model at the members. The checker plays the network, time, restarts, operators and those who let members
//! vote.
//!
//! Each promise of `docs/design.md`, chapter "Quorum", is checked, and each mistake that is named there is planted and
//! has to be refuted: a checker that lets one of them pass proves nothing.

mod cases;
mod explore;
mod fences;
mod member;
mod promises;
mod state;
mod steps;
mod world;

use std::time::Duration;

use lockkeeper_core::clock::BootTime;

use crate::attempt::Mistake;

/// One tick of every clock.
const TICK: Duration = Duration::from_secs(1);
/// How long a claim may take effect after it was sent, in ticks.
const CLAIM_LIFE: u32 = 1;

/// The time on a client's clock: it shares no origin with that of members.
fn boot(tick: u32) -> BootTime {
    BootTime(0).after(Duration::from_secs(1_000_000)).after(TICK * tick)
}

/// The name of a quorum: a hash of its members and of the longest lease.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
enum Quorum {
    One,
    Other,
}

/// The mistakes that a world may have.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Fault {
    None,
    /// In the contenders themselves.
    Attempt(Mistake),
    /// Whether a member votes is asked before the claim.
    VotesBeforeClaim,
    /// A member votes again when it says that it has been up for long enough.
    Uptime,
    /// Members do not compare the quorum that a client belongs to.
    UnequalSets,
    /// A contender that gave way comes back with the same id.
    ReusedId,
    /// Raising a number works without a hold.
    SettleWithoutHolding,
    /// Raising a number lowers a higher one.
    LowerNumbers,
    /// Raising a number gives the next number that is free.
    SettleByGrantFormula,
    /// A member that lost its data votes again with a mark of zero.
    RejoinWithoutMarks,
    /// A member that lost its data votes again at once.
    RejoinAtOnce,
    /// An operator takes a lock back without tombstones.
    EvictionWithoutTombstones,
    /// The new member votes as soon as the others know of it.
    ReplaceAtOnce,
    /// A member votes for a quorum before all its members have its record.
    FoundOneByOne,
    /// A client that hears of another server at a place still counts the answers of the one before.
    CountsBoth,
}
