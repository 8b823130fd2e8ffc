//! One contender's attempt to hold a resource at a majority of members, from its first claim to its end.
//!
//! Pure: the caller sends the requests of an [`Attempt`], and tells it the answers and the time. The order of calls is
//! free: answers may come late, never, or in another order than their requests.
//!
//! The files: `at_member.rs` has the contender's knowledge of one member; `counting.rs` decides from all of them
//! whether it holds; this file decides which requests to send.

mod at_member;
#[cfg(test)]
mod canonical;
mod counting;
mod messages;
mod mistake;

use lockkeeper_core::{GrantNumber, clock::BootTime};

use crate::majority::Majority;
use at_member::{AtMember, Status};
pub use messages::{Ask, Ended, Hold, Request, Said, Sharing, Stamp};
pub(crate) use mistake::Mistake;

/// One contender's attempt. Its contender id is used for nothing else.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Attempt {
    majority: Majority,
    sharing: Sharing,
    /// Whether it waits in the queue if it is not served at once.
    waits: bool,
    /// The member in whose queue it waits.
    gate: usize,
    /// Claims ask for a number of at least this.
    at_least: GrantNumber,
    members: Vec<AtMember>,
    next_stamp: Stamp,
    /// The first request of the latest round of renewals.
    round: Stamp,
    /// The number that a majority is to show. It never falls.
    target: GrantNumber,
    /// Whether all members are to show the same number, so that another process can go on with the hold.
    levels: bool,
    /// The highest number that members were asked to show for that. They may come to show it at any time.
    levels_to: GrantNumber,
    /// Whether the gate said by itself that it has granted, and is asked since then.
    expects_gate: bool,
    phase: Phase,
    #[cfg(test)]
    mistake: Option<Mistake>,
}

/// The stage of an attempt.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
enum Phase {
    Asking,
    /// Another process was granted this number. Whether it still holds is not known yet.
    Adopting {
        number: GrantNumber,
    },
    /// Granted with this number and floor, which never change.
    Holding {
        number: GrantNumber,
        floor: GrantNumber,
    },
    Ended(Ended),
}

impl Attempt {
    /// Returns an attempt that waits in the queue of `gate` only, unless that member grants and others do not.
    pub fn new(majority: Majority, sharing: Sharing, gate: usize) -> Self {
        Self {
            majority,
            sharing,
            waits: true,
            gate,
            at_least: 0,
            members: vec![AtMember::default(); majority.members()],
            next_stamp: Stamp(1),
            round: Stamp(0),
            target: 0,
            levels: false,
            levels_to: 0,
            expects_gate: false,
            phase: Phase::Asking,
            #[cfg(test)]
            mistake: None,
        }
    }

    /// Returns an attempt that goes on with the hold of another process, which was granted this number. It sends
    /// nothing but renewals and leaves. Members count only if they all show the same number, and not a lower one. A
    /// member that has granted anew meanwhile, to a late copy of a claim, shows another one: any holder in between had
    /// a higher number.
    pub fn adopt(majority: Majority, number: GrantNumber) -> Self {
        let mut attempt = Self::new(majority, Sharing::Shared, 0);
        (attempt.phase, attempt.target) = (Phase::Adopting { number }, number);
        // It may hold anywhere, so it leaves everywhere.
        for at in &mut attempt.members {
            at.heard = Stamp(1);
        }
        attempt.next_stamp = Stamp(2);
        attempt
    }

    /// Returns the same attempt for a contender that does not wait.
    #[must_use]
    pub fn trying(self) -> Self {
        Self { waits: false, ..self }
    }

    /// Claims at every member, for a number of at least `at_least`.
    pub fn begin(&mut self, at_least: GrantNumber) -> Vec<Ask> {
        self.begin_at(|_| true, at_least)
    }

