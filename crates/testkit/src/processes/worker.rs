//! The work of a worker process: tasks that go through sections, and report them line by line.

use std::{
    error::Error,
    io::{self, Read as _, Write as _},
    path::PathBuf,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

use lockkeeper::{AcquireError, Guard, Keeper, url};
use lockkeeper_core::{clock::Clock, support};
use rustix::process::{PTracer, set_ptracer};
use tokio::time::sleep;

use super::{Task, event::Event, fenced::FencedCounter};
use crate::{
    broken::broken,
    dice::Dice,
    faulty::{Faults, Network, faulty},
};

/// Works as `task` says, until the standard input ends.
///
/// # Errors
/// If the store cannot be reached.
pub async fn work(task: Task) -> Result<(), Box<dyn Error + Send + Sync>> {
    // So that its parent may break its disk; where that needs no leave, there is none to give.
    set_ptracer(PTracer::Any).ok();
    let mut dice = Dice::new(task.seed);
    let network = Network::new(dice.fork(), Faults::NONE);
    let store = url::connector(&task.url)?;
    let store = if task.bad_network { faulty(store, network.clone()) } else { store };
    let builder = Keeper::builder(broken(store, task.bug)).outage_limit(Duration::from_secs(600));
    // The price of a lost reply.
    let builder = if task.bad_network { builder.request_limit(Duration::from_millis(500)) } else { builder };
    let keeper = builder.connect().await?;
    network.set(BAD_NETWORK);
    let stop = Arc::new(AtomicBool::new(false));
    stop_when_input_ends(stop.clone());
    tell(Event::Ready);
    let mut tasks = tokio::task::JoinSet::new();
    for number in 0..task.tasks {
        let worker_task = WorkerTask {
            number,
            keeper: keeper.clone(),
            dice: dice.fork(),
            task: task.clone(),
            stop: stop.clone(),
        };
        tasks.spawn(worker_task.work());
    }
    while let Some(ended) = tasks.join_next().await {
        ended??;
    }
    network.set(Faults::NONE);
    keeper.close().await;
    Ok(())
}

/// Bad enough that every worker asks again now and then, good enough that most get on.
const BAD_NETWORK: Faults = Faults {
    lost_request: 5,
    lost_reply: 15,
    doubled: 20,
    slow: 10,
    lost_wake: 100,
    odd_wake: 50,
    usual: 1,
    late: 1500,
};

fn stop_when_input_ends(stop: Arc<AtomicBool>) {
    thread::spawn(move || {
        // The parent is gone or wants an end; either way the input has ended.
        drop(io::stdin().read_to_end(&mut Vec::new()));
        stop.store(true, Ordering::Release);
    });
}

/// Writes one event as a line.
fn tell(event: Event) {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _one = support::lock(&ONE_AT_A_TIME);
    let mut out = io::stdout().lock();
    if writeln!(out, "{event}").and_then(|()| out.flush()).is_err() {
        // The parent is gone.
        std::process::exit(1);
    }
}

fn now() -> u64 {
    Clock::boot().now().0
}

/// One task of a worker.
struct WorkerTask {
    number: u32,
    keeper: Keeper,
    dice: Dice,
    task: Task,
    stop: Arc<AtomicBool>,
}

impl WorkerTask {
    async fn work(mut self) -> io::Result<()> {
        while !self.stop.load(Ordering::Acquire) {
            let resource = self.dice.below(u64::from(self.task.resources)) as u32;
            let (name, lease) = (format!("{}/{resource}", self.task.prefix), self.task.lease);
            let keeper = self.keeper.clone();
            // By number: a mutex, one with exact order, a read-write lock, a semaphore, and again.
            match resource % 4 {
                3 if !keeper.capability().counts_permits => {
                    let mutex = keeper.mutex(&name).lease(lease);
                    self.visit(resource, 0, async move { mutex.lock().await }).await?;
                }
                0 => {
                    let mutex = keeper.mutex(&name).lease(lease);
                    self.visit(resource, 0, async move { mutex.lock().await }).await?;
                }
                1 => {
                    let mutex = keeper.mutex(&name).lease(lease).fifo();
                    self.visit(resource, 0, async move { mutex.lock().await }).await?;
                }
                2 if self.dice.chance(400) => {
                    let lock = keeper.rw_lock(&name).lease(lease);
                    self.visit(resource, 0, async move { lock.write().await }).await?;
                }
                2 => {
                    let lock = keeper.rw_lock(&name).lease(lease);
                    self.visit(resource, 1, async move { lock.read().await }).await?;
                }
                _ => {
                    let units = 1 + self.dice.below(2) as u32;
                    let semaphore = keeper.semaphore(&name, super::PERMITS).lease(lease);
                    self.visit(resource, units, async move { semaphore.acquire_many(units).await }).await?;
                }
            }
        }
        Ok(())
    }

    /// One acquisition, perhaps given up half-way, and the section behind it.
    async fn visit<M>(
        &mut self,
        resource: u32,
        units: u32,
        acquire: impl Future<Output = Result<Guard<M>, AcquireError>>,
    ) -> io::Result<()> {
        let task = self.number;
        tell(Event::Ask { task, resource, at: now() });
        let patience = if self.dice.chance(50) { self.dice.up_to(50) } else { Duration::from_secs(3600) };
        match tokio::time::timeout(patience, acquire).await {
            Ok(Ok(guard)) => self.section(resource, units, guard).await,
            Ok(Err(_)) => {
                tell(Event::GaveUp { task, at: now() });
                // A store in trouble is not asked at full speed.
                sleep(self.dice.up_to(20)).await;
                Ok(())
            }
            Err(_) => {
                tell(Event::GaveUp { task, at: now() });
                Ok(())
            }
        }
    }

    async fn section<M>(&mut self, resource: u32, units: u32, guard: Guard<M>) -> io::Result<()> {
        let task = self.number;
        let granted = now();
        let plain = |token: lockkeeper::Token| token.as_i64().unsigned_abs();
        let (token, floor) = (plain(guard.token()), plain(guard.floor()));
        tell(Event::Held { task, token, floor, units, at: granted });
        let until = granted + self.length().as_nanos() as u64;
        let mut lost = Box::pin(guard.lost());
        let mut deadline = u64::MAX;
        let lost = loop {
            let left = guard.remaining();
            if !guard.is_held() {
                break true;
            }
            deadline = now().saturating_add(left.as_nanos() as u64);
            let (place, accepted) = self.counter(resource)?.admit(token, floor)?;
            tell(Event::Wrote { task, place, accepted });
            if now() >= until {
                break false;
            }
            tokio::select! {
                biased;
                _ = &mut lost => break true,
                () = sleep(self.dice.up_to(2)) => {}
            }
        };
        tell(Event::End { task, lost, at: now(), deadline });
        if self.dice.chance(800) {
            // Lost or out of reach is part of the game; the judge goes by the records.
            drop(guard.release().await);
        }
        Ok(())
    }

    /// Chooses the length of a section: mostly short, so that there are many; now and then past a renewal.
    fn length(&mut self) -> Duration {
        if self.task.hold_for_ever {
            Duration::from_secs(3600)
        } else if self.dice.chance(2) {
            self.task.lease.mul_f64(0.5 + self.dice.below(1000) as f64 / 1000.0)
        } else if self.dice.chance(200) {
            self.dice.up_to(20)
        } else {
            Duration::ZERO
        }
    }

    /// Opens the counter anew each time, as a stopped process may find the file replaced.
    fn counter(&self, resource: u32) -> io::Result<FencedCounter> {
        let path: PathBuf = self.task.folder.join(format!("{}-{resource}", self.task.prefix));
        FencedCounter::open(&path)
    }
}
