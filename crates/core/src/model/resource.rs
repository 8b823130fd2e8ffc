//! One resource: its holders, its waiters, and the transitions between.
//!
//! Every transition first *settles* the resource at the given time: holds and positions that have ended go, and the
//! head of the queue is granted as far as the capacity allows. So nothing here needs a timer, and
//! a store may settle as lazily as it likes.

use std::{
    collections::{BTreeSet, VecDeque},
    sync::Arc,
    time::{Duration, SystemTime},
};

use super::{Effects, FIRST_LEASE, HighWater, Now, POSITION_KEPT, WAIT_LEASE};
use crate::{
    id::{ContenderId, KeeperId},
    name::Name,
    share::{Capacity, Units},
    store::{
        Attachment, Claim, Details, Evict, Evicted, Eviction, Grant, GrantNotice, HolderView, Leave, Left,
        Renew, Renewed, ResourceView, StoreTime, Verdict, WaiterView,
    },
    token::{GrantNumber, Token},
};

/// Somebody who holds units of a resource.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Holder {
    /// The contender that holds.
    pub contender: ContenderId,
    /// The units that it holds.
    pub units: Units,
    /// The grant's number.
    pub number: GrantNumber,
    /// When it was granted.
    pub granted: StoreTime,
    /// When it was granted, in wall time.
    pub since: u64,
    /// When it ends unless renewed.
    pub expires: StoreTime,
    /// The lease it asked for.
    pub lease: Duration,
    /// How long it is kept from the grant on, even if its process dies.
    pub min_hold: Duration,
    /// Whether its owner has been heard of since the grant.
    pub confirmed: bool,
    /// Whether its keeper said that it would renew it.
    pub renewed: bool,
    /// Whether an operator asked for it back: no renewals.
    pub evicted: bool,
    /// The operator's reason, in words.
    pub reason: Option<Arc<str>>,
    /// Whether its owner has left before the minimum hold: the id no longer renews or leaves.
    pub retired: bool,
    /// Whether only its lease ends it.
    pub detached: bool,
    /// The details that listings show.
    pub details: Details,
}

/// A contender that waits.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Waiter {
    /// The contender that waits.
    pub contender: ContenderId,
    /// The units that it asks for.
    pub units: Units,
    /// The lease it asks for.
    pub lease: Duration,
    /// How long it is to be kept from the grant on, even if its process dies.
    pub min_hold: Duration,
    /// Whether its keeper will renew it.
    pub renewed: bool,
    /// Whether a grant belongs to no process.
    pub detached: bool,
    /// The number of a grant is at least this, if it is not zero.
    pub at_least: GrantNumber,
    /// The stamp of the last claim copy that was written down.
    pub stamp: u64,
    /// When that copy was processed.
    pub asked: StoreTime,
    /// When it came, in wall time.
    pub since: u64,
    /// The details that listings show.
    pub details: Details,
}

/// A resource that is held or waited for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Resource {
    /// The capacity that all holders and waiters agreed on.
    pub capacity: Capacity,
    /// By grant number.
    pub holders: Vec<Holder>,
    /// In line.
    pub queue: VecDeque<Waiter>,
}

impl Resource {
    /// A resource that nobody holds or waits for.
    pub fn free(capacity: Capacity) -> Self {
        Self { capacity, holders: Vec::new(), queue: VecDeque::new() }
    }

    /// Whether nobody holds or waits, so that nothing needs to be kept.
    pub fn is_free(&self) -> bool {
        self.holders.is_empty() && self.queue.is_empty()
    }

    /// Drops the holds and positions that have ended, and grants to the head of the queue as far as the capacity
    /// allows.
    pub fn settle(&mut self, now: Now, high_water: &mut HighWater, effects: &mut Effects) {
        let mut silent: Vec<KeeperId> = Vec::new();
        self.holders.retain(|holder| {
            let live = holder.expires > now.lease;
            if !live {
                effects.changed = true;
                if !holder.confirmed {
                    silent.push(holder.contender.keeper);
                }
            }
            live
        });
        // A keeper that did not hear of its grant is dead or cut off: its other places would each
        // cost the queue another first lease (invariant I8).
        self.queue.retain(|waiter| {
            waiter.asked.after(WAIT_LEASE) > now.lease && !silent.contains(&waiter.contender.keeper)
        });
        while self.queue.front().is_some_and(|head| self.fits(head.units)) {
            let Some(head) = self.queue.pop_front() else { break };
            let lease = head.lease.min(FIRST_LEASE);
            let number = high_water.next_at_least(head.at_least, now);
            let grant = self.grant(
                now,
                Holder {
                    contender: head.contender,
                    units: head.units,
                    number,
                    granted: now.lease,
                    since: now.wall,
                    expires: now.lease.after(lease),
                    lease: head.lease,
                    min_hold: head.min_hold,
                    confirmed: false,
                    renewed: head.renewed,
                    evicted: false,
                    reason: None,
                    retired: false,
                    detached: head.detached,
                    details: head.details,
                },
                effects,
            );
            effects.grants.push(GrantNotice {
                contender: head.contender,
                number: grant.number,
                floor: grant.floor,
                stamp: head.stamp,
                waited: now.lease.since(head.asked),
                lease,
            });
        }
    }

