//! Turns the entries of a plan into requests as a keeper would send them.

use std::{collections::HashSet, sync::Arc, time::Duration};

use lockkeeper_core::{
    Capacity, ContenderId, Name, Units,
    store::{Attachment, Claim, Details, Kind, Leave, ProcessInfo, Request, StoreTime},
    testing,
};

use super::{
    super::plan::{Entry, RESOURCES},
    PERMITS, Pair,
};

/// One acquisition: its claim, and how many copies of it were sent.
pub(super) struct Acquisition {
    pub(super) claim: Claim,
    copies: u32,
    /// The latest time at which a copy may take effect.
    not_after: StoreTime,
}

impl Pair<'_> {
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
                Entry::Leave { who, tombstone, hold_at_least } => {
                    group.extend(self.leave(*who, *tombstone, *hold_at_least).map(Request::Leave));
                }
                Entry::Claim { life, .. } => {
                    let claim = self.claim(keeper, entry, later(now, *life));
                    if claim.again || new.insert(claim.name.clone()) {
                        group.push(Request::Claim(claim));
                    } else {
                        self.acquisitions.remove(who);
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

    /// The next copy of the claim of `who`, or the first copy of a new one.
    fn claim(&mut self, keeper: usize, entry: &Entry, not_after: StoreTime) -> Claim {
        let Entry::Claim { who, resource, units, lease, queue, mismatch, renewed, .. } = entry else {
            unreachable!("only claims come here");
        };
        let attachment = self.attachment(entry);
        let lease = self.lease(*lease, attachment.may_outlive_process());
        self.next_id += 1;
        let id = ContenderId { keeper: self.keepers[keeper].0, seq: self.next_id };
        let acquisition = self.acquisitions.entry(*who).or_insert_with(|| {
            let permits = (*resource == RESOURCES - 1) != *mismatch;
            let count = |count| Units::count(count).expect("not zero");
            Claim {
                units: if permits || *units > 1 { count((*units).max(1)) } else { Units::All },
                capacity: if permits { Capacity::count(PERMITS).expect("not zero") } else { Capacity::All },
                lease,
                queue: *queue,
                attachment,
                renewed: *renewed,
                not_after,
                details: details(*who),
                ..testing::claim(&self.names[*resource], id)
            }
            .into()
        });
        let claim = Claim {
            not_after,
            stamp: self.next_id,
            again: acquisition.copies > 0,
            ..acquisition.claim.clone()
        };
        acquisition.copies += 1;
        acquisition.not_after = acquisition.not_after.max(not_after);
        self.moments.insert(not_after);
        claim
    }

    fn attachment(&self, entry: &Entry) -> Attachment {
        match entry {
            _ if !self.store().capability().detachable => Attachment::Process,
            Entry::Claim { born_detached: true, .. } => Attachment::Detached,
            Entry::Claim { detachable: true, .. } => Attachment::Detachable,
            _ => Attachment::Process,
        }
    }

    fn leave(&mut self, who: usize, tombstone: bool, hold_at_least: Duration) -> Option<Leave> {
        let acquisition = self.acquisitions.remove(&who)?;
        let tombstone_until = tombstone.then_some(acquisition.not_after);
        self.left.insert(acquisition.claim.contender, tombstone_until);
        let hold_at_least =
            if acquisition.claim.attachment.may_outlive_process() { hold_at_least } else { Duration::ZERO };
        Some(Leave {
            name: acquisition.claim.name,
            contender: acquisition.claim.contender,
            tombstone_until,
            hold_at_least,
        })
    }

    /// A late copy of a claim that was left may arrive only if the leave made a tombstone for it.
    pub(super) fn may_come_again(&self, request: &Request) -> bool {
        let Request::Claim(claim) = request else { return true };
        match self.left.get(&claim.contender) {
            Some(tombstone_until) => tombstone_until.is_some_and(|until| until >= claim.not_after),
            None => true,
        }
    }
}

impl From<Claim> for Acquisition {
    fn from(claim: Claim) -> Self {
        Self { claim, copies: 0, not_after: StoreTime(0) }
    }
}

pub(super) fn later(now: StoreTime, millis: i64) -> StoreTime {
    StoreTime(now.0.saturating_add_signed(millis * 1000))
}

/// The details of `who`, as views show them.
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
