//! The queue of one server: who asks next, and which of them go together as one group.

use std::{
    collections::{BTreeSet, HashMap, VecDeque},
    sync::{Arc, Mutex, MutexGuard},
};

use super::{Asker, Standing};
use crate::{
    engine::{looks::look, store_client::StoreClient},
    name::{Name, NameMap},
    support,
};

/// The askers for one server.
pub(super) struct Queue {
    pub(super) server: usize,
    state: Mutex<State>,
}

#[derive(Default)]
pub(super) struct State {
    pub(super) askers: VecDeque<Arc<dyn Asker>>,
    /// New claims behind another new claim of the same resource that is among the askers. Each moves up when the one
    /// before it is taken out, so a long line of them is not looked through for each group. Without askers, nobody is
    /// behind.
    behind: HashMap<Name, VecDeque<Arc<dyn Asker>>>,
    /// What groups in flight give back without claiming it, and how many groups do so.
    leaving: NameMap<usize>,
    /// Those that go alone, one resource at a time.
    pub(super) alone: VecDeque<Arc<dyn Asker>>,
    /// Whether one of them is in flight.
    pub(super) alone_in_flight: bool,
    pub(super) groups_in_flight: usize,
    pub(super) requests_in_flight: usize,
    /// Whether the last group was of several resources, and no other one went out since: its answers have woken tasks.
    pub(super) has_woken_several: bool,
    /// Somebody will see to it that the askers are sent.
    pub(super) called_for: bool,
}

/// Askers that go together.
pub(super) struct Group {
    /// In order of name, leaves before claims.
    pub(super) askers: Vec<Arc<dyn Asker>>,
    /// What they give back without a claim of the same in this group.
    pub(super) left: Vec<Name>,
}

/// The names that a group, which is in order, leaves and does not claim.
fn left_by(group: &[Arc<dyn Asker>]) -> Vec<Name> {
    let next = group.iter().skip(1).map(Some).chain([None]);
    let is_last_of_name = |asker: &Arc<dyn Asker>, next: Option<&Arc<dyn Asker>>| {
        asker.leaves() && next.is_none_or(|next| next.name() != asker.name())
    };
    let left = group.iter().zip(next).filter(|(asker, next)| is_last_of_name(asker, *next));
    left.map(|(asker, _)| asker.name().clone()).collect()
}

/// The askers of a queue and those behind them.
pub(super) type GivenUp = (VecDeque<Arc<dyn Asker>>, HashMap<Name, VecDeque<Arc<dyn Asker>>>);

impl Queue {
    pub(super) fn new(server: usize) -> Self {
        Self { server, state: Mutex::default() }
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        support::lock(&self.state)
    }

    /// Whether answers have woken several tasks since the last group went out. Told once.
    pub(super) fn takes_woken(&self) -> bool {
        std::mem::take(&mut self.state().has_woken_several)
    }

    /// The next group: at most one new claim per resource, in order of name, leaves before claims. A group that is not
    /// `alone` takes its share of all that is under way, so that groups are equally full: otherwise one would take all
    /// and the others nothing, for ever.
    ///
    /// Groups that are in flight at the same time may overtake each other. So a claim that wants all of what another group
    /// gives back goes once that one is answered: it might find its own process holding.
    pub(super) fn take(&self, client: &StoreClient, alone: bool) -> Group {
        let mut state = self.state();
        let share = (state.askers.len() + state.requests_in_flight).div_ceil(client.requests_at_once());
        let limit = if alone { client.group_limit() } else { client.group_limit().min(share.max(1)) };
        let mut group: Vec<Arc<dyn Asker>> = Vec::with_capacity(state.askers.len().min(limit));
        let mut new: BTreeSet<Name> = BTreeSet::new();
        let (most, mut later) = (client.group_limit(), Vec::new());
        while (group.len() < limit || (group.len() < most && state.follows_its_leave(&group)))
            && let Some(asker) = state.askers.pop_front()
        {
            look();
            if state.is_behind_a_leave(asker.as_ref()) {
                later.push(asker);
            } else {
                state.take(asker, &mut group, &mut new);
            }
        }
        // They stay first.
        for asker in later.into_iter().rev() {
            state.askers.push_front(asker);
        }
        state.move_up(&new);
        group.sort_by(|a, b| (a.name(), !a.leaves()).cmp(&(b.name(), !b.leaves())));
        let left = if client.requests_at_once() > 1 { left_by(&group) } else { Vec::new() };
        for name in &left {
            *state.leaving.entry(name.clone()).or_default() += 1;
        }
        state.requests_in_flight += group.len();
        Group { askers: group, left }
    }

