//! Worker processes that lock all the time while a server is in trouble, and the judgement of their history.

use std::{env, io, path::Path, time::Duration};

use lockkeeper_core::clock::Clock;
use tempfile::TempDir;

use crate::{
    broken::Bug,
    dice::Dice,
    history::{self, Loss, Report, Verdict},
    processes::{Crew, Task, WorkerFault},
};

/// How often a trouble comes: a few times, or as often as `LOCKKEEPER_FAULTS` says of `full`, in percent.
pub fn times(few: usize, full: usize) -> usize {
    percent().map_or(few, |percent| (full * percent / 100).max(1))
}

/// Reads `LOCKKEEPER_FAULTS`: how many of the full number of faults to make, in percent.
///
/// # Panics
/// If it is not a number.
pub fn percent() -> Option<usize> {
    env::var("LOCKKEEPER_FAULTS").ok().map(|text| text.parse().expect("a number, in percent"))
}

/// Reads the number in `variable` of the environment; `usual` if it is not set.
///
/// # Panics
/// If the text is not a number.
pub fn number(variable: &str, usual: usize) -> usize {
    env::var(variable).map_or(usual, |text| text.parse().expect("a number"))
}

/// Troubles in random order. Each comes once before one of them comes again, so that a short test meets all of them too.
#[derive(Debug)]
pub struct Deck<T> {
    troubles: Vec<T>,
    left: Vec<T>,
    dice: Dice,
    rounds: usize,
}

impl<T: Clone> Deck<T> {
    /// Makes a deck of these troubles, in the order that the seed gives.
    pub fn new(troubles: Vec<T>, seed: u64) -> Self {
        Self { troubles, left: Vec::new(), dice: Dice::new(seed), rounds: 0 }
    }

    /// The next trouble; `None` if there are none at all.
    pub fn draw(&mut self) -> Option<T> {
        if self.left.is_empty() {
            self.left = self.troubles.clone();
        }
        if self.left.is_empty() {
            return None;
        }
        let drawn = self.left.swap_remove(self.dice.below(self.left.len() as u64) as usize);
        self.rounds += usize::from(self.left.is_empty());
        Some(drawn)
    }

    /// How often all of them have come.
    pub fn rounds(&self) -> usize {
        self.rounds
    }
}

fn now() -> u64 {
    Clock::boot().now().0
}

/// The work of one process: on a mutex, a mutex with exact order, a read-write lock and a semaphore.
pub fn task(url: &str, folder: &TempDir) -> Task {
    Task {
        url: url.to_owned(),
        folder: folder.path().to_owned(),
        prefix: "load".into(),
        resources: 4,
        tasks: 2,
        lease: Duration::from_secs(1),
        hold_for_ever: false,
        bad_network: false,
        bug: Bug::None,
        seed: 1,
    }
}

/// So many processes of the program `worker` that do it.
///
/// # Panics
/// If they cannot be started.
pub fn crew(worker: &str, task: Task, hands: u32) -> Crew {
    Crew::start(Path::new(worker), task, hands).expect("started")
}

/// The data that is left on a server after a loss.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Rest {
    /// Nothing, or everything at another time of its clock. It knows no holder that has left.
    Own,
    /// The copy of a replica, which may know holders that have left and not those that came after them.
    OldCopy,
}

/// A replica on the same machine is never further behind its master than this.
const LAG: Duration = Duration::from_millis(500);

/// A crew at work.
#[derive(Debug)]
pub struct Load {
    crew: Crew,
    last_fault: u64,
    losses: Vec<Loss>,
    /// Whether processes were stopped past their leases.
    stopped: bool,
    lease: Duration,
    url: String,
    _folder: TempDir,
}

impl Load {
    /// Starts four processes of the program `worker` on the store of this URL; they are at work on return.
    ///
    /// # Panics
    /// If they cannot be started, or are not served.
    pub fn on(worker: &str, url: &str) -> Self {
        Self::with(worker, url, 4, |task| task)
    }

