//! What proves a Lockkeeper store.

pub mod broken;
pub mod dice;
pub mod faulty;
pub mod history;
pub mod refinement;
pub mod simulation;
