//! The urgency of a request to the writer's thread, and its ticket, which tells whether it may still begin.

use std::sync::{
    Arc,
    atomic::{AtomicU8, Ordering},
};

/// The rank of a request among those that wait for the writer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Urgency {
    /// In order of arrival.
    Usual,
    /// Before the others: renewals, whose leases run out meanwhile.
    First,
}

/// Lets a request begin or be given up, whichever comes first, and never both.
#[derive(Clone, Debug)]
pub(crate) struct Ticket(Arc<AtomicU8>);

const WAITING: u8 = 0;
const BEGUN: u8 = 1;
const GIVEN_UP: u8 = 2;

impl Ticket {
    /// A request that has neither begun nor been given up.
    pub(crate) fn new() -> Self {
        Self(Arc::new(AtomicU8::new(WAITING)))
    }

    /// Begins with the request; false if the caller has given up.
    pub(crate) fn begin(&self) -> bool {
        self.0.compare_exchange(WAITING, BEGUN, Ordering::AcqRel, Ordering::Acquire) != Err(GIVEN_UP)
    }

    /// Gives the request up; true if it has not begun, and so never will.
    pub(crate) fn give_up(&self) -> bool {
        self.0.compare_exchange(WAITING, GIVEN_UP, Ordering::AcqRel, Ordering::Acquire) != Err(BEGUN)
    }
}
