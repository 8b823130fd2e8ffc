//! One contender of this keeper: its attempt, and the code that turns the attempt's requests into those of members and
//! back.
//!
//! Nothing here sends or waits. `quorum.rs` does.

use std::{
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use lockkeeper_core::{
    Capacity, ContenderId, Name, StoreError, Units,
    clock::BootTime,
    store::{Answer, Claim, Grant, Leave, Left, Renew, Renewed, Request as StoreRequest, StoreTime, Verdict},
    support,
};
use tokio::sync::Notify;

use crate::{Ask, Attempt, Request, Said, link::Link, member_ids::HeardVote, record::Vote};

/// One contender.
#[derive(Debug)]
pub(crate) struct Contest {
    pub(crate) name: Name,
    pub(crate) contender: ContenderId,
    /// The claim that copies are made of. `None` if it was granted in another process.
    pub(crate) claim: Option<Claim>,
    state: Mutex<ContestState>,
    /// Told when something was heard.
    pub(crate) changed: Notify,
}

#[derive(Debug)]
pub(crate) struct ContestState {
    pub(crate) attempt: Attempt,
    /// The terms of its renewals.
    pub(crate) renewal: Renewal,
    /// The time of its last renewal.
    pub(crate) renewed: BootTime,
    /// The time when the engine last asked about it.
    pub(crate) touched: BootTime,
    /// A hold younger than this is kept by members until it is this old.
    pub(crate) hold_at_least: Duration,
    /// Per member, the number of requests without an answer, leaves not counted.
    outstanding: Vec<usize>,
    /// The position in the queue of the gate, as last heard.
    pub(crate) position: Option<Position>,
    /// The time since which it holds at its gate without holding altogether.
    pub(crate) at_gate_since: Option<BootTime>,
    /// Whether the engine was told that it waits, so that it has to be told of a grant.
    pub(crate) told_waiting: bool,
    /// Per member, whether something was pushed while a claim was in flight there: its answer may be older.
    hinted: Vec<bool>,
    /// Another capacity that is in use at a member.
    pub(crate) mismatch: Option<Capacity>,
    /// Per member, the time until which claims that were sent there may take effect.
    claims_until: Vec<Option<StoreTime>>,
    /// The answers of members to the leave.
    pub(crate) left: Vec<Option<Left>>,
    /// Per member, the time since which the answer to the leave is *not now*.
    not_left_since: Vec<Option<BootTime>>,
    /// Whether it held when the leave began.
    pub(crate) held: bool,
    /// Per member, whether a copy of the leave got no answer and may have been done.
    unsure: Vec<bool>,
    /// The last answer of each member, for people.
    pub(crate) last_answers: Vec<Option<LastAnswer>>,
}

/// The terms of a renewal.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Renewal {
    pub(crate) lease: Duration,
    pub(crate) lower_to: Option<Units>,
    pub(crate) detach: bool,
}

impl Renewal {
    /// Returns the terms of the next renewal. A hold that is to be detached or lowered stays so: a round that a later
    /// one has overtaken may have reached too few members.
    pub(crate) fn followed_by(self, next: Self) -> Self {
        let lower_to = next.lower_to.or(self.lower_to);
        Self { lease: next.lease, lower_to, detach: next.detach || self.detach }
    }
}

/// A position in the queue of a member.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Position {
    pub(crate) ahead: u32,
    pub(crate) retry_in: Duration,
    /// The time when the claim was sent that was answered with it.
    pub(crate) asked: BootTime,
}

/// The last answer of a member, for people.
#[derive(Clone, Debug)]
pub(crate) enum LastAnswer {
    Granted,
    GrantedWithoutVote,
    Busy,
    Gone,
    Refused(StoreError),
}

impl LastAnswer {
    /// A failure that asking again does not mend. Others are the trouble of the link.
    pub(crate) fn of_failure(error: &StoreError) -> Option<Self> {
        (!error.is_passing()).then(|| Self::Refused(error.clone()))
    }
}

/// The times when a request was sent and when its answer came.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Moment {
    pub(crate) sent: BootTime,
    pub(crate) received: BootTime,
}

/// The outcome of an answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Taken {
    /// The attempt goes on.
    Done,
    /// The member did not take the claim. Asking again at once would bring the same.
    Refused,
    /// Nothing was done for now, and it is to be sent again.
    NotNow,
}

/// The result of preparing a request that is about to be sent.
pub(crate) enum Prepared {
    Request(StoreRequest),
    /// It says nothing any more.
    Pointless,
    /// It is a leave, and the contender was never at that member.
    NeverThere,
}

