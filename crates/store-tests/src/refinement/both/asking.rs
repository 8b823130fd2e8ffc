//! What is asked: the entries of a plan as a keeper would send them, each by somebody with an id of its own.

use std::{collections::HashSet, sync::Arc, time::Duration};

use lockkeeper_core::{
    Capacity, ContenderId, Name, Units,
    store::{Claim, Details, Kind, Leave, ProcessInfo, Request, StoreTime},
};

use super::{
    super::plan::{Entry, RESOURCES},
    Both, PERMITS,
};

/// One who asks: an id that is used for one acquisition.
pub(super) struct Person {
    pub(super) claim: Claim,
    copies: u32,
    /// The latest time at which a copy may take effect.
    not_after: StoreTime,
}

impl Both<'_> {
    /// A group as a keeper would send it: in order of name, leaves first, each contender once, and one
    /// new claim per resource.
    pub(super) fn group(&mut self, keeper: usize, entries: &[Entry], now: StoreTime) -> Vec<Request> {
        let mut group: Vec<Request> = Vec::new();
        let mut new: HashSet<Name> = HashSet::new();
        let mut seen: HashSet<usize> = HashSet::new();
        for entry in entries {
            let (Entry::Claim { who, .. } | Entry::Leave { who, .. }) = entry;
            if !seen.insert(*who) {
                continue;
            }
            match entry {
                Entry::Leave { who, bury, hold_at_least } => {
                    group.extend(self.leave(*who, *bury, *hold_at_least).map(Request::Leave));
                }
                Entry::Claim { life, .. } => {
                    let claim = self.claim(keeper, entry, later(now, *life));
                    if claim.again || new.insert(claim.name.clone()) {
                        group.push(Request::Claim(claim));
                    } else {
                        self.people.remove(who);
                    }
                }
            }
        }
        group.sort_by(|a, b| {
            let is_claim = |request: &Request| matches!(request, Request::Claim(_));
            (a.name(), is_claim(a)).cmp(&(b.name(), is_claim(b)))
        });
        group
    }

    /// The next copy of somebody's claim: the first of a new one if there is none.
    fn claim(&mut self, keeper: usize, entry: &Entry, not_after: StoreTime) -> Claim {
        let Entry::Claim { who, resource, units, lease, queue, mismatch, detachable, .. } = entry else {
            unreachable!("only claims come here");
        };
        let detachable = *detachable && self.store().capability().detachable;
        let lease = self.lease(*lease, detachable);
        self.next_id += 1;
        let id = ContenderId { keeper: self.keepers[keeper].0, seq: self.next_id };
        let person = self.people.entry(*who).or_insert_with(|| {
            let permits = (*resource == RESOURCES - 1) != *mismatch;
            let count = |count| Units::count(count).expect("not zero");
            Claim {
                name: self.names[*resource].clone(),
                contender: id,
                units: if permits || *units > 1 { count((*units).max(1)) } else { Units::All },
                capacity: if permits { Capacity::count(PERMITS).expect("not zero") } else { Capacity::All },
                lease,
                queue: *queue,
                detachable,
                min_hold: Duration::ZERO,
                not_after,
                stamp: 0,
                again: false,
                details: details(*who),
            }
            .into()
        });
        let claim =
            Claim { not_after, stamp: self.next_id, again: person.copies > 0, ..person.claim.clone() };
        person.copies += 1;
        person.not_after = person.not_after.max(not_after);
        self.moments.insert(not_after);
        claim
    }

    fn leave(&mut self, who: usize, bury: bool, hold_at_least: Duration) -> Option<Leave> {
        let person = self.people.remove(&who)?;
        let tombstone_until = bury.then_some(person.not_after);
        self.left.insert(person.claim.contender, tombstone_until);
        let hold_at_least = if person.claim.detachable { hold_at_least } else { Duration::ZERO };
        Some(Leave {
            name: person.claim.name,
            contender: person.claim.contender,
            tombstone_until,
            hold_at_least,
        })
    }

    /// Late copies of those who left are under way only if the leave said so.
    pub(super) fn may_come_again(&self, request: &Request) -> bool {
        let Request::Claim(claim) = request else { return true };
        match self.left.get(&claim.contender) {
            Some(tombstone_until) => tombstone_until.is_some_and(|until| until >= claim.not_after),
            None => true,
        }
    }
}

impl From<Claim> for Person {
    fn from(claim: Claim) -> Self {
        Self { claim, copies: 0, not_after: StoreTime(0) }
    }
}

pub(super) fn later(now: StoreTime, millis: i64) -> StoreTime {
    StoreTime(now.0.saturating_add_signed(millis * 1000))
}

/// What `who` shows to people.
fn details(who: usize) -> Details {
    let process =
        ProcessInfo { host: format!("host \"{who}\""), pid: who as u32, program: "refinement".into() };
    Details {
        kind: [Kind::Mutex, Kind::RwLock, Kind::Semaphore, Kind::Election][who % 4],
        process: Arc::new(process),
        label: who.is_multiple_of(3).then(|| "a label, with ü and 'quotes'".into()),
        value: who.is_multiple_of(5).then(|| "10.0.0.7:80".into()),
    }
}
