//! The keeper that makes requests, with the facts that all of its work at the server needs.

use std::sync::Arc;

use lockkeeper_core::{KeeperId, store::WakeSink};

use lockkeeper_rows::ConfirmedOpenings;

use crate::{server::ServerFacts, waits::Waits};

/// The keeper that makes requests, with its store and the sink of its own wakes.
#[derive(Clone)]
pub(crate) struct Own {
    pub(crate) keeper: KeeperId,
    /// The id of the store.
    pub(crate) id: Arc<str>,
    pub(crate) prefix: Arc<str>,
    pub(crate) wakes: WakeSink,
    pub(crate) waits: Arc<Waits>,
    /// The openings of latches that are on disk.
    pub(crate) openings: Arc<ConfirmedOpenings<ServerFacts>>,
}