/// A request of one contender to one member.
#[derive(Clone, Debug)]
pub(crate) struct Outgoing {
    pub(crate) contest: Arc<Contest>,
    pub(crate) ask: Ask,
    /// The terms if it is a renewal: those of the round that it belongs to, not of a later one.
    pub(crate) renewal: Renewal,
    /// How often it was answered with *not now*.
    pub(crate) tries: u32,
}

impl Outgoing {
    pub(crate) fn is_leave(&self) -> bool {
        matches!(self.ask.request, Request::Leave { .. })
    }

    /// Whether it is a leave, and the answer to a claim of its contender is under way.
    pub(crate) fn waits_for_claim(&self) -> bool {
        self.is_leave() && self.contest.state().attempt.awaits_claim(self.ask.member)
    }

    /// Takes the failure of a leave. If the leave may arrive later, its contender's id must not be used at that member
    /// again, even if another copy of the leave is answered: the late one would end the hold that a new claim brings.
    pub(crate) fn leave_failed(&self, error: &StoreError) {
        let mut state = self.contest.state();
        state.last_answers[self.ask.member] = LastAnswer::of_failure(error);
        if error.maybe_applied() {
            state.attempt.silent(self.ask.member, self.ask.stamp);
            state.unsure[self.ask.member] = true;
        }
    }

    /// Returns the renewal for the member.
    pub(crate) fn to_renewal(&self) -> Option<Renew> {
        let Renewal { lease, lower_to, detach } = self.renewal;
        let (name, contender) = (self.contest.name.clone(), self.contest.contender);
        match self.ask.request {
            Request::Raise { to } => {
                let lease = Duration::ZERO;
                Some(Renew { name, contender, lease, lower_to: None, detach: false, at_least: to })
            }
            Request::Renew { at_least } => Some(Renew { name, contender, lease, lower_to, detach, at_least }),
            Request::Claim { .. } | Request::Leave { .. } => None,
        }
    }

    pub(crate) fn is_renewal(&self) -> bool {
        matches!(self.ask.request, Request::Raise { .. } | Request::Renew { .. })
    }
}

impl Contest {
    pub(crate) fn new(
        name: Name,
        contender: ContenderId,
        claim: Option<Claim>,
        attempt: Attempt,
        renewal: Renewal,
        members: usize,
    ) -> Self {
        let state = ContestState {
            attempt,
            renewal,
            renewed: BootTime(0),
            touched: BootTime(0),
            hold_at_least: Duration::ZERO,
            outstanding: vec![0; members],
            position: None,
            at_gate_since: None,
            told_waiting: false,
            hinted: vec![false; members],
            mismatch: None,
            claims_until: vec![None; members],
            left: vec![None; members],
            not_left_since: vec![None; members],
            held: false,
            unsure: vec![false; members],
            last_answers: vec![None; members],
        };
        Self { name, contender, claim, state: Mutex::new(state), changed: Notify::new() }
    }

