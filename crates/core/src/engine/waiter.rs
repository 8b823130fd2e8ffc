//! A waiter: one contender from its first claim to its outcome.
//!
//! It keeps the requests and answers of this contender, and decides nothing: `acquisition` does.

use std::{
    sync::{Arc, Mutex, MutexGuard, OnceLock},
    time::Duration,
};

use tokio::sync::Notify;

use super::{
    Engine, dispatch::Standing, heard::Heard, hold::Hold, store_client, subscriptions::Subscription,
    terms::Terms,
};
use crate::{
    clock::BootTime,
    error::StoreError,
    share::Capacity,
    store::{Claim, StoreTime},
    support::{self, backoff::Backoff, calm::calmly},
};

/// How an acquisition ends.
#[derive(Debug)]
pub(crate) enum Outcome {
    Granted(Arc<Hold>),
    /// It was granted, but the answer came after the lease it speaks of.
    TooLate,
    /// It gave way. Only another contender may go on.
    Again,
    /// Only for those who do not wait.
    Busy,
    Mismatch(Capacity),
    Failed(StoreError),
    /// The store could not be reached for as long as the keeper goes on trying.
    Outage(StoreError),
    Closed,
}

pub(crate) struct Waiter {
    pub(super) engine: Arc<Engine>,
    /// The claim, except for the fields that are set at each sending.
    template: Claim,
    pub(super) terms: Arc<Terms>,
    state: Mutex<State>,
    told: Notify,
    /// Keeps the subscription that grants come by for as long as the contender waits.
    woken_by: OnceLock<Subscription>,
}

#[derive(Debug, Default)]
struct State {
    outcome: Option<Outcome>,
    cancelled: bool,
    /// Whether it has a grant, which it is about to be told of.
    granted: bool,
    /// The server in whose queue at the dispatcher it is, so that the next copy is still to be sent. It may be in the
    /// queue of an earlier server as well, which costs at most one more copy.
    queued: Option<usize>,
    /// How many copies were sent.
    sent: u32,
    /// The `not_after` of the copy in flight.
    in_flight: Option<StoreTime>,
    /// The latest `not_after` of copies that never got an answer.
    unanswered: Option<StoreTime>,
    /// Whether a hint came since the copy in flight was sent, whose answer may be older than the hint.
    hinted: bool,
    ahead: Option<u32>,
    failing: Option<Failing>,
    /// Whether the next copy goes alone, because the store could not do the last one then.
    alone: bool,
    heard: Heard,
    /// Copies in a row that came too late for the store's clock.
    too_late: u32,
}

/// Failures in a row.
#[derive(Debug, Clone, Copy)]
struct Failing {
    since: BootTime,
    backoff: Backoff,
}

/// A copy came to nothing.
pub(super) struct FailedCopy {
    /// How long to pause before the next copy.
    pub(super) pause: Duration,
    /// The time since which copies fail.
    pub(super) since: BootTime,
}

impl State {
    /// Whether no further copy is sent.
    fn is_over(&self) -> bool {
        self.cancelled || self.granted || self.outcome.is_some()
    }
}

impl Waiter {
    /// `heard` is the earlier news of the same wait.
    pub(super) fn new(engine: &Arc<Engine>, template: Claim, terms: Arc<Terms>, heard: Heard) -> Arc<Self> {
        Arc::new(Self {
            engine: engine.clone(),
            template,
            terms,
            state: Mutex::new(State { heard, ..State::default() }),
            told: Notify::new(),
            woken_by: OnceLock::new(),
        })
    }

    pub(super) fn claim(&self) -> &Claim {
        &self.template
    }

    /// The keeper's own number for it.
    pub(super) fn slot(&self) -> u64 {
        self.template.contender.seq
    }