    /// Claims at the gate, and at those of the other members that are worth it. The rest is asked when the gate has
    /// granted.
    pub fn begin_at(&mut self, worth_it: impl Fn(usize) -> bool, at_least: GrantNumber) -> Vec<Ask> {
        self.at_least = at_least;
        let asked = (0..self.members.len()).filter(|member| *member == self.gate || worth_it(*member));
        let asked: Vec<usize> = asked.collect();
        asked.into_iter().map(|member| self.claim(member, self.waits && member == self.gate)).collect()
    }

    /// Claims at the gate only. While others hold, its holds at other members would be in their way. The other members
    /// are asked when the gate has granted.
    pub fn begin_at_gate(&mut self, at_least: GrantNumber) -> Vec<Ask> {
        self.begin_at(|_| false, at_least)
    }

    /// Takes the answer to the request that was sent to `member` with this stamp, at this time.
    pub fn hear(&mut self, member: usize, stamp: Stamp, sent: BootTime, said: &Said) {
        let any_order = self.makes(Mistake::LateAnswers);
        let first_floor = self.makes(Mistake::GrantTimeFloors);
        let Some(at) = self.members.get_mut(member) else { return };
        at.answered(stamp);
        if stamp < at.from && !any_order {
            return;
        }
        // A hold that is claimed again has no other id to come back with. It waits for the end of the tombstone, and so
        // does one that met it before it was granted: renewals go there, too.
        let waits_for_it = *said == Said::Stale && self.phase != Phase::Asking;
        at.take(stamp, sent, if waits_for_it { &Said::Gone } else { said }, first_floor);
        self.expects_gate &= member != self.gate;
        if let Said::Evicted(reason) = said
            && !matches!(self.phase, Phase::Ended(_))
        {
            self.phase = Phase::Ended(Ended::Evicted(reason.clone()));
        }
    }

    /// Notes that no answer to this request came in time. One may come later.
    pub fn silent(&mut self, member: usize, stamp: Stamp) {
        if let Some(at) = self.members.get_mut(member) {
            at.silent(stamp);
        }
    }

    /// Notes that this request was never sent, and will not arrive.
    pub fn unsent(&mut self, member: usize, stamp: Stamp) {
        if let Some(at) = self.members.get_mut(member) {
            at.silent(stamp);
            at.answered(stamp);
        }
    }

    /// Forgets the hold at this member: another server has its place, so the grant of the one before does not count any
    /// more.
    pub fn forget(&mut self, member: usize) {
        if let Some(at) = self.members.get_mut(member) {
            at.forget();
        }
    }

    /// Returns the requests to send next. Call it after every answer; requests under way are not asked for again.
    pub fn next(&mut self, now: BootTime) -> Vec<Ask> {
        self.count(now);
        match self.phase {
            Phase::Asking => self.next_while_asking(now),
            Phase::Holding { .. } => {
                let mut asks = self.create_again(now);
                asks.extend(self.level(now));
                asks
            }
            Phase::Adopting { .. } | Phase::Ended(_) => Vec::new(),
        }
    }

    fn next_while_asking(&mut self, now: BootTime) -> Vec<Ask> {
        let others: Vec<usize> = (0..self.members.len()).filter(|member| *member != self.gate).collect();
        match self.members[self.gate].status(now) {
            Status::InQueue if self.expects_gate && self.members[self.gate].is_claiming() => Vec::new(),
            // The next contender in the queue of the gate needs the others. Staying there would overtake it, or block
            // it.
            Status::InQueue | Status::Busy => {
                let is_there = |at: &AtMember| {
                    matches!(at.status(now), Status::Held | Status::InQueue) || at.has_lost_claim()
                };
                let there = others.into_iter().filter(|member| is_there(&self.members[*member]));
                let there: Vec<usize> = there.collect();
                let mut asks: Vec<Ask> = there.into_iter().map(|member| self.leave_one(member)).collect();
                asks.extend(self.enter(self.gate, now));
                asks
            }
            Status::Held => {
                let mut asks = self.raise_to(self.target, now);
                asks.extend(others.into_iter().filter_map(|member| self.enter(member, now)));
                asks
            }
            Status::Out | Status::Gone => self.enter(self.gate, now).into_iter().collect(),
            Status::Leaving | Status::Spent | Status::Tombstoned => Vec::new(),
        }
    }

