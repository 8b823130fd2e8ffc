//! The wishes of a caller, fixed when a handle is made and shared by all its acquisitions.

use std::{sync::Arc, time::Duration};

use crate::{
    capability::Capability,
    deadline,
    error::InvalidInput,
    share::{Capacity, Units},
    store::{Attachment, Kind, ProcessInfo, Store},
    support::duration::show,
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
    pub(crate) attachment: Attachment,
    /// Whether every acquisition has its own position in the store's queue, instead of one per process.
    pub(crate) fifo: bool,
    /// The facts that it shows to people. Most show nothing, and a keeper may hold very many.
    pub(crate) shown: Option<Box<Shown>>,
}

/// The facts that a hold shows to people beyond its kind.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Shown {
    pub(crate) label: Option<Arc<str>>,
    pub(crate) value: Option<Arc<str>>,
    /// The process to show, if it is not this one.
    pub(crate) process: Option<Arc<ProcessInfo>>,
}

/// The most bytes of a label, a value or a reason.
pub(crate) const LONGEST_TEXT: usize = 4096;

/// Refuses a lease that `store` does not keep.
pub(crate) fn check_lease(lease: Duration, store: &dyn Store) -> Result<(), InvalidInput> {
    let Capability { min_lease: min, max_lease: max, .. } = store.capability();
    if lease >= *min && lease <= *max {
        return Ok(());
    }
    let (given, min_shown, max_shown) = (show(lease), show(*min), show(*max));
    let mut message =
        format!("a lease of {given} is outside what this store keeps; give {min_shown} to {max_shown}");
    if let Some(change) = store.shorter_leases().filter(|_| lease < *min) {
        message.push_str(&format!(" ({change})"));
    }
    Err(InvalidInput::new(message))
}

/// Refuses a text that is too long to be kept with a hold.
pub(crate) fn check_text(what: &str, text: Option<&str>) -> Result<(), InvalidInput> {
    if text.is_some_and(|text| text.len() > LONGEST_TEXT) {
        let message = format!("the {what} is longer than {LONGEST_TEXT} bytes; shorten it");
        return Err(InvalidInput::new(message));
    }
    Ok(())
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
            attachment: Attachment::Process,
            fifo: kind != Kind::Mutex,
            shown: None,
        }
    }

    /// Returns the facts that it shows, if any.
    pub(crate) fn shown(&self) -> Option<&Shown> {
        self.shown.as_deref()
    }

    /// Returns the facts that it is to show, for a change.
    pub(crate) fn show(&mut self) -> &mut Shown {
        self.shown.get_or_insert_default()
    }

    /// Returns the attachment that a claim on these terms asks for. A hold with a minimum may outlive its process.
    pub(crate) fn claim_attachment(&self) -> Attachment {
        match self.attachment {
            Attachment::Process if !self.min_hold.is_zero() => Attachment::Detachable,
            attachment => attachment,
        }
    }

    /// Whether a hold may be acted upon only once the store knows that its owner knows: an unconfirmed grant ends with
    /// its first short lease.
    pub(crate) fn needs_confirming(&self) -> bool {
        !self.min_hold.is_zero() || self.attachment == Attachment::Detached
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
        check_lease(self.lease, store)?;
        check_lease(self.claim_lease(), store)
    }

    /// Refuses terms that can never work on `store`.
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
        if self.capacity != Capacity::All {
            check_counts_permits(store)?;
        }
        let Some(shown) = self.shown() else { return Ok(()) };
        check_text("label", shown.label.as_deref())?;
        check_text("value", shown.value.as_deref())
    }
}

/// Refuses semaphores and latches where `store` has none.
pub(crate) fn check_counts_permits(store: &dyn Store) -> Result<(), InvalidInput> {
    if store.capability().counts_permits {
        return Ok(());
    }
    Err(InvalidInput::new(
        "this store has no semaphores and no latches; use a mutex, or a store that has them",
    ))
}
