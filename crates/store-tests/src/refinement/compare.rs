//! The rules by which answers of the store and of the model mean the same: times up to a tolerance, grant numbers by
//! their order. A store counts as it likes, as long as its numbers grow.

use std::{
    collections::{BTreeMap, HashMap},
    fmt::Debug,
    time::Duration,
};

use lockkeeper_core::{
    GrantNumber, Name, Token,
    store::{Answer, CountState, Counted, Grant, GrantNotice, HolderView, Renewed, ResourceView, Verdict},
};

/// Nothing, or the difference.
pub(super) type Compared = Result<(), String>;

fn differ(what: &str, model: impl Debug, store: impl Debug) -> Compared {
    Err(format!("{what}: expected {model:?}\n{:>1$} got {store:?}", "", what.len() + 4))
}

fn same<T: PartialEq + Debug>(what: &str, model: &T, store: &T) -> Compared {
    if model == store { Ok(()) } else { differ(what, model, store) }
}

fn near(what: &str, model: Duration, store: Duration, tolerance: Duration) -> Compared {
    if model.abs_diff(store) <= tolerance { Ok(()) } else { differ(what, model, store) }
}

/// How far the times and positions that a store reports may differ from the model's.
#[derive(Clone, Copy)]
pub(super) struct Leniency {
    pub(super) tolerance: Duration,
    /// It vouches for a part of a lease at a time, and does not see when those of others end.
    pub(super) in_parts: bool,
    /// It settles by itself, not with a request: the effects of a request may come a moment later.
    pub(super) by_itself: bool,
}

impl Leniency {
    /// Compares the rest of a lease of the asker's own.
    fn remaining(self, what: &str, model: Duration, store: Duration) -> Compared {
        if self.in_parts && store <= model + self.tolerance && !store.is_zero() {
            return Ok(());
        }
        near(what, model, store, self.tolerance)
    }
}

/// The store's number for each number of the model that has been seen.
#[derive(Default)]
pub(super) struct Numbers {
    grants: HashMap<Name, BTreeMap<GrantNumber, GrantNumber>>,
    births: HashMap<Name, BTreeMap<GrantNumber, GrantNumber>>,
}

impl Numbers {
    /// The store's number for a grant of the model, if it has been seen.
    pub(super) fn of_store(&self, name: &Name, model: GrantNumber) -> Option<GrantNumber> {
        self.grants.get(name)?.get(&model).copied()
    }

    fn grant(&mut self, name: &Name, what: &str, model: GrantNumber, store: GrantNumber) -> Compared {
        let known = self.grants.entry(name.clone()).or_default();
        if let Some(before) = known.get(&model) {
            return same(what, before, &store);
        }
        let below = known.range(..model).next_back().map(|(_, number)| *number);
        let above = known.range(model..).next().map(|(_, number)| *number);
        if below.is_some_and(|below| store <= below) || above.is_some_and(|above| store >= above) {
            return Err(format!("{what} {store} is not in the order of the grants of {name}: {known:?}"));
        }
        known.insert(model, store);
        Ok(())
    }

    /// Compares births: another creation of a latch has another number. Nothing else is promised of them.
    fn birth(&mut self, name: &Name, model: GrantNumber, store: GrantNumber) -> Compared {
        let known = self.births.entry(name.clone()).or_default();
        if let Some(before) = known.get(&model) {
            return same("born", before, &store);
        }
        if known.values().any(|number| *number == store) {
            return Err(format!("born: {store} is the number of an earlier creation"));
        }
        known.insert(model, store);
        Ok(())
    }

    pub(super) fn answers(
        &mut self,
        name: &Name,
        model: &Answer,
        store: &Answer,
        leniency: Leniency,
    ) -> Compared {
        match (model, store) {
            (Answer::Leave(model), Answer::Leave(store)) => same("leave", model, store),
            (Answer::Claim(model), Answer::Claim(store)) => self.verdicts(name, model, store, leniency),
            _ => differ("answer", model, store),
        }
    }

