//! The contenders of a keeper, those that are leaving, and the ids that are used up. Nothing here depends on how many
//! there were before.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use lockkeeper_core::{ContenderId, Name, clock::BootTime};

use crate::contest::Contest;

/// How long ids that are used up are remembered, at least: for longer than a claim may be under way from the engine to
/// here. A busy keeper uses up tens of thousands a second.
const USED_UP: Duration = Duration::from_secs(20);

#[derive(Default)]
pub(super) struct Contests {
    by_id: HashMap<ContenderId, Arc<Contest>>,
    by_name: HashMap<Name, Vec<ContenderId>>,
    /// Those that the engine wants to leave, until it was told the result.
    leaving: HashMap<ContenderId, Arc<Contest>>,
    used_up: UsedUp,
}

impl Contests {
    pub(super) fn get(&self, contender: ContenderId) -> Option<&Arc<Contest>> {
        self.by_id.get(&contender)
    }

    pub(super) fn all(&self) -> impl Iterator<Item = &Arc<Contest>> {
        self.by_id.values()
    }

    pub(super) fn of(&self, name: &Name) -> impl Iterator<Item = &Arc<Contest>> {
        let ids = self.by_name.get(name).into_iter().flatten();
        ids.filter_map(|id| self.by_id.get(id))
    }

    pub(super) fn insert(&mut self, contest: Arc<Contest>) {
        let id = contest.contender;
        let ids = self.by_name.entry(contest.name.clone()).or_default();
        if self.by_id.insert(id, contest).is_none() {
            ids.push(id);
        }
    }

    pub(super) fn remove(&mut self, contender: ContenderId) -> Option<Arc<Contest>> {
        let contest = self.by_id.remove(&contender)?;
        if let Some(ids) = self.by_name.get_mut(&contest.name) {
            ids.retain(|id| *id != contender);
            if ids.is_empty() {
                self.by_name.remove(&contest.name);
            }
        }
        Some(contest)
    }

    /// Notes that this id is not used again.
    pub(super) fn use_up(&mut self, contender: ContenderId, now: BootTime) {
        self.used_up.insert(contender, now);
    }

    /// Lets this id be used again, by a lease that another process may have handed back.
    pub(super) fn use_again(&mut self, contender: ContenderId) {
        self.used_up.remove(contender);
    }

    pub(super) fn is_used_up(&self, contender: ContenderId) -> bool {
        self.used_up.contains(contender)
    }

    pub(super) fn leaving(&self, contender: ContenderId) -> Option<&Arc<Contest>> {
        self.leaving.get(&contender)
    }

    pub(super) fn begin_to_leave(&mut self, contest: Arc<Contest>) {
        self.leaving.insert(contest.contender, contest);
    }

    pub(super) fn has_left(&mut self, contender: ContenderId) {
        self.leaving.remove(&contender);
    }

    /// Forgets leaves that nobody asks about any more.
    pub(super) fn sweep_leaves(&mut self, is_over: impl Fn(&Contest) -> bool) {
        self.leaving.retain(|_, contest| !is_over(contest));
    }
}

/// Ids that are used up, in two sets by age: nothing is searched through when one is added.
#[derive(Default)]
struct UsedUp {
    young: HashSet<ContenderId>,
    old: HashSet<ContenderId>,
    /// The time when the young ones began.
    since: BootTime,
}

impl UsedUp {
    fn insert(&mut self, contender: ContenderId, now: BootTime) {
        if now.since(self.since) >= USED_UP {
            self.old = std::mem::take(&mut self.young);
            self.since = now;
        }
        self.young.insert(contender);
    }

    fn contains(&self, contender: ContenderId) -> bool {
        self.young.contains(&contender) || self.old.contains(&contender)
    }

    fn remove(&mut self, contender: ContenderId) {
        self.young.remove(&contender);
        self.old.remove(&contender);
    }
}

#[cfg(test)]
mod tests {
    use lockkeeper_core::KeeperId;

    use super::*;

    #[test]
    fn ids_are_remembered_for_a_while_and_not_for_ever() {
        let (mut used_up, keeper) = (UsedUp::default(), KeeperId::random());
        let begun = BootTime(1_000_000_000_000);
        let id = |seq| ContenderId { keeper, seq };
        for second in 0..1000 {
            let now = begun.after(Duration::from_secs(second));
            used_up.insert(id(second), now);
            let kept = (0..=second).filter(|seq| used_up.contains(id(*seq))).count();
            assert!(kept <= 40, "{kept} after {second} s");
            assert!((second.saturating_sub(20)..=second).all(|seq| used_up.contains(id(seq))));
        }
    }
}
