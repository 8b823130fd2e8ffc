//! The same primitives for threads.
//!
//! Every call runs on the keeper's own thread and waits for its answer, so it works without a
//! runtime, and inside one it does not panic (though it blocks that worker while it waits).
//!
//! ```
//! use lockkeeper_core::{blocking::Keeper, memory};
//!
//! # fn main() -> Result<(), lockkeeper_core::Error> {
//! let keeper = Keeper::connect(memory::connector("memory:"))?;
//! let guard = keeper.mutex("stock/42").lock()?;
//! println!("token {}", guard.token());
//! guard.release()?;
//! # Ok(()) }
//! ```

use crate::store::Eviction;
use std::{
    fmt,
    sync::{Arc, mpsc},
    time::Duration,
};

use tokio::runtime::Handle;

use crate::{
    capability::Capability,
    engine::{
        Stats,
        thread::{self, Stop},
    },
    error::{
        AcquireError, Error, FenceError, LatchError, LeaseError, Lost, ReleaseError, StoreError,
        StoreErrorKind,
    },
    id::ContenderId,
    keeper::{self, KeeperBuilder},
    lock::{
        self, DowngradeError, Exclusive, IntoLeaseError, LatchState, Leader, Leads, Lease, Owner, Permits,
        Read, Write,
    },
    name::Name,
    store::{Connector, Page, ResourceView},
    token::Token,
};

/// Runs `work` on the keeper's thread and waits for it there, not here.
fn wait<T: Send + 'static>(on: &Handle, work: impl Future<Output = T> + Send + 'static) -> T {
    let (sender, receiver) = mpsc::sync_channel(1);
    on.spawn(async move {
        // The caller waits below until this arrives.
        sender.send(work.await).ok();
    });
    receiver.recv().expect("the keeper's thread lives as long as any of its handles")
}

/// A keeper for threads; see the [module](self).
#[derive(Clone)]
pub struct Keeper {
    inner: keeper::Keeper,
    on: Handle,
    _thread: Arc<Thread>,
}

/// The thread that blocking calls run on. It is not the one that renews, so that a user's slow
/// waker can never delay a renewal, and it outlives the keeper's own.
struct Thread(Stop);

impl Drop for Thread {
    fn drop(&mut self) {
        self.0.stop();
    }
}

impl Keeper {
    /// Connects with the default settings.
    ///
    /// # Errors
    /// [`StoreError`] says what was wrong and what to do.
    pub fn connect(connector: Connector) -> Result<Self, StoreError> {
        Self::build(keeper::Keeper::builder(connector))
    }

    /// Connects with settings.
    ///
    /// # Errors
    /// [`StoreError`] says what was wrong and what to do.
    pub fn build(builder: KeeperBuilder) -> Result<Self, StoreError> {
        let stop = Stop::new();
        let on = thread::start(&stop).map_err(|error| {
            StoreError::new(StoreErrorKind::Config, "no thread could be started").with_source(error)
        })?;
        // Dropped on every way out but the last.
        let thread = Arc::new(Thread(stop));
        let inner = wait(&on, builder.connect())?;
        Ok(Self { inner, on, _thread: thread })
    }

    fn with<T>(&self, inner: T) -> On<T> {
        On { inner, keeper: self.clone() }
    }

    /// A mutex; see [`Mutex`](crate::Mutex).
    pub fn mutex(&self, name: &str) -> Mutex {
        self.with(self.inner.mutex(name))
    }

    /// A read-write lock; see [`RwLock`](crate::RwLock).
    pub fn rw_lock(&self, name: &str) -> RwLock {
        self.with(self.inner.rw_lock(name))
    }

    /// A semaphore; see [`Semaphore`](crate::Semaphore).
    pub fn semaphore(&self, name: &str, permits: u32) -> Semaphore {
        self.with(self.inner.semaphore(name, permits))
    }

    /// A latch; see [`Latch`](crate::Latch).
    pub fn latch(&self, name: &str) -> Latch {
        self.with(self.inner.latch(name))
    }

    /// An election; see [`Election`](crate::Election).
    pub fn election(&self, name: &str) -> Election {
        self.with(self.inner.election(name))
    }

    /// The mutex of the segment that `key` belongs to; see [`Segmented`](crate::Segmented).
    pub fn segment(&self, name: &str, segments: u32, key: impl AsRef<[u8]>) -> Mutex {
        self.with(self.inner.segmented(name, segments).for_key(key))
    }

