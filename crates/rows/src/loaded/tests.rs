//! Changes within one step are stored so that they are loaded the same.

use std::collections::{BTreeMap, HashMap};

use lockkeeper_core::Capacity;

use super::*;
use crate::samples::{contender, holder, name, waiter};

/// A table whose rows are found by their contender, and one whose rows are found by `queued` and `turn`.
#[derive(Default)]
struct Tables {
    row: ResourceRow,
    by_contender: HashMap<ContenderId, EntryRow>,
    by_turn: BTreeMap<(bool, i64), EntryRow>,
}

impl Tables {
    fn with_room() -> Self {
        Self { row: ResourceRow { holder: RowHolder::Vacant, ..ResourceRow::default() }, ..Self::default() }
    }

    fn load(&self) -> Loaded {
        let entries = self.by_contender.values().cloned().collect();
        Loaded::new(Stored { row: self.row.clone(), entries }).expect("good rows")
    }

    fn store(&mut self, loaded: &Loaded) {
        let Some(writes) = loaded.writes(&name("stock")) else { return };
        if writes.row_changed {
            self.row = writes.row;
        }
        for change in writes.entries {
            let (before, after) = match change {
                RowChange::Remove(before) => (Some(before), None),
                RowChange::Put { before, after } => (before, Some(after)),
            };
            if let Some(before) = before {
                assert_eq!(self.by_contender.remove(&before.contender).as_ref(), Some(&before));
                assert_eq!(self.by_turn.remove(&(before.queued, before.turn)).as_ref(), Some(&before));
            }
            if let Some(after) = after {
                assert_eq!(self.by_contender.insert(after.contender, after.clone()), None, "a row too many");
                assert_eq!(self.by_turn.insert((after.queued, after.turn), after), None, "the key is taken");
            }
        }
    }

    /// Returns the contender that stands in the row of the resource, by its number.
    fn in_row(&self) -> Option<u64> {
        self.row.holder.row().map(|row| row.contender.seq)
    }
}

/// A queue is stored in its order, no matter how it changes within one step.
#[test]
fn a_queue_keeps_its_order() {
    let mut tables = Tables::default();
    let queues: [&[u64]; 8] =
        [&[1, 2, 3], &[2, 3, 1], &[3, 1, 2, 4], &[4, 3], &[3, 4], &[5, 6], &[], &[6, 5, 4, 3, 2, 1]];
    for queue in queues {
        let mut loaded = tables.load();
        loaded.resource.queue = queue.iter().map(|seq| waiter(*seq)).collect();
        tables.store(&loaded);
        assert_eq!(tables.load().resource.queue, loaded.resource.queue);
    }
}

/// Two readers may have their numbers raised to the same one, or past each other.
#[test]
fn holders_keep_their_numbers_whatever_they_are_raised_to() {
    let states: [&[(u64, u64)]; 6] = [
        &[(1, 10), (2, 11), (3, 12)],
        &[(2, 11), (1, 12), (3, 12)],
        &[(1, 12), (3, 12), (2, 20)],
        &[(3, 12), (2, 20), (4, 21)],
        &[(2, 21), (4, 21), (3, 22)],
        &[],
    ];
    for mut tables in [Tables::default(), Tables::with_room()] {
        for state in states {
            let mut loaded = tables.load();
            loaded.resource.holders = state.iter().map(|(seq, number)| holder(*seq, *number)).collect();
            tables.store(&loaded);
            let mut stored = tables.load().resource.holders;
            assert!(stored.is_sorted_by_key(|holder| holder.number));
            stored
                .sort_by_key(|holder| state.iter().position(|(seq, _)| contender(*seq) == holder.contender));
            assert_eq!(stored, loaded.resource.holders);
        }
    }
}

#[test]
fn the_holder_in_the_row_stays_there_and_the_next_one_moves_in() {
    let mut tables = Tables::with_room();
    for (holders, in_row, entries) in [
        (&[1][..], Some(1), 0),
        (&[1, 2], Some(1), 1),
        (&[2], None, 1),
        (&[2, 3], Some(3), 1),
        (&[3], Some(3), 0),
        (&[4, 5], Some(4), 1),
        (&[], None, 0),
    ] {
        let mut loaded = tables.load();
        loaded.resource.holders = holders.iter().map(|seq| holder(*seq, *seq)).collect();
        tables.store(&loaded);
        assert_eq!((tables.in_row(), tables.by_contender.len()), (in_row, entries), "{holders:?}");
        assert_eq!(tables.load().resource, loaded.resource);
    }
}

/// The lock passes on with one update of the resource's row, and the waiter's row goes.
#[test]
fn a_waiter_that_is_granted_moves_into_the_row() {
    let mut tables = Tables::with_room();
    let mut loaded = tables.load();
    loaded.resource.holders = vec![holder(1, 1)];
    loaded.resource.queue = [waiter(2), waiter(3)].into();
    tables.store(&loaded);
    let mut loaded = tables.load();
    loaded.resource.holders = vec![holder(2, 2)];
    loaded.resource.queue.pop_front();
    let writes = loaded.writes(&name("stock")).expect("it changed");
    assert_eq!(writes.entries, [RowChange::Remove(EntryRow::of_waiter(1, &waiter(2)))]);
    assert_eq!(writes.row.holder, RowHolder::Here(EntryRow::of_holder(2, &holder(2, 2))));
}

#[test]
fn the_row_is_written_only_if_it_changed() {
    let mut tables = Tables::with_room();
    let mut loaded = tables.load();
    loaded.resource.capacity = Capacity::count(3).expect("valid");
    assert_eq!(loaded.writes(&name("stock")), None, "the capacity of a free resource means nothing");
    loaded.resource.holders = vec![holder(1, 1), holder(2, 2)];
    loaded.high_water = HighWater(2);
    tables.store(&loaded);
    assert_eq!((tables.row.capacity, tables.row.high_water), (3, 2));
    let mut loaded = tables.load();
    assert_eq!(loaded.writes(&name("stock")), None);
    loaded.resource.holders.push(holder(3, 3));
    loaded.high_water = HighWater(3);
    assert!(
        loaded.writes(&name("stock")).expect("a grant").row_changed,
        "the row has the mark of all grants"
    );
    let mut loaded = tables.load();
    loaded.resource.holders[1].evicted = true;
    let writes = loaded.writes(&name("stock")).expect("an entry changed");
    assert!(!writes.row_changed && writes.entries.len() == 1, "{writes:?}");
    let mut loaded = tables.load();
    loaded.resource.holders[0].evicted = true;
    let writes = loaded.writes(&name("stock")).expect("the row changed");
    assert!(writes.row_changed && writes.entries.is_empty(), "{writes:?}");
}
