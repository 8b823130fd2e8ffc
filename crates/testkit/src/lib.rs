//! The tools that prove this project's own stores: servers, faults, worker processes, the history checker, the
//! simulation and planted bugs. The suites for any store are in `lockkeeper-store-tests`, and are re-exported here.

pub mod asker;
pub mod bad_connection;
pub mod broken;
pub mod counting;
#[cfg(target_os = "linux")]
pub mod databases;
pub mod faulty;
pub mod history;
#[cfg(target_os = "linux")]
pub mod kills;
#[cfg(target_os = "linux")]
pub mod load;
pub mod log;
pub mod overrides;
pub mod port;
#[cfg(target_os = "linux")]
pub mod processes;
pub mod proxy;
#[cfg(target_os = "linux")]
pub mod replicated;
pub mod servers;
pub mod shapes;
pub mod simulation;
pub mod wakers;

mod wrapper;

pub use lockkeeper_store_tests::{behaviour, dice, refinement};
