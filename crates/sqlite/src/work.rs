//! The work inside one transaction: resources are loaded, stepped by the model, and stored.
//!
//! Here too the dead are passed: whoever is in the way, or about to be granted something, is
//! looked at, and if its process has ended, everything it had is freed in the same transaction.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    path::Path,
};

use lockkeeper_core::{
    KeeperId, Name,
    model::{Effects, HighWater, Now, Resource, WAIT_LEASE},
    store::{
        Answer, Claim, Evict, Evicted, GrantNotice, Leave, Left, Renew, Renewed, Request, StoreTime, Topic,
        Verdict, Wake,
    },
};
use rusqlite::{OptionalExtension, Transaction, params};

use crate::{
    codec::Loaded,
    layout,
    liveness::{self, Liveness, keeper_from},
    poll,
};

type Result<T> = rusqlite::Result<T>;

/// Of how many holders the deaths are watched; the next poll finds those of others.
pub(crate) const HOLDERS_WATCHED: usize = 8;

/// Of how many who stand right ahead, and so hold right before, the deaths are watched. Those farther
/// ahead have others right behind them, and to watch a process takes a descriptor.
pub(crate) const WAITERS_WATCHED: usize = 3;

/// One transaction's work.
pub(crate) struct Work<'a> {
    transaction: &'a Transaction<'a>,
    keepers: &'a Path,
    own: KeeperId,
    pub(crate) now: Now,
    pub(crate) high_water: HighWater,
    stored_high_water: HighWater,
    pub(crate) loaded: BTreeMap<Name, Option<Loaded>>,
    liveness: HashMap<KeeperId, Liveness>,
    /// Dead keepers that were found and are not yet freed of what they had.
    found_crashed: BTreeSet<KeeperId>,
    /// Whether there are marks of those who left: mostly there are none, and nobody is looked up.
    any_tombstones: Option<bool>,
    /// Whether a mark was made here.
    tombstone_made: bool,
    pub(crate) done: AfterCommit,
}

/// What is to be done once the transaction is on disk.
#[derive(Debug, Default)]
pub(crate) struct AfterCommit {
    /// Whom to tell what.
    pub(crate) wakes: Vec<(KeeperId, Wake)>,
    /// Whose files can be cleared away.
    pub(crate) crashed: BTreeSet<KeeperId>,
    /// Whose death would let somebody of this keeper pass.
    pub(crate) ahead: BTreeSet<KeeperId>,
}

impl<'a> Work<'a> {
    pub(crate) fn new(
        transaction: &'a Transaction<'a>,
        keepers: &'a Path,
        own: KeeperId,
        now: Now,
        mark: HighWater,
    ) -> Self {
        Self {
            transaction,
            keepers,
            own,
            now,
            high_water: mark,
            stored_high_water: mark,
            loaded: BTreeMap::new(),
            liveness: HashMap::new(),
            found_crashed: BTreeSet::new(),
            any_tombstones: None,
            tombstone_made: false,
            done: AfterCommit::default(),
        }
    }

    pub(crate) fn transaction(&self) -> &'a Transaction<'a> {
        self.transaction
    }

    /// Whether it would be safe if this were lost: nobody was given anything, now or later. What
    /// is left are places in line, and releases.
    pub(crate) fn may_be_lost(&self) -> bool {
        let quiet = self.done.wakes.is_empty() && self.done.crashed.is_empty() && !self.tombstone_made;
        quiet
            && self.high_water == self.stored_high_water
            && self.loaded.values().flatten().all(Loaded::gives_nothing)
    }

    /// Stores all that became different, and gives what is left to do.
    pub(crate) fn finish(mut self) -> Result<AfterCommit> {
        let changed = self.loaded.values().flatten().any(|loaded| loaded.changed);
        let watched = changed && has_any(self.transaction, "SELECT 1 FROM watcher")?;
        for (name, loaded) in &self.loaded {
            let Some(loaded) = loaded else { continue };
            loaded.store(self.transaction, name)?;
            if loaded.changed && watched {
                tell_watchers(self.transaction, &Topic::Changes(name.clone()), &mut self.done.wakes)?;
            }
        }
        if self.high_water != self.stored_high_water {
            layout::write_high_water(self.transaction, self.high_water.0)?;
        }
        Ok(self.done)
    }

