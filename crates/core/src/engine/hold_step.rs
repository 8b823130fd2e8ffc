//! One step of a hold, for guards to show and check. A grant that is handed on inside the process makes another step.

use std::sync::Arc;

use super::{Alive, hold::Hold};
use crate::{
    clock::BootTime,
    error::{At, Lost},
    token::Token,
};

#[derive(Clone)]
pub(crate) struct HoldStep {
    pub(super) alive: Arc<Alive>,
    pub(super) hold: Arc<Hold>,
    pub(super) step: u32,
    /// The time at which it was handed on inside the process, if it was.
    pub(super) handed_on: Option<BootTime>,
}

impl HoldStep {
    pub(crate) fn alive(&self) -> &Arc<Alive> {
        &self.alive
    }

    pub(crate) fn hold(&self) -> &Arc<Hold> {
        &self.hold
    }

    pub(crate) fn step(&self) -> u32 {
        self.step
    }

    pub(super) fn handed_on(&self) -> Option<BootTime> {
        self.handed_on
    }

    /// Its fencing token.
    pub(crate) fn token(&self) -> Token {
        self.hold.token(self.step)
    }

    pub(crate) fn now(&self) -> BootTime {
        self.alive.engine().clock().now()
    }

    /// Returns the time until which it may be acted on, or the reason why it may not.
    pub(crate) fn check(&self) -> Result<BootTime, Lost> {
        self.check_at(self.now())
    }

    pub(super) fn check_at(&self, now: BootTime) -> Result<BootTime, Lost> {
        self.hold.check(self.step, now)
    }

    /// The place of an error, for messages.
    pub(crate) fn at(&self, operation: &'static str) -> At {
        At::resource(self.alive.engine().store().url(), &self.hold.name, operation)
    }
}
