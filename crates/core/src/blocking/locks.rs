//! The primitives for threads. Each call is that of the async API, made on the keeper's thread.

use std::{sync::Arc, time::Duration};

use super::{AllGuard, Guard, Leadership, On, Permit, ReadGuard, WriteGuard, wait};
use crate::{
    error::{AcquireError, FenceError, LatchError, StoreError},
    lock::{self, LatchState, Leader, Owner},
    token::Token,
};

/// A [`Mutex`](crate::Mutex) for threads.
pub type Mutex = On<lock::Mutex>;
/// A [`RwLock`](crate::RwLock) for threads.
pub type RwLock = On<lock::RwLock>;
/// A [`Semaphore`](crate::Semaphore) for threads.
pub type Semaphore = On<lock::Semaphore>;
/// A [`Latch`](crate::Latch) for threads.
pub type Latch = On<lock::Latch>;
/// An [`Election`](crate::Election) for threads.
pub type Election = On<lock::Election>;
/// A [`StoredFence`](crate::StoredFence) for threads.
pub type StoredFence = On<lock::StoredFence>;
/// Several mutexes for threads.
pub type All = On<lock::All>;

/// As [`Mutex`](crate::Mutex); errors and fairness are described there.
impl Mutex {
    /// Waits in the queue until the lock is held.
    pub fn lock(&self) -> Result<Guard, AcquireError> {
        self.guarded(|mutex| async move { mutex.lock().await })
    }

    /// Takes the lock if it is free.
    pub fn try_lock(&self) -> Result<Option<Guard>, AcquireError> {
        self.tried(|mutex| async move { mutex.try_lock().await })
    }

    /// Waits in the queue, at most `limit`.
    pub fn lock_within(&self, limit: Duration) -> Result<Guard, AcquireError> {
        self.guarded(move |mutex| async move { mutex.lock_within(limit).await })
    }

    /// Enters again the mutex that `owner` holds, or waits in the queue.
    pub fn lock_as(&self, owner: &Owner) -> Result<Guard, AcquireError> {
        let owner = owner.clone();
        self.guarded(move |mutex| async move { mutex.lock_as(&owner).await })
    }

    /// Enters again the mutex that `owner` holds, or waits in the queue, at most `limit`.
    pub fn lock_as_within(&self, owner: &Owner, limit: Duration) -> Result<Guard, AcquireError> {
        let owner = owner.clone();
        self.guarded(move |mutex| async move { mutex.lock_as_within(&owner, limit).await })
    }

    /// Enters again the mutex that `owner` holds, or takes it if it is free.
    pub fn try_lock_as(&self, owner: &Owner) -> Result<Option<Guard>, AcquireError> {
        let owner = owner.clone();
        self.tried(move |mutex| async move { mutex.try_lock_as(&owner).await })
    }
}

/// As [`RwLock`](crate::RwLock).
impl RwLock {
    /// Waits until it may read.
    pub fn read(&self) -> Result<ReadGuard, AcquireError> {
        self.guarded(|lock| async move { lock.read().await })
    }

    /// Reads if no writer holds or waits.
    pub fn try_read(&self) -> Result<Option<ReadGuard>, AcquireError> {
        self.tried(|lock| async move { lock.try_read().await })
    }

    /// Waits until it may read, at most `limit`.
    pub fn read_within(&self, limit: Duration) -> Result<ReadGuard, AcquireError> {
        self.guarded(move |lock| async move { lock.read_within(limit).await })
    }

    /// Waits until it alone may write.
    pub fn write(&self) -> Result<WriteGuard, AcquireError> {
        self.guarded(|lock| async move { lock.write().await })
    }

    /// Writes if nobody holds or waits.
    pub fn try_write(&self) -> Result<Option<WriteGuard>, AcquireError> {
        self.tried(|lock| async move { lock.try_write().await })
    }

    /// Waits until it alone may write, at most `limit`.
    pub fn write_within(&self, limit: Duration) -> Result<WriteGuard, AcquireError> {
        self.guarded(move |lock| async move { lock.write_within(limit).await })
    }

    /// Enters again the lock that `owner` holds, or waits until it may read.
    pub fn read_as(&self, owner: &Owner) -> Result<ReadGuard, AcquireError> {
        let owner = owner.clone();
        self.guarded(move |lock| async move { lock.read_as(&owner).await })
    }

    /// Enters again the lock that `owner` writes, or waits until it alone may write.
    pub fn write_as(&self, owner: &Owner) -> Result<WriteGuard, AcquireError> {
        let owner = owner.clone();
        self.guarded(move |lock| async move { lock.write_as(&owner).await })
    }

    /// Enters again the lock that `owner` holds, or waits until it may read, at most `limit`.
    pub fn read_as_within(&self, owner: &Owner, limit: Duration) -> Result<ReadGuard, AcquireError> {
        let owner = owner.clone();
        self.guarded(move |lock| async move { lock.read_as_within(&owner, limit).await })
    }

    /// Enters again the lock that `owner` holds, or reads if no writer holds or waits.
    pub fn try_read_as(&self, owner: &Owner) -> Result<Option<ReadGuard>, AcquireError> {
        let owner = owner.clone();
        self.tried(move |lock| async move { lock.try_read_as(&owner).await })
    }

    /// Enters again the lock that `owner` writes, or waits until it alone may write, at most `limit`.
    pub fn write_as_within(&self, owner: &Owner, limit: Duration) -> Result<WriteGuard, AcquireError> {
        let owner = owner.clone();
        self.guarded(move |lock| async move { lock.write_as_within(&owner, limit).await })
    }

