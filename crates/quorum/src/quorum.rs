//! The contenders of one keeper, and the members that they claim at.
//!
//! The files: `exchange.rs` sends the requests of attempts, and gives them the answers; `under_way.rs` polls these
//! exchanges; `judging.rs` decides on the answers to the engine; this file begins and ends contests.

mod avoided;
mod awaited;
mod contended;
mod contests;
mod exchange;
mod judging;
mod under_way;

use std::{
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use lockkeeper_core::{
    Capability, ContenderId, GrantNumber, Name, Units,
    clock::{BootTime, Clock},
    deadline::margin,
    model::WAIT_LEASE,
    store::{Attachment, Claim, Leave, Topic, Wake, WakeSink},
    support,
};
use tokio::{runtime::Handle, sync::Notify};

use crate::{
    Ask, Attempt, Majority, Sharing,
    contest::{Contest, ContestState, Outgoing, Renewal},
    link::Link,
    member_ids::MemberIds,
    outbox::Outbox,
};
use avoided::Avoided;
use awaited::Awaited;
use contended::Contended;
use contests::Contests;
pub(crate) use judging::{Departure, Judged, as_grant};
pub(crate) use under_way::{LeftOver, UnderWay};

/// A quorum, as one keeper uses it.
pub(crate) struct Quorum {
    pub(crate) identity: MemberIds,
    pub(crate) majority: Majority,
    pub(crate) links: Vec<Link>,
    pub(crate) outboxes: Vec<Outbox>,
    pub(crate) capability: Capability,
    pub(crate) clock: Clock,
    pub(crate) background: Handle,
    pub(crate) wakes: WakeSink,
    pub(crate) request_limit: Duration,
    /// Told when a member becomes suspected.
    pub(crate) suspected: Arc<Notify>,
    /// Told when somebody should look after members that do not vote.
    pub(crate) stewards: Notify,
    pub(crate) state: State,
}

/// The state that changes while a quorum is used.
#[derive(Default)]
pub(crate) struct State {
    contests: Mutex<Contests>,
    awaited: Awaited,
    avoided: Avoided,
    contended: Contended,
    /// Whether a task looks after contenders that hold at their gate without a majority.
    gates_are_watched: AtomicBool,
    /// Held while this client learns the owners of the places.
    learning: Mutex<()>,
    /// The highest grant number that was seen.
    seen: AtomicU64,
    /// Told when a leave was answered.
    left: Notify,
}

impl std::fmt::Debug for Quorum {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let contests = self.contests().all().count();
        let mut shown = f.debug_struct("Quorum");
        shown.field("identity", &self.identity).field("contests", &contests).finish_non_exhaustive()
    }
}

