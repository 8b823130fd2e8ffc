//! The work of one transaction: it loads resources, does the model's steps on them, and stores the difference. The
//! steps themselves are those of `lockkeeper_rows`, which all SQL stores share.
//!
//! This file has the parts that all requests share. The requests themselves stand in `requests.rs`, `poll.rs`,
//! `counts.rs` and `fences.rs`, the expiry of crashed keepers in `expiry.rs`. Nothing here begins or commits a
//! transaction.

use std::{
    collections::{BTreeSet, HashMap},
    path::Path,
};

use lockkeeper_core::{
    KeeperId, Name,
    model::{HighWater, Now, Resource},
    store::Wake,
};
use lockkeeper_rows::Transition;
use rusqlite::{Result, Transaction};

use crate::{
    codec, layout,
    liveness::{self, Liveness},
    subscribers,
    tombstones::{self, Tombstones},
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
    /// How many of the transition's grants were looked at.
    grants_seen: usize,
}

/// The work that is left once the transaction is on disk.
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
            grants_seen: 0,
        }
    }

    /// A resource as it is now.
    pub(crate) fn load(&mut self, name: &Name) -> Result<&Resource> {
        if !self.transition.is_loaded(name) {
            let stored = codec::load(self.transaction, name)?;
            self.transition.add(name, stored).map_err(codec::not_ours)?;
        }
        Ok(self.transition.resource(name).expect("it was added"))
    }

    /// Does a step of the model on a resource. Crashed keepers that it granted to are found, and still to be expired.
    pub(crate) fn step_only<T>(&mut self, name: &Name, act: impl FnOnce(&mut Transition) -> T) -> Result<T> {
        self.load(name)?;
        let answer = act(&mut self.transition);
        let grants = self.transition.grants_since(self.grants_seen);
        self.grants_seen += grants.len();
        for keeper in grants.iter().map(|(_, grant)| grant.contender.keeper).collect::<BTreeSet<_>>() {
            if self.is_crashed(keeper) {
                self.found_crashed.insert(keeper);
            }
        }
        Ok(answer)
    }

    /// Whether the process of `keeper` has ended. Each keeper is looked at once in a transaction.
    pub(crate) fn is_crashed(&mut self, keeper: KeeperId) -> bool {
        if keeper == self.own {
            return false;
        }
        let look = || liveness::of(self.keepers, keeper);
        *self.liveness.entry(keeper).or_insert_with(look) == Liveness::Crashed
    }

    /// Whether a power cut may undo this transaction: it gives nobody anything, now or later. Positions in queues and
    /// releases are like that.
    pub(crate) fn may_be_lost(&self) -> bool {
        let after = &self.after_commit;
        after.wakes.is_empty() && after.crashed.is_empty() && !self.transition.gives()
    }

    /// Stores all changes, and returns the work that is left.
    pub(crate) fn finish(self) -> Result<AfterCommit> {
        let (transaction, mut after_commit) = (self.transaction, self.after_commit);
        let (writes, wakes) = self.transition.finish();
        for resource in &writes.resources {
            codec::store(transaction, resource)?;
        }
        for tombstone in &writes.tombstones {
            tombstones::put(transaction, tombstone)?;
        }
        if let Some(high_water) = writes.high_water {
            layout::write_high_water(transaction, high_water.0)?;
        }
        let granted = wakes.granted().filter(|(keeper, _)| !after_commit.crashed.contains(keeper));
        let granted: Vec<_> = granted.collect();
        after_commit.wakes.extend(granted);
        if !wakes.changed.is_empty() && subscribers::any(transaction)? {
            for topic in wakes.topics() {
                subscribers::wake(transaction, &topic, &mut after_commit.wakes)?;
            }
        }
        Ok(after_commit)
    }
}
