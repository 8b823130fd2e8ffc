//! A row that this program cannot have written.

use std::{error::Error, fmt};

use lockkeeper_core::{StoreError, StoreErrorKind};

/// A row with a value that no version of this program writes there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BadRow {
    /// The column.
    pub column: &'static str,
}

impl BadRow {
    pub(crate) fn at(column: &'static str) -> Self {
        Self { column }
    }
}

impl fmt::Display for BadRow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "a row has a value in {} that Lockkeeper does not write: another program changed it",
            self.column
        )
    }
}

impl Error for BadRow {}

/// A store that knows the table adds it to the message itself.
impl From<BadRow> for StoreError {
    fn from(bad: BadRow) -> Self {
        Self::new(StoreErrorKind::Corrupt, format!("{bad}; remove the row or restore the table"))
    }
}
