//! Runs attempts against members: sends what they ask for, gives them the answers, and decides what the engine is told.
//!
//! Every request to a member is a task on the keeper's thread, because an answer that is late must still be taken, and a
//! leave must be sent until it is answered.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use lockkeeper_core::{
    Capability, ContenderId, GrantNumber, Name, StoreError, StoreErrorKind, Units,
    clock::{BootTime, Clock},
    deadline::margin,
    store::{Claim, Grant, Renew, Topic, Verdict, Wake, WakeSink},
    support::{self, backoff::Backoff},
};
use tokio::{runtime::Handle, sync::Notify};

use crate::{
    Attempt, Ended, Hold, Majority, Sharing,
    contest::{Contest, ContestState, Note, Outgoing, Position, Renewal, Taken},
    link::Link,
    record::{Identity, Vote},
};

/// How often a member may answer *not now* before that counts as no answer, and the pause in between.
const NOT_NOW_TRIES: u32 = 20;
const NOT_NOW_PAUSE: Duration = Duration::from_millis(15);
/// The pauses between copies of a leave.
const LEAVE_BACKOFF: Backoff = Backoff::new(Duration::from_millis(50), Duration::from_secs(2));
/// How long ids that are used up are remembered.
const USED_UP: Duration = Duration::from_secs(120);

/// A quorum, as one keeper uses it.
pub(crate) struct Quorum {
    pub(crate) identity: Identity,
    pub(crate) majority: Majority,
    pub(crate) links: Vec<Link>,
    pub(crate) capability: Capability,
    pub(crate) clock: Clock,
    pub(crate) background: Handle,
    pub(crate) wakes: WakeSink,
    pub(crate) request_limit: Duration,
    contests: Mutex<Contests>,
    /// The highest grant number that was seen.
    seen: AtomicU64,
    /// How many leaves are being sent, and who waits for their end.
    leaving: AtomicUsize,
    left: Notify,
    /// Somebody should look after members that do not vote.
    pub(crate) stewards: Notify,
}

#[derive(Default)]
struct Contests {
    by_id: HashMap<ContenderId, Arc<Contest>>,
    /// Ids that gave way or left. They are not used again.
    used_up: HashMap<ContenderId, BootTime>,
}

/// What is known of a claim.
pub(crate) enum Judged {
    Verdict(Verdict),
    Failed(StoreError),
    /// Nothing yet. It is to be looked at again at this time, whatever is heard.
    Undecided(BootTime),
}

impl std::fmt::Debug for Quorum {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Quorum").field("identity", &self.identity).finish_non_exhaustive()
    }
}

/// What a quorum is made of, beside its state.
pub(crate) struct Parts {
    pub(crate) identity: Identity,
    pub(crate) majority: Majority,
    pub(crate) links: Vec<Link>,
    pub(crate) capability: Capability,
    pub(crate) clock: Clock,
    pub(crate) background: Handle,
    pub(crate) wakes: WakeSink,
    pub(crate) request_limit: Duration,
}

impl Quorum {
    pub(crate) fn new(parts: Parts) -> Self {
        let Parts { identity, majority, links, capability, clock, background, wakes, request_limit } = parts;
        Self {
            identity,
            majority,
            links,
            capability,
            clock,
            background,
            wakes,
            request_limit,
            contests: Mutex::default(),
            seen: AtomicU64::new(0),
            leaving: AtomicUsize::new(0),
            left: Notify::new(),
            stewards: Notify::new(),
        }
    }

    /// How long a member may take before it counts as slow.
    pub(crate) fn member_limit(&self) -> Duration {
        self.request_limit / 4
    }

    /// How long a member that may have lost its data is watched before it votes.
    pub(crate) fn watch_time(&self) -> Duration {
        let lease = self.identity.max_lease;
        lease + margin(lease)
    }

