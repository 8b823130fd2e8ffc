//! An acquisition on its way down: from the primitive that asks for it to the waiter that the dispatcher sends.
//!
//! Down: `acquire`, the local queue if the lock has one, a waiter, the dispatcher, `Store::apply`. The way up is in
//! `settle.rs`: the task that waits here gets the outcome and returns it.

use std::{sync::Arc, time::Duration};

use super::{
    Alive, Engine,
    heard::Heard,
    local_queue::{Arrival, Front, Turn},
    patience::Patience,
    release::{self, OwnedHold},
    terms::Terms,
    waiter::{Outcome, Waiter},
};
use crate::{
    clock::BootTime,
    error::{AcquireError, At, InvalidInput, StoreError, StoreErrorKind},
    name::Name,
    store::{Attachment, Claim, Details, StoreTime},
    support::backoff::Backoff,
    telemetry,
};

/// How many grants in a row may arrive after their lease before waiting on is called pointless.
const LATE_GRANTS: u32 = 5;
/// The pauses of an acquisition that gave way.
const GIVES_WAY: Backoff = Backoff::new(Duration::from_millis(10), Duration::from_millis(640));

/// Acquires `name` on `terms`. `None`: it is busy and the caller does not wait.
///
/// Cancel safe: dropped at any await, it leaves the queue and gives back what it was granted.
pub(crate) async fn acquire(
    alive: &Arc<Alive>,
    name: &Name,
    terms: &Arc<Terms>,
    patience: Patience,
    operation: &'static str,
) -> Result<Option<OwnedHold>, AcquireError> {
    // A store may answer at once, and so often: a task that locks in a loop lets others of its runtime have their turn.
    tokio::task::consume_budget().await;
    let engine = alive.engine();
    let started = engine.clock().now();
    let acquisition = Acquisition { alive, name, terms, patience, operation, started };
    acquisition.check().map_err(|why| AcquireError::Invalid { at: acquisition.at(), why })?;
    let result = if terms.shares_a_waiter() && patience.waits() {
        acquisition.in_local_queue().await
    } else {
        let result = acquisition.at_store(None).await.map_err(|failure| failure.error);
        if let Ok(Some(owned)) = &result
            && terms.hands_on()
        {
            engine.local_queues.opened(owned.hold());
        }
        result
    };
    let granted = result.as_ref().map(|owned| owned.as_ref().map(|owned| (name, owned.token())));
    // A task that is handed a lock has it from that moment on, and need not read the clock again.
    let handed_on = result.as_ref().ok().and_then(Option::as_ref).and_then(|owned| owned.handed_on());
    telemetry::acquired(terms.kind, granted, || {
        handed_on.unwrap_or_else(|| engine.clock().now()).since(started)
    });
    result
}

/// The wishes of a caller.
struct Acquisition<'a> {
    alive: &'a Arc<Alive>,
    name: &'a Name,
    terms: &'a Arc<Terms>,
    patience: Patience,
    operation: &'static str,
    started: BootTime,
}

/// The error of an acquisition, and whether all who wait for the same would fail so, too.
struct Failure {
    error: AcquireError,
    outage: bool,
}

impl From<AcquireError> for Failure {
    fn from(error: AcquireError) -> Self {
        Self { error, outage: false }
    }
}

