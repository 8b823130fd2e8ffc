//! What a test stands on: keepers, names of its own, and the proof that it left nothing behind.

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

/// How long anything that must come may take: only a test that fails waits so long.
pub(super) const PATIENCE: Duration = Duration::from_secs(30);

/// How long something is watched that must not happen, and how long a limited wait is.
pub(super) const BRIEFLY: Duration = Duration::from_millis(300);

/// What clocks that count in milliseconds may take off a span.
pub(super) const ROUNDING: Duration = Duration::from_millis(5);

/// How long a release in the background may take before it counts as left behind. Shorter than
/// the default lease and than what a place in line lasts by itself: neither must be what ends
/// something that was forgotten.
const PROMPTLY: Duration = Duration::from_secs(10);

/// How long a request may take here: a shared machine's disk stands still for seconds at times, and
/// no test is about that.
const SLOWEST: Duration = Duration::from_secs(10);

/// Waits for what must come.
pub(super) async fn soon<T>(what: impl Future<Output = T>) -> Result<T, Elapsed> {
    timeout(PATIENCE, what).await
}

/// After how long whoever was told to wait does: two requests on a machine whose disk is busy.
pub(super) const BEGUN: Duration = Duration::from_secs(1);

/// Sees that `waiter` waits: it has had the time to begin, and has no answer.
pub(super) async fn still_waits<T>(waiter: &mut JoinHandle<T>) -> Outcome {
    match timeout(BEGUN, waiter).await {
        Err(_) => Ok(()),
        Ok(_) => Err(Failure::new("it has its answer before what it waits for has happened")),
    }
}

/// What all tests of one run share.
pub(super) struct House {
    connect: Box<dyn Fn() -> Connector + Send + Sync>,
    /// Looks at what others do. It also keeps a memory store from ending with its last keeper.
    watcher: Keeper,
    /// No two runs have a name in common.
    run: String,
    /// Where the watcher was connected: what a store began there goes on for as long as the house
    /// stands. `None` only when it is being torn down.
    runtime: Option<Runtime>,
}

impl House {
    pub(super) fn open(
        runtime: Runtime,
        connect: impl Fn() -> Connector + Send + Sync + 'static,
    ) -> Result<Self, StoreError> {
        let watcher = runtime.block_on(Keeper::builder(connect()).connect())?;
        let run = KeeperId::random().to_string()[..8].to_owned();
        Ok(Self { connect: Box::new(connect), watcher, run, runtime: Some(runtime) })
    }

    pub(super) fn can(&self) -> &Capability {
        self.watcher.capability()
    }
}

impl Drop for House {
    /// The last test may end in a runtime of its own, where another may not be waited for.
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// The place of one test.
pub struct Stage {
    house: Arc<House>,
    prefix: String,
    names: Mutex<BTreeSet<String>>,
}

impl Stage {
    pub(super) fn new(house: Arc<House>, test: &str) -> Self {
        let prefix = format!("behaviour/{}/{test}/", house.run);
        Self { house, prefix, names: Mutex::default() }
    }

    /// What the store can do.
    pub fn can(&self) -> &Capability {
        self.house.can()
    }

    /// A new way to the store.
    pub fn connector(&self) -> Connector {
        (self.house.connect)()
    }

    /// A keeper to be.
    pub fn builder(&self) -> KeeperBuilder {
        Keeper::builder(self.connector()).request_limit(SLOWEST)
    }

    /// A new connection: another process, as far as the store can tell.
    pub async fn keeper(&self) -> Result<Keeper, StoreError> {
        self.builder().connect().await
    }

    /// Two of them.
    pub(super) async fn two(&self) -> Result<(Keeper, Keeper), StoreError> {
        Ok((self.keeper().await?, self.keeper().await?))
    }

    /// A process that can be killed.
    pub(super) async fn process(&self) -> Result<Process, Failure> {
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        // Everything a keeper does in the background then dies with this runtime.
        let builder = self.builder().virtual_time(Clock::boot());
        let keeper = runtime.spawn(builder.connect()).await??;
        Ok(Process { keeper, runtime: Some(runtime) })
    }

