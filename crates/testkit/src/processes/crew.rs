//! The parent's side: starts worker processes, injects faults, and joins their events into a history.

use std::{
    collections::HashMap,
    io::{self, BufRead as _, BufReader},
    path::{Path, PathBuf},
    process::{Child, ChildStdin, Command, Stdio},
    sync::mpsc::{self, Receiver, RecvTimeoutError, Sender},
    thread,
    time::{Duration, Instant},
};

use lockkeeper_core::clock::Clock;
use rustix::process::{Pid, Resource, Rlimit, Signal};

use super::{DiskFault, Event, PERMITS, Task, disk::BadDisk, event};
use crate::{
    dice::Dice,
    history::{End, History, Pause, Rules, Section, Wait, Write},
};

/// How long a stopped worker is given to notice, once it runs again.
const TO_NOTICE: Duration = Duration::from_millis(1500);

/// The same after a stop that was much shorter than its leases.
const TO_NOTICE_BRIEFLY: Duration = Duration::from_millis(200);

/// How often a worker is stopped in search of the right moment.
const STOPS: usize = 50;

/// Worker processes on one store, and the events that they have reported so far.
#[derive(Debug)]
pub struct Crew {
    program: PathBuf,
    task: Task,
    dice: Dice,
    workers: Vec<WorkerProcess>,
    sender: Sender<(u32, Option<Event>)>,
    events: Receiver<(u32, Option<Event>)>,
    started: u32,
    history: History,
    pauses: Vec<Pause>,
    last_fault: u64,
    crashes: bool,
}

/// One worker process.
#[derive(Debug)]
pub struct WorkerProcess {
    number: u32,
    child: Child,
    input: Option<ChildStdin>,
    /// Acquisitions and sections under way, by task.
    open: HashMap<u32, Visit>,
    killed: Option<u64>,
    gone: bool,
}

#[derive(Clone, Copy, Debug)]
struct Visit {
    resource: u32,
    asked: u64,
    held: Option<(u64, u64, u32, u64)>,
}

/// A fault of a worker process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WorkerFault {
    /// It is killed, and another one is started.
    Kill,
    /// It is stopped for a while, longer than its leases last.
    Stop,
    /// Its files cannot grow for a while.
    SmallFiles,
    /// Its disk fails for a while.
    Disk(DiskFault),
    /// It cannot open files for a while.
    NoFiles,
}

fn now() -> u64 {
    Clock::boot().now().0
}

impl Crew {
    /// Starts `workers` workers that do `task`, each a process of `program`.
    ///
    /// # Errors
    /// If they cannot be started.
    pub fn start(program: &Path, task: Task, workers: u32) -> io::Result<Self> {
        let (sender, events) = mpsc::channel();
        let mut crew = Self {
            program: program.to_owned(),
            dice: Dice::new(task.seed),
            task,
            workers: Vec::new(),
            sender,
            events,
            started: 0,
            history: History::default(),
            pauses: Vec::new(),
            last_fault: now(),
            crashes: false,
        };
        for _ in 0..workers {
            crew.start_worker()?;
        }
        Ok(crew)
    }

    /// Starts one more worker.
    ///
    /// # Errors
    /// If it cannot be started.
    pub fn start_worker(&mut self) -> io::Result<()> {
        let number = self.started;
        self.started += 1;
        let task = Task { seed: self.dice.roll(), ..self.task.clone() };
        // With this signal ignored, a write past the file size limit fails as one on a full disk.
        let mut command = Command::new("sh");
        command.args(["-c", "trap '' XFSZ; exec \"$@\"", "worker"]).arg(&self.program).args(task.words());
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let output = child.stdout.take().ok_or_else(|| io::Error::other("no output"))?;
        let sender = self.sender.clone();
        thread::spawn(move || {
            for text in BufReader::new(output).lines().map_while(Result::ok) {
                // A line that a kill cut off is no event.
                if let Ok(event) = text.parse() {
                    sender.send((number, Some(event))).ok();
                }
            }
            sender.send((number, None)).ok();
        });
        let input = child.stdin.take();
        self.workers.push(WorkerProcess {
            number,
            child,
            input,
            open: HashMap::new(),
            killed: None,
            gone: false,
        });
        Ok(())
    }

    /// How many sections have ended so far.
    pub fn sections(&self) -> usize {
        self.history.sections.len()
    }

    /// The ends of sections that were released, in the order in which the crew heard of them.
    pub fn releases(&self) -> impl Iterator<Item = u64> {
        let released = self.history.sections.iter().filter(|section| section.end == End::Released);
        released.map(|section| section.ended)
    }

    /// The largest token that a worker has told of.
    pub fn largest_token(&self) -> u64 {
        let held = self.workers.iter().flat_map(|worker| worker.open.values()).filter_map(|open| open.held);
        let ended = self.history.sections.iter().map(|section| section.token);
        held.map(|(token, ..)| token).chain(ended).max().unwrap_or(0)
    }