    /// Claims at `member` with a position in the queue, if it is neither there nor asked.
    fn enter(&mut self, member: usize, now: BootTime) -> Option<Ask> {
        let at = &self.members[member];
        let free = match at.status(now) {
            Status::Out | Status::Gone | Status::Busy => true,
            // A leave that is still under way could arrive after the claim, and end the hold that it brings.
            Status::Leaving => self.makes(Mistake::ClaimBeforeLeft),
            Status::Held | Status::InQueue | Status::Spent | Status::Tombstoned => false,
        };
        (free && self.waits && !at.is_claiming()).then(|| self.claim(member, true))
    }

    /// Raises numbers below this one, and those from before the member voted, where that is not under way.
    fn raise_to(&mut self, number: GrantNumber, now: BootTime) -> Vec<Ask> {
        let low = (0..self.members.len()).filter_map(|member| {
            let at = &self.members[member];
            let to = at.low(number, now).filter(|to| !at.is_raising(*to))?;
            Some((member, to))
        });
        let low: Vec<(usize, GrantNumber)> = low.collect();
        low.into_iter().map(|(member, to)| self.send(member, Request::Raise { to })).collect()
    }

    /// Claims again where the hold is gone, if a majority without that member has confirmed it in this round: a member
    /// that has lost its data gets it back, but an eviction or a lost majority is not undone.
    fn create_again(&mut self, now: BootTime) -> Vec<Ask> {
        let Phase::Holding { number, .. } = self.phase else { return Vec::new() };
        // A reader's number at that member could not be the one that it was told.
        if self.sharing == Sharing::Shared {
            return Vec::new();
        }
        let round = self.round;
        let held = self.members.iter().filter(|at| at.heard >= round && at.counts(now)).count();
        let enough = held >= self.majority.needed() || self.makes(Mistake::CreateAgainAlone);
        let gone = |at: &AtMember| at.status(now) == Status::Gone && at.heard >= round && !at.is_claiming();
        let gone = (0..self.members.len()).filter(|member| enough && gone(&self.members[*member]));
        let gone: Vec<usize> = gone.collect();
        self.at_least = self.at_least.max(number);
        gone.into_iter().map(|member| self.claim(member, false)).collect()
    }

    /// Begins to bring all members to the same number.
    pub fn begin_to_level(&mut self) {
        self.levels = true;
    }

    /// The number that all members are to show: the highest of them. There is one only for an exclusive hold, because
    /// others take the number that a member shows for the floor that they must not exceed.
    fn top(&self, now: BootTime) -> Option<GrantNumber> {
        let levels = self.levels && self.sharing == Sharing::Exclusive;
        self.members.iter().filter(|_| levels).filter_map(|at| at.vote(now)).map(|vote| vote.number).max()
    }

    /// Raises numbers below the highest.
    fn level(&mut self, now: BootTime) -> Vec<Ask> {
        let Some(top) = self.top(now) else { return Vec::new() };
        self.levels_to = self.levels_to.max(top);
        self.raise_to(top, now)
    }

    /// Takes note that a member said by itself that it has granted. If it can only be the gate, all are asked at once:
    /// the answer of the gate decides whether the grants of the others are kept.
    pub fn pushed(&mut self, now: BootTime) -> Vec<Ask> {
        let gate = &self.members[self.gate];
        if self.phase != Phase::Asking || gate.status(now) != Status::InQueue || gate.is_claiming() {
            let mut asks = self.next(now);
            asks.extend(self.ask_again(now));
            return asks;
        }
        self.expects_gate = true;
        let mut asks = vec![self.claim(self.gate, true)];
        let others = (0..self.members.len()).filter(|member| *member != self.gate);
        let others: Vec<usize> = others.collect();
        asks.extend(others.into_iter().filter_map(|member| self.enter(member, now)));
        asks
    }

