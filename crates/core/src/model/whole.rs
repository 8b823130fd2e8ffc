//! A whole store as one value: the reference that every store is compared with.

use std::collections::HashMap;

use super::{COUNT_MEMORY, Counter, Effects, HighWater, Now, Resource, Tombstones};
use crate::{
    name::Name,
    store::{
        Admit, Admitted, Answer, Claim, Count, CountAction, Counted, Evict, Evicted, LatchPage, Leave, Left,
        ListQuery, Page, Renew, Renewed, Request, ResourceView, Verdict,
    },
    token::Token,
};

/// All resources, latches and fences of a store, and the highest number granted so far.
#[derive(Clone, Debug, Default)]
pub struct Model {
    /// The last grant number.
    pub high_water: HighWater,
    resources: HashMap<Name, Resource>,
    left: Tombstones<()>,
    counters: HashMap<Name, Counter>,
    counted: Tombstones<Counted>,
    fences: HashMap<Name, Token>,
    sweep_at: usize,
}

impl Model {
    /// The transition of one entry of a group.
    pub fn apply(&mut self, now: Now, request: &Request, effects: &mut Effects) -> Answer {
        match request {
            Request::Claim(claim) => Answer::Claim(self.claim(now, claim, effects)),
            Request::Leave(leave) => Answer::Leave(self.leave(now, leave, effects)),
        }
    }

    fn claim(&mut self, now: Now, claim: &Claim, effects: &mut Effects) -> Verdict {
        if claim.not_after < now.lease || self.left.find(claim.contender, now.lease).is_some() {
            return Verdict::Stale;
        }
        self.sweep(now);
        let resource =
            self.resources.entry(claim.name.clone()).or_insert_with(|| Resource::free(claim.capacity));
        let verdict = resource.claim(now, &mut self.high_water, claim, effects);
        self.forget_if_free(&claim.name);
        verdict
    }

    fn leave(&mut self, now: Now, leave: &Leave, effects: &mut Effects) -> Left {
        if let Some(until) = leave.tombstone_until {
            self.left.insert(leave.contender, until, (), now.lease);
        }
        self.at(&leave.name, |resource, high_water| resource.leave(now, high_water, leave, effects))
            .unwrap_or(Left::NotThere)
    }

    /// The transition of one renewal.
    pub fn renew(&mut self, now: Now, renew: &Renew, effects: &mut Effects) -> Renewed {
        self.at(&renew.name, |resource, high_water| resource.renew(now, high_water, renew, effects))
            .unwrap_or(Renewed::Gone)
    }

    /// The transition of an eviction.
    pub fn evict(&mut self, now: Now, order: &Evict, effects: &mut Effects) -> Evicted {
        self.at(&order.name, |resource, high_water| resource.evict(now, high_water, order, effects))
            .unwrap_or(Evicted::NotHeld)
    }

    /// Does something to a resource that exists, and forgets it if it became free.
    fn at<T>(&mut self, name: &Name, act: impl FnOnce(&mut Resource, &mut HighWater) -> T) -> Option<T> {
        let answer = act(self.resources.get_mut(name)?, &mut self.high_water);
        self.forget_if_free(name);
        Some(answer)
    }

    fn forget_if_free(&mut self, name: &Name) {
        if self.resources.get(name).is_some_and(Resource::is_free) {
            self.resources.remove(name);
        }
    }

    /// Clears away ended resources that nobody asks for any more, whenever the number of
    /// resources has doubled: a dead holder's name is not kept for ever.
    fn sweep(&mut self, now: Now) {
        if self.resources.len() < self.sweep_at.max(1024) {
            return;
        }
        self.resources.retain(|name, resource| resource.view(name, now).is_some());
        self.sweep_at = self.resources.len() * 2;
    }

    /// Returns the holders of `name` and its waiters.
    pub fn inspect(&self, now: Now, name: &Name) -> Option<ResourceView> {
        self.resources.get(name)?.view(name, now)
    }

    /// All resources that are held or waited for, in order of name.
    pub fn list(&self, now: Now, query: &ListQuery) -> Page {
        let mut names: Vec<&Name> = self.resources.keys().filter(|name| query.asks_for(name)).collect();
        names.sort_unstable();
        let mut views = names.into_iter().filter_map(|name| self.inspect(now, name));
        let resources: Vec<_> = views.by_ref().take(query.limit.max(1)).collect();
        let next = views.next().and_then(|_| resources.last()).map(|last| last.name.clone());
        Page { resources, next }
    }

    /// All latches, in order of name.
    pub fn latches(&self, query: &ListQuery) -> LatchPage {
        let mut latches: Vec<_> = self
            .counters
            .iter()
            .filter(|(name, _)| query.asks_for(name))
            .filter_map(|(name, counter)| Some((name.clone(), counter.0?)))
            .collect();
        latches.sort_unstable_by(|(a, _), (b, _)| a.cmp(b));
        LatchPage::cut(latches, query)
    }

    /// The transition of a latch operation: however often it arrives, it counts once.
    pub fn count(&mut self, now: Now, count: &Count) -> Counted {
        if let Some(done) = self.counted.find(count.op, now.lease) {
            return done;
        }
        if count.not_after < now.lease {
            return Counted::Stale;
        }
        let counter = self.counters.entry(count.name.clone()).or_default();
        let counted = counter.step(now, &mut self.high_water, count.action);
        if counter.0.is_none() {
            self.counters.remove(&count.name);
        }
        if count.action != CountAction::Read {
            self.counted.insert(count.op, count.not_after.after(COUNT_MEMORY), counted, now.lease);
        }
        counted
    }

    /// The transition of a fence: the highest floor seen never falls (invariant I7).
    pub fn fence(&mut self, admit: &Admit) -> Admitted {
        match self.fences.get_mut(&admit.name) {
            Some(highest) if admit.token < *highest => Admitted::Stale { highest: *highest },
            Some(highest) => {
                *highest = admit.floor.max(*highest);
                Admitted::Yes
            }
            None => {
                self.fences.insert(admit.name.clone(), admit.floor);
                Admitted::Yes
            }
        }
    }

    /// How many resources are kept, free ones included: for tests that nothing is left behind.
    pub fn kept(&self) -> usize {
        self.resources.len()
    }

    /// The resource as it is kept, for tests that compare states.
    pub fn resource(&self, name: &Name) -> Option<&Resource> {
        self.resources.get(name)
    }
}
