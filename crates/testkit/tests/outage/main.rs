//! Outages: a store that does not answer never looks like a busy lock, and logs stay short however many locks there are.

mod log;
mod logs;
mod waits;

use std::{sync::Arc, time::Duration};

use lockkeeper_core::{AcquireError, Keeper, StoreErrorKind, testing::Virtual};
use lockkeeper_testkit::faulty::{Faults, Network, faulty};
use tokio::task::JoinHandle;

pub(crate) const NAME: &str = "stock/42";

pub(crate) fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

pub(crate) fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

pub(crate) const DEAD: Faults = Faults { lost_request: 1000, usual: 0, ..Faults::NONE };
pub(crate) const WELL: Faults = Faults { usual: 0, ..Faults::NONE };

/// A keeper behind a network that a test breaks and mends.
pub(crate) async fn behind(world: &Virtual, network: &Arc<Network>) -> Keeper {
    let store = faulty(world.server.connector("memory:"), network.clone());
    Keeper::builder(store).virtual_time(world.clock.clock()).connect().await.expect("a good network")
}

pub(crate) fn is_outage(error: &AcquireError) -> bool {
    matches!(error, AcquireError::Store(error) if error.kind() == StoreErrorKind::Unreachable)
        && error.to_string().contains("gave up after")
        && error.to_string().contains(NAME)
}

pub(crate) async fn ended<T>(tasks: Vec<JoinHandle<T>>) -> Vec<T> {
    let mut results = Vec::new();
    for task in tasks {
        results.push(task.await.expect("no panic"));
    }
    results
}
