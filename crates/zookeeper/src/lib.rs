//! The ZooKeeper store: locks kept by a quorum, one ephemeral node per claim.
//!
//! `zookeeper://HOST:PORT,HOST:PORT/CHROOT` is all it takes. Before the hosts may state `USER:PASSWORD@`, and behind a
//! question mark options, with `&` between them:
//!
//! | option | meaning |
//! |---|---|
//! | `namespace=NAME` | the node under the chroot that everything is kept in; `lockkeeper` by default |
//! | `session=10s` | how long a session lasts without a sign of life: what a killed process may cost others |
//! | `tick=2s` | the servers' `tickTime`, or more: it is taken off what a session is sure to last. Servers that keep no short sessions show that theirs is longer, which is allowed for; those with a `minSessionTimeout` below two ticks do not |
//! | `auth=digest`, `auth=sasl` | how user and password are shown: ZooKeeper's own way (by default) or DIGEST-MD5 |
//! | `tls=true` | encrypted, to servers whose certificates come from `ca=FILE`; with `cert=FILE&key=FILE` an own one |
//!
//! # How it works
//!
//! * **A claim is an ephemeral sequential node** whose name says who claims how much of what. One listing of the
//!   nodes says who is admitted, by the same function as in the [model](lockkeeper_core::Capacity::fits).
//! * **A listing decides.** Nobody comes in before a node that is there, so whoever is admitted by a listing with its own
//!   node in it stays so, for as long as its session lives. The number of a grant is that of the transaction that made
//!   the node.
//! * **Nobody wakes a herd.** Who waits watches the one node that lets it in. Only the first who waits for permits
//!   watches all holders, since any of them may make room. If a keeper waits in more than about a thousand places, the
//!   last of them look once a second instead.
//! * **A session has a deadline,** moved only by answers that took the quorum. It is never later than the earliest
//!   moment at which the servers may end the session. Past it nothing is claimed or confirmed any more; the keeper
//!   goes on in a new session. A lost connection alone loses nothing.
//! * **Leases** end by their keeper while it lives, and with its session when it does not; so the shortest lease is
//!   that of a session. Those that may outlive their process have a session of their own, and can be no longer than
//!   the servers' `maxSessionTimeout`.
//!
//! The layout is written down in the specification, `docs/design.md`.
//!
//! # Limits
//!
//! * ZooKeeper 3.6 or later, for nodes that vanish with their last child and for many nodes read by one request.
//! * Each lease that may outlive its process takes a connection of its own while its process lives. Servers allow 60
//!   per client address unless `maxClientCnxns` says more.
//! * Somebody who tries a lock and loses a race for it stands in line for a moment: another who tries just then may
//!   be told that it is busy although its holder has gone.
//! * Tokens fall if the servers' data is wiped or restored from a backup.

mod changes;
mod claims;
mod codec;
mod connect;
mod counts;
mod deadline;
mod detached;
mod dial;
mod evict;
mod fences;
mod groups;
mod inspect;
mod keeper;
mod layout;
mod limits;
mod listing;
mod memory;
mod min_hold;
mod namespace;
mod nodes;
mod queue;
mod reaper;
mod reconnect;
mod renewals;
mod session;
mod settings;
mod stepwise_claims;
mod stepwise_leaves;
mod store;
mod task;
mod tls;
mod transaction;
mod trouble;
mod waiter;
mod wakes;
mod watch_budget;

use lockkeeper_core::{StoreError, store::Connector};

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
    Ok(connect::connector(settings::Settings::parse(url)?))
}
