//! The rows that are stored of one resource.

use crate::EntryRow;

/// The row of a resource itself, which may stay when nobody holds it or waits for it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ResourceRow {
    /// The highest number that was granted; 0 if that is not kept per name.
    pub high_water: i64,
    /// The capacity that all holders and waiters agreed on; 0 for all. It means nothing while there are none.
    pub capacity: i64,
    /// The holder in this row.
    pub holder: RowHolder,
}

/// The holder that stands in the row of its resource, so that claiming and leaving a lock that nobody waits for is one
/// update of one row.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum RowHolder {
    /// This row has no room for one: all holders stand among the entries.
    #[default]
    NoRoom,
    /// There is room, and the next holder takes it.
    Vacant,
    /// It stays here for as long as it holds. Others stand among the entries.
    Here(EntryRow),
}

impl RowHolder {
    /// The holder, if there is one.
    pub fn row(&self) -> Option<&EntryRow> {
        match self {
            Self::Here(row) => Some(row),
            Self::NoRoom | Self::Vacant => None,
        }
    }
}

/// All rows of one resource. The default is a resource that nobody holds or waits for, of which nothing is kept.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Stored {
    /// The row of the resource.
    pub row: ResourceRow,
    /// The other holders and all waiters, in any order.
    pub entries: Vec<EntryRow>,
}
