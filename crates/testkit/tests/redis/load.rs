//! Worker processes that lock all the time while a server is in trouble, and the judgement of their history.

use std::{io, path::Path, time::Duration};

use lockkeeper_core::clock::Clock;
use lockkeeper_testkit::{
    broken::Bug,
    history::{self, Loss, Report, Verdict},
    processes::{Crew, Task},
};
use tempfile::TempDir;

pub(crate) fn now() -> u64 {
    Clock::boot().now().0
}

/// The work of one process: on a mutex, a mutex with exact order, a read-write lock and a semaphore.
pub(crate) fn task(url: &str, folder: &TempDir) -> Task {
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

pub(crate) fn crew(task: Task, hands: u32) -> Crew {
    Crew::start(Path::new(env!("CARGO_BIN_EXE_worker")), task, hands).expect("started")
}

/// What is left on a server after a loss.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rest {
    /// Nothing, or everything at another time of its clock. It knows no holder that has left.
    Own,
    /// The copy of a replica, which may know holders that have left and not those that came after them.
    OldCopy,
}

/// A replica on the same machine is never further behind its master than this.
const LAG: Duration = Duration::from_millis(500);

/// A crew at work.
pub(crate) struct Load {
    crew: Crew,
    last_fault: u64,
    losses: Vec<Loss>,
    lease: Duration,
    url: String,
    _folder: TempDir,
}

impl Load {
    /// Starts four processes on the store of this URL; they are at work on return.
    pub(crate) fn on(url: &str) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let task = task(url, &folder);
        let mut load = Self {
            lease: task.lease,
            crew: crew(task, 4),
            last_fault: now(),
            losses: Vec::new(),
            url: url.to_owned(),
            _folder: folder,
        };
        load.go_on(100);
        load
    }

    /// Waits until some more sections have been served.
    pub(crate) fn go_on(&mut self, sections: usize) {
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
    pub(crate) fn listen(&mut self, time: Duration) {
        self.crew.listen(time, |_| false);
    }

    /// Troubles the servers while the crew works, and checks that it works on afterwards.
    pub(crate) fn through(&mut self, trouble: impl FnOnce() -> io::Result<()>) {
        trouble().expect("done");
        self.last_fault = now();
        self.go_on(50);
    }

    /// The same with a trouble that makes the servers lose data or time, and that is over on return.
    pub(crate) fn losing(&mut self, rest: Rest, trouble: impl FnOnce() -> io::Result<()>) {
        let old_copy = rest == Rest::OldCopy;
        let from = now() - if old_copy { LAG.as_nanos() as u64 } else { 0 };
        trouble().expect("done");
        let to = now();
        // By then each holder has heard by a renewal what the servers know, or its deadline is over.
        let told = to + self.lease.as_nanos() as u64;
        self.losses.push(Loss { from, to, told, old_copy });
        self.through(|| Ok(()));
    }

    /// Ends the crew and judges its history: nothing was lost, so nothing may be wrong.
    pub(crate) fn must_be_safe(self) {
        assert!(self.losses.is_empty());
        let report = self.judge();
        assert_eq!(report.verdict, Verdict::Safe, "{report}");
    }

    /// Ends the crew and judges its history. The store lost data or time, and [`Loss`] excuses what cannot be helped: a
    /// contender that asked before the loss was over may hold what another holds, until it is told. All other promises
    /// are kept through the loss. A token is larger than all that had been returned when it was asked for, since
    /// numbers begin at the time of day and no clock is behind here (a clock that is set back finds its high-water
    /// mark). No contender that asks after the loss shares with another. All are told in time and served. No fenced
    /// write goes back.
    pub(crate) fn must_be_fenced(self) {
        assert!(!self.losses.is_empty());
        let report = self.judge();
        let kept = matches!(report.verdict, Verdict::Safe | Verdict::SafeWithFencing);
        assert!(kept && report.accepted > 0, "{report}");
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
