//! One resource as it was stored and as it is now, and the difference between the two as rows.
//!
//! Pure: no SQL, no files, no threads.

use std::collections::HashMap;

use lockkeeper_core::{
    Capacity, ContenderId,
    model::{Holder, Resource, Waiter},
};

/// A resource as it was stored, and as it is now.
#[derive(Debug)]
pub(crate) struct Loaded {
    pub(crate) resource: Resource,
    before: Resource,
    /// The stored turn of each holder in `before`, in the same order.
    turns: Vec<u64>,
    /// The stored position of each waiter in `before`, in the same order.
    positions: Vec<i64>,
    /// Whether the holders changed.
    pub(crate) changed: bool,
}

/// One row to write or to remove. A holder's row is found by its turn, the number that it was granted with; a waiter's by
/// its position.
#[derive(Debug)]
pub(crate) enum RowChange<'a> {
    RemoveHolder(u64),
    PutHolder(u64, &'a Holder),
    RemoveWaiter(i64),
    PutWaiter(i64, &'a Waiter),
}

impl Loaded {
    /// A resource just as it is stored, with the stored turn of each of its holders, in that order, and the stored position
    /// of each of its waiters.
    pub(crate) fn new(mut resource: Resource, mut turns: Vec<u64>, positions: Vec<i64>) -> Self {
        if !resource.holders.is_sorted_by_key(|holder| holder.number) {
            // A number was raised past another.
            let mut stored: Vec<_> = resource.holders.into_iter().zip(turns).collect();
            stored.sort_by_key(|(holder, _)| holder.number);
            (resource.holders, turns) = stored.into_iter().unzip();
        }
        Self { before: resource.clone(), resource, turns, positions, changed: false }
    }

    /// A resource that nobody holds or waits for yet.
    pub(crate) fn free(capacity: Capacity) -> Self {
        Self::new(Resource::free(capacity), Vec::new(), Vec::new())
    }

    /// Whether every hold was there before, just as it is.
    pub(crate) fn gives_nothing(&self) -> bool {
        self.resource.holders.iter().all(|holder| self.before.holders.contains(holder))
    }

    /// The rows that differ, in the order in which they must be changed.
    pub(crate) fn changes(&self) -> Vec<RowChange<'_>> {
        let mut changes = Vec::new();
        if self.resource != self.before {
            self.changed_holders(&mut changes);
            self.changed_waiters(&mut changes);
        }
        changes
    }

    fn changed_holders<'a>(&'a self, changes: &mut Vec<RowChange<'a>>) {
        let (old, new) = (&self.before.holders, &self.resource.holders);
        let stored = || old.iter().zip(&self.turns);
        let gone = stored().filter(|(holder, _)| !new.iter().any(|kept| kept.contender == holder.contender));
        changes.extend(gone.map(|(_, turn)| RowChange::RemoveHolder(*turn)));
        for holder in new.iter().filter(|holder| !old.contains(holder)) {
            let row = stored().find(|(before, _)| before.contender == holder.contender);
            changes.push(RowChange::PutHolder(row.map_or(holder.number, |(_, turn)| *turn), holder));
        }
    }

    /// A contender that left and came back in this transaction stands at the end of the queue, so a waiter keeps its
    /// stored position only as long as the positions grow.
    fn changed_waiters<'a>(&'a self, changes: &mut Vec<RowChange<'a>>) {
        if self.resource.queue == self.before.queue {
            return;
        }
        let mut stored: HashMap<ContenderId, (i64, &Waiter)> = self
            .before
            .queue
            .iter()
            .zip(&self.positions)
            .map(|(waiter, position)| (waiter.contender, (*position, waiter)))
            .collect();
        let mut next = self.positions.last().map_or(1, |last| last + 1);
        let mut before = 0;
        let mut puts = Vec::new();
        for waiter in &self.resource.queue {
            let kept = stored.get(&waiter.contender).copied().filter(|(position, _)| *position > before);
            before = match kept {
                Some((position, as_stored)) => {
                    stored.remove(&waiter.contender);
                    if waiter != as_stored {
                        puts.push(RowChange::PutWaiter(position, waiter));
                    }
                    position
                }
                None => {
                    puts.push(RowChange::PutWaiter(next, waiter));
                    next += 1;
                    next - 1
                }
            };
        }
        changes.extend(stored.values().map(|(position, _)| RowChange::RemoveWaiter(*position)));
        changes.append(&mut puts);
    }
}
