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
    /// Nothing is lost by that, provided that the one who wakes first stores the news under a lock and the one who polls
    /// reads them under the same lock. If the poll does not see the news, its turn of the lock came first; then the
    /// wake-up, which follows the other's turn, sees that this waker is no longer quiet.
    pub(crate) fn quietly<T>(&self, work: impl FnOnce() -> T) -> T {
        self.quiet.store(true, Ordering::Release);
        let done = work();
        self.quiet.store(false, Ordering::Release);
        done
    }
}

impl Wake for QuietWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if !self.quiet.load(Ordering::Acquire) {
            self.inner.wake_by_ref();
        }
    }
}
