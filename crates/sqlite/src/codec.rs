//! Turns rows of the table `entry` into the model's values and back.

use std::{sync::Arc, time::Duration};

use lockkeeper_core::{
    Capacity, ContenderId, KeeperId, Name, Units,
    model::{Holder, Resource, Waiter},
    store::{Details, Kind, ProcessInfo, StoreTime},
};
use rusqlite::{Row, Statement, Transaction, params, types::Type};

use crate::{
    front::Front,
    loaded::{Loaded, RowChange},
};

type Result<T> = rusqlite::Result<T>;

pub(crate) const LOAD: &str =
    "SELECT queued, turn, keeper, seq, capacity, units, lease, began, since, expires,
    confirmed, evicted, retired, detached, stamp, min_hold, renewed, reason, at_least, number, kind, host, pid, program, label, value
    FROM entry WHERE name = ? ORDER BY queued, turn";

/// The same columns without the details.
const LOAD_FRONT: &str = "SELECT queued, turn, keeper, seq, capacity, units, lease, began, since, expires,
    confirmed, evicted, retired, detached, stamp, min_hold, renewed, reason, at_least, number
    FROM entry WHERE name = ? ORDER BY queued, turn";

const PUT: &str =
    "INSERT OR REPLACE INTO entry (name, queued, turn, keeper, seq, capacity, units, lease, began,
    since, expires, confirmed, evicted, retired, detached, stamp, kind, host, pid, program, label, value,
    min_hold, renewed, reason, at_least, number)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)";

const REMOVE: &str = "DELETE FROM entry WHERE name = ? AND queued = ? AND turn = ?";

/// Loads a resource; `None` if nobody holds it or waits for it.
pub(crate) fn load(transaction: &Transaction<'_>, name: &Name) -> Result<Option<Loaded>> {
    let mut statement = transaction.prepare_cached(LOAD)?;
    let mut rows = statement.query([name.as_str()])?;
    let (mut turns, mut positions) = (Vec::new(), Vec::new());
    let mut found: Option<Resource> = None;
    while let Some(row) = rows.next()? {
        let capacity = capacity_from(row)?;
        let resource = found.get_or_insert_with(|| Resource::free(capacity));
        if row.get(0)? {
            positions.push(row.get(1)?);
            resource.queue.push_back(waiter_from(row, details_from(row)?)?);
        } else {
            turns.push(unsigned(row, 1)?);
            resource.holders.push(holder_from(row, details_from(row)?)?);
        }
    }
    Ok(found.map(|resource| Loaded::new(resource, turns, positions)))
}

/// Loads the holders of a resource and its waiters up to `contender`; `None` if that does not wait.
pub(crate) fn load_front(
    transaction: &Transaction<'_>,
    name: &Name,
    contender: ContenderId,
) -> Result<Option<Front>> {
    let mut statement = transaction.prepare_cached(LOAD_FRONT)?;
    let mut rows = statement.query([name.as_str()])?;
    let no_details = no_details();
    let mut found: Option<Resource> = None;
    while let Some(row) = rows.next()? {
        let capacity = capacity_from(row)?;
        let resource = found.get_or_insert_with(|| Resource::free(capacity));
        if !row.get(0)? {
            let holder = holder_from(row, no_details.clone())?;
            if holder.contender == contender {
                return Ok(None);
            }
            resource.holders.push(holder);
            continue;
        }
        let waiter = waiter_from(row, no_details.clone())?;
        let is_last = waiter.contender == contender;
        resource.queue.push_back(waiter);
        if is_last {
            let position = row.get(1)?;
            return Ok(found.map(|resource| Front { resource, position }));
        }
    }
    Ok(None)
}

/// Stores what became different.
pub(crate) fn store(transaction: &Transaction<'_>, name: &Name, loaded: &Loaded) -> Result<()> {
    let changes = loaded.changes();
    if changes.is_empty() {
        return Ok(());
    }
    let mut remove = transaction.prepare_cached(REMOVE)?;
    let mut put = transaction.prepare_cached(PUT)?;
    let capacity = loaded.resource.capacity;
    for change in changes {
        match change {
            RowChange::RemoveHolder(turn) => {
                remove.execute(params![name.as_str(), false, turn.cast_signed()])?;
            }
            RowChange::RemoveWaiter(position) => {
                remove.execute(params![name.as_str(), true, position])?;
            }
            RowChange::PutHolder(turn, holder) => put_holder(&mut put, name, capacity, holder, turn)?,
            RowChange::PutWaiter(position, waiter) => put_waiter(&mut put, name, capacity, waiter, position)?,
        }
    }
    Ok(())
}

