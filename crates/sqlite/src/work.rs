//! What one transaction does: it loads resources, does the model's steps on them, and stores the difference.
//!
//! Here is what all requests share. The requests themselves stand in `requests.rs`, `poll.rs`, `counts.rs` and
//! `fences.rs`, the expiry of crashed keepers in `expiry.rs`. Nothing here begins or commits a transaction.

use std::{
    collections::{BTreeSet, HashMap},
    path::Path,
};

use lockkeeper_core::{
    KeeperId, Name,
    model::{Effects, HighWater, Now, Resource},
    store::{GrantNotice, Topic, Wake},
};
use rusqlite::{Result, Transaction};

use crate::{
    codec, layout,
    liveness::{self, Liveness},
    subscribers,
    tombstones::Tombstones,
    transition::Transition,
};

/// One transaction's work.
pub(crate) struct Work<'a> {
    pub(crate) transaction: &'a Transaction<'a>,
    pub(crate) transition: Transition,
    pub(crate) tombstones: Tombstones,
    /// Crashed keepers that were found and still have holds or positions.
    pub(crate) found_crashed: BTreeSet<KeeperId>,
    pub(crate) after_commit: AfterCommit,
    keepers: &'a Path,
    own: KeeperId,
    liveness: HashMap<KeeperId, Liveness>,
}

/// What is to be done once the transaction is on disk.
#[derive(Debug, Default)]
pub(crate) struct AfterCommit {
    /// The wakes to send, and the keepers to send them to.
    pub(crate) wakes: Vec<(KeeperId, Wake)>,
    /// The keepers that were freed of everything, whose files can be removed.
    pub(crate) crashed: BTreeSet<KeeperId>,
    /// The keepers whose crash would let a waiter of this keeper pass.
    pub(crate) blockers: BTreeSet<KeeperId>,
}

impl<'a> Work<'a> {
    pub(crate) fn new(
        transaction: &'a Transaction<'a>,
        keepers: &'a Path,
        own: KeeperId,
        now: Now,
        high_water: HighWater,
    ) -> Self {
        Self {
            transaction,
            transition: Transition::new(now, high_water),
            tombstones: Tombstones::default(),
            found_crashed: BTreeSet::new(),
            after_commit: AfterCommit::default(),
            keepers,
            own,
            liveness: HashMap::new(),
        }
    }

    /// A resource as it is now; `None` if nobody holds it or waits for it.
    pub(crate) fn load(&mut self, name: &Name) -> Result<Option<&Resource>> {
        if !self.transition.is_loaded(name) {
            self.transition.add(name, codec::load(self.transaction, name)?);
        }
        Ok(self.transition.resource(name))
    }

    /// Does a step of the model. Crashed keepers that it granted to are found, and still to be expired.
    pub(crate) fn step_only<T>(
        &mut self,
        name: &Name,
        act: impl FnOnce(&mut Resource, Now, &mut HighWater, &mut Effects) -> T,
    ) -> Result<Option<T>> {
        self.load(name)?;
        let Some((answer, grants)) = self.transition.step(name, act) else { return Ok(None) };
        self.grants_made(name, grants);
        Ok(Some(answer))
    }

    fn grants_made(&mut self, name: &Name, grants: Vec<GrantNotice>) {
        for grant in grants {
            let keeper = grant.contender.keeper;
            if self.is_crashed(keeper) {
                self.found_crashed.insert(keeper);
            } else {
                self.after_commit.wakes.push((keeper, Wake::Granted(name.clone(), grant)));
            }
        }
    }

    /// Whether the process of `keeper` has ended. Each keeper is looked at once in a transaction.
    pub(crate) fn is_crashed(&mut self, keeper: KeeperId) -> bool {
        if keeper == self.own {
            return false;
        }
        let look = || liveness::of(self.keepers, keeper);
        *self.liveness.entry(keeper).or_insert_with(look) == Liveness::Crashed
    }

    /// Whether a power cut may undo this transaction: nobody is given anything by it, now or later. Positions in queues
    /// and releases are like that.
    pub(crate) fn may_be_lost(&self) -> bool {
        let after = &self.after_commit;
        let quiet = after.wakes.is_empty() && after.crashed.is_empty() && !self.tombstones.made();
        quiet && self.transition.gives_nothing()
    }

    /// Stores all that became different, and returns what is left to do.
    pub(crate) fn finish(mut self) -> Result<AfterCommit> {
        let changed = self.transition.loaded().any(|(_, loaded)| loaded.changed);
        let subscribed = changed && subscribers::any(self.transaction)?;
        for (name, loaded) in self.transition.loaded() {
            codec::store(self.transaction, name, loaded)?;
            if loaded.changed && subscribed {
                let topic = Topic::Changes(name.clone());
                subscribers::wake(self.transaction, &topic, &mut self.after_commit.wakes)?;
            }
        }
        if let Some(high_water) = self.transition.new_high_water() {
            layout::write_high_water(self.transaction, high_water.0)?;
        }
        Ok(self.after_commit)
    }
}
