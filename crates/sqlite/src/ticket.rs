//! What a request carries to the writer's thread: how urgent it is, and whether it may still begin.

use std::sync::{
    Arc,
    atomic::{AtomicU8, Ordering},
};

/// Which work goes first.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Urgency {
    /// In order of arrival.
    Usual,
    /// Before the others: renewals, whose leases run out meanwhile.
    First,
}

/// A request's way through the line: begun at most once, and not after its asker gave up.
#[derive(Clone, Debug)]
pub(crate) struct Ticket(Arc<AtomicU8>);

const WAITING: u8 = 0;
const BEGUN: u8 = 1;
const GIVEN_UP: u8 = 2;

impl Ticket {
    pub(crate) fn new() -> Self {
        Self(Arc::new(AtomicU8::new(WAITING)))
    }

    /// The writer has the file to itself and begins. False: nobody waits for it any more.
    pub(crate) fn begin(&self) -> bool {
        self.0.compare_exchange(WAITING, BEGUN, Ordering::AcqRel, Ordering::Acquire) != Err(GIVEN_UP)
    }

    /// The asker gives up. True: it was not begun and never will be.
    pub(crate) fn give_up(&self) -> bool {
        self.0.compare_exchange(WAITING, GIVEN_UP, Ordering::AcqRel, Ordering::Acquire) != Err(BEGUN)
    }
}
