//! Sends requests in groups: what is asked for while requests are in flight goes out as the next group.
//!
//! A lone claim is sent at once and polled by the very task that waits for it. Under load, sixty-four tasks cost the store
//! little more than one. There is one queue per server of the store, and only as many requests are in flight to each
//! server as the store says it can make use of.
//!
//! A request that the store could not do "now" is asked again alone: with others of the same resource only, and beside the
//! groups, so that the store can wait for that resource while all others are served.
//!
//! The dispatcher takes requests from an [`Asker`] and gives the answers back to it. It knows nothing of holds, waiters or
//! guards, and never repeats a request: the asker decides what to ask again.

mod exchange;
mod in_flight;
mod queue;
mod quiet_waker;
mod rescuer;

/// The parts that `exchange` and `quiet_waker` are made of; `interleavings` checks them with other types.
mod sync {
    pub(super) use std::sync::{
        Mutex, MutexGuard,
        atomic::{AtomicBool, Ordering},
    };
}

use std::sync::{Arc, Mutex};

pub(crate) use in_flight::InFlight;
pub(crate) use rescuer::Rescuer;

use self::queue::{Arrival, Group, GroupLimits, Queue};
use super::store_client::StoreClient;
use crate::{
    clock::BootTime,
    error::{StoreError, StoreErrorKind},
    name::Name,
    store::{Answer, Answers, Request, StoreTime},
    support,
};

/// Somebody who asks the store for something.
pub(crate) trait Asker: Send + Sync {
    /// The resource that it asks about.
    fn name(&self) -> &Name;

    /// The sort of its request.
    fn standing(&self) -> Standing;

    /// Whether it leaves: leaves go before claims of the same resource.
    fn leaves(&self) -> bool;

    /// Whether it claims all of the resource, so that nobody may hold beside it.
    fn wants_all(&self) -> bool;

    /// Whether the store could not do its last request then: the next one goes alone.
    fn goes_alone(&self) -> bool;

    /// The request, as it is sent at `sent`; `None` if there is nothing to ask any more.
    fn request(&self, sent: BootTime, not_after: StoreTime) -> Option<Request>;

    /// The request that was sent at `sent` has this answer. Called once for each request.
    fn answered(self: Arc<Self>, sent: BootTime, answer: Result<Answer, StoreError>);
}

/// The sort of an asker's request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Standing {
    /// A claim that the store has not seen yet. A group carries at most one of them per resource.
    New,
    /// The store may know it.
    Known,
    /// There is nothing to ask any more.
    Over,
}

/// The answers of a store do not match its requests.
pub(crate) fn mismatched() -> StoreError {
    let message =
        "the store answered a claim with a leave's answer, or the reverse; report this to its author";
    StoreError::new(StoreErrorKind::Corrupt, message)
}

fn too_few(requests: usize, answers: usize) -> StoreError {
    let message =
        format!("the store gave {answers} answers to {requests} requests; report this to its author");
    StoreError::new(StoreErrorKind::Corrupt, message)
}

/// Sends requests to the servers of one store.
pub(crate) struct Dispatcher {
    client: Arc<StoreClient>,
    rescuer: Arc<Rescuer>,
    /// One queue per server.
    queues: Mutex<Vec<Arc<Queue>>>,
}

impl Dispatcher {
    pub(super) fn new(client: Arc<StoreClient>, rescuer: Arc<Rescuer>) -> Arc<Self> {
        Arc::new(Self { client, rescuer, queues: Mutex::default() })
    }

    pub(crate) fn rescuer(&self) -> &Arc<Rescuer> {
        &self.rescuer
    }

    fn queue(&self, name: &Name) -> Arc<Queue> {
        let server = self.client.server_of(name);
        let mut queues = support::lock(&self.queues);
        while queues.len() <= server {
            let server = queues.len();
            queues.push(Arc::new(Queue::new(server)));
        }
        queues[server].clone()
    }

