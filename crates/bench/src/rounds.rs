//! Rounds of load: tasks that acquire and release for a while, all contestants in turn.

use std::{
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use hdrhistogram::Histogram;
use tokio::{sync::Barrier, task::JoinSet};

use crate::{
    Failure,
    drain::{self, Drain},
    judge::{self, Limit},
    measure,
    peer::{Lock, Peer},
    workload::Workload,
};

pub(crate) type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Every so many acquisitions one is timed. A prime, so that nothing that happens every so many
/// acquisitions, like tokio's budget of 128, is always or never seen.
const TIMED: u64 = 7;

/// The longest time that is told apart from longer ones, in nanoseconds.
const LONGEST: u64 = 60_000_000_000;

pub(crate) fn no_times() -> Result<Histogram<u64>, Failure> {
    Ok(Histogram::new_with_max(LONGEST, 3)?)
}

/// The work of the tasks of a round.
#[derive(Clone, Debug)]
pub(crate) struct Load {
    pub(crate) workload: Workload,
    pub(crate) tasks: usize,
    /// The names; task i uses the one with number i modulo how many there are.
    pub(crate) names: Vec<String>,
    pub(crate) length: Duration,
}

impl Load {
    pub(crate) fn new(workload: Workload, tasks: usize, names: usize, length: Duration) -> Self {
        let names = (0..names).map(|name| format!("{}/{name}", workload.word())).collect();
        Self { workload, tasks, names, length }
    }
}

/// A server's work in a round, by its own account.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Served {
    /// Commands that came to it, if it counts them.
    pub(crate) commands: Option<u64>,
    /// How long it worked on them.
    pub(crate) busy: Duration,
}

impl Served {
    /// The work after `before`.
    pub(crate) fn since(self, before: Self) -> Self {
        let commands = self.commands.zip(before.commands).map(|(after, before)| after - before);
        Self { commands, busy: self.busy.saturating_sub(before.busy) }
    }
}

/// The figures of a round.
#[derive(Clone, Debug)]
pub(crate) struct Round {
    pub(crate) elapsed: Duration,
    /// CPU time of this process.
    pub(crate) cpu: Duration,
    /// Acquisitions of each task.
    pub(crate) shares: Vec<u64>,
    /// Acquisitions right after another task's of the same name.
    pub(crate) passed: u64,
    /// Requests to the store, if they are counted.
    pub(crate) requests: Option<u64>,
    /// The server's account, if it is asked.
    pub(crate) served: Option<Served>,
    /// How long an acquisition and its release took, in nanoseconds, without the critical section in between.
    pub(crate) times: Histogram<u64>,
}

impl Round {
    pub(crate) fn acquired(&self) -> f64 {
        self.shares.iter().sum::<u64>() as f64
    }

    pub(crate) fn rate(&self) -> f64 {
        self.acquired() / self.elapsed.as_secs_f64()
    }

    /// Client CPU per acquisition and release, in microseconds.
    pub(crate) fn cpu_micros(&self) -> f64 {
        self.cpu.as_secs_f64() * 1e6 / self.acquired()
    }

    /// Requests per acquisition and release.
    pub(crate) fn requests_each(&self) -> Option<f64> {
        self.requests.map(|requests| requests as f64 / self.acquired())
    }

    /// Commands to the server per acquisition and release.
    pub(crate) fn commands_each(&self) -> Option<f64> {
        self.served?.commands.map(|commands| commands as f64 / self.acquired())
    }

    /// The server's work per acquisition and release, in microseconds.
    pub(crate) fn server_micros(&self) -> Option<f64> {
        self.served.map(|served| served.busy.as_secs_f64() * 1e6 / self.acquired())
    }

    pub(crate) fn micros_at(&self, quantile: f64) -> f64 {
        self.times.value_at_quantile(quantile) as f64 / 1e3
    }
}

/// A contestant in a measurement.
pub(crate) trait Contestant: Send + Sync {
    fn name(&self) -> &'static str;

    /// The goal for Lockkeeper's rate divided by this contestant's.
    fn goal(&self, workload: Workload) -> Option<Limit>;

    /// The same with `.fifo()`, where that takes part.
    fn fifo_goal(&self, _: Workload) -> Option<Limit> {
        None
    }

    /// Whether it can do this at all.
    fn takes_part(&self, workload: Workload) -> bool;

    /// One round of acquiring and releasing.
    fn round<'a>(&'a self, load: &'a Load) -> BoxFuture<'a, Result<Round, Failure>>;

    /// One round of waiting and draining.
    fn drain(&self, waiters: usize, wait: Duration) -> BoxFuture<'_, Result<Drain, Failure>>;
}

impl<P: Peer> Contestant for P {
    fn name(&self) -> &'static str {
        Peer::name(self)
    }

    fn goal(&self, workload: Workload) -> Option<Limit> {
        Peer::goal(self, workload)
    }

    fn fifo_goal(&self, workload: Workload) -> Option<Limit> {
        Peer::fifo_goal(self, workload)
    }

    fn takes_part(&self, workload: Workload) -> bool {
        Peer::takes_part(self, workload)
    }

    fn round<'a>(&'a self, load: &'a Load) -> BoxFuture<'a, Result<Round, Failure>> {
        Box::pin(round(self, load))
    }

    fn drain(&self, waiters: usize, wait: Duration) -> BoxFuture<'_, Result<Drain, Failure>> {
        Box::pin(drain::drain(self, waiters, wait))
    }
}

/// A contestant and its rounds.
pub(crate) type Raced<'a> = (&'a dyn Contestant, Vec<Round>);