    fn load(&mut self, name: &Name) -> Result<&mut Option<Loaded>> {
        if !self.loaded.contains_key(name) {
            let loaded = Loaded::load(self.transaction, name)?;
            self.loaded.insert(name.clone(), loaded);
        }
        Ok(self.loaded.entry(name.clone()).or_default())
    }

    /// Does a step on a resource that somebody holds or waits for, and passes the dead that it
    /// would have granted to.
    fn step<T>(
        &mut self,
        name: &Name,
        act: impl FnOnce(&mut Resource, Now, &mut HighWater, &mut Effects) -> T,
    ) -> Result<Option<T>> {
        let answer = self.step_alone(name, act)?;
        self.expire_found()?;
        Ok(answer)
    }

    /// Does a step; the dead that it granted to are found, and are still to be buried.
    fn step_alone<T>(
        &mut self,
        name: &Name,
        act: impl FnOnce(&mut Resource, Now, &mut HighWater, &mut Effects) -> T,
    ) -> Result<Option<T>> {
        let (now, mut mark) = (self.now, self.high_water);
        let mut effects = Effects::default();
        let Some(loaded) = self.load(name)? else { return Ok(None) };
        let answer = act(&mut loaded.resource, now, &mut mark, &mut effects);
        loaded.changed |= effects.changed;
        self.high_water = mark;
        self.grants_made(name, effects.grants);
        Ok(Some(answer))
    }

    fn grants_made(&mut self, name: &Name, grants: Vec<GrantNotice>) {
        for grant in grants {
            let keeper = grant.contender.keeper;
            if self.is_crashed(keeper) {
                self.found_crashed.insert(keeper);
            } else {
                self.done.wakes.push((keeper, Wake::Granted(name.clone(), grant)));
            }
        }
    }

    pub(crate) fn is_crashed(&mut self, keeper: KeeperId) -> bool {
        if keeper == self.own {
            return false;
        }
        *self.liveness.entry(keeper).or_insert_with(|| liveness::of(self.keepers, keeper))
            == Liveness::Crashed
    }

    /// Frees everything that a dead keeper had, except what it had detached.
    pub(crate) fn expire(&mut self, dead: KeeperId) -> Result<()> {
        self.found_crashed.insert(dead);
        self.expire_found()
    }

    /// Buries all that were found dead, and those whom that would have granted something and who are dead too. In
    /// rounds, because thousands may have died in one line.
    fn expire_found(&mut self) -> Result<()> {
        loop {
            let mut dead = std::mem::take(&mut self.found_crashed);
            dead.retain(|keeper| !self.done.crashed.contains(keeper));
            if dead.is_empty() {
                return Ok(());
            }
            for name in self.names_of(&dead)? {
                // Else each would be granted it, one a round.
                let next = self.crashed_at_head(&name, &dead)?;
                let gone = dead.union(&next).copied().collect();
                self.step_alone(&name, |resource, now, mark, effects| {
                    resource.expire_keepers(now, mark, &gone, effects);
                })?;
                self.found_crashed.extend(next);
            }
            for keeper in &dead {
                for table in ["watcher", "grave"] {
                    self.transaction
                        .prepare_cached(&format!("DELETE FROM {table} WHERE keeper = ?"))?
                        .execute([keeper.to_string()])?;
                }
            }
            self.done.crashed.append(&mut dead);
        }
    }

    /// What these keepers hold or wait for. Crashes are rare, so this is a scan and no index to keep.
    fn names_of(&self, keepers: &BTreeSet<KeeperId>) -> Result<Vec<Name>> {
        let mut find = self.transaction.prepare_cached("SELECT name, keeper FROM entry ORDER BY name")?;
        let mut rows = find.query([])?;
        let mut names: Vec<String> = Vec::new();
        while let Some(row) = rows.next()? {
            let (name, keeper) = (row.get_ref(0)?.as_str()?, keeper_from(row.get_ref(1)?.as_str()?));
            let theirs = keeper.is_some_and(|keeper| keepers.contains(&keeper));
            if theirs && names.last().is_none_or(|last| last != name) {
                names.push(name.to_owned());
            }
        }
        valid_names(names.into_iter().map(Ok))
    }

    /// Those at the head of a line who are dead, up to the first who lives. Some are `known` to be dead.
    fn crashed_at_head(&mut self, name: &Name, known: &BTreeSet<KeeperId>) -> Result<BTreeSet<KeeperId>> {
        let Some(loaded) = self.load(name)? else { return Ok(BTreeSet::new()) };
        let line: Vec<KeeperId> =
            loaded.resource.queue.iter().map(|waiter| waiter.contender.keeper).collect();
        Ok(line.into_iter().take_while(|keeper| known.contains(keeper) || self.is_crashed(*keeper)).collect())
    }

