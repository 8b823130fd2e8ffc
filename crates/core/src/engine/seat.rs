//! A place in line: an acquisition from its first claim to its outcome.

use std::{
    sync::{Arc, Mutex, MutexGuard, OnceLock},
    time::Duration,
};

use tokio::sync::Notify;

use super::{hold::Hold, terms::Terms, watches::Interest};
use crate::{
    clock::BootTime,
    error::StoreError,
    share::Capacity,
    store::{Claim, StoreTime},
    support,
};

/// How an acquisition ends.
#[derive(Debug)]
pub(crate) enum Outcome {
    Granted(Arc<Hold>),
    /// It was granted, but the answer came after the lease it speaks of.
    TooLate,
    /// Only for those who do not wait.
    Busy,
    Mismatch(Capacity),
    Failed(StoreError),
    /// The store could not be reached for as long as the keeper goes on trying.
    Outage(StoreError),
    Closed,
}

/// How far an acquisition has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Standing {
    /// No copy was sent yet.
    New,
    /// The store may know it.
    Known,
    /// It has its outcome, or nobody waits any more.
    Over,
}

/// One contender that asks and waits.
#[derive(Debug)]
pub(crate) struct Seat {
    /// The claim, but for what is set at each sending.
    template: Claim,
    pub(crate) terms: Arc<Terms>,
    state: Mutex<State>,
    told: Notify,
    /// Keeps the subscription that grants come by for as long as the seat waits.
    woken_by: OnceLock<Interest>,
}

#[derive(Debug, Default)]
struct State {
    outcome: Option<Outcome>,
    cancelled: bool,
    /// How many copies were sent.
    sent: u32,
    /// The `not_after` of the copy under way.
    in_flight: Option<StoreTime>,
    /// The latest `not_after` of copies that never got an answer.
    unanswered: Option<StoreTime>,
    /// Whether a hint came since the copy under way was sent, whose answer may be older than the hint.
    hinted: bool,
    ahead: Option<u32>,
    trouble: Option<Trouble>,
    /// Copies in a row that came too late for the store's clock.
    too_late: u32,
}

/// Failures in a row.
#[derive(Debug, Clone, Copy)]
struct Trouble {
    since: BootTime,
    tries: u32,
}

impl Seat {
    pub(crate) fn new(template: Claim, terms: Arc<Terms>) -> Arc<Self> {
        Arc::new(Self {
            template,
            terms,
            state: Mutex::default(),
            told: Notify::new(),
            woken_by: OnceLock::new(),
        })
    }

    pub(crate) fn claim(&self) -> &Claim {
        &self.template
    }

    pub(crate) fn slot(&self) -> u64 {
        self.template.contender.seq
    }

    fn state(&self) -> MutexGuard<'_, State> {
        support::lock(&self.state)
    }

    /// The copy to send now; `None` if nobody waits for it any more or one is under way.
    pub(crate) fn next_copy(&self, stamp: BootTime, not_after: StoreTime) -> Option<Claim> {
        let mut state = self.state();
        if state.cancelled || state.outcome.is_some() || state.in_flight.is_some() {
            return None;
        }
        let again = state.sent > 0;
        state.sent += 1;
        state.in_flight = Some(not_after);
        state.hinted = false;
        Some(Claim { stamp: stamp.0, not_after, again, ..self.template.clone() })
    }

    /// Grants come by this subscription.
    pub(crate) fn is_woken_by(&self, interest: Interest) {
        // A second one for the same seat keeps nothing alive that the first does not.
        drop(self.woken_by.set(interest));
    }

    pub(crate) fn has_wakes(&self) -> bool {
        self.woken_by.get().is_some()
    }

    /// Whether a copy has been sent before, so that the store may know it.
    pub(crate) fn is_known(&self) -> bool {
        self.state().sent > 0
    }

    pub(crate) fn standing(&self) -> Standing {
        let state = self.state();
        match state.sent {
            _ if state.cancelled || state.outcome.is_some() => Standing::Over,
            0 => Standing::New,
            _ => Standing::Known,
        }
    }

    /// Something may have changed. True if nobody need ask because of it: the first copy is still to come, or what is
    /// under way is asked once more when it is answered.
    pub(crate) fn hinted(&self) -> bool {
        let mut state = self.state();
        state.hinted |= state.in_flight.is_some();
        state.hinted || state.sent == 0
    }

    /// The copy under way was answered. True if a hint came meanwhile.
    pub(crate) fn heard(&self) -> bool {
        let mut state = self.state();
        state.in_flight = None;
        state.trouble = None;
        state.too_late = 0;
        std::mem::take(&mut state.hinted)
    }

    /// The copy under way was answered with a place in line.
    pub(crate) fn placed(&self, ahead: u32) {
        self.state().ahead = Some(ahead);
    }

    /// The copy under way came to nothing; how long to pause before the next, and since when
    /// there is trouble.
    pub(crate) fn failed(&self, now: BootTime, maybe_applied: bool) -> (Duration, BootTime) {
        let mut state = self.state();
        if let Some(not_after) = state.in_flight.take().filter(|_| maybe_applied) {
            state.unanswered = state.unanswered.max(Some(not_after));
        }
        // It is asked again anyway.
        state.hinted = false;
        let trouble = state.trouble.get_or_insert(Trouble { since: now, tries: 0 });
        trouble.tries += 1;
        let pause = Duration::from_millis(50) * 2u32.pow(trouble.tries.min(5) - 1);
        (pause.min(Duration::from_secs(1)), trouble.since)
    }

    /// How many claims in a row came too late, with this one.
    pub(crate) fn too_late(&self) -> u32 {
        let mut state = self.state();
        state.in_flight = None;
        state.hinted = false;
        state.too_late += 1;
        state.too_late
    }

    /// Until when copies without an answer may still arrive at the store.
    pub(crate) fn tombstone_until(&self) -> Option<StoreTime> {
        let state = self.state();
        state.unanswered.max(state.in_flight)
    }

    pub(crate) fn ahead(&self) -> Option<u32> {
        self.state().ahead
    }

    /// Sets the outcome and wakes who waits for it; gives it back if nobody does.
    pub(crate) fn tell(&self, outcome: Outcome) -> Result<(), Outcome> {
        let mut state = self.state();
        if state.outcome.is_some() || state.cancelled {
            return Err(outcome);
        }
        state.outcome = Some(outcome);
        drop(state);
        self.told.notify_one();
        Ok(())
    }

    /// The outcome, if it is there; no further copy is sent then.
    fn take(&self) -> Option<Outcome> {
        let mut state = self.state();
        let outcome = state.outcome.take();
        state.cancelled |= outcome.is_some();
        outcome
    }

    /// Waits for the outcome.
    pub(crate) async fn outcome(&self) -> Outcome {
        loop {
            if let Some(outcome) = self.take() {
                return outcome;
            }
            self.told.notified().await;
        }
    }

    /// Nobody waits any more. Gives the outcome that came in between, if one did, and whether
    /// the store may know the contender.
    pub(crate) fn cancel(&self) -> (Option<Outcome>, bool) {
        let mut state = self.state();
        state.cancelled = true;
        (state.outcome.take(), state.sent > 0)
    }
}