    /// Asks again at every member in whose queue it waits.
    pub fn ask_again(&mut self, now: BootTime) -> Vec<Ask> {
        let in_queue = |at: &AtMember| at.status(now) == Status::InQueue && !at.is_claiming();
        let in_queue = (0..self.members.len()).filter(|member| in_queue(&self.members[*member]));
        let in_queue: Vec<usize> = in_queue.collect();
        in_queue.into_iter().map(|member| self.claim(member, true)).collect()
    }

    /// Claims at `member` without a position in the queue, if that is not under way and the id may be used there. So
    /// it hears whether that member serves somebody.
    pub(crate) fn ask_whether_it_serves(&mut self, member: usize, now: BootTime) -> Option<Ask> {
        let at = &self.members[member];
        let is_free = matches!(at.status(now), Status::Out | Status::Gone | Status::Busy | Status::Held);
        let asks = self.phase == Phase::Asking && is_free && !at.is_claiming();
        asks.then(|| self.claim(member, false))
    }

    /// Renews: everywhere once it holds, and before that at the members that have granted.
    pub fn renew(&mut self, now: BootTime) -> Vec<Ask> {
        self.round = self.next_stamp;
        let (everywhere, at_least) = match self.phase {
            Phase::Asking => (false, 0),
            Phase::Holding { .. } => {
                let top = self.top(now).unwrap_or(0);
                self.levels_to = self.levels_to.max(top);
                (true, top.max(self.target))
            }
            Phase::Adopting { number } => (true, number),
            Phase::Ended(_) => return Vec::new(),
        };
        let asked = |at: &AtMember| match at.status(now) {
            Status::Leaving | Status::Spent => false,
            Status::Held => true,
            _ => everywhere,
        };
        let members: Vec<usize> =
            (0..self.members.len()).filter(|member| asked(&self.members[*member])).collect();
        members.into_iter().map(|member| self.send(member, Request::Renew { at_least })).collect()
    }

    /// Waits at another gate: the one so far is silent.
    pub fn change_gate(&mut self, gate: usize) -> Vec<Ask> {
        if gate == self.gate || self.phase != Phase::Asking {
            return Vec::new();
        }
        let before = std::mem::replace(&mut self.gate, gate);
        self.expects_gate = false;
        // A member to which nothing was sent needs no leave, and the id stays usable there. A leave that may still
        // arrive must stay the last one: the answer to another one would say that the id can be used there again.
        let leaves = self.is_there(before) && self.is_usable(before, BootTime(0));
        leaves.then(|| self.leave_one(before)).into_iter().collect()
    }

    /// Gives everything back. The attempt is over.
    pub fn leave(&mut self) -> Vec<Ask> {
        self.phase = Phase::Ended(match &self.phase {
            Phase::Ended(Ended::Evicted(reason)) => Ended::Evicted(reason.clone()),
            Phase::Ended(Ended::Lost) => Ended::Lost,
            _ => Ended::Left,
        });
        let members: Vec<usize> = (0..self.members.len()).filter(|member| self.is_there(*member)).collect();
        members.into_iter().map(|member| self.leave_one(member)).collect()
    }

    /// Whether it may hold or wait at this member.
    pub(crate) fn is_there(&self, member: usize) -> bool {
        self.members.get(member).is_some_and(|at| at.heard > Stamp(0) || at.may_arrive())
    }

    /// Lets others hold at the same time. False if too few members show exactly its number, or some may come to show a
    /// higher one, so that others could not tell its floor. Nothing was changed then.
    pub fn share(&mut self, now: BootTime) -> bool {
        let before = std::mem::replace(&mut self.sharing, Sharing::Shared);
        let stays = self.levels_to <= self.target;
        let enough = stays && self.hold(now).is_some_and(|hold| hold.number == self.target);
        if !enough {
            self.sharing = before;
        }
        enough
    }

    /// Whether a majority has confirmed the hold in the latest round of renewals.
    pub fn is_confirmed(&self, now: BootTime) -> bool {
        let confirmed = self.members.iter().filter(|at| at.heard >= self.round && at.counts(now)).count();
        self.hold(now).is_some() && confirmed >= self.majority.needed()
    }

