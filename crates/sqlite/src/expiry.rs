//! Work on crashed keepers: their holds and positions are freed in the transaction that finds them.

use std::collections::BTreeSet;

use lockkeeper_core::{KeeperId, Name, store::Claim};
use lockkeeper_rows::Transition;
use rusqlite::{OptionalExtension, Result, Transaction};

use crate::{codec, work::Work};

impl Work<'_> {
    /// Does a step of the model on a resource. Crashed keepers that it granted to are expired, so that the grant goes
    /// to the next waiter.
    pub(crate) fn step<T>(&mut self, name: &Name, act: impl FnOnce(&mut Transition) -> T) -> Result<T> {
        let answer = self.step_only(name, act)?;
        self.expire_found()?;
        Ok(answer)
    }

    /// Frees the holds and positions of a crashed keeper, except the detached ones.
    pub(crate) fn expire(&mut self, keeper: KeeperId) -> Result<()> {
        self.found_crashed.insert(keeper);
        self.expire_found()
    }

    /// Expires the crashed keepers in the way of a claim: holders, and those at the head of the queue.
    ///
    /// Only a claim that does not wait looks at the queue. Waiters are monitored by the waiters behind them.
    pub(crate) fn expire_ahead_of(&mut self, claim: &Claim) -> Result<()> {
        let resource = self.load(&claim.name)?;
        let free = resource.queue.is_empty()
            && resource.capacity == claim.capacity
            && resource.capacity.fits(resource.holders.iter().map(|holder| holder.units), claim.units);
        if free || resource.is_free() {
            return Ok(());
        }
        // Ended leases go first: that may grant to crashed keepers, which the claim must not find.
        self.step(&claim.name, |transition| transition.settle(&claim.name))?;
        let resource = self.load(&claim.name)?;
        let mut crashed: BTreeSet<KeeperId> =
            resource.holders.iter().map(|holder| holder.contender.keeper).collect();
        crashed.retain(|keeper| self.is_crashed(*keeper));
        if !claim.queue {
            crashed.append(&mut self.crashed_at_head(&claim.name, &BTreeSet::new())?);
        }
        self.found_crashed.append(&mut crashed);
        self.expire_found()
    }

    /// Expires all keepers that were found crashed, and the crashed keepers that this would have granted to. It goes in
    /// rounds, because thousands may have crashed in one queue.
    fn expire_found(&mut self) -> Result<()> {
        loop {
            let mut crashed = std::mem::take(&mut self.found_crashed);
            crashed.retain(|keeper| !self.after_commit.crashed.contains(keeper));
            if crashed.is_empty() {
                return Ok(());
            }
            for name in self.names_of(&crashed)? {
                // Else each would be granted the resource, one in each round.
                let next = self.crashed_at_head(&name, &crashed)?;
                let gone = crashed.union(&next).copied().collect();
                self.step_only(&name, |transition| transition.expire_keepers(&name, &gone))?;
                self.found_crashed.extend(next);
            }
            for keeper in &crashed {
                for table in ["watcher", "grave"] {
                    self.transaction
                        .prepare_cached(&format!("DELETE FROM {table} WHERE keeper = ?"))?
                        .execute([keeper.to_string()])?;
                }
            }
            self.after_commit.crashed.append(&mut crashed);
        }
    }

    /// The resources that these keepers hold or wait for. Crashes are rare, so it scans the table instead of keeping an
    /// index.
    fn names_of(&self, keepers: &BTreeSet<KeeperId>) -> Result<Vec<Name>> {
        let mut find = self.transaction.prepare_cached("SELECT name, keeper FROM entry ORDER BY name")?;
        let mut rows = find.query([])?;
        let mut names: Vec<String> = Vec::new();
        while let Some(row) = rows.next()? {
            let (name, keeper) = (row.get_ref(0)?.as_str()?, row.get_ref(1)?.as_str()?.parse());
            let theirs = keeper.is_ok_and(|keeper| keepers.contains(&keeper));
            if theirs && names.last().is_none_or(|last| last != name) {
                names.push(name.to_owned());
            }
        }
        names.into_iter().map(codec::name_from).collect()
    }

    /// The crashed keepers at the head of a queue, up to the first that is alive. Some are `known` to have crashed.
    fn crashed_at_head(&mut self, name: &Name, known: &BTreeSet<KeeperId>) -> Result<BTreeSet<KeeperId>> {
        let queue: Vec<KeeperId> =
            self.load(name)?.queue.iter().map(|waiter| waiter.contender.keeper).collect();
        Ok(queue
            .into_iter()
            .take_while(|keeper| known.contains(keeper) || self.is_crashed(*keeper))
            .collect())
    }
}

/// Whether anything in the database belongs to `keeper`.
pub(crate) fn has_rows(transaction: &Transaction<'_>, keeper: KeeperId) -> Result<bool> {
    let mut find = transaction.prepare_cached(
        "SELECT 1 FROM entry WHERE keeper = ?1 AND NOT ifnull(detached, 0)
         UNION ALL SELECT 1 FROM watcher WHERE keeper = ?1 LIMIT 1",
    )?;
    Ok(find.query_row([keeper.to_string()], |_| Ok(())).optional()?.is_some())
}
