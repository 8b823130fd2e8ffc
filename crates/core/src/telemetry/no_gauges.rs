//! Stands in for the gauges without the feature `metrics`.

use std::sync::Arc;

pub(crate) struct Gauges;

impl Gauges {
    pub(crate) fn new(_store: &Arc<str>) -> Self {
        Self
    }

    #[expect(clippy::unused_self, reason = "with the feature it is used")]
    pub(crate) fn set_counts(&self, _held: usize, _waiting: usize) {}

    #[expect(clippy::unused_self, reason = "with the feature it is used")]
    pub(crate) fn set_failing(&self, _failing: bool) {}
}
