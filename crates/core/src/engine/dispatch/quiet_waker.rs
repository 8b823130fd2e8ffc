//! A waker that skips wake-ups of a task by itself.
//!
//! The task that waits for an answer also polls the request that brings it. The answer would wake that task while it is
//! running: a second turn for nothing, and on a runtime of many threads a second thread for nothing.

use std::{
    sync::Arc,
    task::{Wake, Waker},
};

use super::sync::{AtomicBool, Ordering};

pub(crate) struct QuietWaker {
    inner: Waker,
    quiet: AtomicBool,
}

impl QuietWaker {
    pub(crate) fn new(inner: &Waker) -> Arc<Self> {
        Arc::new(Self { inner: inner.clone(), quiet: AtomicBool::new(false) })
    }

    /// Whether it wakes the same task as `waker`.
    pub(crate) fn will_wake(&self, waker: &Waker) -> bool {
        self.inner.will_wake(waker)
    }

    /// Runs `work` and skips all wake-ups meanwhile, whichever thread they come from. The caller polls afterwards
    /// whatever it gave this waker to.
    ///
    /// Nothing is lost by that. The end of the quiet time and a wake-up each read and write the flag in one step, so one
    /// of the two is second and sees all that came before the other. If the end is second, the poll that follows it sees
    /// the news that the wake-up is about. If the wake-up is second, it finds this waker no longer quiet. A plain store
    /// and a plain load would both be allowed to miss the other's side.
    pub(crate) fn quietly<T>(&self, work: impl FnOnce() -> T) -> T {
        self.quiet.store(true, Ordering::Release);
        let done = work();
        self.quiet.swap(false, Ordering::AcqRel);
        done
    }
}

impl Wake for QuietWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        // Changes nothing, but is one step with the read: see `quietly`.
        if !self.quiet.fetch_or(false, Ordering::AcqRel) {
            self.inner.wake_by_ref();
        }
    }
}
