//! What a request carries to the writer's thread: how urgent it is, and whether it may still begin.

use std::sync::{
    Arc,
    atomic::{AtomicU8, Ordering},
};

/// Which requests go first.
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

    /// The writer begins with the request. False: the caller has given up.
    pub(crate) fn begin(&self) -> bool {
        self.0.compare_exchange(WAITING, BEGUN, Ordering::AcqRel, Ordering::Acquire) != Err(GIVEN_UP)
    }

    /// The caller gives up. True: the request has not begun and never will.
    pub(crate) fn give_up(&self) -> bool {
        self.0.compare_exchange(WAITING, GIVEN_UP, Ordering::AcqRel, Ordering::Acquire) != Err(BEGUN)
    }
}
