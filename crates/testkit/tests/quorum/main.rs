//! Quorums of real servers in trouble. Each test has servers of its own. `LOCKKEEPER_SECTIONS` and
//! `LOCKKEEPER_FAULTS` set how much of it there is: `./soak quorum`.
#![cfg(target_os = "linux")]

mod clocks;
mod crews;
mod debate;
mod members;

use std::time::Duration;

/// The program that locks all the time.
const WORKER: &str = env!("CARGO_BIN_EXE_worker");

const fn secs(count: u64) -> Duration {
    Duration::from_secs(count)
}

const fn millis(count: u64) -> Duration {
    Duration::from_millis(count)
}
