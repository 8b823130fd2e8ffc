//! The guards on one hold: each has a part in it, and the last one that ends gives it back.
//!
//! Those who merely look at a hold are not counted.

use std::{
    ops::Deref,
    pin::pin,
    sync::{Arc, Weak},
};

use tokio::sync::Notify;

use super::guard_count::{GuardCount, GuardsLeft, Refused};
use crate::{
    engine::{hold_step::HoldStep, release::OwnedHold},
    share::Units,
    support::calm::calm,
};

/// One guard's part in a hold.
pub(crate) struct Entry(Option<Arc<Entered>>);

/// The state that the guards of one hold share.
pub(crate) struct Entered {
    step: Box<HoldStep>,
    guards: GuardCount,
    /// Told when it is unsealed or over.
    opened: Notify,
}

impl Entry {
    /// The first guard on a hold.
    pub(crate) fn new(owned: OwnedHold) -> Self {
        Self(Some(Arc::new(Entered {
            step: owned.into_step(),
            guards: GuardCount::one(),
            opened: Notify::new(),
        })))
    }

    fn entered(&self) -> &Arc<Entered> {
        self.0.as_ref().expect("taken out only by what ends the guard")
    }

    /// One more guard beside this one.
    pub(crate) fn again(&self) -> Self {
        self.entered().guards.enter_beside();
        Self(Some(self.entered().clone()))
    }

    /// For an owner, who may enter for as long as there is a guard.
    pub(crate) fn weak(&self) -> Weak<Entered> {
        Arc::downgrade(self.entered())
    }

    /// How many guards there are.
    pub(crate) fn count(&self) -> usize {
        usize::try_from(self.entered().guards.count()).unwrap_or(usize::MAX)
    }

    /// The units that are held: those that were asked for, unless they were lowered since.
    pub(crate) fn units(&self) -> Units {
        self.entered().units(self.entered().guards.is_lowered())
    }

    /// From here on its owner enters it only to read; false if there are other guards, who may write.
    pub(crate) fn lower(&self) -> bool {
        self.entered().guards.lower()
    }

    /// Takes back [`lower`](Self::lower): nothing was changed at the store.
    pub(crate) fn raise(&self) {
        self.entered().guards.raise();
    }

    /// From here on nobody enters it; false if there are other guards.
    pub(crate) fn seal(&self) -> bool {
        self.entered().guards.seal()
    }

    /// Its owner may enter it again.
    pub(crate) fn unseal(&self) {
        self.entered().guards.unseal();
        self.entered().opened.notify_waiters();
    }

    /// Ends this guard. Returns the hold if it was the last guard, otherwise the state that the others share.
    pub(crate) fn end(mut self) -> Result<OwnedHold, Arc<Entered>> {
        let entered = self.0.take().expect("taken out only by what ends the guard");
        entered.leave()
    }
}

impl Entered {
    fn units(&self, lowered: bool) -> Units {
        if lowered { Units::ONE } else { self.step.hold().terms.units }
    }

    /// Whether there is any guard.
    pub(crate) fn is_live(&self) -> bool {
        self.guards.count() > 0
    }

    /// One more guard, for an owner who has one.
    pub(crate) fn enter(self: &Arc<Self>, units: Units) -> Result<Entry, Refused> {
        self.guards.enter(|lowered| units != Units::All || self.units(lowered) == Units::All)?;
        Ok(Entry(Some(self.clone())))
    }

    /// Waits until it is not sealed any more: it may be entered again, or it is over.
    pub(crate) async fn unsealed(&self) {
        calm(self.until_unsealed()).await;
    }

    async fn until_unsealed(&self) {
        loop {
            let mut opened = pin!(self.opened.notified());
            opened.as_mut().enable();
            if !self.guards.is_sealed() {
                return;
            }
            opened.await;
        }
    }

    /// One guard less; the hold if it was the last.
    fn leave(self: Arc<Self>) -> Result<OwnedHold, Arc<Self>> {
        match self.guards.leave() {
            GuardsLeft::Others => return Err(self),
            GuardsLeft::None { sealed: true } => self.opened.notify_waiters(),
            GuardsLeft::None { sealed: false } => {}
        }
        // Only an owner who looks at it at this moment may have another part in it.
        let step = Arc::try_unwrap(self).map_or_else(|shared| shared.step.clone(), |alone| alone.step);
        Ok(OwnedHold::of(step))
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
        drop(self.0.take().map(Entered::leave));
    }
}
