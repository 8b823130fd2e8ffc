//! A number of permits, leased.

use std::{sync::Arc, time::Duration};

use super::{
    guard::{Guard, Permit},
    handle::{Handle, lease_settings},
};
use crate::{
    engine::{patience::Patience, terms::Terms},
    error::AcquireError,
    share::Units,
};

/// So many permits over all processes. They are leased, so a crash gives them back; with
/// [`expires_after`](Self::expires_after) they end by themselves.
///
/// All users of one name must give the same number.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), lockkeeper::Error> {
/// # let keeper = lockkeeper::testing::keeper().await;
/// let gpus = keeper.semaphore("gpu", 4);
/// let three = gpus.acquire_many(3).await?;
/// assert!(gpus.try_acquire_many(2).await?.is_none());
/// # drop(three);
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct Semaphore {
    pub(crate) handle: Handle,
}

impl Semaphore {
    lease_settings!();

    fn many(&self, permits: u32, operation: &'static str) -> Result<Arc<Terms>, AcquireError> {
        let units = Units::count(permits)
            .map_err(|why| AcquireError::Invalid { at: self.handle.at(operation), why })?;
        Ok(Arc::new(Terms { units, ..(**self.handle.terms()).clone() }))
    }

    /// Waits for one permit.
    ///
    /// # Fairness
    /// First come, first served: a large request is not starved by small ones behind it.
    ///
    /// # Cancel safety, when the store is unreachable, errors
    /// As [`Mutex::lock`](crate::Mutex::lock).
    pub async fn acquire(&self) -> Result<Permit, AcquireError> {
        self.acquire_many(1).await
    }

    /// Takes one permit if there is one and nobody waits. Otherwise as
    /// [`Mutex::try_lock`](crate::Mutex::try_lock).
    ///
    /// # Errors
    /// See [`AcquireError`].
    pub async fn try_acquire(&self) -> Result<Option<Permit>, AcquireError> {
        self.try_acquire_many(1).await
    }

    /// Waits for one permit, at most `limit`. Otherwise as [`acquire`](Self::acquire).
    ///
    /// # Errors
    /// [`TimedOut`](AcquireError::TimedOut) when the limit passes.
    pub async fn acquire_within(&self, limit: Duration) -> Result<Permit, AcquireError> {
        self.acquire_many_within(1, limit).await
    }

    /// Waits for several permits at once. Otherwise as [`acquire`](Self::acquire).
    ///
    /// # Errors
    /// [`Invalid`](AcquireError::Invalid) for 0 or more than there are.
    pub async fn acquire_many(&self, permits: u32) -> Result<Permit, AcquireError> {
        let terms = self.many(permits, "acquire")?;
        self.handle.wait(&terms, "acquire").await.map(Guard::new)
    }

    /// Takes several permits at once if they are there. Otherwise as
    /// [`try_acquire`](Self::try_acquire).
    ///
    /// # Errors
    /// [`Invalid`](AcquireError::Invalid) for 0 or more than there are.
    pub async fn try_acquire_many(&self, permits: u32) -> Result<Option<Permit>, AcquireError> {
        let terms = self.many(permits, "try_acquire")?;
        Ok(self.handle.acquire(&terms, Patience::Try, "try_acquire").await?.map(Guard::new))
    }

    /// Waits for several permits at once, at most `limit`. Otherwise as [`acquire`](Self::acquire).
    ///
    /// # Errors
    /// [`TimedOut`](AcquireError::TimedOut) when the limit passes.
    pub async fn acquire_many_within(&self, permits: u32, limit: Duration) -> Result<Permit, AcquireError> {
        let terms = self.many(permits, "acquire")?;
        self.handle.wait_within(&terms, limit, "acquire").await.map(Guard::new)
    }
}
