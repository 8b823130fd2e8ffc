//! The queue of one server: who asks next, and which of them go together as one group.

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
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
    askers: VecDeque<QueuedAsker>,
    /// The order of arrival of the next asker.
    next: Arrival,
    /// New claims behind another new claim of the same resource that is among the askers. Each moves up when the one
    /// before it is taken out, so a long line of them is not looked through for each group. Without askers, nobody is
    /// behind.
    behind: HashMap<Name, Behind>,
    /// What groups in flight give back without claiming it: for each of them the first of its leaves.
    leaving: NameMap<Vec<Arrival>>,
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

/// The place of an asker in the order in which they came. One that asks again comes anew.
pub(super) type Arrival = u64;

/// An asker, and when it came.
struct QueuedAsker {
    arrival: Arrival,
    asker: Arc<dyn Asker>,
}

/// New claims of one resource that wait behind another.
struct Behind {
    /// The one before them, which is among the askers or was taken out just now.
    first: Arrival,
    rest: VecDeque<QueuedAsker>,
}

/// Askers that go together.
pub(super) struct Group {
    /// In order of name, leaves before claims.
    pub(super) askers: Vec<Arc<dyn Asker>>,
    /// What they give back without a claim of the same in this group, and the first leave of each.
    pub(super) left: Vec<(Name, Arrival)>,
    /// The asker that came after all that were looked at.
    pub(super) next: Arrival,
}

/// How many requests may go together, and how many groups may be in flight.
#[derive(Clone, Copy)]
pub(super) struct GroupLimits {
    pub(super) requests: usize,
    pub(super) groups: usize,
}

impl GroupLimits {
    pub(super) fn of(client: &StoreClient) -> Self {
        Self { requests: client.group_limit(), groups: client.requests_at_once() }
    }
}

/// The names that a group, which is in order, leaves and does not claim.
fn left_by(group: &[QueuedAsker]) -> Vec<(Name, Arrival)> {
    let names = group.chunk_by(|one, next| one.asker.name() == next.asker.name());
    let left = names.filter(|requests| requests.iter().all(|queued| queued.asker.leaves()));
    left.filter_map(|leaves| {
        Some((leaves.first()?.asker.name().clone(), leaves.iter().map(|leave| leave.arrival).min()?))
    })
    .collect()
}

/// The askers of a queue and those behind them, for nothing but to be dropped.
pub(super) struct GivenUp {
    _askers: VecDeque<QueuedAsker>,
    _behind: HashMap<Name, Behind>,
}

/// A group that is being made.
#[derive(Default)]
struct Making {
    group: Vec<QueuedAsker>,
    /// The new claims of resources of which no other new claim may go now: those in the group, and those that are held
    /// back. Others of the same resource go behind them.
    fronts: BTreeMap<Name, Front>,
    /// New claims that are held back.
    later: Vec<QueuedAsker>,
}

