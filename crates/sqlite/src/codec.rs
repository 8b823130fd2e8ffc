//! A resource as rows: loaded whole, stored as the difference.

use std::{collections::HashMap, sync::Arc, time::Duration};

use lockkeeper_core::{
    Capacity, ContenderId, Name, Units,
    model::{Holder, Resource, Waiter},
    store::{Details, Kind, ProcessInfo, StoreTime},
};
use rusqlite::{Row, Statement, Transaction, params, types::Type};

use crate::liveness::keeper_from;

/// A resource as it was stored, and as it is now.
#[derive(Debug)]
pub(crate) struct Loaded {
    pub(crate) resource: Resource,
    before: Resource,
    /// The stored place of each waiter in `before`, in the same order.
    places: Vec<i64>,
    /// Whether the holders changed.
    pub(crate) changed: bool,
}

pub(crate) const LOAD: &str =
    "SELECT queued, turn, keeper, seq, capacity, units, lease, began, since, expires, confirmed,
    evicted, retired, detached, stamp, kind, host, pid, program, label, value, min_hold
    FROM entry WHERE name = ? ORDER BY queued, turn";

const STORE: &str =
    "INSERT OR REPLACE INTO entry (name, queued, turn, keeper, seq, capacity, units, lease, began,
    since, expires, confirmed, evicted, retired, detached, stamp, kind, host, pid, program, label, value,
    min_hold) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)";

const REMOVE: &str = "DELETE FROM entry WHERE name = ? AND queued = ? AND turn = ?";

impl Loaded {
    /// The resource with this name; `None` if nobody holds it or waits for it.
    pub(crate) fn load(transaction: &Transaction<'_>, name: &Name) -> rusqlite::Result<Option<Self>> {
        let mut statement = transaction.prepare_cached(LOAD)?;
        let mut rows = statement.query([name.as_str()])?;
        let mut places = Vec::new();
        let mut found: Option<Resource> = None;
        while let Some(row) = rows.next()? {
            let capacity = capacity_from(row.get(4)?)?;
            let resource = found.get_or_insert_with(|| Resource::free(capacity));
            if row.get(0)? {
                places.push(row.get(1)?);
                resource.queue.push_back(waiter_from(row)?);
            } else {
                resource.holders.push(holder_from(row)?);
            }
        }
        Ok(found.map(|resource| Self { before: resource.clone(), resource, places, changed: false }))
    }

    /// A resource that nobody holds or waits for yet.
    pub(crate) fn free(capacity: Capacity) -> Self {
        let free = Resource::free(capacity);
        Self { before: free.clone(), resource: free, places: Vec::new(), changed: false }
    }

    /// Whether every hold is one that was there before, just as it was.
    pub(crate) fn gives_nothing(&self) -> bool {
        self.resource.holders.iter().all(|holder| self.before.holders.contains(holder))
    }

    /// Stores what became different.
    pub(crate) fn store(&self, transaction: &Transaction<'_>, name: &Name) -> rusqlite::Result<()> {
        if self.resource == self.before {
            return Ok(());
        }
        let mut remove = transaction.prepare_cached(REMOVE)?;
        let mut store = transaction.prepare_cached(STORE)?;
        let (old, new) = (&self.before, &self.resource);
        for holder in &old.holders {
            if !new.holders.iter().any(|kept| kept.number == holder.number) {
                remove.execute(params![name.as_str(), false, holder.number.cast_signed()])?;
            }
        }
        for holder in &new.holders {
            if !old.holders.contains(holder) {
                store_holder(&mut store, name, new.capacity, holder)?;
            }
        }
        if new.queue == old.queue {
            return Ok(());
        }
        // Whoever left and came back in this transaction stands at the end, so a stored place is
        // kept only as long as the places grow.
        let mut stored: HashMap<ContenderId, (i64, &Waiter)> = old
            .queue
            .iter()
            .zip(&self.places)
            .map(|(waiter, place)| (waiter.contender, (*place, waiter)))
            .collect();
        let mut next = self.places.last().map_or(1, |last| last + 1);
        let mut before = 0;
        let mut to_store = Vec::new();
        for waiter in &new.queue {
            let kept = stored.get(&waiter.contender).copied().filter(|(place, _)| *place > before);
            before = match kept {
                Some((place, as_stored)) => {
                    stored.remove(&waiter.contender);
                    if waiter != as_stored {
                        to_store.push((waiter, place));
                    }
                    place
                }
                None => {
                    to_store.push((waiter, next));
                    next += 1;
                    next - 1
                }
            };
        }
        for (place, _) in stored.values() {
            remove.execute(params![name.as_str(), true, place])?;
        }
        for (waiter, place) in to_store {
            store_waiter(&mut store, name, new.capacity, waiter, place)?;
        }
        Ok(())
    }
}