    /// A fence kept at the store; see [`StoredFence`](crate::StoredFence).
    pub fn fence(&self, name: &str) -> StoredFence {
        self.with(self.inner.fence(name))
    }

    /// Several mutexes to be locked together; see [`all`](crate::all).
    pub fn all<'a>(&self, mutexes: impl IntoIterator<Item = &'a Mutex>) -> All {
        self.with(lock::all(mutexes.into_iter().map(|mutex| &mutex.inner)))
    }

    /// An owner, for locks that are entered several times.
    pub fn owner(&self) -> Owner {
        self.inner.owner()
    }

    /// What the store can do and survive.
    pub fn capability(&self) -> &Capability {
        self.inner.capability()
    }

    /// The store's URL, without secrets.
    pub fn url(&self) -> &str {
        self.inner.url()
    }

    /// What this keeper has in hand at this moment.
    pub fn stats(&self) -> Stats {
        self.inner.stats()
    }

    /// Goes on with a detached lease; see [`Keeper::adopt`](crate::Keeper::adopt).
    ///
    /// # Errors
    /// As there.
    pub fn adopt(&self, lease: &Lease) -> Result<Adopted, LeaseError> {
        let (inner, lease) = (self.inner.clone(), lease.clone());
        wait(&self.on, async move { inner.adopt(&lease).await }).map(|adopted| self.with(adopted))
    }

    /// Who holds `name` and who waits for it.
    ///
    /// # Errors
    /// As [`Keeper::inspect`](crate::Keeper::inspect).
    pub fn inspect(&self, name: &str) -> Result<Option<ResourceView>, Error> {
        let (inner, name) = (self.inner.clone(), name.to_owned());
        wait(&self.on, async move { inner.inspect(&name).await })
    }

    /// A part of all names that are held or waited for.
    ///
    /// # Errors
    /// As [`Keeper::list`](crate::Keeper::list).
    pub fn list(&self, prefix: &str, after: Option<&Name>, limit: usize) -> Result<Page, StoreError> {
        let (inner, prefix, after) = (self.inner.clone(), prefix.to_owned(), after.cloned());
        wait(&self.on, async move { inner.list(&prefix, after.as_ref(), limit).await })
    }

    /// Takes a lock back; see [`Keeper::evict`](crate::Keeper::evict).
    ///
    /// # Errors
    /// As there.
    pub fn evict(
        &self,
        name: &str,
        contender: ContenderId,
        token: Token,
        how: Eviction,
    ) -> Result<bool, Error> {
        let (inner, name) = (self.inner.clone(), name.to_owned());
        wait(&self.on, async move { inner.evict(&name, contender, token, how).await })
    }

    /// Gives everything back and returns when that is done.
    pub fn close(&self) {
        let inner = self.inner.clone();
        wait(&self.on, async move { inner.close().await });
    }
}

impl fmt::Debug for Keeper {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

/// Something of the async API, to be used from a thread. What needs no waiting is reached
/// through [`get`](Self::get) or the methods below.
#[derive(Clone)]
#[must_use = "a guard is released and a handle does nothing as soon as it is dropped"]
pub struct On<T> {
    inner: T,
    keeper: Keeper,
}

impl<T: fmt::Debug> fmt::Debug for On<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

impl<T> On<T> {
    /// The same thing in the async API.
    pub fn get(&self) -> &T {
        &self.inner
    }

    /// With other settings: `mutex.with(|mutex| mutex.lease(ten_seconds).fifo())`.
    pub fn with(self, change: impl FnOnce(T) -> T) -> Self {
        Self { inner: change(self.inner), keeper: self.keeper }
    }
}

impl<T: Clone + Send + 'static> On<T> {
    fn call<R, F>(&self, work: impl FnOnce(T) -> F) -> R
    where
        R: Send + 'static,
        F: Future<Output = R> + Send + 'static,
    {
        wait(&self.keeper.on, work(self.inner.clone()))
    }

    fn guarded<G, E, F>(&self, work: impl FnOnce(T) -> F) -> Result<On<G>, E>
    where
        G: Send + 'static,
        E: Send + 'static,
        F: Future<Output = Result<G, E>> + Send + 'static,
    {
        self.call(work).map(|guard| self.keeper.with(guard))
    }

    fn tried<G, E, F>(&self, work: impl FnOnce(T) -> F) -> Result<Option<On<G>>, E>
    where
        G: Send + 'static,
        E: Send + 'static,
        F: Future<Output = Result<Option<G>, E>> + Send + 'static,
    {
        Ok(self.call(work)?.map(|guard| self.keeper.with(guard)))
    }
}

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

