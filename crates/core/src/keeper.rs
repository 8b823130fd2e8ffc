//! The keeper: a connection to a store, and the maker of all handles.

use std::{sync::Arc, time::Duration};

use tokio::runtime;

use crate::{
    capability::Capability,
    clock::Clock,
    engine::{
        Alive, Engine, Settings, Stats, release, renewal,
        terms::{DEFAULT_LEASE, Terms, check_lease, check_text},
        thread::{self, Stop, StopUnlessKept},
    },
    error::{AcquireError, At, Error, InvalidInput, LeaseError, ReleaseError, StoreError, StoreErrorKind},
    id::{ContenderId, Ids, KeeperId},
    lock::{
        AcquiredLease, Adopted, Election, Handle, Latch, Lease, LeaseClaim, Mutex, Owner, RwLock, Segmented,
        Semaphore, StoredFence, lease,
    },
    name::Name,
    share::{Capacity, Units},
    store::{
        Connector, Context, Evict, Evicted, Eviction, Kind, LatchPage, Leave, ListQuery, Page, ProcessInfo,
        ResourceView, Store, WakeSink,
    },
    telemetry,
    token::Token,
};

/// A connection to a store: makes handles to its locks, and keeps the locks that they acquire.
///
/// Clones are cheap and share everything. Each keeper has a thread of its own that renews leases,
/// also while the rest of the program is busy or blocked. When the last clone, handle and guard is gone, the
/// thread ends; [`close`](Self::close) gives everything back and waits for that.
///
/// # The end of a program
/// A program may return from `main` while it holds locks. The last of a keeper's clones, handles and guards that is
/// dropped gives everything back, and blocks its thread until the store has answered, but not longer than 500 ms, or
/// 150 ms if the store did not answer before. It blocks nobody in virtual time.
///
/// Call [`close`](Self::close) where nothing is dropped, or locks stay held until their leases end:
/// - if a keeper or a guard is in a `static`;
/// - before `std::process::exit`;
/// - on SIGTERM and Ctrl-C, which end a process that does not handle them (see the example `leader_election`);
/// - before `Runtime::shutdown_background`, which does not wait for its tasks;
/// - if a thread has the last handle that nobody joins before `main` returns.
///
/// A panic of a program that is built with `panic = "abort"` drops nothing either, and leaves no time to close.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), lockkeeper::Error> {
/// use lockkeeper::{Keeper, memory};
///
/// let keeper = Keeper::builder(memory::connector("memory:")).connect().await?;
/// let guard = keeper.mutex("stock/42").lock().await?;
/// keeper.close().await;
/// assert!(!guard.is_held());
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct Keeper {
    alive: Arc<Alive>,
}

/// The longest request limit. A caller who gives more means "no limit"; sums of times must not overflow by it.
const LONGEST_REQUEST: Duration = Duration::from_secs(24 * 3600);

/// Settings of a keeper to be.
pub struct KeeperBuilder {
    connector: Connector,
    request_limit: Duration,
    outage_limit: Duration,
    default_lease: Option<Duration>,
    program: Option<String>,
    id: Option<KeeperId>,
    virtual_time: Option<Clock>,
}

impl KeeperBuilder {
    /// How long one request to the store may take (default 2 s, at most a day).
    pub fn request_limit(mut self, limit: Duration) -> Self {
        self.request_limit = limit.min(LONGEST_REQUEST);
        self
    }

    /// How long a wait goes on while the store cannot be reached (default 30 s). Waits without a limit of their own fail
    /// after this long, too; with [`Duration::MAX`] they go on for ever.
    pub fn outage_limit(mut self, limit: Duration) -> Self {
        self.outage_limit = limit;
        self
    }

    /// The lease of locks whose handle names none (default: that of the store's URL, else 30 s, or the shortest that the
    /// store keeps if that is longer): how long a lock stays held after a crash of its holder, where the store does not
    /// notice the crash by itself.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), lockkeeper::Error> {
    /// let keeper = lockkeeper::builder("memory:?lease=1m")?.connect().await?;
    /// assert_eq!(keeper.default_lease(), Duration::from_secs(60));
    /// let keeper = lockkeeper::builder("memory:?lease=1m")?.default_lease(Duration::from_secs(10)).connect().await?;
    /// assert_eq!(keeper.default_lease(), Duration::from_secs(10));
    /// # Ok(()) }
    /// ```
    pub fn default_lease(mut self, lease: Duration) -> Self {
        self.default_lease = Some(lease);
        self
    }

    /// The program name shown with holders (default: that of the executable).
    pub fn program(mut self, program: &str) -> Self {
        self.program = Some(program.to_owned());
        self
    }