    /// Whether it waits in the queue if it is not served at once.
    pub(crate) fn waits(&self) -> bool {
        self.claim.as_ref().is_some_and(|claim| claim.queue)
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, ContestState> {
        support::lock(&self.state)
    }

    /// The asks of its attempt, as requests to send.
    pub(crate) fn outgoing(self: &Arc<Self>, state: &mut ContestState, asks: Vec<Ask>) -> Vec<Outgoing> {
        let renewal = state.renewal;
        let outgoing = asks.into_iter().map(|ask| Outgoing { contest: self.clone(), ask, renewal, tries: 0 });
        let outgoing: Vec<Outgoing> = outgoing.collect();
        for Ask { member, request, .. } in outgoing.iter().map(|one| one.ask) {
            state.hinted[member] &= !matches!(request, Request::Claim { .. });
            state.outstanding[member] += usize::from(!matches!(request, Request::Leave { .. }));
        }
        outgoing
    }

    /// Prepares a claim or leave that is about to be sent.
    pub(crate) fn prepare(&self, link: &Link, ask: &Ask, sent: BootTime) -> Prepared {
        let mut state = self.state();
        if state.is_pointless(ask) {
            return Prepared::Pointless;
        }
        if self.claim.is_some() && state.was_never_there(ask) {
            return Prepared::NeverThere;
        }
        self.request_of(&mut state, link, ask, sent).map_or(Prepared::Pointless, Prepared::Request)
    }

    /// Returns the claim or leave for a member.
    pub(crate) fn request(&self, link: &Link, ask: &Ask, sent: BootTime) -> Option<StoreRequest> {
        self.request_of(&mut self.state(), link, ask, sent)
    }

    fn request_of(
        &self,
        state: &mut ContestState,
        link: &Link,
        ask: &Ask,
        sent: BootTime,
    ) -> Option<StoreRequest> {
        match ask.request {
            Request::Claim { queue, at_least } => {
                let claim = self.claim.as_ref()?;
                let until = &mut state.claims_until[ask.member];
                let again = until.is_some();
                let not_after = link.not_after(sent);
                *until = Some(until.unwrap_or_default().max(not_after));
                let stamp = sent.0;
                Some(StoreRequest::Claim(Claim { queue, at_least, not_after, again, stamp, ..claim.clone() }))
            }
            Request::Leave { tombstone } => {
                // A contender of another process may have sent claims that are not known here.
                let unknown = self.claim.is_none().then(|| link.not_after(sent));
                // The answers to its claims may have come since the leave was decided on.
                let may_arrive = tombstone && state.attempt.may_arrive(ask.member);
                let tombstone_until = state.claims_until[ask.member].filter(|_| may_arrive).max(unknown);
                Some(StoreRequest::Leave(Leave {
                    name: self.name.clone(),
                    contender: self.contender,
                    tombstone_until,
                    hold_at_least: state.hold_at_least,
                }))
            }
            Request::Raise { .. } | Request::Renew { .. } => None,
        }
    }

    /// Takes an answer to a claim or leave.
    pub(crate) fn take(&self, ask: &Ask, at: Moment, vote: &HeardVote<'_>, answer: Answer) -> Taken {
        let (mut state, sent) = (self.state(), at.sent);
        let vote = vote.that_counts();
        // A hold whose time is over stays lost, even if an answer comes now.
        state.attempt.count(at.received);
        let in_queue = matches!(ask.request, Request::Claim { queue: true, .. });
        let (said, last) = match answer {
            Answer::Claim(Verdict::Granted(grant)) => (held(&grant, vote), granted(vote)),
            Answer::Claim(Verdict::Busy { ahead, retry_in, .. }) => {
                if ask.member == state.attempt.gate() {
                    state.position = Some(Position { ahead, retry_in, asked: sent });
                }
                (Said::Busy { in_queue }, LastAnswer::Busy)
            }
            Answer::Claim(Verdict::Mismatch { in_use, .. }) => {
                state.mismatch = Some(in_use);
                (Said::Busy { in_queue: false }, LastAnswer::Busy)
            }
            Answer::Claim(Verdict::NotNow(_)) => return Taken::NotNow,
            Answer::Leave(Left::NotNow) => {
                if !state.attempt.is_late(ask.member, ask.stamp) {
                    state.not_left_since[ask.member].get_or_insert(at.received);
                }
                return Taken::NotNow;
            }
            Answer::Claim(Verdict::Refused(error)) => {
                state.is_answered(ask.member);
                state.last_answers[ask.member] = Some(LastAnswer::Refused(error));
                state.attempt.unsent(ask.member, ask.stamp);
                return Taken::Refused;
            }
            // Too late for the member's clock, or a tombstone is there.
            Answer::Claim(_) => {
                state.is_answered(ask.member);
                state.last_answers[ask.member] = Some(LastAnswer::Gone);
                state.attempt.hear(ask.member, ask.stamp, sent, &Said::Stale);
                return Taken::Refused;
            }
            Answer::Leave(left) => {
                state.last_answers[ask.member] = None;
                state.not_left_since[ask.member] = None;
                // An earlier leave, made while it waited, says nothing about the last one.
                if !state.attempt.is_late(ask.member, ask.stamp) {
                    // If a copy finds nothing, an earlier one was there.
                    let done_before = left == Left::NotThere && state.held && state.unsure[ask.member];
                    state.left[ask.member] = Some(if done_before { Left::Released } else { left });
                }
                state.attempt.hear(ask.member, ask.stamp, sent, &Said::Left);
                return Taken::Done;
            }
        };
        state.is_answered(ask.member);
        state.last_answers[ask.member] = Some(last);
        state.attempt.hear(ask.member, ask.stamp, sent, &said);
        Taken::Done
    }

    /// Takes an answer to a renewal.
    pub(crate) fn take_renewed(&self, ask: &Ask, at: Moment, vote: &HeardVote<'_>, answer: Renewed) {
        let (mut state, sent) = (self.state(), at.sent);
        let vote = vote.that_counts();
        state.attempt.count(at.received);
        state.is_answered(ask.member);
        let (said, last) = match answer {
            Renewed::Held(grant) => (held(&grant, vote), granted(vote)),
            Renewed::Gone => (Said::Gone, LastAnswer::Gone),
            Renewed::Evicted(reason) => (Said::Evicted(reason), LastAnswer::Gone),
            Renewed::Unknown => return state.attempt.silent(ask.member, ask.stamp),
        };
        state.last_answers[ask.member] = Some(last);
        state.attempt.hear(ask.member, ask.stamp, sent, &said);
    }

    /// Takes an error in place of an answer. If the request was not applied, it never will be.
    pub(crate) fn failed(&self, ask: &Ask, error: &StoreError) {
        let mut state = self.state();
        state.is_answered(ask.member);
        state.last_answers[ask.member] = LastAnswer::of_failure(error);
        match error.maybe_applied() {
            true => state.attempt.silent(ask.member, ask.stamp),
            false => state.attempt.unsent(ask.member, ask.stamp),
        }
    }

    /// Whether a request says nothing any more, so that it need not be sent.
    pub(crate) fn is_pointless(&self, ask: &Ask) -> bool {
        self.state().is_pointless(ask)
    }
}

impl ContestState {
    /// Whether a request says nothing any more, so that it need not be sent: a leave was sent after it, or an answer to
    /// a later one was taken. A claim that is sent after its leave could outlast the tombstone.
    fn is_pointless(&mut self, ask: &Ask) -> bool {
        let is_late = self.attempt.is_late(ask.member, ask.stamp);
        if is_late && !matches!(ask.request, Request::Leave { .. }) {
            self.is_answered(ask.member);
            self.attempt.unsent(ask.member, ask.stamp);
            return true;
        }
        false
    }

