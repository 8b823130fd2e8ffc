//! How long a request waits while another process has the database locked.
//!
//! SQLite calls a plain function while it is locked out, so the limit of the current request is kept per thread.

use std::{
    cell::Cell,
    thread,
    time::{Duration, Instant},
};

use lockkeeper_core::StoreError;
use rusqlite::Connection;

use crate::trouble::is_busy;

thread_local! {
    /// When the current request stops waiting for others.
    static GIVE_UP: Cell<Option<Instant>> = const { Cell::new(None) };
}

/// After so many tries another process must be stuck.
const MANY: i32 = 1000;

/// Starts a request, which gives up after `limit`; returns when that is.
pub(crate) fn give_up_after(limit: Duration) -> Instant {
    let now = Instant::now();
    // A limit beyond all clocks is no limit.
    let until = now.checked_add(limit).unwrap_or(now + Duration::from_secs(1 << 30));
    GIVE_UP.set(Some(until));
    until
}

/// Makes `connection` wait while another process has the database locked, until the request gives up.
pub(crate) fn be_patient(connection: &mut Connection) -> rusqlite::Result<()> {
    connection.busy_handler(Some(wait_for_others))
}

/// Waits a little while another process has the database locked; false once the request has waited for too long.
///
/// All pauses are equally long, so that no process overtakes another that has waited for longer. Only where a process
/// must be stuck are they longer. SQLite's own handler sleeps ever longer, up to 100 ms.
fn wait_for_others(tries: i32) -> bool {
    if GIVE_UP.get().is_some_and(|limit| Instant::now() >= limit) {
        return false;
    }
    thread::sleep(Duration::from_micros(if tries < MANY { 100 } else { 2000 }));
    true
}

/// Repeats `step` while another process has the database locked.
pub(crate) fn patiently<T>(mut step: impl FnMut() -> Result<T, StoreError>) -> Result<T, StoreError> {
    loop {
        match step() {
            Err(error) if is_busy(&error) && wait_for_others(MANY) => {}
            taken => return taken,
        }
    }
}
