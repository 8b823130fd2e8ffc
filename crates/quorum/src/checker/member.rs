//! A member: the real model of one resource, the record that says whether the member votes, and the state that a
//! checker needs beside it.

use std::{
    collections::BTreeMap,
    hash::{Hash, Hasher},
    sync::{Arc, LazyLock},
    time::Duration,
};

use lockkeeper_core::{
    Capacity, ContenderId, GrantNumber, KeeperId, Name, Token, Units,
    model::{Effects, HighWater, Holder, Model, Now, Resource},
    store::{
        Admit, Admitted, Answer, Attachment, Claim, Details, Evict, Evicted, Eviction, Grant, Kind, Leave,
        ProcessInfo, Renew, Renewed, StoreTime, Verdict,
    },
};

use super::{Fault, Quorum, TICK};
use crate::{Request, Said};

static NAME: LazyLock<Name> = LazyLock::new(|| Name::new("lock").expect("a good name"));
static DETAILS: LazyLock<Details> = LazyLock::new(|| {
    let process = ProcessInfo { host: String::new(), pid: 0, program: String::new() };
    Details { kind: Kind::Mutex, process: Arc::new(process), label: None, value: None }
});

/// The time on every member's clock.
fn store_time(tick: u32) -> StoreTime {
    StoreTime(0).after(TICK * tick)
}

/// The wall clock stands still: numbers have to grow without it.
fn now_at(tick: u32) -> Now {
    Now { lease: store_time(tick), wall: 0 }
}

/// Contender number `seq` of client `client`.
pub(super) fn contender(client: usize, seq: u64) -> ContenderId {
    ContenderId { keeper: KeeperId::from_u128(1 + client as u128), seq }
}

/// The contender of a request, and its terms.
#[derive(Clone, Copy)]
pub(super) struct Asker {
    pub(super) contender: ContenderId,
    pub(super) units: Units,
    pub(super) capacity: Capacity,
    pub(super) lease: Duration,
    pub(super) quorum: Quorum,
    /// The time until which its claims may take effect.
    pub(super) claims_until: u32,
}

/// The quorum that a member belongs to, and its vote there.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct Record {
    pub(super) quorum: Quorum,
    pub(super) votes: bool,
    /// The mark with which it began to vote.
    pub(super) since: GrantNumber,
}

impl Record {
    /// Returns the record of a member that votes from the start.
    pub(super) fn voting(quorum: Quorum) -> Self {
        Self { quorum, votes: true, since: 0 }
    }

    pub(super) fn votes_for(&self, quorum: Quorum) -> bool {
        self.votes && self.quorum == quorum
    }
}

/// One member. Shared by all states that have not touched it.
#[derive(Clone, PartialEq, Hash, Debug)]
pub(super) struct Member(Arc<Kept>);

#[derive(Clone, Debug)]
pub(super) struct Kept {
    model: Model,
    /// The tombstones, which the model does not show.
    tombstones: BTreeMap<ContenderId, StoreTime>,
    pub(super) record: Option<Record>,
    /// The time since which a client has watched a member that may have lost its data.
    pub(super) watched: Option<u32>,
    /// The mark that it is to get before it votes again.
    pub(super) gathered: Option<GrantNumber>,
    /// Whether its wall clock has jumped since it started, so that it believes to have been up for long.
    pub(super) jumped: bool,
    pub(super) restarts: u8,
    /// The highest floor that its fence has seen, which the model does not show.
    fence: Option<Token>,
}

impl std::ops::Deref for Member {
    type Target = Kept;

    fn deref(&self) -> &Kept {
        &self.0
    }
}

impl Member {
    pub(super) fn new(mark: GrantNumber, record: Option<Record>) -> Self {
        let mut model = Model::default();
        model.high_water = HighWater(mark);
        Self(Arc::new(Kept {
            model,
            tombstones: BTreeMap::new(),
            record,
            watched: None,
            gathered: None,
            jumped: false,
            restarts: 0,
            fence: None,
        }))
    }

    pub(super) fn change(&mut self) -> &mut Kept {
        Arc::make_mut(&mut self.0)
    }

    /// Starts anew with nothing.
    pub(super) fn restart(&mut self) {
        let restarts = self.restarts + 1;
        *self = Self::new(0, None);
        self.change().restarts = restarts;
    }