/// The new claim that others of its resource go behind.
#[derive(Clone, Copy)]
struct Front {
    arrival: Arrival,
    is_taken: bool,
}

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
    /// Groups that are in flight at the same time may overtake each other. So a new claim that wants all of what another
    /// group gives back, by a leave that came before it, goes once that group is answered: it might find its own process
    /// holding. Later leaves do not hold it back, so this takes one request at most.
    pub(super) fn take(&self, limits: GroupLimits, alone: bool) -> Group {
        let mut state = self.state();
        let share = (state.askers.len() + state.requests_in_flight).div_ceil(limits.groups);
        let limit = if alone { limits.requests } else { limits.requests.min(share.max(1)) };
        let mut making = Making::default();
        making.group.reserve(state.askers.len().min(limit));
        while (making.group.len() < limit
            || (making.group.len() < limits.requests && state.follows_its_leave(&making.group)))
            && let Some(queued) = state.askers.pop_front()
        {
            look();
            state.take(queued, &mut making);
        }
        let Making { mut group, fronts, later } = making;
        // They stay first.
        for queued in later.into_iter().rev() {
            state.askers.push_front(queued);
        }
        for (name, front) in fronts.iter().filter(|(_, front)| front.is_taken) {
            state.move_up(name, front.arrival);
        }
        group.sort_by(|a, b| (a.asker.name(), !a.asker.leaves()).cmp(&(b.asker.name(), !b.asker.leaves())));
        let left = if limits.groups > 1 { left_by(&group) } else { Vec::new() };
        for (name, leave) in &left {
            state.leaving.entry(name.clone()).or_default().push(*leave);
        }
        state.requests_in_flight += group.len();
        let askers = group.into_iter().map(|queued| queued.asker).collect();
        Group { askers, left, next: state.next }
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
    pub(super) fn push(&mut self, asker: Arc<dyn Asker>) {
        self.askers.push_back(QueuedAsker { arrival: self.next, asker });
        self.next += 1;
    }

    pub(super) fn is_empty(&self) -> bool {
        self.askers.is_empty()
    }

    /// Whether somebody has come since a group was made.
    pub(super) fn has_more_than(&self, next: Arrival) -> bool {
        self.next > next
    }

    /// Takes out all that is left, because nobody can send it any more. The caller drops it without the lock: it may be
    /// the last to have the engine.
    pub(super) fn give_up(&mut self) -> GivenUp {
        GivenUp { _askers: std::mem::take(&mut self.askers), _behind: std::mem::take(&mut self.behind) }
    }

    /// Takes an asker that was the next one into the group, unless it has nothing to ask or is to go in a later one.
    fn take(&mut self, queued: QueuedAsker, making: &mut Making) {
        let (standing, arrival) = (queued.asker.standing(), queued.arrival);
        if standing != Standing::New {
            // It may have been new when others came behind it. The next of them may go in the same group.
            self.move_up(queued.asker.name(), arrival);
            if standing == Standing::Known {
                making.group.push(queued);
            }
            return;
        }
        if let Some(front) = making.fronts.get(queued.asker.name()) {
            let line = || Behind { first: front.arrival, rest: VecDeque::new() };
            self.behind.entry(queued.asker.name().clone()).or_insert_with(line).rest.push_back(queued);
            return;
        }
        let is_taken = !self.is_behind_a_leave(&queued);
        if !is_taken || !making.group.is_empty() || !self.askers.is_empty() || !self.behind.is_empty() {
            making.fronts.insert(queued.asker.name().clone(), Front { arrival, is_taken });
        }
        if is_taken { &mut making.group } else { &mut making.later }.push(queued);
    }

    /// Whether the next asker claims what the last one of the group gives back: the two go together.
    fn follows_its_leave(&self, group: &[QueuedAsker]) -> bool {
        let (Some(last), Some(next)) = (group.last(), self.askers.front()) else { return false };
        last.asker.leaves() && !next.asker.leaves() && last.asker.name() == next.asker.name()
    }

    /// Whether it claims alone what a group in flight gives back, by a leave that came before it.
    fn is_behind_a_leave(&self, queued: &QueuedAsker) -> bool {
        let leaves = || self.leaving.get(queued.asker.name());
        let is_before = |leave: &Arrival| *leave < queued.arrival;
        !self.leaving.is_empty()
            && queued.asker.wants_all()
            && leaves().is_some_and(|leaves| leaves.iter().any(is_before))
    }

    /// A group has ended that gave back these.
    pub(super) fn are_back(&mut self, left: &[(Name, Arrival)]) {
        for (name, leave) in left {
            if let Some(leaves) = self.leaving.get_mut(name) {
                leaves.retain(|one| one != leave);
                if leaves.is_empty() {
                    self.leaving.remove(name);
                }
            }
        }
    }

    /// The new claim of this resource that came at this place was taken out: the one behind it is next.
    fn move_up(&mut self, name: &Name, taken: Arrival) {
        if self.behind.is_empty() {
            return;
        }
        let Some(line) = self.behind.get_mut(name).filter(|line| line.first == taken) else { return };
        while let Some(next) = line.rest.pop_front() {
            look();
            if next.asker.standing() != Standing::Over {
                line.first = next.arrival;
                self.askers.push_front(next);
                break;
            }
        }
        if line.rest.is_empty() {
            self.behind.remove(name);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        clock::BootTime,
        error::StoreError,
        store::{Answer, Request, StoreTime},
    };

    struct Scripted {
        name: Name,
        leaves: bool,
        number: usize,
        standing: Mutex<Standing>,
    }

    impl Asker for Scripted {
        fn name(&self) -> &Name {
            &self.name
        }

        fn standing(&self) -> Standing {
            *support::lock(&self.standing)
        }

        fn leaves(&self) -> bool {
            self.leaves
        }

        fn wants_all(&self) -> bool {
            !self.leaves
        }

        fn goes_alone(&self) -> bool {
            false
        }

        fn request(&self, _sent: BootTime, _not_after: StoreTime) -> Option<Request> {
            None
        }

        fn answered(self: Arc<Self>, _sent: BootTime, _answer: Result<Answer, StoreError>) {}
    }

    struct World {
        queue: Queue,
        all: Vec<Arc<Scripted>>,
    }

    impl World {
        fn new() -> Self {
            Self { queue: Queue::new(0), all: Vec::new() }
        }

        fn add(&mut self, name: &str, leaves: bool) -> usize {
            let (number, name) = (self.all.len(), Name::new(name).expect("a good name"));
            let standing = Mutex::new(if leaves { Standing::Known } else { Standing::New });
            let asker = Arc::new(Scripted { name, leaves, number, standing });
            self.all.push(asker.clone());
            self.queue.state().push(asker);
            number
        }

        fn claim(&mut self, name: &str) -> usize {
            self.add(name, false)
        }

        fn leave(&mut self, name: &str) -> usize {
            self.add(name, true)
        }

        /// The next of at most three groups, and the numbers of its askers.
        fn take(&self) -> (Group, Vec<usize>) {
            let group = self.queue.take(GroupLimits { requests: 256, groups: 3 }, false);
            let is = |asker: &Arc<dyn Asker>, one: &Arc<Scripted>| {
                std::ptr::addr_eq(Arc::as_ptr(asker), Arc::as_ptr(one))
            };
            let number = |asker| self.all.iter().find(|one| is(asker, one)).expect("one of ours").number;
            let numbers = group.askers.iter().map(number).collect();
            (group, numbers)
        }

        fn answer(&self, group: &Group) {
            let mut state = self.queue.state();
            state.requests_in_flight -= group.askers.len();
            state.are_back(&group.left);
        }
    }

    /// A claim is held back by leaves that came before it, and what comes behind it stays there.
    #[test]
    fn a_claim_waits_for_the_leaves_before_it_alone() {
        let mut world = World::new();
        let before = world.leave("stock");
        let (early, sent) = world.take();
        assert_eq!(sent, [before]);
        let [held, next] = [(); 2].map(|()| world.claim("stock"));
        let other = world.claim("other");
        let (group, sent) = world.take();
        assert_eq!(sent, [other]);
        world.answer(&group);
        let after = world.leave("stock");
        let (late, sent) = world.take();
        assert_eq!(sent, [after], "the leave is not held back");
        world.answer(&early);
        let (group, sent) = world.take();
        assert_eq!(sent, [held], "a leave that came later holds nobody back");
        world.answer(&group);
        world.answer(&late);
        assert_eq!(world.take().1, [next]);
    }
}