fn put_holder(
    put: &mut Statement<'_>,
    name: &Name,
    capacity: Capacity,
    holder: &Holder,
    turn: u64,
) -> Result<()> {
    put.execute(params![
        name.as_str(),
        false,
        turn.cast_signed(),
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
        holder.renewed,
        holder.reason,
        0,
        (holder.number != turn).then_some(holder.number.cast_signed()),
    ])?;
    Ok(())
}

fn put_waiter(
    put: &mut Statement<'_>,
    name: &Name,
    capacity: Capacity,
    waiter: &Waiter,
    position: i64,
) -> Result<()> {
    let none = None::<i64>;
    put.execute(params![
        name.as_str(),
        true,
        position,
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
        waiter.detached,
        waiter.stamp.cast_signed(),
        waiter.details.kind.word(),
        waiter.details.process.host,
        waiter.details.process.pid,
        waiter.details.process.program,
        waiter.details.label,
        waiter.details.value,
        micros(waiter.min_hold),
        waiter.renewed,
        none,
        waiter.at_least.cast_signed(),
        none,
    ])?;
    Ok(())
}

fn holder_from(row: &Row<'_>, details: Details) -> Result<Holder> {
    Ok(Holder {
        contender: contender_from(row)?,
        units: units_from(row)?,
        number: row
            .get::<_, Option<i64>>(19)?
            .map_or_else(|| unsigned(row, 1), |raised| Ok(raised.cast_unsigned()))?,
        granted: StoreTime(unsigned(row, 7)?),
        since: unsigned(row, 8)?,
        expires: StoreTime(unsigned(row, 9)?),
        lease: Duration::from_micros(unsigned(row, 6)?),
        min_hold: Duration::from_micros(unsigned(row, 15)?),
        confirmed: row.get(10)?,
        renewed: row.get(16)?,
        evicted: row.get(11)?,
        reason: row.get(17)?,
        retired: row.get(12)?,
        detached: row.get(13)?,
        details,
    })
}

fn waiter_from(row: &Row<'_>, details: Details) -> Result<Waiter> {
    Ok(Waiter {
        contender: contender_from(row)?,
        units: units_from(row)?,
        lease: Duration::from_micros(unsigned(row, 6)?),
        min_hold: Duration::from_micros(unsigned(row, 15)?),
        renewed: row.get(16)?,
        // Waiters of an earlier layout have none.
        detached: row.get::<_, Option<bool>>(13)?.unwrap_or_default(),
        at_least: unsigned(row, 18)?,
        stamp: unsigned(row, 14)?,
        asked: StoreTime(unsigned(row, 7)?),
        since: unsigned(row, 8)?,
        details,
    })
}

fn contender_from(row: &Row<'_>) -> Result<ContenderId> {
    Ok(ContenderId { keeper: keeper_from(row, 2)?, seq: unsigned(row, 3)? })
}

/// The keeper in `column`.
pub(crate) fn keeper_from(row: &Row<'_>, column: usize) -> Result<KeeperId> {
    row.get_ref(column)?.as_str()?.parse().map_err(|_| not_ours(column, Type::Text))
}

fn details_from(row: &Row<'_>) -> Result<Details> {
    Ok(Details {
        kind: Kind::from_word(row.get_ref(20)?.as_str()?).ok_or_else(|| not_ours(20, Type::Text))?,
        process: Arc::new(ProcessInfo { host: row.get(21)?, pid: row.get(22)?, program: row.get(23)? }),
        label: row.get(24)?,
        value: row.get(25)?,
    })
}

fn no_details() -> Details {
    let process = Arc::new(ProcessInfo { host: String::new(), pid: 0, program: String::new() });
    Details { kind: Kind::Mutex, process, label: None, value: None }
}

