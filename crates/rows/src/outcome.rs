//! The outcome of a step: answers, rows to write, and wakes to send after the commit.

use std::time::Duration;

use lockkeeper_core::{
    ContenderId, KeeperId, Name,
    model::HighWater,
    store::{GrantNotice, StoreTime, Topic, Wake},
};

use crate::{EntryRow, ResourceRow};

/// The outcome of a group.
#[derive(Clone, Debug)]
pub struct Outcome<A> {
    /// The clock that it was done by.
    pub now: StoreTime,
    /// One answer per request, in their order.
    pub answers: Vec<A>,
    /// The rows to write, in the transaction that holds the locks.
    pub writes: Writes,
    /// The wakes to send once that is committed.
    pub wakes: Wakes,
}

/// The rows that became different.
#[derive(Clone, Debug, Default)]
pub struct Writes {
    /// By name, in byte order.
    pub resources: Vec<ResourceWrites>,
    /// To be put, each contender once. One that is stored with a later time stays.
    pub tombstones: Vec<Tombstone>,
    /// The highest number that was granted, if any was: for stores that keep one mark for all names.
    pub high_water: Option<HighWater>,
    /// Whether somebody was given something or an operator's order took effect, so that it must be durable before it is
    /// answered. Positions in queues, releases that nobody waits for and the end of leases are not like that.
    pub gives: bool,
    /// For how long, from now on, something that was released would be held if this was lost: until the latest end among
    /// the leases of holders that are gone.
    pub frees: Duration,
}

impl Writes {
    /// Whether nothing has to be written.
    pub fn is_empty(&self) -> bool {
        self.resources.is_empty() && self.tombstones.is_empty() && self.high_water.is_none()
    }
}

/// The rows of one resource that became different.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ResourceWrites {
    /// Its name.
    pub name: Name,
    /// Its row as it is now.
    pub row: ResourceRow,
    /// Whether the row has to be written.
    pub row_changed: bool,
    /// The entries that changed; the removed ones come first, in order of turn.
    pub entries: Vec<RowChange>,
}

/// One entry to write or to remove. A store finds the row by its contender, or by `queued` and `turn` as they were.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum RowChange {
    /// The row as it was stored is to be removed.
    Remove(EntryRow),
    /// The row is to be written.
    Put {
        /// The row of the same contender as it was stored, if there was one. It is replaced.
        before: Option<EntryRow>,
        /// As it is to be.
        after: EntryRow,
    },
}

/// A contender that left while a copy of its claim may still arrive.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Tombstone {
    /// The contender's identity.
    pub contender: ContenderId,
    /// Through this moment late copies do nothing.
    pub until: StoreTime,
}

/// The wakes to send to others after the commit.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Wakes {
    /// Grants that were made for waiters.
    pub grants: Vec<(Name, GrantNotice)>,
    /// The resources whose holders changed.
    pub changed: Vec<Name>,
}

impl Wakes {
    /// Whether there is nothing to tell.
    pub fn is_empty(&self) -> bool {
        self.grants.is_empty() && self.changed.is_empty()
    }

    /// The wakes of keepers that were granted something. They get them without a subscription.
    pub fn granted(&self) -> impl Iterator<Item = (KeeperId, Wake)> {
        self.grants.iter().map(|(name, grant)| (grant.contender.keeper, Wake::Granted(name.clone(), *grant)))
    }

    /// The topics whose subscribers are to be woken.
    pub fn topics(&self) -> impl Iterator<Item = Topic> {
        self.changed.iter().cloned().map(Topic::Changes)
    }
}
