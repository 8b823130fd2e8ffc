//! A sample: what one listing of the store showed.

use std::sync::Arc;

use lockkeeper::store::{CountState, Kind, Name, ResourceView};

use crate::clock::Millis;

/// What one listing of the store showed.
#[derive(Clone, Debug)]
pub struct Sample {
    /// When it was taken.
    pub at: Millis,
    /// How long the listing took.
    pub took: Millis,
    /// How long after it the next one is taken.
    pub every: Millis,
    /// Everything that is held or waited for, in order of name.
    pub locks: Vec<Arc<ResourceView>>,
    /// The latches, in order of name.
    pub latches: Vec<(Name, CountState)>,
}

/// The kind of a lock: contenders agree on the capacity, and so nearly always on the kind.
pub(crate) fn kind(view: &ResourceView) -> Option<Kind> {
    let holder = view.holders.first().map(|holder| holder.details.kind);
    holder.or(view.waiters.first().map(|waiter| waiter.details.kind))
}