    pub(super) fn mark(&self) -> GrantNumber {
        self.model.high_water.0
    }

    pub(super) fn raise_mark(&mut self, mark: GrantNumber) {
        self.change().model.high_water.raise(mark);
    }

    /// The hold of `contender`, if it has one that has not ended.
    pub(super) fn holder(&self, tick: u32, contender: ContenderId) -> Option<&Holder> {
        let holders = self.resource().into_iter().flat_map(|resource| &resource.holders);
        holders.into_iter().find(|holder| holder.contender == contender && holder.expires > store_time(tick))
    }

    /// Whether `contender` would be granted if it asked again.
    pub(super) fn would_grant(&self, tick: u32, contender: ContenderId) -> bool {
        let mut copy = (*self.0).clone();
        let mut effects = Effects::default();
        let renew = Renew { at_least: 0, ..renewal(contender, Duration::ZERO) };
        matches!(copy.model.renew(now_at(tick), &renew, &mut effects), Renewed::Held(_))
    }

    fn resource(&self) -> Option<&Resource> {
        self.0.resource()
    }

    pub(super) fn forget_old_tombstones(&mut self, tick: u32) {
        if self.tombstones.values().any(|until| *until < store_time(tick)) {
            self.change().tombstones.retain(|_, until| *until >= store_time(tick));
        }
    }

    /// Does a request.
    pub(super) fn process(&mut self, tick: u32, asker: &Asker, request: Request, fault: Fault) -> Said {
        let votes = match self.record {
            // As it was when the client connected: all voted then.
            _ if fault == Fault::VotesBeforeClaim => true,
            Some(record) if fault == Fault::UnequalSets => record.votes,
            record => record.is_some_and(|record| record.votes_for(asker.quorum)),
        };
        match request {
            Request::Claim { queue, at_least } => self.claim(tick, asker, queue, at_least, votes),
            Request::Raise { to } => match fault {
                Fault::SettleByGrantFormula => {
                    let to = to.max(self.mark() + 1);
                    self.renew(tick, asker, Duration::ZERO, to, votes)
                }
                Fault::LowerNumbers => self.lower(tick, asker, to, votes),
                Fault::SettleWithoutHolding if self.holder(tick, asker.contender).is_none() => {
                    self.raise_mark(to);
                    Said::Held { number: to, floor: to, remaining: TICK, votes, since: self.since() }
                }
                _ => self.renew(tick, asker, Duration::ZERO, to, votes),
            },
            Request::Renew { at_least } if fault == Fault::LowerNumbers && at_least > 0 => {
                self.lower(tick, asker, at_least, votes)
            }
            Request::Renew { at_least } => self.renew(tick, asker, asker.lease, at_least, votes),
            Request::Leave { tombstone } => {
                self.leave(tick, asker.contender, tombstone.then_some(asker.claims_until));
                Said::Left
            }
        }
    }

    fn since(&self) -> GrantNumber {
        self.record.map_or(0, |record| record.since)
    }

    fn held(&self, grant: &Grant, votes: bool) -> Said {
        let Grant { number, floor, remaining } = *grant;
        Said::Held { number, floor, remaining, votes, since: self.since() }
    }

    fn claim(&mut self, tick: u32, asker: &Asker, queue: bool, at_least: GrantNumber, votes: bool) -> Said {
        let claim = Claim {
            name: NAME.clone(),
            contender: asker.contender,
            units: asker.units,
            capacity: asker.capacity,
            lease: asker.lease,
            queue,
            attachment: Attachment::Process,
            renewed: true,
            at_least,
            min_hold: Duration::ZERO,
            not_after: store_time(asker.claims_until),
            stamp: 0,
            again: false,
            details: DETAILS.clone(),
        };
        match self.apply(tick, &lockkeeper_core::store::Request::Claim(claim)) {
            Answer::Claim(Verdict::Granted(grant)) => self.held(&grant, votes),
            Answer::Claim(Verdict::Busy { .. }) => Said::Busy { in_queue: queue },
            Answer::Claim(Verdict::Stale) => Said::Stale,
            other => unreachable!("{other:?}"),
        }
    }

