//! Claims, leaves, renewals and evictions as work of a transaction.

use lockkeeper_core::store::{Answer, Claim, Evict, Evicted, Leave, Left, Renew, Renewed, Request, Verdict};
use rusqlite::Result;

use crate::{blockers::blockers, poll, work::Work};

impl Work<'_> {
    /// Applies a group of claims and leaves.
    pub(crate) fn apply(&mut self, group: &[Request]) -> Result<Vec<Answer>> {
        let few = group.len() <= poll::FEW;
        group.iter().map(|request| self.apply_one(request, few)).collect()
    }

    fn apply_one(&mut self, request: &Request, few: bool) -> Result<Answer> {
        Ok(match request {
            Request::Claim(claim) => {
                let kept = if few && poll::is_poll(request) { self.keep_position(claim)? } else { None };
                Answer::Claim(match kept {
                    Some(verdict) => verdict,
                    None => self.claim(claim)?,
                })
            }
            Request::Leave(leave) => Answer::Leave(self.leave(leave)?),
        })
    }

    fn claim(&mut self, claim: &Claim) -> Result<Verdict> {
        if self.is_stale(claim)? {
            return Ok(Verdict::Stale);
        }
        self.expire_ahead_of(claim)?;
        let verdict = self.step(&claim.name, |transition| transition.claim(claim))?;
        if claim.queue && matches!(verdict, Verdict::Busy { .. }) {
            let blockers = blockers(self.load(&claim.name)?, claim.contender).collect::<Vec<_>>();
            self.after_commit.blockers.extend(blockers);
        }
        Ok(verdict)
    }

    /// Whether this copy of a claim comes too late to do anything.
    pub(crate) fn is_stale(&mut self, claim: &Claim) -> Result<bool> {
        if let Some(tombstone) = self.tombstones.find(self.transaction, claim.contender)? {
            self.transition.add_tombstone(tombstone);
        }
        Ok(self.transition.is_stale(claim))
    }

    fn leave(&mut self, leave: &Leave) -> Result<Left> {
        self.step(&leave.name, |transition| transition.leave(leave))
    }

    /// Renews a lease.
    pub(crate) fn renew(&mut self, renew: &Renew) -> Result<Renewed> {
        self.step(&renew.name, |transition| transition.renew(renew))
    }

    /// Takes a hold back by an operator's order.
    pub(crate) fn evict(&mut self, order: &Evict) -> Result<Evicted> {
        let evicted = self.step(&order.name, |transition| transition.evict(order))?;
        Ok(evicted.unwrap_or(Evicted::NotHeld))
    }
}
