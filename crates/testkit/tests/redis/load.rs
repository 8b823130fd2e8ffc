//! Worker processes that lock all the time while a server is in trouble, and the judgement of what they saw.

use std::{collections::HashMap, io, path::Path, time::Duration};

use lockkeeper_core::runtime::clock::Clock;
use lockkeeper_testkit::{
    broken::Bug,
    history::{self, End, History, Report, Rule, Section, Share, Verdict},
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
        bad_line: false,
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

    /// Ends the crew and judges what it saw: nothing was lost, so nothing may be wrong.
    pub(crate) fn must_be_safe(self) {
        let (_, report) = self.judge();
        assert_eq!(report.verdict, Verdict::Safe, "{report}");
    }

    /// Ends the crew and judges what it saw. The store lost data or time, so two may have believed to hold the same,
    /// and a grant may have been worth nothing when it arrived. All else is promised: what is asked for later has a
    /// larger token, the fence lets no older write through, and everybody is told in time and served.
    pub(crate) fn must_be_fenced(self) {
        let (history, report) = self.judge();
        // A floor is the oldest holder that the store knows of: one whose release was lost is still known.
        let excused = [Rule::Overlap, Rule::TokenFell, Rule::Floor];
        let broken: Vec<_> = report.broken.keys().filter(|rule| !excused.contains(rule)).collect();
        assert!(broken.is_empty(), "{broken:?}\n{report}");
        assert_eq!(fallen(&history), None, "{report}");
        assert!(report.sections > 0 && report.accepted > 0, "{report}");
    }

    fn judge(mut self) -> (History, Report) {
        let ended = self.crew.dismiss(Duration::from_secs(60));
        let (history, mut rules) = self.crew.into_evidence();
        rules.last_fault = self.last_fault;
        let report = history::check(&history, &rules);
        println!("{report}");
        assert!(ended, "some workers did not end\n{report}");
        (history, report)
    }
}

/// Two sections of one resource, the second asked for after the first was granted, but with a smaller token.
fn fallen(history: &History) -> Option<(Section, Section)> {
    let mut granted: Vec<&Section> = history.sections.iter().collect();
    granted.sort_unstable_by_key(|section| section.granted);
    let mut asked = granted.clone();
    asked.sort_unstable_by_key(|section| section.asked);
    let mut before = granted.into_iter().peekable();
    let mut largest = HashMap::<u32, &Section>::new();
    for section in asked {
        while let Some(earlier) = before.next_if(|earlier| earlier.granted < section.asked) {
            let known = largest.entry(earlier.resource).or_insert(earlier);
            if earlier.token > known.token {
                *known = earlier;
            }
        }
        let larger = largest.get(&section.resource).filter(|earlier| earlier.token >= section.token);
        if let Some(earlier) = larger {
            return Some((**earlier, *section));
        }
    }
    None
}

#[test]
fn a_token_that_falls_is_seen() {
    let section = |asked, granted, token| Section {
        worker: 0,
        resource: 0,
        contender: token,
        token,
        floor: token,
        share: Share::Exclusive,
        asked,
        granted,
        ended: granted + 1,
        end: End::Released,
        deadline: u64::MAX,
    };
    let seen =
        |sections: &[Section]| fallen(&History { sections: sections.into(), ..History::default() }).is_some();
    assert!(!seen(&[section(1, 5, 1), section(6, 9, 2), section(10, 11, 3)]));
    assert!(!seen(&[section(1, 9, 1), section(2, 5, 2)]), "both were asked for before either was granted");
    assert!(seen(&[section(1, 5, 2), section(6, 9, 1)]));
    assert!(seen(&[section(1, 5, 1), section(6, 9, 1)]));
}
