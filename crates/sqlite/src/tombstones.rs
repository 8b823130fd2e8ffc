//! Tombstones: the table `grave`, which makes late copies of claims do nothing.

use lockkeeper_core::store::{Claim, Leave, StoreTime};
use rusqlite::{Result, Transaction, params};

/// What a transaction knows of the tombstones.
#[derive(Debug, Default)]
pub(crate) struct Tombstones {
    /// Whether there are any, once that is known. Mostly there are none, and then no claim is looked up.
    any: Option<bool>,
    made: bool,
}

impl Tombstones {
    /// Whether a tombstone was made in this transaction.
    pub(crate) fn made(&self) -> bool {
        self.made
    }

    /// Whether there is a tombstone for `claim`.
    pub(crate) fn has(
        &mut self,
        transaction: &Transaction<'_>,
        claim: &Claim,
        now: StoreTime,
    ) -> Result<bool> {
        let any = match self.any {
            Some(any) => any,
            None => *self.any.insert(transaction.prepare_cached("SELECT 1 FROM grave")?.exists([])?),
        };
        if !any {
            return Ok(false);
        }
        let mut find =
            transaction.prepare_cached("SELECT 1 FROM grave WHERE keeper = ? AND seq = ? AND until >= ?")?;
        let contender = claim.contender;
        find.exists(params![contender.keeper.to_string(), contender.seq.cast_signed(), now.0.cast_signed()])
    }

    /// Makes the tombstone that `leave` asks for, unless its time is over.
    pub(crate) fn make(
        &mut self,
        transaction: &Transaction<'_>,
        leave: &Leave,
        now: StoreTime,
    ) -> Result<()> {
        let Some(until) = leave.tombstone_until.filter(|until| *until >= now) else { return Ok(()) };
        self.any = Some(true);
        self.made = true;
        // A copy of the leave with an earlier time must not shorten it.
        let mut put = transaction.prepare_cached(
            "INSERT INTO grave VALUES (?, ?, ?)
             ON CONFLICT (keeper, seq) DO UPDATE SET until = max(until, excluded.until)",
        )?;
        let contender = leave.contender;
        put.execute(params![
            contender.keeper.to_string(),
            contender.seq.cast_signed(),
            until.0.cast_signed()
        ])?;
        Ok(())
    }
}
