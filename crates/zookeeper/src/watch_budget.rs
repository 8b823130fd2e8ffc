//! Limits how much one session watches. Touches nothing but a counter.
//!
//! After a reconnect the client sets all watches again with one request. If they did not fit into it, the client would
//! lose the session.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

/// How many bytes all watched paths of a session may have together.
const MOST_BYTES: usize = 100 << 10;

/// The watched paths of one session.
#[derive(Clone, Debug, Default)]
pub(crate) struct WatchBudget(Arc<AtomicUsize>);

/// The permission to watch one path, returned to the budget when dropped.
#[derive(Debug)]
pub(crate) struct WatchPermit {
    budget: WatchBudget,
    bytes: usize,
}

impl Drop for WatchPermit {
    fn drop(&mut self) {
        self.budget.0.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

impl WatchBudget {
    /// The permission to watch `path`; `None` if the budget is used up.
    pub(crate) fn permit(&self, path: &str) -> Option<WatchPermit> {
        self.permit_up_to(MOST_BYTES, path)
    }

    /// The permission to watch `path`, which its waiter could do without; `None` if half of the budget is used up.
    pub(crate) fn permit_optional(&self, path: &str) -> Option<WatchPermit> {
        self.permit_up_to(MOST_BYTES / 2, path)
    }

    fn permit_up_to(&self, most: usize, path: &str) -> Option<WatchPermit> {
        let bytes = path.len();
        let more = |watched: usize| (watched + bytes <= most).then_some(watched + bytes);
        self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).ok()?;
        Some(WatchPermit { budget: self.clone(), bytes })
    }
}