    fn fits(&self, units: Units) -> bool {
        self.capacity.fits(self.holders.iter().map(|holder| holder.units), units)
    }

    fn grant(&mut self, now: Now, holder: Holder, effects: &mut Effects) -> Grant {
        effects.changed = true;
        let remaining = holder.expires.since(now.lease);
        let number = holder.number;
        if self.holders.is_empty() {
            // Most resources have one holder: room for exactly one keeps a held lock small.
            self.holders.reserve_exact(1);
        }
        self.holders.push(holder);
        Grant { number, floor: self.floor(), remaining }
    }

    /// The smallest number still holding: holders are kept by number (invariant I7).
    fn floor(&self) -> GrantNumber {
        self.holders.first().map_or(0, |first| first.number)
    }

    fn held_by(&mut self, contender: ContenderId) -> Option<&mut Holder> {
        self.holders.iter_mut().find(|holder| holder.contender == contender)
    }

    /// Enter the queue or ask again. The caller has already refused claims that are stale.
    pub fn claim(
        &mut self,
        now: Now,
        high_water: &mut HighWater,
        claim: &Claim,
        effects: &mut Effects,
    ) -> Verdict {
        self.settle(now, high_water, effects);
        let floor = self.floor();
        if let Some(holder) = self.held_by(claim.contender) {
            if holder.retired {
                return Verdict::Stale;
            }
            holder.confirm();
            let remaining = holder.expires.since(now.lease);
            return Verdict::Granted(Grant { number: holder.number, floor, remaining });
        }
        if self.is_free() {
            self.capacity = claim.capacity;
        }
        if self.capacity != claim.capacity || !self.capacity.allows(claim.units) {
            return Verdict::Mismatch { in_use: self.capacity };
        }
        if let Some(place) = self.queue.iter().position(|waiter| waiter.contender == claim.contender) {
            let waiter = &mut self.queue[place];
            if waiter.asked.after(POSITION_KEPT) <= now.lease {
                waiter.stamp = claim.stamp;
                waiter.asked = now.lease;
            }
            return self.busy(now, place);
        }
        if self.queue.is_empty() && self.fits(claim.units) {
            let number = high_water.next_at_least(claim.at_least, now);
            return Verdict::Granted(self.grant(now, Holder::granted_to(claim, number, now), effects));
        }
        if claim.queue {
            self.queue.push_back(Waiter {
                contender: claim.contender,
                units: claim.units,
                lease: claim.lease,
                min_hold: claim.min_hold,
                renewed: claim.renewed,
                detached: claim.attachment == Attachment::Detached,
                at_least: claim.at_least,
                stamp: claim.stamp,
                asked: now.lease,
                since: now.wall,
                details: claim.details.clone(),
            });
            return self.busy(now, self.queue.len() - 1);
        }
        self.busy(now, self.queue.len())
    }

    fn busy(&self, now: Now, ahead: usize) -> Verdict {
        let retry_in =
            self.holders.iter().map(|holder| holder.expires.since(now.lease)).min().unwrap_or(FIRST_LEASE);
        Verdict::Busy { ahead: u32::try_from(ahead).unwrap_or(u32::MAX), retry_in }
    }

    /// Extend, lower or detach a lease. Never shortens it and never revives an ended one.
    pub fn renew(
        &mut self,
        now: Now,
        high_water: &mut HighWater,
        renew: &Renew,
        effects: &mut Effects,
    ) -> Renewed {
        self.settle(now, high_water, effects);
        let Some(holder) = self.held_by(renew.contender).filter(|holder| !holder.retired) else {
            return Renewed::Gone;
        };
        holder.confirm();
        if holder.evicted {
            return Renewed::Evicted(holder.reason.clone());
        }
        holder.expires = holder.expires.max(now.lease.after(renew.lease));
        holder.detached |= renew.detach;
        let remaining = holder.expires.since(now.lease);
        if renew.at_least > holder.number {
            high_water.raise(renew.at_least);
            holder.number = renew.at_least.min(high_water.0);
            effects.changed = true;
        }
        let number = holder.number;
        let lower_to = renew.lower_to.filter(|units| units.below(holder.units));
        if let Some(units) = lower_to {
            holder.units = units;
            effects.changed = true;
        }
        self.holders.sort_by_key(|holder| holder.number);
        let floor = self.floor();
        if lower_to.is_some() {
            self.settle(now, high_water, effects);
        }
        Renewed::Held(Grant { number, floor, remaining })
    }

