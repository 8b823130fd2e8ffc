//! The pure state machine behind every store: no async, no clock of its own, no I/O.
//!
//! [`Resource`] is the leased, fenced, weighted semaphore with a queue; [`Counter`] the latch;
//! [`Model`] a whole store made of them. State stores in Rust call these functions; scripts and
//! SQL are twins held to them by refinement tests. The numbered invariants that the tests cite
//! stand in `docs/design.md`.

mod counter;
mod resource;
mod tombstones;
mod whole;

use std::time::Duration;

pub use counter::Counter;
pub use resource::{Holder, Resource, Waiter};
pub use tombstones::Tombstones;
pub use whole::Model;

use crate::{
    clock::Clock,
    store::{GrantNotice, StoreTime},
    token::{GrantNumber, Token},
};

/// How long a grant that was pushed to a waiter lasts until it is confirmed: a dead waiter is
/// passed after this long. Shorter leases are their own first lease.
pub const FIRST_LEASE: Duration = Duration::from_secs(3);

/// How long a position in the queue lasts after it was last asked for, or less by [`POSITION_KEPT`].
pub const WAIT_LEASE: Duration = Duration::from_secs(15);

/// For how long asking again for a position in the queue changes nothing. Waiters ask every second or
/// two, so most of their requests are only a look, which costs a store much less than a change.
pub const POSITION_KEPT: Duration = Duration::from_secs(5);

/// How long after its `not_after` a latch operation is remembered. Longer than anybody asks again
/// for its outcome, so "too late" always means that no copy of it counted.
pub const COUNT_MEMORY: Duration = Duration::from_secs(60);

/// The store's two clocks at one moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Now {
    /// The clock that leases run on.
    pub lease: StoreTime,
    /// Wall time in microseconds since 1970: the ground of grant numbers, and shown to people.
    pub wall: u64,
}

impl Now {
    /// This moment by `clock`, for a server that runs in a process of its own or in this one.
    ///
    /// ```
    /// use lockkeeper_core::{clock::Clock, model::Now};
    /// let now = Now::of(&Clock::boot());
    /// assert!(now.wall > 0);
    /// ```
    pub fn of(clock: &Clock) -> Self {
        Self { lease: StoreTime(clock.now().0 / 1000), wall: clock.wall_micros() }
    }
}

/// The last grant number given: kept once per store, so names no longer used leave nothing behind.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct HighWater(pub GrantNumber);

impl HighWater {
    /// The next number: above all before it, and above all from before a loss of data as long as
    /// the wall clock is sane (invariant I6).
    pub fn next(&mut self, now: Now) -> GrantNumber {
        self.next_at_least(0, now)
    }

    /// The next number, at least `number`. The wall clock counts only if that is zero.
    pub fn next_at_least(&mut self, number: GrantNumber, now: Now) -> GrantNumber {
        self.0 += 1;
        self.raise(if number == 0 { now.wall } else { number });
        self.0
    }

    /// Makes it at least `number`.
    pub fn raise(&mut self, number: GrantNumber) {
        self.0 = self.0.max(number).min(Token::NUMBER_LIMIT - 1);
    }
}

/// The changes of a transition that others are told of.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Effects {
    /// Grants made for waiters, to be pushed to them.
    pub grants: Vec<GrantNotice>,
    /// Whether the holders changed.
    pub changed: bool,
}

#[cfg(test)]
mod tests;
