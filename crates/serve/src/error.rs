//! The error of a server that does not start.

use std::fmt;

use lockkeeper::{StoreError, error::StoreErrorKind, support::sentence};

/// The error of a server that does not start. Its text is one sentence, which says what to do.
#[derive(Clone, PartialEq, Eq)]
pub struct ServeError {
    kind: ServeErrorKind,
    message: String,
}

/// The cause of the error: the settings, the store or the system.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ServeErrorKind {
    /// The settings cannot work.
    Usage,
    /// The store is out of reach, or refuses us.
    Unreachable,
    /// The system refuses something, such as a port that is in use.
    System,
}

impl ServeError {
    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Self { kind: ServeErrorKind::Usage, message: message.into() }
    }

    pub(crate) fn internal(message: impl Into<String>) -> Self {
        Self { kind: ServeErrorKind::System, message: message.into() }
    }

    /// Returns the cause of the error.
    pub fn kind(&self) -> ServeErrorKind {
        self.kind
    }
}

impl From<StoreError> for ServeError {
    fn from(error: StoreError) -> Self {
        let kind = match error.kind() {
            StoreErrorKind::Config | StoreErrorKind::Unsupported => ServeErrorKind::Usage,
            _ => ServeErrorKind::Unreachable,
        };
        Self { kind, message: sentence::of(&error) }
    }
}

impl fmt::Display for ServeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl fmt::Debug for ServeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for ServeError {}
