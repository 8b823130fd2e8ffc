//! Which run of the server is at the other end of each connection.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
};

use lockkeeper_core::support;

use crate::{connection::Generation, servers::Priority};

/// The run ids at the other ends of connections.
#[derive(Debug, Default)]
pub(crate) struct RunIds(Mutex<HashMap<Priority, (Generation, Arc<str>)>>);

impl RunIds {
    /// The run at the other end of this connection, if it was asked for.
    pub(crate) fn at(&self, priority: Priority, connection: Generation) -> Option<Arc<str>> {
        let known = support::lock(&self.0).get(&priority).cloned();
        known.filter(|(of, _)| *of == connection).map(|(_, run_id)| run_id)
    }

    pub(crate) fn learn(&self, priority: Priority, connection: Generation, run_id: Arc<str>) {
        support::lock(&self.0).insert(priority, (connection, run_id));
    }
}
