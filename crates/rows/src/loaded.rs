//! One resource as it was stored and as it is now, and the difference between the two as rows.

use std::{collections::HashMap, time::Duration};

use lockkeeper_core::{
    ContenderId, Name,
    model::{HighWater, Holder, Resource, Waiter},
    store::StoreTime,
};

use crate::{
    BadRow, EntryRow, ResourceRow, ResourceWrites, RowChange, RowHolder, Stored,
    numbers::{capacity_from, capacity_number, high_water_from},
};

/// A resource as it was stored, and as it is now.
#[derive(Debug)]
pub(crate) struct Loaded {
    pub(crate) resource: Resource,
    pub(crate) high_water: HighWater,
    /// Whether the holders changed.
    pub(crate) changed: bool,
    before: Resource,
    high_water_before: HighWater,
    room: Room,
    /// The stored turn of each holder in `before`, in the same order.
    holder_turns: Vec<i64>,
    /// The stored turn of each waiter in `before`, in the same order.
    waiter_turns: Vec<i64>,
}

/// The room for a holder in the row of the resource, and the holder that was there.
#[derive(Clone, Copy, Debug)]
enum Room {
    None,
    Vacant,
    TakenBy(ContenderId),
}

/// Rows as the model has them, and the parts that only rows have.
#[derive(Debug)]
pub(crate) struct Decoded {
    pub(crate) resource: Resource,
    pub(crate) waiter_turns: Vec<i64>,
    holder_turns: Vec<i64>,
    room: Room,
}

impl Decoded {
    pub(crate) fn of(stored: Stored) -> Result<Self, BadRow> {
        let Stored { row, entries } = stored;
        let mut resource = Resource::free(capacity_from(row.capacity)?);
        let (mut holders, mut waiters) = (Vec::new(), Vec::new());
        let room = match row.holder {
            RowHolder::NoRoom => Room::None,
            RowHolder::Vacant => Room::Vacant,
            RowHolder::Here(row) => {
                let contender = row.contender;
                holders.push((row.turn, row.into_holder()?));
                Room::TakenBy(contender)
            }
        };
        for row in entries {
            let turn = row.turn;
            match row.queued {
                false => holders.push((turn, row.into_holder()?)),
                true => waiters.push((turn, row.into_waiter()?)),
            }
        }
        // Not by turn: a number may have been raised past another.
        holders.sort_by_key(|(turn, holder)| (holder.number, *turn));
        waiters.sort_by_key(|(turn, _)| *turn);
        let (holder_turns, waiter_turns);
        (holder_turns, resource.holders) = holders.into_iter().unzip();
        (waiter_turns, resource.queue) = waiters.into_iter().unzip();
        Ok(Self { resource, waiter_turns, holder_turns, room })
    }
}

/// A holder or waiter as it was stored.
#[derive(Clone, Copy)]
enum Before<'a> {
    Holder(i64, &'a Holder),
    Waiter(i64, &'a Waiter),
}

impl Before<'_> {
    fn row(self) -> EntryRow {
        match self {
            Self::Holder(turn, holder) => EntryRow::of_holder(turn, holder),
            Self::Waiter(turn, waiter) => EntryRow::of_waiter(turn, waiter),
        }
    }

    /// Holders before waiters, as rows are sorted.
    fn order(self) -> (bool, i64) {
        match self {
            Self::Holder(turn, _) => (false, turn),
            Self::Waiter(turn, _) => (true, turn),
        }
    }
}

/// The entries as they were stored, without those that were found to be as they are now.
type Rest<'a> = HashMap<ContenderId, Before<'a>>;

impl Loaded {
    pub(crate) fn new(stored: Stored) -> Result<Self, BadRow> {
        let high_water = high_water_from(stored.row.high_water)?;
        let Decoded { resource, room, holder_turns, waiter_turns } = Decoded::of(stored)?;
        Ok(Self {
            before: resource.clone(),
            resource,
            high_water,
            high_water_before: high_water,
            changed: false,
            room,
            holder_turns,
            waiter_turns,
        })
    }

    /// Whether every hold was there before, just as it is.
    pub(crate) fn gives_nothing(&self) -> bool {
        self.resource.holders.iter().all(|holder| self.before.holders.contains(holder))
    }

    /// How long the holders that are gone would still hold, at most.
    pub(crate) fn frees(&self, now: StoreTime) -> Duration {
        let stays =
            |gone: &Holder| self.resource.holders.iter().any(|holder| holder.contender == gone.contender);
        let gone = self.before.holders.iter().filter(|holder| !stays(holder));
        let rest = |holder: &Holder| Duration::from_micros(holder.expires.0.saturating_sub(now.0));
        gone.map(rest).max().unwrap_or_default()
    }

