//! Mutual exclusion.

use std::time::Duration;

use super::{
    guard::Guard,
    handle::{Handle, lease_settings},
    owner::Owner,
};
use crate::{engine::patience::Patience, error::AcquireError};

/// A lock that one holder has at a time, over all processes that use the store.
///
/// It guarantees that at most one holder acts on its deadline, and tells a holder that lost it
/// before anybody else may have it; it does not stop a write that a paused holder has already
/// sent: show the [token](Guard::token) to the resource for that.
///
/// A mutex is the write side of the [read-write lock](crate::RwLock) of the same name. A handle
/// is cheap to clone and to make.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), lockkeeper::Error> {
/// # let keeper = lockkeeper::testing::keeper().await;
/// let stock = keeper.mutex("stock/42");
/// let guard = stock.lock().await?;
/// assert!(stock.try_lock().await?.is_none());
/// guard.release().await?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct Mutex {
    pub(crate) handle: Handle,
}

impl Mutex {
    lease_settings!();

    /// Exact arrival order over all tasks and processes. Without it, order is exact among
    /// processes and tasks of one process may hand the lock on among themselves for a moment,
    /// which is much faster.
    pub fn fifo(self) -> Self {
        Self { handle: self.handle.with(|terms| terms.fifo = true) }
    }

    /// Waits in the queue until the lock is held.
    ///
    /// # Fairness
    /// First come, first served among processes; see [`fifo`](Self::fifo).
    ///
    /// # Cancel safety
    /// Dropping the future leaves the queue; a grant that came in the meantime is given back.
    ///
    /// # When the store is unreachable
    /// Goes on trying for the keeper's [outage limit](crate::KeeperBuilder::outage_limit) of 30 s, then fails with
    /// [`Store`](AcquireError::Store). An event says when that begins and when it is over.
    ///
    /// # Errors
    /// See [`AcquireError`]; never [`TimedOut`](AcquireError::TimedOut).
    pub async fn lock(&self) -> Result<Guard, AcquireError> {
        self.handle.wait(self.handle.terms(), "lock").await.map(Guard::new)
    }

    /// Takes the lock if it is free and nobody waits; `None` if not. Never waits in the queue.
    ///
    /// # Cancel safety
    /// Dropping the future gives a grant back.
    ///
    /// # When the store is unreachable
    /// Fails after one request limit.
    ///
    /// # Errors
    /// See [`AcquireError`].
    pub async fn try_lock(&self) -> Result<Option<Guard>, AcquireError> {
        Ok(self.handle.acquire(self.handle.terms(), Patience::Try, "try_lock").await?.map(Guard::new))
    }

    /// Waits in the queue, but not longer than `limit`.
    ///
    /// # Fairness
    /// As [`lock`](Self::lock).
    ///
    /// # Cancel safety
    /// As [`lock`](Self::lock).
    ///
    /// # When the store is unreachable
    /// Goes on trying until `limit` or the keeper's [outage limit](crate::KeeperBuilder::outage_limit) of 30 s, and fails
    /// with [`Store`](AcquireError::Store): also if `limit` passes and the last that was heard from the store is a
    /// failure, or nothing was heard at all.
    ///
    /// # Errors
    /// [`TimedOut`](AcquireError::TimedOut) when the limit passes while others hold it; see [`AcquireError`].
    pub async fn lock_within(&self, limit: Duration) -> Result<Guard, AcquireError> {
        self.handle.wait_within(self.handle.terms(), limit, "lock").await.map(Guard::new)
    }

    /// As [`lock`](Self::lock), but re-entrant: if `owner` holds this mutex already, this is one
    /// more guard on the same hold, with the same token and without asking the store.
    ///
    /// # Errors
    /// See [`AcquireError`].
    pub async fn lock_as(&self, owner: &Owner) -> Result<Guard, AcquireError> {
        owner.wait(&self.handle, self.handle.terms(), "lock").await.map(Guard::share)
    }

    /// As [`lock_as`](Self::lock_as), but waits no longer than `limit`.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), lockkeeper::Error> {
    /// # let keeper = lockkeeper::testing::keeper().await;
    /// let (owner, stock) = (keeper.owner(), keeper.mutex("stock/42"));
    /// let outer = stock.lock_as_within(&owner, Duration::from_secs(1)).await?;
    /// assert!(stock.try_lock_as(&owner).await?.is_some());             // entered again
    /// assert!(stock.try_lock_as(&keeper.owner()).await?.is_none());    // another owner
    /// # drop(outer);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`TimedOut`](AcquireError::TimedOut) when the limit passes; see [`AcquireError`].
    pub async fn lock_as_within(&self, owner: &Owner, limit: Duration) -> Result<Guard, AcquireError> {
        owner.wait_within(&self.handle, self.handle.terms(), limit, "lock").await.map(Guard::share)
    }

    /// As [`lock_as`](Self::lock_as), but never waits: `None` if somebody else holds it, and also while another call
    /// of the same owner is acquiring it.
    ///
    /// # Errors
    /// See [`AcquireError`].
    pub async fn try_lock_as(&self, owner: &Owner) -> Result<Option<Guard>, AcquireError> {
        let entered = owner.enter(&self.handle, self.handle.terms(), Patience::Try, "try_lock").await?;
        Ok(entered.map(Guard::share))
    }
}
