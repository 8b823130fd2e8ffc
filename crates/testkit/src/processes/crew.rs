//! The parent's side: starts workers, troubles them, and joins what they told into a history.

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

use super::{DiskFault, Line, PERMITS, Task, disk::BadDisk, line};
use crate::{
    dice::Dice,
    history::{End, History, Pause, Rules, Section, Wait, Write},
};

/// How long a stopped worker is given to notice, once it runs again.
const TO_NOTICE: Duration = Duration::from_millis(1500);

/// Workers on one store, and what they have told so far.
#[derive(Debug)]
pub struct Crew {
    program: PathBuf,
    task: Task,
    dice: Dice,
    hands: Vec<Hand>,
    tell: Sender<(u32, Option<Line>)>,
    told: Receiver<(u32, Option<Line>)>,
    started: u32,
    history: History,
    pauses: Vec<Pause>,
    last_fault: u64,
    crashes: bool,
}

/// One worker process.
#[derive(Debug)]
pub struct Hand {
    number: u32,
    child: Child,
    input: Option<ChildStdin>,
    /// Acquisitions and sections under way, by task.
    open: HashMap<u32, Open>,
    killed: Option<u64>,
    gone: bool,
}

#[derive(Clone, Copy, Debug)]
struct Open {
    resource: u32,
    asked: u64,
    held: Option<(u64, u64, u32, u64)>,
}

/// What can be done to a worker.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Trouble {
    /// Killed with no time for a last word; another one takes its place.
    Kill,
    /// Stopped for a while, longer than its leases last.
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
    /// `hands` workers that do `task`, each a process of `program`.
    ///
    /// # Errors
    /// If they cannot be started.
    pub fn start(program: &Path, task: Task, hands: u32) -> io::Result<Self> {
        let (tell, told) = mpsc::channel();
        let mut crew = Self {
            program: program.to_owned(),
            dice: Dice::new(task.seed),
            task,
            hands: Vec::new(),
            tell,
            told,
            started: 0,
            history: History::default(),
            pauses: Vec::new(),
            last_fault: now(),
            crashes: false,
        };
        for _ in 0..hands {
            crew.hire()?;
        }
        Ok(crew)
    }

    /// Starts one more worker.
    ///
    /// # Errors
    /// If it cannot be started.
    pub fn hire(&mut self) -> io::Result<()> {
        let number = self.started;
        self.started += 1;
        let task = Task { seed: self.dice.roll(), ..self.task.clone() };
        // With this signal ignored, a write past the file size limit fails as one on a full disk.
        let mut command = Command::new("sh");
        command.args(["-c", "trap '' XFSZ; exec \"$@\"", "worker"]).arg(&self.program).args(task.words());
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let output = child.stdout.take().ok_or_else(|| io::Error::other("no output"))?;
        let tell = self.tell.clone();
        thread::spawn(move || {
            for text in BufReader::new(output).lines().map_while(Result::ok) {
                // A line cut off by a kill says nothing.
                if let Ok(line) = text.parse() {
                    tell.send((number, Some(line))).ok();
                }
            }
            tell.send((number, None)).ok();
        });
        let input = child.stdin.take();
        self.hands.push(Hand { number, child, input, open: HashMap::new(), killed: None, gone: false });
        Ok(())
    }

    /// How many sections have ended so far.
    pub fn sections(&self) -> usize {
        self.history.sections.len()
    }

    /// The largest token that a worker has told of.
    pub fn largest_token(&self) -> u64 {
        let held = self.hands.iter().flat_map(|hand| hand.open.values()).filter_map(|open| open.held);
        let ended = self.history.sections.iter().map(|section| section.token);
        held.map(|(token, ..)| token).chain(ended).max().unwrap_or(0)
    }

    /// The living workers that hold something, each with its token.
    pub fn holders(&self) -> Vec<(u32, u64)> {
        let held = |hand: &Hand| hand.open.values().find_map(|open| open.held.map(|(token, ..)| token));
        let living = self.hands.iter().filter(|hand| hand.killed.is_none() && !hand.gone);
        living.filter_map(|hand| held(hand).map(|token| (hand.number, token))).collect()
    }

    /// How many workers wait to be served.
    pub fn waiting(&self) -> usize {
        let waits =
            |hand: &&Hand| hand.killed.is_none() && hand.open.values().any(|open| open.held.is_none());
        self.hands.iter().filter(waits).count()
    }

    /// Takes in what the workers tell, until `enough` says so. False if `limit` passed first.
    pub fn listen(&mut self, limit: Duration, mut enough: impl FnMut(&Self) -> bool) -> bool {
        let deadline = Instant::now() + limit;
        while !enough(self) {
            match self.told.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok((number, line)) => self.heard(number, line),
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => return false,
            }
        }
        true
    }

    fn hand(&mut self, number: u32) -> Option<&mut Hand> {
        self.hands.iter_mut().find(|hand| hand.number == number)
    }

    fn heard(&mut self, number: u32, line: Option<Line>) {
        let tasks = self.task.tasks;
        let mut history = std::mem::take(&mut self.history);
        if let Some(hand) = self.hand(number) {
            match line {
                Some(line) => hand.heard(line, tasks, &mut history),
                None => hand.ended(tasks, &mut history),
            }
        }
        self.history = history;
        self.hands.retain(|hand| !hand.gone);
    }

    /// Does something bad to some worker, and waits until it is over.
    ///
    /// # Errors
    /// If a replacement cannot be started.
    pub fn trouble(&mut self, trouble: Trouble) -> io::Result<()> {
        let Some(number) = self.victim() else { return self.hire() };
        let length = self.task.lease + self.dice.up_to(self.task.lease.as_millis() as u64 / 2);
        match trouble {
            Trouble::Kill => {
                self.kill(number);
                self.hire()?;
            }
            Trouble::Stop => {
                let from = now();
                self.signal(number, Signal::STOP);
                self.listen(length, |_| false);
                self.signal(number, Signal::CONT);
                let to = now() + TO_NOTICE.as_nanos() as u64;
                let tasks = self.task.tasks;
                self.pauses.extend((0..tasks).map(|task| Pause { worker: number * tasks + task, from, to }));
            }
            Trouble::Disk(fault) => {
                let from = 1 + self.dice.below(30);
                self.break_disk(number, fault, from, length)?;
            }
            Trouble::SmallFiles => {
                let most = self.dice.below(4 << 20);
                self.limit(number, Resource::Fsize, Some(most), length);
            }
            Trouble::NoFiles => self.limit(number, Resource::Nofile, Some(3), length / 4),
        }
        self.last_fault = now();
        Ok(())
    }

    /// The store itself was in trouble until now: waits are judged from here on.
    pub fn store_is_well_again(&mut self) {
        self.last_fault = now();
    }

    /// Anybody, but mostly somebody who holds something: that is where trouble does most.
    fn victim(&mut self) -> Option<u32> {
        let holders = self.holders();
        if !holders.is_empty() && self.dice.chance(800) {
            return Some(holders[self.dice.below(holders.len() as u64) as usize].0);
        }
        let place = self.dice.below(self.hands.len().max(1) as u64) as usize;
        self.hands.get(place).map(|hand| hand.number)
    }

    /// Kills a worker.
    pub fn kill(&mut self, number: u32) {
        self.crashes = true;
        self.signal(number, Signal::KILL);
        if let Some(hand) = self.hand(number) {
            hand.killed = Some(now());
        }
    }

    /// Stops or continues all workers.
    pub fn signal_all(&mut self, signal: Signal) {
        for number in self.hands.iter().map(|hand| hand.number).collect::<Vec<_>>() {
            self.signal(number, signal);
        }
    }

    fn signal(&mut self, number: u32, signal: Signal) {
        if let Some(pid) = self.hand(number).and_then(|hand| hand.pid()) {
            // It may have ended by itself.
            rustix::process::kill_process(pid, signal).ok();
        }
    }

    fn limit(&mut self, number: u32, what: Resource, most: Option<u64>, length: Duration) {
        let Some(pid) = self.hand(number).and_then(|hand| hand.pid()) else { return };
        let Ok(before) = rustix::process::prlimit(Some(pid), what, Rlimit { current: most, maximum: None })
        else {
            return;
        };
        self.listen(length, |_| false);
        rustix::process::prlimit(Some(pid), what, before).ok();
    }

    fn break_disk(&mut self, number: u32, fault: DiskFault, from: u64, length: Duration) -> io::Result<()> {
        let Some(pid) = self.hand(number).and_then(|hand| hand.pid()) else { return Ok(()) };
        let mut disk = BadDisk::of(pid, fault, from)?;
        self.listen(length, |_| false);
        if !disk.is_bad() && self.hand(number).is_some() {
            return Err(io::Error::other("strace could not break the disk of a worker"));
        }
        Ok(())
    }

    /// Ends all workers in good order. False if some did not end within `limit`.
    pub fn dismiss(&mut self, limit: Duration) -> bool {
        for hand in &mut self.hands {
            drop(hand.input.take());
        }
        self.listen(limit, |crew| crew.hands.is_empty())
    }

    /// What all workers told, and the rules to judge it by.
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
        for hand in &mut self.hands {
            drop(hand.child.kill());
            drop(hand.child.wait());
        }
    }
}