    /// Buries those in the way of a claim who are dead: holders, and those at the head of the line. Who waits there is
    /// watched by those who wait behind it, so only who does not wait looks at it.
    fn expire_blockers(&mut self, claim: &Claim) -> Result<()> {
        let Some(loaded) = self.load(&claim.name)? else { return Ok(()) };
        let resource = &loaded.resource;
        let free = resource.queue.is_empty()
            && resource.capacity == claim.capacity
            && resource.capacity.fits(resource.holders.iter().map(|holder| holder.units), claim.units);
        if free {
            return Ok(());
        }
        // What has ended goes now. It may be granted to the dead, and the claim is to find it without them.
        self.step(&claim.name, Resource::settle)?;
        let Some(loaded) = self.load(&claim.name)? else { return Ok(()) };
        let mut dead: BTreeSet<KeeperId> =
            loaded.resource.holders.iter().map(|holder| holder.contender.keeper).collect();
        dead.retain(|keeper| self.is_crashed(*keeper));
        if !claim.queue {
            dead.append(&mut self.crashed_at_head(&claim.name, &BTreeSet::new())?);
        }
        self.found_crashed.append(&mut dead);
        self.expire_found()
    }

    /// Remembers whose death would let this waiter pass: holders, and who will hold just before it.
    fn note_ahead(&mut self, claim: &Claim) {
        let Some(Some(loaded)) = self.loaded.get(&claim.name) else { return };
        let holders = loaded.resource.holders.iter().filter(|holder| !holder.detached);
        let holders = holders.map(|holder| holder.contender.keeper).take(HOLDERS_WATCHED);
        let from_own = loaded.resource.queue.iter().rev().skip_while(|w| w.contender != claim.contender);
        let ahead = from_own.map(|waiter| waiter.contender.keeper).filter(|keeper| *keeper != self.own);
        self.done.ahead.extend(holders.chain(ahead.take(WAITERS_WATCHED)));
    }

    /// The transition of one entry of a group, which may be one of `few`.
    pub(crate) fn apply(&mut self, request: &Request, few: bool) -> Result<Answer> {
        if let Request::Claim(claim) = request
            && few
            && poll::is_poll(request)
            && let Some(verdict) = self.keep_position(claim)?
        {
            return Ok(Answer::Claim(verdict));
        }
        Ok(match request {
            Request::Claim(claim) => Answer::Claim(self.claim(claim)?),
            Request::Leave(leave) => Answer::Leave(self.leave(leave)?),
        })
    }

    fn claim(&mut self, claim: &Claim) -> Result<Verdict> {
        if claim.not_after < self.now.lease || self.has_tombstone(claim)? {
            return Ok(Verdict::Stale);
        }
        self.expire_blockers(claim)?;
        self.load(&claim.name)?.get_or_insert_with(|| Loaded::free(claim.capacity));
        let verdict = self
            .step(&claim.name, |resource, now, mark, effects| resource.claim(now, mark, claim, effects))?
            .unwrap_or(Verdict::Stale);
        if claim.queue && matches!(verdict, Verdict::Busy { .. }) {
            self.note_ahead(claim);
        }
        Ok(verdict)
    }

    pub(crate) fn has_tombstone(&mut self, claim: &Claim) -> Result<bool> {
        let any = match self.any_tombstones {
            Some(any) => any,
            None => *self.any_tombstones.insert(has_any(self.transaction, "SELECT 1 FROM grave")?),
        };
        if !any {
            return Ok(false);
        }
        let mut find = self
            .transaction
            .prepare_cached("SELECT 1 FROM grave WHERE keeper = ? AND seq = ? AND until >= ?")?;
        find.exists(params![
            claim.contender.keeper.to_string(),
            claim.contender.seq.cast_signed(),
            self.now.lease.0.cast_signed()
        ])
    }

