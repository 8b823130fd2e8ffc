//! Layer 7 on ZooKeeper: one or three real servers, killed, stopped and cut off; real processes, killed and stopped.
//! `LOCKKEEPER_SECTIONS` sets how many sections are run.
#![cfg(target_os = "linux")]

mod access;
mod connections;
mod costs;
mod crews;
mod direct;
mod evictions;
mod limits;
mod nodes;
mod numbers;
mod permits;
mod refusals;
mod relay;
mod sessions;
mod stage;
mod suite;