impl Hand {
    fn pid(&self) -> Option<Pid> {
        Pid::from_raw(i32::try_from(self.child.id()).ok()?)
    }

    fn heard(&mut self, line: Line, tasks: u32, history: &mut History) {
        let worker = |task| self.number * tasks + task;
        match line {
            Line::Ready => {}
            Line::Ask { task, resource, at } => {
                self.open.insert(task, Open { resource, asked: at, held: None });
            }
            Line::Held { task, token, floor, units, at } => {
                if let Some(open) = self.open.get_mut(&task) {
                    open.held = Some((token, floor, units, at));
                }
            }
            Line::Wrote { task, place, accepted } => {
                if let Some(Open { resource, held: Some((token, floor, ..)), .. }) = self.open.get(&task) {
                    let (resource, token, floor) = (*resource, *token, *floor);
                    history.writes.push(Write { resource, token, floor, at: place, accepted });
                }
            }
            Line::End { task, lost, at, deadline } => {
                if let Some(open) = self.open.remove(&task) {
                    history.sections.extend(open.section(worker(task), at, line::end(lost), deadline));
                }
            }
            Line::GaveUp { task, at } => {
                if let Some(Open { resource, asked, .. }) = self.open.remove(&task) {
                    history.waits.push(Wait { worker: worker(task), resource, asked, gave_up: Some(at) });
                }
            }
        }
    }

    /// Its output has ended: what was open ended with it.
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

impl Open {
    fn section(&self, worker: u32, ended: u64, end: End, deadline: u64) -> Option<Section> {
        let (token, floor, units, granted) = self.held?;
        Some(Section {
            worker,
            resource: self.resource,
            contender: token,
            token,
            floor,
            share: line::share(units),
            asked: self.asked,
            granted,
            // A line may have been written just before the kill took effect.
            ended: ended.max(granted),
            end,
            deadline,
        })
    }
}
