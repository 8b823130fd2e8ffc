//! Local queues: the tasks of one process that wait for one mutex have a single waiter at the store, and a grant is handed
//! on between them at memory speed.
//!
//! A queue has at most one *front*, the task that claims at the store, and at most one *open* grant, which may be handed
//! on. While a grant is open the others wait here. When it closes, the first of them becomes the front.
//!
//! Nobody is woken while the lock of the queues is held.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard, Weak},
    time::Duration,
};

use tokio::{runtime::Handle, sync::oneshot};

use super::{heard::Heard, hold::Hold, looks::look, terms::Terms};
use crate::{
    clock::{BootTime, Clock},
    error::StoreError,
    name::{Name, NameMap},
    support::{self, calm},
    token::Token,
};

/// How long after its grant a lock may be handed on inside the process: other processes wait
/// at most this much longer than their turn.
pub(crate) const OPEN_FOR: Duration = Duration::from_millis(10);

/// The local queues of a keeper. A task that is handed a grant gets a `T`.
pub(crate) struct LocalQueues<T> {
    state: Mutex<State<T>>,
    clock: Clock,
    background: Handle,
}

struct State<T> {
    queues: NameMap<LocalQueue<T>>,
    next_ticket: u64,
    shut: bool,
}

struct LocalQueue<T> {
    /// Whether a task of this queue is claiming at the store.
    has_front: bool,
    open: Option<Open>,
    tasks: Tasks<T>,
    /// The news that the latest front had when it left. The next one goes on with its wait.
    heard: Heard,
}

/// The tasks of a queue in order of arrival. A task that gives up leaves an empty entry, because removing it would move
/// all others.
struct Tasks<T> {
    /// By ticket, which grows. The first entry is never empty, and most are not.
    entries: VecDeque<(u64, Option<Task<T>>)>,
    waiting: usize,
}

struct Task<T> {
    terms: Arc<Terms>,
    turn: oneshot::Sender<Turn<T>>,
}

/// A grant that may be handed on.
struct Open {
    slot: u64,
    until: BootTime,
    /// Whether somebody will come to close it.
    timed: bool,
}

/// The end of a task's wait in the local queue.
pub(crate) enum Turn<T> {
    /// The lock itself.
    HandedOn(T),
    /// The right to claim at the store. Boxed, because the other is the usual one.
    Front(Box<Front<T>>),
    /// There is an outage, by which the front before it failed.
    Failed(StoreError),
}

/// The right to claim at the store for a queue; given up when dropped.
pub(crate) struct Front<T> {
    queues: Arc<LocalQueues<T>>,
    name: Name,
    claiming: bool,
    heard: Mutex<Heard>,
}

/// A task's position in a queue; given up when dropped.
pub(crate) struct Position<'a, T> {
    queues: &'a LocalQueues<T>,
    name: &'a Name,
    ticket: u64,
    turn: oneshot::Receiver<Turn<T>>,
    served: bool,
}

/// How a task enters a queue.
pub(crate) enum Arrival<'a, T> {
    Front(Front<T>),
    Behind(Position<'a, T>),
}

impl<T> Tasks<T> {
    fn is_empty(&self) -> bool {
        self.waiting == 0
    }

    fn first(&self) -> Option<&Task<T>> {
        self.entries.front()?.1.as_ref()
    }

    fn push(&mut self, ticket: u64, task: Task<T>) {
        self.entries.push_back((ticket, Some(task)));
        self.waiting += 1;
    }

    fn pop(&mut self) -> Option<Task<T>> {
        let first = self.entries.pop_front()?.1;
        self.waiting -= 1;
        self.tidy();
        first
    }

    fn remove(&mut self, ticket: u64) {
        let Ok(at) = self.entries.binary_search_by_key(&ticket, |(ticket, _)| *ticket) else { return };
        if self.entries[at].1.take().is_some() {
            self.waiting -= 1;
            self.tidy();
        }
    }

    /// Clears empty entries away at the front, and everywhere once they are more than the others.
    fn tidy(&mut self) {
        while self.entries.front().is_some_and(|(_, task)| task.is_none()) {
            look();
            self.entries.pop_front();
        }
        if self.entries.len() > 2 * self.waiting + 16 {
            self.entries.retain(|(_, task)| {
                look();
                task.is_some()
            });
        }
    }
}

impl<T> Default for LocalQueue<T> {
    fn default() -> Self {
        let tasks = Tasks { entries: VecDeque::new(), waiting: 0 };
        Self { has_front: false, open: None, tasks, heard: Heard::Nothing }
    }
}