/// SQLite's integers are signed; ours are stored with the same bits.
pub(crate) fn unsigned(row: &Row<'_>, column: usize) -> Result<u64> {
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

fn units_from(row: &Row<'_>) -> Result<Units> {
    match row.get(5)? {
        0 => Ok(Units::All),
        number => Units::count(number).map_err(|_| not_ours(5, Type::Integer)),
    }
}

fn capacity_number(capacity: Capacity) -> u32 {
    match capacity {
        Capacity::All => 0,
        Capacity::Count(count) => count.get(),
    }
}

fn capacity_from(row: &Row<'_>) -> Result<Capacity> {
    match row.get(4)? {
        0 => Ok(Capacity::All),
        number => Capacity::count(number).map_err(|_| not_ours(4, Type::Integer)),
    }
}

/// A name as it was stored.
pub(crate) fn name_from(name: String) -> Result<Name> {
    Name::new(name).map_err(|why| rusqlite::Error::FromSqlConversionFailure(0, Type::Text, why.into()))
}

fn not_ours(column: usize, kind: Type) -> rusqlite::Error {
    rusqlite::Error::FromSqlConversionFailure(column, kind, "not what this program writes".into())
}

#[cfg(test)]
mod tests {
    use rusqlite::Connection;

    use super::*;

    fn waiter(seq: u64) -> Waiter {
        let process = ProcessInfo { host: "host".into(), pid: 1, program: "test".into() };
        Waiter {
            contender: ContenderId { keeper: KeeperId::from_u128(1), seq },
            units: Units::ONE,
            lease: Duration::from_secs(1),
            min_hold: Duration::from_secs(2),
            renewed: true,
            detached: false,
            at_least: 0,
            stamp: seq,
            asked: StoreTime(1),
            since: 1,
            details: Details { kind: Kind::RwLock, process: Arc::new(process), label: None, value: None },
        }
    }

    fn holder(seq: u64, number: u64) -> Holder {
        let Waiter { contender, units, lease, min_hold, details, .. } = waiter(seq);
        Holder {
            contender,
            units,
            number,
            granted: StoreTime(1),
            since: 1,
            expires: StoreTime(9),
            lease,
            min_hold,
            confirmed: true,
            renewed: seq == 1,
            evicted: seq == 2,
            reason: (seq == 2).then(|| "why".into()),
            retired: false,
            detached: seq == 3,
            details,
        }
    }

    /// Two readers may have their numbers raised to the same one, or past each other.
    #[test]
    fn holders_keep_their_numbers_whatever_they_are_raised_to() {
        let mut connection = Connection::open_in_memory().expect("opened");
        crate::layout::settle(&mut connection, std::path::Path::new("x"), "boot", || Ok(false))
            .expect("made");
        let transaction = connection.transaction().expect("begun");
        let name = Name::new("stock").expect("valid");
        let states: [&[(u64, u64)]; 6] = [
            &[(1, 10), (2, 11), (3, 12)],
            &[(2, 11), (1, 12), (3, 12)],
            &[(1, 12), (3, 12), (2, 20)],
            &[(3, 12), (2, 20), (4, 21)],
            &[(2, 21), (4, 21), (3, 22)],
            &[],
        ];
        for state in states {
            let load = || load(&transaction, &name).expect("loaded");
            let mut loaded = load().unwrap_or_else(|| Loaded::free(Capacity::All));
            let holders: Vec<_> = state.iter().map(|(seq, number)| holder(*seq, *number)).collect();
            loaded.resource.holders.clone_from(&holders);
            store(&transaction, &name, &loaded).expect("stored");
            let mut stored = load().map_or(Vec::new(), |loaded| loaded.resource.holders);
            assert!(stored.is_sorted_by_key(|holder| holder.number));
            stored.sort_by_key(|holder| state.iter().position(|(seq, _)| *seq == holder.contender.seq));
            assert_eq!(stored, holders);
        }
    }

    /// Whatever happens to a queue within one transaction, it is stored in its order.
    #[test]
    fn a_queue_keeps_its_order() {
        let mut connection = Connection::open_in_memory().expect("opened");
        crate::layout::settle(&mut connection, std::path::Path::new("x"), "boot", || Ok(false))
            .expect("made");
        let transaction = connection.transaction().expect("begun");
        let name = Name::new("stock").expect("valid");
        let queues: [&[u64]; 8] =
            [&[1, 2, 3], &[2, 3, 1], &[3, 1, 2, 4], &[4, 3], &[3, 4], &[5, 6], &[], &[6, 5, 4, 3, 2, 1]];
        for queue in queues {
            let load = || load(&transaction, &name).expect("loaded");
            let mut loaded = load().unwrap_or_else(|| Loaded::free(Capacity::All));
            loaded.resource.queue = queue.iter().map(|seq| waiter(*seq)).collect();
            store(&transaction, &name, &loaded).expect("stored");
            let stored = load().map_or(Vec::new(), |loaded| loaded.resource.queue.into());
            assert_eq!(stored, queue.iter().map(|seq| waiter(*seq)).collect::<Vec<_>>());
        }
    }
}