    /// What all names of this test start with.
    pub fn prefix(&self) -> &str {
        &self.prefix
    }

    /// A name that no other test uses.
    pub fn name(&self, what: &str) -> String {
        let name = format!("{}{what}", self.prefix);
        support::lock(&self.names).insert(name.clone());
        name
    }

    /// A lease that is to end soon.
    pub fn short(&self) -> Duration {
        self.can().min_lease.max(Duration::from_millis(400))
    }

    /// A lease that is to be renewed: long enough that a busy machine does not lose it.
    pub fn renewed(&self) -> Duration {
        self.can().min_lease.max(Duration::from_secs(3))
    }

    /// How often to repeat something that waits for another process: rarely where that is found
    /// out by polling.
    pub fn times(&self, pushed: u32, polled: u32) -> u32 {
        if self.can().pushes { pushed } else { polled }
    }

    /// Who holds `name` and who waits, as an onlooker sees it.
    pub async fn view(&self, name: &str) -> Result<Option<ResourceView>, Error> {
        self.house.watcher.inspect(name).await
    }

    /// Who leads.
    pub(super) async fn leader(&self, name: &str) -> Result<Option<Leader>, StoreError> {
        self.house.watcher.election(name).leader().await
    }

    /// How long holds and places may take to end: more where a session must end first.
    fn promptly(&self) -> Duration {
        PROMPTLY + 2 * self.can().min_lease
    }

    /// Waits until so many hold `name` and so many wait for it.
    #[track_caller]
    pub(super) fn until(
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

    /// Starts `waiting` and returns once it is the `place`th in line behind one holder.
    #[track_caller]
    pub(super) fn line_up<T: Send + 'static>(
        &self,
        name: &str,
        place: usize,
        waiting: impl Future<Output = T> + Send + 'static,
    ) -> impl Future<Output = Result<JoinHandle<T>, Failure>> + Send {
        let in_line = self.until(name, 1, place);
        let task = tokio::spawn(waiting);
        async move {
            in_line.await?;
            assert!(!task.is_finished(), "it stands in line and yet has its answer");
            Ok(task)
        }
    }

    /// Nothing that this test used is held, waited for or counted any more.
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

    /// Removes what a failed test could not: a latch has no lease that would end it.
    pub(super) async fn clean_up(&self) {
        for name in self.used() {
            // It is there or not; the test has failed in any case.
            drop(soon(self.house.watcher.latch(&name).delete()).await);
        }
    }

    /// The names that the test asked for.
    fn used(&self) -> BTreeSet<String> {
        support::lock(&self.names).clone()
    }

    async fn leftovers(&self) -> Result<Vec<String>, Failure> {
        let watcher = &self.house.watcher;
        // Also what has a name that the test did not ask for, such as a segment.
        let listed = watcher.list(&self.prefix, None, 100).await?.resources;
        let mut left: Vec<String> = listed.iter().map(|view| view.name.to_string()).collect();
        for name in self.used().into_iter().filter(|name| Name::new(name).is_ok()) {
            if let Some(view) = watcher.inspect(&name).await? {
                left.push(format!("{view:?}"));
            }
            if watcher.latch(&name).state().await?.is_some() {
                left.push(format!("the latch {name}"));
            }
        }
        Ok(left)
    }
}

/// A keeper whose whole background lives in a runtime of its own.
pub(super) struct Process {
    pub(super) keeper: Keeper,
    runtime: Option<Runtime>,
}

impl Process {
    /// Runs `work` inside the process: it dies with it.
    pub(super) fn run<T: Send + 'static>(
        &self,
        work: impl Future<Output = T> + Send + 'static,
    ) -> JoinHandle<T> {
        self.runtime.as_ref().expect("taken only by kill").spawn(work)
    }

    /// Ends it at once: no release, no farewell, no renewals. What it would still like to do
    /// finds no runtime to do it in.
    pub(super) async fn kill(mut self) -> Outcome {
        let runtime = self.runtime.take();
        Ok(tokio::task::spawn_blocking(move || drop(runtime)).await?)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}
