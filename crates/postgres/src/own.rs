//! The keeper that sends the requests, as all of its work at the server needs to know it.

use std::sync::Arc;

use lockkeeper_core::{KeeperId, store::WakeSink};

use lockkeeper_rows::ConfirmedOpenings;

use crate::{positions::Positions, told::Told};

/// The keeper that sends the requests, and the sink of its own wakes.
#[derive(Clone, Debug)]
pub(crate) struct Own {
    pub(crate) keeper: KeeperId,
    pub(crate) wakes: WakeSink,
    /// The names that were warned of.
    pub(crate) told: Arc<Told>,
    /// When its positions in queues were last written.
    pub(crate) positions: Arc<Positions>,
    /// The openings of latches that replicas have.
    pub(crate) openings: Arc<ConfirmedOpenings<i64>>,
}

impl Own {
    pub(crate) fn new(keeper: KeeperId, wakes: WakeSink) -> Self {
        let openings = Arc::new(ConfirmedOpenings::new(i64::eq));
        Self { keeper, wakes, told: Arc::default(), positions: Arc::default(), openings }
    }
}
