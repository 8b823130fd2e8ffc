//! The keeper that requests are of: what all of its work at the server needs to know.

use std::sync::Arc;

use lockkeeper_core::{KeeperId, store::WakeSink};

use crate::waits::Waits;

/// Whose requests these are, and where its own wakes go.
#[derive(Clone)]
pub(crate) struct Own {
    pub(crate) keeper: KeeperId,
    /// The id of the store.
    pub(crate) id: Arc<str>,
    pub(crate) prefix: Arc<str>,
    pub(crate) wakes: WakeSink,
    pub(crate) waits: Arc<Waits>,
}
