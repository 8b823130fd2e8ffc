//! A lease that another process detached, held again.

use std::time::Duration;

use super::{
    guard::{Guard, Leadership, Permit, ReadGuard, WriteGuard},
    guard_errors::IntoLeaseError,
    lease::Lease,
};
use crate::{
    engine::release::OwnedHold,
    error::{LeaseError, Lost, ReleaseError},
    name::Name,
    share::Units,
    store::Kind,
    token::Token,
};

/// The guard of an adopted [`Lease`], by the primitive that the lease was detached from.
///
/// Match on it where the primitive matters. Where it does not, these methods are those of the guard.
///
/// ```
/// use lockkeeper::lock::Adopted;
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), lockkeeper::Error> {
/// # let keeper = lockkeeper::testing::keeper().await;
/// let lease = keeper.semaphore("gpu", 4).detachable().acquire().await?.into_lease().await?;
/// match keeper.adopt(&lease).await? {
///     Adopted::Permits(permit) => permit.release().await?,
///     other => panic!("not a permit: {other:?}"),
/// }
/// # Ok(()) }
/// ```
#[derive(Debug)]
#[must_use = "the lock is released as soon as the guard is dropped"]
#[non_exhaustive]
pub enum Adopted {
    /// A mutex.
    Mutex(Guard),
    /// The read side of a read-write lock.
    Read(ReadGuard),
    /// The write side of a read-write lock.
    Write(WriteGuard),
    /// Permits of a semaphore.
    Permits(Permit),
    /// A leadership. Its value stays at the store; [`Leadership::value`] is empty here.
    Leader(Leadership),
}

/// Calls the same on whichever guard it is.
macro_rules! each {
    ($adopted:expr, $guard:ident => $call:expr) => {
        match $adopted {
            Adopted::Mutex($guard) => $call,
            Adopted::Read($guard) => $call,
            Adopted::Write($guard) => $call,
            Adopted::Permits($guard) => $call,
            Adopted::Leader($guard) => $call,
        }
    };
}

impl Adopted {
    pub(crate) fn new(owned: OwnedHold, kind: Kind, units: Units) -> Self {
        match (kind, units) {
            (Kind::Mutex, _) => Self::Mutex(Guard::new(owned)),
            (Kind::RwLock, Units::All) => Self::Write(Guard::new(owned)),
            (Kind::RwLock, Units::Count(_)) => Self::Read(Guard::new(owned)),
            (Kind::Semaphore, _) => Self::Permits(Guard::new(owned)),
            (Kind::Election, _) => Self::Leader(Guard::new(owned)),
        }
    }

    /// Returns the name of the held lock.
    pub fn name(&self) -> &Name {
        each!(self, guard => guard.name())
    }

    /// The fencing token; see [`Guard::token`].
    pub fn token(&self) -> Token {
        each!(self, guard => guard.token())
    }

    /// The smallest token that still held when this was granted; see [`Guard::floor`].
    pub fn floor(&self) -> Token {
        each!(self, guard => guard.floor())
    }

    /// Whether it is held; see [`Guard::is_held`].
    pub fn is_held(&self) -> bool {
        each!(self, guard => guard.is_held())
    }

    /// How long it is certainly still held; see [`Guard::remaining`].
    pub fn remaining(&self) -> Duration {
        each!(self, guard => guard.remaining())
    }

    /// Waits until it is lost; see [`Guard::lost`].
    ///
    /// # Cancel safety
    /// Dropping the future has no effect.
    pub async fn lost(&self) -> Lost {
        each!(self, guard => guard.lost().await)
    }

    /// Returns the reason of the loss beyond [`Lost`]; see [`Guard::lost_because`].
    pub fn lost_because(&self) -> Option<String> {
        each!(self, guard => guard.lost_because())
    }

    /// Makes the lease last at least `length` from now; see [`Guard::extend`].
    ///
    /// # Cancel safety
    /// Dropping the future leaves it open whether the lease was extended.
    ///
    /// # Errors
    /// As [`Guard::extend`].
    pub async fn extend(&self, length: Duration) -> Result<(), LeaseError> {
        each!(self, guard => guard.extend(length).await)
    }

    /// Releases it; see [`Guard::release`].
    ///
    /// # Cancel safety
    /// Dropping the future does not stop the release.
    ///
    /// # Errors
    /// As [`Guard::release`].
    pub async fn release(self) -> Result<(), ReleaseError> {
        each!(self, guard => guard.release().await)
    }

    /// Detaches it again; see [`Guard::into_lease`].
    ///
    /// # Cancel safety
    /// Dropping the future releases the lock.
    ///
    /// # Errors
    /// As [`Guard::into_lease`].
    pub async fn into_lease(self) -> Result<Lease, IntoLeaseError<Self>> {
        match self {
            Self::Mutex(guard) => guard.into_lease().await.map_err(|error| error.map(Self::Mutex)),
            Self::Read(guard) => guard.into_lease().await.map_err(|error| error.map(Self::Read)),
            Self::Write(guard) => guard.into_lease().await.map_err(|error| error.map(Self::Write)),
            Self::Permits(guard) => guard.into_lease().await.map_err(|error| error.map(Self::Permits)),
            Self::Leader(guard) => guard.into_lease().await.map_err(|error| error.map(Self::Leader)),
        }
    }
}