    /// Give a hold or a position back.
    pub fn leave(
        &mut self,
        now: Now,
        high_water: &mut HighWater,
        leave: &Leave,
        effects: &mut Effects,
    ) -> Left {
        self.settle(now, high_water, effects);
        let left = if let Some(holder) = self.held_by(leave.contender) {
            if holder.retired {
                return Left::NotThere;
            }
            if holder.retire(now, leave.hold_at_least) {
                return Left::Released;
            }
            self.remove_holder(leave.contender, effects);
            Left::Released
        } else if let Some(place) = self.queue.iter().position(|waiter| waiter.contender == leave.contender) {
            self.queue.remove(place);
            Left::LeftQueue
        } else {
            return Left::NotThere;
        };
        self.settle(now, high_water, effects);
        left
    }

    fn remove_holder(&mut self, contender: ContenderId, effects: &mut Effects) {
        self.holders.retain(|holder| holder.contender != contender);
        effects.changed = true;
    }

    /// Take a lock back from the named holder with the named number, and from nobody else.
    pub fn evict(
        &mut self,
        now: Now,
        high_water: &mut HighWater,
        order: &Evict,
        effects: &mut Effects,
    ) -> Evicted {
        self.settle(now, high_water, effects);
        let Some(holder) = self.held_by(order.contender).filter(|holder| holder.number == order.number)
        else {
            return Evicted::NotHeld;
        };
        // A retired hold has no owner who could hear of it and leave.
        if order.how == Eviction::Immediate || holder.retired {
            self.remove_holder(order.contender, effects);
            self.settle(now, high_water, effects);
        } else {
            holder.evicted = true;
            holder.reason.clone_from(&order.reason);
            effects.changed = true;
        }
        Evicted::Done
    }

    /// Drops every hold and position that belongs to dead keepers, except detached holds. A hold that
    /// is younger than its minimum is retired, unless nobody confirmed it: then nobody has acted on
    /// it. For stores that can tell that a process is dead before its leases end.
    pub fn expire_keepers(
        &mut self,
        now: Now,
        high_water: &mut HighWater,
        dead: &BTreeSet<KeeperId>,
        effects: &mut Effects,
    ) {
        let before = self.holders.len();
        self.holders.retain_mut(|holder| {
            holder.detached
                || !dead.contains(&holder.contender.keeper)
                || holder.confirmed && holder.retire(now, holder.min_hold)
        });
        effects.changed |= self.holders.len() != before;
        self.queue.retain(|waiter| !dead.contains(&waiter.contender.keeper));
        self.settle(now, high_water, effects);
    }

    /// The resource as shown to people, without the holds and positions that have ended.
    pub fn view(&self, name: &Name, now: Now) -> Option<ResourceView> {
        let wall = |micros| SystemTime::UNIX_EPOCH + Duration::from_micros(micros);
        let view = ResourceView {
            name: name.clone(),
            capacity: self.capacity,
            holders: self
                .holders
                .iter()
                .filter(|holder| holder.expires > now.lease)
                .map(|holder| HolderView {
                    contender: holder.contender,
                    token: Token::new(holder.number, 0),
                    units: holder.units,
                    details: holder.details.clone(),
                    since: wall(holder.since),
                    lease: holder.lease,
                    remaining: Some(holder.expires.since(now.lease)),
                    renewed: holder.renewed && !holder.detached,
                    evicted: holder.evicted,
                    detached: holder.detached,
                })
                .collect(),
            waiters: self
                .queue
                .iter()
                .filter(|waiter| waiter.asked.after(WAIT_LEASE) > now.lease)
                .map(|waiter| WaiterView {
                    contender: waiter.contender,
                    units: waiter.units,
                    details: waiter.details.clone(),
                    since: wall(waiter.since),
                })
                .collect(),
        };
        (!view.holders.is_empty() || !view.waiters.is_empty()).then_some(view)
    }
}

impl Holder {
    /// A holder whose own claim found the resource free: confirmed, with the full lease.
    fn granted_to(claim: &Claim, number: GrantNumber, now: Now) -> Self {
        Self {
            contender: claim.contender,
            units: claim.units,
            number,
            granted: now.lease,
            since: now.wall,
            expires: now.lease.after(claim.lease),
            lease: claim.lease,
            min_hold: claim.min_hold,
            confirmed: true,
            renewed: claim.renewed,
            evicted: false,
            reason: None,
            retired: false,
            detached: claim.attachment == Attachment::Detached,
            details: claim.details.clone(),
        }
    }

    /// Its owner has gone: it is kept until it is `least` old. False if it is that old, or an
    /// operator wants it back.
    fn retire(&mut self, now: Now, least: Duration) -> bool {
        // Never longer than that from now: the clock may have gone back since the grant.
        let kept_until = self.granted.min(now.lease).after(least);
        if kept_until <= now.lease || self.evicted {
            return false;
        }
        self.retired = true;
        self.detached = true;
        self.confirmed = true;
        self.expires = kept_until;
        true
    }

    /// Its owner was heard of: the first short lease becomes the full one, counted from the grant.
    fn confirm(&mut self) {
        if !self.confirmed {
            self.confirmed = true;
            self.expires = self.expires.max(self.granted.after(self.lease));
        }
    }
}