fn store_holder(
    store: &mut Statement<'_>,
    name: &Name,
    capacity: Capacity,
    holder: &Holder,
) -> rusqlite::Result<()> {
    store.execute(params![
        name.as_str(),
        false,
        holder.number.cast_signed(),
        holder.contender.keeper.to_string(),
        holder.contender.seq.cast_signed(),
        capacity_number(capacity),
        units_number(holder.units),
        micros(holder.lease),
        holder.granted.0.cast_signed(),
        holder.since.cast_signed(),
        holder.expires.0.cast_signed(),
        holder.confirmed,
        holder.evicted,
        holder.retired,
        holder.detached,
        None::<i64>,
        holder.details.kind.word(),
        holder.details.process.host,
        holder.details.process.pid,
        holder.details.process.program,
        holder.details.label,
        holder.details.value,
        micros(holder.min_hold),
    ])?;
    Ok(())
}

fn store_waiter(
    store: &mut Statement<'_>,
    name: &Name,
    capacity: Capacity,
    waiter: &Waiter,
    place: i64,
) -> rusqlite::Result<()> {
    let none = None::<i64>;
    store.execute(params![
        name.as_str(),
        true,
        place,
        waiter.contender.keeper.to_string(),
        waiter.contender.seq.cast_signed(),
        capacity_number(capacity),
        units_number(waiter.units),
        micros(waiter.lease),
        waiter.asked.0.cast_signed(),
        waiter.since.cast_signed(),
        none,
        none,
        none,
        none,
        none,
        waiter.stamp.cast_signed(),
        waiter.details.kind.word(),
        waiter.details.process.host,
        waiter.details.process.pid,
        waiter.details.process.program,
        waiter.details.label,
        waiter.details.value,
        micros(waiter.min_hold),
    ])?;
    Ok(())
}

fn holder_from(row: &Row<'_>) -> rusqlite::Result<Holder> {
    Ok(Holder {
        contender: contender_from(row)?,
        units: units_from(row.get(5)?)?,
        number: unsigned(row, 1)?,
        granted: StoreTime(unsigned(row, 7)?),
        since: unsigned(row, 8)?,
        expires: StoreTime(unsigned(row, 9)?),
        lease: Duration::from_micros(unsigned(row, 6)?),
        min_hold: Duration::from_micros(unsigned(row, 21)?),
        confirmed: row.get(10)?,
        evicted: row.get(11)?,
        retired: row.get(12)?,
        detached: row.get(13)?,
        details: details_from(row)?,
    })
}

fn waiter_from(row: &Row<'_>) -> rusqlite::Result<Waiter> {
    Ok(Waiter {
        contender: contender_from(row)?,
        units: units_from(row.get(5)?)?,
        lease: Duration::from_micros(unsigned(row, 6)?),
        min_hold: Duration::from_micros(unsigned(row, 21)?),
        stamp: unsigned(row, 14)?,
        asked: StoreTime(unsigned(row, 7)?),
        since: unsigned(row, 8)?,
        details: details_from(row)?,
    })
}

