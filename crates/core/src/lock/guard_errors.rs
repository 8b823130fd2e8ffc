//! Errors that give the guard back: a failure to change a hold is no reason to lose it.

use std::{error::Error as StdError, fmt};

use crate::error::{Error, LeaseError};

/// The error of a guard that did not become a [`Lease`](crate::Lease), with the guard, which holds as before.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), lockkeeper::Error> {
/// # let keeper = lockkeeper::testing::keeper().await;
/// let guard = keeper.mutex("deploy").lock().await?;    // not detachable
/// let guard = guard.into_lease().await.expect_err("refused").into_guard();
/// assert!(guard.is_held());
/// # Ok(()) }
/// ```
pub struct IntoLeaseError<G> {
    guard: G,
    error: LeaseError,
}

impl<G> IntoLeaseError<G> {
    pub(crate) fn new(guard: G, error: LeaseError) -> Self {
        Self { guard, error }
    }

    pub(crate) fn map<H>(self, wrap: impl FnOnce(G) -> H) -> IntoLeaseError<H> {
        IntoLeaseError { guard: wrap(self.guard), error: self.error }
    }

    /// Returns the cause.
    pub fn error(&self) -> &LeaseError {
        &self.error
    }

    /// The guard. If the store may have detached the hold, the guard holds all the same; the hold then outlives a crash
    /// of this process until its lease ends.
    pub fn into_guard(self) -> G {
        self.guard
    }
}

/// The error of a writer that did not become a reader, with the guard that is left: the writer `W` or the reader `R`.
#[non_exhaustive]
pub enum DowngradeError<W, R> {
    /// Nothing was changed: the guard writes as before, unless it is lost.
    Unchanged {
        /// The guard as it was.
        guard: W,
        /// The cause.
        error: LeaseError,
    },
    /// The store may have let readers in, so this is a reader from now on. Writers and readers that the store has not let
    /// in wait until it is released.
    Unknown {
        /// The guard as a reader.
        guard: R,
        /// The cause.
        error: LeaseError,
    },
}

impl<W, R> DowngradeError<W, R> {
    /// Returns the cause.
    pub fn error(&self) -> &LeaseError {
        match self {
            Self::Unchanged { error, .. } | Self::Unknown { error, .. } => error,
        }
    }

    pub(crate) fn map<V, Q>(
        self,
        writer: impl FnOnce(W) -> V,
        reader: impl FnOnce(R) -> Q,
    ) -> DowngradeError<V, Q> {
        match self {
            Self::Unchanged { guard, error } => DowngradeError::Unchanged { guard: writer(guard), error },
            Self::Unknown { guard, error } => DowngradeError::Unknown { guard: reader(guard), error },
        }
    }
}

impl<G> fmt::Display for IntoLeaseError<G> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl<G> fmt::Debug for IntoLeaseError<G> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.error, f)
    }
}

impl<G> StdError for IntoLeaseError<G> {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.error.source()
    }
}

impl<W, R> fmt::Display for DowngradeError<W, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error().fmt(f)
    }
}

impl<W, R> fmt::Debug for DowngradeError<W, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.error(), f)
    }
}

impl<W, R> StdError for DowngradeError<W, R> {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.error().source()
    }
}

/// The guard is dropped, which releases the lock: for callers that give up with `?`.
impl<G> From<IntoLeaseError<G>> for LeaseError {
    fn from(error: IntoLeaseError<G>) -> Self {
        error.error
    }
}

/// The guard is dropped, which releases the lock: for callers that give up with `?`.
impl<G> From<IntoLeaseError<G>> for Error {
    fn from(error: IntoLeaseError<G>) -> Self {
        error.error.into()
    }
}

/// The guard is dropped, which releases the lock: for callers that give up with `?`.
impl<W, R> From<DowngradeError<W, R>> for LeaseError {
    fn from(error: DowngradeError<W, R>) -> Self {
        match error {
            DowngradeError::Unchanged { error, .. } | DowngradeError::Unknown { error, .. } => error,
        }
    }
}

/// The guard is dropped, which releases the lock: for callers that give up with `?`.
impl<W, R> From<DowngradeError<W, R>> for Error {
    fn from(error: DowngradeError<W, R>) -> Self {
        LeaseError::from(error).into()
    }
}