    fn state(&self) -> MutexGuard<'_, State> {
        support::lock(&self.state)
    }

    /// The server that keeps its resource now; another one after a failover.
    pub(super) fn server(&self) -> usize {
        self.engine.client.server_of(&self.template.name)
    }

    /// Whether it is to be given to the dispatcher, which has not got it yet for `server`.
    pub(super) fn enqueue(&self, server: usize) -> bool {
        let mut state = self.state();
        state.in_flight.is_none() && state.queued.replace(server) != Some(server)
    }

    /// The copy to send now; `None` if nobody waits for it any more or one is in flight.
    pub(super) fn next_copy(&self, sent: BootTime, not_after: StoreTime) -> Option<Claim> {
        let mut state = self.state();
        state.queued = None;
        if state.is_over() || state.in_flight.is_some() {
            return None;
        }
        let again = state.sent > 0;
        state.sent += 1;
        state.in_flight = Some(not_after);
        state.hinted = false;
        state.alone = false;
        Some(Claim { stamp: sent.0, not_after, again, ..self.template.clone() })
    }

    /// Grants come by this subscription.
    pub(super) fn is_woken_by(&self, subscription: Subscription) {
        // A second one for the same waiter keeps nothing alive that the first does not.
        drop(self.woken_by.set(subscription));
    }

    pub(super) fn has_wakes(&self) -> bool {
        self.woken_by.get().is_some()
    }

    /// Whether a copy has been sent, so that the store may know the contender.
    pub(super) fn is_known(&self) -> bool {
        self.state().sent > 0
    }

    pub(super) fn standing(&self) -> Standing {
        let state = self.state();
        match state.sent {
            _ if state.is_over() => Standing::Over,
            0 => Standing::New,
            _ => Standing::Known,
        }
    }

    /// Something may have changed. True if nobody need ask because of it: the next copy is still to be sent, or the one
    /// in flight is followed by another when it is answered. The queue of another server than `server` does not count:
    /// that server may hang.
    pub(super) fn hinted(&self, server: usize) -> bool {
        let mut state = self.state();
        state.hinted |= state.in_flight.is_some();
        // A new waiter in no queue is just about to be given to the dispatcher.
        state.hinted || state.queued.map_or(state.sent == 0, |queued| queued == server)
    }

    /// The copy in flight was answered. True if a hint came meanwhile.
    pub(super) fn heard(&self) -> bool {
        let mut state = self.state();
        state.in_flight = None;
        state.failing = None;
        state.heard = Heard::Answer;
        state.too_late = 0;
        std::mem::take(&mut state.hinted)
    }

    /// The copy in flight was answered with a position in the queue. True if it is the first such answer.
    pub(super) fn placed(&self, ahead: u32) -> bool {
        self.state().ahead.replace(ahead).is_none()
    }

    /// The copy in flight came to nothing. `None` if nobody waits any more, so that no other is sent.
    pub(super) fn failed(&self, now: BootTime, error: &StoreError) -> Option<FailedCopy> {
        let mut state = self.state();
        if let Some(not_after) = state.in_flight.take().filter(|_| error.maybe_applied()) {
            state.unanswered = state.unanswered.max(Some(not_after));
        }
        // It is asked again anyway.
        state.hinted = false;
        // Copies of the front before may have failed until now. An outage that outlasts one front is the same for the next.
        let since = if let Heard::Failure { since, .. } = state.heard { since } else { now };
        let failing = state.failing.get_or_insert(Failing { since, backoff: store_client::BACKOFF });
        let failure = FailedCopy { pause: failing.backoff.pause(), since: failing.since };
        state.heard = Heard::Failure { error: error.clone(), since: failure.since };
        (!state.is_over()).then_some(failure)
    }

    /// The next copy goes alone.
    pub(super) fn go_alone(&self) {
        self.state().alone = true;
    }

    pub(super) fn goes_alone(&self) -> bool {
        self.state().alone
    }

    /// The time since which copies fail, if the last one did.
    pub(super) fn failing_since(&self) -> Option<BootTime> {
        self.state().failing.map(|failing| failing.since)
    }

    /// Returns the latest news of its wait.
    pub(super) fn last_heard(&self) -> Heard {
        self.state().heard.clone()
    }

    /// How many claims in a row came too late, with this one.
    pub(super) fn too_late(&self) -> u32 {
        let mut state = self.state();
        state.in_flight = None;
        state.failing = None;
        state.heard = Heard::Answer;
        state.hinted = false;
        state.too_late += 1;
        state.too_late
    }

    /// The time until which copies without an answer may still arrive at the store.
    pub(super) fn tombstone_until(&self) -> Option<StoreTime> {
        let state = self.state();
        state.unanswered.max(state.in_flight)
    }

    /// It has a grant, so no further copy is sent. Gives [`tombstone_until`](Self::tombstone_until), which holds from now
    /// on for all copies there will ever be.
    pub(super) fn granted(&self) -> Option<StoreTime> {
        let mut state = self.state();
        state.granted = true;
        state.unanswered.max(state.in_flight)
    }

    pub(super) fn ahead(&self) -> Option<u32> {
        self.state().ahead
    }

    /// Sets the outcome and wakes the task that waits for it; gives it back if there is none.
    pub(super) fn tell(&self, outcome: Outcome) -> Result<(), Outcome> {
        let mut state = self.state();
        if state.outcome.is_some() || state.cancelled {
            return Err(outcome);
        }
        state.outcome = Some(outcome);
        drop(state);
        calmly(|| self.told.notify_one());
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
    pub(super) async fn outcome(&self) -> Outcome {
        loop {
            if let Some(outcome) = self.take() {
                return outcome;
            }
            self.told.notified().await;
        }
    }

    /// Nobody waits any more. Gives the outcome that came in between, if one did, and whether the store may know the
    /// contender.
    pub(super) fn cancel(&self) -> (Option<Outcome>, bool) {
        let mut state = self.state();
        state.cancelled = true;
        (state.outcome.take(), state.sent > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        engine::{Settings, thread::Stop},
        id::{Ids, KeeperId},
        name::Name,
        share::Units,
        store::{Context, Kind, ProcessInfo, WakeSink},
        testing::{self, Virtual},
    };

    async fn waiter() -> Arc<Waiter> {
        let (world, ids) = (Virtual::new(), Arc::new(Ids::new(KeeperId::from_u128(1))));
        let (clock, background) = (world.clock.clock(), tokio::runtime::Handle::current());
        let context = Context {
            keeper: ids.keeper(),
            wakes: WakeSink::new(drop),
            background: background.clone(),
            clock: clock.clone(),
            request_limit: Duration::from_secs(2),
        };
        let store = world.server.connector("memory:").connect(context).await.expect("memory");
        let process = Arc::new(ProcessInfo { host: String::new(), pid: 1, program: String::new() });
        let (request_limit, outage_limit) = (Duration::from_secs(2), Duration::from_secs(30));
        let settings = Settings { clock, request_limit, outage_limit, default_lease: outage_limit, process };
        let claim = Claim {
            not_after: StoreTime(0),
            ..testing::claim(&Name::new("stock").expect("a good name"), ids.next())
        };
        let engine = Engine::new(store, settings, ids, background, Stop::new());
        let terms = Arc::new(Terms::new(Kind::Mutex, Units::All, Capacity::All));
        Waiter::new(&engine, claim, terms, Heard::Nothing)
    }

    /// A store that is slow answers nothing for several polls.
    #[tokio::test(start_paused = true)]
    async fn a_waiter_is_in_the_queue_once() {
        let waiter = waiter().await;
        assert!(waiter.enqueue(0));
        assert!(!waiter.enqueue(0), "it is queued");
        assert!(waiter.hinted(0), "the copy to come is newer than the hint");
        assert!(waiter.next_copy(BootTime(1), StoreTime(1)).is_some());
        assert!(!waiter.enqueue(0), "it is in flight");
        assert!(waiter.hinted(0), "the answer is followed by another copy");
        assert!(waiter.heard(), "because of the hint");
        assert!(waiter.enqueue(0), "the next poll");
    }
}
