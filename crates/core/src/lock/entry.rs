//! The guards on one hold, counted together with what keeps others from entering it.
//!
//! Count and marks are one value: who enters and who closes the door change the same word, so that one of the two sees
//! the other, in whichever order memory shows everything else. What merely looks at a hold is not counted.

use std::{
    ops::Deref,
    sync::{
        Arc, Weak,
        atomic::{AtomicU64, Ordering},
    },
};

use crate::{
    engine::{hold_step::HoldStep, release::OwnedHold},
    share::Units,
};

/// A writer has become a reader, or is about to.
const LOWERED: u64 = 1 << 61;

/// The hold is about to be detached: nobody enters it.
const SEALED: u64 = 1 << 62;

/// The store may have detached the hold, so it is not handed on: another task would hold what a crash does not free.
const STAYS: u64 = 1 << 63;

const COUNT: u64 = LOWERED - 1;

/// One guard's part in a hold. The last one that ends gives it back.
pub(crate) struct Entry(Option<Arc<Entered>>);

/// What the guards of one hold share.
pub(crate) struct Entered {
    step: Box<HoldStep>,
    /// How many guards there are, with the marks.
    state: AtomicU64,
}

/// Why a hold was not entered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Refused {
    /// Its last guard has ended, or it is about to be let go.
    Over,
    /// Only readers may enter.
    Upgrade,
}

impl Entry {
    /// The first guard on a hold.
    pub(crate) fn new(owned: OwnedHold) -> Self {
        Self(Some(Arc::new(Entered { step: owned.into_step(), state: AtomicU64::new(1) })))
    }

    fn entered(&self) -> &Arc<Entered> {
        self.0.as_ref().expect("taken out only by what ends the guard")
    }

    /// One more guard beside this one.
    pub(crate) fn again(&self) -> Self {
        // This one counts, so the hold is neither over nor sealed: the task that seals it has the only guard.
        self.entered().state.fetch_add(1, Ordering::AcqRel);
        Self(Some(self.entered().clone()))
    }

    /// For an owner, who may enter for as long as there is a guard.
    pub(crate) fn weak(&self) -> Weak<Entered> {
        Arc::downgrade(self.entered())
    }

    /// How many guards there are.
    pub(crate) fn count(&self) -> usize {
        usize::try_from(self.entered().state.load(Ordering::Acquire) & COUNT).unwrap_or(usize::MAX)
    }

    /// What is held: what was asked for, unless it was lowered since.
    pub(crate) fn units(&self) -> Units {
        self.entered().units(self.entered().state.load(Ordering::Acquire))
    }

    /// From here on its owner enters it only to read; false if there are other guards, who may write.
    pub(crate) fn lower(&self) -> bool {
        self.entered().mark_if_alone(LOWERED)
    }

    /// Takes back [`lower`](Self::lower): nothing was changed at the store.
    pub(crate) fn raise(&self) {
        self.entered().state.fetch_and(!LOWERED, Ordering::AcqRel);
    }

    /// From here on nobody enters it, and it is not handed on; false if there are other guards.
    pub(crate) fn seal(&self) -> bool {
        self.entered().mark_if_alone(SEALED | STAYS)
    }

    /// Its owner may enter it again. It is still not handed on.
    pub(crate) fn unseal(&self) {
        self.entered().state.fetch_and(!SEALED, Ordering::AcqRel);
    }

    /// Ends this guard; gives the hold if it was the last, else what the others share.
    pub(crate) fn end(mut self) -> Result<OwnedHold, Arc<Entered>> {
        let entered = self.0.take().expect("taken out only by what ends the guard");
        entered.leave().map(|(owned, _)| owned)
    }
}

impl Entered {
    fn units(&self, state: u64) -> Units {
        if state & LOWERED == 0 { self.step.hold().terms.units } else { Units::ONE }
    }

    /// Whether there is any guard.
    pub(crate) fn is_live(&self) -> bool {
        self.state.load(Ordering::Acquire) & COUNT > 0
    }

    /// One more guard, for an owner who has one.
    pub(crate) fn enter(self: &Arc<Self>, units: Units) -> Result<Entry, Refused> {
        let mut state = self.state.load(Ordering::Acquire);
        loop {
            if state & COUNT == 0 || state & SEALED != 0 {
                return Err(Refused::Over);
            }
            if units == Units::All && self.units(state) != Units::All {
                return Err(Refused::Upgrade);
            }
            match self.state.compare_exchange_weak(state, state + 1, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return Ok(Entry(Some(self.clone()))),
                Err(now) => state = now,
            }
        }
    }

    fn mark_if_alone(&self, mark: u64) -> bool {
        let alone = |state: u64| (state & COUNT == 1).then_some(state | mark);
        self.state.fetch_update(Ordering::AcqRel, Ordering::Acquire, alone).is_ok()
    }

    /// One guard less; the hold, and whether it must not be handed on, if it was the last.
    fn leave(self: Arc<Self>) -> Result<(OwnedHold, bool), Arc<Self>> {
        let before = self.state.fetch_sub(1, Ordering::AcqRel);
        if before & COUNT != 1 {
            return Err(self);
        }
        // Another part in it has only an owner who looks at it at this moment.
        let step = Arc::try_unwrap(self).map_or_else(|shared| shared.step.clone(), |alone| alone.step);
        Ok((OwnedHold::of(step), before & STAYS != 0))
    }
}

impl Deref for Entry {
    type Target = HoldStep;

    fn deref(&self) -> &HoldStep {
        &self.entered().step
    }
}

impl Deref for Entered {
    type Target = HoldStep;

    fn deref(&self) -> &HoldStep {
        &self.step
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        match self.0.take().map(Entered::leave) {
            // It may live on at the store already, so nobody else of this process may have it.
            Some(Ok((owned, true))) => owned.give_up(),
            Some(Ok((owned, false))) => drop(owned),
            Some(Err(_)) | None => {}
        }
    }
}
