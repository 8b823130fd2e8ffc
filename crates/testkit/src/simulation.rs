//! The client against a faulty store in virtual time: a seed makes a world with several keepers,
//! bad networks, drifting clocks, suspended machines, lost data and a crash, runs workers in it and
//! lets the history checker judge. The same seed gives the same run, to the last event.

use std::{
    hash::{DefaultHasher, Hash, Hasher},
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use lockkeeper_core::{
    AcquireError, Fence, Guard, Keeper, KeeperId, memory::MemoryServer, support, testing::VirtualClock,
};
use tokio::{
    task::JoinHandle,
    time::{Instant, sleep, timeout},
};

use crate::{
    broken::{Bug, broken},
    dice::Dice,
    faulty::{Faults, Network, faulty},
    history::{self, End, History, Pause, Report, Rules, Section, Share, Verdict, Wait, Write},
};

/// The outcome of one run.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Outcome {
    /// The judge's report.
    pub report: Report,
    /// Whether some worker was still waiting long after everybody should have been served.
    pub stuck: bool,
    /// The holders and waiters whose keepers had closed by then.
    pub left_behind: Vec<String>,
    /// A number for everything that happened: equal for equal runs.
    pub trace: u64,
}

impl Outcome {
    /// Whether all promises were kept.
    pub fn is_good(&self) -> bool {
        !self.stuck
            && self.left_behind.is_empty()
            && matches!(self.report.verdict, Verdict::Safe | Verdict::SafeWithFencing)
    }
}

/// Keepers that work, each with this many workers.
const KEEPERS: u32 = 3;
const WORKERS: u32 = 2;
/// Sections that each worker wants.
const SECTIONS: u32 = 8;
/// Resource 0 is a mutex, 1 a mutex with exact order, 2 a read-write lock, 3 a semaphore.
const RESOURCES: u64 = 4;
const PERMITS: u32 = 3;
const NAMES: [&str; 4] = ["mutex", "fifo", "rw", "permits"];

const LONGEST_LEASE: Duration = Duration::from_secs(60);
/// After this long no copy of a request is under way.
const LATEST_COPY: Duration = Duration::from_secs(30);

/// Longer than any run with good stores: leases, outages and late copies included.
const AGES: Duration = Duration::from_secs(3600);

/// Runs the world of `seed` on a store with `bug`, in virtual time, in a runtime of its own.
///
/// # Panics
/// If the runtime cannot be made.
pub fn run(seed: u64, bug: Bug) -> Outcome {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    runtime.expect("a runtime without I/O").block_on(async { World::new(seed, bug).live().await })
}

struct World {
    dice: Dice,
    bug: Bug,
    start: Instant,
    /// Nanoseconds by which the machines were suspended together.
    suspended: AtomicU64,
    clocks: Mutex<Vec<VirtualClock>>,
    server: MemoryServer,
    fences: [Fence; 4],
    writes: AtomicU64,
}

impl World {
    fn new(seed: u64, bug: Bug) -> Self {
        let mut dice = Dice::new(seed);
        let clock = VirtualClock::new().drifting(drift(&mut dice));
        Self {
            dice,
            bug,
            start: Instant::now(),
            suspended: AtomicU64::new(0),
            server: MemoryServer::new(clock.clock()),
            clocks: Mutex::new(vec![clock]),
            fences: Default::default(),
            writes: AtomicU64::new(0),
        }
    }

