//! Layer 7 on SQLite: real processes on one file, killed, stopped and starved of disk; and planted
//! bugs that the same crews must reveal. `LOCKKEEPER_SECTIONS` sets how many sections are run and
//! `LOCKKEEPER_KILLS` how many holders are killed.
#![cfg(target_os = "linux")]

use std::{
    fs,
    path::Path,
    time::{Duration, Instant},
};

use lockkeeper_testkit::{
    broken::Bug,
    dice::Dice,
    history::{self, Report, Verdict},
    processes::{Crew, FencedCounter, Task, Trouble},
};
use tempfile::TempDir;

fn number(variable: &str, usual: usize) -> usize {
    std::env::var(variable).map_or(usual, |text| text.parse().expect("a number"))
}

fn worker() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_worker"))
}

fn url(folder: &Path) -> String {
    format!("sqlite:{}/locks.db", folder.display())
}

fn task(folder: &TempDir, seed: u64) -> Task {
    Task {
        url: url(folder.path()),
        folder: folder.path().to_owned(),
        prefix: "counter".into(),
        resources: 8,
        tasks: 3,
        lease: Duration::from_secs(1),
        hold_for_ever: false,
        bug: Bug::None,
        seed,
    }
}

/// Runs a crew through `sections` sections with trouble all along, and judges it.
fn ordeal(task: Task, hands: u32, sections: usize, kinds: &[Trouble]) -> (Report, bool) {
    let mut dice = Dice::new(task.seed ^ 1);
    let mut crew = Crew::start(worker(), task, hands).expect("started");
    let deadline = Instant::now() + Duration::from_secs(60) + Duration::from_millis(20) * sections as u32;
    let mut served = true;
    while crew.sections() < sections && served {
        let next = crew.sections() + 1;
        served = crew.listen(Duration::from_secs(20), |crew| crew.sections() >= next);
        let pause = dice.up_to(300);
        crew.listen(pause, |crew| crew.sections() >= sections);
        if !kinds.is_empty() {
            crew.trouble(kinds[dice.below(kinds.len() as u64) as usize]).expect("replaced");
        }
        assert!(Instant::now() < deadline, "only {} sections", crew.sections());
    }
    let ended = crew.dismiss(Duration::from_secs(30));
    let (history, rules) = crew.into_evidence();
    (history::check(&history, &rules), served && ended)
}

#[test]
fn many_processes_in_every_kind_of_trouble() {
    let sections = number("LOCKKEEPER_SECTIONS", 10_000);
    let folder = tempfile::tempdir().expect("a folder");
    let task = task(&folder, 1);
    let kinds = [Trouble::Kill, Trouble::Kill, Trouble::Stop, Trouble::FullDisk, Trouble::NoFiles];
    let started = Instant::now();
    let (report, served) = ordeal(task, 16, sections, &kinds);
    println!("{report}\n{:?}", started.elapsed());
    assert!(served, "somebody was not served\n{report}");
    assert!(matches!(report.verdict, Verdict::Safe | Verdict::SafeWithFencing), "{report}");
    assert!(report.sections >= sections && report.crashed > 0, "{report}");
    for resource in 0..8 {
        let path = folder.path().join(format!("counter-{resource}"));
        let seen = FencedCounter::open(&path).expect("there").seen().expect("read");
        assert!(seen.accepted > 0, "resource {resource} was never written: {seen:?}");
    }
    assert_eq!(left_behind(folder.path()), Vec::<String>::new());
}

/// What is left in the folder of the keepers once a new keeper has come and gone.
fn left_behind(folder: &Path) -> Vec<String> {
    let keeper = lockkeeper::blocking::connect(&url(folder)).expect("connected");
    let page = keeper.list("", None, 100).expect("listed");
    keeper.close();
    let rows = page.resources.iter().map(|resource| format!("{resource:?}"));
    let files = fs::read_dir(folder.join("locks.db-keepers")).expect("listed");
    rows.chain(files.map(|file| file.expect("listed").path().display().to_string())).collect()
}
