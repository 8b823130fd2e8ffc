//! What a caller asked for, fixed when a handle is made and shared by all its acquisitions.

use std::{sync::Arc, time::Duration};

use crate::{
    capability::Capability,
    deadline,
    error::InvalidInput,
    share::{Capacity, Units},
    store::{Kind, Store},
};

/// The lease of a lock that says nothing else.
pub(crate) const DEFAULT_LEASE: Duration = Duration::from_secs(30);

/// The settings of a handle. Two acquisitions with equal terms may hand a grant on.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Terms {
    pub(crate) kind: Kind,
    pub(crate) units: Units,
    pub(crate) capacity: Capacity,
    pub(crate) lease: Duration,
    /// Whether the watchdog renews it; otherwise the lease is fixed.
    pub(crate) renewed: bool,
    pub(crate) max_hold: Option<Duration>,
    pub(crate) min_hold: Duration,
    pub(crate) detachable: bool,
    /// Whether every acquisition has its own position in the store's queue, instead of one per process.
    pub(crate) fifo: bool,
    pub(crate) label: Option<Arc<str>>,
    pub(crate) value: Option<Arc<str>>,
}

impl Terms {
    pub(crate) fn new(kind: Kind, units: Units, capacity: Capacity) -> Self {
        Self {
            kind,
            units,
            capacity,
            lease: DEFAULT_LEASE,
            renewed: true,
            max_hold: None,
            min_hold: Duration::ZERO,
            detachable: false,
            fifo: kind != Kind::Mutex,
            label: None,
            value: None,
        }
    }

    /// Whether tasks of this process wait behind one waiter.
    pub(crate) fn shares_a_waiter(&self) -> bool {
        !self.fifo
    }

    /// Whether a grant may pass to another task of this process without asking the store.
    pub(crate) fn hands_on(&self) -> bool {
        self.shares_a_waiter() && self.min_hold.is_zero()
    }

    /// The lease that a claim asks for. A minimum hold must not end with an early crash.
    pub(crate) fn claim_lease(&self) -> Duration {
        self.lease.max(self.min_hold)
    }

    /// The lease that a renewal asks for when `rest` is left of `max_hold`: the full one, but no more than that needs;
    /// zero, which only confirms, if the lease is fixed.
    pub(crate) fn lease_to_ask_for(&self, rest: Duration) -> Duration {
        if !self.renewed {
            return Duration::ZERO;
        }
        // A deadline stays a margin short of its lease. With that on top this renewal reaches the limit and is the
        // last, and it is the limit that ends the hold.
        self.lease.min(rest.saturating_add(deadline::margin(rest) * 2))
    }

    /// Refuses leases that `store` does not keep.
    pub(crate) fn check_lease(&self, store: &dyn Store) -> Result<(), InvalidInput> {
        let Capability { min_lease: min, max_lease: max, .. } = store.capability();
        for lease in [self.lease, self.claim_lease()] {
            if lease < *min || lease > *max {
                let mut message =
                    format!("a lease of {lease:?} is outside what this store keeps; give {min:?} to {max:?}");
                if let Some(change) = store.shorter_leases().filter(|_| lease < *min) {
                    message.push_str(&format!(" ({change})"));
                }
                return Err(InvalidInput::new(message));
            }
        }
        Ok(())
    }

    /// Refuses what can never work on `store`.
    pub(crate) fn check(&self, store: &dyn Store) -> Result<(), InvalidInput> {
        self.check_lease(store)?;
        if !self.renewed && self.lease < self.min_hold {
            return Err(InvalidInput::new(
                "a lock that expires before its min_hold contradicts itself; raise expires_after",
            ));
        }
        if self.max_hold.is_some_and(|most| most < self.min_hold.max(Duration::from_millis(1))) {
            return Err(InvalidInput::new("max_hold is zero or below min_hold; raise it"));
        }
        if !self.capacity.allows(self.units) {
            return Err(InvalidInput::new(format!(
                "{} permits were asked for but there are only {}; ask for fewer",
                self.units, self.capacity
            )));
        }
        let longest = 4096;
        for (what, text) in [("label", &self.label), ("value", &self.value)] {
            if text.as_ref().is_some_and(|text| text.len() > longest) {
                return Err(InvalidInput::new(format!(
                    "the {what} is longer than {longest} bytes; shorten it"
                )));
            }
        }
        Ok(())
    }
}
