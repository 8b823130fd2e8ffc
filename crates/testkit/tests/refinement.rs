//! Layer 3: a store and the model go through the same random steps. The memory store does so in virtual
//! time, the SQLite store in real time; planted bugs must all be told apart. `LOCKKEEPER_SEEDS`
//! sets how many seeds the memory store runs, `LOCKKEEPER_SEED` runs one again.

use std::time::Duration;

use lockkeeper_core::{memory::MemoryServer, store::Connector, testing::VirtualClock};
use lockkeeper_testkit::{
    broken::{Bug, broken},
    dice::Dice,
    faulty::{Faults, Network, faulty},
    refinement::{Failure, Subject, Tally, check},
};

const STEPS: usize = 200;

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok().map(|text| text.parse().expect("a number"))
}

/// Runs one seed in virtual time on a memory store, wrapped by `wrap`, with this tolerance.
fn run(
    seed: u64,
    tolerance: Duration,
    wrap: impl Fn(Connector) -> Connector + Send + Sync + 'static,
) -> Result<Tally, Box<Failure>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    runtime.expect("a runtime without I/O").block_on(async {
        let clock = VirtualClock::new();
        let server = MemoryServer::new(clock.clock());
        let subject = Subject::in_virtual_time(&clock, move || Ok(wrap(server.connector("memory:"))));
        check(&subject.tolerance(tolerance), seed, STEPS).await
    })
}

/// The tolerance for a slow network, which is not exact to the moment.
const SLOW: Duration = Duration::from_millis(1);

/// Requests take a while.
fn slow(seed: u64) -> impl Fn(Connector) -> Connector + Send + Sync + 'static {
    let network = Network::new(Dice::new(seed), Faults { usual: 5, ..Faults::NONE });
    move |connector| faulty(connector, network.clone())
}

#[test]
fn the_memory_store_is_the_model() {
    let seeds = match number("LOCKKEEPER_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("LOCKKEEPER_SEEDS").unwrap_or(300),
    };
    let mut sum = Tally::default();
    for seed in seeds.clone() {
        sum += run(seed, Duration::ZERO, |connector| connector).unwrap_or_else(|failure| panic!("{failure}"));
    }
    println!("{} seeds of {STEPS} steps: {sum:?}", seeds.clone().count());
    let Tally { granted, busy, stale, mismatch, left, held, gone, refused_renewals, .. } = sum;
    let Tally { evicted, counted, fenced, notices, .. } = sum;
    let all = [
        granted,
        busy,
        stale,
        mismatch,
        left,
        held,
        gone,
        refused_renewals,
        evicted,
        counted,
        fenced,
        notices,
    ];
    let enough = seeds.count() as u64 / 10;
    assert!(all.iter().all(|count| *count >= enough), "too little was compared to prove anything: {sum:?}");
}

/// A store that takes its time is no worse: the comparisons do not depend on how fast it is.
#[test]
fn a_slow_store_is_no_worse() {
    for seed in 0..30 {
        run(seed, SLOW, slow(seed)).unwrap_or_else(|failure| panic!("{failure}"));
    }
}

/// The SQLite store, in real time: few seeds, since the end of a lease has to be waited for.
#[tokio::test]
async fn the_sqlite_store_refines_the_model() {
    let folder = tempfile::tempdir().expect("a folder of its own");
    let url = format!("sqlite:{}", folder.path().join("locks.db").display());
    let subject = Subject::in_real_time(move || lockkeeper::url::connector(&url));
    for seed in 0..2 {
        check(&subject, seed, 60).await.unwrap_or_else(|failure| panic!("{failure}"));
    }
}

#[test]
fn every_planted_bug_is_told_apart() {
    for bug in Bug::ALL.into_iter().chain(Bug::OTHERS) {
        // A wrong deadline shows only when an answer takes a while.
        let failure = (0..20).find_map(|seed| match bug {
            Bug::DeadlineAfterReply => {
                let slow = slow(seed);
                run(seed, SLOW, move |connector| broken(slow(connector), bug)).err()
            }
            _ => run(seed, Duration::ZERO, move |connector| broken(connector, bug)).err(),
        });
        let failure = failure.unwrap_or_else(|| panic!("{bug:?} went unseen in 20 seeds"));
        println!("{bug:?}: {failure}\n");
    }
}
