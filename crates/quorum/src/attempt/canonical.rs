//! For the checker: attempts that will behave alike become equal, so that fewer states are told apart.

use std::collections::{BTreeMap, BTreeSet};

use lockkeeper_core::clock::BootTime;

use super::{Attempt, Ended, Mistake, Phase, Stamp};

impl Attempt {
    /// Forgets all that cannot matter any more, and numbers stamps anew in their order. `under_way` are the stamps of
    /// all messages; the result has the new stamp of each.
    pub(crate) fn make_canonical(
        &mut self,
        now: BootTime,
        under_way: &BTreeSet<Stamp>,
    ) -> BTreeMap<Stamp, Stamp> {
        if self.phase == Phase::Ended(Ended::Left) {
            let left = Self::new(self.majority, self.sharing, 0).making(self.mistake);
            *self = Self { phase: Phase::Ended(Ended::Left), ..left };
        }
        if self.mistake != Some(Mistake::TargetOfLostHolds) {
            for at in &mut self.members {
                at.forget_lost(now);
            }
        }
        let mut stamps = under_way.clone();
        stamps.extend([Stamp(0), self.round]);
        stamps.extend(self.members.iter().flat_map(|at| at.stamps()));
        let renumbered: BTreeMap<Stamp, Stamp> = stamps.into_iter().zip((0..).map(Stamp)).collect();
        self.round = renumbered[&self.round];
        for at in &mut self.members {
            at.renumber(&renumbered);
        }
        self.next_stamp = Stamp(u32::try_from(renumbered.len()).expect("few"));
        renumbered
    }
}
