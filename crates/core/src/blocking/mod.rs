//! The same primitives for threads.
//!
//! Every call runs on the keeper's own thread and waits for its answer, so it works without a
//! runtime, and inside one it does not panic (though it blocks that worker while it waits).
//!
//! ```
//! use lockkeeper::{blocking::Keeper, memory};
//!
//! # fn main() -> Result<(), lockkeeper::Error> {
//! let keeper = Keeper::connect(memory::connector("memory:"))?;
//! let guard = keeper.mutex("stock/42").lock()?;
//! println!("token {}", guard.token());
//! guard.release()?;
//! # Ok(()) }
//! ```
//!
//! A program may return from `main` while it holds locks: see
//! [the end of a program](crate::Keeper#the-end-of-a-program).

mod guards;
mod locks;

use std::{
    fmt,
    sync::{Arc, mpsc},
};

use tokio::runtime::Handle;

use crate::{
    capability::Capability,
    engine::{
        Stats,
        thread::{self, Stop},
    },
    error::{Error, LeaseError, StoreError, StoreErrorKind},
    id::ContenderId,
    keeper::{self, KeeperBuilder},
    lock::{self, Lease, Owner},
    name::Name,
    store::{Connector, Eviction, LatchPage, Page, ResourceView},
    token::Token,
};

pub use guards::{Adopted, AdoptedGuard, AllGuard, Guard, Leadership, Permit, ReadGuard, WriteGuard};
pub use locks::{All, Election, Latch, Mutex, RwLock, Semaphore, StoredFence};

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
    /// [`StoreError`] names the cause and the remedy.
    pub fn connect(connector: Connector) -> Result<Self, StoreError> {
        Self::build(keeper::Keeper::builder(connector))
    }

    /// Connects with settings.
    ///
    /// # Errors
    /// [`StoreError`] names the cause and the remedy.
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

    /// Returns the abilities of the store and its guarantees.
    pub fn capability(&self) -> &Capability {
        self.inner.capability()
    }

    /// The store's URL, without secrets.
    pub fn url(&self) -> &str {
        self.inner.url()
    }

    /// Returns this keeper's counts at this moment: its grants, its positions in queues, and more.
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

    /// Returns the holders of `name` and its waiters.
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

    /// As [`Keeper::latches`](crate::Keeper::latches).
    pub fn latches(&self, prefix: &str, after: Option<&Name>, limit: usize) -> Result<LatchPage, StoreError> {
        let (inner, prefix, after) = (self.inner.clone(), prefix.to_owned(), after.cloned());
        wait(&self.on, async move { inner.latches(&prefix, after.as_ref(), limit).await })
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

/// Something of the async API, to be used from a thread. Its methods that need no waiting are reached
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