    /// The living workers that hold something, each with its token.
    pub fn holders(&self) -> Vec<(u32, u64)> {
        let held =
            |worker: &WorkerProcess| worker.open.values().find_map(|open| open.held.map(|(token, ..)| token));
        let living = self.workers.iter().filter(|worker| worker.killed.is_none() && !worker.gone);
        living.filter_map(|worker| held(worker).map(|token| (worker.number, token))).collect()
    }

    /// How many workers wait to be served.
    pub fn waiting(&self) -> usize {
        let waits = |worker: &&WorkerProcess| {
            worker.killed.is_none() && worker.open.values().any(|open| open.held.is_none())
        };
        self.workers.iter().filter(waits).count()
    }

    /// Takes in the events of the workers until `enough` says so. False if `limit` passed first.
    pub fn listen(&mut self, limit: Duration, mut enough: impl FnMut(&Self) -> bool) -> bool {
        let deadline = Instant::now() + limit;
        while !enough(self) {
            match self.events.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok((number, event)) => self.heard(number, event),
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => return false,
            }
        }
        true
    }

    fn worker(&mut self, number: u32) -> Option<&mut WorkerProcess> {
        self.workers.iter_mut().find(|worker| worker.number == number)
    }

    fn heard(&mut self, number: u32, event: Option<Event>) {
        let tasks = self.task.tasks;
        let mut history = std::mem::take(&mut self.history);
        if let Some(worker) = self.worker(number) {
            match event {
                Some(event) => worker.heard(event, tasks, &mut history),
                None => worker.ended(tasks, &mut history),
            }
        }
        self.history = history;
        self.workers.retain(|worker| !worker.gone);
    }

    /// Injects a fault into some worker, and waits until it is over.
    ///
    /// # Errors
    /// If a replacement cannot be started.
    pub fn inject(&mut self, fault: WorkerFault) -> io::Result<()> {
        let Some(number) = self.victim() else { return self.start_worker() };
        let length = self.task.lease + self.dice.up_to(self.task.lease.as_millis() as u64 / 2);
        match fault {
            WorkerFault::Kill => {
                self.kill(number);
                self.start_worker()?;
            }
            WorkerFault::Stop => self.stop(number, |crew| {
                crew.listen(length, |_| false);
                TO_NOTICE
            }),
            WorkerFault::Disk(fault) => {
                let from = 1 + self.dice.below(30);
                self.break_disk(number, fault, from, length)?;
            }
            WorkerFault::SmallFiles => {
                let most = self.dice.below(4 << 20);
                self.limit(number, Resource::Fsize, Some(most), length);
            }
            WorkerFault::NoFiles => self.limit(number, Resource::Nofile, Some(3), length / 4),
        }
        self.last_fault = now();
        Ok(())
    }

    /// Stops a worker, and lets it go on after `meanwhile`, which says how long it is then given to notice.
    fn stop(&mut self, number: u32, meanwhile: impl FnOnce(&mut Self) -> Duration) {
        let from = now();
        self.signal(number, Signal::STOP);
        let to_notice = meanwhile(self);
        self.signal(number, Signal::CONT);
        let to = now() + to_notice.as_nanos() as u64;
        let tasks = self.task.tasks;
        self.pauses.extend((0..tasks).map(|task| Pause { worker: number * tasks + task, from, to }));
    }

    /// Stops one worker after the other until `hit` says that one of them is stopped at the right moment. That one stays
    /// stopped for longer than its leases last. False if there was no such moment.
    pub fn stop_at(&mut self, mut hit: impl FnMut() -> bool) -> bool {
        let length = self.task.lease + self.dice.up_to(self.task.lease.as_millis() as u64 / 2);
        let mut found = false;
        for _ in 0..STOPS {
            let Some(number) = self.victim() else { break };
            self.stop(number, |crew| {
                found = hit();
                if !found {
                    return TO_NOTICE_BRIEFLY;
                }
                crew.listen(length, |_| false);
                TO_NOTICE
            });
            if found {
                break;
            }
            let pause = self.dice.up_to(20);
            self.listen(pause, |_| false);
        }
        self.last_fault = now();
        found
    }

    /// The store itself was out of order until now: waits are judged from here on.
    pub fn store_recovered(&mut self) {
        self.last_fault = now();
    }

    /// Chooses any worker, but mostly one that holds something: there a fault does most.
    fn victim(&mut self) -> Option<u32> {
        let holders = self.holders();
        if !holders.is_empty() && self.dice.chance(800) {
            return Some(holders[self.dice.below(holders.len() as u64) as usize].0);
        }
        let index = self.dice.below(self.workers.len().max(1) as u64) as usize;
        self.workers.get(index).map(|worker| worker.number)
    }

    /// Kills a worker.
    pub fn kill(&mut self, number: u32) {
        self.crashes = true;
        // Before the signal: a store that frees crashed processes at once may grant before this process runs again.
        let killed = now();
        self.signal(number, Signal::KILL);
        if let Some(worker) = self.worker(number) {
            worker.killed = Some(killed);
        }
    }

    /// Stops or continues all workers.
    pub fn signal_all(&mut self, signal: Signal) {
        for number in self.workers.iter().map(|worker| worker.number).collect::<Vec<_>>() {
            self.signal(number, signal);
        }
    }

    fn signal(&mut self, number: u32, signal: Signal) {
        if let Some(pid) = self.worker(number).and_then(|worker| worker.pid()) {
            // It may have ended by itself.
            rustix::process::kill_process(pid, signal).ok();
        }
    }

    fn limit(&mut self, number: u32, what: Resource, most: Option<u64>, length: Duration) {
        let Some(pid) = self.worker(number).and_then(|worker| worker.pid()) else { return };
        let Ok(before) = rustix::process::prlimit(Some(pid), what, Rlimit { current: most, maximum: None })
        else {
            return;
        };
        self.listen(length, |_| false);
        rustix::process::prlimit(Some(pid), what, before).ok();
    }

    fn break_disk(&mut self, number: u32, fault: DiskFault, from: u64, length: Duration) -> io::Result<()> {
        let Some(pid) = self.worker(number).and_then(|worker| worker.pid()) else { return Ok(()) };
        let mut disk = BadDisk::of(pid, fault, from)?;
        self.listen(length, |_| false);
        if !disk.is_bad() && self.worker(number).is_some() {
            return Err(io::Error::other("strace could not break the disk of a worker"));
        }
        Ok(())
    }

    /// Lets all workers end by themselves. False if some did not within `limit`.
    pub fn finish(&mut self, limit: Duration) -> bool {
        for worker in &mut self.workers {
            drop(worker.input.take());
        }
        self.listen(limit, |crew| crew.workers.is_empty())
    }

    /// The history of all workers, and the rules to judge it by.
    pub fn into_evidence(mut self) -> (History, Rules) {
        let history = std::mem::take(&mut self.history);
        let resources = 0..self.task.resources;
        let rules = Rules {
            capacity: resources
                .filter(|resource| resource % 4 == 3)
                .map(|resource| (resource, PERMITS))
                .collect(),
            pauses: std::mem::take(&mut self.pauses),
            crashes: self.crashes,
            bound: Some((self.task.lease * 4).as_nanos() as u64),
            last_fault: self.last_fault,
            late: Duration::from_secs(1).as_nanos() as u64,
            ..Rules::default()
        };
        (history, rules)
    }
}

