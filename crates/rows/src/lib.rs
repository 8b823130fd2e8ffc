//! The part that SQL stores share: rows in, [the model's own step](lockkeeper_core::model), rows out.
//!
//! Pure: no SQL, no async, no driver, no clock of its own. A store does a group of requests in four parts:
//!
//! 1. [`Needs::of`] says which names it has to lock, in which order, and which tombstones it has to look up.
//! 2. It locks the names, then reads the clock, then the rows. They make a [`Snapshot`].
//! 3. [`Snapshot::apply`], [`Snapshot::renew`] or [`Snapshot::evict`] does the step, and returns an [`Outcome`].
//! 4. It writes the [`Writes`], commits, sends the [`Wakes`], and answers.
//!
//! [`Snapshot`] is for stores that know all rows beforehand. A store that finds out in the middle of its transaction which
//! rows it needs uses [`Transition`], of which a snapshot is made.
//!
//! Numbers and times are `i64`, as SQL has them, with the same bits as the model's `u64`. Lengths of time are in
//! microseconds. For units and capacities, 0 means "all".
//!
//! Grant numbers grow per name. A store keeps its high-water marks in [`ResourceRow::high_water`], one per name; or one for
//! all names, which it gives as [`Snapshot::floor`] and gets back as [`Writes::high_water`]; or both, with a floor that is
//! raised whenever the row of a free name is removed.

mod bad_row;
mod entry_row;
pub mod entry_text;
mod fences;
mod front;
mod latches;
mod loaded;
mod needs;
mod numbers;
mod openings;
mod outcome;
mod resource_row;
mod slots;
mod snapshot;
mod transition;
mod views;
pub mod wake_text;

pub use bad_row::BadRow;
pub use entry_row::EntryRow;
pub use fences::{Fenced, admit};
pub use front::{Kept, keep_position};
pub use latches::{CountOutcome, CountSnapshot, LatchRow, Remembered};
pub use needs::{NeededName, Needs};
pub use numbers::{
    capacity_from, capacity_number, high_water_from, kind_from, name_from, units_from, units_number,
};
pub use openings::{ConfirmedOpenings, Opening};
pub use outcome::{Outcome, ResourceWrites, RowChange, Tombstone, Wakes, Writes};
pub use resource_row::{ResourceRow, RowHolder, Stored};
pub use slots::Slots;
pub use snapshot::Snapshot;
pub use transition::Transition;
pub use views::{page, view};

#[cfg(test)]
mod samples;
