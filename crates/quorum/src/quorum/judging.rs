//! Decides on the answer to a claim for the engine, and on the words about each member in its errors.

use std::{sync::Arc, time::Duration};

use lockkeeper_core::{
    StoreError, StoreErrorKind,
    clock::BootTime,
    deadline::margin,
    store::{Grant, Left, Verdict},
};

use super::Quorum;
use crate::{
    Hold,
    contest::{Contest, ContestState, LastAnswer, Outgoing, Position},
    link::Link,
};

/// The decision on a claim.
pub(crate) enum Judged {
    Verdict(Verdict),
    Failed(StoreError),
    /// Nothing yet. It is to be looked at again at this time in any case.
    Undecided(BootTime),
}

/// The decision on a leave.
pub(crate) enum Departure {
    Left(Left),
    Failed(StoreError),
    /// Nothing yet. It is to be looked at again at this time in any case.
    Undecided(BootTime),
}

/// The members that have not answered a leave.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Missing {
    /// All that were asked have answered.
    None,
    /// Only suspected ones have not.
    Suspected,
    Some,
}

impl Quorum {
    /// Decides on the answer to a claim that the engine asked for at `asked`.
    pub(crate) fn judge(self: &Arc<Self>, contest: &Arc<Contest>, asked: BootTime) -> Judged {
        let now = self.clock.now();
        let mut state = contest.state();
        let mut outgoing = self.turn_to_gate(contest, &mut state, now);
        if !contest.waits() {
            // The last answer may have been taken, and the requests that follow from it are not under way yet.
            let asks = state.attempt.next(now);
            outgoing.extend(contest.outgoing(&mut state, asks));
        }
        if !outgoing.is_empty() {
            // A request may be held back, which depends on the contest.
            drop(state);
            self.send(outgoing);
            state = contest.state();
        }
        state.attempt.count(now);
        if let Some(hold) = state.attempt.hold(now) {
            (state.at_gate_since, state.told_waiting) = (None, false);
            self.state.contended.granted(&contest.name, state.position.is_some());
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
        state.note_gate(now);
        let judged = self.judge_unheld(contest, &state, asked, now);
        // A waiter that is told of a failure asks again after a pause, which a grant ends.
        state.told_waiting |= matches!(judged, Judged::Verdict(Verdict::Busy { .. }) | Judged::Failed(_));
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

    /// Turns to another gate if the one so far is silent or serves nobody, or back to one that comes before it. While
    /// there are two queues, the head of each keeps members from the other that it needs, and one after the other has
    /// to give way.
    pub(super) fn turn_to_gate(
        &self,
        contest: &Arc<Contest>,
        state: &mut ContestState,
        now: BootTime,
    ) -> Vec<Outgoing> {
        let (gate, first) = (state.attempt.gate(), self.gate(&contest.name));
        // A gate that is only avoided is better than one that does not answer: it may serve somebody again.
        let is_no_better = self.links[first].is_suspect()
            || self.is_passed_over(&contest.name, first) && !self.links[gate].is_suspect();
        if first == gate || is_no_better || state.attempt.is_held(gate, now) {
            return Vec::new();
        }
        let turns = match self.links[gate].is_suspect() {
            // A position counts while the gate confirms it: a gate that died would keep its waiters for ever.
            true => {
                let confirmed = |position: Position| now.since(position.asked) <= self.member_limit();
                !(state.attempt.is_in_queue(gate, now) && state.position.is_some_and(confirmed))
            }
            false => {
                let serves_nobody = self.is_passed_over(&contest.name, gate);
                (serves_nobody || contest.waits()) && state.attempt.is_usable(first, now)
            }
        };
        if !turns {
            return Vec::new();
        }
        let mut asks = state.attempt.change_gate(first);
        asks.extend(state.attempt.next(now));
        contest.outgoing(state, asks)
    }

    /// Whether a contender that waits is to come back with another id, because this one cannot be used where it has to
    /// be: at the gate where others wait, or at so many members that the rest is no majority.
    pub(super) fn stands_in_vain(&self, contest: &Contest, state: &ContestState, now: BootTime) -> bool {
        let (gate, first) = (state.attempt.gate(), self.gate(&contest.name));
        let others_wait_there = first != gate && !self.is_passed_over(&contest.name, first);
        let is_shut_out =
            || state.attempt.is_spent(first, now) || state.cannot_leave_for(first, now) > self.member_limit();
        others_wait_there && is_shut_out() || self.is_unusable(state, now)
    }

    /// Whether another id would have a majority, and this one has none.
    fn is_unusable(&self, state: &ContestState, now: BootTime) -> bool {
        let voters = self.links.iter().filter(|link| !link.is_suspect() && link.votes(&self.identity));
        let (all, spent) = voters.fold((0, 0), |(all, spent), link| {
            (all + 1, spent + usize::from(state.attempt.is_spent(link.index, now)))
        });
        all >= self.majority.needed() && all - spent < self.majority.needed()
    }

    fn judge_unheld(
        &self,
        contest: &Contest,
        state: &ContestState,
        asked: BootTime,
        now: BootTime,
    ) -> Judged {
        let (waits, gate, needed) = (contest.waits(), state.attempt.gate(), self.majority.needed());
        if let Some(refusal) = self.refusal(state, now) {
            return Judged::Failed(refusal);
        }
        // A leave may still arrive at the gate, so this id cannot wait there.
        if waits && state.attempt.is_spent(gate, now) {
            return Judged::Verdict(Verdict::Again);
        }
        if waits && state.attempt.is_in_queue(gate, now) {
            let in_vain = self.stands_in_vain(contest, state, now);
            return Judged::Verdict(if in_vain { Verdict::Again } else { busy(state) });
        }
        // It is in no queue, because its gate serves nobody, and the one that does would not take this id.
        let is_nowhere = !state.attempt.is_held(gate, now) && self.is_passed_over(&contest.name, gate);
        if waits && is_nowhere && self.stands_in_vain(contest, state, now) {
            return Judged::Verdict(Verdict::Again);
        }
        if !self.is_decided(waits, state, asked, now) {
            let slow = asked.after(self.member_limit());
            let next = if now < slow { slow } else { asked.after(self.answer_limit()) };
            return Judged::Undecided(next.max(now.after(Duration::from_millis(5))));
        }
        if waits && self.gives_way(contest, state, now) {
            return Judged::Verdict(Verdict::Again);
        }
        // Only the gate was asked. Others may refuse it for good, too, or serve it.
        let is_refused = matches!(state.last_answers[gate], Some(LastAnswer::Refused(_)));
        if waits && is_refused && self.state.contended.contains(&contest.name) {
            self.state.contended.granted(&contest.name, false);
            return Judged::Verdict(Verdict::Again);
        }
        // All of a majority have granted, and too few of them vote.
        let held = self.held(state, now).count();
        if state.attempt.heard() < needed || held >= needed {
            return Judged::Failed(self.too_few(state, now));
        }
        Judged::Verdict(match waits {
            true => Verdict::busy(0, (state.renewal.lease / 3).min(self.member_limit())),
            false => busy(state),
        })
    }

    /// Whether a caller that waits for this contest may be told something now. Waking it for each answer would cost
    /// more than the answer.
    pub(super) fn may_be_decided(&self, contest: &Contest, state: &ContestState, now: BootTime) -> bool {
        let (attempt, waits) = (&state.attempt, contest.waits());
        let is_refused =
            || state.last_answers.iter().any(|last| matches!(last, Some(LastAnswer::Refused(_))));
        if attempt.is_asking() {
            let (gate, is_spent) = (attempt.gate(), attempt.is_spent(attempt.gate(), now));
            return state.mismatch.is_some()
                || is_spent
                || waits && attempt.is_in_queue(gate, now)
                || self.is_decided(waits, state, state.touched, now)
                || is_refused();
        }
        let is_slow = now >= state.touched.after(self.member_limit());
        attempt.ended().is_none()
            || self.is_released(contest, state)
            || self.missing_leaves(state) != Missing::Some
            || is_slow && self.may_have_it(state) < self.majority.needed()
            || is_refused()
    }

    /// How many members may still have the lock of a contender that leaves.
    fn may_have_it(&self, state: &ContestState) -> usize {
        self.links.iter().filter(|link| state.attempt.is_leaving(link.index)).count()
    }

    /// Whether waiting for more answers to a claim is in vain.
    fn is_decided(&self, waits: bool, state: &ContestState, asked: BootTime, now: BootTime) -> bool {
        let (attempt, needed) = (&state.attempt, self.majority.needed());
        if now.since(asked) >= self.answer_limit() || state.outstanding().next().is_none() {
            return true;
        }
        // A member that is suspected is not waited for, if a majority has answered without it. Otherwise it gets the
        // time that any member gets. A waiter asks again, and the rest of its group must not wait for longer.
        let is_silent = state.outstanding().all(|member| self.links[member].is_suspect());
        if attempt.heard() < needed {
            return waits && is_silent && now.since(asked) >= self.member_limit();
        }
        if is_silent {
            return true;
        }
        let gate = attempt.gate();
        let is_refused = !attempt.is_held(gate, now) && !attempt.is_claiming(gate);
        let may_grant = |member: &usize| attempt.is_held(*member, now) || attempt.is_claiming(*member);
        let too_few = (0..self.links.len()).filter(may_grant).count() < needed;
        // A majority without the gate is not enough, so a try is over when the gate has said no.
        !waits && (is_refused || too_few)
    }

    /// Whether a contender that waits without a position at its gate is to come back with another id.
    pub(super) fn gives_way(&self, contest: &Contest, state: &ContestState, now: BootTime) -> bool {
        let (gate, needed) = (state.attempt.gate(), self.majority.needed());
        let held_for = state.at_gate_since.map_or(Duration::ZERO, |since| now.since(since));
        let first = self.gates(&contest.name).next().unwrap_or(gate);
        // A leave that is under way to a member that answers ends in a moment.
        let usable = |link: &&Link| {
            state.attempt.is_usable(link.index, now)
                || !link.is_suspect() && !state.attempt.is_spent(link.index, now)
        };
        let in_reach = |link: &&Link| !link.is_suspect() && link.votes(&self.identity);
        let own_voters = self.links.iter().filter(in_reach).filter(usable).count();
        // Others that reach a majority need this gate, or wait at a gate that comes before it.
        let too_long = match gate == first {
            true => own_voters < needed && held_for > 2 * self.member_limit(),
            false if self.is_passed_over(&contest.name, first) => held_for > 2 * self.member_limit(),
            false => held_for > self.member_limit() / 2,
        };
        too_long || self.is_unusable(state, now) || self.links.iter().filter(usable).count() < needed
    }

    /// Decides on the answer to a leave that the engine asked for at `asked`. It has left when a majority has released
    /// it and the gate of the next contender is among them, or when the members that may still have it are too few for
    /// a majority, and all of them are suspected.
    pub(crate) fn judge_left(&self, contest: &Contest, asked: BootTime) -> Departure {
        let (now, needed, state) = (self.clock.now(), self.majority.needed(), contest.state());
        if self.is_released(contest, &state) {
            return Departure::Left(Left::Released);
        }
        let answers: Vec<Left> = state.left.iter().flatten().copied().collect();
        let count = |kind| answers.iter().filter(|left| **left == kind).count();
        let (released, queued) = (count(Left::Released), count(Left::LeftQueue));
        let slow = asked.after(self.member_limit());
        let missing = self.missing_leaves(&state);
        // A contender that may still have it at fewer members than a majority does not hold.
        let enough = self.may_have_it(&state) < needed && (now >= slow || missing == Missing::Suspected);
        if missing == Missing::None || enough {
            return Departure::Left(match (released, queued) {
                (released, _) if released >= needed => Left::Released,
                // Those that are missing may have it.
                (1.., _) if missing != Missing::None => Left::Released,
                (_, 1..) => Left::LeftQueue,
                _ => Left::NotThere,
            });
        }
        if let Some(refusal) = self.refusal(&state, now) {
            return Departure::Failed(refusal);
        }
        let until = asked.after(self.answer_limit());
        if now >= until {
            drop(state);
            return Departure::Failed(self.unreachable());
        }
        Departure::Undecided(if now >= slow { until } else { slow })
    }

    /// Whether a majority has released it, and its gate, too, so that the next claim is served.
    fn is_released(&self, contest: &Contest, state: &ContestState) -> bool {
        let released = state.left.iter().filter(|left| **left == Some(Left::Released)).count();
        released >= self.majority.needed() && !state.attempt.is_leaving(self.gate(&contest.name))
    }

    /// Returns which members have not answered the leave of a contender.
    fn missing_leaves(&self, state: &ContestState) -> Missing {
        let missing: Vec<&Link> =
            self.links.iter().filter(|link| state.attempt.is_leaving(link.index)).collect();
        match &missing[..] {
            [] => Missing::None,
            missing if missing.iter().all(|link| link.is_suspect()) => Missing::Suspected,
            _ => Missing::Some,
        }
    }

    fn held(&self, state: &ContestState, now: BootTime) -> impl Iterator<Item = usize> {
        (0..self.links.len()).filter(move |member| state.attempt.is_held(*member, now))
    }

    /// How long an answer to the engine may take: it must be there before the engine stops waiting.
    pub(crate) fn answer_limit(&self) -> Duration {
        self.request_limit.mul_f32(0.8)
    }

    /// The error if so many members refuse for good that the others are no majority.
    pub(crate) fn refusal(&self, state: &ContestState, now: BootTime) -> Option<StoreError> {
        let refused = state.last_answers.iter().filter_map(|last| match last {
            Some(LastAnswer::Refused(error)) if !error.is_passing() => Some(error.kind()),
            _ => None,
        });
        let refused: Vec<StoreErrorKind> = refused.collect();
        let others = self.links.len() - refused.len();
        let kind = refused.first().filter(|_| others < self.majority.needed())?;
        Some(StoreError::new(*kind, self.each_member(state, now)))
    }

    /// The error of a claim that too few members answered or voted for.
    fn too_few(&self, state: &ContestState, now: BootTime) -> StoreError {
        StoreError::new(StoreErrorKind::Unreachable, self.each_member(state, now))
    }

    /// Describes the answer of each member to a claim.
    fn each_member(&self, state: &ContestState, now: BootTime) -> String {
        let each = self.links.iter().zip(&state.last_answers).map(|(link, last)| {
            let complaint = link.complaint(now, self.watch_time());
            let what = match (complaint, last) {
                (_, Some(LastAnswer::Refused(error))) => error.to_string(),
                (Some(complaint), Some(LastAnswer::GrantedWithoutVote)) => {
                    format!("granted, but {complaint}")
                }
                (Some(complaint), _) => complaint,
                (None, Some(LastAnswer::Granted)) => "granted".into(),
                (None, Some(LastAnswer::GrantedWithoutVote)) => "granted, but does not vote".into(),
                (None, Some(LastAnswer::Busy)) => "is busy".into(),
                (None, Some(LastAnswer::Gone)) => "does not hold it any more".into(),
                (None, None) => "has not answered".into(),
            };
            format!("{}: {what}", link.shown())
        });
        let each: Vec<String> = each.collect();
        format!("fewer than {} members granted and voted; {}", self.majority.needed(), each.join("; "))
    }

    /// The error of a request that too few members answered.
    pub(crate) fn unreachable(&self) -> StoreError {
        self.too_few_that("answered")
    }

    /// The error of a renewal that too few members confirmed. They may have answered with numbers that differ.
    pub(crate) fn unconfirmed(&self) -> StoreError {
        self.too_few_that("confirmed the lease")
    }

    pub(crate) fn too_few_that(&self, what: &str) -> StoreError {
        let now = self.clock.now();
        let each = self.links.iter().map(|link| {
            let what = link.complaint(now, self.watch_time()).unwrap_or_else(|| "is well".into());
            format!("{}: {what}", link.shown())
        });
        let each: Vec<String> = each.collect();
        let message = format!("fewer than {} members {what}; {}", self.majority.needed(), each.join("; "));
        StoreError::new(StoreErrorKind::Unreachable, message)
    }
}

/// Returns the verdict that somebody else holds it.
fn busy(state: &ContestState) -> Verdict {
    match state.position {
        Some(Position { ahead, retry_in, .. }) => Verdict::busy(ahead, retry_in),
        None => Verdict::busy(0, state.renewal.lease / 3),
    }
}

/// Returns a hold as a grant for the engine, which asked at `asked`. The engine takes a margin off the time that is
/// left, and comes to the deadline of the hold, or to an earlier one.
pub(crate) fn as_grant(hold: &Hold, asked: BootTime) -> Grant {
    let without_margin = hold.deadline.since(asked) + margin(Duration::ZERO);
    let remaining = (without_margin * 100 / 99).saturating_sub(Duration::from_micros(1));
    Grant { number: hold.number, floor: hold.floor, remaining }
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
