//! Crews of real processes, while they and the servers are killed and stopped. The history of their sections is judged: no
//! two at once, growing tokens, everybody served.

use std::{
    path::Path,
    time::{Duration, Instant},
};

use lockkeeper_testkit::{
    broken::Bug,
    dice::Dice,
    history::{self, Report, Verdict},
    processes::{Crew, Task, WorkerFault},
};
use tempfile::TempDir;

use crate::stage::{Stage, TICK, until_nodes};

const SESSION: Duration = Duration::from_secs(2);

/// Five sessions of the ensemble, and a busy machine.
const SOON: Duration = Duration::from_secs(20);

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
        bad_network: false,
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
            "nobody was served for a minute, after {} sections\n{}",
            crew.sections(),
            evidence(stage)
        );
        let pause = dice.up_to(400);
        crew.listen(pause, |crew| crew.sections() >= sections);
        trouble(&mut crew, &mut dice);
        assert!(Instant::now() < deadline, "only {} sections", crew.sections());
    }
    let ended = crew.finish(Duration::from_secs(20));
    let nodes = if ended { String::new() } else { evidence(stage) };
    let (history, rules) = crew.into_evidence();
    let report = history::check(&history, &rules);
    println!("{report}");
    assert!(ended, "somebody did not end\n{report}\n{nodes}");
    report
}

/// All nodes and their sessions as each server sees them, and the connections of each server.
fn evidence(stage: &Stage) -> String {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let mut all = String::new();
    for server in stage.servers.nodes() {
        all.push_str(&format!("-- {}, {:?}\n", server.address(), server.mode()));
        all.push_str(&["dump", "cons"].map(|word| server.ask(word).unwrap_or_default()).concat());
        let nodes = runtime.block_on(owners(&server.address().to_string()));
        all.push_str(&nodes.unwrap_or_else(|error| format!("{error}\n")));
    }
    all
}

/// Every node of a claim with its owner.
async fn owners(server: &str) -> Result<String, zookeeper_client::Error> {
    let client = zookeeper_client::Client::connector().with_fail_eagerly().connect(server).await?;
    let mut all = String::new();
    for name in client.list_children("/lockkeeper/locks").await? {
        for child in client.list_children(&format!("/lockkeeper/locks/{name}")).await? {
            let stat = client.check_stat(&format!("/lockkeeper/locks/{name}/{child}")).await?;
            let owner = stat.map_or(0, |stat| stat.ephemeral_owner);
            all.push_str(&format!("{name} {child} of {owner:#x}\n"));
        }
    }
    Ok(all)
}

/// Asserts that no node of a claim is left.
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
        let trouble = if dice.chance(600) { WorkerFault::Kill } else { WorkerFault::Stop };
        crew.inject(trouble).expect("replaced");
    });
    assert!(matches!(report.verdict, Verdict::Safe | Verdict::SafeWithFencing), "{report}");
    assert!(report.sections >= sections && report.crashed > 0, "{report}");
    nothing_is_left(&stage);
}

/// The leader is killed, followers are stopped, the majority is lost and comes back. The processes themselves run
/// all the time, so no two may hold at once.
#[test]
fn an_ensemble_that_loses_its_leader_and_its_majority() {
    let stage = Stage::ensemble(Duration::from_secs(4));
    let folder = tempfile::tempdir().expect("a folder");
    let sections = number("LOCKKEEPER_SECTIONS", 10_000) / 10;
    let task = Task { lease: Duration::from_secs(4), ..task(&stage, &folder, 2) };
    let (mut round, mut slowest) = (0, Duration::ZERO);
    let report = ordeal(&stage, task, 6, sections, |crew, dice| {
        round += 1;
        if round % 4 != 0 {
            return;
        }
        let servers = stage.servers.nodes();
        let down: Vec<_> = match dice.below(3) {
            0 => servers.iter().filter(|server| server.mode().as_deref() == Some("leader")).collect(),
            1 => {
                servers.iter().filter(|server| server.mode().as_deref() == Some("follower")).take(1).collect()
            }
            _ => servers.iter().take(2).collect(),
        };
        if dice.chance(500) {
            down.iter().for_each(|server| server.process().kill());
            crew.listen(dice.up_to(3000), |_| false);
            down.iter().for_each(|server| server.start_again().expect("started"));
        } else {
            down.iter().for_each(|server| server.process().pause());
            crew.listen(dice.up_to(3000), |_| false);
            down.iter().for_each(|server| server.process().resume());
        }
        servers.iter().for_each(|server| server.until_ready().expect("ready"));
        let (ready, next) = (Instant::now(), crew.sections() + 1);
        assert!(
            crew.listen(SOON, |crew| crew.sections() >= next),
            "nobody was served within {SOON:?} after all servers were well again\n{}",
            evidence(&stage)
        );
        crew.store_recovered();
        slowest = slowest.max(ready.elapsed());
    });
    println!("{round} rounds, served at most {slowest:?} after all servers were well again");
    assert_eq!(report.verdict, Verdict::Safe, "{report}");
    assert!(report.sections >= sections, "{report}");
    nothing_is_left(&stage);
}

/// A killed holder blocks nobody for longer than its session lasts, and two ticks of the server.
#[test]
fn a_killed_process_is_passed_when_its_session_ends() {
    let stage = Stage::single(SESSION);
    let folder = tempfile::tempdir().expect("a folder");
    let task = Task { hold_for_ever: true, resources: 1, tasks: 1, ..task(&stage, &folder, 3) };
    let mut crew = crew(task, 1);
    assert!(crew.listen(Duration::from_secs(60), |crew| !crew.holders().is_empty()), "never held");
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
