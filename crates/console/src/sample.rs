//! A sample: the contents of one listing of the store.

use std::sync::Arc;

use lockkeeper::store::{CountState, Kind, Name, ResourceView};

use crate::clock::Millis;

/// The contents of one listing of the store.
#[derive(Clone, Debug)]
pub struct Sample {
    /// When it was taken.
    pub at: Millis,
    /// How long the listing took.
    pub took: Millis,
    /// The pause until the next one.
    pub every: Millis,
    /// All names that are held or waited for, in order.
    pub locks: Vec<Arc<ResourceView>>,
    /// The latches, in order of their names.
    pub latches: Vec<(Name, CountState)>,
}

/// Returns the kind of a lock: contenders agree on the capacity, and so nearly always on the kind.
pub(crate) fn kind(view: &ResourceView) -> Option<Kind> {
    let holder = view.holders.first().map(|holder| holder.details.kind);
    holder.or(view.waiters.first().map(|waiter| waiter.details.kind))
}