    /// Starts so many processes that do a task which is like the usual one but for `change`.
    ///
    /// # Panics
    /// As [`on`](Self::on).
    pub fn with(worker: &str, url: &str, hands: u32, change: impl FnOnce(Task) -> Task) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let task = change(task(url, &folder));
        let mut load = Self {
            lease: task.lease,
            url: task.url.clone(),
            crew: crew(worker, task, hands),
            last_fault: now(),
            losses: Vec::new(),
            stopped: false,
            _folder: folder,
        };
        load.go_on(100);
        load
    }

    /// How many sections have ended so far.
    pub fn sections(&self) -> usize {
        self.crew.sections()
    }

    /// Waits until some more sections have been served.
    ///
    /// # Panics
    /// If that takes more than a minute.
    pub fn go_on(&mut self, sections: usize) {
        let enough = self.crew.sections() + sections;
        let served = self.crew.listen(Duration::from_secs(60), |crew| crew.sections() >= enough);
        if !served {
            // Shows which holders block the others.
            let keeper = lockkeeper::blocking::connect(&self.url).expect("connected");
            let seen = keeper.list("", None, 100);
            panic!("only {} of {enough} sections: {seen:#?}", self.crew.sections());
        }
    }

    /// Lets the crew work for a while, whether it is served or not.
    pub fn listen(&mut self, time: Duration) {
        self.crew.listen(time, |_| false);
    }

    /// Troubles the servers while the crew works, and checks that it works on afterwards.
    ///
    /// # Panics
    /// If the trouble could not be made, or the crew is not served afterwards.
    pub fn through(&mut self, trouble: impl FnOnce() -> io::Result<()>) {
        trouble().expect("done");
        self.last_fault = now();
        self.go_on(50);
    }

    /// The same with a trouble that makes the servers lose data or time, and that is over on return.
    ///
    /// # Panics
    /// As [`through`](Self::through).
    pub fn losing(&mut self, rest: Rest, trouble: impl FnOnce() -> io::Result<()>) {
        let old_copy = rest == Rest::OldCopy;
        let from = now() - if old_copy { LAG.as_nanos() as u64 } else { 0 };
        trouble().expect("done");
        let to = now();
        // By then each holder has heard by a renewal of the servers' state, or its deadline is over.
        let told = to + self.lease.as_nanos() as u64;
        self.losses.push(Loss { from, to, told, old_copy });
        self.through(|| Ok(()));
    }

    /// Injects a fault into some process, and checks that the others work on.
    ///
    /// # Panics
    /// If a replacement cannot be started, or the crew is not served afterwards.
    pub fn inject(&mut self, fault: WorkerFault) {
        self.stopped |= fault == WorkerFault::Stop;
        self.crew.inject(fault).expect("replaced");
        self.through(|| Ok(()));
    }

    /// Stops some process at a moment at which `hit` says that it is worth it, for longer than its leases last, and
    /// checks that the others work on. False if no moment was found.
    ///
    /// # Panics
    /// If the crew is not served afterwards.
    pub fn stop_at(&mut self, hit: impl FnMut() -> bool) -> bool {
        self.stopped = true;
        let found = self.crew.stop_at(hit);
        self.through(|| Ok(()));
        found
    }

    /// Ends the crew and judges its history: nothing was lost, so nothing may be wrong.
    ///
    /// # Panics
    /// If something is.
    pub fn must_be_safe(self) -> Report {
        assert!(self.losses.is_empty() && !self.stopped);
        let report = self.judge();
        assert_eq!(report.verdict, Verdict::Safe, "{report}");
        report
    }

    /// Ends the crew and judges its history. The store lost data or time, and [`Loss`] excuses the faults that cannot
    /// be helped: a contender that asked before the loss was over may hold a lock that another holds, until it is told.
    /// All other promises are kept through the loss. A token is larger than all that had been returned when it was
    /// asked for, since numbers begin at the time of day and no clock is behind here (a clock that is set back finds
    /// its high-water mark). No contender that asks after the loss shares with another. All are told in time and
    /// served. No fenced write goes back. The same holds for processes that were stopped past their leases.
    ///
    /// # Panics
    /// If one of these is broken.
    pub fn must_be_fenced(self) -> Report {
        assert!(!self.losses.is_empty() || self.stopped);
        let report = self.judge();
        let kept = matches!(report.verdict, Verdict::Safe | Verdict::SafeWithFencing);
        assert!(kept && report.accepted > 0, "{report}");
        report
    }

    fn judge(mut self) -> Report {
        let ended = self.crew.finish(Duration::from_secs(60));
        let (history, mut rules) = self.crew.into_evidence();
        rules.last_fault = self.last_fault;
        rules.losses = self.losses;
        let report = history::check(&history, &rules);
        println!("{} losses: {report}", rules.losses.len());
        assert!(ended, "some workers did not end\n{report}");
        report
    }
}
