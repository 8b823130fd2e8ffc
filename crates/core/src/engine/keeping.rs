//! Who keeps the engine alive: handles, guards and waiting tasks; and what a guard gives back.

use std::{fmt, ops::Deref, sync::Arc};

use tokio::sync::oneshot;

use super::{Engine, flight::Flight, hold::Hold, lane::Turn};
use crate::{
    clock::BootTime,
    error::{At, Lost, ReleaseError, StoreError, StoreErrorKind},
    store::Left,
    telemetry,
};

/// The engine, for as long as somebody outside has it. When the last one goes, what is still to
/// be given back is given back in the background, and the keeper's thread ends.
pub(crate) struct Alive(Arc<Engine>);

impl Alive {
    pub(crate) fn new(engine: Arc<Engine>) -> Arc<Self> {
        Arc::new(Self(engine))
    }

    pub(crate) fn engine(&self) -> &Arc<Engine> {
        &self.0
    }
}

impl Drop for Alive {
    fn drop(&mut self) {
        self.0.wind_down();
    }
}

impl fmt::Debug for Alive {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.store().url())
    }
}

/// One step of a hold.
#[derive(Clone)]
pub(crate) struct Step {
    alive: Arc<Alive>,
    hold: Arc<Hold>,
    step: u32,
}

impl Step {
    pub(crate) fn alive(&self) -> &Arc<Alive> {
        &self.alive
    }

    pub(crate) fn hold(&self) -> &Arc<Hold> {
        &self.hold
    }

    pub(crate) fn step(&self) -> u32 {
        self.step
    }

    fn now(&self) -> BootTime {
        self.alive.engine().clock().now()
    }

    /// Until when it may be acted on, or why not.
    pub(crate) fn check(&self) -> Result<BootTime, Lost> {
        self.check_at(self.now())
    }

    fn check_at(&self, now: BootTime) -> Result<BootTime, Lost> {
        self.hold.check(self.step, now)
    }

    /// Where, for messages.
    pub(crate) fn at(&self, operation: &'static str) -> At {
        At::resource(self.alive.engine().store().url(), &self.hold.name, operation)
    }
}

/// One step of a hold, owned by exactly one task or by all guards on it together. Dropped, it is given back.
///
/// Boxed, because it moves through many hands on its way from one task to the next.
pub(crate) struct Tenure(Option<Box<Step>>);

impl Deref for Tenure {
    type Target = Step;

    fn deref(&self) -> &Step {
        self.0.as_ref().expect("taken out only by what consumes the tenure")
    }
}

impl Tenure {
    pub(crate) fn new(alive: &Arc<Alive>, hold: Arc<Hold>, step: u32) -> Self {
        Self::of(Box::new(Step { alive: alive.clone(), hold, step }))
    }

    /// For whoever gives back what [`into_step`](Self::into_step) took.
    pub(crate) fn of(step: Box<Step>) -> Self {
        Self(Some(step))
    }

    /// The step, which is not given back any more unless by [`of`](Self::of).
    pub(crate) fn into_step(mut self) -> Box<Step> {
        self.0.take().expect("taken out only by what consumes the tenure")
    }

    /// Forgets it without giving it back: it lives on outside of this process.
    pub(crate) fn detach(mut self) {
        if let Some(owned) = self.0.take() {
            owned.alive.engine().let_go(&owned.hold);
            owned.alive.engine().lanes().close(&owned.alive, &owned.hold.name, owned.hold.slot);
        }
    }

    /// Gives it back to the store, and hands it on to nobody.
    pub(crate) fn give_up(self) {
        if let Some(flight) = self.give_back(None) {
            flight.depart();
        }
    }

    /// Gives it back as something that nobody has begun, so that there is no minimum to keep.
    pub(crate) fn call_off(mut self) {
        // One without a minimum may be handed on, as by any drop.
        if self.hold().terms.min_hold.is_zero() {
            return;
        }
        if let Some(owned) = self.0.take()
            && let Some(flight) = owned.alive.engine().give_up(&owned.hold)
        {
            flight.depart();
        }
    }

    /// Gives it back and says how that went.
    pub(crate) async fn release(self) -> Result<(), ReleaseError> {
        let now = self.now();
        let lost = self.check_at(now).err();
        let Err(tenure) = self.hand_on(now, lost) else { return Ok(()) };
        let at = tenure.at("release");
        let (sender, answer) = oneshot::channel();
        let flight = tenure.give_back(Some(sender));
        if let Some(why) = lost {
            // Whatever the store says now, somebody else may have been in between.
            return Err(ReleaseError::NotHeld { at, why });
        }
        let answer = match flight {
            Some(flight) => flight.bring(answer).await,
            None => answer.await,
        };
        match answer {
            Ok(Ok(Left::Released)) => Ok(()),
            Ok(Ok(Left::LeftQueue | Left::NotThere)) => Err(ReleaseError::NotHeld { at, why: Lost::Gone }),
            Ok(Err(error)) => Err(error.at(at).into()),
            Err(_) => Err(StoreError::new(StoreErrorKind::Unreachable, "the keeper has ended").at(at).into()),
        }
    }

    /// Hands it on to the next task of this process that waits for it, unless it is lost; comes
    /// back if there is none. Decided before anything is sent to the store, so there is no leave
    /// that could overtake it.
    fn hand_on(mut self, now: BootTime, lost: Option<Lost>) -> Result<(), Self> {
        if lost.is_some() || !self.hold().terms.hands_on() {
            return Err(self);
        }
        loop {
            let Some(owned) = &mut self.0 else { return Err(self) };
            let Some(next) = owned.alive.engine().lanes().next_of(&owned.hold, owned.step, now) else {
                return Err(self);
            };
            owned.step = owned.hold.hand_on(owned.step, now);
            match next.send(Turn::HandedOn(self)) {
                Ok(()) => {
                    telemetry::handed_on();
                    return Ok(());
                }
                // Its task gave up at this very moment: the step is used up, the lock is not.
                Err(Turn::HandedOn(back)) => self = back,
                Err(Turn::Front(_) | Turn::Failed(_)) => unreachable!("a tenure was sent"),
            }
        }
    }

    /// Sends the leave.
    fn give_back(mut self, reply: Option<oneshot::Sender<Result<Left, StoreError>>>) -> Option<Flight> {
        let Step { alive, hold, .. } = *self.0.take()?;
        let flight = alive.engine().give_back(&hold, reply);
        if hold.terms.hands_on() {
            // After the leave is on its way, so that the lane's next claim comes behind it.
            alive.engine().lanes().close(&alive, &hold.name, hold.slot);
        }
        flight
    }
}

impl Drop for Tenure {
    fn drop(&mut self) {
        let Some(owned) = self.0.take() else { return };
        let tenure = Self(Some(owned));
        let now = tenure.now();
        let lost = tenure.check_at(now).err();
        if let Err(tenure) = tenure.hand_on(now, lost)
            && let Some(flight) = tenure.give_back(None)
        {
            flight.depart();
        }
    }
}
