//! Marks of those who left while a copy of their claim may still be under way.

use std::collections::HashMap;

use crate::{id::ContenderId, store::StoreTime};

/// Ids whose late copies must do nothing, each until its time, with the answer that the copies get.
#[derive(Clone, Debug)]
pub struct Tombstones<T> {
    tombstones: HashMap<ContenderId, (StoreTime, T)>,
    sweep_at: usize,
}

impl<T> Default for Tombstones<T> {
    fn default() -> Self {
        Self { tombstones: HashMap::new(), sweep_at: 64 }
    }
}

impl<T: Copy> Tombstones<T> {
    /// Leaves a tombstone. Those whose time has passed are cleared now and then, so their number
    /// stays within twice those that matter.
    pub fn insert(&mut self, id: ContenderId, until: StoreTime, what: T, now: StoreTime) {
        if until < now {
            return;
        }
        if self.tombstones.len() >= self.sweep_at {
            self.tombstones.retain(|_, (until, _)| *until >= now);
            self.sweep_at = (self.tombstones.len() * 2).max(64);
        }
        // A doubled leave with an earlier time must not lift the tombstone.
        let tombstone = self.tombstones.entry(id).or_insert((until, what));
        *tombstone = (tombstone.0.max(until), what);
    }

    /// The tombstone of `id`, if its time has not passed. It lasts through its last moment, as a claim
    /// does through its `not_after`: a copy that arrives right then must find it.
    pub fn find(&self, id: ContenderId, now: StoreTime) -> Option<T> {
        self.tombstones.get(&id).filter(|(until, _)| *until >= now).map(|(_, what)| *what)
    }
}