    /// The keeper's id, for tests in [virtual time](Self::virtual_time) that must repeat exactly. Elsewhere connecting
    /// with it fails: two keepers of one id would both hold the locks that one of them was granted.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() {
    /// use lockkeeper::{Keeper, memory, store::KeeperId};
    /// let builder = Keeper::builder(memory::connector("memory:")).test_id(KeeperId::random());
    /// let error = builder.connect().await.expect_err("not in virtual time");
    /// assert!(error.to_string().contains("virtual time"));
    /// # }
    /// ```
    pub fn test_id(mut self, id: KeeperId) -> Self {
        self.id = Some(id);
        self
    }

    /// Runs on `clock` and in the current runtime instead of on a thread of its own: for tests
    /// whose time is virtual.
    pub fn virtual_time(mut self, clock: Clock) -> Self {
        self.virtual_time = Some(clock);
        self
    }

    /// Connects.
    ///
    /// # When the store is unreachable
    /// Fails; how long that takes is up to the store, but not much longer than the request limit.
    ///
    /// # Errors
    /// [`StoreError`] names the cause and the remedy.
    pub async fn connect(self) -> Result<Keeper, StoreError> {
        self.check()?;
        let stop = Stop::new();
        let (clock, background) = match self.virtual_time {
            Some(clock) => {
                telemetry::write_here();
                (clock, runtime::Handle::current())
            }
            None => {
                let background = thread::start(&stop).map_err(|error| {
                    StoreError::new(StoreErrorKind::Config, "the keeper's thread could not be started")
                        .with_source(error)
                })?;
                (Clock::boot(), background)
            }
        };
        let ids = Arc::new(Ids::new(self.id.unwrap_or_else(KeeperId::random)));
        // The store needs the sink before the engine exists; an earlier wake is only a hint.
        let engine_slot = Arc::new(std::sync::OnceLock::<std::sync::Weak<Engine>>::new());
        let wakes = WakeSink::new({
            let engine_slot = engine_slot.clone();
            move |wake| {
                if let Some(engine) = engine_slot.get().and_then(std::sync::Weak::upgrade) {
                    engine.wake(wake);
                }
            }
        });
        let context = Context {
            keeper: ids.keeper(),
            wakes,
            background: background.clone(),
            clock: clock.clone(),
            request_limit: self.request_limit,
        };
        let unless_kept = StopUnlessKept::new(&stop);
        let chosen_lease = self.default_lease.or(self.connector.lease());
        let connected = self.connector.connect(context).await?;
        let settings = Settings {
            clock,
            request_limit: self.request_limit,
            outage_limit: self.outage_limit,
            default_lease: fitting_lease(chosen_lease, connected.as_ref())?,
            process: Arc::new(this_process(self.program)),
        };
        let engine = Engine::new(connected, settings, ids, background, stop);
        // Set once, here.
        drop(engine_slot.set(Arc::downgrade(&engine)));
        // From here on the last one who has the engine stops the thread.
        let alive = Alive::new(engine.clone());
        unless_kept.keep();
        engine.start().await?;
        Ok(Keeper { alive })
    }

    fn check(&self) -> Result<(), StoreError> {
        let message = if self.request_limit.is_zero() {
            "the request limit is zero, so no request could succeed; give at least 1 ms"
        } else if self.id.is_some() && self.virtual_time.is_none() {
            "an id of one's own is for tests in virtual time, because two keepers of one id would both hold; \
             leave it out, and ask Keeper::id()"
        } else {
            return Ok(());
        };
        Err(StoreError::new(StoreErrorKind::Config, message))
    }
}

/// The default lease of a keeper. If nobody chose one, a lease that the store does not keep would be no help.
fn fitting_lease(chosen: Option<Duration>, store: &dyn Store) -> Result<Duration, StoreError> {
    let Some(lease) = chosen else {
        let Capability { min_lease, max_lease, .. } = store.capability();
        return Ok(DEFAULT_LEASE.min(*max_lease).max(*min_lease));
    };
    check_lease(lease, store).map_err(|why| {
        let message = format!("the default lease does not fit: {why}");
        StoreError::new(StoreErrorKind::Config, message).not_applied()
    })?;
    Ok(lease)
}

impl std::fmt::Debug for KeeperBuilder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("KeeperBuilder")
            .field("request_limit", &self.request_limit)
            .field("outage_limit", &self.outage_limit)
            .finish_non_exhaustive()
    }
}

