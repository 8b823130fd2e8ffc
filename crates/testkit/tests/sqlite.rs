//! Layer 7 on SQLite: real processes share one file while they are killed, stopped and starved of disk, and the same crews
//! must reveal planted bugs. `LOCKKEEPER_SECTIONS` sets the number of sections, and `LOCKKEEPER_KILLS` the number of killed
//! holders.
#![cfg(target_os = "linux")]

use std::{
    fs,
    io::{BufRead as _, BufReader},
    path::Path,
    process::{Command, Stdio},
    time::{Duration, Instant, SystemTime},
};

use lockkeeper::{Keeper, testing::VirtualClock};
use lockkeeper_testkit::{
    broken::Bug,
    dice::Dice,
    history::{self, Report, Verdict},
    processes::{Crew, DiskFault, FencedCounter, Task, WorkerFault},
    refinement::{self, Subject, Tally, TimeMode},
};
use rustix::process::Signal;
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
        bad_network: false,
        bug: Bug::None,
        seed,
    }
}

/// Longer than any trouble lasts. If no section ends in this time, none ever will.
const STUCK: Duration = Duration::from_secs(12);

/// Runs a crew through `sections` sections in trouble, and judges its history.
fn ordeal(task: Task, hands: u32, sections: usize, kinds: &[WorkerFault]) -> (Report, bool) {
    let mut dice = Dice::new(task.seed ^ 1);
    let mut crew = Crew::start(worker(), task, hands).expect("started");
    let deadline = Instant::now() + Duration::from_secs(20) + Duration::from_millis(20) * sections as u32;
    let mut served = true;
    while crew.sections() < sections && served {
        let next = crew.sections() + 1;
        served = crew.listen(STUCK, |crew| crew.sections() >= next) && Instant::now() < deadline;
        let pause = dice.up_to(300);
        crew.listen(pause, |crew| crew.sections() >= sections);
        if !kinds.is_empty() {
            crew.inject(kinds[dice.below(kinds.len() as u64) as usize]).expect("replaced");
        }
    }
    served = served && crew.finish(Duration::from_secs(30));
    let (history, rules) = crew.into_evidence();
    (history::check(&history, &rules), served)
}