    /// The next requests that go alone: all of one resource, leaves before claims.
    pub(super) fn take_alone(&self, client: &StoreClient) -> Vec<Arc<dyn Asker>> {
        let mut state = self.state();
        let (mut group, mut others) = (Vec::<Arc<dyn Asker>>::new(), VecDeque::new());
        for asker in state.alone.drain(..).filter(|asker| asker.standing() != Standing::Over) {
            look();
            let is_next = group.first().is_none_or(|first| first.name() == asker.name());
            if is_next && group.len() < client.group_limit() {
                group.push(asker);
            } else {
                others.push_back(asker);
            }
        }
        state.alone = others;
        drop(state);
        group.sort_by_key(|asker| !asker.leaves());
        group
    }
}

impl State {
    /// Takes out all that is left, because nobody can send it any more. The caller drops it without the lock: it may be
    /// the last to have the engine.
    pub(super) fn give_up(&mut self) -> GivenUp {
        (std::mem::take(&mut self.askers), std::mem::take(&mut self.behind))
    }

    /// Takes an asker that was the next one into the group, unless it has nothing to ask or is to go in a later one. `new`
    /// are the names that have a new claim in the group.
    fn take(&mut self, asker: Arc<dyn Asker>, group: &mut Vec<Arc<dyn Asker>>, new: &mut BTreeSet<Name>) {
        match asker.standing() {
            Standing::Over => {
                // Those behind it move up all the same.
                if self.behind.contains_key(asker.name()) {
                    new.insert(asker.name().clone());
                }
            }
            Standing::New if new.contains(asker.name()) => {
                self.behind.entry(asker.name().clone()).or_default().push_back(asker);
            }
            Standing::New => {
                if !self.is_last(group) {
                    new.insert(asker.name().clone());
                }
                group.push(asker);
            }
            Standing::Known => {
                // It was new when they came behind it.
                if self.behind.contains_key(asker.name()) {
                    new.insert(asker.name().clone());
                }
                group.push(asker);
            }
        }
    }

    /// Whether the next asker claims what the last one of the group gives back: the two go together.
    fn follows_its_leave(&self, group: &[Arc<dyn Asker>]) -> bool {
        let (Some(last), Some(next)) = (group.last(), self.askers.front()) else { return false };
        last.leaves() && !next.leaves() && last.name() == next.name()
    }

    /// Whether it claims alone what a group in flight gives back.
    fn is_behind_a_leave(&self, asker: &dyn Asker) -> bool {
        !self.leaving.is_empty() && asker.wants_all() && self.leaving.contains_key(asker.name())
    }

    /// A group has ended that gave back these.
    pub(super) fn are_back(&mut self, names: &[Name]) {
        for name in names {
            if let Some(groups) = self.leaving.get_mut(name) {
                *groups -= 1;
                if *groups == 0 {
                    self.leaving.remove(name);
                }
            }
        }
    }

    /// Whether what was taken out just now is all there is.
    fn is_last(&self, group: &[Arc<dyn Asker>]) -> bool {
        group.is_empty() && self.askers.is_empty() && self.behind.is_empty()
    }

    /// New claims of these resources were taken: those behind them are next.
    fn move_up(&mut self, taken: &BTreeSet<Name>) {
        if self.behind.is_empty() {
            return;
        }
        for name in taken {
            let Some(line) = self.behind.get_mut(name) else { continue };
            while let Some(asker) = line.pop_front() {
                look();
                if asker.standing() != Standing::Over {
                    self.askers.push_front(asker);
                    break;
                }
            }
            if line.is_empty() {
                self.behind.remove(name);
            }
        }
    }
}