    fn contests(&self) -> MutexGuard<'_, Contests> {
        support::lock(&self.contests)
    }

    pub(crate) fn contest(&self, contender: ContenderId) -> Option<Arc<Contest>> {
        self.contests().by_id.get(&contender).cloned()
    }

    fn contests_of(&self, name: Option<&Name>) -> Vec<Arc<Contest>> {
        let contests = self.contests();
        let asked = contests.by_id.values().filter(|contest| name.is_none_or(|name| contest.name == *name));
        asked.cloned().collect()
    }

    /// The members in the order in which they are gates of this name, which is the same for every client.
    pub(crate) fn gates(&self, name: &Name) -> impl Iterator<Item = usize> {
        let count = self.links.len();
        let first = usize::try_from(fnv(name.as_str()) % count as u64).unwrap_or(0);
        (0..count).map(move |nth| (first + nth) % count)
    }

    /// The first gate of this name that is not suspected, else the first.
    fn gate(&self, name: &Name) -> usize {
        let unsuspected = self.gates(name).find(|member| !self.links[*member].is_suspect());
        unsuspected.or_else(|| self.gates(name).next()).unwrap_or(0)
    }

    /// The least number of a new grant: above all that were seen, and not below the median of the members' clocks.
    fn at_least(&self, now: BootTime) -> GrantNumber {
        let mut walls: Vec<GrantNumber> = self.links.iter().filter_map(|link| link.wall(now)).collect();
        walls.sort_unstable();
        let median = walls.get(walls.len().saturating_sub(1) / 2).copied().unwrap_or(0);
        median.max(self.seen.load(Ordering::Relaxed) + 1)
    }

    /// A claim comes in. Gives what to send; `None` if its id is used up.
    pub(crate) fn claim(&self, claim: &Claim) -> Option<(Arc<Contest>, Vec<Outgoing>)> {
        let now = self.clock.now();
        if let Some(contest) = self.contest(claim.contender) {
            let outgoing = self.ask_again(&contest, now);
            return Some((contest, outgoing));
        }
        let sharing = if claim.units == Units::All { Sharing::Exclusive } else { Sharing::Shared };
        let attempt = Attempt::new(self.majority, sharing, self.gate(&claim.name));
        let attempt = if claim.queue { attempt } else { attempt.trying() };
        let renewal = Renewal { lease: claim.lease, lower_to: None, detach: false };
        let (name, contender, members) = (claim.name.clone(), claim.contender, self.links.len());
        let contest = Contest::new(name, contender, Some(claim.clone()), attempt, renewal, members);
        let contest = Arc::new(contest);
        let mut contests = self.contests();
        if contests.used_up.contains_key(&claim.contender) {
            return None;
        }
        contests.by_id.insert(claim.contender, contest.clone());
        drop(contests);
        let mut state = contest.state();
        state.renewed = now;
        let asks = state.attempt.begin(self.at_least(now));
        let outgoing = contest.outgoing(&mut state, asks);
        drop(state);
        Some((contest, outgoing))
    }

    /// What to send for a contender that asks again: where it waits, and renewals where it holds without holding
    /// altogether.
    fn ask_again(&self, contest: &Arc<Contest>, now: BootTime) -> Vec<Outgoing> {
        let mut state = contest.state();
        let mut asks = state.attempt.next(now);
        asks.extend(state.attempt.ask_again(now));
        if state.attempt.hold(now).is_none() && now.since(state.renewed) >= state.renewal.lease / 3 {
            state.renewed = now;
            asks.extend(state.attempt.renew(now));
        }
        contest.outgoing(&mut state, asks)
    }

    /// Sends requests: one for each member, and one more for its renewals.
    pub(crate) fn send(self: &Arc<Self>, outgoing: Vec<Outgoing>) {
        let mut batches: Vec<(Vec<Outgoing>, Vec<Outgoing>)> = Vec::new();
        batches.resize_with(self.links.len(), Default::default);
        for outgoing in outgoing {
            let (requests, renewals) = &mut batches[outgoing.ask.member];
            if outgoing.is_renewal() { renewals.push(outgoing) } else { requests.push(outgoing) }
        }
        for (member, (requests, renewals)) in batches.into_iter().enumerate() {
            if !requests.is_empty() {
                let leaves = requests.iter().filter(|outgoing| outgoing.is_leave()).count();
                self.leaving.fetch_add(leaves, Ordering::AcqRel);
                self.background.spawn(self.clone().exchange(member, requests));
            }
            if !renewals.is_empty() {
                self.background.spawn(self.clone().exchange_renewals(member, renewals));
            }
        }
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
                link.suspect();
                for contest in self.contests_of(None) {
                    contest.changed.notify_waiters();
                }
                asked.await
            }
        };
        let slow = |_| StoreError::new(StoreErrorKind::Unreachable, "it is too slow");
        let answered = answered.map_err(slow).flatten();
        answered.inspect_err(|error| link.failed(error))
    }

    /// Sends claims and leaves to a member, and takes the answers.
    async fn exchange(self: Arc<Self>, member: usize, batch: Vec<Outgoing>) {
        let (link, sent) = (&self.links[member], self.clock.now());
        let requests: Vec<_> =
            batch.iter().filter_map(|one| one.contest.request(link, &one.ask, sent)).collect();
        let asked = async { link.member()?.apply(&requests).await };
        match self.ask(link, asked).await {
            Ok(answered) => {
                let (now, answers) = (self.clock.now(), answered.answers);
                let vote = link.answered(now, answers.now, &answered.membership, &self.identity);
                self.saw_vote(vote);
                let (mut again, mut done) = (Vec::new(), Vec::new());
                for (one, answer) in batch.into_iter().zip(answers.each) {
                    self.saw_number(&answer);
                    match one.contest.take(&one.ask, sent, vote, answer) {
                        Taken::NotNow => again.push(Outgoing { tries: one.tries + 1, ..one }),
                        Taken::Refused => one.contest.changed.notify_waiters(),
                        Taken::Done => {
                            if one.is_leave() {
                                self.has_left();
                            }
                            done.push(one);
                        }
                    }
                }
                self.send_again(member, again);
                self.go_on(&done);
            }
            Err(error) => self.unanswered(member, batch, &error),
        }
    }

    async fn exchange_renewals(self: Arc<Self>, member: usize, batch: Vec<Outgoing>) {
        let (link, sent) = (&self.links[member], self.clock.now());
        let renewals: Vec<Renew> = batch.iter().filter_map(|one| one.contest.renewal(&one.ask)).collect();
        let asked = async { link.member()?.renew(&renewals).await };
        match self.ask(link, asked).await {
            Ok(answered) => {
                let (now, answers) = (self.clock.now(), answered.answers);
                let vote = link.answered(now, answers.now, &answered.membership, &self.identity);
                self.saw_vote(vote);
                for (one, answer) in batch.iter().zip(answers.each) {
                    one.contest.take_renewed(&one.ask, sent, vote, answer);
                }
                self.go_on(&batch);
            }
            Err(error) => self.unanswered(member, batch, &error),
        }
    }

    fn saw_vote(&self, vote: Vote) {
        if vote == Vote::None {
            self.stewards.notify_one();
        }
    }

    fn saw_number(&self, answer: &lockkeeper_core::store::Answer) {
        if let lockkeeper_core::store::Answer::Claim(Verdict::Granted(grant)) = answer {
            self.seen.fetch_max(grant.number, Ordering::Relaxed);
        }
    }

    /// Sends requests again that a member could do nothing for.
    fn send_again(self: &Arc<Self>, member: usize, again: Vec<Outgoing>) {
        let (again, given_up): (Vec<_>, Vec<_>) =
            again.into_iter().partition(|one| one.is_leave() || one.tries < NOT_NOW_TRIES);
        for one in given_up {
            one.contest.failed(&one.ask, false);
            one.contest.changed.notify_waiters();
        }
        if !again.is_empty() {
            let quorum = self.clone();
            self.background.spawn(async move {
                tokio::time::sleep(NOT_NOW_PAUSE).await;
                quorum.exchange(member, again).await;
            });
        }
    }

    /// A member did not answer. Leaves are sent until the longest lease is over.
    fn unanswered(self: &Arc<Self>, member: usize, batch: Vec<Outgoing>, error: &StoreError) {
        let (leaves, others): (Vec<_>, Vec<_>) = batch.into_iter().partition(Outgoing::is_leave);
        for one in others {
            one.contest.failed(&one.ask, error.maybe_applied());
            one.contest.changed.notify_waiters();
        }
        if leaves.is_empty() {
            return;
        }
        let until = self.clock.now().after(self.identity.max_lease);
        for leave in &leaves {
            leave.may_arrive_late(error);
            leave.contest.changed.notify_waiters();
        }
        if self.links[member].leave_later(leaves, until) {
            self.background.spawn(self.clone().leave_all_later(member));
        }
    }

    /// Sends the leaves of a member that it did not answer, all together, until it does.
    async fn leave_all_later(self: Arc<Self>, member: usize) {
        let (link, mut backoff) = (&self.links[member], LEAVE_BACKOFF);
        loop {
            tokio::time::sleep(backoff.jittered()).await;
            let sent = self.clock.now();
            let (leaves, given_up) = link.leaves(sent, self.capability.group_limit);
            for leave in given_up {
                leave.contest.failed(&leave.ask, true);
                self.has_left();
            }
            if leaves.is_empty() {
                return;
            }
            let requests: Vec<_> =
                leaves.iter().filter_map(|leave| leave.contest.request(link, &leave.ask, sent)).collect();
            let asked = async { link.member()?.apply(&requests).await };
            let answered = match self.ask(link, asked).await {
                Ok(answered) => answered,
                Err(error) => {
                    leaves.iter().for_each(|leave| leave.may_arrive_late(&error));
                    continue;
                }
            };
            let (now, answers) = (self.clock.now(), answered.answers);
            let vote = link.answered(now, answers.now, &answered.membership, &self.identity);
            let mut done = Vec::new();
            for (leave, answer) in leaves.into_iter().zip(answers.each) {
                if leave.contest.take(&leave.ask, sent, vote, answer) != Taken::NotNow {
                    self.has_left();
                    done.push(leave);
                }
            }
            link.have_left(&done);
            self.go_on(&done);
            backoff.reset();
        }
    }

    fn has_left(&self) {
        self.leaving.fetch_sub(1, Ordering::AcqRel);
        self.left.notify_waiters();
    }

    /// Waits until all leaves were answered, but not for long.
    pub(crate) async fn all_left(&self) {
        let until = self.clock.now().after(self.member_limit());
        loop {
            let left = self.left.notified();
            if self.leaving.load(Ordering::Acquire) == 0 || self.clock.now() >= until {
                return;
            }
            drop(tokio::time::timeout(until.since(self.clock.now()), left).await);
        }
    }

    /// Attempts go on after answers.
    fn go_on(self: &Arc<Self>, batch: &[Outgoing]) {
        let now = self.clock.now();
        let mut outgoing = Vec::new();
        for one in batch {
            let contest = &one.contest;
            let mut state = contest.state();
            if state.mismatch.is_none() {
                let asks = state.attempt.next(now);
                outgoing.extend(contest.outgoing(&mut state, asks));
            }
            drop(state);
            contest.changed.notify_waiters();
            self.tell(contest);
        }
        self.send(outgoing);
    }

    /// Tells the engine of a grant of a contender that it believes to wait.
    fn tell(&self, contest: &Contest) {
        let now = self.clock.now();
        let mut state = contest.state();
        if state.told_busy && state.attempt.hold(now).is_some() {
            state.told_busy = false;
            drop(state);
            self.wakes.wake(Wake::Changed(Topic::Grants(contest.name.clone())));
        }
    }

    /// A member pushed something.
    pub(crate) fn pushed(self: &Arc<Self>, wake: Wake) {
        let contests = match &wake {
            Wake::Granted(_, notice) => self.contest(notice.contender).into_iter().collect(),
            Wake::Changed(Topic::Grants(name)) => self.contests_of(Some(name)),
            _ => return self.wakes.wake(wake),
        };
        let now = self.clock.now();
        let mut outgoing = Vec::new();
        for contest in contests {
            let mut state = contest.state();
            let asks = state.attempt.ask_again(now);
            outgoing.extend(contest.outgoing(&mut state, asks));
        }
        self.send(outgoing);
    }

    /// Decides what the engine is told of a claim that it asked for at `asked`.
    pub(crate) fn judge(self: &Arc<Self>, contest: &Arc<Contest>, asked: BootTime) -> Judged {
        let now = self.clock.now();
        let mut state = contest.state();
        let mut outgoing = self.leave_silent_gate(contest, &mut state, now);
        if !contest.waits() {
            // The last answer may have been taken, and what follows from it is not under way yet.
            let asks = state.attempt.next(now);
            outgoing.extend(contest.outgoing(&mut state, asks));
        }
        if !outgoing.is_empty() {
            self.send(outgoing);
        }
        state.attempt.count(now);
        if let Some(hold) = state.attempt.hold(now) {
            (state.at_gate_since, state.told_busy) = (None, false);
            return Judged::Verdict(Verdict::Granted(as_grant(&hold, asked)));
        }
        if let Some(in_use) = state.mismatch {
            drop(state);
            self.give_up(contest);
            return Judged::Verdict(Verdict::mismatch(in_use));
        }
        if state.attempt.ended().is_some() {
            drop(state);
            self.give_up(contest);
            return Judged::Verdict(Verdict::Again);
        }
        if state.attempt.is_held(state.attempt.gate(), now) {
            state.at_gate_since.get_or_insert(now);
        } else {
            state.at_gate_since = None;
        }
        let judged = self.judge_unheld(contest, &state, asked, now);
        state.told_busy |= matches!(judged, Judged::Verdict(Verdict::Busy { .. }));
        drop(state);
        let gives_up = match judged {
            Judged::Verdict(Verdict::Again) => true,
            Judged::Verdict(Verdict::Busy { .. }) => !contest.waits(),
            _ => false,
        };
        if gives_up {
            self.give_up(contest);
        }
        judged
    }

    /// Turns to another gate if the one so far is silent.
    fn leave_silent_gate(
        &self,
        contest: &Arc<Contest>,
        state: &mut ContestState,
        now: BootTime,
    ) -> Vec<Outgoing> {
        let gate = state.attempt.gate();
        // A position counts while the gate confirms it: a gate that died would keep its waiters for ever.
        let is_confirmed =
            state.position.is_some_and(|position| now.since(position.asked) <= self.member_limit());
        let is_there =
            state.attempt.is_held(gate, now) || (state.attempt.is_in_line(gate, now) && is_confirmed);
        let other = self.gate(&contest.name);
        if is_there || other == gate || !self.links[gate].is_suspect() {
            return Vec::new();
        }
        let mut asks = state.attempt.change_gate(other);
        asks.extend(state.attempt.next(now));
        contest.outgoing(state, asks)
    }

    fn judge_unheld(
        &self,
        contest: &Contest,
        state: &ContestState,
        asked: BootTime,
        now: BootTime,
    ) -> Judged {
        let waits = contest.waits();
        let (gate, needed) = (state.attempt.gate(), self.majority.needed());
        let waited = now.since(asked);
        let busy = |state: &ContestState| {
            let (ahead, retry_in) = match state.position {
                Some(Position { ahead, retry_in, .. }) => (ahead, retry_in),
                None => (0, state.renewal.lease / 3),
            };
            Judged::Verdict(Verdict::busy(ahead, retry_in))
        };
        // A leave may still arrive at the gate, so this id cannot wait there.
        if waits && state.attempt.is_spent(gate, now) {
            return Judged::Verdict(Verdict::Again);
        }
        if waits && state.attempt.is_in_line(gate, now) {
            return busy(state);
        }
        let is_over = waited >= self.request_limit.mul_f32(0.8);
        if state.outstanding == 0 || is_over {
            if state.attempt.heard() < needed {
                return Judged::Failed(self.too_few(state, now));
            }
            let held = (0..self.links.len()).filter(|member| state.attempt.is_held(*member, now)).count();
            if held >= needed {
                // They have granted, and too few of them vote.
                return Judged::Failed(self.too_few(state, now));
            }
            if !waits {
                return busy(state);
            }
            let held_for = state.at_gate_since.map_or(Duration::ZERO, |since| now.since(since));
            let is_first = self.gates(&contest.name).next() == Some(gate);
            let usable = |member: &usize| state.attempt.is_usable(*member, now);
            let in_reach = |member: &usize| usable(member) && !self.links[*member].is_suspect();
            let members = || 0..self.links.len();
            // With too few members in reach it keeps the gate from contenders that reach a majority.
            let gives_way = held_for > 2 * self.member_limit()
                && (!is_first || members().filter(in_reach).count() < needed);
            if gives_way || members().filter(usable).count() < needed {
                return Judged::Verdict(Verdict::Again);
            }
            let retry_in = (state.renewal.lease / 3).min(self.member_limit());
            return Judged::Verdict(Verdict::busy(0, retry_in));
        }
        let slow = asked.after(self.member_limit());
        let next = if now < slow { slow } else { asked.after(self.request_limit.mul_f32(0.8)) };
        Judged::Undecided(next.max(now.after(Duration::from_millis(5))))
    }

    /// The contender leaves everywhere, in the background, and its id is used up.
    pub(crate) fn give_up(self: &Arc<Self>, contest: &Arc<Contest>) {
        self.forget(contest.contender);
        let mut state = contest.state();
        let asks = state.attempt.leave();
        let outgoing = contest.outgoing(&mut state, asks);
        drop(state);
        self.send(outgoing);
    }

    /// Nothing more is heard of this id.
    pub(crate) fn forget(&self, contender: ContenderId) {
        let now = self.clock.now();
        let mut contests = self.contests();
        contests.by_id.remove(&contender);
        contests.used_up.retain(|_, since| now.since(*since) < USED_UP);
        contests.used_up.insert(contender, now);
    }

    /// Remembers a contender of another process.
    pub(crate) fn remember(&self, contest: Arc<Contest>) {
        let mut contests = self.contests();
        contests.used_up.remove(&contest.contender);
        contests.by_id.insert(contest.contender, contest);
    }

    /// The error of a claim that too few members answered or voted for. It says what each member did.
    fn too_few(&self, state: &ContestState, now: BootTime) -> StoreError {
        let each = self.links.iter().zip(&state.notes).map(|(link, note)| {
            let complaint = link.complaint(now, self.watch_time());
            let what = match (complaint, note) {
                (Some(complaint), _) => complaint,
                (None, Some(Note::Granted)) => "granted".into(),
                (None, Some(Note::GrantedWithoutVote)) => "granted, but does not vote".into(),
                (None, Some(Note::Busy)) => "is busy".into(),
                (None, Some(Note::Gone)) => "does not hold it any more".into(),
                (None, Some(Note::Refused(error))) => error.to_string(),
                (None, None) => "has not answered".into(),
            };
            format!("{}: {what}", link.shown())
        });
        let each: Vec<String> = each.collect();
        let needed = self.majority.needed();
        let message = format!("fewer than {needed} members granted and voted; {}", each.join("; "));
        StoreError::new(StoreErrorKind::Unreachable, message)
    }

    /// The error of a request that too few members answered.
    pub(crate) fn unreachable(&self) -> StoreError {
        let now = self.clock.now();
        let each = self.links.iter().map(|link| {
            let what = link.complaint(now, self.watch_time()).unwrap_or_else(|| "is well".into());
            format!("{}: {what}", link.shown())
        });
        let each: Vec<String> = each.collect();
        let needed = self.majority.needed();
        let message = format!("fewer than {needed} members answered; {}", each.join("; "));
        StoreError::new(StoreErrorKind::Unreachable, message)
    }

    /// Forgets contenders whose holds are long over: detached leases that others have gone on with.
    pub(crate) fn sweep(&self) {
        let (now, longest) = (self.clock.now(), self.watch_time() * 2);
        let mut contests = self.contests();
        contests.by_id.retain(|_, contest| {
            let mut state = contest.state();
            state.attempt.count(now);
            let over = matches!(state.attempt.ended(), Some(Ended::Lost));
            !over || now.since(state.renewed) < longest
        });
    }
}

