//! Tombstones: the table `grave`, which makes late copies of claims do nothing.

use lockkeeper_core::{ContenderId, store::StoreTime};
use lockkeeper_rows::Tombstone;
use rusqlite::{OptionalExtension, Result, Transaction, params};

/// A transaction's knowledge of the stored tombstones.
#[derive(Debug, Default)]
pub(crate) struct Tombstones {
    /// Whether there are any, once that is known. Mostly there are none, and then no claim is looked up.
    any: Option<bool>,
}

impl Tombstones {
    /// The stored tombstone of `contender`.
    pub(crate) fn find(
        &mut self,
        transaction: &Transaction<'_>,
        contender: ContenderId,
    ) -> Result<Option<Tombstone>> {
        let any = match self.any {
            Some(any) => any,
            None => *self.any.insert(transaction.prepare_cached("SELECT 1 FROM grave")?.exists([])?),
        };
        if !any {
            return Ok(None);
        }
        let mut find = transaction.prepare_cached("SELECT until FROM grave WHERE keeper = ? AND seq = ?")?;
        let key = params![contender.keeper.to_string(), contender.seq.cast_signed()];
        let until: Option<i64> = find.query_row(key, |row| row.get(0)).optional()?;
        Ok(until.map(|until| Tombstone { contender, until: StoreTime(until.cast_unsigned()) }))
    }
}

/// Stores a tombstone. A copy of the leave with an earlier time must not shorten it.
pub(crate) fn put(transaction: &Transaction<'_>, tombstone: &Tombstone) -> Result<()> {
    let mut put = transaction.prepare_cached(
        "INSERT INTO grave VALUES (?, ?, ?)
         ON CONFLICT (keeper, seq) DO UPDATE SET until = max(until, excluded.until)",
    )?;
    let Tombstone { contender, until } = tombstone;
    put.execute(params![contender.keeper.to_string(), contender.seq.cast_signed(), until.0.cast_signed()])?;
    Ok(())
}
