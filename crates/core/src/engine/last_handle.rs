//! What the last handle of a user does when it goes: it ends the keeper, and waits until what was held is given back.
//!
//! A program whose `main` returns ends its process at once. Without the wait, the leaves of the guards that `main` dropped
//! would never be sent, and others would wait until the leases end.

use std::{
    sync::{Arc, Condvar, Mutex, PoisonError},
    time::Duration,
};

use super::{Engine, thread};
use crate::{clock::BootTime, support};

/// The longest wait (I17): longer than a round trip to a store far away, and shorter than a person notices at the end of
/// a program.
const LONGEST_WAIT: Duration = Duration::from_millis(500);

/// How long the keeper goes on giving back afterwards, while the process lives.
const LAST_ERRANDS: Duration = Duration::from_secs(10);

/// Ends the keeper of a handle that was the last one. Everything that it held is being given back already, or is so here.
pub(super) fn gone(engine: &Arc<Engine>) {
    let waits = may_wait(engine);
    engine.last_handle_gone.get_or_init(|| engine.clock().now());
    // The user's runtime may be ended or ending, or blocked by this very wait.
    engine.store().leave_caller();
    engine.shut(Some(LAST_ERRANDS));
    engine.dispatcher.rescuer().take_all();
    if waits && engine.leaves.count() > 0 {
        wait_for_leaves(engine);
    }
}

/// Whether a request that was sent at `sent` may have failed only because its connection belonged to the user's runtime.
/// The copy that follows it is sent later, so this is true of one copy at most. A request that was given up half-way has
/// no time.
pub(super) fn may_have_cut(engine: &Engine, sent: BootTime) -> bool {
    sent > BootTime::default() && engine.last_handle_gone.get().is_some_and(|gone| sent < *gone)
}

/// Not where the background work needs this very thread, not where it would delay renewals, and not if there is nobody
/// to answer (I17).
fn may_wait(engine: &Engine) -> bool {
    engine.stop.has_thread() && !thread::is_of_a_keeper() && !engine.client.is_silent()
}

fn wait_for_leaves(engine: &Arc<Engine>) {
    let done = Arc::new(Done::default());
    let (engine, tell) = (engine.clone(), TellDone(done.clone()));
    engine.background().clone().spawn(async move {
        engine.leaves.finished().await;
        drop(tell);
    });
    done.wait(LONGEST_WAIT);
}

/// Blocks a thread until a task has ended. Made of what also works while the values of a thread are dropped.
#[derive(Default)]
struct Done {
    is_done: Mutex<bool>,
    told: Condvar,
}

impl Done {
    fn wait(&self, limit: Duration) {
        let is_done = support::lock(&self.is_done);
        let waited = self.told.wait_timeout_while(is_done, limit, |is_done| !*is_done);
        drop(waited.unwrap_or_else(PoisonError::into_inner));
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
