//! The duty of a user's last handle when it goes: it ends the keeper, and waits until all holds are given back.
//!
//! A program whose `main` returns ends its process at once. Without the wait, the leaves of the guards that `main` dropped
//! would never be sent, and others would wait until the leases end.

use std::{
    sync::{Arc, Condvar, Mutex, OnceLock, PoisonError},
    time::Duration,
};

use tokio::sync::Notify;

use super::{Engine, thread};
use crate::{
    clock::BootTime,
    support::{self, backoff::Backoff},
};

/// The longest wait (I17): longer than a round trip to a store far away, and shorter than a person notices at the end of
/// a program.
const LONGEST_WAIT: Duration = Duration::from_millis(500);

/// The longest wait for a store that did not answer before, and does not answer now: long enough to open a connection in
/// place of one that broke.
const WAIT_FOR_SILENCE: Duration = Duration::from_millis(150);

/// How long the keeper goes on giving back afterwards, while the process lives.
const LAST_ERRANDS: Duration = Duration::from_secs(10);

/// Whether the user's last handle is gone.
#[derive(Default)]
pub(super) struct LastHandle {
    gone: OnceLock<BootTime>,
    told: Notify,
}

impl LastHandle {
    fn go(&self, now: BootTime) {
        self.gone.get_or_init(|| now);
        self.told.notify_waiters();
    }

    /// Whether a request that was sent at `sent` may have failed only because its connection belonged to the user's
    /// runtime. The copy that follows it is sent later, so this is true of one copy at most. A request that was given up
    /// half-way has no time.
    fn may_have_cut(&self, sent: BootTime) -> bool {
        sent > BootTime::default() && self.gone.get().is_some_and(|gone| sent < *gone)
    }
}

/// Ends the keeper of a handle that was the last one. Everything that it held is being given back already, or is so here.
pub(super) fn gone(engine: &Arc<Engine>) {
    let was_silent = engine.client.is_silent();
    // The user's runtime may be ended or ending, or blocked by this very wait.
    engine.store().leave_caller();
    engine.last_handle.go(engine.clock().now());
    engine.shut(Some(LAST_ERRANDS));
    engine.dispatcher.rescuer().take_all();
    if may_wait(engine) && (engine.leaves.count() > 0 || needs_close(engine)) {
        wait_for_leaves(engine, was_silent);
    }
}

/// Whether something that was given back ends in time only if the store is closed: a minimum hold on some stores, or a leave
/// that not all servers have heard of.
fn needs_close(engine: &Engine) -> bool {
    engine.leaves.keep_any(engine.clock().now()) || engine.store().still_leaves()
}

/// Pauses before the next copy of a leave, whose last copy was sent at `sent` and failed. When the last handle goes, the
/// pause is over, because a process that ends cannot wait for it.
pub(super) async fn pause(engine: &Engine, sent: BootTime, backoff: &mut Backoff) {
    let last_handle = &engine.last_handle;
    // Made before the look, so that the end does not fall between the two.
    let told = last_handle.told.notified();
    if last_handle.may_have_cut(sent) {
        backoff.reset();
        return;
    }
    let until = engine.clock().now().after(backoff.pause());
    tokio::select! {
        biased;
        () = told => backoff.reset(),
        () = engine.clock().sleep_until(until) => {}
    }
}

/// Not where the background work needs this very thread, and not where it would delay renewals (I17).
fn may_wait(engine: &Engine) -> bool {
    engine.stop.has_thread() && !thread::is_of_a_keeper()
}

/// `was_silent`: whether the last request before the end had no answer. Such a store is waited for only briefly, unless
/// it answers meanwhile.
fn wait_for_leaves(engine: &Arc<Engine>, was_silent: bool) {
    let done = Arc::new(Done::default());
    let (waiting, tell) = (engine.clone(), TellDone(done.clone()));
    engine.background().spawn(async move {
        waiting.leaves.finished().await;
        if needs_close(&waiting) {
            waiting.stop.stopped().await;
        }
        drop(tell);
    });
    if !was_silent {
        done.wait(LONGEST_WAIT);
    } else if !done.wait(WAIT_FOR_SILENCE) && !engine.client.is_silent() {
        done.wait(LONGEST_WAIT - WAIT_FOR_SILENCE);
    }
}

/// Blocks a thread until a task has ended. Its parts also work while the values of a thread are dropped.
#[derive(Default)]
struct Done {
    is_done: Mutex<bool>,
    told: Condvar,
}

impl Done {
    /// Says whether the task has ended.
    fn wait(&self, limit: Duration) -> bool {
        let is_done = support::lock(&self.is_done);
        let waited = self.told.wait_timeout_while(is_done, limit, |is_done| !*is_done);
        *waited.unwrap_or_else(PoisonError::into_inner).0
    }
}

/// Tells the thread that waits when it is dropped, which the end of the keeper's runtime does, too.
struct TellDone(Arc<Done>);

impl Drop for TellDone {
    fn drop(&mut self) {
        *support::lock(&self.0.is_done) = true;
        self.0.told.notify_one();
    }
}