    /// Takes a request. If another group may be in flight, the caller gets it and must have it polled.
    pub(crate) fn submit(self: &Arc<Self>, asker: Arc<dyn Asker>) -> Option<InFlight> {
        let queue = self.queue(asker.name());
        self.send(&queue, [asker])
    }

    /// Takes several requests and has a task of this runtime poll what is sent.
    pub(crate) fn submit_all(self: &Arc<Self>, askers: impl IntoIterator<Item = Arc<dyn Asker>>) {
        let mut by_server = std::collections::BTreeMap::<usize, Vec<Arc<dyn Asker>>>::new();
        for asker in askers {
            by_server.entry(self.client.server_of(asker.name())).or_default().push(asker);
        }
        for askers in by_server.into_values() {
            let Some(first) = askers.first() else { continue };
            let queue = self.queue(first.name());
            let (alone, askers): (Vec<_>, Vec<_>) = askers.into_iter().partition(|asker| asker.goes_alone());
            for in_flight in [self.send(&queue, askers), self.send_alone(&queue, alone)].into_iter().flatten()
            {
                in_flight.spawn();
            }
        }
    }

    /// Takes a request whose answer nobody waits for. It goes along with the next group. The caller gets a request in
    /// flight, which it must have polled, that sends it if nothing else has until then.
    pub(crate) fn submit_later(self: &Arc<Self>, asker: Arc<dyn Asker>) -> Option<InFlight> {
        let queue = self.queue(asker.name());
        let mut state = queue.state();
        state.push(asker);
        if state.groups_in_flight >= self.client.requests_at_once()
            || std::mem::replace(&mut state.called_for, true)
        {
            return None;
        }
        drop(state);
        // Made here and not at the first poll: a call that is never polled ends, too.
        let (dispatcher, call) = (self.clone(), Call { queue, answered: false });
        let later = async move {
            let queue = call.answer();
            if let Some(in_flight) = dispatcher.send(&queue, []) {
                in_flight.await;
            }
        };
        Some(InFlight::new(&self.rescuer, Box::pin(later)))
    }

    fn send(
        self: &Arc<Self>,
        queue: &Arc<Queue>,
        askers: impl IntoIterator<Item = Arc<dyn Asker>>,
    ) -> Option<InFlight> {
        let mut state = queue.state();
        askers.into_iter().for_each(|asker| state.push(asker));
        if state.is_empty() || state.groups_in_flight >= self.client.requests_at_once() {
            return None;
        }
        state.groups_in_flight += 1;
        let alone = state.groups_in_flight == 1;
        drop(state);
        Some(self.group(queue, alone))
    }

    fn send_alone(
        self: &Arc<Self>,
        queue: &Arc<Queue>,
        askers: impl IntoIterator<Item = Arc<dyn Asker>>,
    ) -> Option<InFlight> {
        let mut state = queue.state();
        state.alone.extend(askers);
        let is_due = !state.alone.is_empty() && !std::mem::replace(&mut state.alone_in_flight, true);
        drop(state);
        is_due.then(|| self.lone_group(queue))
    }

    /// Sends the requests of one resource alone, and then those of the next one.
    fn lone_group(self: &Arc<Self>, queue: &Arc<Queue>) -> InFlight {
        // Made here and not at the first poll: a group that is never polled ends, too.
        let mut slot = LoneSlot { dispatcher: self.clone(), queue: queue.clone(), started: false };
        let request = async move {
            slot.started = true;
            let askers = slot.queue.take_alone(&slot.dispatcher.client);
            if !askers.is_empty() {
                send_group(&slot.dispatcher.client, slot.queue.server, askers, Travels::Alone).await;
            }
            drop(slot);
        };
        InFlight::new(&self.rescuer, Box::pin(request))
    }

