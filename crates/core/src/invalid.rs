//! Input that is refused before anything is sent. Names, numbers and tokens need it, and all other errors build on those.

/// Input that can never work, found before anything was sent. Names the remedy.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct InvalidInput(String);

impl InvalidInput {
    /// An error with its remedy, in one line.
    pub fn new(message: impl Into<String>) -> Self {
        Self(message.into())
    }
}
