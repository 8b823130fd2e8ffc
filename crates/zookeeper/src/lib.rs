//! The ZooKeeper store: locks kept by a quorum, one ephemeral node per claim.
//!
//! The URL is `zookeeper://HOST:PORT,HOST:PORT/CHROOT`. A login goes before the hosts as `USER:PASSWORD@`. Options follow a
//! question mark, with `&` between them; `docs/stores.md` in the repository explains each of the [options](OPTIONS).
//!
//! # How it works
//!
//! * **A claim is an ephemeral sequential node.** Its name contains the contender, the units and the capacity. One listing
//!   of the nodes says which claims are admitted, by the same function as in the
//!   [model](lockkeeper_core::Capacity::fits).
//! * **A listing decides.** No claim comes in before a node that is there. So a claim that is admitted by a listing with its
//!   own node in it stays admitted for as long as its session lives. The number of a grant is that of the transaction that
//!   made the node.
//! * **A release wakes one waiter.** A waiter watches the one node that lets it in. Only the first waiter for permits
//!   watches all holders, since any of them may make room. If a keeper has more than about a thousand waiters, the last of
//!   them poll once a second instead.
//! * **A session has a deadline,** which only answers of the quorum move. It is never later than the earliest moment at
//!   which the servers may end the session. Past it nothing is claimed or confirmed any more, and the keeper goes on in a
//!   new session. A lost connection alone loses nothing.
//! * **Leases** are ended by their keeper while it lives, and end with its session when it does not. So the shortest lease
//!   is as long as a session. A lease that may outlive its process has a session of its own, and can be no longer than the
//!   servers' `maxSessionTimeout`.
//!
//! The layout is written down in the specification, `docs/design.md`.
//!
//! # Limits
//!
//! * ZooKeeper 3.6 or later is required, for nodes that are removed after their last child and for reading many nodes with
//!   one request.
//! * Each lease that may outlive its process needs a connection of its own while its process lives. Servers allow 60 per
//!   client address unless `maxClientCnxns` says more.
//! * A try-claim that loses a race is in the queue for a moment. Another try-claim at that moment may be told that the lock
//!   is busy although its holder has gone.
//! * Tokens fall if the servers' data is wiped or restored from a backup.

mod changes;
mod check;
mod claims;
mod codec;
mod connect;
mod counts;
mod deadline;
mod detached;
mod evict;
mod fences;
mod groups;
mod inspect;
mod keeper;
mod layout;
mod limits;
mod listing;
mod min_hold;
mod namespace;
mod nodes;
mod open;
mod queue;
mod reaper;
mod reconnect;
mod records;
mod renewals;
mod session;
mod settings;
mod stepwise_claims;
mod stepwise_leaves;
mod store;
mod tls;
mod transaction;
mod trouble;
mod waiter;
mod wakes;
mod watch_budget;

use lockkeeper_core::{StoreError, store::Connector, support::lease_option};

/// The options that a URL may have.
pub const OPTIONS: &[&str] = settings::OPTIONS;

pub use check::{Examination, Finding, Risk, check, examine};
pub use connect::CAPABILITY;

/// Connects to the servers that `url` names.
///
/// ```
/// assert!(lockkeeper_zookeeper::connector("zookeeper://a:2181,b:2181/app?session=6s").is_ok());
/// assert!(lockkeeper_zookeeper::connector("zookeeper://a?sesion=6s").is_err());
/// ```
///
/// # Errors
/// [`StoreErrorKind::Config`](lockkeeper_core::StoreErrorKind::Config) if `url` is not understood.
pub fn connector(url: &str) -> Result<Connector, StoreError> {
    let (url, lease) = lease_option::take(url)?;
    Ok(connect::connector(settings::Settings::parse(&url)?).with_lease(lease))
}
