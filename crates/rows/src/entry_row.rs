//! One holder or waiter as a row.

use std::sync::Arc;

use lockkeeper_core::{
    ContenderId,
    model::{Holder, Waiter},
    store::{Details, StoreTime},
};

use crate::{
    BadRow,
    numbers::{length, micros, units_from, units_number},
};

/// A holder or a waiter of a resource. A column that only holders have is zero, false or empty for a waiter, and the other
/// way round.
///
/// A contender has at most one row of a resource, and keeps it: a waiter that is granted becomes a holder in its own row.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct EntryRow {
    /// The contender that holds or waits.
    pub contender: ContenderId,
    /// Whether it waits; else it holds.
    pub queued: bool,
    /// The order among waiters, and among holders. Together with `queued` it is unique within a resource. For a holder it
    /// is the number of its grant as it was first.
    pub turn: i64,
    /// Holders: the number of the grant, which may have been raised since.
    pub number: i64,
    /// How much it holds or asks for; 0 for all.
    pub units: i64,
    /// The lease that it asked for.
    pub lease: i64,
    /// How long it is kept from the grant on.
    pub min_hold: i64,
    /// Holders: when it was granted. Waiters: when it last asked. On the clock of leases.
    pub began: i64,
    /// The same, or when a waiter came, in microseconds since 1970.
    pub since: i64,
    /// Holders: when the lease ends.
    pub expires: i64,
    /// Waiters: the stamp of the claim copy that was written down last.
    pub stamp: i64,
    /// Waiters: the number of a grant is at least this.
    pub at_least: i64,
    /// Holders: whether the owner was heard of since the grant.
    pub confirmed: bool,
    /// Whether its keeper renews it.
    pub renewed: bool,
    /// Holders: whether an operator asked for it back.
    pub evicted: bool,
    /// Holders: whether the owner has left before the minimum hold.
    pub retired: bool,
    /// Whether only the lease ends it.
    pub detached: bool,
    /// Holders: an operator's reason for asking it back.
    pub reason: Option<Arc<str>>,
    /// The details that listings show.
    pub details: Details,
}

impl EntryRow {
    /// The row of a holder.
    pub fn of_holder(turn: i64, holder: &Holder) -> Self {
        Self {
            contender: holder.contender,
            queued: false,
            turn,
            number: holder.number.cast_signed(),
            units: units_number(holder.units),
            lease: micros(holder.lease),
            min_hold: micros(holder.min_hold),
            began: holder.granted.0.cast_signed(),
            since: holder.since.cast_signed(),
            expires: holder.expires.0.cast_signed(),
            stamp: 0,
            at_least: 0,
            confirmed: holder.confirmed,
            renewed: holder.renewed,
            evicted: holder.evicted,
            retired: holder.retired,
            detached: holder.detached,
            reason: holder.reason.clone(),
            details: holder.details.clone(),
        }
    }

    /// The row of a waiter.
    pub fn of_waiter(turn: i64, waiter: &Waiter) -> Self {
        Self {
            contender: waiter.contender,
            queued: true,
            turn,
            number: 0,
            units: units_number(waiter.units),
            lease: micros(waiter.lease),
            min_hold: micros(waiter.min_hold),
            began: waiter.asked.0.cast_signed(),
            since: waiter.since.cast_signed(),
            expires: 0,
            stamp: waiter.stamp.cast_signed(),
            at_least: waiter.at_least.cast_signed(),
            confirmed: false,
            renewed: waiter.renewed,
            evicted: false,
            retired: false,
            detached: waiter.detached,
            reason: None,
            details: waiter.details.clone(),
        }
    }

    /// Reads the row as a holder.
    ///
    /// # Errors
    /// If there is a value that no holder has.
    pub fn into_holder(self) -> Result<Holder, BadRow> {
        Ok(Holder {
            contender: self.contender,
            units: units_from(self.units)?,
            number: u64::try_from(self.number).map_err(|_| BadRow::at("number"))?,
            granted: StoreTime(self.began.cast_unsigned()),
            since: self.since.cast_unsigned(),
            expires: StoreTime(self.expires.cast_unsigned()),
            lease: length(self.lease),
            min_hold: length(self.min_hold),
            confirmed: self.confirmed,
            renewed: self.renewed,
            evicted: self.evicted,
            reason: self.reason,
            retired: self.retired,
            detached: self.detached,
            details: self.details,
        })
    }

    /// Reads the row as a waiter.
    ///
    /// # Errors
    /// If there is a value that no waiter has.
    pub fn into_waiter(self) -> Result<Waiter, BadRow> {
        Ok(Waiter {
            contender: self.contender,
            units: units_from(self.units)?,
            lease: length(self.lease),
            min_hold: length(self.min_hold),
            renewed: self.renewed,
            detached: self.detached,
            at_least: u64::try_from(self.at_least).map_err(|_| BadRow::at("at_least"))?,
            stamp: self.stamp.cast_unsigned(),
            asked: StoreTime(self.began.cast_unsigned()),
            since: self.since.cast_unsigned(),
            details: self.details,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples::{holder, waiter};

    #[test]
    fn holders_and_waiters_survive_rows() {
        let plain = holder(1, 7);
        let odd = Holder {
            number: 9,
            evicted: true,
            reason: Some("why".into()),
            retired: true,
            detached: true,
            renewed: false,
            confirmed: false,
            ..holder(2, 7)
        };
        for holder in [plain, odd] {
            let row = EntryRow::of_holder(7, &holder);
            assert_eq!((row.turn, row.queued), (7, false));
            assert_eq!(row.into_holder(), Ok(holder));
        }
        let odd = Waiter { renewed: false, detached: true, at_least: 5, stamp: u64::MAX, ..waiter(2) };
        for waiter in [waiter(1), odd] {
            let row = EntryRow::of_waiter(3, &waiter);
            assert_eq!((row.turn, row.queued), (3, true));
            assert_eq!(row.into_waiter(), Ok(waiter));
        }
    }

    #[test]
    fn values_that_nobody_writes_are_named() {
        let row = EntryRow::of_holder(7, &holder(1, 7));
        let bad = EntryRow { units: -1, ..row.clone() }.into_holder().expect_err("no units");
        assert_eq!(bad.column, "units");
        assert_eq!(EntryRow { number: -1, ..row }.into_holder(), Err(BadRow { column: "number" }));
    }
}
