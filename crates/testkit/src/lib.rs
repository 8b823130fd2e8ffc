//! What proves a Lockkeeper store.

pub mod behaviour;
pub mod broken;
pub mod counting;
pub mod dice;
pub mod faulty;
pub mod history;
pub mod planted;
pub mod port;
#[cfg(target_os = "linux")]
pub mod processes;
pub mod proxy;
pub mod refinement;
#[cfg(target_os = "linux")]
pub mod servers;
pub mod simulation;

mod wrapper;
