//! Crews of real processes, while they and the servers are killed and stopped. The history of their sections is
//! judged: no two at once, tokens that grow, everybody served.

use std::{
    path::Path,
    time::{Duration, Instant},
};

use lockkeeper_testkit::{
    broken::Bug,
    dice::Dice,
    history::{self, Report, Verdict},
    processes::{Crew, Task, Trouble},
};
use tempfile::TempDir;

use crate::stage::{Stage, TICK, until_nodes};

const SESSION: Duration = Duration::from_secs(2);

fn number(variable: &str, usual: usize) -> usize {
    std::env::var(variable).map_or(usual, |text| text.parse().expect("a number"))
}

fn task(stage: &Stage, folder: &TempDir, seed: u64) -> Task {
    Task {
        url: stage.url(),
        folder: folder.path().to_owned(),
        prefix: "counter".into(),
        resources: 8,
        tasks: 3,
        lease: SESSION,
        hold_for_ever: false,
        bug: Bug::None,
        bad_line: false,
        seed,
    }
}

fn crew(task: Task, hands: u32) -> Crew {
    Crew::start(Path::new(env!("CARGO_BIN_EXE_worker")), task, hands).expect("started")
}

/// Runs a crew through `sections` sections, with `trouble` in between, and judges it.
fn ordeal(
    stage: &Stage,
    task: Task,
    hands: u32,
    sections: usize,
    mut trouble: impl FnMut(&mut Crew, &mut Dice),
) -> Report {
    let mut dice = Dice::new(task.seed ^ 1);
    let mut crew = crew(task, hands);
    let deadline = Instant::now() + Duration::from_secs(120) + Duration::from_millis(50) * sections as u32;
    while crew.sections() < sections {
        let next = crew.sections() + 1;
        assert!(
            crew.listen(Duration::from_secs(60), |crew| crew.sections() >= next),
            "nobody was served for a minute, after {} sections",
            crew.sections()
        );
        let pause = dice.up_to(400);
        crew.listen(pause, |crew| crew.sections() >= sections);
        trouble(&mut crew, &mut dice);
        assert!(Instant::now() < deadline, "only {} sections", crew.sections());
    }
    let ended = crew.dismiss(Duration::from_secs(20));
    // Who still has a node, and in which session.
    let nodes = if ended {
        String::new()
    } else {
        ["dump", "cons", "wchc"].map(|word| stage.servers.nodes()[0].ask(word).unwrap_or_default()).concat()
    };
    let (history, rules) = crew.into_evidence();
    let report = history::check(&history, &rules);
    println!("{report}");
    assert!(ended, "somebody did not end\n{report}\n{nodes}");
    report
}

/// Nothing is held, waited for or left of anybody.
fn nothing_is_left(stage: &Stage) {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(async {
        let client = stage.client().await;
        for resource in 0..8 {
            until_nodes(&client, &format!("counter%2F{resource}"), 0).await;
        }
    });
}

#[test]
fn many_processes_killed_and_stopped() {
    let stage = Stage::single(SESSION);
    let folder = tempfile::tempdir().expect("a folder");
    let sections = number("LOCKKEEPER_SECTIONS", 10_000);
    let report = ordeal(&stage, task(&stage, &folder, 1), 8, sections, |crew, dice| {
        let trouble = if dice.chance(600) { Trouble::Kill } else { Trouble::Stop };
        crew.trouble(trouble).expect("replaced");
    });
    assert!(matches!(report.verdict, Verdict::Safe | Verdict::SafeWithFencing), "{report}");
    assert!(report.sections >= sections && report.crashed > 0, "{report}");
    nothing_is_left(&stage);
}

/// A holder that is killed with no time for a last word blocks nobody for longer than its session lasts, and two
/// ticks of the server.
#[test]
fn a_killed_process_is_passed_when_its_session_ends() {
    let stage = Stage::single(SESSION);
    let folder = tempfile::tempdir().expect("a folder");
    let task = Task { hold_for_ever: true, resources: 1, tasks: 1, ..task(&stage, &folder, 3) };
    let mut crew = crew(task, 1);
    assert!(crew.listen(Duration::from_secs(20), |crew| !crew.holders().is_empty()), "never held");
    let keeper = lockkeeper::blocking::connect(&stage.url()).expect("connected");
    assert!(keeper.mutex("counter/0").try_lock().expect("asked").is_none());
    let killed = Instant::now();
    crew.kill(0);
    let guard = keeper.mutex("counter/0").lock().expect("locked");
    let passed = killed.elapsed();
    // Half a second for a busy machine.
    let limit = SESSION + 2 * TICK + Duration::from_millis(500);
    assert!(passed <= limit, "passed after {passed:?}, not {limit:?}");
    guard.release().expect("released");
    keeper.close();
}