fn contender_from(row: &Row<'_>) -> rusqlite::Result<ContenderId> {
    let keeper = keeper_from(row.get_ref(2)?.as_str()?).ok_or_else(|| not_ours(2, Type::Text))?;
    Ok(ContenderId { keeper, seq: unsigned(row, 3)? })
}

fn details_from(row: &Row<'_>) -> rusqlite::Result<Details> {
    Ok(Details {
        kind: Kind::from_word(row.get_ref(15)?.as_str()?).ok_or_else(|| not_ours(15, Type::Text))?,
        process: Arc::new(ProcessInfo { host: row.get(16)?, pid: row.get(17)?, program: row.get(18)? }),
        label: row.get(19)?,
        value: row.get(20)?,
    })
}

/// SQLite's integers are signed; ours are stored with the same bits.
pub(crate) fn unsigned(row: &Row<'_>, column: usize) -> rusqlite::Result<u64> {
    row.get::<_, i64>(column).map(i64::cast_unsigned)
}

fn micros(length: Duration) -> i64 {
    i64::try_from(length.as_micros()).unwrap_or(i64::MAX)
}

fn units_number(units: Units) -> u32 {
    match units {
        Units::All => 0,
        Units::Count(count) => count.get(),
    }
}

pub(crate) fn units_from(number: u32) -> rusqlite::Result<Units> {
    if number == 0 {
        return Ok(Units::All);
    }
    Units::count(number).map_err(|_| not_ours(5, Type::Integer))
}

fn capacity_number(capacity: Capacity) -> u32 {
    match capacity {
        Capacity::All => 0,
        Capacity::Count(count) => count.get(),
    }
}

pub(crate) fn capacity_from(number: u32) -> rusqlite::Result<Capacity> {
    if number == 0 {
        return Ok(Capacity::All);
    }
    Capacity::count(number).map_err(|_| not_ours(4, Type::Integer))
}

fn not_ours(column: usize, kind: Type) -> rusqlite::Error {
    rusqlite::Error::FromSqlConversionFailure(column, kind, "not what this program writes".into())
}

#[cfg(test)]
mod tests {
    use lockkeeper_core::KeeperId;
    use rusqlite::Connection;

    use super::*;

    fn waiter(seq: u64) -> Waiter {
        let process = ProcessInfo { host: "host".into(), pid: 1, program: "test".into() };
        Waiter {
            contender: ContenderId { keeper: KeeperId::from_u128(1), seq },
            units: Units::ONE,
            lease: Duration::from_secs(1),
            min_hold: Duration::from_secs(2),
            stamp: seq,
            asked: StoreTime(1),
            since: 1,
            details: Details { kind: Kind::RwLock, process: Arc::new(process), label: None, value: None },
        }
    }

    /// Whatever happens to a line within one transaction, it is stored in its order.
    #[test]
    fn a_line_keeps_its_order() {
        let mut connection = Connection::open_in_memory().expect("opened");
        crate::layout::settle(&mut connection, std::path::Path::new("x"), "boot", || Ok(false))
            .expect("made");
        let transaction = connection.transaction().expect("begun");
        let name = Name::new("stock").expect("valid");
        let lines: [&[u64]; 8] =
            [&[1, 2, 3], &[2, 3, 1], &[3, 1, 2, 4], &[4, 3], &[3, 4], &[5, 6], &[], &[6, 5, 4, 3, 2, 1]];
        for line in lines {
            let load = || Loaded::load(&transaction, &name).expect("loaded");
            let mut loaded = load().unwrap_or_else(|| Loaded::free(Capacity::All));
            loaded.resource.queue = line.iter().map(|seq| waiter(*seq)).collect();
            loaded.store(&transaction, &name).expect("stored");
            let stored = load().map_or(Vec::new(), |loaded| loaded.resource.queue.into());
            assert_eq!(stored, line.iter().map(|seq| waiter(*seq)).collect::<Vec<_>>());
        }
    }
}
