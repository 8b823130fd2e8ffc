//! Polls: by far the most of what waiting processes ask for, and mostly all they do is keep a
//! place. So that costs little: one look at the line, and now and then one row written; nothing is
//! loaded whole.

use lockkeeper_core::{
    Units,
    model::{FIRST_LEASE, PLACE_KEPT, WAIT_LEASE},
    store::{Answer, Claim, Leave, Request, StoreTime, Verdict},
};
use rusqlite::{Transaction, params};

use crate::{
    codec::{capacity_from, units_from, unsigned},
    liveness::keeper_from,
    work::{HOLDERS_WATCHED, WAITERS_WATCHED, Work},
};

/// From here on it costs less to load the whole line, once for all.
pub(crate) const FEW: usize = 4;

const QUEUE: &str = "SELECT queued, turn, seq = ?2 AND keeper = ?3, capacity, units,
    CASE queued WHEN 0 THEN expires ELSE began END, CASE queued WHEN 0 THEN keeper END
    FROM entry WHERE name = ?1 ORDER BY queued, turn";

const RIGHT_AHEAD: &str =
    "SELECT keeper FROM entry WHERE name = ? AND queued = 1 AND turn < ? AND keeper <> ? ORDER BY turn DESC";

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
            Request::Leave(leave) => leave.tombstone_until.is_none() && line != Some(true),
        };
        if !nothing {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Where somebody stands who asks again.
struct Position {
    turn: i64,
    /// Whether that was last written so lately that it need not be written again.
    fresh: bool,
    verdict: Verdict,
}

impl Work<'_> {
    /// The answers to a group of polls if nothing at all has to be written for them.
    pub(crate) fn look(&mut self, group: &[Request]) -> rusqlite::Result<Option<Vec<Answer>>> {
        let mut answers = Vec::with_capacity(group.len());
        for request in group {
            let Request::Claim(claim) = request else { return Ok(None) };
            let Some(position) = self.position_of(claim)?.filter(|position| position.fresh) else {
                return Ok(None);
            };
            answers.push(Answer::Claim(position.verdict));
        }
        Ok(Some(answers))
    }

    /// The model's claim where it does no more than keep a place in line; `None` where it may do
    /// more, so that the whole step is needed.
    pub(crate) fn keep_position(&mut self, claim: &Claim) -> rusqlite::Result<Option<Verdict>> {
        let Some(position) = self.position_of(claim)? else { return Ok(None) };
        if !position.fresh {
            self.transaction().prepare_cached(KEEP)?.execute(params![
                self.now.lease.0.cast_signed(),
                claim.stamp.cast_signed(),
                claim.name.as_str(),
                position.turn
            ])?;
        }
        Ok(Some(position.verdict))
    }

    /// Finds the place; `None` where the model might do more than keep it. What ends behind it may
    /// end later: the model lets things end whenever somebody looks.
    fn position_of(&mut self, claim: &Claim) -> rusqlite::Result<Option<Position>> {
        let now = self.now.lease;
        if self.loaded.contains_key(&claim.name) || claim.not_after < now || self.has_tombstone(claim)? {
            return Ok(None);
        }
        let (seq, keeper) = (claim.contender.seq.cast_signed(), claim.contender.keeper.to_string());
        let mut queue = self.transaction().prepare_cached(QUEUE)?;
        let mut rows = queue.query(params![claim.name.as_str(), seq, keeper])?;
        let mut taken = Vec::new();
        let mut first_end: Option<StoreTime> = None;
        let mut ahead = 0;
        let mut holders = Vec::new();
        let (turn, fresh) = loop {
            let Some(row) = rows.next()? else { return Ok(None) };
            let (waits, own): (bool, bool) = (row.get(0)?, row.get(2)?);
            let (units, time) = (units_from(row.get(4)?)?, StoreTime(unsigned(row, 5)?));
            if capacity_from(row.get(3)?)? != claim.capacity {
                return Ok(None);
            }
            if !waits {
                let keeper =
                    keeper_from(row.get_ref(6)?.as_str()?).filter(|keeper| !self.is_crashed(*keeper));
                let Some(keeper) = keeper.filter(|_| !own && time > now) else { return Ok(None) };
                holders.push(keeper);
                taken.push(units);
                first_end = Some(first_end.map_or(time, |first| first.min(time)));
                continue;
            }
            let moves_up = ahead == 0 && claim.capacity.fits(taken.iter().copied(), units);
            if moves_up || time.after(WAIT_LEASE) <= now {
                return Ok(None);
            }
            if own {
                break (row.get(1)?, time.after(PLACE_KEPT) > now);
            }
            ahead += 1;
        };
        if !claim.capacity.allows(claim.units) {
            return Ok(None);
        }
        holders.truncate(HOLDERS_WATCHED);
        self.done.ahead.extend(holders);
        self.note_right_ahead(claim, turn)?;
        let retry_in = first_end.map_or(FIRST_LEASE, |end| end.since(now));
        Ok(Some(Position { turn, fresh, verdict: Verdict::busy(ahead, retry_in) }))
    }

    /// Remembers who will hold just before whoever stands at `turn`.
    fn note_right_ahead(&mut self, claim: &Claim, turn: i64) -> rusqlite::Result<()> {
        let mut find = self.transaction().prepare_cached(RIGHT_AHEAD)?;
        let mut rows = find.query(params![claim.name.as_str(), turn, claim.contender.keeper.to_string()])?;
        for _ in 0..WAITERS_WATCHED {
            let Some(row) = rows.next()? else { break };
            self.done.ahead.extend(keeper_from(row.get_ref(0)?.as_str()?));
        }
        Ok(())
    }
}
