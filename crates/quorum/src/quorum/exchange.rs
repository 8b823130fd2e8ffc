//! Sends the requests of attempts to members, and gives the attempts their answers.
//!
//! An [`Exchange`] is one request to one member. It gives the exchanges that follow from its answer. `under_way.rs`
//! polls all of them to their end: an answer that is late must still be taken, and a leave must be sent until it is
//! answered.

use std::{
    collections::BTreeSet,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use lockkeeper_core::{
    Name, StoreError, StoreErrorKind,
    clock::BootTime,
    model::WAIT_LEASE,
    store::{Answer, MemberAnswers, Membership, Renew, Request, StoreTime, Topic, Verdict, Wake},
    support::{self, backoff::Backoff},
};

use super::{
    Quorum,
    avoided::{NOT_NOW_PAUSE, NOT_NOW_TRIES},
};
use crate::{
    contest::{Contest, Moment, Outgoing, Prepared, Taken},
    link::Link,
    member_ids::HeardVote,
    record::Vote,
};

/// The pauses between copies of a leave.
const LEAVE_BACKOFF: Backoff = Backoff::new(Duration::from_millis(50), Duration::from_secs(2));
/// How often a member that is suspected is asked whether it answers again.
const ASK_SILENT_PAUSE: Duration = Duration::from_millis(50);

/// Requests that go to one member together.
pub(crate) enum Exchange {
    Requests(usize, Vec<Outgoing>),
    Renewals(usize, Vec<Outgoing>),
}

impl Quorum {
    /// Sends requests, and has the keeper's runtime wait for the answers.
    pub(crate) fn send(self: &Arc<Self>, outgoing: Vec<Outgoing>) {
        self.in_background(self.exchanges(outgoing));
    }

    /// Returns the exchanges to send now for these requests: one group for each member, and one more for its renewals.
    pub(crate) fn exchanges(self: &Arc<Self>, outgoing: Vec<Outgoing>) -> Vec<Exchange> {
        if outgoing.is_empty() {
            return Vec::new();
        }
        let mut batches: Vec<(Vec<Outgoing>, Vec<Outgoing>)> = Vec::new();
        batches.resize_with(self.links.len(), Default::default);
        for outgoing in outgoing {
            let (requests, renewals) = &mut batches[outgoing.ask.member];
            if outgoing.is_renewal() { renewals.push(outgoing) } else { requests.push(outgoing) }
        }
        let mut exchanges: Vec<Exchange> = Vec::new();
        for (member, (requests, renewals)) in batches.into_iter().enumerate() {
            let leaves = requests.iter().filter(|outgoing| outgoing.is_leave()).count();
            self.outboxes[member].leaving.fetch_add(leaves, Ordering::AcqRel);
            let at_once = self.hold_back(member, requests);
            exchanges.extend(self.groups(at_once).into_iter().map(|group| Exchange::Requests(member, group)));
            exchanges
                .extend(self.groups(renewals).into_iter().map(|group| Exchange::Renewals(member, group)));
        }
        exchanges
    }

    /// Asks a member, takes its answers, and returns the exchanges that follow.
    pub(super) async fn exchange_one(self: Arc<Self>, exchange: Exchange) -> Vec<Exchange> {
        let (member, follow_up) = match exchange {
            Exchange::Requests(member, group) => (member, self.exchange(member, group).await),
            Exchange::Renewals(member, group) => (member, self.exchange_renewals(member, group).await),
        };
        let mut next = self.exchanges(follow_up);
        next.extend(self.due(member));
        next
    }

    /// How long a leave waits for the answer to its claim, about.
    fn hold_back_limit(&self) -> Duration {
        self.member_limit() / 4
    }

    /// Holds leaves back that need no tombstone in a moment. Returns the requests to send now.
    fn hold_back(self: &Arc<Self>, member: usize, requests: Vec<Outgoing>) -> Vec<Outgoing> {
        if requests.is_empty() || self.links[member].is_suspect() {
            return requests;
        }
        let mut held_back = self.outboxes[member].held_back();
        let at_once = held_back.sift(requests, self.clock.now().after(self.hold_back_limit()));
        if held_back.begin_to_time() {
            self.background.spawn(self.clone().send_late(member));
        }
        at_once
    }

    /// Returns the requests that need not be held back any more.
    fn due(&self, member: usize) -> impl Iterator<Item = Exchange> {
        let due = self.outboxes[member].held_back().due(self.clock.now());
        self.groups(due).into_iter().map(move |group| Exchange::Requests(member, group))
    }

    /// Sends requests that were held back for too long, until none is held back.
    async fn send_late(self: Arc<Self>, member: usize) {
        loop {
            tokio::time::sleep(self.hold_back_limit()).await;
            self.in_background(self.due(member).collect());
            if self.outboxes[member].held_back().end_to_time() {
                return;
            }
        }
    }

    /// Parts that a member takes with one request: after a push, more may be sent than the engine asks for at once.
    fn groups(&self, mut requests: Vec<Outgoing>) -> Vec<Vec<Outgoing>> {
        let mut groups = Vec::new();
        while !requests.is_empty() {
            let rest = requests.split_off(requests.len().min(self.capability.group_limit.max(1)));
            groups.push(std::mem::replace(&mut requests, rest));
        }
        groups
    }

    /// Asks a member. It is suspected as soon as it is slow.
    async fn ask<T>(
        &self,
        link: &Link,
        asked: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        let mut asked = std::pin::pin!(tokio::time::timeout(self.request_limit, asked));
        let answered = match tokio::time::timeout(self.member_limit(), &mut asked).await {
            Ok(answered) => answered,
            Err(_) => {
                self.suspect(link);
                asked.await
            }
        };
        let answered = answered.map_err(|_| too_slow()).flatten();
        answered.inspect_err(|error| {
            self.suspect(link);
            link.failed(error, self.clock.now());
        })
    }

    /// Suspects a member that is slow or fails. Nobody waits for it any more.
    fn suspect(&self, link: &Link) {
        if link.suspect(self.clock.now()) {
            self.contests_of(None).iter().for_each(|contest| contest.changed.notify_waiters());
        }
    }

    /// Sends claims and leaves to a member, and takes the answers.
    async fn exchange(self: &Arc<Self>, member: usize, group: Vec<Outgoing>) -> Vec<Outgoing> {
        let (link, sent) = (&self.links[member], self.clock.now());
        let (mut batch, mut never_there) = (Vec::with_capacity(group.len()), Vec::new());
        let mut requests = Vec::with_capacity(group.len());
        for one in group {
            match one.contest.prepare(link, &one.ask, sent) {
                Prepared::Request(request) => {
                    requests.push(request);
                    batch.push(one);
                }
                Prepared::NeverThere => never_there.push(one),
                Prepared::Pointless => {}
            }
        }
        never_there.iter().for_each(|_| self.has_left(member));
        let next = self.go_on(&never_there);
        if batch.is_empty() {
            return next;
        }
        // It does not wait for the answer to the others.
        self.send(next);
        self.ask_for(member, batch, &requests, sent).await
    }

    async fn ask_for(
        self: &Arc<Self>,
        member: usize,
        batch: Vec<Outgoing>,
        requests: &[Request],
        sent: BootTime,
    ) -> Vec<Outgoing> {
        match self.apply(member, requests).await {
            Ok((vote, answers)) => {
                let at = self.moment(sent);
                let (mut again, mut leave_later, mut done) = (Vec::new(), Vec::new(), Vec::new());
                let mut next = Vec::new();
                for (one, answer) in batch.into_iter().zip(answers) {
                    let (name, longest) = (&one.contest.name, self.watch_time());
                    self.state.avoided.heard(name, member, &answer, longest, at.received);
                    match one.contest.take(&one.ask, at, &vote, answer) {
                        Taken::NotNow if one.is_leave() => leave_later.push(one),
                        Taken::NotNow => again.push(Outgoing { tries: one.tries + 1, ..one }),
                        Taken::Refused => next.extend(self.was_refused(&one)),
                        Taken::Done => {
                            if one.is_leave() {
                                self.has_left(member);
                            }
                            done.push(one);
                        }
                    }
                }
                next.extend(self.claim_again(member, again));
                self.leave_later(member, leave_later);
                next.extend(self.go_on(&done));
                next
            }
            Err(error) => {
                self.unanswered(member, batch, &error);
                Vec::new()
            }
        }
    }

    /// Takes a member's refusal of a claim, and returns the requests with which the contender turns to another gate, if
    /// that one is not to be its gate any more. If the id is used up there, the engine is to know at once, to come back
    /// with another one.
    fn was_refused(&self, one: &Outgoing) -> Vec<Outgoing> {
        let (contest, now) = (&one.contest, self.clock.now());
        let mut state = contest.state();
        let turns = state.attempt.is_asking() && state.mismatch.is_none();
        let outgoing = if turns { self.turn_to_gate(contest, &mut state, now) } else { Vec::new() };
        let comes_back = state.told_waiting && state.attempt.is_spent(one.ask.member, now);
        let has_news = state.has_news(now);
        drop(state);
        contest.changed.notify_waiters();
        if comes_back || has_news {
            self.tell(contest);
        }
        outgoing
    }

    /// Has a member do claims and leaves, with one request.
    async fn apply(
        self: &Arc<Self>,
        member: usize,
        requests: &[Request],
    ) -> Result<(HeardVote<'_>, Vec<Answer>), StoreError> {
        let link = &self.links[member];
        let asked = async { link.member()?.apply(requests).await };
        let MemberAnswers { membership, answers } = self.ask(link, asked).await?;
        let vote = self.heard(link, self.clock.now(), answers.now, membership, requests.is_empty());
        answers.each.iter().for_each(|answer| self.saw_number(answer));
        Ok((vote, answers.each))
    }

    async fn exchange_renewals(self: &Arc<Self>, member: usize, batch: Vec<Outgoing>) -> Vec<Outgoing> {
        let (link, sent) = (&self.links[member], self.clock.now());
        let renewals: Vec<Renew> = batch.iter().filter_map(Outgoing::to_renewal).collect();
        let asked = async { link.member()?.renew(&renewals).await };
        match self.ask(link, asked).await {
            Ok(answered) => {
                let (now, answers) = (self.clock.now(), answered.answers);
                let vote = self.heard(link, now, answers.now, answered.membership, false);
                let at = Moment { sent, received: now };
                for (one, answer) in batch.iter().zip(answers.each) {
                    one.contest.take_renewed(&one.ask, at, &vote, answer);
                }
                self.go_on(&batch)
            }
            Err(error) => {
                self.unanswered(member, batch, &error);
                Vec::new()
            }
        }
    }

    fn moment(&self, sent: BootTime) -> Moment {
        Moment { sent, received: self.clock.now() }
    }

    /// Takes the answer of a member. Its knowledge of member ids is learned before its answer counts.
    fn heard(
        self: &Arc<Self>,
        link: &Link,
        received: BootTime,
        now: StoreTime,
        membership: Membership,
        is_empty: bool,
    ) -> HeardVote<'_> {
        self.learn(link, &membership);
        let version = self.identity.version();
        let (vote, is_back) = link.answered(received, now, &membership, &self.identity, is_empty);
        if is_back {
            self.is_back(link);
        }
        if vote == Vote::None {
            self.stewards.notify_one();
        }
        self.identity.heard(link.index, membership, vote, version)
    }

    /// Takes note that a suspected member answers again: leaves that it missed are sent, and contenders that need it
    /// claim there.
    pub(crate) fn is_back(self: &Arc<Self>, link: &Link) {
        self.outboxes[link.index].is_back.notify_one();
        let quorum = self.clone();
        // Once its answer was taken.
        self.background.spawn(async move {
            let now = quorum.clock.now();
            let (mut outgoing, mut in_vain) = (Vec::new(), BTreeSet::new());
            for contest in quorum.contests_of(None) {
                let mut state = contest.state();
                if state.attempt.is_asking() && state.mismatch.is_none() {
                    outgoing.extend(quorum.turn_to_gate(&contest, &mut state, now));
                    let asks = state.attempt.next(now);
                    outgoing.extend(contest.outgoing(&mut state, asks));
                    if state.told_waiting && quorum.stands_in_vain(&contest, &state, now) {
                        in_vain.insert(contest.name.clone());
                    }
                }
            }
            quorum.send(outgoing);
            quorum.tell_all(in_vain);
        });
    }

    /// Asks members that are suspected until they answer, and turns contenders to other gates.
    pub(crate) async fn ask_silent(self: &Arc<Self>) {
        while self.links.iter().any(Link::is_silent) {
            for link in self.links.iter().filter(|link| link.is_silent()) {
                if !link.is_asked.swap(true, Ordering::AcqRel) {
                    self.background.spawn(self.clone().ask_whether_back(link.index));
                }
                self.leave_gate(link);
            }
            tokio::time::sleep(ASK_SILENT_PAUSE).await;
        }
    }

    async fn ask_whether_back(self: Arc<Self>, member: usize) {
        // Nothing else is to be done about a failure: the member is suspected already.
        drop(self.apply(member, &[]).await);
        self.links[member].is_asked.store(false, Ordering::Release);
    }

    /// Turns contenders whose gate this member is to another one. Those that wait in its queue turn when it has been
    /// asked once more: one request that was lost must not cost them their positions.
    fn leave_gate(self: &Arc<Self>, link: &Link) {
        let (now, is_new) = (self.clock.now(), link.is_newly_silent());
        let mut outgoing = Vec::new();
        for contest in self.contests_of(None) {
            let mut state = contest.state();
            let (gate, is_asking) = (state.attempt.gate(), state.attempt.is_asking());
            let stays = is_new && state.attempt.is_in_queue(gate, now);
            if is_asking && gate == link.index && !stays {
                outgoing.extend(self.turn_to_gate(&contest, &mut state, now));
                let has_news = state.has_news(now);
                drop(state);
                contest.changed.notify_waiters();
                if has_news {
                    self.tell(&contest);
                }
            }
        }
        self.send(outgoing);
    }

    /// Learns the owners of the places. Earlier answers of a server that has lost its place do not count any more:
    /// others count the votes of the new one as soon as the grants are over that it does not know of.
    ///
    /// Answers may be taken on several threads. Nobody goes on while another one learns: an answer of a member that
    /// knows of a member id never counts beside an answer of the server before.
    pub(crate) fn learn(&self, link: &Link, membership: &Membership) {
        if link.knows(membership) {
            return;
        }
        let _learning = support::lock(&self.state.learning);
        for place in self.identity.learn(membership) {
            for contest in self.contests_of(None) {
                contest.state().attempt.forget(place);
            }
        }
    }

    fn saw_number(&self, answer: &Answer) {
        if let Answer::Claim(Verdict::Granted(grant)) = answer {
            self.state.seen.fetch_max(grant.number, Ordering::Relaxed);
        }
    }

    /// Sends claims again that a member could not do for now. Returns the requests that follow for those that it could
    /// not do however often it was asked, and for those that have a better gate.
    fn claim_again(self: &Arc<Self>, member: usize, again: Vec<Outgoing>) -> Vec<Outgoing> {
        let is_better_elsewhere = |contest: &Contest| {
            self.serves_nobody(&contest.name, member)
                && self.gate(&contest.name) != member
                && contest.state().attempt.gate() == member
        };
        let (again, given_up): (Vec<_>, Vec<_>) = again
            .into_iter()
            .partition(|one| one.tries < NOT_NOW_TRIES && !is_better_elsewhere(&one.contest));
        let mut outgoing = Vec::new();
        for one in given_up {
            let busy = StoreError::new(StoreErrorKind::Conflict, "it can do nothing for this name now");
            one.contest.failed(&one.ask, &busy);
            outgoing.extend(self.was_refused(&one));
        }
        if !again.is_empty() {
            let quorum = self.clone();
            self.background.spawn(async move {
                tokio::time::sleep(NOT_NOW_PAUSE).await;
                quorum.in_background(vec![Exchange::Requests(member, again)]);
            });
        }
        outgoing
    }

    /// Takes the failure of a member to answer. Leaves are sent again.
    fn unanswered(self: &Arc<Self>, member: usize, batch: Vec<Outgoing>, error: &StoreError) {
        let (leaves, others): (Vec<_>, Vec<_>) = batch.into_iter().partition(Outgoing::is_leave);
        for one in others {
            one.contest.failed(&one.ask, error);
            one.contest.changed.notify_waiters();
        }
        for leave in &leaves {
            leave.leave_failed(error);
            leave.contest.changed.notify_waiters();
        }
        self.leave_later(member, leaves);
    }

    /// Sends leaves again that were not done, until the holds and positions that they end are over by themselves. A
    /// position would keep those behind it waiting.
    fn leave_later(self: &Arc<Self>, member: usize, leaves: Vec<Outgoing>) {
        let until = self.clock.now().after(self.identity.max_lease.max(WAIT_LEASE));
        if !leaves.is_empty() && self.outboxes[member].leaves().add(leaves, until) {
            self.background.spawn(self.clone().leave_all_later(member));
        }
    }

    /// Sends the leaves that a member has not done, all together, until it does.
    async fn leave_all_later(self: Arc<Self>, member: usize) {
        let (outbox, mut backoff, mut goes_well) = (&self.outboxes[member], LEAVE_BACKOFF, false);
        loop {
            if !goes_well {
                let is_back = tokio::time::timeout(backoff.jittered(), outbox.is_back.notified()).await;
                if is_back.is_ok() {
                    backoff.reset();
                }
            }
            let sent = self.clock.now();
            let (waiting, given_up) = outbox.leaves().take(sent, self.capability.group_limit);
            for leave in given_up {
                leave.leave_failed(&too_slow());
                self.has_left(member);
            }
            let (leaves, untils): (Vec<Outgoing>, Vec<BootTime>) = waiting.into_iter().unzip();
            if leaves.is_empty() {
                return;
            }
            let link = &self.links[member];
            let requests: Vec<_> =
                leaves.iter().filter_map(|one| one.contest.request(link, &one.ask, sent)).collect();
            let (vote, answers) = match self.apply(member, &requests).await {
                Ok((vote, answers)) => (Some(vote), answers),
                Err(error) => {
                    leaves.iter().for_each(|leave| leave.leave_failed(&error));
                    (None, Vec::new())
                }
            };
            let (at, mut done, mut again) = (self.moment(sent), Vec::new(), Vec::new());
            let mut answers = answers.into_iter();
            for (leave, until) in leaves.into_iter().zip(untils) {
                let answered = vote.as_ref().zip(answers.next());
                let taken = answered.map(|(vote, answer)| leave.contest.take(&leave.ask, at, vote, answer));
                match taken {
                    None | Some(Taken::NotNow) => again.push((leave, until)),
                    Some(_) => done.push(leave),
                }
            }
            goes_well = again.is_empty();
            if goes_well {
                backoff.reset();
            }
            done.iter().for_each(|_| self.has_left(member));
            outbox.leaves().put_back(again);
            self.send(self.go_on(&done));
        }
    }

    fn has_left(&self, member: usize) {
        self.outboxes[member].leaving.fetch_sub(1, Ordering::AcqRel);
        self.state.left.notify_waiters();
    }

    /// Whether leaves are under way at this member.
    fn awaits_leaves(&self, link: &Link) -> bool {
        self.outboxes[link.index].leaving.load(Ordering::Acquire) > 0
    }

    /// Whether leaves are under way at members that are expected to answer.
    pub(crate) fn still_leaves(&self) -> bool {
        let (limit, now) = (self.member_limit(), self.clock.now());
        self.links.iter().any(|link| self.awaits_leaves(link) && link.may_answer(limit, now))
    }

    /// Waits until all leaves were answered, but not for long.
    pub(crate) async fn all_left(&self) {
        let until = self.clock.now().after(self.member_limit());
        loop {
            let left = self.state.left.notified();
            if !self.links.iter().any(|link| self.awaits_leaves(link)) || self.clock.now() >= until {
                return;
            }
            drop(tokio::time::timeout(until.since(self.clock.now()), left).await);
        }
    }

    /// Returns the requests with which attempts go on after answers.
    fn go_on(self: &Arc<Self>, batch: &[Outgoing]) -> Vec<Outgoing> {
        let now = self.clock.now();
        let mut outgoing = Vec::new();
        for one in batch {
            let contest = &one.contest;
            let mut state = contest.state();
            let asks = state.goes_on(&one.ask, now);
            outgoing.extend(contest.outgoing(&mut state, asks));
            if one.is_leave() && state.attempt.is_asking() {
                // It may wait there again.
                outgoing.extend(self.turn_to_gate(contest, &mut state, now));
            }
            let (is_decided, has_news) = (self.may_be_decided(contest, &state, now), state.has_news(now));
            let may_give_way = state.told_waiting && state.at_gate_since.is_some();
            drop(state);
            if is_decided {
                contest.changed.notify_waiters();
            }
            if has_news {
                self.tell(contest);
            }
            if may_give_way {
                self.watch_gates();
            }
        }
        outgoing
    }

    /// Tells the engine of contenders that hold at their gate for too long without a majority. It believes that they
    /// wait, and would ask about them much later, while they keep all others from that gate.
    fn watch_gates(self: &Arc<Self>) {
        if self.state.gates_are_watched.swap(true, Ordering::AcqRel) {
            return;
        }
        let quorum = self.clone();
        self.background.spawn(async move {
            loop {
                tokio::time::sleep(quorum.member_limit() / 8).await;
                quorum.state.gates_are_watched.store(false, Ordering::Release);
                if !quorum.look_at_gates() || quorum.state.gates_are_watched.swap(true, Ordering::AcqRel) {
                    return;
                }
            }
        });
    }

    /// Tells the engine of those that are to give way; true if some contenders hold at their gate without a majority.
    fn look_at_gates(&self) -> bool {
        let (now, mut any, mut give_way) = (self.clock.now(), false, BTreeSet::new());
        for contest in self.contests_of(None) {
            let state = contest.state();
            let at_gate = state.told_waiting && state.at_gate_since.is_some() && state.attempt.is_asking();
            let gives_way = at_gate && self.gives_way(&contest, &state, now);
            drop(state);
            any |= at_gate;
            if gives_way {
                give_way.insert(contest.name.clone());
            }
        }
        self.tell_all(give_way);
        any
    }

    /// Tells the engine of a grant of a contender that it believes to wait.
    fn tell(&self, contest: &Contest) {
        self.wakes.wake(Wake::Changed(Topic::Grants(contest.name.clone())));
    }

    /// Tells the engine to ask about all waiters of these names: once for each name, since each time costs as much as
    /// there are waiters of it.
    fn tell_all(&self, names: BTreeSet<Name>) {
        names.into_iter().for_each(|name| self.wakes.wake(Wake::Changed(Topic::Grants(name))));
    }
}

fn too_slow() -> StoreError {
    StoreError::new(StoreErrorKind::Unreachable, "it is too slow")
}
