//! Writes events on a thread of its own. They come from threads that renew leases and tell of losses, and the
//! program's log subscriber may block or panic.

use std::{
    cell::Cell,
    sync::{
        OnceLock,
        atomic::{AtomicU64, Ordering},
        mpsc::{self, Receiver, SyncSender},
    },
    thread,
    time::Duration,
};

use tracing::level_filters::LevelFilter;

use crate::support::calm::calmly;

/// How many events wait to be written at most. Those beyond are dropped and counted.
const UNWRITTEN: usize = 4096;

/// The way to the thread of this process; `None` if it could not be started. It starts with the first event.
static THREAD: OnceLock<Option<SyncSender<Work>>> = OnceLock::new();

static DROPPED: AtomicU64 = AtomicU64::new(0);

thread_local! {
    /// Whether [`write_here`] was called on this thread.
    static HERE: Cell<bool> = const { Cell::new(false) };
}

enum Work {
    Write(Box<dyn FnOnce() + Send>),
    Flush(SyncSender<()>),
}

/// Has warnings of this thread written by itself from now on. Virtual time runs on one thread, and events there
/// must not depend on another.
pub(crate) fn write_here() {
    HERE.set(true);
}

/// Has a warning written soon. Never blocks.
pub(super) fn warn(event: impl FnOnce() + Send + 'static) {
    if HERE.get() {
        return event();
    }
    if LevelFilter::current() < LevelFilter::WARN {
        return;
    }
    let thread = THREAD.get_or_init(start).as_ref();
    if thread.is_none_or(|thread| thread.try_send(Work::Write(Box::new(event))).is_err()) {
        DROPPED.fetch_add(1, Ordering::Relaxed);
    }
}

/// Waits until the warnings so far are written, at most `limit`; false if that was too short.
///
/// Warnings of the engine are written on a thread of their own, so that a blocked log delays no renewal. A program that
/// ends right after a warning calls this first, or the warning may be missing from the log.
///
/// ```
/// # use std::time::Duration;
/// assert!(lockkeeper::telemetry::flush(Duration::from_secs(1)));
/// ```
pub fn flush(limit: Duration) -> bool {
    let Some(thread) = THREAD.get().and_then(Option::as_ref) else { return true };
    let (done, written) = mpsc::sync_channel(1);
    thread.try_send(Work::Flush(done)).is_ok() && written.recv_timeout(limit).is_ok()
}

fn start() -> Option<SyncSender<Work>> {
    let (thread, work) = mpsc::sync_channel(UNWRITTEN);
    thread::Builder::new().name("lockkeeper-log".into()).spawn(move || run(&work)).ok()?;
    Some(thread)
}

fn run(work: &Receiver<Work>) {
    while let Ok(work) = work.recv() {
        match work {
            Work::Write(event) => {
                write(event);
                match DROPPED.swap(0, Ordering::Relaxed) {
                    0 => {}
                    dropped => {
                        write(move || tracing::warn!(dropped, "the log is too slow; warnings were dropped"));
                    }
                }
            }
            // If nobody waits any more, nobody needs it.
            Work::Flush(done) => drop(done.try_send(())),
        }
    }
}

/// A listener that panics loses this event and no other.
fn write(event: impl FnOnce()) {
    calmly(event);
}
