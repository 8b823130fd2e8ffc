//! Counts things up to a limit. Touches nothing else.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

/// A count with a limit, which each call gives.
#[derive(Debug, Default)]
pub(crate) struct Count(AtomicUsize);

impl Count {
    /// Counts one more until the returned value is dropped. `None` if there are `most` already.
    pub(crate) fn one_of(self: &Arc<Self>, most: usize) -> Option<OneOf> {
        let more = |count| (count < most).then_some(count + 1);
        self.0.fetch_update(Ordering::AcqRel, Ordering::Acquire, more).ok()?;
        Some(OneOf(self.clone()))
    }
}

/// One that counts.
pub(crate) struct OneOf(Arc<Count>);

impl Drop for OneOf {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::AcqRel);
    }
}