impl<T: Send + 'static> LocalQueues<T> {
    pub(super) fn new(clock: Clock, background: Handle) -> Arc<Self> {
        let state = State { queues: NameMap::default(), next_ticket: 0, shut: false };
        Arc::new(Self { state: Mutex::new(state), clock, background })
    }

    /// Enters the queue of `name`.
    pub(super) fn enter<'a>(
        self: &'a Arc<Self>,
        name: &'a Name,
        terms: &Arc<Terms>,
        now: BootTime,
    ) -> Arrival<'a, T> {
        let front = || Arrival::Front(Front::new(self, name, Heard::Nothing));
        let mut state = self.lock();
        if state.shut {
            // At the store it hears that the keeper is closed.
            return front();
        }
        let ticket = state.next_ticket;
        let Some(queue) = state.queues.get_mut(name) else {
            state.queues.insert(name.clone(), LocalQueue { has_front: true, ..LocalQueue::default() });
            return front();
        };
        let open = queue.open.as_ref().is_some_and(|open| now < open.until);
        if !queue.has_front && !open && queue.tasks.is_empty() {
            queue.has_front = true;
            queue.heard = Heard::Nothing;
            return front();
        }
        let (sender, turn) = oneshot::channel();
        queue.tasks.push(ticket, Task { terms: terms.clone(), turn: sender });
        queue.time_open_grant(self, name);
        state.next_ticket += 1;
        Arrival::Behind(Position { queues: self, name, ticket, turn, served: false })
    }

    /// A task that was in no queue has a grant, which may be handed on for a while.
    pub(super) fn opened(self: &Arc<Self>, hold: &Hold) {
        self.open(hold, |_| {});
    }

    fn open(self: &Arc<Self>, hold: &Hold, also: impl FnOnce(&mut LocalQueue<T>)) {
        let until = self.clock.now().after(OPEN_FOR).min(hold.ends());
        let mut state = self.lock();
        let queue = state.queues.entry(hold.name.clone()).or_default();
        also(queue);
        queue.heard = Heard::Answer;
        queue.open = Some(Open { slot: hold.slot, until, timed: false });
        if !queue.tasks.is_empty() {
            queue.time_open_grant(self, &hold.name);
        }
    }
}

impl<T> LocalQueues<T> {
    fn lock(&self) -> MutexGuard<'_, State<T>> {
        support::lock(&self.state)
    }

    /// The task that step `step` of the grant may be handed on to: the first one, if the grant is still open and that
    /// task asked for the same. It has left the queue.
    pub(super) fn next_of(&self, hold: &Hold, step: u32, now: BootTime) -> Option<oneshot::Sender<Turn<T>>> {
        if step + 1 >= Token::STEPS {
            return None;
        }
        let mut state = self.lock();
        let queue = state.queues.get_mut(&hold.name)?;
        if !queue.open.as_ref().is_some_and(|open| open.slot == hold.slot && now < open.until) {
            return None;
        }
        loop {
            let next = queue.tasks.first()?;
            if !Arc::ptr_eq(&next.terms, &hold.terms) && next.terms != hold.terms {
                return None;
            }
            look();
            let next = queue.tasks.pop()?;
            if !next.turn.is_closed() {
                return Some(next.turn);
            }
        }
    }

    /// The grant `slot` is handed on no more: the next task of the queue may go to the store.
    pub(super) fn close(self: &Arc<Self>, name: &Name, slot: u64) {
        let mut state = self.lock();
        let Some(queue) = state.queues.get_mut(name) else { return };
        if queue.open.as_ref().is_some_and(|open| open.slot == slot) {
            queue.open = None;
        }
        self.advance(state, name);
    }

    /// The front gave up, or has a grant that is not handed on. `heard` is its latest news.
    fn front_left(self: &Arc<Self>, name: &Name, heard: Heard) {
        let mut state = self.lock();
        let Some(queue) = state.queues.get_mut(name) else { return };
        queue.has_front = false;
        queue.heard = heard;
        self.advance(state, name);
    }

    /// Makes the first waiting task the front, if there is none and nothing is open.
    fn advance<'a>(self: &'a Arc<Self>, mut state: MutexGuard<'a, State<T>>, name: &Name) {
        loop {
            let Some(queue) = state.queues.get_mut(name) else { return };
            if queue.has_front || queue.open.is_some() {
                return;
            }
            let Some(next) = queue.tasks.pop() else {
                state.queues.remove(name);
                return;
            };
            look();
            queue.has_front = true;
            let heard = queue.heard.clone();
            drop(state);
            let front = Box::new(Front::new(self, name, heard));
            let Err(Turn::Front(mut refused)) = calm::send(next.turn, Turn::Front(front)) else { return };
            // That task gave up at this very moment.
            refused.claiming = false;
            drop(refused);
            state = self.lock();
            if let Some(queue) = state.queues.get_mut(name) {
                queue.has_front = false;
            }
        }
    }

    /// The keeper closes: all tasks go on to the store, where they hear of it.
    pub(super) fn shut(&self) {
        let mut state = self.lock();
        state.shut = true;
        let all = std::mem::take(&mut state.queues);
        drop(state);
        for task in all.into_values().flat_map(|queue| queue.tasks.entries) {
            // Each is woken by that.
            calm::calmly(|| drop(task));
        }
    }

    /// The store could not be reached for as long as one waits for that. All tasks behind the front hear of it now, not
    /// each after an outage of its own.
    pub(super) fn failed(&self, name: &Name, error: &StoreError) {
        let mut state = self.lock();
        let Some(queue) = state.queues.get_mut(name) else { return };
        let tasks = std::mem::take(&mut queue.tasks.entries);
        queue.tasks.waiting = 0;
        drop(state);
        for task in tasks.into_iter().filter_map(|(_, task)| task) {
            // A task that gave up needs no answer.
            drop(calm::send(task.turn, Turn::Failed(error.clone())));
        }
    }

    /// Returns the latest news of the queue of `name` before its front, if it has one, entered the store's queue.
    pub(super) fn heard(&self, name: &Name) -> Option<Heard> {
        self.lock().queues.get(name).map(|queue| queue.heard.clone())
    }

    /// In how many queues a task holds or waits.
    pub(super) fn count(&self) -> usize {
        self.lock().queues.len()
    }

    fn leave(&self, name: &Name, ticket: u64) {
        let mut state = self.lock();
        if let Some(queue) = state.queues.get_mut(name) {
            look();
            queue.tasks.remove(ticket);
        }
    }
}