impl Acquisition<'_> {
    fn engine(&self) -> &Arc<Engine> {
        self.alive.engine()
    }

    fn at(&self) -> At {
        At::resource(self.engine().store().url(), self.name, self.operation)
    }

    fn check(&self) -> Result<(), InvalidInput> {
        let (store, terms) = (self.engine().store(), self.terms);
        terms.check(store.as_ref())?;
        if terms.claim_attachment().may_outlive_process() && !store.capability().detachable {
            return Err(InvalidInput::new("this store has no leases that outlive their process"));
        }
        Ok(())
    }

    async fn in_local_queue(&self) -> Result<Option<OwnedHold>, AcquireError> {
        let queues = &self.engine().local_queues;
        let front = match queues.enter(self.name, self.terms, self.started) {
            Arrival::Front(front) => Some(front),
            Arrival::Behind(mut position) => {
                match self.patience.limit(self.engine().clock(), position.turn()).await {
                    Some(Some(Turn::HandedOn(owned))) => return Ok(Some(owned)),
                    // A claim that is left at once would only cost the store a turn. The next task becomes the front.
                    Some(Some(Turn::Front(_))) if self.patience.is_over(self.engine().clock()) => {
                        return Err(self.timed_out_behind());
                    }
                    Some(Some(Turn::Front(front))) => Some(*front),
                    // The front's claim may have arrived; this task has sent none.
                    Some(Some(Turn::Failed(error))) => return Err(error.not_applied().at(self.at()).into()),
                    // The keeper closes, which the store's side tells.
                    Some(None) => None,
                    None => return Err(self.timed_out_behind()),
                }
            }
        };
        let result = self.at_store(front.as_ref()).await;
        match (front, &result) {
            (Some(front), Ok(Some(owned))) => front.granted(owned.hold()),
            // An error of this one task says nothing about the others.
            (Some(_), Err(Failure { error: AcquireError::Store(error), outage: true })) => {
                queues.failed(self.name, error);
            }
            _ => {}
        }
        result.map_err(|failure| failure.error)
    }

    async fn at_store(&self, front: Option<&Front<OwnedHold>>) -> Result<Option<OwnedHold>, Failure> {
        let engine = self.engine();
        let mut heard = front.map_or(Heard::Nothing, Front::heard);
        let (mut late_grants, mut gives_way) = (0, GIVES_WAY);
        loop {
            let waiter = Waiter::new(engine, self.claim(), self.terms.clone(), heard.clone());
            if !engine.registry.register(&waiter) {
                return Err(AcquireError::Closed { at: self.at(), maybe_applied: false }.into());
            }
            let mut waiting = Waiting { waiter, front, settled: false };
            let waiter = &waiting.waiter;
            let outcome = self.patience.limit(engine.clock(), async {
                waiter.enqueue(waiter.server());
                match engine.dispatcher.submit(waiter.clone()) {
                    Some(in_flight) => in_flight.bring(waiter.outcome()).await,
                    None => waiter.outcome().await,
                }
            });
            match outcome.await {
                Some(Outcome::TooLate) if self.patience.waits() && late_grants < LATE_GRANTS => {
                    late_grants += 1;
                    heard = Heard::Answer;
                }
                Some(Outcome::Again) if self.patience.waits() => {
                    waiting.settled = waiter.tombstone_until().is_none();
                    heard = Heard::Answer;
                    let goes_on = engine.clock().now().after(gives_way.jittered());
                    let pause = engine.clock().sleep_until(goes_on);
                    if self.patience.limit(engine.clock(), pause).await.is_none() {
                        return self.conclude(&mut waiting, None);
                    }
                }
                outcome => return self.conclude(&mut waiting, outcome),
            }
        }
    }

    /// The result for the caller; `None` if its time is up.
    fn conclude(
        &self,
        waiting: &mut Waiting<'_>,
        outcome: Option<Outcome>,
    ) -> Result<Option<OwnedHold>, Failure> {
        let waiter = &waiting.waiter;
        let failed = |error: AcquireError| Err(Failure::from(error));
        match outcome {
            None => failed(self.timed_out(waiter)),
            Some(Outcome::Granted(hold)) => {
                waiting.settled = true;
                Ok(Some(OwnedHold::new(self.alive, hold, 0)))
            }
            Some(Outcome::TooLate) => {
                let message = "the grant arrived after its lease; use a longer lease or a nearer store";
                failed(StoreError::new(StoreErrorKind::Unreachable, message).at(self.at()).into())
            }
            Some(Outcome::Busy | Outcome::Again) => {
                waiting.settled = waiter.tombstone_until().is_none();
                Ok(None)
            }
            Some(Outcome::Mismatch(in_use)) => {
                waiting.settled = waiter.tombstone_until().is_none();
                failed(AcquireError::CapacityMismatch { at: self.at(), asked: self.terms.capacity, in_use })
            }
            Some(Outcome::Failed(error)) => failed(error.at(self.at()).into()),
            Some(Outcome::Outage(error)) => Err(Failure { error: error.at(self.at()).into(), outage: true }),
            Some(Outcome::Closed) => {
                failed(AcquireError::Closed { at: self.at(), maybe_applied: waiter.is_known() })
            }
        }
    }

    fn claim(&self) -> Claim {
        let (engine, terms, shown) = (self.engine(), self.terms, self.terms.shown());
        Claim {
            name: self.name.clone(),
            contender: match terms.attachment {
                Attachment::Detached => engine.ids.unguessable(),
                Attachment::Process | Attachment::Detachable => engine.ids.next(),
            },
            units: terms.units,
            capacity: terms.capacity,
            lease: terms.claim_lease(),
            queue: self.patience.waits(),
            attachment: terms.claim_attachment(),
            renewed: terms.renewed && terms.attachment != Attachment::Detached,
            at_least: 0,
            min_hold: terms.min_hold,
            not_after: StoreTime(0),
            stamp: 0,
            again: false,
            details: Details {
                kind: terms.kind,
                process: shown.and_then(|shown| shown.process.as_ref()).unwrap_or(&engine.process).clone(),
                label: shown.and_then(|shown| shown.label.clone()),
                value: shown.and_then(|shown| shown.value.clone()),
            },
        }
    }

    /// The error of a caller whose time is up while it waits at the store.
    fn timed_out(&self, waiter: &Waiter) -> AcquireError {
        let waited = self.engine().clock().now().since(self.began());
        let maybe_applied = waiter.is_known();
        match judged(self.engine(), self.name, waiter.last_heard(), self.began()).failure(waited) {
            Some(error) => {
                let error = if maybe_applied { error.perhaps_applied() } else { error.not_applied() };
                error.at(self.at()).into()
            }
            None => AcquireError::TimedOut { at: self.at(), waited, ahead: waiter.ahead(), maybe_applied },
        }
    }

    /// The error of a caller whose time is up while it waits behind another task of this process.
    fn timed_out_behind(&self) -> AcquireError {
        timed_out_behind(self.engine(), self.name, self.at(), self.began(), Ahead::Waits)
    }

    /// When the caller's wait began. Several acquisitions may share one limit, as those of several locks do.
    fn began(&self) -> BootTime {
        match self.patience {
            Patience::Within { since, .. } => since,
            Patience::Try | Patience::Forever => self.started,
        }
    }
}

