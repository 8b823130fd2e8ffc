//! Gauges: the grants and waiters that the keepers of this process have at this moment, and whether their stores
//! answer.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
};

use super::{HELD, STORE_UP, WAITING};
use crate::support;

/// The sums over all keepers of this process, by store: keepers of one store share its gauges. Absolute values are
/// set, so an exporter that is installed late shows the right ones, and under the lock, so the latest one wins.
static SUMS: Mutex<BTreeMap<Arc<str>, Share>> = Mutex::new(BTreeMap::new());

#[derive(Clone, Copy, PartialEq, Eq, Default)]
struct Share {
    held: usize,
    waiting: usize,
    /// How many keepers the store fails.
    failing: usize,
    keepers: usize,
}

impl Share {
    fn show(self, store: &str) {
        let set = |name: &'static str, value: usize| {
            metrics::gauge!(name, "store" => store.to_owned()).set(value as f64);
        };
        set(HELD, self.held);
        set(WAITING, self.waiting);
        set(STORE_UP, usize::from(self.failing == 0));
    }
}

/// Shows the gauges of all stores, as they are.
pub(super) fn show_all() {
    for (store, sum) in &*support::lock(&SUMS) {
        sum.show(store);
    }
}

/// The share of one keeper in the gauges of its store; taken back when it is dropped.
pub(crate) struct Gauges {
    store: Arc<str>,
    share: Mutex<Share>,
}

impl Gauges {
    pub(crate) fn new(store: &Arc<str>) -> Self {
        let gauges = Self { store: store.clone(), share: Mutex::default() };
        gauges.change(|share| share.keepers = 1);
        gauges
    }

    pub(crate) fn set_counts(&self, held: usize, waiting: usize) {
        self.change(|share| (share.held, share.waiting) = (held, waiting));
    }

    pub(crate) fn set_failing(&self, failing: bool) {
        self.change(|share| share.failing = usize::from(failing));
    }

    fn change(&self, change: impl FnOnce(&mut Share)) {
        let mut share = support::lock(&self.share);
        let before = *share;
        change(&mut share);
        let now = *share;
        if now == before {
            return;
        }
        let mut sums = support::lock(&SUMS);
        let sum = sums.entry(self.store.clone()).or_default();
        let moved = |sum: usize, before: usize, now: usize| (sum + now).saturating_sub(before);
        *sum = Share {
            held: moved(sum.held, before.held, now.held),
            waiting: moved(sum.waiting, before.waiting, now.waiting),
            failing: moved(sum.failing, before.failing, now.failing),
            keepers: moved(sum.keepers, before.keepers, now.keepers),
        };
        sum.show(&self.store);
        if sum.keepers == 0 {
            sums.remove(&self.store);
        }
    }
}

impl Drop for Gauges {
    fn drop(&mut self) {
        self.change(|share| *share = Share::default());
    }
}
