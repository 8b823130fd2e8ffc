//! What proves a Lockkeeper store.

pub mod history;