    /// Whether so many members have said in the latest round of renewals that they do not have it, or have no vote,
    /// that the others are no majority.
    pub fn is_refuted(&self, now: BootTime) -> bool {
        let against = |at: &&AtMember| at.heard >= self.round && !at.counts(now);
        self.members.len() - self.members.iter().filter(against).count() < self.majority.needed()
    }

    /// How many members have ever answered.
    pub fn heard(&self) -> usize {
        self.members.iter().filter(|at| at.heard > Stamp(0)).count()
    }

    /// Whether it holds at this member.
    pub fn is_held(&self, member: usize, now: BootTime) -> bool {
        self.members.get(member).is_some_and(|at| at.status(now) == Status::Held)
    }

    /// Whether the answer to a claim at this member is waited for.
    pub fn is_claiming(&self, member: usize) -> bool {
        self.members.get(member).is_some_and(AtMember::is_claiming)
    }

    /// Whether a claim that was sent to this member has no answer, and may still arrive.
    pub fn may_arrive(&self, member: usize) -> bool {
        self.members.get(member).is_some_and(AtMember::may_arrive)
    }

    /// Whether the answer to a claim is under way, even if it says nothing any more.
    pub fn awaits_claim(&self, member: usize) -> bool {
        self.members.get(member).is_some_and(AtMember::awaits_claim)
    }

    /// Whether a leave was sent to this member that has no answer.
    pub fn is_leaving(&self, member: usize) -> bool {
        let leaves = |at: &AtMember| matches!(at.status(BootTime(0)), Status::Leaving | Status::Spent);
        self.members.get(member).is_some_and(|at| leaves(at) && !at.has_left())
    }

    /// Whether this id may still be used at this member.
    pub fn is_usable(&self, member: usize, now: BootTime) -> bool {
        let status = self.members.get(member).map(|at| at.status(now));
        status.is_some_and(|status| !matches!(status, Status::Leaving | Status::Spent | Status::Tombstoned))
    }

    /// Returns the member in whose queue it waits.
    pub fn gate(&self) -> usize {
        self.gate
    }

    /// Whether the answer to this request says nothing any more.
    pub fn is_late(&self, member: usize, stamp: Stamp) -> bool {
        self.members.get(member).is_none_or(|at| stamp < at.from)
    }

    /// Whether it waits in the queue of this member.
    pub fn is_in_queue(&self, member: usize, now: BootTime) -> bool {
        self.members.get(member).is_some_and(|at| at.status(now) == Status::InQueue)
    }

    /// Whether its id cannot be used at this member any more: a leave got no answer, and may arrive at any time, or it
    /// has left a tombstone.
    pub fn is_spent(&self, member: usize, now: BootTime) -> bool {
        let status = self.members.get(member).map(|at| at.status(now));
        status.is_some_and(|status| matches!(status, Status::Spent | Status::Tombstoned))
    }

    /// Whether it neither holds nor has ended yet.
    pub fn is_asking(&self) -> bool {
        self.phase == Phase::Asking
    }

    /// Returns the way in which it ended, if it did.
    pub fn ended(&self) -> Option<&Ended> {
        match &self.phase {
            Phase::Ended(ended) => Some(ended),
            _ => None,
        }
    }

    /// How many members have confirmed that it left.
    pub fn left(&self) -> usize {
        self.members.iter().filter(|at| at.has_left()).count()
    }

    fn claim(&mut self, member: usize, queue: bool) -> Ask {
        self.send(member, Request::Claim { queue, at_least: self.at_least })
    }

    fn leave_one(&mut self, member: usize) -> Ask {
        let tombstone = self.members[member].may_arrive();
        self.send(member, Request::Leave { tombstone })
    }

    fn send(&mut self, member: usize, request: Request) -> Ask {
        let stamp = self.next_stamp;
        self.next_stamp = Stamp(stamp.0 + 1);
        self.members[member].sent(stamp, request);
        Ask { member, stamp, request }
    }

