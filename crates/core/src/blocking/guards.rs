//! The guards for threads. Each call is that of the async API, made on the keeper's thread.

use std::time::Duration;

use super::{On, wait};
use crate::{
    error::{LeaseError, Lost, ReleaseError, StoreError},
    lock::{self, DowngradeError, Exclusive, IntoLeaseError, Leads, Lease, Permits, Read, Write},
    name::Name,
    token::Token,
};

/// A [`Guard`](crate::Guard) for threads.
pub type Guard<M = Exclusive> = On<lock::Guard<M>>;
/// A guard of the read side, for threads.
pub type ReadGuard = Guard<Read>;
/// A guard of the write side, for threads.
pub type WriteGuard = Guard<Write>;
/// A guard of permits, for threads.
pub type Permit = Guard<Permits>;
/// A guard of an election, for threads.
pub type Leadership = Guard<Leads>;
/// A guard of several locks, for threads.
pub type AllGuard = On<lock::AllGuard>;
/// The guard of an adopted lease, for threads.
pub type Adopted = On<lock::Adopted>;

/// As [`Guard`](crate::Guard).
impl<M: 'static> Guard<M> {
    /// Returns the name of the held lock.
    pub fn name(&self) -> &Name {
        self.inner.name()
    }

    /// The fencing token.
    pub fn token(&self) -> Token {
        self.inner.token()
    }

    /// The smallest token that still held when this was granted.
    pub fn floor(&self) -> Token {
        self.inner.floor()
    }

    /// Whether it is held, by this process's own clock.
    pub fn is_held(&self) -> bool {
        self.inner.is_held()
    }

    /// How long it is certainly still held.
    pub fn remaining(&self) -> Duration {
        self.inner.remaining()
    }

    /// Waits until the lock is lost, at most `limit`; `None` if it was not.
    pub fn lost_within(&self, limit: Duration) -> Option<Lost> {
        let lost = self.inner.lost();
        wait(&self.keeper.on, async move { tokio::time::timeout(limit, lost).await.ok() })
    }

    /// Returns the reason of the loss beyond [`Lost`]; see [`Guard::lost_because`](crate::Guard::lost_because).
    pub fn lost_because(&self) -> Option<String> {
        self.inner.lost_because()
    }

    /// Returns the error of the last renewal; see [`Guard::renewal_error`](crate::Guard::renewal_error).
    pub fn renewal_error(&self) -> Option<StoreError> {
        self.inner.renewal_error()
    }

    /// A second guard on the same hold.
    pub fn reenter(&self) -> Result<Self, Lost> {
        Ok(self.keeper.with(self.inner.reenter()?))
    }

    /// Makes the lease last at least `length` from now.
    pub fn extend(&self, length: Duration) -> Result<(), LeaseError> {
        // A second guard travels to the keeper's thread; it ends before this call does.
        match self.inner.reenter() {
            Ok(guard) => wait(&self.keeper.on, async move { guard.extend(length).await }),
            Err(why) => Err(LeaseError::NotHeld { at: self.inner.entry().at("extend"), why }),
        }
    }

    /// Gives the lock back and waits until the store has it.
    pub fn release(self) -> Result<(), ReleaseError> {
        let Self { inner, keeper } = self;
        wait(&keeper.on, async move { inner.release().await })
    }

    /// Turns the guard into a text that another process can adopt.
    pub fn into_lease(self) -> Result<Lease, IntoLeaseError<Self>> {
        let Self { inner, keeper } = self;
        let lease = wait(&keeper.on, async move { inner.into_lease().await });
        lease.map_err(|error| error.map(|guard| keeper.with(guard)))
    }
}

/// As [`Adopted`](crate::Adopted).
impl Adopted {
    /// The fencing token.
    pub fn token(&self) -> Token {
        self.inner.token()
    }

    /// Whether it is held.
    pub fn is_held(&self) -> bool {
        self.inner.is_held()
    }

    /// The guard of the primitive that it was detached from.
    pub fn into_guard(self) -> AdoptedGuard {
        let Self { inner, keeper } = self;
        match inner {
            lock::Adopted::Mutex(guard) => AdoptedGuard::Mutex(keeper.with(guard)),
            lock::Adopted::Read(guard) => AdoptedGuard::Read(keeper.with(guard)),
            lock::Adopted::Write(guard) => AdoptedGuard::Write(keeper.with(guard)),
            lock::Adopted::Permits(guard) => AdoptedGuard::Permits(keeper.with(guard)),
            lock::Adopted::Leader(guard) => AdoptedGuard::Leader(keeper.with(guard)),
        }
    }

    /// Releases it and waits until the store has it.
    ///
    /// # Errors
    /// As [`Guard::release`](crate::Guard::release).
    pub fn release(self) -> Result<(), ReleaseError> {
        let Self { inner, keeper } = self;
        wait(&keeper.on, async move { inner.release().await })
    }
}

/// The guard of an adopted lease, for threads: one variant per primitive.
#[derive(Debug)]
#[non_exhaustive]
pub enum AdoptedGuard {
    /// A mutex.
    Mutex(Guard),
    /// The read side of a read-write lock.
    Read(ReadGuard),
    /// The write side of a read-write lock.
    Write(WriteGuard),
    /// Permits of a semaphore.
    Permits(Permit),
    /// A leadership.
    Leader(Leadership),
}

/// As [`WriteGuard`](crate::WriteGuard).
impl WriteGuard {
    /// Becomes a reader without letting a writer in between.
    pub fn downgrade(self) -> Result<ReadGuard, DowngradeError<Self, ReadGuard>> {
        let Self { inner, keeper } = self;
        match wait(&keeper.on, async move { inner.downgrade().await }) {
            Ok(guard) => Ok(keeper.with(guard)),
            Err(error) => Err(error.map(|guard| keeper.with(guard), |guard| keeper.with(guard))),
        }
    }
}

/// As [`Leadership`](crate::Leadership).
impl Leadership {
    /// Gives the leadership back.
    pub fn resign(self) -> Result<(), ReleaseError> {
        self.release()
    }
}

/// As [`AllGuard`](crate::AllGuard).
impl AllGuard {
    /// How long all are certainly still held.
    pub fn remaining(&self) -> Duration {
        self.inner.remaining()
    }

    /// One token per lock, in the order in which they were named.
    pub fn tokens(&self) -> Vec<Token> {
        self.inner.tokens()
    }

    /// Whether all are held.
    pub fn is_held(&self) -> bool {
        self.inner.is_held()
    }

    /// Gives all back.
    pub fn release(self) -> Result<(), ReleaseError> {
        let Self { inner, keeper } = self;
        wait(&keeper.on, async move { inner.release().await })
    }
}
