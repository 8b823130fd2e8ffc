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
        self.load(&claim.name)?;
        self.transition.add_if_free(&claim.name, claim.capacity);
        let verdict = self
            .step(&claim.name, |resource, now, high_water, effects| {
                resource.claim(now, high_water, claim, effects)
            })?
            .unwrap_or(Verdict::Stale);
        if claim.queue
            && matches!(verdict, Verdict::Busy { .. })
            && let Some(resource) = self.transition.resource(&claim.name)
        {
            self.after_commit.blockers.extend(blockers(resource, claim.contender));
        }
        Ok(verdict)
    }

    /// Whether this copy of a claim comes too late to do anything.
    pub(crate) fn is_stale(&mut self, claim: &Claim) -> Result<bool> {
        let now = self.transition.now.lease;
        Ok(claim.not_after < now || self.tombstones.has(self.transaction, claim, now)?)
    }

    fn leave(&mut self, leave: &Leave) -> Result<Left> {
        self.tombstones.make(self.transaction, leave, self.transition.now.lease)?;
        let left = self.step(&leave.name, |resource, now, high_water, effects| {
            resource.leave(now, high_water, leave, effects)
        })?;
        Ok(left.unwrap_or(Left::NotThere))
    }

    /// Renews a lease.
    pub(crate) fn renew(&mut self, renew: &Renew) -> Result<Renewed> {
        let renewed = self.step(&renew.name, |resource, now, high_water, effects| {
            resource.renew(now, high_water, renew, effects)
        })?;
        Ok(renewed.unwrap_or(Renewed::Gone))
    }

    /// Takes a hold back by an operator's order.
    pub(crate) fn evict(&mut self, order: &Evict) -> Result<Evicted> {
        let evicted = self.step(&order.name, |resource, now, high_water, effects| {
            resource.evict(now, high_water, order, effects)
        })?;
        Ok(evicted.unwrap_or(Evicted::NotHeld))
    }
}
