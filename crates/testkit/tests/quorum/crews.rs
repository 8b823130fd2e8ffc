//! A crew of processes on five members, of which two at a time are killed, stopped, cut off or emptied. The history checker and
//! a fenced counter judge it. `LOCKKEEPER_SECTIONS` sets how many sections there are, `LOCKKEEPER_FAULTS` how many faults, in
//! percent of 200, and `LOCKKEEPER_SEED` which faults come when.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use lockkeeper_core::clock::Clock;
use lockkeeper_testkit::{
    dice::Dice,
    history::{self, Loss, Report, Rules, Verdict},
    load::{Deck, crew, number, percent, task, times},
    processes::{Crew, Task},
};

use crate::{
    WORKER,
    members::{Members, Trouble},
    millis, secs,
};

/// How soon a section ends while three members are up and vote, nearly always.
const WINDOW: Duration = secs(2);

pub(crate) fn now() -> u64 {
    Clock::boot().now().0
}

#[test]
fn many_processes_while_two_members_of_five_are_in_trouble() {
    let sections = number("LOCKKEEPER_SECTIONS", 10_000);
    let least = times(2 * Trouble::ALL.len(), 200);
    let seed = number("LOCKKEEPER_SEED", 1) as u64;
    let (started, mut dice, folder) =
        (Instant::now(), Dice::new(seed), tempfile::tempdir().expect("a folder"));
    let mut members = Members::found(5);
    // So many tasks that most hand on within a process.
    let work = Task { resources: 16, tasks: 12, seed, ..task(&members.url(), &folder) };
    let mut crew = crew(WORKER, work, 6);
    go_on(&mut crew, 100);
    let (mut deck, mut faults, begun) = (Deck::new(Trouble::ALL.to_vec(), seed), BTreeMap::new(), now());
    let mut count = 0;
    while crew.sections() < sections || count < least {
        // Faults come in step with the sections, two at a time.
        let due = (count - count % 2) * sections / least;
        while !crew.listen(millis(100), |crew| crew.sections() >= due) {
            members.look();
        }
        let trouble = deck.draw().expect("there are some");
        while !members.strike(trouble, &mut dice) {
            let pause = millis(50) + dice.up_to(100);
            crew.listen(pause, |_| false);
        }
        *faults.entry(trouble).or_insert(0) += 1;
        count += 1;
        println!("{:?} {trouble:?} after {} sections", started.elapsed(), crew.sections());
        assert!(count < 10 * least.max(100), "only {} sections", crew.sections());
    }
    members.heal(|time| {
        crew.listen(time, |_| false);
    });
    let ended = now();
    crew.store_recovered();
    go_on(&mut crew, 100);
    let (share, longest) = served(&crew, begun, ended);
    println!("{count} faults: {faults:?}; served within {WINDOW:?} at {:.2} % of all times", share * 100.0);
    judge(crew, sections);
    println!("{:?}", started.elapsed());
    // The short form runs beside many other tests, and is so short that one bad moment counts for much.
    let least_share = if percent().is_some() { 0.99 } else { 0.9 };
    assert!(share >= least_share, "only {:.2} %", share * 100.0);
    assert!(longest <= secs(10), "nobody was served for {longest:?}");
}

/// Waits until some more sections have been served.
pub(crate) fn go_on(crew: &mut Crew, sections: usize) {
    let enough = crew.sections() + sections;
    let served = crew.listen(secs(60), |crew| crew.sections() >= enough);
    assert!(served, "only {} of {enough} sections", crew.sections());
}

/// Returns two figures for the time between `from` and `to`: the share of moments after which a section ended within
/// the window, and the longest time in which none did.
fn served(crew: &Crew, from: u64, to: u64) -> (f64, Duration) {
    let mut ends: Vec<u64> = crew.releases().filter(|end| (from..to).contains(end)).collect();
    ends.extend([from, to]);
    ends.sort_unstable();
    let gaps = ends.windows(2).map(|pair| Duration::from_nanos(pair[1] - pair[0]));
    let too_long: Duration = gaps.clone().map(|gap| gap.saturating_sub(WINDOW)).sum();
    let longest = gaps.max().unwrap_or_default();
    println!("the longest time without the end of a section was {longest:?}");
    (1.0 - too_long.as_secs_f64() / Duration::from_nanos(to - from).as_secs_f64(), longest)
}

/// Checks that no two held at any time, for all the trouble: nobody was stopped, and no majority forgot anything.
fn judge(crew: Crew, sections: usize) {
    let report = evidence(crew, sections, Vec::new());
    assert_eq!(report.verdict, Verdict::Safe, "{report}");
    assert!(report.accepted > 0 && report.refused == 0, "{report}");
}

/// Ends the crew, and holds its records against the rules of a quorum.
pub(crate) fn evidence(mut crew: Crew, sections: usize, losses: Vec<Loss>) -> Report {
    let ended = crew.finish(secs(60));
    let (history, rules) = crew.into_evidence();
    let rules = Rules { readers_alike: true, least: sections, losses, ..rules };
    let report = history::check(&history, &rules);
    println!("{report}");
    assert!(ended, "some workers did not end\n{report}");
    report
}

/// Two members are gone for long. The other three serve as ever.
#[test]
fn two_members_that_are_gone_for_long_stop_nobody() {
    for trouble in [Trouble::CutOff, Trouble::Stopped, Trouble::Killed] {
        let (mut members, folder) = (Members::found(5), tempfile::tempdir().expect("a folder"));
        let mut crew = crew(WORKER, Task { resources: 16, tasks: 12, ..task(&members.url(), &folder) }, 6);
        go_on(&mut crew, 100);
        let begun = now();
        for member in [1, 3] {
            members.each[member].begin(trouble, Instant::now() + secs(12));
        }
        crew.listen(secs(12), |_| false);
        let ended = now();
        let (served, _) = served(&crew, begun, ended);
        println!("{trouble:?}: {} sections, {:.1} %", crew.sections(), served * 100.0);
        members.heal(|time| {
            crew.listen(time, |_| false);
        });
        crew.store_recovered();
        go_on(&mut crew, 100);
        judge(crew, 100);
        assert!(served > 0.9, "{trouble:?}: only {:.1} %", served * 100.0);
    }
}
