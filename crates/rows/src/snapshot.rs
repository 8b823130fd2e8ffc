//! A group as one step: all rows that it needs come in, and all that changed go out.

use lockkeeper_core::{
    Name,
    model::{HighWater, Now},
    store::{Answer, Evict, Evicted, Renew, Renewed, Request},
};

use crate::{BadRow, Outcome, Stored, Tombstone, Transition};

/// The state that a store has locked and read for a group.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// The clock, read after the locks were taken. Lease ends and numbers come from it.
    pub now: Now,
    /// Numbers are given above this, for all names. A store that also keeps marks per name reads it after it has locked
    /// the names: a row that is removed until then takes its mark to the floor.
    pub floor: HighWater,
    /// The rows of the names that were locked. Requests about a name that is not here are answered with *not now, nothing
    /// was done*. A name without any row is here as [`Stored::default`], once the store knows that it has none.
    pub resources: Vec<(Name, Stored)>,
    /// The tombstones of the contenders that claim.
    pub tombstones: Vec<Tombstone>,
}

impl Snapshot {
    /// Does a group of claims and leaves.
    ///
    /// A store may also do this for claims with rows that it has read without a lock, as long as it read them at one moment:
    /// if then [nothing has to be written](crate::Writes::is_empty), the answers are good. Most polls of waiters are like
    /// that. A leave always needs the lock: the transaction of its claim may not be committed yet, and a tombstone whose
    /// time has passed does not keep that claim away.
    ///
    /// # Errors
    /// If a row cannot be this program's.
    pub fn apply(self, group: &[Request]) -> Result<Outcome<Answer>, BadRow> {
        self.step(group, Transition::apply)
    }

    /// Renews leases.
    ///
    /// # Errors
    /// If a row cannot be this program's.
    pub fn renew(self, leases: &[Renew]) -> Result<Outcome<Renewed>, BadRow> {
        self.step(leases, Transition::renew)
    }

    /// Takes a hold back by an operator's order. The answer is `None` if the name was not locked.
    ///
    /// # Errors
    /// If a row cannot be this program's.
    pub fn evict(self, order: &Evict) -> Result<Outcome<Option<Evicted>>, BadRow> {
        self.step(std::slice::from_ref(order), Transition::evict)
    }

    fn step<R, A>(
        self,
        requests: &[R],
        mut act: impl FnMut(&mut Transition, &R) -> A,
    ) -> Result<Outcome<A>, BadRow> {
        let mut transition = Transition::new(self.now, self.floor);
        for (name, stored) in self.resources {
            transition.add(&name, stored)?;
        }
        for tombstone in self.tombstones {
            transition.add_tombstone(tombstone);
        }
        let answers = requests.iter().map(|request| act(&mut transition, request)).collect();
        let (writes, wakes) = transition.finish();
        Ok(Outcome { now: self.now.lease, answers, writes, wakes })
    }
}

#[cfg(test)]
mod tests;
