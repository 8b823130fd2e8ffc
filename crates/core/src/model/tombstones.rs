//! Marks of those who left while a copy of their claim may still be under way.

use std::collections::HashMap;

use crate::{id::ContenderId, store::StoreTime};

/// Ids whose late copies must do nothing, each until its time, with what to answer them.
#[derive(Clone, Debug)]
pub struct Tombstones<T> {
    marks: HashMap<ContenderId, (StoreTime, T)>,
    sweep_at: usize,
}

impl<T> Default for Tombstones<T> {
    fn default() -> Self {
        Self { marks: HashMap::new(), sweep_at: 64 }
    }
}

impl<T: Copy> Tombstones<T> {
    /// Leaves a mark. Marks whose time has passed are cleared now and then, so their number
    /// stays within twice those that matter.
    pub fn mark(&mut self, id: ContenderId, until: StoreTime, what: T, now: StoreTime) {
        if until < now {
            return;
        }
        if self.marks.len() >= self.sweep_at {
            self.marks.retain(|_, (until, _)| *until >= now);
            self.sweep_at = (self.marks.len() * 2).max(64);
        }
        // A doubled leave with an earlier time must not lift the mark.
        let mark = self.marks.entry(id).or_insert((until, what));
        *mark = (mark.0.max(until), what);
    }

    /// The mark of `id`, if its time has not passed. It lasts through its last moment, as a claim
    /// does through its `not_after`: a copy that arrives right then must find it.
    pub fn find(&self, id: ContenderId, now: StoreTime) -> Option<T> {
        self.marks.get(&id).filter(|(until, _)| *until >= now).map(|(_, what)| *what)
    }
}