    /// Sends one group and gives out its answers; what has come in meanwhile goes next. A group that is not `alone`
    /// first lets the tasks run that are ready to: the store is busy anyway, and what they ask goes along. So does one that
    /// follows a group whose answers have woken several tasks, where a larger group costs the store less than two:
    /// otherwise the first of them would go alone, and all others behind it, for ever.
    fn group(self: &Arc<Self>, queue: &Arc<Queue>, alone: bool) -> InFlight {
        // Made here and not at the first poll: a group that is never polled ends, too.
        let mut slot = Slot::new(self, queue);
        let request = async move {
            slot.started = true;
            let client = &slot.dispatcher.client;
            let awaits_others = slot.queue.takes_woken() && client.requests_at_once() == 1;
            if !alone || awaits_others {
                tokio::task::yield_now().await;
            }
            let Group { askers, left, next } = slot.queue.take(GroupLimits::of(client), alone);
            (slot.requests, slot.left, slot.next) = (askers.len(), left, next);
            slot.wakes_several = are_of_several(&askers);
            if !askers.is_empty() {
                send_group(&slot.dispatcher.client, slot.queue.server, askers, Travels::WithOthers).await;
            }
            drop(slot);
        };
        InFlight::new(&self.rescuer, Box::pin(request))
    }
}

/// The duty to send what is queued, unless somebody else has done so by then.
struct Call {
    queue: Arc<Queue>,
    answered: bool,
}

impl Call {
    /// The queue, for which somebody else may call from now on.
    fn answer(mut self) -> Arc<Queue> {
        self.answered = true;
        self.queue.state().called_for = false;
        self.queue.clone()
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        if self.answered {
            return;
        }
        // It is never polled only if the keeper's thread has ended. The askers have the engine, which has the queue.
        let mut state = self.queue.state();
        state.called_for = false;
        if state.groups_in_flight > 0 {
            // The slot of a group in flight sees to the rest.
            return;
        }
        let given_up = state.give_up();
        drop(state);
        drop(given_up);
    }
}

/// The right to have one group in flight. When it ends, also by a panic or because it was dropped, what is left goes next.
struct Slot {
    dispatcher: Arc<Dispatcher>,
    queue: Arc<Queue>,
    started: bool,
    requests: usize,
    /// What it gives back without claiming it.
    left: Vec<(Name, Arrival)>,
    /// Who came later was not looked at for it.
    next: Arrival,
    /// Whether its answers wake several tasks.
    wakes_several: bool,
}

impl Slot {
    fn new(dispatcher: &Arc<Dispatcher>, queue: &Arc<Queue>) -> Self {
        let (dispatcher, queue) = (dispatcher.clone(), queue.clone());
        Self {
            dispatcher,
            queue,
            started: false,
            requests: 0,
            left: Vec::new(),
            next: 0,
            wakes_several: false,
        }
    }
}

/// Whether a group, which is in order of name, is of several resources.
fn are_of_several(group: &[Arc<dyn Asker>]) -> bool {
    group.first().map(|asker| asker.name()) != group.last().map(|asker| asker.name())
}

impl Drop for Slot {
    fn drop(&mut self) {
        let mut state = self.queue.state();
        state.requests_in_flight -= self.requests;
        state.are_back(&self.left);
        state.has_woken_several = self.wakes_several;
        let is_all_held_back = self.requests == 0 && !state.has_more_than(self.next);
        if self.started && is_all_held_back && state.groups_in_flight > 1 {
            // Another group sends it when it ends.
            state.groups_in_flight -= 1;
            return;
        }
        if state.is_empty() || !self.started {
            // A group is never polled only if the keeper's thread has ended: then nobody can send what is left, and
            // nobody waits for it.
            let given_up = state.give_up();
            state.groups_in_flight -= 1;
            drop(state);
            drop(given_up);
            return;
        }
        let alone = state.groups_in_flight == 1;
        drop(state);
        self.dispatcher.group(&self.queue, alone).spawn();
    }
}

/// The right to have one request in flight that goes alone. When it ends, the next one goes.
struct LoneSlot {
    dispatcher: Arc<Dispatcher>,
    queue: Arc<Queue>,
    started: bool,
}

impl Drop for LoneSlot {
    fn drop(&mut self) {
        let mut state = self.queue.state();
        if state.alone.is_empty() || !self.started {
            // As with a group that is never polled, nobody can send the rest.
            let given_up = std::mem::take(&mut state.alone);
            state.alone_in_flight = false;
            drop(state);
            drop(given_up);
            return;
        }
        drop(state);
        self.dispatcher.lone_group(&self.queue).spawn();
    }
}