fn this_process(program: Option<String>) -> ProcessInfo {
    let executable =
        || std::env::current_exe().ok()?.file_name().map(|name| name.to_string_lossy().into_owned());
    ProcessInfo {
        host: host_name(),
        pid: std::process::id(),
        program: program.or_else(executable).unwrap_or_default(),
    }
}

#[cfg(unix)]
fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

#[cfg(not(unix))]
fn host_name() -> String {
    std::env::var("COMPUTERNAME").unwrap_or_default()
}

/// Handles. Making one never fails and asks nobody; a bad name or number is told at first use.
impl Keeper {
    /// A keeper for a store, with more settings than the store's URL has.
    pub fn builder(connector: Connector) -> KeeperBuilder {
        KeeperBuilder {
            connector,
            request_limit: Duration::from_secs(2),
            outage_limit: Duration::from_secs(30),
            default_lease: None,
            program: None,
            id: None,
            virtual_time: None,
        }
    }

    fn handle(&self, name: &str, kind: Kind, units: Units, capacity: Capacity) -> Handle {
        let lease = self.default_lease();
        Handle::new(&self.alive, name, Terms { lease, ..Terms::new(kind, units, capacity) })
    }

    /// A mutex.
    pub fn mutex(&self, name: &str) -> Mutex {
        Mutex { handle: self.handle(name, Kind::Mutex, Units::All, Capacity::All) }
    }

    /// A read-write lock.
    pub fn rw_lock(&self, name: &str) -> RwLock {
        RwLock { handle: self.handle(name, Kind::RwLock, Units::All, Capacity::All) }
    }

    /// A semaphore with so many permits in all.
    pub fn semaphore(&self, name: &str, permits: u32) -> Semaphore {
        let handle = |capacity| self.handle(name, Kind::Semaphore, Units::ONE, capacity);
        match Capacity::count(permits) {
            Ok(capacity) => Semaphore { handle: handle(capacity) },
            Err(why) => Semaphore { handle: handle(Capacity::All).refused(why) },
        }
    }

    /// A countdown latch.
    pub fn latch(&self, name: &str) -> Latch {
        Latch { handle: self.handle(name, Kind::Mutex, Units::All, Capacity::All) }
    }

    /// An election.
    pub fn election(&self, name: &str) -> Election {
        Election { handle: self.handle(name, Kind::Election, Units::All, Capacity::All) }
    }

    /// A lock split into so many segments.
    pub fn segmented(&self, name: &str, segments: u32) -> Segmented {
        Segmented { handle: self.handle(name, Kind::Mutex, Units::All, Capacity::All), segments }
    }

    /// A fence kept at this store.
    pub fn fence(&self, name: &str) -> StoredFence {
        StoredFence { handle: self.handle(name, Kind::Mutex, Units::All, Capacity::All) }
    }

    /// An owner, for locks that are entered several times.
    pub fn owner(&self) -> Owner {
        Owner::new()
    }
}

/// The keeper itself.
impl Keeper {
    /// Returns the abilities of the store, and the troubles that it survives.
    pub fn capability(&self) -> &Capability {
        self.alive.engine().store().capability()
    }

    /// The store's URL, without secrets.
    pub fn url(&self) -> &str {
        self.alive.engine().store().url()
    }

    /// The lease of locks whose handle names none: that of the builder, else that of the store's URL, else 30 s, or the
    /// shortest that the store keeps if that is longer.
    pub fn default_lease(&self) -> Duration {
        self.alive.engine().default_lease()
    }

    /// The id of this keeper. Its own holds and waiters have it in every view.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), lockkeeper::Error> {
    /// let keeper = lockkeeper::testing::keeper().await;
    /// let guard = keeper.mutex("stock/42").lock().await?;
    /// let view = keeper.inspect("stock/42").await?.expect("it is held");
    /// assert_eq!(view.holders[0].contender.keeper, keeper.id());
    /// # drop(guard);
    /// # Ok(()) }
    /// ```
    pub fn id(&self) -> KeeperId {
        self.alive.engine().keeper_id()
    }

    /// A handle that makes this keeper count as alive for as long as anybody, in any process, has
    /// it open, for programs whose work may outlive them.
    ///
    /// Where a store frees the locks of a dead process at once
    /// ([`frees_crashed_at_once`](Capability::frees_crashed_at_once)), the child processes of
    /// that process may still be working. Pass the handle on to a guardian that first ends them
    /// and then itself: until then the locks are kept, though not longer than their leases, which
    /// nobody renews any more. The handle is closed on `exec` like every other; the program that starts
    /// the guardian names the descriptor that it keeps. `None` if only leases end a lock on this store.
    #[cfg(unix)]
    pub fn life_line(&self) -> Option<std::os::fd::OwnedFd> {
        self.alive.engine().store().life_line()
    }

