//! Decides what the engine is told of a claim, and what its errors say of each member.

use std::{sync::Arc, time::Duration};

use lockkeeper_core::{
    StoreError, StoreErrorKind,
    clock::BootTime,
    deadline::margin,
    store::{Grant, Verdict},
};

use super::Quorum;
use crate::{
    Hold,
    contest::{Contest, ContestState, Note, Outgoing, Position},
};

/// What is known of a claim.
pub(crate) enum Judged {
    Verdict(Verdict),
    Failed(StoreError),
    /// Nothing yet. It is to be looked at again at this time, whatever is heard.
    Undecided(BootTime),
}

impl Quorum {
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
}

/// A hold as the engine is told of it that asked at `asked`: the engine takes a margin off what is left, and comes to the
/// deadline of the hold, or to an earlier one.
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
