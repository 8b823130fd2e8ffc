//! Turns rows of the table `entry` into those of `lockkeeper_rows` and back.

use std::sync::Arc;

use lockkeeper_core::{
    ContenderId, KeeperId, Name,
    store::{Details, Kind, ProcessInfo},
};
use lockkeeper_rows::{BadRow, EntryRow, ResourceRow, ResourceWrites, RowChange, Stored, kind_from};
use rusqlite::{Row, Statement, Transaction, params, types::Type};

type Result<T> = rusqlite::Result<T>;

pub(crate) const LOAD: &str =
    "SELECT queued, turn, keeper, seq, capacity, units, lease, began, since, expires, confirmed, evicted, retired,
    detached, stamp, min_hold, renewed, reason, at_least, number, kind, host, pid, program, label, value
    FROM entry WHERE name = ? ORDER BY queued, turn";

/// The same columns without the details.
const LOAD_FRONT: &str =
    "SELECT queued, turn, keeper, seq, capacity, units, lease, began, since, expires, confirmed, evicted, retired,
    detached, stamp, min_hold, renewed, reason, at_least, number
    FROM entry WHERE name = ? ORDER BY queued, turn";

const PUT: &str =
    "INSERT OR REPLACE INTO entry (name, queued, turn, keeper, seq, capacity, units, lease, began, since, expires,
    confirmed, evicted, retired, detached, stamp, min_hold, renewed, reason, at_least, number, kind, host, pid, program,
    label, value)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)";

const REMOVE: &str = "DELETE FROM entry WHERE name = ? AND queued = ? AND turn = ?";

/// Loads a resource.
pub(crate) fn load(transaction: &Transaction<'_>, name: &Name) -> Result<Stored> {
    let mut statement = transaction.prepare_cached(LOAD)?;
    let mut rows = statement.query([name.as_str()])?;
    let mut stored = Stored::default();
    while let Some(row) = rows.next()? {
        stored.row.capacity = row.get(4)?;
        stored.entries.push(entry_from(row, details_from(row)?)?);
    }
    Ok(stored)
}

/// Loads the holders of a resource and its waiters up to `contender`, without details; `None` if that does not wait.
pub(crate) fn load_front(
    transaction: &Transaction<'_>,
    name: &Name,
    contender: ContenderId,
) -> Result<Option<Stored>> {
    let mut statement = transaction.prepare_cached(LOAD_FRONT)?;
    let mut rows = statement.query([name.as_str()])?;
    let no_details = no_details();
    let mut entries = Vec::new();
    while let Some(row) = rows.next()? {
        let entry = entry_from(row, no_details.clone())?;
        let (asks, waits) = (entry.contender == contender, entry.queued);
        entries.push(entry);
        if asks {
            let row = ResourceRow { capacity: row.get(4)?, ..ResourceRow::default() };
            return Ok(waits.then_some(Stored { row, entries }));
        }
    }
    Ok(None)
}

/// Stores the changes of a resource. The high-water mark is in a row of its own, for all resources.
pub(crate) fn store(transaction: &Transaction<'_>, writes: &ResourceWrites) -> Result<()> {
    let mut remove = transaction.prepare_cached(REMOVE)?;
    let mut put = transaction.prepare_cached(PUT)?;
    let name = writes.name.as_str();
    let mut remove = |row: &EntryRow| remove.execute(params![name, row.queued, row.turn]);
    for change in &writes.entries {
        match change {
            RowChange::Remove(row) => drop(remove(row)?),
            RowChange::Put { before, after } => {
                let moved = |before: &&EntryRow| (before.queued, before.turn) != (after.queued, after.turn);
                if let Some(before) = before.as_ref().filter(moved) {
                    remove(before)?;
                }
                put_entry(&mut put, name, writes.row.capacity, after)?;
            }
        }
    }
    Ok(())
}

/// Stores a row. Columns that only holders have are NULL for waiters, and the other way round.
fn put_entry(put: &mut Statement<'_>, name: &str, capacity: i64, row: &EntryRow) -> Result<()> {
    let (holds, details) = (!row.queued, &row.details);
    put.execute(params![
        name,
        row.queued,
        row.turn,
        row.contender.keeper.to_string(),
        row.contender.seq.cast_signed(),
        capacity,
        row.units,
        row.lease,
        row.began,
        row.since,
        holds.then_some(row.expires),
        holds.then_some(row.confirmed),
        holds.then_some(row.evicted),
        holds.then_some(row.retired),
        row.detached,
        row.queued.then_some(row.stamp),
        row.min_hold,
        row.renewed,
        row.reason,
        row.at_least,
        (holds && row.number != row.turn).then_some(row.number),
        details.kind.word(),
        details.process.host,
        details.process.pid,
        details.process.program,
        details.label,
        details.value,
    ])?;
    Ok(())
}

