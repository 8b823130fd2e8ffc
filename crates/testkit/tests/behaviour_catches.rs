//! Layer 8 for the behaviour suite: stores with a planted bug must fail the tests that are about
//! it. Bugs that show only when messages are lost or late are for the simulation; those that show
//! only by something that never comes are left out here, because that takes as long as the
//! suite's patience.

use std::path::Path;

use libtest_mimic::{Arguments, Conclusion};
use lockkeeper_core::{KeeperId, clock::Clock, memory::MemoryServer};
use lockkeeper_testkit::{
    behaviour,
    broken::{Bug, broken},
};

/// A bug, and tests of which each must see it: at least one of every subject that a store can
/// spoil.
const CAUGHT: &[(Bug, &[&str])] = &[
    (
        Bug::ReleaseByName,
        &["guard::a_late_release_frees_nobody_else", "semaphore::permits_that_expire_come_back"],
    ),
    (Bug::TokenReset, &["mutex::tokens_grow_with_every_grant", "guard::a_guard_says_what_it_holds"]),
    (Bug::RenewalRevives, &["guard::a_renewal_revives_nothing", "detached::nonsense_is_not_adopted"]),
    (
        Bug::GrantedTwice,
        &[
            "reentrancy::a_guard_is_entered_ten_levels_deep",
            "reentrancy::an_owner_enters_ten_levels_deep",
            "waiting::giving_up_at_any_moment_of_a_wait_leaves_nothing",
        ],
    ),
    (
        Bug::LeaveForgotten,
        &[
            "mutex::one_holder_at_a_time",
            "rw_lock::a_writer_is_alone",
            "several::all_are_held_with_a_token_each",
            "closing::closing_gives_everything_back",
            "blocking::every_lock_works_from_a_thread",
        ],
    ),
    (Bug::MismatchGranted, &["errors::another_capacity_is_refused_while_in_use"]),
    (Bug::NeverDetached, &["detached::a_lease_passes_to_another_process"]),
    (Bug::EvictedByName, &["operators::an_eviction_hits_only_whom_it_names"]),
    (Bug::ValueForgotten, &["election::one_leads_and_everybody_sees_who"]),
    (Bug::ListedAnyhow, &["operators::a_listing_has_pages_in_order"]),
    (Bug::CountedTwice, &["latch::it_opens_at_zero", "latch::it_counts_each_count_once"]),
    (Bug::FenceForgets, &["fence::an_older_token_is_rejected_everywhere"]),
];

/// Runs one test of the suite on a store with a bug, with its output in a file.
fn run(bug: Bug, test: &str, log: &Path) -> Conclusion {
    let server = MemoryServer::new(Clock::boot());
    let trials = behaviour::trials(move || broken(server.connector("memory:broken"), bug));
    let arguments = Arguments {
        filter: Some(test.to_owned()),
        exact: true,
        logfile: Some(log.to_string_lossy().into_owned()),
        ..Arguments::default()
    };
    libtest_mimic::run(&arguments, trials.expect("a memory store can always be connected to"))
}

#[test]
fn planted_bugs_are_caught_by_the_tests_about_them() {
    let folder = std::env::temp_dir().join(format!("lockkeeper-catches-{}", KeeperId::random()));
    std::fs::create_dir(&folder).expect("a temporary folder can be made");
    let runs = CAUGHT.iter().flat_map(|(bug, tests)| tests.iter().map(|test| (*bug, *test)));
    // At the same time: they wait more than they work.
    let wrong: Vec<String> = std::thread::scope(|scope| {
        let spawn = |(place, (bug, test)): (usize, (Bug, &'static str))| {
            let (sick, well) = (folder.join(format!("{place}-sick")), folder.join(format!("{place}-well")));
            scope.spawn(move || {
                let (sick, well) = (run(bug, test, &sick), run(Bug::None, test, &well));
                let ran = |seen: &Conclusion| (seen.num_passed, seen.num_failed);
                (ran(&sick) != (0, 1) || ran(&well) != (1, 0))
                    .then(|| format!("{test}: with {bug:?} {:?}, without {:?}", ran(&sick), ran(&well)))
            })
        };
        let runs: Vec<_> = runs.enumerate().map(spawn).collect();
        runs.into_iter().filter_map(|run| run.join().expect("a run never panics")).collect()
    });
    assert!(wrong.is_empty(), "(passed, failed):\n{}\nsee {}", wrong.join("\n"), folder.display());
    std::fs::remove_dir_all(&folder).expect("the temporary folder can be removed");
}
