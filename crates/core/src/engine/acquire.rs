//! An acquisition from the caller's side: in a lane or straight at the store, for as long as the
//! caller is ready to wait.

use std::sync::Arc;

use super::{
    Engine,
    group::Job,
    keeping::{Alive, Tenure},
    lane::{Entered, Turn},
    leaving::leave_of,
    seat::{Outcome, Seat},
    terms::Terms,
};
use crate::{
    clock::BootTime,
    error::{AcquireError, At, InvalidInput, StoreError, StoreErrorKind},
    name::Name,
    store::{Claim, Details, StoreTime},
    telemetry,
};

/// How many grants in a row may arrive after their lease before waiting on is called pointless.
const LATE_GRANTS: u32 = 5;

/// How long an acquisition is ready to wait.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Patience {
    Try,
    Until(BootTime),
    Forever,
}

/// An acquisition under way. Dropped at any point, it leaves nothing behind (invariant I5).
struct Asking<'a> {
    alive: &'a Arc<Alive>,
    seat: Arc<Seat>,
    /// Whether the store certainly knows nothing of the contender any more.
    settled: bool,
}

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        let engine = self.alive.engine();
        engine.ledger.strike_seat(self.seat.slot());
        let (outcome, known) = self.seat.cancel();
        if let Some(Outcome::Granted(hold)) = outcome {
            if let Some(flight) = engine.give_up(&hold) {
                flight.depart();
            }
        } else if known && !self.settled {
            engine.leave_soon(leave_of(&self.seat), self.seat.claim().lease);
        }
    }
}

/// Why an acquisition failed, and whether all who wait for the same would fail so, too.
struct Failure {
    error: AcquireError,
    outage: bool,
}

impl From<AcquireError> for Failure {
    fn from(error: AcquireError) -> Self {
        Self { error, outage: false }
    }
}

/// Acquiring.
impl Alive {
    /// Acquires `name` on `terms`. `None`: it is busy and the caller does not wait.
    ///
    /// Cancel safe: dropped at any await, it leaves the line and gives back what it was granted.
    pub(crate) async fn acquire(
        self: &Arc<Self>,
        name: &Name,
        terms: &Arc<Terms>,
        patience: Patience,
        operation: &'static str,
    ) -> Result<Option<Tenure>, AcquireError> {
        // A store may answer at once, and so often: who locks in a loop lets others of its runtime have their turn.
        tokio::task::consume_budget().await;
        let engine = self.engine();
        let started = engine.clock().now();
        let at = || At::resource(engine.store.url(), name, operation);
        let capability = engine.store.capability();
        terms
            .check(engine.store.as_ref())
            .and_then(|()| {
                if (terms.detachable || !terms.min_hold.is_zero()) && !capability.detachable {
                    return Err(InvalidInput::new("this store has no leases that outlive their process"));
                }
                Ok(())
            })
            .map_err(|why| AcquireError::Invalid { at: at(), why })?;
        let result = if terms.shares_a_lane() && !matches!(patience, Patience::Try) {
            self.acquire_in_lane(name, terms, patience, &at, started).await
        } else {
            let tenure = self.acquire_at_store(name, terms, patience, &at, started).await;
            let tenure = tenure.map_err(|failure| failure.error);
            if let Ok(Some(tenure)) = &tenure
                && terms.hands_on()
            {
                engine.lanes.opened(self, tenure.hold(), false);
            }
            tenure
        };
        telemetry::acquired(terms.kind, &result, || engine.clock().now().since(started));
        result
    }

    async fn acquire_in_lane(
        self: &Arc<Self>,
        name: &Name,
        terms: &Arc<Terms>,
        patience: Patience,
        at: &(impl Fn() -> At + Sync),
        started: BootTime,
    ) -> Result<Option<Tenure>, AcquireError> {
        let engine = self.engine();
        let front = match engine.lanes.enter(self, name, terms, started) {
            Entered::Front(front) => Some(front),
            Entered::Place(mut place) => match engine.limited(patience, place.turn()).await {
                Some(Some(Turn::HandedOn(tenure))) => return Ok(Some(tenure)),
                Some(Some(Turn::Front(front))) => Some(*front),
                Some(Some(Turn::Failed(error))) => return Err(error.at(at()).into()),
                Some(None) => None,
                None => return Err(engine.timed_out(at(), started, None)),
            },
        };
        let result = self.acquire_at_store(name, terms, patience, at, started).await;
        match (front, &result) {
            (Some(front), Ok(Some(tenure))) => front.granted(tenure.hold()),
            // What is wrong with this one task says nothing about the others.
            (Some(_), Err(Failure { error: AcquireError::Store(error), outage: true })) => {
                engine.lanes.failed(name, error);
            }
            _ => {}
        }
        result.map_err(|failure| failure.error)
    }

