//! Slots: rows of entries that are emptied and used again, so that a queue leaves no dead rows behind.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use lockkeeper_core::ContenderId;

use crate::{EntryRow, RowChange};

/// The slot of each entry of a resource. Slots without an entry are empty.
#[derive(Clone, Debug, Default)]
pub struct Slots(BTreeMap<i32, Option<ContenderId>>);

impl Slots {
    /// Takes note of a slot, with this entry or empty.
    pub fn add(&mut self, slot: i32, entry: Option<ContenderId>) {
        self.0.insert(slot, entry);
    }

    /// Chooses the slots that are to be written, each once: a contender keeps its slot, and a new one takes an empty
    /// slot if there is one.
    pub fn place<'a>(&self, changes: &'a [RowChange]) -> BTreeMap<i32, Option<&'a EntryRow>> {
        let of: HashMap<ContenderId, i32> =
            self.0.iter().filter_map(|(slot, contender)| Some(((*contender)?, *slot))).collect();
        let mut empty: BTreeSet<i32> =
            self.0.iter().filter(|(_, contender)| contender.is_none()).map(|(slot, _)| *slot).collect();
        let mut written = BTreeMap::new();
        for change in changes {
            if let RowChange::Remove(row) = change
                && let Some(slot) = of.get(&row.contender)
            {
                written.insert(*slot, None);
                empty.insert(*slot);
            }
        }
        let mut next = self.0.last_key_value().map_or(0, |(last, _)| last + 1);
        for change in changes {
            let RowChange::Put { after, .. } = change else { continue };
            let slot = of.get(&after.contender).copied().filter(|slot| !empty.contains(slot));
            let slot = slot.or_else(|| empty.pop_first()).unwrap_or_else(|| {
                next += 1;
                next - 1
            });
            written.insert(slot, Some(after));
        }
        written
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples::waiter;

    fn row(seq: u64) -> EntryRow {
        EntryRow::of_waiter(1, &waiter(seq))
    }

    fn put(seq: u64) -> RowChange {
        RowChange::Put { before: None, after: row(seq) }
    }

    fn placed(slots: &Slots, changes: &[RowChange]) -> Vec<(i32, Option<u64>)> {
        let placed = slots.place(changes).into_iter();
        placed.map(|(slot, row)| (slot, row.map(|row| row.contender.seq))).collect()
    }

    #[test]
    fn entries_keep_their_slots_and_new_ones_take_empty_slots_first() {
        let mut slots = Slots::default();
        assert_eq!(placed(&slots, &[put(1), put(2)]), [(0, Some(1)), (1, Some(2))]);
        slots.add(0, Some(row(1).contender));
        slots.add(3, None);
        slots.add(5, Some(row(5).contender));
        assert_eq!(placed(&slots, &[put(5), put(7)]), [(3, Some(7)), (5, Some(5))]);
        assert_eq!(placed(&slots, &[put(7), put(8)]), [(3, Some(7)), (6, Some(8))]);
        let removed = RowChange::Remove(row(1));
        assert_eq!(placed(&slots, &[removed.clone(), put(9)]), [(0, Some(9))]);
        assert_eq!(placed(&slots, &[removed]), [(0, None)]);
    }
}