/// A hold as the engine is told of it that asked at `asked`: the engine takes a margin off what is left, and comes to the
/// deadline of the hold, or to an earlier one.
pub(crate) fn as_grant(hold: &Hold, asked: BootTime) -> Grant {
    let without_margin = hold.deadline.since(asked) + margin(Duration::ZERO);
    let remaining = (without_margin * 100 / 99).saturating_sub(Duration::from_micros(1));
    Grant { number: hold.number, floor: hold.floor, remaining }
}

/// FNV-1a, so that every client has the same order of gates.
fn fnv(text: &str) -> u64 {
    text.bytes()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use lockkeeper_core::deadline;

    use super::*;

    #[test]
    fn the_engine_comes_to_the_deadline_of_the_hold_and_not_to_a_later_one() {
        let asked = BootTime(1_000_000_000_000);
        for micros in [0, 1, 2_000, 2_001, 399_123, 30_000_000, 86_400_000_000] {
            let deadline = asked.after(Duration::from_micros(micros));
            let grant = as_grant(&Hold { number: 7, floor: 7, deadline }, asked);
            let told = deadline::from_answer(asked, grant.remaining);
            assert!(told <= deadline, "{micros}");
            assert!(deadline.since(told) <= Duration::from_micros(3), "{micros}: {:?}", deadline.since(told));
        }
    }
}
