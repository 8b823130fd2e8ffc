//! A waker that skips wake-ups of a task by itself.
//!
//! The task that waits for an answer also polls the request that brings it. The answer would wake that task while it is
//! running: a second turn for nothing, and on a runtime of many threads a second thread for nothing.
//!
//! The request itself is polled with this waker, too. It may be woken by a timer or a socket of the keeper's thread, which
//! a user's waker must not end by a panic.

use std::{
    sync::Arc,
    task::{Wake, Waker},
};

use super::sync::{AtomicBool, Ordering};
use crate::support::calm::calmly;

pub(crate) struct QuietWaker {
    inner: Waker,
    /// The first wake-up that is skipped takes it back.
    quiet: AtomicBool,
}

/// Work that was done quietly.
pub(crate) struct Quietly<T> {
    pub(crate) done: T,
    /// Whether a wake-up was skipped meanwhile.
    pub(crate) skipped: bool,
}

impl QuietWaker {
    pub(crate) fn new(inner: &Waker) -> Arc<Self> {
        Arc::new(Self { inner: inner.clone(), quiet: AtomicBool::new(false) })
    }

    /// Whether it wakes the same task as `waker`.
    pub(crate) fn will_wake(&self, waker: &Waker) -> bool {
        self.inner.will_wake(waker)
    }

    /// Runs `work` and skips one wake-up meanwhile, whichever thread it comes from. The caller polls afterwards
    /// whatever it gave this waker to. What it does not poll again, it wakes if a wake-up was skipped.
    ///
    /// Nothing is lost by that. The end of the quiet time and a wake-up each read and write the flag in one step, so one
    /// of the two is second and sees all that came before the other. If the end is second, it sees that the wake-up was
    /// skipped, and the poll that follows sees the news that the wake-up is about. If the wake-up is second, it finds this
    /// waker no longer quiet. A plain store and a plain load would both be allowed to miss the other's side.
    pub(crate) fn quietly<T>(&self, work: impl FnOnce() -> T) -> Quietly<T> {
        self.quiet.store(true, Ordering::Release);
        let done = work();
        Quietly { done, skipped: !self.quiet.swap(false, Ordering::AcqRel) }
    }
}

impl Wake for QuietWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        // In one step with the read: see `quietly`.
        if !self.quiet.swap(false, Ordering::AcqRel) {
            calmly(|| self.inner.wake_by_ref());
        }
    }
}
