//! Distributed locks on the stores people already run: *at most one holder acts on a resource,
//! waiting costs nothing, a holder that lost its lock is told before anybody else may have it,
//! and every grant carries a fencing token that only ever grows.*
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), lockkeeper::Error> {
//! let keeper = lockkeeper::connect("memory:").await?;
//!
//! let stock = keeper.mutex("stock/42");
//! let guard = stock.lock().await?;                         // waits in the queue; renewed by itself
//! keeper.fence("stock/42").admit(guard.token()).await?;    // the resource rejects older tokens
//! guard.release().await?;                                  // an error if it was lost before
//! # Ok(()) }
//! ```
//!
//! # Stores
//!
//! The store is chosen by URL, one string everywhere:
//!
//! | URL | store | feature |
//! |---|---|---|
//! | `memory:` | in this process, a new one for each keeper | |
//! | `memory:NAME` | in this process, shared by name | |
//! | `sqlite:PATH` | in a file, shared by the processes of this host | `sqlite` |
//! | `postgres://HOST:PORT/DATABASE` | on PostgreSQL | `postgres`, and `postgres-tls` over TLS |
//! | `mysql://HOST:PORT/DATABASE`, `mariadb://…` | on MariaDB or MySQL | `mysql`, and `mysql-tls` over TLS |
//! | `quorum:URL,URL,URL` | on three, five or seven of the others, of which a majority decides | `quorum` |
//! | `redis://HOST:PORT/DB`, `redis+unix:///PATH` | on one Redis server | `redis` |
//! | `redis+sentinel://HOST,HOST/MASTER`, `redis+cluster://HOST,HOST` | on Redis behind sentinels, or a cluster | `redis` |
//! | `rediss://…`, `rediss+sentinel://…`, `rediss+cluster://…` | the same over TLS | `redis-tls` |
//! | `zookeeper://HOST:PORT,HOST:PORT/CHROOT` | on ZooKeeper | `zookeeper` |
//!
//! # Primitives
//!
//! [`Keeper`] makes them: [`mutex`](Keeper::mutex), [`rw_lock`](Keeper::rw_lock),
//! [`semaphore`](Keeper::semaphore), [`latch`](Keeper::latch), [`election`](Keeper::election),
//! [`segmented`](Keeper::segmented), [`fence`](Keeper::fence); [`all`] takes several mutexes at
//! once. [`blocking`] has the same for threads, [`testing`] a world with virtual time.
//!
//! The types that programs use every day are here at the root. Modules have the rest: [`error`], [`lock`], [`store`],
//! [`telemetry`], [`clock`].

pub use lockkeeper_core::{
    AcquireError, Election, Error, Fence, Guard, Keeper, KeeperBuilder, Latch, Leadership, Lease, Lost,
    Mutex, Owner, Permit, ReadGuard, ReleaseError, RwLock, Segmented, Semaphore, StoreError, Token,
    WriteGuard, all, clock, memory, support, testing,
};

pub mod doctor;
pub mod schema;
pub mod url;

/// Every error, and the place and reason that it names.
pub mod error {
    pub use lockkeeper_core::{
        AcquireError, At, DowngradeError, Error, FenceError, IntoLeaseError, InvalidInput, LatchError,
        LeaseError, Lost, ReleaseError, StoreError, StoreErrorKind,
    };
}

/// Every primitive, its guards and their contents, and the states that primitives report.
pub mod lock {
    pub use lockkeeper_core::{
        AcquiredLease, Adopted, All, AllGuard, Election, Exclusive, Fence, Guard, Latch, LatchState, Leader,
        Leadership, Leads, Lease, LeaseClaim, Mutex, Observer, Owner, Permit, Permits, Read, ReadGuard,
        RwLock, Segmented, Semaphore, StoredFence, Write, WriteGuard, all,
    };
}

/// The parts of a store, for programs that look into one or implement their own.
pub mod store {
    pub use lockkeeper_core::{Capability, Capacity, ContenderId, KeeperId, Name, Survives, Units, store::*};
}

/// Lockkeeper's reports about itself: metrics, events, and the numbers of a keeper.
pub mod telemetry {
    pub use lockkeeper_core::{Stats, telemetry::*};
}

#[cfg(feature = "quorum")]
pub mod quorum;

/// The same primitives for threads, with [`connect`](blocking::connect) by URL.
pub mod blocking {
    pub use lockkeeper_core::blocking::*;

    /// Connects to the store that `url` names.
    ///
    /// ```
    /// # fn main() -> Result<(), lockkeeper::Error> {
    /// let keeper = lockkeeper::blocking::connect("memory:")?;
    /// let guard = keeper.mutex("stock/42").lock()?;
    /// # drop(guard);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`lockkeeper::connect`](crate::connect).
    pub fn connect(url: &str) -> Result<Keeper, crate::StoreError> {
        Keeper::build(crate::builder(url)?)
    }
}

/// Connects to the store that `url` names, with the default settings.
///
/// # When the store is unreachable
/// Fails after about the request limit (2 s).
///
/// # Errors
/// [`StoreError`] names the fault and the remedy, but never a password.
pub async fn connect(url: &str) -> Result<Keeper, StoreError> {
    builder(url)?.connect().await
}

/// A keeper to be, for the store that `url` names.
///
/// ```
/// # use std::time::Duration;
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), lockkeeper::Error> {
/// let keeper = lockkeeper::builder("memory:")?.request_limit(Duration::from_secs(1)).connect().await?;
/// # Ok(()) }
/// ```
///
/// # Errors
/// [`StoreError`] if no store has such URLs.
pub fn builder(url: &str) -> Result<KeeperBuilder, StoreError> {
    Ok(Keeper::builder(url::connector(url)?))
}

/// The README's code is compiled and run.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;
