//! The fixture of each test: keepers, names that no other test uses, and the check that it left nothing behind.

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use lockkeeper_core::{
    Capability, Error, Keeper, KeeperBuilder, KeeperId, Leader, Name, StoreError,
    clock::Clock,
    store::{Connector, ResourceView},
    support,
};
use tokio::{
    runtime::{Builder, Runtime},
    task::JoinHandle,
    time::{error::Elapsed, sleep, timeout},
};

use super::{Failure, Outcome};

/// How long anything that must happen may take. Only a failing test waits so long.
pub(super) const PATIENCE: Duration = Duration::from_secs(30);

/// How long to watch something that must not happen, and how long a limited wait is.
pub(super) const BRIEFLY: Duration = Duration::from_millis(300);

/// How much clocks that count in milliseconds may take off a span.
pub(super) const ROUNDING: Duration = Duration::from_millis(5);

/// How long a release in the background may take before it counts as left behind. It is shorter than the default lease
/// and than the lease of a waiter, so neither of them can hide a release that was forgotten.
const PROMPTLY: Duration = Duration::from_secs(10);

/// The request limit of all keepers. The disk of a shared machine can stand still for seconds, and no test is about
/// that.
const REQUEST_LIMIT: Duration = Duration::from_secs(10);

/// Waits for something that must happen.
pub(super) async fn soon<T>(what: impl Future<Output = T>) -> Result<T, Elapsed> {
    timeout(PATIENCE, what).await
}

/// How long a task may take until it waits in the queue: two requests on a machine whose disk is busy.
pub(super) const TIME_TO_QUEUE: Duration = Duration::from_secs(1);

/// Checks that `waiter` waits: it has had the time to queue up, and has no answer.
pub(super) async fn still_waits<T>(waiter: &mut JoinHandle<T>) -> Outcome {
    match timeout(TIME_TO_QUEUE, waiter).await {
        Err(_) => Ok(()),
        Ok(_) => Err(Failure::new("the waiter has its answer too early")),
    }
}

/// The part that all tests of one run share.
pub(super) struct Suite {
    connect: Box<dyn Fn() -> Connector + Send + Sync>,
    /// Inspects the holds of other keepers. It also keeps a memory store from ending with its last keeper.
    watcher: Keeper,
    /// No two runs have a name in common.
    run: String,
    /// The runtime that the watcher was connected in, and in which its store's tasks run. `None` only while it is
    /// dropped.
    runtime: Option<Runtime>,
}

impl Suite {
    pub(super) fn open(
        runtime: Runtime,
        connect: impl Fn() -> Connector + Send + Sync + 'static,
    ) -> Result<Self, StoreError> {
        let watcher = runtime.block_on(Keeper::builder(connect()).connect())?;
        let run = KeeperId::random().to_string()[..8].to_owned();
        Ok(Self { connect: Box::new(connect), watcher, run, runtime: Some(runtime) })
    }

    pub(super) fn capability(&self) -> &Capability {
        self.watcher.capability()
    }
}

impl Drop for Suite {
    /// The last test may end inside its own runtime, which must not block on the end of this one.
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// The fixture of one test, and the names that it used.
pub struct Fixture {
    suite: Arc<Suite>,
    prefix: String,
    names: Mutex<BTreeSet<String>>,
}

impl Fixture {
    pub(super) fn new(suite: Arc<Suite>, test: &str) -> Self {
        let prefix = format!("behaviour/{}/{test}/", suite.run);
        Self { suite, prefix, names: Mutex::default() }
    }

    /// Returns the abilities of the store.
    pub fn capability(&self) -> &Capability {
        self.suite.capability()
    }

    /// A connector to the store.
    pub fn connector(&self) -> Connector {
        (self.suite.connect)()
    }

    /// The builder of a keeper.
    pub fn builder(&self) -> KeeperBuilder {
        Keeper::builder(self.connector()).request_limit(REQUEST_LIMIT)
    }

    /// A new connection: another process, as far as the store can tell.
    pub async fn keeper(&self) -> Result<Keeper, StoreError> {
        self.builder().connect().await
    }

    /// Two keepers.
    pub(super) async fn two_keepers(&self) -> Result<(Keeper, Keeper), StoreError> {
        Ok((self.keeper().await?, self.keeper().await?))
    }

    /// A keeper that can be killed, as a process can.
    pub(super) async fn killable_keeper(&self) -> Result<KillableKeeper, Failure> {
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        // Everything that the keeper does in the background then ends with this runtime.
        let builder = self.builder().virtual_time(Clock::boot());
        let keeper = runtime.spawn(builder.connect()).await??;
        Ok(KillableKeeper { keeper, runtime: Some(runtime) })
    }

    /// Returns the prefix of all names of this test.
    pub fn prefix(&self) -> &str {
        &self.prefix
    }

    /// A name that no other test uses.
    pub fn name(&self, what: &str) -> String {
        let name = format!("{}{what}", self.prefix);
        support::lock(&self.names).insert(name.clone());
        name
    }