#[test]
fn many_processes_in_every_kind_of_trouble() {
    let sections = number("LOCKKEEPER_SECTIONS", 10_000);
    let folder = tempfile::tempdir().expect("a folder");
    let task = task(&folder, 1);
    let (full, gone) = (WorkerFault::Disk(DiskFault::Full), WorkerFault::Disk(DiskFault::Gone));
    let kinds = [
        WorkerFault::Kill,
        WorkerFault::Kill,
        WorkerFault::Stop,
        WorkerFault::SmallFiles,
        WorkerFault::NoFiles,
        full,
        gone,
    ];
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

/// Lost answers are asked for again, and late copies do nothing, between processes too.
#[test]
fn many_processes_on_bad_lines() {
    let folder = tempfile::tempdir().expect("a folder");
    let task = Task { bad_network: true, ..task(&folder, 3) };
    let (report, served) = ordeal(task, 8, number("LOCKKEEPER_SECTIONS", 10_000) / 10, &[WorkerFault::Kill]);
    println!("{report}");
    assert!(served, "somebody was not served\n{report}");
    assert_eq!(report.verdict, Verdict::Safe, "{report}");
    assert_eq!(left_behind(folder.path()), Vec::<String>::new());
}

/// The rows and files that are left once a new keeper has connected and closed.
fn left_behind(folder: &Path) -> Vec<String> {
    // A process that was killed before its life file had its name leaves one that others remove when it is old.
    for file in fs::read_dir(folder.join("locks.db-keepers")).expect("listed") {
        let path = file.expect("listed").path();
        if path.extension().is_some_and(|kind| kind == "new") {
            let file = fs::File::options().write(true).open(&path).expect("opened");
            file.set_modified(SystemTime::now() - Duration::from_secs(120)).expect("changed");
        }
    }
    let keeper = lockkeeper::blocking::connect(&url(folder)).expect("connected");
    let page = keeper.list("", None, 100).expect("listed");
    keeper.close();
    let rows = page.resources.iter().map(|resource| format!("{resource:?}"));
    let files = fs::read_dir(folder.join("locks.db-keepers")).expect("listed");
    rows.chain(files.map(|file| file.expect("listed").path().display().to_string())).collect()
}

/// The holder is killed again and again. The next waiter must not wait for the lease.
#[test]
fn a_killed_holder_is_passed_within_a_second() {
    let folder = tempfile::tempdir().expect("a folder");
    let task = Task {
        resources: 1,
        tasks: 1,
        lease: Duration::from_secs(60),
        hold_for_ever: true,
        ..task(&folder, 2)
    };
    let mut crew = Crew::start(worker(), task, 4).expect("started");
    let mut slowest = Duration::ZERO;
    let patience = Duration::from_secs(30);
    assert!(crew.listen(patience, |crew| crew.holders().len() == 1), "nobody holds it");
    for kill in 0..number("LOCKKEEPER_KILLS", 20) {
        assert!(crew.listen(patience, |crew| crew.waiting() == 3), "kill {kill}: nobody waits");
        let holders = crew.holders();
        let [(holder, before)] = holders[..] else { panic!("kill {kill}: {holders:?}") };
        let killed = Instant::now();
        crew.kill(holder);
        assert!(
            crew.listen(patience, |crew| crew.holders().iter().any(|(_, token)| *token > before)),
            "kill {kill}: nobody holds it"
        );
        slowest = slowest.max(killed.elapsed());
        assert!(
            killed.elapsed() < Duration::from_secs(1),
            "kill {kill}: passed after {:?}",
            killed.elapsed()
        );
        crew.start_worker().expect("replaced");
    }
    println!("the slowest was passed after {slowest:?}");
}

/// A crew that finds no planted bug proves nothing. Each of these must be caught between processes too.
#[test]
fn planted_bugs_are_caught_between_processes() {
    for bug in [Bug::ReleaseByName, Bug::TokenReset, Bug::GrantedTwice, Bug::LostWakeWithoutPoll] {
        // Some need two processes to meet at the wrong moment, which on a busy machine happens in one run of three.
        let caught = (0..20).find(|seed| {
            let folder = tempfile::tempdir().expect("a folder");
            let task = Task { bug, resources: 4, ..task(&folder, *seed) };
            let (report, served) = ordeal(task, 4, 200, &[WorkerFault::Kill]);
            !served || report.verdict != Verdict::Safe
        });
        println!("{bug:?} caught by seed {caught:?}");
        assert!(caught.is_some(), "{bug:?} went unseen");
    }
}

/// Copies the file as a power cut leaves it: all synced bytes, and any part of the rest.
fn power_cut(from: &Path, to: &Path, dice: &mut Dice) {
    fs::create_dir(to).expect("made");
    fs::copy(from.join("locks.db"), to.join("locks.db")).expect("copied");
    let log = fs::read(from.join("locks.db-wal")).expect("read");
    let index = fs::read(from.join("locks.db-shm")).expect("read");
    let synced = synced_length(&log, &index);
    let kept = synced + dice.below((log.len() - synced) as u64 + 1) as usize;
    let mut log = log[..kept].to_vec();
    // Some of the unsynced blocks may have reached the disk.
    for block in log[synced..].chunks_mut(512) {
        if dice.chance(300) {
            block.fill(0);
        }
    }
    fs::write(to.join("locks.db-wal"), log).expect("written");
}

/// The number of synced bytes in SQLite's log. With `synchronous=FULL`, the index (`-shm`) counts a transaction's frames
/// only after they are on disk. The count is in bytes 16 to 20 of the index. Its bytes 32 to 40 are the salt of the log's
/// present round, which the log's own header has in bytes 16 to 24. The log is that header of 32 bytes, and then frames of
/// 24 bytes and a page.
fn synced_length(log: &[u8], index: &[u8]) -> usize {
    let Some(header) = log.get(..32).filter(|header| header[16..24] == index[32..40]) else {
        // A new round is about to begin, and all of the old one was synced long before.
        return log.len();
    };
    let page = u32::from_be_bytes(header[8..12].try_into().expect("four bytes")) as usize;
    let frames = u32::from_ne_bytes(index[16..20].try_into().expect("four bytes")) as usize;
    32 + frames * (24 + page)
}

/// All writers are stopped at some moment, and the file that a power cut leaves is opened on a machine whose clock is wrong
/// by decades. Even then tokens must not fall.
#[tokio::test]
async fn tokens_never_fall_after_a_power_cut() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut dice = Dice::new(4);
    let mut crew = Crew::start(worker(), task(&folder, 4), 4).expect("started");
    for cut in 0..number("LOCKKEEPER_CUTS", 20) {
        let more = crew.sections() + 1 + dice.below(20) as usize;
        assert!(crew.listen(STUCK, |crew| crew.sections() >= more), "cut {cut}: no sections");
        crew.signal_all(Signal::STOP);
        // Earlier reports are still on their way through a pipe.
        crew.listen(Duration::from_millis(20), |_| false);
        let told = crew.largest_token();
        let copy = folder.path().join(format!("cut-{cut}"));
        power_cut(folder.path(), &copy, &mut dice);
        crew.signal_all(Signal::CONT);
        let store = lockkeeper::url::connector(&url(&copy)).expect("a good URL");
        let clock = VirtualClock::new().clock();
        let keeper = Keeper::builder(store).virtual_time(clock).connect().await.expect("it opens");
        let guard = keeper.mutex("another").lock().await.expect("granted");
        let token = guard.token().as_i64().unsigned_abs();
        assert!(token > told, "cut {cut}: {token} after {told}");
        keeper.close().await;
    }
}