/// The askers of a group in flight: each of them gets an answer, whatever becomes of the request, also if the code that
/// one of them calls panics.
struct Answering(std::vec::IntoIter<Arc<dyn Asker>>);

impl Answering {
    fn answer(mut self, sent: BootTime, result: Result<Answers<Answer>, StoreError>) {
        match result {
            Ok(answers) => {
                let (requests, count) = (self.0.len(), answers.each.len());
                let mut answers = answers.each.into_iter();
                for asker in self.0.by_ref() {
                    asker.answered(sent, answers.next().ok_or_else(|| too_few(requests, count)));
                }
            }
            Err(error) => {
                for asker in self.0.by_ref() {
                    asker.answered(sent, Err(error.clone()));
                }
            }
        }
    }
}

impl Drop for Answering {
    fn drop(&mut self) {
        for asker in self.0.by_ref() {
            let error = StoreError::new(StoreErrorKind::Unreachable, "the request was given up half-way");
            asker.answered(BootTime::default(), Err(error));
        }
    }
}

/// How requests travel.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Travels {
    WithOthers,
    Alone,
}

/// Sends one group to `server` as one request and gives out its answers.
async fn send_group(client: &StoreClient, server: usize, mut askers: Vec<Arc<dyn Asker>>, travels: Travels) {
    let mut requests = Vec::with_capacity(askers.len());
    let sent = client.clock.now();
    let not_after = client.store_clock.not_after(server, sent);
    askers.retain(|asker| match asker.request(sent, not_after) {
        Some(request) => {
            requests.push(request);
            true
        }
        None => false,
    });
    if requests.is_empty() {
        return;
    }
    let answering = Answering(askers.into_iter());
    let reply = match travels {
        Travels::WithOthers => client.store.apply(&requests),
        Travels::Alone => client.store.apply_alone(&requests),
    };
    let result = client.ask_in_flight(reply).await;
    if let Some(request) = requests.first() {
        client.outages.heard(request.name(), sent, &result);
    }
    if let Ok(answers) = &result {
        client.store_clock.heard(server, client.clock.now(), answers.now);
    }
    answering.answer(sent, result);
}

#[cfg(test)]
mod tests {
    use tokio::runtime::Builder;

    use super::*;
    use crate::engine::tests::engine;

    /// Leaves nothing in particular.
    struct Leaver(Name);

    impl Asker for Leaver {
        fn wants_all(&self) -> bool {
            false
        }

        fn name(&self) -> &Name {
            &self.0
        }

        fn standing(&self) -> Standing {
            Standing::Known
        }

        fn leaves(&self) -> bool {
            true
        }

        fn goes_alone(&self) -> bool {
            false
        }

        fn request(&self, _sent: BootTime, _not_after: StoreTime) -> Option<Request> {
            None
        }

        fn answered(self: Arc<Self>, _sent: BootTime, _answer: Result<Answer, StoreError>) {
            unreachable!("it asks nothing")
        }
    }

    /// An asker has the engine, which has the dispatcher: kept in a queue that nobody sends, it would keep all of them.
    #[test]
    fn what_is_to_be_sent_later_is_not_kept_when_the_keepers_thread_has_ended() {
        let keeper = Builder::new_current_thread().enable_all().build().expect("a runtime");
        let dispatcher = keeper.block_on(engine()).dispatcher.clone();
        drop(keeper);
        let leaver = || Arc::new(Leaver(Name::new("stock").expect("a good name")));
        let (first, second) = (leaver(), leaver());
        let in_flight = dispatcher.submit_later(first.clone());
        assert!(in_flight.is_some() && dispatcher.submit_later(second.clone()).is_none());
        drop(in_flight);
        assert_eq!((Arc::strong_count(&first), Arc::strong_count(&second)), (1, 1), "somebody keeps them");
        assert!(dispatcher.submit_later(first).is_some(), "the next one calls again");
    }
}
