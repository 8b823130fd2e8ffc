//! How long a request waits while another process has the database locked.
//!
//! SQLite calls a plain function while it is locked out, so the limit of the current request is kept per thread.

use std::{
    cell::Cell,
    num::NonZeroU64,
    thread,
    time::{Duration, Instant},
};

use lockkeeper_core::StoreError;
use rusqlite::Connection;

use crate::trouble::is_busy;

thread_local! {
    /// The time at which the current request stops waiting for others.
    static GIVE_UP: Cell<Option<Instant>> = const { Cell::new(None) };
}

/// A pause between two tries. A lock usually passes to a process while the one before it enters the queue again, which
/// takes less time than this: so most writers that meet another one pause once.
const PAUSE: Duration = Duration::from_micros(50);

/// The number of tries after which another process must be stuck.
const MANY: i32 = 2000;

/// The pause between two tries after [`MANY`].
const LONG_PAUSE: Duration = Duration::from_millis(2);

/// The time by which the kernel may end a pause of this thread too late. By default it is 50 µs, as long as the pause.
const SLACK: NonZeroU64 = NonZeroU64::MIN;

/// Starts a request, which gives up after `limit`; returns the time at which it does.
pub(crate) fn give_up_after(limit: Duration) -> Instant {
    let now = Instant::now();
    // A limit beyond all clocks is no limit.
    let until = now.checked_add(limit).unwrap_or(now + Duration::from_secs(1 << 30));
    GIVE_UP.set(Some(until));
    until
}

/// Has pauses of this thread end on time. If the kernel refuses that, they only take longer.
pub(crate) fn be_punctual() {
    _ = rustix::thread::set_current_timer_slack(Some(SLACK));
}

/// Makes `connection` wait while another process has the database locked, until the request gives up.
pub(crate) fn be_patient(connection: &mut Connection) -> rusqlite::Result<()> {
    connection.busy_handler(Some(wait_for_others))
}

/// Waits a little while another process has the database locked; false once the request has waited for too long.
///
/// All pauses are equally long, so that a process that has waited for longer is not at a disadvantage. Only where a process
/// must be stuck are they longer. SQLite's own handler sleeps ever longer, up to 100 ms.
fn wait_for_others(tries: i32) -> bool {
    if GIVE_UP.get().is_some_and(|limit| Instant::now() >= limit) {
        return false;
    }
    thread::sleep(if tries < MANY { PAUSE } else { LONG_PAUSE });
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
