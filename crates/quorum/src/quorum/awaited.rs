//! Contests that callers wait for, with the time when each is to be judged again in any case.
//!
//! One task looks after all of them. A timer for each would cost more than the requests of a free lock.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use lockkeeper_core::{clock::BootTime, support};

use super::Quorum;
use crate::contest::Contest;

/// The longest time after which the task looks for callers that came meanwhile.
const LONGEST_PAUSE: Duration = Duration::from_millis(50);

#[derive(Default)]
pub(super) struct Awaited(Mutex<State>);

#[derive(Default)]
struct State {
    next: u64,
    waits: HashMap<u64, (Arc<Contest>, BootTime)>,
    /// Whether the task runs.
    is_watched: bool,
}

/// A caller that waits. Dropping it ends that.
pub(crate) struct Wait<'a> {
    awaited: &'a Awaited,
    id: u64,
}

impl Awaited {
    fn state(&self) -> MutexGuard<'_, State> {
        support::lock(&self.0)
    }
}

impl Drop for Wait<'_> {
    fn drop(&mut self) {
        self.awaited.state().waits.remove(&self.id);
    }
}

impl Quorum {
    /// Wakes the callers that wait for this contest at this time, until the result is dropped.
    pub(crate) fn wake_at(self: &Arc<Self>, contest: &Arc<Contest>, until: BootTime) -> Wait<'_> {
        let awaited = &self.state.awaited;
        let mut state = awaited.state();
        let id = state.next;
        state.next += 1;
        state.waits.insert(id, (contest.clone(), until));
        if !std::mem::replace(&mut state.is_watched, true) {
            self.background.spawn(self.clone().watch_waits());
        }
        Wait { awaited, id }
    }

    /// Wakes callers whose time has come, until nobody waits.
    async fn watch_waits(self: Arc<Self>) {
        loop {
            let now = self.clock.now();
            let next = {
                let mut state = self.state.awaited.state();
                let due = state.waits.values_mut().filter(|(_, until)| *until <= now);
                for (contest, until) in due {
                    contest.changed.notify_waiters();
                    // It registers again if it goes on waiting. If it was not listening yet, it is woken again.
                    *until = now.after(LONGEST_PAUSE);
                }
                let next = state.waits.values().map(|(_, until)| *until).min();
                state.is_watched = next.is_some();
                next
            };
            let Some(next) = next else { return };
            self.clock.sleep_until(next.min(now.after(LONGEST_PAUSE))).await;
        }
    }
}