    /// A lease that ends soon.
    pub fn short_lease(&self) -> Duration {
        self.capability().min_lease.max(Duration::from_millis(400))
    }

    /// A lease for a lock that is renewed. It is long enough that a busy machine does not lose it.
    pub fn renewed_lease(&self) -> Duration {
        self.capability().min_lease.max(Duration::from_secs(3))
    }

    /// How often to repeat something that waits for another process: `pushed` times if the store pushes, else `polled`
    /// times, because each wait then takes longer.
    pub fn repeats(&self, pushed: u32, polled: u32) -> u32 {
        if self.capability().pushes { pushed } else { polled }
    }

    /// Returns the holders of `name` and the waiters for it, as another keeper sees them.
    pub async fn view(&self, name: &str) -> Result<Option<ResourceView>, Error> {
        self.suite.watcher.inspect(name).await
    }

    /// Returns the leader, as another keeper sees it.
    pub(super) async fn leader(&self, name: &str) -> Result<Option<Leader>, StoreError> {
        self.suite.watcher.election(name).leader().await
    }

    /// How long holds and waiters may take to end: longer where a session must end first.
    fn promptly(&self) -> Duration {
        PROMPTLY + 2 * self.capability().min_lease
    }

    /// Waits until so many hold `name` and so many wait for it.
    #[track_caller]
    pub(super) fn wait_until(
        &self,
        name: &str,
        holders: usize,
        waiters: usize,
    ) -> impl Future<Output = Result<(), Failure>> + Send {
        let late = Failure::new(format!("never {holders} holders and {waiters} waiters of {name}"));
        async move {
            let ends = Instant::now() + self.promptly();
            loop {
                let view = self.view(name).await?;
                let now = view.map_or((0, 0), |view| (view.holders.len(), view.waiters.len()));
                if now == (holders, waiters) {
                    return Ok(());
                }
                if Instant::now() > ends {
                    return Err(Failure(format!("{}, but {} and {}", late.0, now.0, now.1)));
                }
                sleep(Duration::from_millis(5)).await;
            }
        }
    }

    /// Starts `waiting`, and returns once it has this position in the queue behind one holder.
    #[track_caller]
    pub(super) fn start_waiter<T: Send + 'static>(
        &self,
        name: &str,
        position: usize,
        waiting: impl Future<Output = T> + Send + 'static,
    ) -> impl Future<Output = Result<JoinHandle<T>, Failure>> + Send {
        let queued = self.wait_until(name, 1, position);
        let task = tokio::spawn(waiting);
        async move {
            queued.await?;
            assert!(!task.is_finished(), "it is in the queue and yet has its answer");
            Ok(task)
        }
    }

    /// Checks that nothing that this test used is held, waited for or counted any more.
    pub(super) async fn nothing_is_left(&self) -> Outcome {
        let ends = Instant::now() + self.promptly();
        loop {
            let left = self.leftovers().await?;
            if left.is_empty() {
                return Ok(());
            }
            if Instant::now() > ends {
                return Err(Failure::new(format!("left behind: {}", left.join(", "))));
            }
            sleep(Duration::from_millis(10)).await;
        }
    }

    /// Removes the latches that a failed test left behind, since no lease would end them.
    pub(super) async fn clean_up(&self) {
        for name in self.used().into_iter().filter(|_| self.capability().counts_permits) {
            // It is there or not; the test has failed in any case.
            drop(soon(self.suite.watcher.latch(&name).delete()).await);
        }
    }

    /// The names that the test asked for.
    fn used(&self) -> BTreeSet<String> {
        support::lock(&self.names).clone()
    }

    async fn leftovers(&self) -> Result<Vec<String>, Failure> {
        let watcher = &self.suite.watcher;
        // Also names that the test did not ask for, such as those of segments.
        let listed = watcher.list(&self.prefix, None, 100).await?.resources;
        let mut left: Vec<String> = listed.iter().map(|view| view.name.to_string()).collect();
        for name in self.used().into_iter().filter(|name| Name::new(name).is_ok()) {
            if let Some(view) = watcher.inspect(&name).await? {
                left.push(format!("{view:?}"));
            }
            if self.capability().counts_permits && watcher.latch(&name).state().await?.is_some() {
                left.push(format!("the latch {name}"));
            }
        }
        Ok(left)
    }
}

/// A keeper whose background tasks run in a runtime of their own.
pub(super) struct KillableKeeper {
    pub(super) keeper: Keeper,
    runtime: Option<Runtime>,
}

impl KillableKeeper {
    /// Runs `work` in the same runtime: it ends with the keeper.
    pub(super) fn run<T: Send + 'static>(
        &self,
        work: impl Future<Output = T> + Send + 'static,
    ) -> JoinHandle<T> {
        self.runtime.as_ref().expect("taken only by kill").spawn(work)
    }

    /// Ends it at once, as a crash does: without releases, without closing, without further renewals.
    pub(super) async fn kill(mut self) -> Outcome {
        let runtime = self.runtime.take();
        Ok(tokio::task::spawn_blocking(move || drop(runtime)).await?)
    }
}

impl Drop for KillableKeeper {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}