/// As [`Mutex`](crate::Mutex); errors and fairness are described there.
impl Mutex {
    /// Waits in line until the lock is held.
    pub fn lock(&self) -> Result<Guard, AcquireError> {
        self.guarded(|mutex| async move { mutex.lock().await })
    }

    /// Takes the lock if it is free.
    pub fn try_lock(&self) -> Result<Option<Guard>, AcquireError> {
        self.tried(|mutex| async move { mutex.try_lock().await })
    }

    /// Waits in line, at most `limit`.
    pub fn lock_within(&self, limit: Duration) -> Result<Guard, AcquireError> {
        self.guarded(move |mutex| async move { mutex.lock_within(limit).await })
    }

    /// Enters again what `owner` holds, or waits in line.
    pub fn lock_as(&self, owner: &Owner) -> Result<Guard, AcquireError> {
        let owner = owner.clone();
        self.guarded(move |mutex| async move { mutex.lock_as(&owner).await })
    }

    /// Enters again what `owner` holds, or waits in line, at most `limit`.
    pub fn lock_as_within(&self, owner: &Owner, limit: Duration) -> Result<Guard, AcquireError> {
        let owner = owner.clone();
        self.guarded(move |mutex| async move { mutex.lock_as_within(&owner, limit).await })
    }

    /// Enters again what `owner` holds, or takes the lock if it is free.
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

    /// Enters again what `owner` holds, or waits until it may read.
    pub fn read_as(&self, owner: &Owner) -> Result<ReadGuard, AcquireError> {
        let owner = owner.clone();
        self.guarded(move |lock| async move { lock.read_as(&owner).await })
    }

    /// Enters again what `owner` writes, or waits until it alone may write.
    pub fn write_as(&self, owner: &Owner) -> Result<WriteGuard, AcquireError> {
        let owner = owner.clone();
        self.guarded(move |lock| async move { lock.write_as(&owner).await })
    }

    /// Enters again what `owner` holds, or waits until it may read, at most `limit`.
    pub fn read_as_within(&self, owner: &Owner, limit: Duration) -> Result<ReadGuard, AcquireError> {
        let owner = owner.clone();
        self.guarded(move |lock| async move { lock.read_as_within(&owner, limit).await })
    }

    /// Enters again what `owner` holds, or reads if no writer holds or waits.
    pub fn try_read_as(&self, owner: &Owner) -> Result<Option<ReadGuard>, AcquireError> {
        let owner = owner.clone();
        self.tried(move |lock| async move { lock.try_read_as(&owner).await })
    }

    /// Enters again what `owner` writes, or waits until it alone may write, at most `limit`.
    pub fn write_as_within(&self, owner: &Owner, limit: Duration) -> Result<WriteGuard, AcquireError> {
        let owner = owner.clone();
        self.guarded(move |lock| async move { lock.write_as_within(&owner, limit).await })
    }

    /// Enters again what `owner` writes, or writes if nobody holds or waits.
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

    /// Counts down by one; returns what is left.
    pub fn count_down(&self) -> Result<u64, LatchError> {
        self.count_down_by(1)
    }

    /// Counts down by several; returns what is left.
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

    /// Back to what it was created with.
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
    /// Waits in line until this process leads.
    pub fn campaign(&self, value: &str) -> Result<Leadership, AcquireError> {
        let value = value.to_owned();
        self.guarded(|election| async move { election.campaign(&value).await })
    }

    /// Leads if nobody does.
    pub fn try_campaign(&self, value: &str) -> Result<Option<Leadership>, AcquireError> {
        let value = value.to_owned();
        self.tried(|election| async move { election.try_campaign(&value).await })
    }

    /// Waits in line, at most `limit`.
    pub fn campaign_within(&self, value: &str, limit: Duration) -> Result<Leadership, AcquireError> {
        let value = value.to_owned();
        self.guarded(move |election| async move { election.campaign_within(&value, limit).await })
    }

    /// Who leads now.
    pub fn leader(&self) -> Result<Option<Leader>, StoreError> {
        self.call(|election| async move { election.leader().await })
    }

    /// Who leads, now and after each change, as an iterator that waits.
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

/// As [`Guard`](crate::Guard).
impl<M: 'static> Guard<M> {
    /// The name of what is held.
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
pub type Adopted = On<lock::Adopted>;

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

/// What a lease turned out to be, for threads.
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