/// The test above trusts SQLite's count of synced frames. This one watches the kernel: before a worker reports a grant, a
/// call to sync has succeeded.
#[test]
fn each_grant_is_synced_before_it_is_told() {
    const SECTIONS: usize = 50;
    let folder = tempfile::tempdir().expect("a folder");
    let calls = folder.path().join("calls");
    let task = Task { resources: 1, tasks: 1, ..task(&folder, 5) };
    let mut child = Command::new("strace")
        .args(["-f", "--seccomp-bpf", "-qq", "-e", "trace=write,fdatasync,fsync", "-o"])
        .arg(&calls)
        .arg(worker())
        .args(task.words())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("strace is there");
    let told = BufReader::new(child.stdout.take().expect("piped")).lines().map_while(Result::ok);
    // Later reports find no reader, which ends the worker.
    assert_eq!(told.filter(|line| line.starts_with("held")).take(SECTIONS).count(), SECTIONS);
    drop(child.stdin.take());
    child.wait().expect("it ends");
    let (mut grants, mut synced) = (0, false);
    for call in fs::read_to_string(&calls).expect("written").lines() {
        // With several threads a call has two rows, and this is the second.
        synced |= call.contains("sync") && call.ends_with("= 0");
        // Later reports found no reader, and were written twice.
        if call.contains("write(1, \"held") && grants < SECTIONS {
            assert!(synced, "grant {grants} was told before it was synced");
            (grants, synced) = (grants + 1, false);
        }
    }
    assert_eq!(grants, SECTIONS);
}

/// Layer 3: SQLite and the model go through the same random steps. The test sets the store's clock forward instead of
/// waiting, so a lease of hours passes at once.
#[tokio::test]
async fn it_is_the_model() {
    let seeds = number("LOCKKEEPER_REFINEMENTS", 30) as u64;
    let first = number("LOCKKEEPER_SEED", 0) as u64;
    let mut sum = Tally::default();
    for seed in first..first + seeds {
        let folder = tempfile::tempdir().expect("a folder");
        let (clock, url) = (VirtualClock::new(), url(folder.path()));
        let forward = clock.clone();
        let subject = Subject::in_virtual_time(&clock, move || lockkeeper::url::connector(&url))
            .tolerance(Duration::from_millis(100))
            .passes(TimeMode::Virtual, move |length| {
                forward.suspend(length);
                Box::pin(std::future::ready(()))
            });
        sum += refinement::check(&subject, seed, 200).await.unwrap_or_else(|failure| panic!("{failure}"));
    }
    println!("{seeds} seeds: {sum:?}");
    assert!(sum.granted.min(sum.busy).min(sum.notices).min(sum.gone) >= seeds, "too little: {sum:?}");
}