    /// Takes a leave as done if no claim of the contender was ever sent to that member.
    fn was_never_there(&mut self, ask: &Ask) -> bool {
        let is_leave = matches!(ask.request, Request::Leave { .. });
        let never = is_leave && self.claims_until[ask.member].is_none();
        if never {
            if !self.attempt.is_late(ask.member, ask.stamp) {
                self.left[ask.member] = Some(Left::NotThere);
            }
            self.attempt.hear(ask.member, ask.stamp, BootTime(0), &Said::Left);
        }
        never
    }

    /// Whether it holds, and the engine believes that it waits. The engine counts as told from now on.
    pub(crate) fn has_news(&mut self, now: BootTime) -> bool {
        let has_news = self.told_waiting && self.attempt.hold(now).is_some();
        self.told_waiting &= !has_news;
        has_news
    }

    /// How long this member has answered a leave with *not now*. Until it does the leave, the id cannot be used there.
    pub(crate) fn cannot_leave_for(&self, member: usize, now: BootTime) -> Duration {
        self.not_left_since[member].map_or(Duration::ZERO, |since| now.since(since))
    }

    /// Notes that a request other than a leave is not under way any more.
    fn is_answered(&mut self, member: usize) {
        self.outstanding[member] = self.outstanding[member].saturating_sub(1);
    }

    /// The members that have not answered a request.
    pub(crate) fn outstanding(&self) -> impl Iterator<Item = usize> {
        self.outstanding.iter().enumerate().filter(|(_, count)| **count > 0).map(|(member, _)| member)
    }

    /// Takes a push, perhaps of a grant to this contender, and returns the requests to send now. If a claim is in
    /// flight, its answer is followed by another one.
    pub(crate) fn pushed(&mut self, is_granted: bool, now: BootTime) -> Vec<Ask> {
        for (member, hinted) in self.hinted.iter_mut().enumerate() {
            *hinted |= self.attempt.is_claiming(member);
        }
        match is_granted && self.mismatch.is_none() {
            true => self.attempt.pushed(now),
            false => self.ask_now(now),
        }
    }

    /// Notes the time since which it holds at its gate.
    pub(crate) fn note_gate(&mut self, now: BootTime) {
        let is_held = self.attempt.is_held(self.attempt.gate(), now);
        self.at_gate_since = self.at_gate_since.or(Some(now)).filter(|_| is_held);
    }

    /// Returns the requests that follow the answer to this one.
    pub(crate) fn goes_on(&mut self, answered: &Ask, now: BootTime) -> Vec<Ask> {
        self.note_gate(now);
        match std::mem::take(&mut self.hinted[answered.member]) {
            true => self.ask_now(now),
            false if self.mismatch.is_some() => Vec::new(),
            false => self.attempt.next(now),
        }
    }

    /// Returns the requests that are missing, and polls of the queues that it waits in.
    pub(crate) fn ask_now(&mut self, now: BootTime) -> Vec<Ask> {
        if self.mismatch.is_some() {
            return Vec::new();
        }
        let mut asks = self.attempt.next(now);
        asks.extend(self.attempt.ask_again(now));
        asks
    }
}

fn held(grant: &Grant, vote: Vote) -> Said {
    let Grant { number, floor, remaining } = *grant;
    let (votes, since) = match vote {
        Vote::Since(since) => (true, since),
        Vote::None => (false, 0),
    };
    Said::Held { number, floor, remaining, votes, since }
}

fn granted(vote: Vote) -> LastAnswer {
    if vote == Vote::None { LastAnswer::GrantedWithoutVote } else { LastAnswer::Granted }
}
