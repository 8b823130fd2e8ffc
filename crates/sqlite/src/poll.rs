//! Polls: by far the most of what waiting processes ask for, and mostly all they do is keep a
//! place. So that costs little: one look at the line and one row written, nothing loaded whole.

use lockkeeper_core::{
    KeeperId, Units,
    model::{FIRST_LEASE, WAIT_LEASE},
    store::{Claim, Leave, Request, StoreTime, Verdict},
};
use rusqlite::{Transaction, params};

use crate::{
    rows::{capacity_from, contender_from, units_from, unsigned},
    step::Work,
};

/// From here on it costs less to load the whole line, once for all.
pub(crate) const FEW: usize = 4;

const LINE: &str = "SELECT queued, turn, keeper, seq, capacity, units, pid,
    CASE queued WHEN 0 THEN expires ELSE began END
    FROM entry WHERE name = ? ORDER BY queued, turn";

const KEEP: &str = "UPDATE entry SET began = ?, stamp = ? WHERE name = ? AND queued = 1 AND turn = ?";

/// Whether this is somebody who waits and asks again.
pub(crate) fn is_poll(request: &Request) -> bool {
    matches!(request, Request::Claim(claim) if claim.again && claim.queue)
}

/// Whether a few requests will probably give nobody anything. A wrong guess costs a little time.
pub(crate) fn gives_nothing(transaction: &Transaction<'_>, group: &[Request]) -> rusqlite::Result<bool> {
    let mut find = transaction
        .prepare_cached("SELECT queued FROM entry WHERE name = ? ORDER BY queued DESC, turn DESC LIMIT 1")?;
    for request in group {
        let (Request::Claim(Claim { name, .. }) | Request::Leave(Leave { name, .. })) = request;
        let mut rows = find.query([name.as_str()])?;
        let line: Option<bool> = rows.next()?.map(|row| row.get(0)).transpose()?;
        let nothing = match request {
            Request::Claim(claim) => match line {
                Some(anybody_waits) => anybody_waits || claim.units == Units::All,
                None => false,
            },
            Request::Leave(leave) => leave.bury_until.is_none() && line != Some(true),
        };
        if !nothing {
            return Ok(false);
        }
    }
    Ok(true)
}

impl Work<'_> {
    /// The model's claim where it does no more than keep a place in line; `None` where it may do
    /// more, so that the whole step is needed.
    pub(crate) fn keep_place(&mut self, claim: &Claim) -> rusqlite::Result<Option<Verdict>> {
        let now = self.now.lease;
        if self.loaded.contains_key(&claim.name) || claim.not_after < now || self.is_buried(claim)? {
            return Ok(None);
        }
        let mut used = Vec::new();
        let mut holders: Vec<KeeperId> = Vec::new();
        let mut first_end: Option<StoreTime> = None;
        let mut ahead = 0;
        let mut own = None;
        let mut in_front = Vec::new();
        let mut line = self.transaction().prepare_cached(LINE)?;
        let mut rows = line.query([claim.name.as_str()])?;
        while let Some(row) = rows.next()? {
            let contender = contender_from(row)?;
            let units = units_from(row.get(5)?)?;
            let time = StoreTime(unsigned(row, 7)?);
            if capacity_from(row.get(4)?)? != claim.capacity {
                return Ok(None);
            }
            let queued: bool = row.get(0)?;
            if !queued {
                if contender == claim.contender || time <= now {
                    return Ok(None);
                }
                used.push(units);
                holders.push(contender.keeper);
                first_end = Some(first_end.map_or(time, |first| first.min(time)));
            } else {
                let moves_up =
                    ahead == 0 && own.is_none() && claim.capacity.fits(used.iter().copied(), units);
                if moves_up || time.after(WAIT_LEASE) <= now {
                    return Ok(None);
                }
                if contender == claim.contender {
                    own = Some(row.get::<_, i64>(1)?);
                } else if own.is_none() {
                    ahead += 1;
                }
            }
            if own.is_none() && contender.keeper != self.own() {
                in_front.push((contender.keeper, row.get(6)?));
            }
        }
        drop(rows);
        let Some(place) = own.filter(|_| claim.capacity.allows(claim.units)) else { return Ok(None) };
        if holders.into_iter().any(|keeper| self.is_dead(keeper)) {
            return Ok(None);
        }
        self.transaction().prepare_cached(KEEP)?.execute(params![
            now.0.cast_signed(),
            claim.stamp.cast_signed(),
            claim.name.as_str(),
            place
        ])?;
        self.done.ahead.extend(in_front);
        let retry_in = first_end.map_or(FIRST_LEASE, |end| end.since(now));
        Ok(Some(Verdict::Busy { ahead, retry_in }))
    }
}