    fn leave(&mut self, leave: &Leave) -> Result<Left> {
        if let Some(until) = leave.tombstone_until.filter(|until| *until >= self.now.lease) {
            self.any_tombstones = Some(true);
            self.tombstone_made = true;
            // A doubled leave with an earlier time must not lift the mark.
            let mut mark = self.transaction.prepare_cached(
                "INSERT INTO grave VALUES (?, ?, ?)
                 ON CONFLICT (keeper, seq) DO UPDATE SET until = max(until, excluded.until)",
            )?;
            mark.execute(params![
                leave.contender.keeper.to_string(),
                leave.contender.seq.cast_signed(),
                until.0.cast_signed()
            ])?;
        }
        let left =
            self.step(&leave.name, |resource, now, mark, effects| resource.leave(now, mark, leave, effects))?;
        Ok(left.unwrap_or(Left::NotThere))
    }

    /// The transition of one renewal.
    pub(crate) fn renew(&mut self, renew: &Renew) -> Result<Renewed> {
        let renewed =
            self.step(&renew.name, |resource, now, mark, effects| resource.renew(now, mark, renew, effects))?;
        Ok(renewed.unwrap_or(Renewed::Gone))
    }

    /// The transition of an eviction.
    pub(crate) fn evict(&mut self, order: &Evict) -> Result<Evicted> {
        let evicted =
            self.step(&order.name, |resource, now, mark, effects| resource.evict(now, mark, order, effects))?;
        Ok(evicted.unwrap_or(Evicted::NotHeld))
    }

    /// Clears away what ended and that nobody asks for any more, as the model does: names no longer
    /// used leave nothing behind. What somebody still waits for is settled when that one asks.
    pub(crate) fn sweep(&mut self) -> Result<()> {
        let StoreTime(now) = self.now.lease;
        let asked_before = now.saturating_sub(u64::try_from(WAIT_LEASE.as_micros()).unwrap_or(u64::MAX));
        let mut find = self.transaction.prepare_cached(
            "SELECT name FROM entry GROUP BY name
             HAVING NOT max(CASE WHEN queued THEN began > ?2 ELSE expires > ?1 END) LIMIT 1000",
        )?;
        let names = find.query_map([now.cast_signed(), asked_before.cast_signed()], |row| row.get(0))?;
        for name in valid_names(names)? {
            self.step(&name, Resource::settle)?;
        }
        for table in ["grave", "counted"] {
            self.transaction
                .prepare_cached(&format!("DELETE FROM {table} WHERE until < ?"))?
                .execute([now.cast_signed()])?;
        }
        Ok(())
    }
}

/// Whether `query` finds anything.
fn has_any(transaction: &Transaction<'_>, query: &str) -> Result<bool> {
    transaction.prepare_cached(query)?.exists([])
}

/// The keepers that want to hear of `topic` are told.
pub(crate) fn tell_watchers(
    transaction: &Transaction<'_>,
    topic: &Topic,
    wakes: &mut Vec<(KeeperId, Wake)>,
) -> Result<()> {
    let Some((word, name)) = topic_words(topic) else { return Ok(()) };
    let mut find = transaction.prepare_cached("SELECT keeper FROM watcher WHERE topic = ? AND name = ?")?;
    let mut rows = find.query([word, name.as_str()])?;
    while let Some(row) = rows.next()? {
        if let Some(keeper) = keeper_from(row.get_ref(0)?.as_str()?) {
            wakes.push((keeper, Wake::Changed(topic.clone())));
        }
    }
    Ok(())
}

/// How a topic is written. Grants reach their keepers without being asked for.
pub(crate) fn topic_words(topic: &Topic) -> Option<(&'static str, &Name)> {
    match topic {
        Topic::Changes(name) => Some(("holders", name)),
        Topic::Latch(name) => Some(("latch", name)),
        _ => None,
    }
}

/// Names from the file.
pub(crate) fn valid_names(names: impl Iterator<Item = Result<String>>) -> Result<Vec<Name>> {
    let valid = |name: String| {
        Name::new(name).map_err(|why| {
            rusqlite::Error::FromSqlConversionFailure(0, rusqlite::types::Type::Text, why.into())
        })
    };
    names.map(|name| name.and_then(valid)).collect()
}

/// Whether anything in the file belongs to `keeper`.
pub(crate) fn has_rows(transaction: &Transaction<'_>, keeper: KeeperId) -> Result<bool> {
    let mut find = transaction.prepare_cached(
        "SELECT 1 FROM entry WHERE keeper = ?1 AND NOT ifnull(detached, 0)
         UNION ALL SELECT 1 FROM watcher WHERE keeper = ?1 LIMIT 1",
    )?;
    Ok(find.query_row([keeper.to_string()], |_| Ok(())).optional()?.is_some())
}
