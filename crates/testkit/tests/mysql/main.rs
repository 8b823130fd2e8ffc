//! MariaDB: the laws of its protocol, each with a test that fails without it, waiting, and the server in trouble. Each test
//! has a server of its own. `LOCKKEEPER_FAULTS` sets how often each trouble comes.
#![cfg(target_os = "linux")]

mod laws;
#[path = "../redis/load.rs"]
#[expect(dead_code, reason = "losses of data are only on Redis so far")]
mod load;
mod plain;
mod storms;
mod sweeps;
mod trouble;
mod waiting;

use std::time::Duration;

fn secs(count: u64) -> Duration {
    Duration::from_secs(count)
}

fn millis(count: u64) -> Duration {
    Duration::from_millis(count)
}

/// How often a trouble comes: a few times, or as often as `LOCKKEEPER_FAULTS` says of `full`, in percent.
fn times(few: usize, full: usize) -> usize {
    let percent =
        std::env::var("LOCKKEEPER_FAULTS").ok().map(|text| text.parse::<usize>().expect("a number"));
    percent.map_or(few, |percent| (full * percent / 100).max(1))
}