    /// Returns the rows to write; `None` if nothing has changed.
    pub(crate) fn writes(&self, name: &Name) -> Option<ResourceWrites> {
        if self.resource == self.before && self.high_water == self.high_water_before {
            return None;
        }
        let (row, row_changed) = self.row();
        let in_row = row.holder.row().map(|row| row.contender);
        let mut rest = self.stored_entries();
        let mut entries = Vec::new();
        self.put_holders(in_row, &mut rest, &mut entries);
        if self.resource.queue != self.before.queue {
            self.put_waiters(&mut rest, &mut entries);
        }
        let mut removed: Vec<_> = rest.into_values().collect();
        removed.sort_by_key(|before| before.order());
        let removed = removed.into_iter().map(|before| RowChange::Remove(before.row()));
        let entries: Vec<_> = removed.chain(entries).collect();
        (row_changed || !entries.is_empty()).then(|| ResourceWrites {
            name: name.clone(),
            row,
            row_changed,
            entries,
        })
    }

    /// The stored entries. Waiters are left out if none of them changed, and the holder in the row is none.
    fn stored_entries(&self) -> Rest<'_> {
        let in_row = match self.room {
            Room::TakenBy(contender) => Some(contender),
            Room::None | Room::Vacant => None,
        };
        let holders = self.before.holders.iter().zip(&self.holder_turns);
        let holders = holders
            .filter(|(holder, _)| Some(holder.contender) != in_row)
            .map(|(holder, turn)| (holder.contender, Before::Holder(*turn, holder)));
        let moved = self.resource.queue != self.before.queue;
        let waiters = self.before.queue.iter().zip(&self.waiter_turns).filter(|_| moved);
        holders
            .chain(waiters.map(|(waiter, turn)| (waiter.contender, Before::Waiter(*turn, waiter))))
            .collect()
    }

    /// Returns the row of the resource as it is now, and whether that differs.
    ///
    /// The holder in it stays there. If it is vacant, a holder moves in that has no row as a holder yet.
    fn row(&self) -> (ResourceRow, bool) {
        let (held, held_before) = (&self.resource.holders, &self.before.holders);
        let stays = |contender: ContenderId| held.iter().find(|holder| holder.contender == contender);
        let is_new =
            |holder: &&Holder| !held_before.iter().any(|before| before.contender == holder.contender);
        let now = match self.room {
            Room::None => None,
            Room::Vacant => held.iter().find(is_new),
            Room::TakenBy(contender) => stays(contender).or_else(|| held.iter().find(is_new)),
        };
        let before = match self.room {
            Room::TakenBy(contender) => held_before.iter().find(|holder| holder.contender == contender),
            Room::None | Room::Vacant => None,
        };
        let holder = match (self.room, now) {
            (Room::None, _) => RowHolder::NoRoom,
            (_, None) => RowHolder::Vacant,
            (_, Some(holder)) => RowHolder::Here(EntryRow::of_holder(self.turn_of(holder), holder)),
        };
        // The capacity changes only with the first grant of a free resource, which raises the mark.
        let row_changed = now != before || self.high_water != self.high_water_before;
        let high_water = self.high_water.0.cast_signed();
        (ResourceRow { high_water, capacity: capacity_number(self.resource.capacity), holder }, row_changed)
    }

    /// Returns the turn of a holder, which it keeps even if its number was raised.
    fn turn_of(&self, holder: &Holder) -> i64 {
        let stored = self.before.holders.iter().position(|before| before.contender == holder.contender);
        stored.map_or(holder.number.cast_signed(), |place| self.holder_turns[place])
    }

    fn put_holders<'a>(
        &'a self,
        in_row: Option<ContenderId>,
        rest: &mut Rest<'a>,
        puts: &mut Vec<RowChange>,
    ) {
        for holder in self.resource.holders.iter().filter(|holder| Some(holder.contender) != in_row) {
            let before = rest.remove(&holder.contender);
            let turn = match before {
                Some(Before::Holder(_, before)) if before == holder => continue,
                Some(Before::Holder(turn, _)) => turn,
                Some(Before::Waiter(..)) | None => holder.number.cast_signed(),
            };
            let after = EntryRow::of_holder(turn, holder);
            puts.push(RowChange::Put { before: before.map(Before::row), after });
        }
    }

    /// A contender that left and came back in this step stands at the end of the queue, so a waiter keeps its stored turn
    /// only as long as the turns grow.
    fn put_waiters<'a>(&'a self, rest: &mut Rest<'a>, puts: &mut Vec<RowChange>) {
        let mut next = self.waiter_turns.last().map_or(1, |last| last + 1);
        let mut ahead = 0;
        for waiter in &self.resource.queue {
            let before = rest.remove(&waiter.contender);
            ahead = match before {
                Some(Before::Waiter(turn, before)) if turn > ahead => {
                    if before == waiter {
                        ahead = turn;
                        continue;
                    }
                    turn
                }
                _ => {
                    next += 1;
                    next - 1
                }
            };
            let after = EntryRow::of_waiter(ahead, waiter);
            puts.push(RowChange::Put { before: before.map(Before::row), after });
        }
    }
}

#[cfg(test)]
mod tests;
