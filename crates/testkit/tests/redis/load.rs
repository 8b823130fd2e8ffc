//! Worker processes that lock all the time while a server is in trouble, and the judgement of what they saw.

use std::{io, path::Path, time::Duration};

use lockkeeper_core::runtime::clock::Clock;
use lockkeeper_testkit::{
    broken::Bug,
    history::{self, Report, Rule, Verdict},
    processes::{Crew, Task},
};
use tempfile::TempDir;

pub(crate) fn now() -> u64 {
    Clock::boot().now().0
}

/// What a worker of these tests does, on one mutex, one with exact order, one read-write lock, one semaphore.
pub(crate) fn task(url: &str, folder: &TempDir) -> Task {
    Task {
        url: url.to_owned(),
        folder: folder.path().to_owned(),
        prefix: "load".into(),
        resources: 4,
        tasks: 2,
        lease: Duration::from_secs(1),
        hold_for_ever: false,
        bug: Bug::None,
        seed: 1,
    }
}

pub(crate) fn crew(task: Task, hands: u32) -> Crew {
    Crew::start(Path::new(env!("CARGO_BIN_EXE_worker")), task, hands).expect("started")
}

/// A crew at work.
pub(crate) struct Load {
    crew: Crew,
    last_fault: u64,
    url: String,
    _folder: TempDir,
}

impl Load {
    /// Four processes on the store of this URL; they are at work on return.
    pub(crate) fn on(url: &str) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let mut load = Self {
            crew: crew(task(url, &folder), 4),
            last_fault: now(),
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
            // Who stands in the way?
            let keeper = lockkeeper::blocking::connect(&self.url).expect("connected");
            let seen = keeper.list("", None, 100);
            panic!("only {} of {enough} sections: {seen:#?}", self.crew.sections());
        }
    }

    /// Lets the crew work for a while, whether it is served or not.
    pub(crate) fn listen(&mut self, time: Duration) {
        self.crew.listen(time, |_| false);
    }

    /// Does something to the servers while the crew works, and sees that it works on afterwards.
    pub(crate) fn through(&mut self, trouble: impl FnOnce() -> io::Result<()>) {
        trouble().expect("done");
        self.last_fault = now();
        self.go_on(50);
    }

    /// Ends the crew and judges what it saw.
    pub(crate) fn judge(mut self) -> Report {
        let ended = self.crew.dismiss(Duration::from_secs(60));
        let (history, mut rules) = self.crew.into_evidence();
        rules.last_fault = self.last_fault;
        let report = history::check(&history, &rules);
        println!("{report}");
        assert!(ended, "some workers did not end\n{report}");
        report
    }
}

/// Nothing was lost, so nothing may be wrong: no two workers believed to hold the same.
pub(crate) fn is_safe(report: &Report) {
    assert_eq!(report.verdict, Verdict::Safe, "{report}");
}

/// The store lost data or time, so two may have believed to hold the same; all else is promised: tokens grow, the
/// fence lets no older write through, and everybody is told in time and served.
pub(crate) fn is_fenced(report: &Report) {
    let excused = [Rule::Overlap];
    let broken: Vec<_> = report.broken.keys().filter(|rule| !excused.contains(rule)).collect();
    assert!(broken.is_empty(), "{broken:?}\n{report}");
    assert!(report.sections > 0 && report.accepted > 0, "{report}");
}
