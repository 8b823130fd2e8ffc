//! Many clients, and clients that die.

use std::time::Instant;

use lockkeeper_testkit::{history::Verdict, processes::Task, servers::Redis};

use crate::{
    load::{crew, task},
    millis, percent, secs, times,
};

/// Killed inside its section, a holder blocks the others for what is left of its lease, and no longer.
#[test]
fn i8_a_killed_holder_is_passed_when_its_lease_ends() {
    let redis = Redis::start().expect("started");
    let folder = tempfile::tempdir().expect("a folder");
    let task = Task {
        resources: 1,
        tasks: 1,
        hold_for_ever: true,
        lease: millis(500),
        ..task(&redis.url(), &folder)
    };
    let lease = task.lease;
    // The short form runs beside many other tests.
    let slack = if percent().is_some() { millis(250) } else { secs(2) };
    let mut crew = crew(task, 3);
    let mut passed_after = Vec::new();
    for round in 0..times(5, 200) {
        let ready = crew.listen(secs(60), |crew| crew.holders().len() == 1 && crew.waiting() >= 1);
        assert!(ready, "round {round}: {:?} hold, {} wait", crew.holders(), crew.waiting());
        let (holder, token) = crew.holders()[0];
        let killed = Instant::now();
        crew.kill(holder);
        let passed = crew.listen(secs(60), |crew| crew.holders().iter().any(|(_, new)| *new > token));
        assert!(passed, "round {round}: nobody got it");
        passed_after.push(killed.elapsed());
        crew.hire().expect("started");
    }
    passed_after.sort_unstable();
    let (middle, slowest) = (passed_after[passed_after.len() / 2], passed_after[passed_after.len() - 1]);
    println!(
        "{} kills with a lease of {lease:?}: half within {middle:?}, all within {slowest:?}",
        passed_after.len()
    );
    assert!(slowest <= lease + slack, "{passed_after:?}");
}

/// Each process has its waiters on two names, in one place of the line or in as many as there are; then a fifth
/// of the processes dies.
#[test]
fn a_crowd_outlives_a_fifth_of_it() {
    let (hands, tasks) = if percent().is_some() { (20, 100) } else { (5, 40) };
    let redis = Redis::start().expect("started");
    let folder = tempfile::tempdir().expect("a folder");
    let mut crew = crew(Task { resources: 2, tasks, ..task(&redis.url(), &folder) }, hands);
    let all_wait = crew.listen(secs(120), |crew| crew.sections() > 0 && crew.waiting() == hands as usize);
    assert!(all_wait, "{} processes wait", crew.waiting());
    for number in 0..hands / 5 {
        crew.kill(number);
    }
    let (more, started) = (crew.sections() + 20 * tasks as usize, Instant::now());
    assert!(crew.listen(secs(120), |crew| crew.sections() >= more), "{} of {more} sections", crew.sections());
    println!("{} sections after the kill in {:?}", 20 * tasks, started.elapsed());
    let ended = crew.dismiss(secs(120));
    let (history, rules) = crew.into_evidence();
    let report = lockkeeper_testkit::history::check(&history, &rules);
    println!("{report}");
    assert!(ended, "some workers did not end\n{report}");
    assert_eq!(report.verdict, Verdict::Safe, "{report}");
}
