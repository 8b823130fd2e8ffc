//! Exit codes, and how every failure becomes one of them and one line with its remedy.

use std::fmt;

use lockkeeper::{
    AcquireError, Error, ReleaseError, StoreError,
    error::{FenceError, InvalidInput, LatchError, LeaseError, StoreErrorKind},
    support::sentence,
};

use nix::sys::signal::Signal;

/// Wrong usage, or a store URL that cannot work (EX_USAGE).
pub(crate) const USAGE: u8 = 64;
/// The store is out of reach (EX_UNAVAILABLE).
pub(crate) const UNREACHABLE: u8 = 69;
/// A mistake of this program or its system (EX_SOFTWARE).
pub(crate) const INTERNAL: u8 = 70;
/// Held by others, or the wait was too short (EX_TEMPFAIL).
pub(crate) const BUSY: u8 = 75;
/// Lost while it was needed.
pub(crate) const LOST: u8 = 79;
/// CMD is there but cannot be executed, as in a shell.
pub(crate) const NOT_EXECUTABLE: u8 = 126;
/// There is no such CMD, as in a shell.
pub(crate) const NOT_FOUND: u8 = 127;

/// Returns the code for an end by a signal, as in a shell.
pub(crate) fn of_signal(signal: i32) -> u8 {
    u8::try_from(128 + signal).unwrap_or(u8::MAX)
}

/// An early end of the program: its code, and a line for people unless there is nothing to say.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) code: u8,
    pub(crate) message: Option<String>,
}

impl Failure {
    pub(crate) fn new(code: u8, message: impl Into<String>) -> Self {
        Self { code, message: Some(message.into()) }
    }

    /// Returns an end that needs no words, because its cause explains it well enough.
    pub(crate) fn silent(code: u8) -> Self {
        Self { code, message: None }
    }

    /// Returns the end that a signal asked for.
    pub(crate) fn interrupted(signal: Signal) -> Self {
        Self::silent(of_signal(signal as i32))
    }

    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Self::new(USAGE, message)
    }

    pub(crate) fn internal(what: &str, error: impl fmt::Display) -> Self {
        Self::new(INTERNAL, format!("{what}: {error}; this should not happen, please report it"))
    }
}

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Self {
        let code = match error.kind() {
            StoreErrorKind::Config | StoreErrorKind::Unsupported => USAGE,
            _ => UNREACHABLE,
        };
        Self::new(code, sentence::of(&error))
    }
}

impl From<InvalidInput> for Failure {
    fn from(error: InvalidInput) -> Self {
        Self::usage(error.to_string())
    }
}

impl From<AcquireError> for Failure {
    fn from(error: AcquireError) -> Self {
        match error {
            AcquireError::Store(error) => error.into(),
            AcquireError::TimedOut { .. } => Self::new(BUSY, sentence::of(&error)),
            AcquireError::Closed { .. } => Self::new(INTERNAL, sentence::of(&error)),
            _ => Self::usage(sentence::of(&error)),
        }
    }
}

impl From<ReleaseError> for Failure {
    fn from(error: ReleaseError) -> Self {
        match error {
            ReleaseError::Store(error) => error.into(),
            _ => Self::new(LOST, format!("{}; somebody else may have had it", sentence::of(&error))),
        }
    }
}

impl From<LeaseError> for Failure {
    fn from(error: LeaseError) -> Self {
        match error {
            LeaseError::Store(error) => error.into(),
            LeaseError::NotHeld { .. } => {
                Self::new(LOST, format!("{}; acquire it anew", sentence::of(&error)))
            }
            _ => Self::usage(sentence::of(&error)),
        }
    }
}

impl From<LatchError> for Failure {
    fn from(error: LatchError) -> Self {
        match error {
            LatchError::Store(error) => error.into(),
            LatchError::TimedOut { .. } => {
                Self::new(BUSY, format!("{}; wait longer with -w", sentence::of(&error)))
            }
            LatchError::Closed { .. } => Self::new(INTERNAL, sentence::of(&error)),
            _ => Self::usage(sentence::of(&error)),
        }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        match error {
            Error::Acquire(error) => error.into(),
            Error::Release(error) => error.into(),
            Error::Lease(error) => error.into(),
            Error::Latch(error) => error.into(),
            Error::Store(error) | Error::Fence(FenceError::Store(error)) => error.into(),
            Error::Invalid(error) => error.into(),
            Error::Lost(_) => Self::new(LOST, sentence::of(&error)),
            _ => Self::new(INTERNAL, sentence::of(&error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_names_its_causes_once() {
        let source = std::io::Error::other("disk full");
        let error = StoreError::new(StoreErrorKind::Unreachable, "cannot write").with_source(source);
        let failure = Failure::from(AcquireError::from(error));
        assert_eq!(failure.code, UNREACHABLE);
        assert_eq!(failure.message.as_deref(), Some("cannot write (disk full)"));
    }
}
