//! Polls: claims of waiters that ask again.
//!
//! Most requests of waiting processes are polls, and most polls only keep a position. Such a poll loads the front of
//! the queue, and writes one row every few seconds or nothing at all. It is the model's own claim all the same. All
//! others load the whole resource.
//!
//! Loading the whole resource for every poll would take two to three times as long. 64 waiting processes would then
//! need more than the 1 % of a core that they may take together.

use lockkeeper_core::store::{Answer, Claim, Request, Verdict};
use lockkeeper_rows::{Kept, keep_position};
use rusqlite::{Result, params};

use crate::{blockers::blockers, codec, work::Work};

/// The largest group whose polls are done one by one. For more it costs less to load each resource whole, once for all.
pub(crate) const FEW: usize = 4;

const KEEP: &str = "UPDATE entry SET began = ?, stamp = ? WHERE name = ? AND queued = 1 AND turn = ?";

/// Whether this is a waiter that asks again.
pub(crate) fn is_poll(request: &Request) -> bool {
    matches!(request, Request::Claim(claim) if claim.again && claim.queue)
}

impl Work<'_> {
    /// Returns the answers to a group of polls, if nothing has to be written for them.
    pub(crate) fn answer_polls(&mut self, group: &[Request]) -> Result<Option<Vec<Answer>>> {
        let mut answers = Vec::with_capacity(group.len());
        for request in group {
            let Request::Claim(claim) = request else { return Ok(None) };
            match self.poll(claim)? {
                Some(Kept { verdict, row: None, .. }) => answers.push(Answer::Claim(verdict)),
                _ => return Ok(None),
            }
        }
        Ok(Some(answers))
    }

    /// Does a poll that only keeps a position; `None` if it may do more, so that the whole resource is needed.
    pub(crate) fn keep_position(&mut self, claim: &Claim) -> Result<Option<Verdict>> {
        let Some(kept) = self.poll(claim)? else { return Ok(None) };
        if let Some(row) = kept.row {
            let (name, turn) = (claim.name.as_str(), row.turn);
            self.transaction.prepare_cached(KEEP)?.execute(params![row.began, row.stamp, name, turn])?;
        }
        Ok(Some(kept.verdict))
    }

    fn poll(&mut self, claim: &Claim) -> Result<Option<Kept>> {
        if self.transition.is_loaded(&claim.name) || self.is_stale(claim)? {
            return Ok(None);
        }
        let Some(front) = codec::load_front(self.transaction, &claim.name, claim.contender)? else {
            return Ok(None);
        };
        // A crash does not end detached holds.
        let mut holders = front.entries.iter().filter(|row| !row.queued && !row.detached);
        if holders.any(|row| self.is_crashed(row.contender.keeper)) {
            return Ok(None);
        }
        let kept = keep_position(self.transition.now(), claim, front).map_err(codec::not_ours)?;
        if let Some(kept) = &kept {
            self.after_commit.blockers.extend(blockers(&kept.front, claim.contender));
        }
        Ok(kept)
    }
}