    async fn acquire_at_store(
        self: &Arc<Self>,
        name: &Name,
        terms: &Arc<Terms>,
        patience: Patience,
        at: &(impl Fn() -> At + Sync),
        started: BootTime,
    ) -> Result<Option<Tenure>, Failure> {
        let engine = self.engine();
        let queue = !matches!(patience, Patience::Try);
        let mut too_late = 0;
        loop {
            let seat = Seat::new(engine.claim(name, terms, queue), terms.clone());
            if !engine.ledger.wait(&seat, BootTime::NEVER) {
                return Err(AcquireError::Closed { at: at(), maybe_applied: false }.into());
            }
            let mut asking = Asking { alive: self, seat, settled: false };
            let seat = asking.seat.clone();
            let outcome = engine
                .limited(patience, async {
                    let group = engine.group(name);
                    match group.submit(engine, [Job::Claim(seat.clone())]) {
                        Some(flight) => flight.bring(seat.outcome()).await,
                        None => seat.outcome().await,
                    }
                })
                .await;
            let failed = |error: AcquireError| Err(Failure::from(error));
            return match outcome {
                None => failed(engine.timed_out(at(), started, Some(&seat))),
                Some(Outcome::Granted(hold)) => {
                    asking.settled = true;
                    Ok(Some(Tenure::new(self, hold, 0)))
                }
                Some(Outcome::TooLate) if queue && too_late < LATE_GRANTS => {
                    too_late += 1;
                    continue;
                }
                Some(Outcome::TooLate) => {
                    let message = "the grant arrived after its lease; use a longer lease or a nearer store";
                    failed(StoreError::new(StoreErrorKind::Unreachable, message).at(at()).into())
                }
                Some(Outcome::Busy) => {
                    asking.settled = seat.tombstone_until().is_none();
                    Ok(None)
                }
                Some(Outcome::Mismatch(in_use)) => {
                    asking.settled = seat.tombstone_until().is_none();
                    failed(AcquireError::CapacityMismatch { at: at(), asked: terms.capacity, in_use })
                }
                Some(Outcome::Failed(error)) => failed(error.at(at()).into()),
                Some(Outcome::Outage(error)) => Err(Failure { error: error.at(at()).into(), outage: true }),
                Some(Outcome::Closed) => {
                    failed(AcquireError::Closed { at: at(), maybe_applied: seat.is_known() })
                }
            };
        }
    }
}

impl Engine {
    fn claim(&self, name: &Name, terms: &Terms, queue: bool) -> Claim {
        Claim {
            name: name.clone(),
            contender: self.ids.next(),
            units: terms.units,
            capacity: terms.capacity,
            lease: terms.claim_lease(),
            queue,
            detachable: terms.detachable || !terms.min_hold.is_zero(),
            min_hold: terms.min_hold,
            not_after: StoreTime(0),
            stamp: 0,
            again: false,
            details: Details {
                kind: terms.kind,
                process: self.settings.process.clone(),
                label: terms.label.clone(),
                value: terms.value.clone(),
            },
        }
    }

    /// Runs `work` for as long as the caller is ready to wait.
    pub(crate) async fn limited<T>(&self, patience: Patience, work: impl Future<Output = T>) -> Option<T> {
        match patience {
            Patience::Until(limit) => {
                tokio::select! {
                    biased;
                    done = work => Some(done),
                    () = self.clock().sleep_until(limit) => None,
                }
            }
            Patience::Try | Patience::Forever => Some(work.await),
        }
    }

    /// The error of one whose time is up; `seat` is its place in the store's line, if it came so far.
    pub(crate) fn timed_out(&self, at: At, started: BootTime, seat: Option<&Seat>) -> AcquireError {
        AcquireError::TimedOut {
            at,
            waited: self.clock().now().since(started),
            ahead: seat.and_then(Seat::ahead),
            maybe_applied: seat.is_some_and(Seat::is_known),
        }
    }
}
