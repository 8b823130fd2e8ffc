//! Redis in trouble: restarts, promotions, wrong clocks, cut connections, crashed clients, moving slots. Each test has
//! servers of its own. `LOCKKEEPER_FAULTS` sets how often each trouble comes, and makes the bounds tight:
//! `./soak redis`.
#![cfg(target_os = "linux")]

mod access;
mod clock;
mod cluster;
mod connections;
mod crowds;
mod failover;
mod memory;
mod nodes;
mod outages;
mod polls;
mod refusals;
mod sentinels;
mod strangers;

use std::time::Duration;

use lockkeeper::Keeper;
use lockkeeper_testkit::{
    load::{self, percent, times},
    servers::RedisCluster,
};

const NAME: &str = "stock/42";

/// The program that locks all the time.
const WORKER: &str = env!("CARGO_BIN_EXE_worker");

fn secs(count: u64) -> Duration {
    Duration::from_secs(count)
}

fn millis(count: u64) -> Duration {
    Duration::from_millis(count)
}

/// Connects to servers that are up. On a busy machine they may not answer within the limits at first.
async fn connect(url: &str) -> Keeper {
    let started = std::time::Instant::now();
    loop {
        match lockkeeper::connect(url).await {
            Ok(keeper) => return keeper,
            Err(error) => {
                assert!(error.is_passing() && started.elapsed() < secs(20), "not connected: {error}");
            }
        }
    }
}

/// The slot of a lock, and the node that keeps it.
fn location(cluster: &RedisCluster, name: &str) -> (u16, usize) {
    let slot = cluster.slot_of(&format!("{{{name}}}")).expect("asked");
    (slot, cluster.master_of(slot).expect("served"))
}

/// The name of a lock that the same node keeps in another slot.
fn neighbour(cluster: &RedisCluster, name: &str) -> String {
    let (slot, node) = location(cluster, name);
    let is_neighbour = |(other_slot, other_node)| other_node == node && other_slot != slot;
    let mut names = (0..).map(|nth| format!("other/{nth}"));
    names.find(|other| is_neighbour(location(cluster, other))).expect("there is one")
}