impl Quorum {
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
        support::lock(&self.state.contests)
    }

    pub(crate) fn contest(&self, contender: ContenderId) -> Option<Arc<Contest>> {
        self.contests().get(contender).cloned()
    }

    fn contests_of(&self, name: Option<&Name>) -> Vec<Arc<Contest>> {
        let contests = self.contests();
        match name {
            Some(name) => contests.of(name).cloned().collect(),
            None => contests.all().cloned().collect(),
        }
    }

    /// The members in the order in which they are gates of this name, which is the same for every client.
    pub(crate) fn gates(&self, name: &Name) -> impl Iterator<Item = usize> {
        let count = self.links.len();
        let first = usize::try_from(fnv(name.as_str()) % count as u64).unwrap_or(0);
        (0..count).map(move |nth| (first + nth) % count)
    }

    /// The first gate of this name that is not passed over, else the first that is not suspected, else the first.
    pub(crate) fn gate(&self, name: &Name) -> usize {
        let serves = self.gates(name).find(|member| !self.is_passed_over(name, *member));
        let answers = || self.gates(name).find(|member| !self.links[*member].is_suspect());
        serves.or_else(answers).or_else(|| self.gates(name).next()).unwrap_or(0)
    }

    /// Whether another member is to be the gate of this name if there is one: this one does not answer, or serves
    /// nobody.
    fn is_passed_over(&self, name: &Name, member: usize) -> bool {
        self.links[member].is_suspect() || self.serves_nobody(name, member)
    }

    /// Whether nobody is served at this member. If that is only for now, it makes a difference while a majority serves
    /// the name: otherwise no other gate is better, and a row that everybody uses is locked at most members.
    fn serves_nobody(&self, name: &Name, member: usize) -> bool {
        let avoided = &self.state.avoided;
        avoided.contains_for_good(name, member)
            || avoided.contains(name, member) && {
                let others = self.gates(name).filter(|other| !avoided.contains(name, *other));
                others.count() >= self.majority.needed()
            }
    }

    /// Whether a renewal at this member says nothing: the contender was never there, because the member refuses its
    /// name for good. A server that denies a name may have to be asked for each entry of the group by itself.
    pub(crate) fn is_pointless_at(&self, contest: &Contest, state: &ContestState, member: usize) -> bool {
        !state.attempt.is_there(member) && self.state.avoided.contains_for_good(&contest.name, member)
    }

    /// Whether all members vote, and have answered for a while. Otherwise others may wait at other gates.
    fn is_calm(&self, now: BootTime) -> bool {
        self.links.iter().all(|link| link.is_calm(now) && link.votes(&self.identity))
    }

    /// Whether a majority votes and is not suspected.
    fn has_majority(&self) -> bool {
        let there = self.links.iter().filter(|link| !link.is_suspect() && link.votes(&self.identity));
        there.count() >= self.majority.needed()
    }

    /// The least number of new grants: above all that were seen, and not below the median of the members' clocks. All
    /// claims of a group have the same, and members count up from it: they are cheaper to ask if little differs.
    pub(crate) fn at_least(&self, now: BootTime) -> GrantNumber {
        let mut walls: Vec<GrantNumber> = self.links.iter().filter_map(|link| link.wall(now)).collect();
        walls.sort_unstable();
        let median = walls.get(walls.len().saturating_sub(1) / 2).copied().unwrap_or(0);
        median.max(self.state.seen.load(Ordering::Relaxed) + 1)
    }

    /// Takes a claim, for a number of at least `at_least`. Returns the requests to send; `None` if its id is used up.
    pub(crate) fn claim(
        &self,
        claim: &Claim,
        at_least: GrantNumber,
        now: BootTime,
    ) -> Option<(Arc<Contest>, Vec<Outgoing>)> {
        if let Some(contest) = self.contest(claim.contender) {
            let outgoing = self.ask_again(&contest, now);
            return Some((contest, outgoing));
        }
        let sharing = if claim.units == Units::All { Sharing::Exclusive } else { Sharing::Shared };
        let attempt = Attempt::new(self.majority, sharing, self.gate(&claim.name));
        let mut attempt = if claim.queue { attempt } else { attempt.trying() };
        if claim.attachment == Attachment::Detached {
            attempt.begin_to_level();
        }
        let renewal = Renewal { lease: claim.lease, lower_to: None, detach: false };
        let (name, contender, members) = (claim.name.clone(), claim.contender, self.links.len());
        let contest = Contest::new(name, contender, Some(claim.clone()), attempt, renewal, members);
        let contest = Arc::new(contest);
        let mut contests = self.contests();
        if contests.is_used_up(claim.contender) {
            return None;
        }
        // From here on a leave on another thread finds the contest. It waits for this lock, and so for the requests
        // that it has to end.
        let mut state = contest.state();
        contests.insert(contest.clone());
        drop(contests);
        (state.renewed, state.touched) = (now, now);
        let gate_first = claim.queue && self.state.contended.contains(&claim.name) && self.is_calm(now);
        let asks = match gate_first {
            true => state.attempt.begin_at_gate(at_least),
            // A claim that is lost there would use this id up at that member.
            false if claim.queue && self.has_majority() => {
                state.attempt.begin_at(|member| !self.links[member].is_suspect(), at_least)
            }
            false => state.attempt.begin(at_least),
        };
        let outgoing = contest.outgoing(&mut state, asks);
        drop(state);
        Some((contest, outgoing))
    }

    /// Returns the requests for a contender that asks again: polls of the queues where it waits, and renewals of its
    /// holds at members if they are no majority.
    fn ask_again(&self, contest: &Arc<Contest>, now: BootTime) -> Vec<Outgoing> {
        let mut state = contest.state();
        state.touched = now;
        let mut asks = state.ask_now(now);
        if state.attempt.hold(now).is_none() && now.since(state.renewed) >= state.renewal.lease / 3 {
            state.renewed = now;
            asks.extend(state.attempt.renew(now));
        }
        asks.extend(self.ask_others(contest, &mut state, now));
        contest.outgoing(&mut state, asks)
    }

    /// Returns the requests that find out whether another member serves the name again, if the gate does not for now.
    /// Meanwhile the members that have granted to this contender keep all others waiting.
    fn ask_others(&self, contest: &Contest, state: &mut ContestState, now: BootTime) -> Vec<Ask> {
        let (avoided, gate) = (&self.state.avoided, state.attempt.gate());
        let serves_nobody = |member: usize| avoided.contains_for_now(&contest.name, member);
        if !contest.waits()
            || state.mismatch.is_some()
            || state.attempt.is_held(gate, now)
            || !serves_nobody(gate)
        {
            return Vec::new();
        }
        let others = self.gates(&contest.name).filter(|member| *member != gate);
        let others = others.filter(|member| !self.links[*member].is_suspect() && serves_nobody(*member));
        others.filter_map(|member| state.attempt.ask_whether_it_serves(member, now)).collect()
    }

    /// Takes a push from a member.
    pub(crate) fn pushed(self: &Arc<Self>, wake: Wake) {
        let contests = match &wake {
            Wake::Granted(_, notice) => self.contest(notice.contender).into_iter().collect(),
            Wake::Changed(Topic::Grants(name)) => self.contests_of(Some(name)),
            // The engine asks about all, but an answer that is in flight may be older than this.
            Wake::Resync => self.contests_of(None),
            _ => Vec::new(),
        };
        let now = self.clock.now();
        let mut outgoing = Vec::new();
        for contest in contests {
            let mut state = contest.state();
            let asks = state.pushed(matches!(wake, Wake::Granted(..)), now);
            outgoing.extend(contest.outgoing(&mut state, asks));
        }
        self.send(outgoing);
        if !matches!(wake, Wake::Granted(..) | Wake::Changed(Topic::Grants(_))) {
            self.wakes.wake(wake);
        }
    }

    /// Has the contender leave everywhere, in the background, and uses its id up.
    pub(crate) fn give_up(self: &Arc<Self>, contest: &Arc<Contest>) {
        self.forget(contest.contender);
        let mut state = contest.state();
        let asks = state.attempt.leave();
        let outgoing = contest.outgoing(&mut state, asks);
        drop(state);
        self.send(outgoing);
    }

    /// Does the same for a contender whose failure the engine is told, after which it may ask to leave.
    pub(crate) fn give_up_failed(self: &Arc<Self>, contest: &Arc<Contest>) {
        self.give_up(contest);
        self.contests().begin_to_leave(contest.clone());
    }

    /// Removes a contender, and uses its id up.
    fn forget(&self, contender: ContenderId) {
        let now = self.clock.now();
        let mut contests = self.contests();
        drop(contests.remove(contender));
        contests.use_up(contender, now);
    }

    /// Remembers a contender of another process.
    pub(crate) fn remember(&self, contest: Arc<Contest>) {
        let mut contests = self.contests();
        contests.use_again(contest.contender);
        contests.insert(contest);
    }

    /// Has a contender leave by the engine's wish, and returns the requests to send. A leave that is asked for again
    /// goes on with the earlier requests, so that it hears the result of the first one.
    pub(crate) fn leave(&self, leave: &Leave) -> (Arc<Contest>, Vec<Outgoing>) {
        let now = self.clock.now();
        let mut contests = self.contests();
        let known = contests.remove(leave.contender);
        if known.is_none()
            && let Some(contest) = contests.leaving(leave.contender)
        {
            contest.state().touched = now;
            return (contest.clone(), Vec::new());
        }
        let contest = known.unwrap_or_else(|| self.stranger(leave));
        contests.use_up(leave.contender, now);
        contests.begin_to_leave(contest.clone());
        drop(contests);
        let mut state = contest.state();
        state.touched = now;
        state.hold_at_least = leave.hold_at_least.min(self.identity.max_lease);
        state.left.fill(None);
        state.last_answers.fill(None);
        state.held = state.attempt.hold(now).is_some();
        let asks = state.attempt.leave();
        let outgoing = contest.outgoing(&mut state, asks);
        drop(state);
        (contest, outgoing)
    }

    /// Returns the contest of a contender that was granted in another process, and may hold at any member.
    fn stranger(&self, leave: &Leave) -> Arc<Contest> {
        let renewal = Renewal { lease: self.identity.max_lease, lower_to: None, detach: false };
        let attempt = Attempt::adopt(self.majority, 0);
        let (name, members) = (leave.name.clone(), self.links.len());
        Arc::new(Contest::new(name, leave.contender, None, attempt, renewal, members))
    }

    /// Notes that the engine was told the result of a leave.
    pub(crate) fn has_told(&self, contender: ContenderId) {
        self.contests().has_left(contender);
    }

    /// Forgets contenders that the engine has not asked about for long: detached leases that others have gone on with,
    /// those that were lost or evicted, and those that wait although their owner is gone. Only the last ones leave: a
    /// hold that is lost here may go on in another process.
    pub(crate) fn sweep(self: &Arc<Self>) {
        // Waiters ask at least as often as their positions last.
        let (now, longest) = (self.clock.now(), (self.watch_time() * 2).max(WAIT_LEASE));
        let is_over = |contest: &Contest| {
            let mut state = contest.state();
            state.attempt.count(now);
            state.attempt.hold(now).is_none() && now.since(state.touched) >= longest
        };
        let mut contests = self.contests();
        contests.sweep_leaves(is_over);
        let over: Vec<Arc<Contest>> = contests.all().filter(|contest| is_over(contest)).cloned().collect();
        for contest in &over {
            contests.remove(contest.contender);
        }
        drop(contests);
        for contest in over.iter().filter(|contest| contest.state().attempt.is_asking()) {
            self.give_up(contest);
        }
    }
}

/// FNV-1a, so that every client has the same order of gates.
pub(crate) fn fnv(text: &str) -> u64 {
    text.bytes()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}