fn entry_from(row: &Row<'_>, details: Details) -> Result<EntryRow> {
    let queued = row.get(0)?;
    let turn = row.get(1)?;
    let number: Option<i64> = row.get(19)?;
    Ok(EntryRow {
        contender: contender_from(row, 2)?,
        queued,
        turn,
        number: if queued { 0 } else { number.unwrap_or(turn) },
        units: row.get(5)?,
        lease: row.get(6)?,
        min_hold: row.get(15)?,
        began: row.get(7)?,
        since: row.get(8)?,
        expires: row.get::<_, Option<_>>(9)?.unwrap_or_default(),
        stamp: row.get::<_, Option<_>>(14)?.unwrap_or_default(),
        at_least: row.get(18)?,
        confirmed: flag(row, 10)?,
        renewed: row.get(16)?,
        evicted: flag(row, 11)?,
        retired: flag(row, 12)?,
        // Waiters of an earlier layout have none.
        detached: flag(row, 13)?,
        reason: row.get(17)?,
        details,
    })
}

fn flag(row: &Row<'_>, column: usize) -> Result<bool> {
    Ok(row.get::<_, Option<bool>>(column)?.unwrap_or_default())
}

/// The keeper in `column`.
pub(crate) fn keeper_from(row: &Row<'_>, column: usize) -> Result<KeeperId> {
    row.get_ref(column)?.as_str()?.parse().map_err(|_| not_ours(BadRow { column: "keeper" }))
}

fn details_from(row: &Row<'_>) -> Result<Details> {
    Ok(Details {
        kind: kind_from(row.get_ref(20)?.as_str()?).map_err(not_ours)?,
        process: Arc::new(ProcessInfo { host: row.get(21)?, pid: row.get(22)?, program: row.get(23)? }),
        label: row.get(24)?,
        value: row.get(25)?,
    })
}

fn no_details() -> Details {
    let process = Arc::new(ProcessInfo { host: String::new(), pid: 0, program: String::new() });
    Details { kind: Kind::Mutex, process, label: None, value: None }
}

/// The contender whose keeper is in `column`, and whose number is in the next one.
pub(crate) fn contender_from(row: &Row<'_>, column: usize) -> Result<ContenderId> {
    Ok(ContenderId { keeper: keeper_from(row, column)?, seq: unsigned(row, column + 1)? })
}

/// SQLite's integers are signed; ours are stored with the same bits.
pub(crate) fn unsigned(row: &Row<'_>, column: usize) -> Result<u64> {
    row.get::<_, i64>(column).map(i64::cast_unsigned)
}

/// A name as it was stored.
pub(crate) fn name_from(name: String) -> Result<Name> {
    lockkeeper_rows::name_from(name).map_err(not_ours)
}

/// The error for a row that this program does not write.
pub(crate) fn not_ours(bad: BadRow) -> rusqlite::Error {
    rusqlite::Error::FromSqlConversionFailure(0, Type::Null, bad.into())
}

#[cfg(test)]
mod tests {
    use std::{path::Path, time::Duration};

    use lockkeeper_core::{
        Units,
        model::{HighWater, Now, Resource},
        store::{Attachment, Claim, Evict, Evicted, Eviction, Leave, Renew, Renewed, StoreTime},
        testing,
    };
    use lockkeeper_rows::Transition;
    use rusqlite::Connection;

    use super::*;

    fn stock() -> Name {
        Name::new("stock").expect("valid")
    }

    fn contender(seq: u64) -> ContenderId {
        ContenderId { keeper: KeeperId::from_u128(1), seq }
    }

    fn claim(seq: u64, units: Units, at_least: u64) -> Claim {
        let process = ProcessInfo { host: "host".into(), pid: 1, program: "test".into() };
        Claim {
            units,
            lease: Duration::from_secs(1),
            attachment: if seq == 3 { Attachment::Detached } else { Attachment::Process },
            renewed: seq == 1,
            at_least,
            min_hold: Duration::from_secs(2),
            stamp: seq,
            details: Details { kind: Kind::RwLock, process: Arc::new(process), label: None, value: None },
            ..testing::claim(&stock(), contender(seq))
        }
    }

