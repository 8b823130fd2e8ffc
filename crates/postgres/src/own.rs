//! The keeper that requests are of: what all of its work at the server needs to know.

use std::sync::Arc;

use lockkeeper_core::{KeeperId, store::WakeSink};

use crate::{positions::Positions, told::Told};

/// Whose requests these are, and where its own wakes go.
#[derive(Clone, Debug)]
pub(crate) struct Own {
    pub(crate) keeper: KeeperId,
    pub(crate) wakes: WakeSink,
    /// What was warned of.
    pub(crate) told: Arc<Told>,
    /// When its positions in queues were last written.
    pub(crate) positions: Arc<Positions>,
}

impl Own {
    pub(crate) fn new(keeper: KeeperId, wakes: WakeSink) -> Self {
        Self { keeper, wakes, told: Arc::default(), positions: Arc::default() }
    }
}
