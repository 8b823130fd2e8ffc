//! Tests for any Lockkeeper store, also for one that somebody else writes.
//!
//! This crate depends on `lockkeeper-core` and on no store. It has two suites:
//!
//! - [`behaviour`] uses a store through the public locks, as a program does. A store gets the tests that its
//!   [`Capability`](lockkeeper_core::Capability) says it can pass.
//! - [`refinement`] sends the same random requests to a store and to the pure model of `lockkeeper-core`, and compares
//!   every answer.
//!
//! # Testing a store
//!
//! Both suites need a function that returns a [`Connector`] to the same server each time. They are a test target
//! without the usual harness, because the list of tests depends on the store. In `Cargo.toml`:
//!
//! ```toml
//! [dev-dependencies]
//! lockkeeper-store-tests = "0.1"
//!
//! [[test]]
//! name = "suite"
//! harness = false
//! ```
//!
//! In `tests/suite.rs`, with your connector in place of the memory store's:
//!
//! ```no_run
//! use std::process::ExitCode;
//!
//! use lockkeeper_core::{clock::Clock, memory::MemoryServer};
//! use lockkeeper_store_tests::{run, trials};
//!
//! fn main() -> ExitCode {
//!     let server = MemoryServer::new(Clock::boot());
//!     run(trials(move || server.connector("memory:")))
//! }
//! ```
//!
//! `cargo test --test suite` then runs all tests, and `cargo test --test suite mutex::` those of one subject. The tests
//! may run against a server that others use as well: each run has names of its own and leaves only fences behind.
//!
//! A store that needs settings for refinement, such as a larger [tolerance](refinement::Subject::tolerance), puts its
//! list together from [`behaviour::trials`] and [`refinement::trials`].
//!
//! A whole store with its tests is in `tests/toy_store.rs` of this crate. It is the worked example of "Adding a store"
//! in `CONTRIBUTING.md`.

pub mod behaviour;
pub mod dice;
pub mod refinement;

use std::{process::ExitCode, sync::Arc};

use libtest_mimic::Arguments;
pub use libtest_mimic::Trial;
use lockkeeper_core::{StoreError, store::Connector};
use refinement::Subject;

/// How many tests run at once unless `--test-threads` says otherwise. Tests wait most of the time, so many more than
/// there are cores run at once.
pub const TEST_THREADS: usize = 24;

/// Both suites for the store that `connect` leads to: the behaviour suite, and two short runs of refinement in real time.
///
/// # Errors
/// [`StoreError`] if the store cannot be connected to.
pub fn trials(connect: impl Fn() -> Connector + Send + Sync + 'static) -> Result<Vec<Trial>, StoreError> {
    let connect = Arc::new(connect);
    let subject = Subject::in_real_time({
        let connect = connect.clone();
        move || Ok(connect())
    });
    let mut trials = behaviour::trials(move || connect())?;
    trials.extend(refinement::trials(subject, 0..2, 60));
    Ok(trials)
}

/// Runs `trials` as the `main` of a test target, with the arguments that `cargo test` passes on: a filter, `--exact`,
/// `--list`, `--test-threads` and so on. An error of the store is printed and fails the target.
pub fn run(trials: Result<Vec<Trial>, StoreError>) -> ExitCode {
    let mut arguments = Arguments::from_args();
    arguments.test_threads.get_or_insert(TEST_THREADS);
    match trials {
        Ok(trials) => libtest_mimic::run(&arguments, trials).exit_code(),
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}