    /// World time in nanoseconds, suspended times included.
    fn now(&self) -> u64 {
        let elapsed = u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX);
        elapsed + self.suspended.load(Ordering::Relaxed)
    }

    async fn keeper(&self, number: u32, network: &Arc<Network>, dice: &mut Dice) -> Keeper {
        let clock = VirtualClock::new().drifting(drift(dice));
        support::lock(&self.clocks).push(clock.clone());
        let store = broken(faulty(self.server.connector("memory:"), network.clone()), self.bug);
        let builder = Keeper::builder(store)
            .virtual_time(clock.clock())
            .outage_limit(Duration::from_secs(600))
            .test_id(KeeperId::from_u128(u128::from(number)));
        builder.connect().await.expect("the network is good while connecting")
    }

    async fn live(mut self) -> Outcome {
        let mut dice = self.dice.fork();
        let networks: Vec<_> = (0..=KEEPERS).map(|_| Network::new(dice.fork(), Faults::NONE)).collect();
        let mut keepers = Vec::new();
        for (number, network) in networks.iter().enumerate() {
            keepers.push(self.keeper(number as u32 + 1, network, &mut dice).await);
        }
        for network in &networks {
            network.set(Faults::some(&mut dice));
        }
        let victim = keepers.pop().expect("one more than those who work");
        let world = Arc::new(self);

        let workers = start_workers(&world, &keepers, &mut dice);
        let doomed = tokio::spawn(doomed(victim.clone(), dice.fork()));
        let nemesis = tokio::spawn(world.clone().nemesis(dice.fork(), networks.last().cloned(), doomed));

        let deadline = Instant::now() + AGES;
        let mut history = History::default();
        let mut stuck = false;
        for (seen, task) in workers {
            let ended = tokio::time::timeout_at(deadline, task).await;
            stuck |= !matches!(ended, Ok(Ok(())));
            history.extend([support::lock(&seen).clone()]);
        }
        let done = timeout(AGES, nemesis).await.ok().and_then(Result::ok).unwrap_or_default();
        for network in &networks {
            network.set(Faults::NONE);
        }
        for keeper in &keepers {
            stuck |= timeout(AGES, keeper.close()).await.is_err();
        }
        // Late copies arrive; a grant that they cause now has no owner. A store that lost its data
        // has also lost the tombstones against them, so there the lease has to end it.
        sleep(if done.lost_data { LONGEST_LEASE + Duration::from_secs(20) } else { LATEST_COPY }).await;
        let left_behind = world.left_behind().await;
        let report = history::check(&history, &rules(done.excused));
        let mut hasher = DefaultHasher::new();
        format!("{history:?}").hash(&mut hasher);
        Outcome { report, stuck, left_behind, trace: hasher.finish() }
    }

    /// Holders and waiters of keepers that have closed. The victim's go with their leases.
    async fn left_behind(&self) -> Vec<String> {
        let clock = VirtualClock::new();
        let keeper = Keeper::builder(self.server.connector("memory:")).virtual_time(clock.clock()).connect();
        let page = keeper.await.expect("a good network").list("", None, 100).await.expect("a good network");
        let dead = KeeperId::from_u128(u128::from(KEEPERS) + 1);
        let ids = page.resources.iter().flat_map(|resource| {
            let holders = resource.holders.iter().map(|holder| (holder.contender, "holds"));
            let waiters = resource.waiters.iter().map(|waiter| (waiter.contender, "waits for"));
            holders.chain(waiters).map(|(id, does)| (id, does, resource.name.clone()))
        });
        ids.filter(|(id, ..)| id.keeper != dead)
            .map(|(id, does, name)| format!("{id} {does} {name}"))
            .collect()
    }

    /// Suspends the machines, loses the store's data, kills the victim.
    async fn nemesis(
        self: Arc<Self>,
        mut dice: Dice,
        victim_network: Option<Arc<Network>>,
        victim: JoinHandle<()>,
    ) -> Disruptions {
        let mut done = Disruptions::default();
        let excuse = |done: &mut Disruptions, from: u64, length: Duration| {
            let to = from + length.as_nanos() as u64;
            done.excused.extend((0..KEEPERS * WORKERS).map(|worker| Pause { worker, from, to }));
        };
        sleep(dice.up_to(10_000)).await;
        if let Some(network) = victim_network {
            network.cut();
        }
        victim.abort();
        for _ in 0..dice.below(3) {
            sleep(dice.up_to(15_000)).await;
            let from = self.now();
            if dice.chance(600) {
                let length = dice.up_to(20_000);
                self.suspended.fetch_add(length.as_nanos() as u64, Ordering::Relaxed);
                for clock in &*support::lock(&self.clocks) {
                    clock.suspend(length);
                }
                // A keeper that sleeps sees it at the next look at the clock.
                excuse(&mut done, from, length + Duration::from_secs(2));
            } else {
                self.server.lose_data();
                done.lost_data = true;
                // The holders of before learn of it at their next renewal that gets through.
                excuse(&mut done, from, LONGEST_LEASE);
            }
        }
        done
    }
}

/// Workers on each keeper, each with the history that it records.
fn start_workers(
    world: &Arc<World>,
    keepers: &[Keeper],
    dice: &mut Dice,
) -> Vec<(Arc<Mutex<History>>, JoinHandle<()>)> {
    let mut workers = Vec::new();
    for (index, keeper) in keepers.iter().enumerate() {
        for nth in 0..WORKERS {
            let worker = Worker {
                number: index as u32 * WORKERS + nth,
                world: world.clone(),
                keeper: keeper.clone(),
                dice: dice.fork(),
                seen: Arc::default(),
            };
            workers.push((worker.seen.clone(), tokio::spawn(worker.work())));
        }
    }
    workers
}

/// The deeds of the nemesis.
#[derive(Default)]
struct Disruptions {
    /// The times at which holders could not know that they had lost their locks.
    excused: Vec<Pause>,
    lost_data: bool,
}

fn drift(dice: &mut Dice) -> i32 {
    dice.below(4001) as i32 - 2000
}