impl<T: Send + 'static> LocalQueue<T> {
    /// Has somebody close the open grant when its time is over, because tasks wait for that.
    fn time_open_grant(&mut self, queues: &Arc<LocalQueues<T>>, name: &Name) {
        let Some(open) = self.open.as_mut().filter(|open| !open.timed) else { return };
        open.timed = true;
        let (slot, until, name, clock) = (open.slot, open.until, name.clone(), queues.clock.clone());
        let weak = Arc::downgrade(queues);
        queues.background.spawn(async move {
            clock.sleep_until(until).await;
            if let Some(queues) = Weak::upgrade(&weak) {
                queues.close(&name, slot);
            }
        });
    }
}

impl<T> Front<T> {
    fn new(queues: &Arc<LocalQueues<T>>, name: &Name, heard: Heard) -> Self {
        Self { queues: queues.clone(), name: name.clone(), claiming: true, heard: Mutex::new(heard) }
    }

    /// Returns the latest news of its wait, also from the time when it was not the front yet.
    pub(super) fn heard(&self) -> Heard {
        support::lock(&self.heard).clone()
    }

    /// Notes the latest news, for the front after this one.
    pub(super) fn has_heard(&self, heard: Heard) {
        *support::lock(&self.heard) = heard;
    }
}

impl<T: Send + 'static> Front<T> {
    /// The front has its grant: from here on the grant, not the front, keeps the queue.
    pub(super) fn granted(mut self, hold: &Hold) {
        self.claiming = false;
        if hold.terms.hands_on() {
            self.queues.open(hold, |queue| queue.has_front = false);
        } else {
            self.queues.front_left(&self.name, Heard::Answer);
        }
    }
}

impl<T> Drop for Front<T> {
    fn drop(&mut self) {
        if self.claiming {
            self.queues.front_left(&self.name, self.heard());
        }
    }
}

impl<T> Position<'_, T> {
    /// Waits for this task's turn; `None` if the keeper closes.
    pub(super) async fn turn(&mut self) -> Option<Turn<T>> {
        // Only a keeper that closes drops the sender: the task goes on to the store by itself.
        let turn = (&mut self.turn).await.ok();
        self.served = true;
        turn
    }
}

impl<T> Drop for Position<'_, T> {
    fn drop(&mut self) {
        if !self.served {
            // Otherwise the sender, which is dropped under the lock of the queues, would wake this task.
            self.turn.close();
            self.queues.leave(self.name, self.ticket);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        pin::pin,
        sync::atomic::{AtomicUsize, Ordering},
        task::{Context, Wake, Waker},
    };

    use super::*;
    use crate::{
        share::{Capacity, Units},
        store::Kind,
    };

    struct Count(AtomicUsize);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// It would be woken while the lock of the queues is held.
    #[tokio::test]
    async fn a_task_that_gives_up_is_not_woken_by_itself() {
        let queues = LocalQueues::<()>::new(Clock::boot(), Handle::current());
        let name = Name::new("stock").expect("a good name");
        let terms = Arc::new(Terms::new(Kind::Mutex, Units::All, Capacity::All));
        let front = queues.enter(&name, &terms, BootTime(0));
        assert!(matches!(front, Arrival::Front(_)));
        let Arrival::Behind(mut position) = queues.enter(&name, &terms, BootTime(0)) else {
            panic!("the queue has a front")
        };
        let woken = Arc::new(Count(AtomicUsize::new(0)));
        let waker = Waker::from(woken.clone());
        assert!(pin!(position.turn()).poll(&mut Context::from_waker(&waker)).is_pending());
        drop(position);
        assert_eq!(woken.0.load(Ordering::Relaxed), 0);
    }
}
