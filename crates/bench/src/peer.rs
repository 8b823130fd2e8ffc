//! The contestants: anything that can acquire and release a named lock.
//!
//! A new peer is a [`Peer`] and its [`Lock`]; a contestant that does not run as tasks of this process (a program of its
//! own, say) is a [`Contestant`](crate::rounds::Contestant) instead.

use crate::{Failure, judge::Limit, workload::Workload};

/// A kind of lock, by name.
pub(crate) trait Peer: Send + Sync + 'static {
    type Lock: Lock;

    /// Its name in the table.
    fn name(&self) -> &'static str;

    /// The lock of this name; every task has a clone of it.
    fn lock(&self, name: &str) -> Self::Lock;

    /// How many requests to its store it has sent so far, if that is known.
    fn requests(&self) -> Option<u64> {
        None
    }

    /// The goal for Lockkeeper's rate divided by this peer's.
    fn goal(&self, _: Workload) -> Option<Limit> {
        None
    }

    /// The same with `.fifo()`, where that takes part.
    fn fifo_goal(&self, _: Workload) -> Option<Limit> {
        None
    }

    /// Whether it can do this at all: one that lets two in at once would end the run.
    fn takes_part(&self, _: Workload) -> bool {
        true
    }
}

/// The way in which one task acquires and releases. The futures are not boxed, so that nothing is added to the figures.
pub(crate) trait Lock: Clone + Send + Sync + 'static {
    type Held<'a>: Send;

    fn acquire(&self) -> impl Future<Output = Result<Self::Held<'_>, Failure>> + Send;

    fn release(held: Self::Held<'_>) -> impl Future<Output = Result<(), Failure>> + Send;
}