    /// Goes on with a lease that another process detached: renews it, and holds it if that
    /// succeeds. [`Adopted`] names the primitive. The rest of its
    /// `max_hold` counts on from here.
    ///
    /// # Cancel safety
    /// Dropping the future leaves the lease detached; it may have been renewed once.
    ///
    /// # When the store is unreachable
    /// Fails after the request limit.
    ///
    /// # Errors
    /// [`LeaseError::NotHeld`] if it is over; [`LeaseError::Invalid`] if this store keeps no lease of that length.
    pub async fn adopt(&self, lease: &Lease) -> Result<Adopted, LeaseError> {
        let detached = lease::checked(self.alive.engine(), lease, "adopt")?;
        let owned = renewal::adopt(&self.alive, detached).await?;
        Ok(Adopted::new(owned, lease.kind, lease.units))
    }

    /// Gives a detached lease back with one request, without adopting it first. Its `min_hold` is kept.
    ///
    /// # Cancel safety
    /// Dropping the future does not stop the release.
    ///
    /// # When the store is unreachable
    /// Fails after the request limit; the keeper goes on trying until the lease ends by itself.
    ///
    /// # Errors
    /// [`ReleaseError::NotHeld`] if it is over: somebody else may hold the lock.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), lockkeeper::Error> {
    /// # let keeper = lockkeeper::testing::keeper().await;
    /// let lease = keeper.mutex("deploy").detachable().lock().await?.into_lease().await?;
    /// keeper.release_lease(&lease).await?;
    /// # Ok(()) }
    /// ```
    pub async fn release_lease(&self, lease: &Lease) -> Result<(), ReleaseError> {
        let engine = self.alive.engine();
        release::leave_detached(engine, lease.leave(engine), lease.longest()).await
    }

    /// Gives a detached lease back that nobody has begun to use: without its `min_hold`. Else as
    /// [`release_lease`](Self::release_lease).
    #[doc(hidden)]
    pub async fn call_off_lease(&self, lease: &Lease) -> Result<(), ReleaseError> {
        let engine = self.alive.engine();
        let leave = Leave { hold_at_least: Duration::ZERO, ..lease.leave(engine) };
        release::leave_detached(engine, leave, lease.longest()).await
    }

    /// Renews a detached lease for as long as it was taken for, with one request, and leaves it detached. Returns how
    /// long it is certainly held from now on. A lease that was made with `expires_after` is only looked at.
    ///
    /// # Cancel safety
    /// Dropping the future leaves it open whether the lease was renewed.
    ///
    /// # When the store is unreachable
    /// Fails after the request limit.
    ///
    /// # Errors
    /// As [`adopt`](Self::adopt).
    pub async fn renew_lease(&self, lease: &Lease) -> Result<Duration, LeaseError> {
        lease::renew(self.alive.engine(), lease).await
    }

    /// Acquires a lease that belongs to no process from its grant on, for a caller that this program serves. It waits in
    /// the queue for at most `limit`, or for as long as it takes; with a limit of zero it only tries. `None`: it is busy
    /// and the caller does not wait.
    ///
    /// # Cancel safety
    /// Dropping the future leaves the queue and gives a grant back.
    ///
    /// # Errors
    /// As [`Mutex::lock_within`].
    #[doc(hidden)]
    pub async fn acquire_lease(
        &self,
        name: &str,
        claim: &LeaseClaim,
        limit: Option<Duration>,
    ) -> Result<Option<AcquiredLease>, AcquireError> {
        claim.acquire(&self.alive, name, limit).await
    }

    /// Gives everything back that this keeper holds or waits for, and returns when that is done.
    /// Guards are lost with [`Lost::Closed`](crate::Lost::Closed); those who wait and later acquisitions fail.
    ///
    /// # Cancel safety
    /// Dropping the future stops nothing: the keeper goes on closing in the background. Closing
    /// again waits for the same end.
    ///
    /// # When the store is unreachable
    /// Goes on trying until the leases end by themselves. Limit the wait at the end of a program:
    /// `tokio::time::timeout(limit, keeper.close())`.
    pub async fn close(&self) {
        self.alive.engine().close().await;
    }
}

/// For operators.
impl Keeper {
    /// Returns this keeper's counts at this moment: its grants, its positions in queues, and more.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), lockkeeper::Error> {
    /// let keeper = lockkeeper::testing::keeper().await;
    /// let guard = keeper.mutex("stock/42").lock().await?;
    /// assert_eq!(keeper.stats().held, 1);
    /// # drop(guard);
    /// # Ok(()) }
    /// ```
    pub fn stats(&self) -> Stats {
        self.alive.engine().stats()
    }

