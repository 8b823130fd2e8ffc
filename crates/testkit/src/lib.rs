//! What proves this project's own stores: servers, faults, worker processes, the history checker, the simulation and
//! planted bugs. The suites for any store are in `lockkeeper-store-tests`, and are re-exported here.

pub mod asker;
pub mod broken;
pub mod counting;
pub mod faulty;
pub mod history;
pub mod log;
pub mod overrides;
pub mod port;
#[cfg(target_os = "linux")]
pub mod processes;
pub mod proxy;
#[cfg(target_os = "linux")]
pub mod servers;
pub mod simulation;

mod wrapper;

pub use lockkeeper_store_tests::{behaviour, dice, refinement};