    fn leave(seq: u64) -> Leave {
        let (name, contender) = (stock(), contender(seq));
        Leave { name, contender, tombstone_until: None, hold_at_least: Duration::ZERO }
    }

    fn raise(seq: u64, at_least: u64) -> Renew {
        let (name, contender) = (stock(), contender(seq));
        Renew { name, contender, lease: Duration::ZERO, lower_to: None, detach: false, at_least }
    }

    fn opened() -> Connection {
        let mut connection = Connection::open_in_memory().expect("opened");
        crate::layout::settle(&mut connection, Path::new("x"), "boot", || Ok(false)).expect("made");
        connection
    }

    fn loaded(transaction: &Transaction<'_>) -> Transition {
        let mut transition = Transition::new(Now { lease: StoreTime(1), wall: 1 }, HighWater(0));
        let stored = load(transaction, &stock()).expect("loaded");
        transition.add(&stock(), stored).expect("good rows");
        transition
    }

    /// Does something to the resource; returns it as it was stored, and as it should be.
    fn changed(transaction: &Transaction<'_>, act: impl FnOnce(&mut Transition)) -> [Resource; 2] {
        let resource = |transition: &Transition| transition.resource(&stock()).expect("loaded").clone();
        let mut transition = loaded(transaction);
        act(&mut transition);
        let expected = resource(&transition);
        for writes in &transition.finish().0.resources {
            store(transaction, writes).expect("stored");
        }
        [resource(&loaded(transaction)), expected]
    }

    /// Two readers may have their numbers raised to the same one, or past each other.
    #[test]
    fn holders_keep_their_numbers_whatever_they_are_raised_to() {
        let mut connection = opened();
        let transaction = connection.transaction().expect("begun");
        let claim = |seq, number| claim(seq, Units::ONE, number);
        let becomes = |numbers: &[(u64, u64)], act: &dyn Fn(&mut Transition)| {
            let [stored, expected] = changed(&transaction, act);
            assert_eq!(stored.holders, expected.holders);
            let held = stored.holders.iter().map(|holder| (holder.contender.seq, holder.number));
            assert_eq!(held.collect::<Vec<_>>(), numbers);
        };
        becomes(&[(1, 10), (2, 11), (3, 12)], &|all| {
            for (seq, number) in [(1, 10), (2, 11), (3, 12)] {
                all.claim(&claim(seq, number));
            }
        });
        becomes(&[(2, 11), (1, 12), (3, 12)], &|all| assert_held(&all.renew(&raise(1, 12))));
        becomes(&[(1, 12), (3, 12), (2, 20)], &|all| assert_held(&all.renew(&raise(2, 20))));
        becomes(&[(3, 12), (2, 20), (4, 21)], &|all| {
            all.leave(&leave(1));
            all.claim(&claim(4, 21));
        });
        becomes(&[(2, 21), (4, 21), (3, 22)], &|all| {
            assert_held(&all.renew(&raise(2, 21)));
            assert_held(&all.renew(&raise(3, 22)));
        });
        let (name, contender, reason) = (stock(), contender(2), Some("why".into()));
        let order = Evict { name, contender, number: 21, how: Eviction::Graceful, reason };
        becomes(&[(2, 21), (4, 21), (3, 22)], &|all| assert_eq!(all.evict(&order), Some(Evicted::Done)));
        becomes(&[], &|all| {
            for seq in 2..=4 {
                all.leave(&leave(seq));
            }
        });
    }

    fn assert_held(renewed: &Renewed) {
        assert!(matches!(renewed, Renewed::Held(_)), "{renewed:?}");
    }

    /// A queue is stored in its order, after any changes within one transaction.
    #[test]
    fn a_queue_keeps_its_order() {
        let mut connection = opened();
        let transaction = connection.transaction().expect("begun");
        changed(&transaction, |all| drop(all.claim(&claim(9, Units::All, 0))));
        let queues: [&[u64]; 8] =
            [&[1, 2, 3], &[2, 3, 1], &[3, 1, 2, 4], &[4, 3], &[3, 4], &[5, 6], &[], &[6, 5, 4, 3, 2, 1]];
        for queue in queues {
            let [stored, expected] = changed(&transaction, |all| {
                for seq in 1..=6 {
                    all.leave(&leave(seq));
                }
                for seq in queue {
                    all.claim(&claim(*seq, Units::ONE, *seq));
                }
            });
            assert_eq!(stored, expected);
            assert!(stored.queue.iter().map(|waiter| waiter.contender.seq).eq(queue.iter().copied()));
        }
    }
}