    /// Returns the holders of `name` and its waiters; `None` if there are none.
    ///
    /// # Cancel safety
    /// Dropping the future has no effect. The same holds for [`list`](Self::list).
    ///
    /// # When the store is unreachable
    /// Fails after the request limit.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a bad name, [`Error::Store`] if the store could not be asked.
    pub async fn inspect(&self, name: &str) -> Result<Option<ResourceView>, Error> {
        let name = self.valid(name, "inspect")?;
        let engine = self.alive.engine();
        let view = engine.ask("inspect", engine.store().inspect(&name)).await;
        Ok(view.map_err(|error| error.at(self.at(&name, "inspect")))?)
    }

    fn at(&self, name: &Name, operation: &'static str) -> At {
        At::resource(self.alive.engine().store().url(), name, operation)
    }

    fn valid(&self, name: &str, operation: &'static str) -> Result<Name, InvalidInput> {
        let at = At { store: self.alive.engine().store().url().clone(), resource: None, operation };
        Name::new(name).map_err(|why| InvalidInput::new(format!("{at}: {why}")))
    }

    /// All names that are held or waited for and start with `prefix`, in order, at most `limit`
    /// (and at least one); go on with the `next` of the page.
    ///
    /// # When the store is unreachable
    /// Fails after the request limit.
    ///
    /// # Errors
    /// [`StoreError`] if the store could not be asked.
    pub async fn list(&self, prefix: &str, after: Option<&Name>, limit: usize) -> Result<Page, StoreError> {
        let engine = self.alive.engine();
        let query = ListQuery { prefix: prefix.to_owned(), after: after.cloned(), limit };
        engine.ask("list", engine.store().list(&query)).await
    }

    /// All latches whose names start with `prefix`, in order, at most `limit` (and at least one); go on with the `next`
    /// of the page.
    ///
    /// # When the store is unreachable
    /// Fails after the request limit.
    ///
    /// # Errors
    /// [`StoreError`] if the store could not be asked.
    pub async fn latches(
        &self,
        prefix: &str,
        after: Option<&Name>,
        limit: usize,
    ) -> Result<LatchPage, StoreError> {
        let engine = self.alive.engine();
        let query = ListQuery { prefix: prefix.to_owned(), after: after.cloned(), limit };
        engine.ask("latches", engine.store().latches(&query)).await
    }

    /// Takes a lock back from one holder, named by contender and token as
    /// [`inspect`](Self::inspect) shows them. [`Eviction`] tells how the holder hears of it; a fixed
    /// lease is never renewed, so gracefully it only ends. False if it is not the holder.
    ///
    /// # Cancel safety
    /// Dropping the future may leave the order given; giving it again is harmless.
    ///
    /// # When the store is unreachable
    /// Fails after the request limit; the order may stand all the same.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a bad name, [`Error::Store`] if the store could not be asked.
    pub async fn evict(
        &self,
        name: &str,
        contender: ContenderId,
        token: Token,
        how: Eviction,
    ) -> Result<bool, Error> {
        self.evict_as(name, contender, token, how, None).await
    }

    /// As [`evict`](Self::evict), and tells the holder why: see [`Guard::lost_because`](crate::Guard::lost_because). A
    /// holder that is evicted at once does not hear it.
    ///
    /// # Cancel safety
    /// As [`evict`](Self::evict).
    ///
    /// # When the store is unreachable
    /// As [`evict`](Self::evict).
    ///
    /// # Errors
    /// As [`evict`](Self::evict); [`Error::Invalid`] also for a reason of more than 4096 bytes.
    pub async fn evict_because(
        &self,
        name: &str,
        contender: ContenderId,
        token: Token,
        how: Eviction,
        reason: &str,
    ) -> Result<bool, Error> {
        self.evict_as(name, contender, token, how, Some(reason)).await
    }

    async fn evict_as(
        &self,
        name: &str,
        contender: ContenderId,
        token: Token,
        how: Eviction,
        reason: Option<&str>,
    ) -> Result<bool, Error> {
        check_text("reason", reason)?;
        let reason = reason.map(Into::into);
        let order =
            Evict { name: self.valid(name, "evict")?, contender, number: token.number(), how, reason };
        let engine = self.alive.engine();
        let evicted = engine.ask("evict", engine.store().evict(&order)).await;
        let evicted = evicted.map_err(|error| error.at(self.at(&order.name, "evict")))?;
        tracing::warn!(name, %token, now = how == Eviction::Immediate, done = evicted == Evicted::Done, "eviction ordered");
        Ok(evicted == Evicted::Done)
    }
}
