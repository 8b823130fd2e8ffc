//! Many readers or one writer.

use std::{sync::Arc, time::Duration};

use super::{
    guard::{Guard, ReadGuard, WriteGuard},
    handle::{Handle, lease_settings},
    owner::Owner,
};
use crate::{
    engine::{patience::Patience, terms::Terms},
    error::AcquireError,
    share::Units,
};

/// A lock that many readers or one writer hold.
///
/// A waiting writer stops later readers, so writers are not starved. A writer may become a reader
/// ([`WriteGuard::downgrade`]); a reader cannot become a writer, because two of them would wait
/// for each other: an [`Owner`] that tries gets an error instead.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), lockkeeper::Error> {
/// # let keeper = lockkeeper::testing::keeper().await;
/// let catalog = keeper.rw_lock("catalog");
/// let (one, two) = (catalog.read().await?, catalog.read().await?);
/// assert!(catalog.try_write().await?.is_none());
/// # drop((one, two));
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct RwLock {
    /// With the terms of the write side.
    pub(crate) handle: Handle,
}

impl RwLock {
    lease_settings!();

    fn reads(&self) -> Arc<Terms> {
        Arc::new(Terms { units: Units::ONE, ..(**self.handle.terms()).clone() })
    }

    /// Waits until it may read.
    ///
    /// # Fairness
    /// First come, first served over all tasks and processes; readers next to each other in the queue
    /// enter together.
    ///
    /// # Cancel safety, when the store is unreachable, errors
    /// As [`Mutex::lock`](crate::Mutex::lock).
    pub async fn read(&self) -> Result<ReadGuard, AcquireError> {
        self.handle.wait(&self.reads(), "read").await.map(Guard::new)
    }

    /// Reads if no writer holds or waits; `None` if one does. Otherwise as
    /// [`Mutex::try_lock`](crate::Mutex::try_lock).
    ///
    /// # Errors
    /// See [`AcquireError`].
    pub async fn try_read(&self) -> Result<Option<ReadGuard>, AcquireError> {
        Ok(self.handle.acquire(&self.reads(), Patience::Try, "try_read").await?.map(Guard::new))
    }

    /// Waits until it may read, at most `limit`. Otherwise as [`read`](Self::read).
    ///
    /// # Errors
    /// [`TimedOut`](AcquireError::TimedOut) when the limit passes.
    pub async fn read_within(&self, limit: Duration) -> Result<ReadGuard, AcquireError> {
        self.handle.wait_within(&self.reads(), limit, "read").await.map(Guard::new)
    }

    /// As [`read`](Self::read), re-entrant: also inside a write of the same owner.
    ///
    /// # Errors
    /// See [`AcquireError`].
    pub async fn read_as(&self, owner: &Owner) -> Result<ReadGuard, AcquireError> {
        owner.wait(&self.handle, &self.reads(), "read").await.map(Guard::share)
    }

    /// Waits until it alone may write.
    ///
    /// # Fairness
    /// First come, first served; later readers wait behind it.
    ///
    /// # Cancel safety, when the store is unreachable, errors
    /// As [`Mutex::lock`](crate::Mutex::lock).
    pub async fn write(&self) -> Result<WriteGuard, AcquireError> {
        self.handle.wait(self.handle.terms(), "write").await.map(Guard::new)
    }

    /// Writes if nobody holds or waits; `None` if somebody does. Otherwise as
    /// [`Mutex::try_lock`](crate::Mutex::try_lock).
    ///
    /// # Errors
    /// See [`AcquireError`].
    pub async fn try_write(&self) -> Result<Option<WriteGuard>, AcquireError> {
        Ok(self.handle.acquire(self.handle.terms(), Patience::Try, "try_write").await?.map(Guard::new))
    }

    /// Waits until it alone may write, at most `limit`. Otherwise as [`write`](Self::write).
    ///
    /// # Errors
    /// [`TimedOut`](AcquireError::TimedOut) when the limit passes.
    pub async fn write_within(&self, limit: Duration) -> Result<WriteGuard, AcquireError> {
        self.handle.wait_within(self.handle.terms(), limit, "write").await.map(Guard::new)
    }

    /// As [`write`](Self::write), re-entrant.
    ///
    /// # Errors
    /// [`UpgradeRefused`](AcquireError::UpgradeRefused) if `owner` holds it for reading: waiting
    /// would be waiting for itself.
    pub async fn write_as(&self, owner: &Owner) -> Result<WriteGuard, AcquireError> {
        owner.wait(&self.handle, self.handle.terms(), "write").await.map(Guard::share)
    }

    /// As [`read_as`](Self::read_as), but waits no longer than `limit`.
    ///
    /// # Errors
    /// [`TimedOut`](AcquireError::TimedOut) when the limit passes.
    pub async fn read_as_within(&self, owner: &Owner, limit: Duration) -> Result<ReadGuard, AcquireError> {
        owner.wait_within(&self.handle, &self.reads(), limit, "read").await.map(Guard::share)
    }

    /// As [`read_as`](Self::read_as), but never waits: `None` if a writer holds it or waits.
    ///
    /// # Errors
    /// See [`AcquireError`].
    pub async fn try_read_as(&self, owner: &Owner) -> Result<Option<ReadGuard>, AcquireError> {
        Ok(owner.enter(&self.handle, &self.reads(), Patience::Try, "try_read").await?.map(Guard::share))
    }

    /// As [`write_as`](Self::write_as), but waits no longer than `limit`.
    ///
    /// # Errors
    /// [`TimedOut`](AcquireError::TimedOut) when the limit passes; also as [`write_as`](Self::write_as).
    pub async fn write_as_within(&self, owner: &Owner, limit: Duration) -> Result<WriteGuard, AcquireError> {
        owner.wait_within(&self.handle, self.handle.terms(), limit, "write").await.map(Guard::share)
    }

    /// As [`write_as`](Self::write_as), but never waits: `None` if somebody else holds it.
    ///
    /// # Errors
    /// As [`write_as`](Self::write_as).
    pub async fn try_write_as(&self, owner: &Owner) -> Result<Option<WriteGuard>, AcquireError> {
        let entered = owner.enter(&self.handle, self.handle.terms(), Patience::Try, "try_write").await?;
        Ok(entered.map(Guard::share))
    }
}
