//! The model's steps on resources that are loaded one after the other.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use lockkeeper_core::{
    ContenderId, KeeperId, Name, StoreError, StoreErrorKind,
    model::{Effects, HighWater, Now, Resource},
    store::{
        Answer, Claim, Count, Evict, Evicted, GrantNotice, Leave, Left, Renew, Renewed, Request, StoreTime,
        Verdict,
    },
};

use crate::{
    BadRow, CountOutcome, CountSnapshot, LatchRow, Remembered, Stored, Tombstone, Wakes, Writes,
    loaded::Loaded,
};

/// The state of one transaction, at one moment of the store's time.
///
/// Only resources that were [added](Self::add) are changed. Requests about others are answered with *not now, nothing was
/// done*: the store could not lock them without waiting.
#[derive(Debug)]
pub struct Transition {
    now: Now,
    high_water: HighWater,
    high_water_given: Option<HighWater>,
    resources: BTreeMap<Name, Loaded>,
    tombstones: HashMap<ContenderId, StoreTime>,
    new_tombstones: BTreeMap<ContenderId, StoreTime>,
    grants: Vec<(Name, GrantNotice)>,
    /// Whether an operator's order took effect.
    evicted: bool,
}

impl Transition {
    /// Begins with nothing loaded. Numbers are given above `floor`.
    pub fn new(now: Now, floor: HighWater) -> Self {
        Self {
            now,
            high_water: floor,
            high_water_given: None,
            resources: BTreeMap::new(),
            tombstones: HashMap::new(),
            new_tombstones: BTreeMap::new(),
            grants: Vec::new(),
            evicted: false,
        }
    }

    /// The moment at which all of it happens.
    pub fn now(&self) -> Now {
        self.now
    }

    /// Takes a resource in as it is stored. The caller has locked it.
    ///
    /// # Errors
    /// If a row of it cannot be this program's.
    pub fn add(&mut self, name: &Name, stored: Stored) -> Result<(), BadRow> {
        self.resources.insert(name.clone(), Loaded::new(stored)?);
        Ok(())
    }

    /// Whether the resource was added.
    pub fn is_loaded(&self, name: &Name) -> bool {
        self.resources.contains_key(name)
    }

    /// A resource as it is now, if it was added.
    pub fn resource(&self, name: &Name) -> Option<&Resource> {
        self.resources.get(name).map(|loaded| &loaded.resource)
    }

    /// Takes a tombstone in as it is stored.
    pub fn add_tombstone(&mut self, tombstone: Tombstone) {
        let Tombstone { contender, until } = tombstone;
        let kept = self.tombstones.entry(contender).or_insert(until);
        *kept = until.max(*kept);
    }

    /// Whether this copy of a claim comes too late to do anything, by the tombstones that were added.
    pub fn is_stale(&self, claim: &Claim) -> bool {
        let now = self.now.lease;
        claim.not_after < now || self.tombstones.get(&claim.contender).is_some_and(|until| *until >= now)
    }

    /// Does a claim or a leave.
    pub fn apply(&mut self, request: &Request) -> Answer {
        match request {
            Request::Claim(claim) => Answer::Claim(self.claim(claim)),
            Request::Leave(leave) => Answer::Leave(self.leave(leave)),
        }
    }

    /// Does a claim.
    pub fn claim(&mut self, claim: &Claim) -> Verdict {
        if !self.is_loaded(&claim.name) {
            return Verdict::NotNow(busy());
        }
        if self.is_stale(claim) {
            return Verdict::Stale;
        }
        let verdict = self.step(&claim.name, |resource, now, high_water, effects| {
            resource.claim(now, high_water, claim, effects)
        });
        verdict.unwrap_or(Verdict::Stale)
    }

    /// Does a leave.
    pub fn leave(&mut self, leave: &Leave) -> Left {
        if !self.is_loaded(&leave.name) {
            return Left::NotNow;
        }
        if let Some(until) = leave.tombstone_until.filter(|until| *until >= self.now.lease) {
            self.add_tombstone(Tombstone { contender: leave.contender, until });
            // A copy of the leave with an earlier time does not shorten it.
            let kept = self.new_tombstones.entry(leave.contender).or_insert(until);
            *kept = until.max(*kept);
        }
        let left = self.step(&leave.name, |resource, now, high_water, effects| {
            resource.leave(now, high_water, leave, effects)
        });
        left.unwrap_or(Left::NotNow)
    }