    /// Enters again the lock that `owner` writes, or writes if nobody holds or waits.
    pub fn try_write_as(&self, owner: &Owner) -> Result<Option<WriteGuard>, AcquireError> {
        let owner = owner.clone();
        self.tried(move |lock| async move { lock.try_write_as(&owner).await })
    }
}

/// As [`Semaphore`](crate::Semaphore).
impl Semaphore {
    /// Waits for one permit.
    pub fn acquire(&self) -> Result<Permit, AcquireError> {
        self.acquire_many(1)
    }

    /// Takes one permit if there is one.
    pub fn try_acquire(&self) -> Result<Option<Permit>, AcquireError> {
        self.try_acquire_many(1)
    }

    /// Waits for one permit, at most `limit`.
    pub fn acquire_within(&self, limit: Duration) -> Result<Permit, AcquireError> {
        self.acquire_many_within(1, limit)
    }

    /// Waits for several permits at once.
    pub fn acquire_many(&self, permits: u32) -> Result<Permit, AcquireError> {
        self.guarded(move |semaphore| async move { semaphore.acquire_many(permits).await })
    }

    /// Takes several permits at once if they are there.
    pub fn try_acquire_many(&self, permits: u32) -> Result<Option<Permit>, AcquireError> {
        self.tried(move |semaphore| async move { semaphore.try_acquire_many(permits).await })
    }

    /// Waits for several permits at once, at most `limit`.
    pub fn acquire_many_within(&self, permits: u32, limit: Duration) -> Result<Permit, AcquireError> {
        self.guarded(move |semaphore| async move { semaphore.acquire_many_within(permits, limit).await })
    }
}

/// As [`Latch`](crate::Latch).
impl Latch {
    /// Makes the latch.
    pub fn create(&self, count: u64) -> Result<(), LatchError> {
        self.call(move |latch| async move { latch.create(count).await })
    }

    /// Counts down by one; returns the remaining count.
    pub fn count_down(&self) -> Result<u64, LatchError> {
        self.count_down_by(1)
    }

    /// Counts down by several; returns the remaining count.
    pub fn count_down_by(&self, count: u64) -> Result<u64, LatchError> {
        self.call(move |latch| async move { latch.count_down_by(count).await })
    }

    /// Waits until it has counted to zero.
    pub fn wait(&self) -> Result<(), LatchError> {
        self.call(|latch| async move { latch.wait().await })
    }

    /// Waits, at most `limit`.
    pub fn wait_within(&self, limit: Duration) -> Result<(), LatchError> {
        self.call(move |latch| async move { latch.wait_within(limit).await })
    }

    /// Sets the count back to its initial value.
    pub fn reset(&self) -> Result<(), LatchError> {
        self.call(|latch| async move { latch.reset().await })
    }

    /// Removes the latch.
    pub fn delete(&self) -> Result<(), LatchError> {
        self.call(|latch| async move { latch.delete().await })
    }

    /// How far it has come.
    pub fn state(&self) -> Result<Option<LatchState>, LatchError> {
        self.call(|latch| async move { latch.state().await })
    }
}

/// As [`Election`](crate::Election).
impl Election {
    /// Waits in the queue until this process leads.
    pub fn campaign(&self, value: &str) -> Result<Leadership, AcquireError> {
        let value = value.to_owned();
        self.guarded(|election| async move { election.campaign(&value).await })
    }

    /// Leads if nobody does.
    pub fn try_campaign(&self, value: &str) -> Result<Option<Leadership>, AcquireError> {
        let value = value.to_owned();
        self.tried(|election| async move { election.try_campaign(&value).await })
    }

    /// Waits in the queue, at most `limit`.
    pub fn campaign_within(&self, value: &str, limit: Duration) -> Result<Leadership, AcquireError> {
        let value = value.to_owned();
        self.guarded(move |election| async move { election.campaign_within(&value, limit).await })
    }

    /// Returns the current leader.
    pub fn leader(&self) -> Result<Option<Leader>, StoreError> {
        self.call(|election| async move { election.leader().await })
    }

    /// Returns the leader, now and after each change, as an iterator that waits.
    pub fn observe(&self) -> impl Iterator<Item = Result<Option<Leader>, StoreError>> + use<> {
        let observer = Arc::new(tokio::sync::Mutex::new(self.inner.observe()));
        let keeper = self.keeper.clone();
        std::iter::from_fn(move || {
            let observer = observer.clone();
            wait(&keeper.on, async move { observer.lock().await.next().await })
        })
    }
}

/// As [`StoredFence`](crate::StoredFence).
impl StoredFence {
    /// Admits the token of an exclusive holder.
    pub fn admit(&self, token: Token) -> Result<(), FenceError> {
        self.admit_shared(token, token)
    }

    /// Admits the token of a reader or permit.
    pub fn admit_shared(&self, token: Token, floor: Token) -> Result<(), FenceError> {
        self.call(move |fence| async move { fence.admit_shared(token, floor).await })
    }
}

/// As [`All`](crate::All).
impl All {
    /// Waits for all of them.
    pub fn lock(&self) -> Result<AllGuard, AcquireError> {
        self.guarded(|all| async move { all.lock().await })
    }

    /// Takes all of them if all are free.
    pub fn try_lock(&self) -> Result<Option<AllGuard>, AcquireError> {
        self.tried(|all| async move { all.try_lock().await })
    }

    /// Waits for all of them, at most `limit` in all.
    pub fn lock_within(&self, limit: Duration) -> Result<AllGuard, AcquireError> {
        self.guarded(move |all| async move { all.lock_within(limit).await })
    }
}