    fn renew(
        &mut self,
        tick: u32,
        asker: &Asker,
        lease: Duration,
        at_least: GrantNumber,
        votes: bool,
    ) -> Said {
        let renew = Renew { at_least, ..renewal(asker.contender, lease) };
        let mut effects = Effects::default();
        match self.change().model.renew(now_at(tick), &renew, &mut effects) {
            Renewed::Held(grant) => self.held(&grant, votes),
            Renewed::Evicted(reason) => Said::Evicted(reason),
            Renewed::Gone | Renewed::Unknown => Said::Gone,
        }
    }

    /// Does a leave of `contender`. Its claims do nothing until this tick.
    pub(super) fn leave(&mut self, tick: u32, contender: ContenderId, tombstone_until: Option<u32>) {
        let tombstone_until = tombstone_until.map(store_time);
        if let Some(until) = tombstone_until {
            let kept = self.change().tombstones.entry(contender).or_insert(until);
            *kept = until.max(*kept);
        }
        let leave = Leave { name: NAME.clone(), contender, tombstone_until, hold_at_least: Duration::ZERO };
        self.apply(tick, &lockkeeper_core::store::Request::Leave(leave));
    }

    fn apply(&mut self, tick: u32, request: &lockkeeper_core::store::Request) -> Answer {
        let mut effects = Effects::default();
        self.change().model.apply(now_at(tick), request, &mut effects)
    }

    /// A mistake: the number becomes `number`, and the mark with it, also where they are higher.
    fn lower(&mut self, tick: u32, asker: &Asker, number: GrantNumber, votes: bool) -> Said {
        if self.holder(tick, asker.contender).is_none() {
            return Said::Gone;
        }
        self.leave(tick, asker.contender, None);
        self.change().model.high_water = HighWater(0);
        let asker = Asker { claims_until: tick, ..*asker };
        self.claim(tick, &asker, false, number, votes)
    }

    /// Takes the lock back from `contender`, if it holds.
    pub(super) fn evict(&mut self, tick: u32, contender: ContenderId) {
        let how = Eviction::Immediate;
        let Some(number) = self.holder(tick, contender).map(|holder| holder.number) else { return };
        let order = Evict { name: NAME.clone(), contender, number, how, reason: None };
        let evicted = self.change().model.evict(now_at(tick), &order, &mut Effects::default());
        assert_eq!(evicted, Evicted::Done);
    }

    pub(super) fn admit(&mut self, number: GrantNumber) -> bool {
        let token = Token::new(number, 0);
        let kept = self.change();
        let admitted = kept.model.fence(&Admit { name: NAME.clone(), token, floor: token }) == Admitted::Yes;
        if admitted {
            kept.fence = kept.fence.max(Some(token));
        }
        admitted
    }
}

fn renewal(contender: ContenderId, lease: Duration) -> Renew {
    Renew { name: NAME.clone(), contender, lease, lower_to: None, detach: false, at_least: 0 }
}

impl Kept {
    fn resource(&self) -> Option<&Resource> {
        self.model.resource(&NAME)
    }
}

/// Two members are the same if nothing that they will ever do differs.
impl PartialEq for Kept {
    fn eq(&self, other: &Self) -> bool {
        let rest = |kept: &Self| {
            (
                kept.record,
                kept.watched,
                kept.gathered,
                kept.jumped,
                kept.restarts,
                kept.fence,
                kept.model.high_water,
            )
        };
        self.resource() == other.resource()
            && self.tombstones == other.tombstones
            && rest(self) == rest(other)
    }
}

impl Hash for Kept {
    fn hash<H: Hasher>(&self, state: &mut H) {
        for holder in self.resource().into_iter().flat_map(|resource| &resource.holders) {
            let Holder { contender, number, granted, expires, confirmed, evicted, .. } = holder;
            // The time of a grant matters only until it is confirmed.
            let granted = if *confirmed { StoreTime(0) } else { *granted };
            (contender, number, granted, expires, evicted).hash(state);
        }
        // No world lasts so long that a position ends.
        for waiter in self.resource().into_iter().flat_map(|resource| &resource.queue) {
            (waiter.contender, waiter.at_least).hash(state);
        }
        (&self.tombstones, self.record, self.watched, self.gathered, self.jumped).hash(state);
        (self.restarts, self.fence, self.model.high_water.0).hash(state);
    }
}
