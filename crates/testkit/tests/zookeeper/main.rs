//! Layer 7 on ZooKeeper: real servers, single and three, killed, stopped and cut off; real processes, killed and
//! stopped. `LOCKKEEPER_SECTIONS` sets how many sections are run.
#![cfg(target_os = "linux")]

mod access;
mod asked;
mod costs;
mod crews;
mod evictions;
mod limits;
mod lines;
mod nodes;
mod numbers;
mod old;
mod permits;
mod relay;
mod sessions;
mod stage;
mod suite;