fn rules(pauses: Vec<Pause>) -> Rules {
    Rules {
        capacity: [(3, PERMITS)].into(),
        pauses,
        late: 0,
        // Lines lose claims, so the order of asking is not the order of arrival.
        fifo: Default::default(),
        ..Rules::default()
    }
}

/// A process that takes and wants locks until it dies.
async fn doomed(keeper: Keeper, mut dice: Dice) {
    loop {
        let name = NAMES[dice.below(2) as usize];
        let mutex = keeper.mutex(name).lease(Duration::from_secs(5));
        let mutex = if name == "fifo" { mutex.fifo() } else { mutex };
        let guard = mutex.lock().await;
        sleep(dice.up_to(1000)).await;
        drop(guard);
    }
}

struct Worker {
    number: u32,
    world: Arc<World>,
    keeper: Keeper,
    dice: Dice,
    seen: Arc<Mutex<History>>,
}

impl Worker {
    fn record(&self, push: impl FnOnce(&mut History)) {
        push(&mut support::lock(&self.seen));
    }

    async fn work(mut self) {
        for _ in 0..SECTIONS {
            sleep(self.dice.up_to(300)).await;
            let lease = Duration::from_millis(
                [2_000, 6_000, LONGEST_LEASE.as_millis() as u64][self.dice.below(3) as usize],
            );
            let resource = self.dice.below(RESOURCES) as u32;
            let name = NAMES[resource as usize];
            let writes = self.dice.chance(400);
            match resource {
                0 => {
                    let mutex = self.keeper.mutex(name).lease(lease);
                    self.visit(resource, Share::Exclusive, async move { mutex.lock().await }).await;
                }
                1 => {
                    let mutex = self.keeper.mutex(name).expires_after(lease).fifo();
                    self.visit(resource, Share::Exclusive, async move { mutex.lock().await }).await;
                }
                2 if writes => {
                    let lock = self.keeper.rw_lock(name).lease(lease);
                    self.visit(resource, Share::Exclusive, async move { lock.write().await }).await;
                }
                2 => {
                    let lock = self.keeper.rw_lock(name).lease(lease);
                    self.visit(resource, Share::Units(1), async move { lock.read().await }).await;
                }
                _ => {
                    let permits = 1 + self.dice.below(2) as u32;
                    let semaphore = self.keeper.semaphore(name, PERMITS).lease(lease);
                    let acquire = async move { semaphore.acquire_many(permits).await };
                    self.visit(resource, Share::Units(permits), acquire).await;
                }
            }
        }
    }

    /// One acquisition, perhaps given up half-way, and the section behind it.
    async fn visit<M>(
        &mut self,
        resource: u32,
        share: Share,
        acquire: impl Future<Output = Result<Guard<M>, AcquireError>>,
    ) {
        let asked = self.world.now();
        let patience = if self.dice.chance(250) { self.dice.up_to(5_000) } else { AGES * 2 };
        match timeout(patience, acquire).await {
            Ok(Ok(guard)) => self.section(resource, share, asked, guard).await,
            Ok(Err(_)) | Err(_) => {
                let gave_up = Some(self.world.now());
                self.record(|seen| seen.waits.push(Wait { worker: self.number, resource, asked, gave_up }));
            }
        }
    }

    async fn section<M>(&mut self, resource: u32, share: Share, asked: u64, guard: Guard<M>) {
        let world = self.world.clone();
        let granted = world.now();
        let (token, floor) = (guard.token(), guard.floor());
        let mut lost = Box::pin(guard.lost());
        let longest = match self.dice.below(100) {
            0..3 => 150_000,
            3..13 => 20_000,
            _ => 1_500,
        };
        let until = granted + self.dice.up_to(longest).as_nanos() as u64;
        let end = loop {
            if !guard.is_held() {
                break End::Lost;
            }
            // A fenced write, at the very moment at which the guard says that it holds.
            let accepted = world.fences[resource as usize].admit_shared(token, floor).is_ok();
            let at = world.writes.fetch_add(1, Ordering::Relaxed);
            let (token, floor) = (token.as_i64() as u64, floor.as_i64() as u64);
            self.record(|seen| seen.writes.push(Write { resource, token, floor, at, accepted }));
            if world.now() >= until {
                break End::Released;
            }
            tokio::select! {
                biased;
                _ = &mut lost => break End::Lost,
                () = sleep(self.dice.up_to(200)) => {}
            }
        };
        let ended = world.now();
        let (token, floor) = (token.as_i64() as u64, floor.as_i64() as u64);
        self.record(|seen| {
            seen.sections.push(Section {
                worker: self.number,
                resource,
                contender: token,
                token,
                floor,
                share,
                asked,
                granted,
                ended,
                end,
                deadline: u64::MAX,
            });
        });
        if self.dice.chance(700) {
            // Lost or unreachable is part of the game; the checker judges by the records.
            drop(guard.release().await);
        }
    }
}
