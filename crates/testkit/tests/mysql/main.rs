//! MariaDB: the laws of its protocol, each with a test that fails without it, waiting, and the server in trouble. Each test
//! has a server of its own. `LOCKKEEPER_FAULTS` sets how often each trouble comes, and `LOCKKEEPER_SECTIONS` how many
//! sections a crew goes through: `./soak mysql`.
#![cfg(target_os = "linux")]

mod crews;
mod failover;
mod laws;
mod leftovers;
mod limits;
mod losses;
mod membership;
mod plain;
mod replicas;
mod rights;
mod space;
mod storms;
mod sweeps;
mod trouble;
mod waiting;

use std::time::Duration;

use lockkeeper_testkit::load::{self, times};

/// The program that locks all the time.
const WORKER: &str = env!("CARGO_BIN_EXE_worker");

fn secs(count: u64) -> Duration {
    Duration::from_secs(count)
}

fn millis(count: u64) -> Duration {
    Duration::from_millis(count)
}