impl Drop for Crew {
    fn drop(&mut self) {
        for worker in &mut self.workers {
            drop(worker.child.kill());
            drop(worker.child.wait());
        }
    }
}

impl WorkerProcess {
    fn pid(&self) -> Option<Pid> {
        Pid::from_raw(i32::try_from(self.child.id()).ok()?)
    }

    fn heard(&mut self, event: Event, tasks: u32, history: &mut History) {
        let worker = |task| self.number * tasks + task;
        match event {
            Event::Ready => {}
            Event::Ask { task, resource, at } => {
                self.open.insert(task, Visit { resource, asked: at, held: None });
            }
            Event::Held { task, token, floor, units, at } => {
                if let Some(open) = self.open.get_mut(&task) {
                    open.held = Some((token, floor, units, at));
                }
            }
            Event::Wrote { task, place, accepted } => {
                if let Some(Visit { resource, held: Some((token, floor, ..)), .. }) = self.open.get(&task) {
                    let (resource, token, floor) = (*resource, *token, *floor);
                    history.writes.push(Write { resource, token, floor, at: place, accepted });
                }
            }
            Event::End { task, lost, at, deadline } => {
                if let Some(open) = self.open.remove(&task) {
                    history.sections.extend(open.section(worker(task), at, event::end(lost), deadline));
                }
            }
            Event::GaveUp { task, at } => {
                if let Some(Visit { resource, asked, .. }) = self.open.remove(&task) {
                    history.waits.push(Wait { worker: worker(task), resource, asked, gave_up: Some(at) });
                }
            }
        }
    }

    /// Its output has ended. Its open sections and waits ended with it.
    fn ended(&mut self, tasks: u32, history: &mut History) {
        let at = self.killed.unwrap_or_else(now);
        for (task, open) in std::mem::take(&mut self.open) {
            let worker = self.number * tasks + task;
            match open.section(worker, at, End::Crashed, u64::MAX) {
                Some(section) => history.sections.push(section),
                None => history.waits.push(Wait {
                    worker,
                    resource: open.resource,
                    asked: open.asked,
                    gave_up: Some(at.max(open.asked)),
                }),
            }
        }
        drop(self.child.wait());
        self.gone = true;
    }
}

impl Visit {
    fn section(&self, worker: u32, ended: u64, end: End, deadline: u64) -> Option<Section> {
        let (token, floor, units, granted) = self.held?;
        Some(Section {
            worker,
            resource: self.resource,
            contender: token,
            token,
            floor,
            share: event::share(units),
            asked: self.asked,
            granted,
            // A line may have been written just before the kill took effect.
            ended: ended.max(granted),
            end,
            deadline,
        })
    }
}
