//! Small things that stores, the engine and the command share, so that each is written once.

use std::sync::{Mutex, MutexGuard, PoisonError};

pub mod background;
pub mod backoff;
pub(crate) mod calm;
pub mod duration;
pub mod lease_option;
pub mod moment;
pub mod percent;
pub mod risks;
pub mod sentence;
pub mod server_state;
pub mod terminal;
pub mod url_parts;

/// Locks `mutex`, also after a panic elsewhere.
///
/// The state behind every mutex of this project is consistent whenever its lock is free, so a panic of another thread
/// is no reason to fail here as well.
pub fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