/// So many rounds of each contestant, one after the other in turn, so that other load of the machine meets all of them.
/// A short round of each comes first and is thrown away.
pub(crate) async fn interleaved(
    contestants: &[&dyn Contestant],
    load: &Load,
    rounds: usize,
) -> Result<Vec<Vec<Round>>, Failure> {
    let mut results = vec![Vec::with_capacity(rounds); contestants.len()];
    let warm_up = Load { length: load.length / 10, ..load.clone() };
    for contestant in contestants {
        contestant.round(&warm_up).await?;
    }
    for _ in 0..rounds {
        for (contestant, results) in contestants.iter().zip(&mut results) {
            results.push(contestant.round(load).await?);
        }
    }
    Ok(results)
}

/// The value that a lock protects in a round: a number that two tasks at once would miscount. It is read and written in
/// two steps, as a plain variable is.
#[derive(Default)]
struct Protected {
    counter: AtomicU64,
    last: AtomicU64,
}

impl Protected {
    /// The critical section. Tells whether another task was here just before.
    fn enter(&self, task: u64) -> bool {
        let before = self.counter.load(Ordering::Relaxed);
        let passed = self.last.load(Ordering::Relaxed) != task;
        if passed {
            self.last.store(task, Ordering::Relaxed);
        }
        self.counter.store(before + 1, Ordering::Relaxed);
        passed
    }
}

/// The work of one task.
struct TaskResult {
    acquired: u64,
    passed: u64,
    times: Histogram<u64>,
}

/// Acquires and releases until told to stop.
async fn acquire_and_release<L: Lock>(
    lock: L,
    task: u64,
    protected: Arc<Protected>,
    start: Arc<Barrier>,
    stop: Arc<AtomicBool>,
) -> Result<TaskResult, Failure> {
    let mut result = TaskResult { acquired: 0, passed: 0, times: no_times()? };
    start.wait().await;
    while !stop.load(Ordering::Relaxed) {
        let asked = result.acquired.is_multiple_of(TIMED).then(Instant::now);
        let held = lock.acquire().await?;
        let passed = protected.enter(task);
        L::release(held).await?;
        if let Some(asked) = asked {
            result.times.saturating_record(u64::try_from(asked.elapsed().as_nanos()).unwrap_or(u64::MAX));
        }
        result.acquired += 1;
        result.passed += u64::from(passed);
    }
    Ok(result)
}

async fn round<P: Peer>(peer: &P, load: &Load) -> Result<Round, Failure> {
    let start = Arc::new(Barrier::new(load.tasks + 1));
    let stop = Arc::new(AtomicBool::new(false));
    let locks: Vec<(P::Lock, Arc<Protected>)> =
        load.names.iter().map(|name| (peer.lock(name), Arc::default())).collect();
    let mut tasks = JoinSet::new();
    for task in 0..load.tasks {
        let (lock, protected) = locks[task % locks.len()].clone();
        tasks.spawn(acquire_and_release(lock, task as u64 + 1, protected, start.clone(), stop.clone()));
    }
    // Before anybody starts, so that all they do is in it.
    let (started, cpu, requests) = (Instant::now(), measure::cpu(), peer.requests());
    start.wait().await;
    // A thread of its own: a peer that never gives its worker back would hold up a timer.
    let timer = thread::spawn({
        let (stop, length) = (stop.clone(), load.length);
        move || {
            thread::sleep(length);
            stop.store(true, Ordering::Relaxed);
        }
    });
    let mut round = Round {
        elapsed: Duration::ZERO,
        cpu,
        shares: Vec::new(),
        passed: 0,
        requests: None,
        served: None,
        times: no_times()?,
    };
    while let Some(result) = tasks.join_next().await {
        let result = result??;
        round.shares.push(result.acquired);
        round.passed += result.passed;
        round.times.add(&result.times)?;
    }
    round.elapsed = started.elapsed();
    round.cpu = measure::cpu().saturating_sub(cpu);
    round.requests = peer.requests().zip(requests).map(|(after, before)| after - before);
    timer.join().map_err(|_| "the timer's thread panicked")?;
    let counted: u64 = locks.iter().map(|(_, protected)| protected.counter.load(Ordering::Relaxed)).sum();
    let acquired: u64 = round.shares.iter().sum();
    if counted != acquired {
        let name = Peer::name(peer);
        return Err(format!("{name}: two tasks held one lock: {acquired} acquired, {counted} counted").into());
    }
    Ok(round)
}

/// Jain's index of a round.
pub(crate) fn fairness(round: &Round) -> f64 {
    judge::jain(&round.shares)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::peers::{TokioPeer, broken::Broken};

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_round_counts_what_was_done() {
        let load = Load::new(Workload::W3, 3, 2, Duration::from_millis(50));
        let round = TokioPeer::default().round(&load).await.expect("a round");
        assert_eq!(round.shares.len(), 3);
        assert!(round.rate() > 0.0 && round.cpu_micros() > 0.0 && !round.times.is_empty());
        assert!(round.elapsed >= load.length);
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_lock_that_locks_nothing_is_found_out() {
        let load = Load::new(Workload::W3, 4, 1, Duration::from_millis(100));
        // On a busy machine the two workers may take turns for a whole round.
        for _ in 0..50 {
            if let Err(error) = Broken.round(&load).await {
                assert!(error.to_string().contains("two tasks held one lock"), "{error}");
                return;
            }
        }
        panic!("nothing was locked and no round noticed");
    }
}