    /// Whether a test has planted this mistake.
    #[cfg(test)]
    fn makes(&self, mistake: Mistake) -> bool {
        self.mistake == Some(mistake)
    }

    #[cfg(not(test))]
    #[expect(clippy::unused_self, reason = "tests plant mistakes in it")]
    fn makes(&self, _mistake: Mistake) -> bool {
        false
    }

    /// Returns the same attempt in another process, which hears no answers to earlier requests.
    #[cfg(test)]
    pub(crate) fn elsewhere(mut self, before: &Self) -> Self {
        let first = before.next_stamp;
        for at in &mut self.members {
            (at.from, at.heard) = (first, first);
        }
        self.next_stamp = Stamp(first.0 + 1);
        self
    }

    /// Plants a mistake.
    #[cfg(test)]
    pub(crate) fn making(self, mistake: Option<Mistake>) -> Self {
        Self { mistake, ..self }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// A contender met its tombstone at one member, and was granted by the others. When the tombstone has ended, it
    /// holds at that member, too, and can do without another one.
    #[test]
    fn a_hold_comes_to_a_member_whose_tombstone_it_met() {
        let now = BootTime(1_000_000_000_000);
        let held =
            Said::Held { number: 7, floor: 7, remaining: Duration::from_secs(1), votes: true, since: 0 };
        let mut attempt = Attempt::new(Majority::of(3).expect("odd"), Sharing::Exclusive, 0);
        // It leaves the first gate, and comes back to that member when the second one has granted.
        for ask in attempt.begin(7) {
            attempt.hear(ask.member, ask.stamp, now, &Said::Busy { in_queue: ask.member == 0 });
        }
        for ask in attempt.change_gate(1) {
            attempt.hear(ask.member, ask.stamp, now, &Said::Left);
        }
        for ask in attempt.next(now) {
            attempt.hear(ask.member, ask.stamp, now, &held);
        }
        for ask in attempt.next(now) {
            attempt.hear(ask.member, ask.stamp, now, if ask.member == 0 { &Said::Stale } else { &held });
        }
        assert!(attempt.is_spent(0, now) && attempt.next(now).is_empty());
        assert!(attempt.hold(now).is_some());
        let renewals = attempt.renew(now);
        assert_eq!(renewals.len(), 3, "{renewals:?}");
        for ask in renewals {
            attempt.hear(ask.member, ask.stamp, now, if ask.member == 0 { &Said::Gone } else { &held });
        }
        let claims = attempt.next(now);
        assert!(matches!(&claims[..], [Ask { member: 0, request: Request::Claim { .. }, .. }]), "{claims:?}");
    }

    /// A poll was under way for so long that the member did not take it. No leave was sent there, so it met no
    /// tombstone, and its position is still there.
    #[test]
    fn a_claim_that_was_too_late_costs_no_position() {
        let now = BootTime(1_000_000_000_000);
        let mut attempt = Attempt::new(Majority::of(3).expect("odd"), Sharing::Exclusive, 0);
        let first = attempt.begin(7);
        for (late, ask) in first.into_iter().enumerate() {
            let said = if late == 0 { Said::Stale } else { Said::Busy { in_queue: false } };
            attempt.hear(ask.member, ask.stamp, now, &said);
        }
        assert!(!attempt.is_spent(0, now));
        let claims = attempt.next(now);
        assert!(matches!(&claims[..], [Ask { member: 0, request: Request::Claim { queue: true, .. }, .. }]));
        attempt.hear(0, claims[0].stamp, now, &Said::Busy { in_queue: true });
        for _ in 0..3 {
            let polls = attempt.ask_again(now);
            assert!(matches!(
                &polls[..],
                [Ask { member: 0, request: Request::Claim { queue: true, .. }, .. }]
            ));
            attempt.hear(0, polls[0].stamp, now, &Said::Stale);
            assert!(attempt.is_in_queue(0, now) && !attempt.is_spent(0, now));
            assert!(attempt.next(now).is_empty());
        }
    }
}