    /// Renews a lease.
    pub fn renew(&mut self, renew: &Renew) -> Renewed {
        let renewed = self.step(&renew.name, |resource, now, high_water, effects| {
            resource.renew(now, high_water, renew, effects)
        });
        if let Some(Renewed::Held(grant)) = &renewed
            && let Some(loaded) = self.resources.get_mut(&renew.name)
        {
            // A raised number may be below that of another name in the group, which is the transition's mark by now.
            loaded.high_water.raise(grant.number);
        }
        renewed.unwrap_or(Renewed::Unknown)
    }

    /// Takes a hold back by an operator's order; `None` if the resource was not added.
    pub fn evict(&mut self, order: &Evict) -> Option<Evicted> {
        let evicted = self.step(&order.name, |resource, now, high_water, effects| {
            resource.evict(now, high_water, order, effects)
        });
        self.evicted |= evicted == Some(Evicted::Done);
        evicted
    }

    /// Ends the holds and positions whose time is over, and grants the room that became free.
    pub fn settle(&mut self, name: &Name) {
        self.step(name, Resource::settle);
    }

    /// Frees the holds and positions of these keepers, which have crashed.
    pub fn expire_keepers(&mut self, name: &Name, crashed: &BTreeSet<KeeperId>) {
        self.step(name, |resource, now, high_water, effects| {
            resource.expire_keepers(now, high_water, crashed, effects);
        });
    }

    /// Does a latch operation, on the latch and the answer to an earlier copy as they are stored.
    pub fn count(&mut self, latch: LatchRow, remembered: Option<Remembered>, count: &Count) -> CountOutcome {
        let snapshot = CountSnapshot { now: self.now, floor: self.high_water, latch, remembered };
        let outcome = snapshot.count(count);
        if let Some(given) = outcome.high_water {
            self.high_water = given;
            self.high_water_given = Some(given);
        }
        outcome
    }

    /// Does a step of the model. As there, numbers grow from each grant to the next, across all names of a transition.
    fn step<T>(
        &mut self,
        name: &Name,
        act: impl FnOnce(&mut Resource, Now, &mut HighWater, &mut Effects) -> T,
    ) -> Option<T> {
        let loaded = self.resources.get_mut(name)?;
        self.high_water.raise(loaded.high_water.0);
        let before = self.high_water;
        let mut effects = Effects::default();
        let answer = act(&mut loaded.resource, self.now, &mut self.high_water, &mut effects);
        if self.high_water != before {
            loaded.high_water = self.high_water;
            self.high_water_given = Some(self.high_water);
        }
        loaded.changed |= effects.changed;
        self.grants.extend(effects.grants.into_iter().map(|grant| (name.clone(), grant)));
        Some(answer)
    }

    /// The grants that were made for waiters, from the `seen`th on.
    pub fn grants_since(&self, seen: usize) -> &[(Name, GrantNotice)] {
        &self.grants[seen..]
    }

    /// Whether somebody was given something: see [`Writes::gives`].
    pub fn gives(&self) -> bool {
        self.high_water_given.is_some()
            || !self.new_tombstones.is_empty()
            || self.evicted
            || !self.resources.values().all(Loaded::gives_nothing)
    }

    /// Returns the rows to write, and the wakes to send afterwards. Grants that were taken back meanwhile are left out.
    pub fn finish(self) -> (Writes, Wakes) {
        let gives = self.gives();
        let resources: Vec<_> =
            self.resources.iter().filter_map(|(name, loaded)| loaded.writes(name)).collect();
        let changed = self.resources.iter().filter(|(_, loaded)| loaded.changed);
        let changed = changed.map(|(name, _)| name.clone()).collect();
        let still_holds = |(name, grant): &(Name, GrantNotice)| {
            let holders = self.resources.get(name).map(|loaded| &loaded.resource.holders);
            holders.is_some_and(|holders| {
                holders
                    .iter()
                    .any(|holder| (holder.contender, holder.number) == (grant.contender, grant.number))
            })
        };
        let grants = self.grants.iter().filter(|grant| still_holds(grant)).cloned().collect();
        let tombstones = self.new_tombstones.into_iter();
        let tombstones = tombstones.map(|(contender, until)| Tombstone { contender, until }).collect();
        let now = self.now.lease;
        let frees = self.resources.values().map(|loaded| loaded.frees(now)).max().unwrap_or_default();
        let writes = Writes { resources, tombstones, high_water: self.high_water_given, gives, frees };
        (writes, Wakes { grants, changed })
    }
}

fn busy() -> StoreError {
    StoreError::new(StoreErrorKind::Conflict, "another request is changing this resource at the moment")
        .not_applied()
}
