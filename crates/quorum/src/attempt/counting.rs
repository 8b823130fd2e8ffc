//! Decides from the answers of members whether an attempt holds, with which number, and until when.

use lockkeeper_core::{GrantNumber, clock::BootTime};

use super::{
    Attempt, Ended, Hold, Mistake, Phase, Sharing,
    at_member::{AtMember, AtMemberHold, Status},
};

impl Attempt {
    /// Returns its hold now, if it has one.
    pub fn hold(&self, now: BootTime) -> Option<Hold> {
        let Phase::Holding { number, floor } = self.phase else { return None };
        let deadline = self.deadline(now)?;
        Some(Hold { number, floor, deadline })
    }

    /// Takes note of the result of the answers so far, at this time. A hold that is lost stays lost.
    pub fn count(&mut self, now: BootTime) {
        match self.phase {
            Phase::Asking => self.count_grants(now),
            Phase::Adopting { number } => self.count_adopted(number, now),
            Phase::Holding { .. } if self.deadline(now).is_none() => {
                self.phase = Phase::Ended(Ended::Lost);
            }
            Phase::Holding { .. } | Phase::Ended(_) => {}
        }
    }

    fn count_adopted(&mut self, number: GrantNumber, now: BootTime) {
        let shown = self.members.iter().filter_map(|at| self.fresh_vote(at, now)).map(|vote| vote.number);
        let mut shown = shown.filter(|shown| *shown >= number);
        let same = shown.find(|shown| self.counted(*shown, now).count() >= self.majority.needed());
        if let Some(same) = same {
            self.target = same;
            self.phase = Phase::Holding { number, floor: number };
        }
    }

    fn count_grants(&mut self, now: BootTime) {
        // The gate keeps the order: a majority without it would overtake the contender that the gate has granted.
        if self.members[self.gate].status(now) != Status::Held {
            return;
        }
        let Some(shown) = self.shown_by_majority(now) else { return };
        let before = if self.makes(Mistake::ShrinkingTarget) { 0 } else { self.target };
        self.target = shown.max(before);
        let counted: Vec<AtMemberHold> = self.counted(self.target, now).collect();
        if counted.len() >= self.majority.needed() {
            let floor = self.floor(counted);
            self.phase = Phase::Holding { number: self.target, floor };
        }
    }

    /// The number that a majority of the votes does not exceed. A number that was granted to somebody before is
    /// exceeded by at least one member of each majority, so it is below this one.
    fn shown_by_majority(&self, now: BootTime) -> Option<GrantNumber> {
        if self.members.iter().filter_map(|at| self.fresh_vote(at, now)).count() < self.majority.needed() {
            return None;
        }
        let lost_too = self.makes(Mistake::TargetOfLostHolds);
        let hold = |at: &AtMember| if lost_too { at.last_hold() } else { self.fresh_vote(at, now) };
        self.majority.smallest(self.members.iter().filter_map(hold).map(|hold| hold.number))
    }

    /// The vote of a member for a hold that was granted since the member votes.
    fn fresh_vote(&self, at: &AtMember, now: BootTime) -> Option<AtMemberHold> {
        at.vote(now).filter(|vote| vote.is_fresh() || self.makes(Mistake::VotesForOldGrants))
    }

    /// The votes that count for a hold with this number.
    fn counted(&self, number: GrantNumber, now: BootTime) -> impl Iterator<Item = AtMemberHold> {
        let holds = matches!(self.phase, Phase::Holding { .. });
        let any = self.makes(Mistake::NoWriteBack) && !holds;
        let exactly = self.sharing == Sharing::Shared && !self.makes(Mistake::ReadersCountAnyNumber);
        let vote = move |at: &AtMember| if holds { at.vote(now) } else { self.fresh_vote(at, now) };
        self.members.iter().filter_map(vote).filter(move |vote| match exactly {
            // Others take the number that a member shows for the floor that they must not exceed.
            true => vote.number == number,
            // Once it holds, the marks of a majority are high enough, and members that were away may be lower.
            false => any || holds || vote.number >= number,
        })
    }

    /// The smallest number that may hold beside it, by the earliest of the answers that a majority needs.
    fn floor(&self, mut counted: Vec<AtMemberHold>) -> GrantNumber {
        counted.sort_by_key(|vote| std::cmp::Reverse(vote.deadline));
        let floors = counted.iter().take(self.majority.needed()).map(|vote| vote.floor);
        floors.min().unwrap_or(self.target).min(self.target)
    }

    fn deadline(&self, now: BootTime) -> Option<BootTime> {
        self.majority.largest(self.counted(self.target, now).map(|vote| vote.deadline))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{Majority, Said};

    /// Members that were asked to show a higher number may do so at any time. Others would take it for the floor.
    #[test]
    fn a_hold_whose_members_may_come_to_show_other_numbers_is_not_shared() {
        let now = BootTime(1_000_000_000_000);
        for levels in [false, true] {
            let mut attempt = Attempt::new(Majority::of(3).expect("odd"), Sharing::Exclusive, 0);
            for (ask, number) in attempt.begin(0).into_iter().zip([5, 5, 9]) {
                let remaining = Duration::from_secs(30);
                let said = Said::Held { number, floor: number, remaining, votes: true, since: 0 };
                attempt.hear(ask.member, ask.stamp, now, &said);
            }
            attempt.count(now);
            assert_eq!(attempt.hold(now).map(|hold| hold.number), Some(5));
            if levels {
                attempt.begin_to_level();
            }
            // Nobody answers.
            for ask in attempt.renew(now) {
                attempt.silent(ask.member, ask.stamp);
            }
            assert_eq!(attempt.share(now), !levels);
        }
    }

    /// One of the members may have granted anew, after somebody else held with a number in between.
    #[test]
    fn whoever_goes_on_with_a_lease_counts_members_that_show_the_same_number() {
        let now = BootTime(1_000_000_000_000);
        for (shown, is_held) in [
            ([105, 105, 105], true),
            ([105, 105, 200], true),
            ([110, 200, 110], true),
            ([105, 110, 200], false),
            ([100, 100, 105], false),
        ] {
            let mut attempt = Attempt::adopt(Majority::of(3).expect("odd"), 105);
            for ask in attempt.renew(now) {
                let (number, remaining) = (shown[ask.member], Duration::from_secs(30));
                let said = Said::Held { number, floor: number, remaining, votes: true, since: 0 };
                attempt.hear(ask.member, ask.stamp, now, &said);
            }
            attempt.count(now);
            let hold = attempt.hold(now);
            assert_eq!(hold.map(|hold| hold.number), is_held.then_some(105), "{shown:?}");
            assert!(!attempt.is_refuted(now), "{shown:?}: a majority has it");
            assert_eq!(
                attempt.share(now),
                is_held && shown[0] == 105,
                "others would take {shown:?} for its floor"
            );
        }
    }
}
