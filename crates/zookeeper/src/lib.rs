//! The ZooKeeper store: locks kept by a quorum, one ephemeral node per claim.
//!
//! `zookeeper://HOST:PORT,HOST:PORT/CHROOT` is all it takes.

mod alone;
mod claims;
mod counts;
mod leases;
mod line;
mod note;
mod operators;
mod path;
mod place;
mod session;
mod shared;
mod store;
mod table;
mod trouble;
mod waiting;
mod wakes;

use lockkeeper_core::{StoreError, store::Connector};

pub use store::CAPABILITY;

/// Connects to the servers that `url` names.
///
/// # Errors
/// [`StoreErrorKind::Config`](lockkeeper_core::StoreErrorKind::Config) if `url` is not understood.
pub fn connector(url: &str) -> Result<Connector, StoreError> {
    Ok(store::connector(place::Place::parse(url)?))
}