/// The calls of this process that another call is behind.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ahead {
    /// Calls that wait. A try is over with its first answer and says nothing about them.
    Waits,
    /// Calls of any kind, also tries.
    Any,
}

/// The error of a call that began at `started` and whose time is up while it waits behind other calls of this process for
/// the same name. What they have heard decides. The store does not know of the call itself.
pub(crate) fn timed_out_behind(
    engine: &Engine,
    name: &Name,
    at: At,
    started: BootTime,
    ahead: Ahead,
) -> AcquireError {
    let waited = engine.clock().now().since(started);
    match judged(engine, name, heard_by_others(engine, name, ahead), started).failure(waited) {
        Some(error) => error.not_applied().at(at).into(),
        None => AcquireError::TimedOut { at, waited, ahead: None, maybe_applied: false },
    }
}

/// Returns the news to go by when the limit of a wait that began at `since` passes. Without news, an answer to another
/// request counts, provided that its server has not failed since: the claim may not even have been sent, because claims
/// of one name go out one by one.
fn judged(engine: &Engine, name: &Name, heard: Heard, since: BootTime) -> Heard {
    match heard {
        Heard::Nothing if engine.client.has_answered(engine.client.server_of(name), since) => Heard::Answer,
        heard => heard,
    }
}

/// The latest news of this process's waiters for `name`: an answer if any of them has one.
fn heard_by_others(engine: &Engine, name: &Name, ahead: Ahead) -> Heard {
    let (mut nobody, mut failure) = (true, None);
    for waiter in engine.registry.waiting_for(Some(name)) {
        let heard = waiter.last_heard();
        match heard {
            _ if ahead == Ahead::Waits && !waiter.claim().queue => {}
            Heard::Answer => return Heard::Answer,
            Heard::Failure { .. } => failure = Some(heard),
            Heard::Nothing => nobody = false,
        }
    }
    // Between two fronts, the local queue knows. If nobody waits at the store, a task of this process has the lock.
    let otherwise = if nobody { Heard::Answer } else { Heard::Nothing };
    let in_queue = || engine.local_queues.heard(name).unwrap_or(otherwise);
    failure.unwrap_or_else(in_queue)
}

/// A waiter that a task waits for. Dropped at any point, it leaves nothing behind (invariant I5).
struct Waiting<'a> {
    waiter: Arc<Waiter>,
    /// The right to claim for a local queue, if it has one.
    front: Option<&'a Front<OwnedHold>>,
    /// Whether the store certainly knows nothing of the contender any more, or the caller has its hold.
    settled: bool,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        if let Some(front) = self.front.filter(|_| !self.settled) {
            front.has_heard(self.waiter.last_heard());
        }
        let engine = &self.waiter.engine;
        engine.registry.remove_waiter(self.waiter.slot());
        engine.client.outages.wait_ended(|| engine.registry.counts().0);
        let (outcome, known) = self.waiter.cancel();
        if let Some(Outcome::Granted(hold)) = outcome {
            if let Some(in_flight) = release::never_taken(engine, &hold) {
                in_flight.spawn();
            }
        } else if known
            && !self.settled
            && let Some(in_flight) = release::leave_queue(&self.waiter)
        {
            // It goes along with the claim of the next task that waits, if there is one.
            in_flight.spawn_last();
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::{
        engine::tests::engine,
        share::{Capacity, Units},
        store::Kind,
    };

    /// A waiter that nothing was sent for yet.
    pub(in crate::engine) async fn waiter() -> (Arc<Alive>, Arc<Waiter>) {
        let alive = Alive::new(engine().await);
        let terms = Arc::new(Terms::new(Kind::Mutex, Units::All, Capacity::All));
        let acquisition = Acquisition {
            alive: &alive,
            name: &Name::new("stock").expect("a good name"),
            terms: &terms,
            patience: Patience::Forever,
            operation: "lock",
            started: BootTime(0),
        };
        let waiter = Waiter::new(alive.engine(), acquisition.claim(), terms.clone(), Heard::Nothing);
        assert!(alive.engine().registry.register(&waiter));
        (alive, waiter)
    }
}
