//! Layer 6: the client against a faulty store in virtual time, by seed; and layer 8: planted
//! bugs that the same worlds must reveal. `LOCKKEEPER_SEEDS` sets how many worlds are run,
//! `LOCKKEEPER_SEED` runs one again.

use lockkeeper_testkit::{broken::Bug, simulation};

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok().map(|text| text.parse().expect("a number"))
}

#[test]
fn every_seed_keeps_its_promises() {
    let seeds = match number("LOCKKEEPER_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("LOCKKEEPER_SEEDS").unwrap_or(1000),
    };
    let mut sections = 0;
    for seed in seeds.clone() {
        let outcome = simulation::run(seed, Bug::None);
        assert!(
            outcome.is_good(),
            "LOCKKEEPER_SEED={seed}: stuck {}, left behind {:?}\n{}",
            outcome.stuck,
            outcome.left_behind,
            outcome.report
        );
        sections += outcome.report.sections;
    }
    println!("{} worlds, {sections} sections", seeds.end - seeds.start);
    assert!(sections as u64 >= 10 * (seeds.end - seeds.start), "the worlds are too quiet to prove anything");
}

#[test]
fn the_same_seed_gives_the_same_run() {
    for seed in 0..20 {
        assert_eq!(simulation::run(seed, Bug::None), simulation::run(seed, Bug::None), "seed {seed}");
    }
}

#[test]
fn every_planted_bug_is_caught() {
    for bug in Bug::ALL {
        let caught = (0..1000).find(|seed| !simulation::run(*seed, bug).is_good());
        println!("{bug:?} caught by seed {caught:?}");
        assert!(caught.is_some(), "{bug:?} went unseen in 1000 worlds");
    }
}