    fn verdicts(&mut self, name: &Name, model: &Verdict, store: &Verdict, leniency: Leniency) -> Compared {
        match (model, store) {
            (Verdict::Granted(expected), Verdict::Granted(grant)) => {
                self.grants(name, expected, grant, leniency)
            }
            (
                Verdict::Busy { ahead: expected, retry_in: in_model, .. },
                Verdict::Busy { ahead, retry_in: in_store, .. },
            ) => {
                if !(leniency.by_itself && ahead >= expected) {
                    same("ahead", expected, ahead)?;
                }
                if leniency.in_parts {
                    Ok(())
                } else {
                    near("retry_in", *in_model, *in_store, leniency.tolerance)
                }
            }
            // Granted within this very group: the views show whether it came to be.
            (Verdict::Granted(_), Verdict::Busy { .. }) if leniency.by_itself => Ok(()),
            (Verdict::Stale, Verdict::Stale) => Ok(()),
            (Verdict::Mismatch { in_use: expected, .. }, Verdict::Mismatch { in_use, .. }) => {
                same("in_use", expected, in_use)
            }
            _ => differ("claim", model, store),
        }
    }

    pub(super) fn counts(&mut self, name: &Name, model: &Counted, store: &Counted) -> Compared {
        match (model, store) {
            (Counted::State(expected), Counted::State(state))
            | (Counted::Exists(expected), Counted::Exists(state)) => {
                self.birth(name, expected.born, state.born)?;
                same("count", expected, &CountState { born: expected.born, ..*state })
            }
            _ => same("count", model, store),
        }
    }

    /// Whether a notice that was delivered tells of a grant that the model made.
    pub(super) fn notice(
        &mut self,
        name: &Name,
        model: &GrantNotice,
        store: &GrantNotice,
        leniency: Leniency,
    ) -> Compared {
        self.grant(name, "the floor of a notice", model.floor, store.floor)?;
        self.grant(name, "the number of a notice", model.number, store.number)?;
        if leniency.in_parts {
            // Its stamp is its own: only the part of a lease that it vouches for can be compared.
            return leniency.remaining("the lease of a notice", model.lease, store.lease);
        }
        near("waited", model.waited, store.waited, leniency.tolerance)?;
        let expected =
            GrantNotice { number: store.number, floor: store.floor, waited: store.waited, ..*model };
        same("notice", &expected, store)
    }

    pub(super) fn views(
        &mut self,
        name: &Name,
        model: Option<&ResourceView>,
        store: Option<&ResourceView>,
        leniency: Leniency,
    ) -> Compared {
        let (model, store) = match (model, store) {
            (None, None) => return Ok(()),
            (Some(model), Some(store)) => (model, store),
            _ => return differ(&format!("view of {name}"), model, store),
        };
        same("name", name, &store.name)?;
        same("capacity", &model.capacity, &store.capacity)?;
        let ids = |holders: &[HolderView]| holders.iter().map(|holder| holder.contender).collect::<Vec<_>>();
        same("holders", &ids(&model.holders), &ids(&store.holders))?;
        for (expected, holder) in model.holders.iter().zip(&store.holders) {
            match (expected.remaining, holder.remaining) {
                (Some(expected), Some(remaining)) if !leniency.in_parts => {
                    near("remaining in view", expected, remaining, leniency.tolerance)?;
                }
                (_, None) if !leniency.in_parts => return differ("remaining in view", expected, holder),
                _ => {}
            }
            self.grant(name, "the number in view", expected.token.number(), holder.token.number())?;
            let expected = HolderView {
                token: Token::new(holder.token.number(), 0),
                since: holder.since,
                remaining: holder.remaining,
                // Such a store keeps the rest of a detached lease in place of its length.
                lease: if leniency.in_parts && holder.detached { holder.lease } else { expected.lease },
                ..expected.clone()
            };
            same("holder", &expected, holder)?;
        }
        let queue = |view: &ResourceView| -> Vec<_> {
            view.waiters
                .iter()
                .map(|waiter| (waiter.contender, waiter.units, waiter.details.clone()))
                .collect()
        };
        same("waiters", &queue(model), &queue(store))
    }
    pub(super) fn renewals(
        &mut self,
        name: &Name,
        model: &Renewed,
        store: &Renewed,
        leniency: Leniency,
    ) -> Compared {
        match (model, store) {
            // Such a store does not look at others for a renewal.
            (Renewed::Held(expected), Renewed::Held(grant)) if leniency.in_parts => {
                leniency.remaining("remaining", expected.remaining, grant.remaining)?;
                self.grant(name, "the number", expected.number, grant.number)
            }
            (Renewed::Held(expected), Renewed::Held(grant)) => self.grants(name, expected, grant, leniency),
            _ => same("renewal", model, store),
        }
    }

    fn grants(&mut self, name: &Name, model: &Grant, store: &Grant, leniency: Leniency) -> Compared {
        leniency.remaining("remaining", model.remaining, store.remaining)?;
        self.grant(name, "the floor", model.floor, store.floor)?;
        self.grant(name, "the number", model.number, store.number)
    }
}
