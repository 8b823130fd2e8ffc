//! The latest news of a wait from the store. It tells a busy lock from a store that does not answer.

use std::time::Duration;

use crate::{
    clock::BootTime,
    error::{StoreError, StoreErrorKind},
};

/// The latest news in one wait.
#[derive(Clone, Debug, Default)]
pub(crate) enum Heard {
    #[default]
    Nothing,
    /// The store answered.
    Answer,
    /// A request failed.
    Failure {
        error: StoreError,
        /// The time since which all requests of the wait fail.
        since: BootTime,
    },
}

impl Heard {
    /// The error of a wait that ends after `waited` because its time is up; `None` if the store answered last, so the
    /// lock is busy.
    pub(crate) fn failure(self, waited: Duration) -> Option<StoreError> {
        match self {
            Self::Answer => None,
            Self::Failure { error, .. } => Some(error.after_waiting(waited)),
            Self::Nothing => {
                let message = "the store has not answered; check that it is up and reachable";
                Some(StoreError::new(StoreErrorKind::Unreachable, message).after_waiting(waited))
            }
        }
    }
}
