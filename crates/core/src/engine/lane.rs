//! Lanes: the tasks of one process that wait for one mutex stand behind a single entry at the
//! store, and a grant is handed on between them at memory speed.
//!
//! A lane has at most one *front*, the task that claims at the store, and at most one *open*
//! grant, which may be handed on. While a grant is open the others wait here; when it closes, the
//! first of them becomes the front and stands in the store's line.

use std::{
    collections::{HashMap, VecDeque},
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use tokio::sync::oneshot;

use super::{
    hold::Hold,
    keeping::{Alive, Tenure},
    steps::look,
    terms::Terms,
};
use crate::{clock::BootTime, error::StoreError, name::Name, support, token::Token};

/// How long after its grant a lock may be handed on inside the process: other processes wait
/// at most this much longer than their turn.
pub(crate) const OPEN_FOR: Duration = Duration::from_millis(10);

#[derive(Default)]
pub(crate) struct Lanes {
    lanes: Mutex<HashMap<Name, Lane>>,
    shut: AtomicBool,
}

#[derive(Default)]
struct Lane {
    /// Whether a task of this lane is claiming at the store.
    front: bool,
    open: Option<Open>,
    queue: Line,
}

/// Those who wait in a lane, in order of arrival. Who gives up leaves an empty place: removing it would move all others.
#[derive(Default)]
struct Line {
    /// By ticket, which grows. The first place is never empty, and most are not.
    places: VecDeque<(u64, Option<Waiting>)>,
    waiting: usize,
}

impl Line {
    fn is_empty(&self) -> bool {
        self.waiting == 0
    }

    fn first(&self) -> Option<&Waiting> {
        self.places.front()?.1.as_ref()
    }

    fn push(&mut self, ticket: u64, waiting: Waiting) {
        self.places.push_back((ticket, Some(waiting)));
        self.waiting += 1;
    }

    fn pop(&mut self) -> Option<Waiting> {
        let first = self.places.pop_front()?.1;
        self.waiting -= 1;
        self.tidy();
        first
    }

    fn remove(&mut self, ticket: u64) {
        let Ok(place) = self.places.binary_search_by_key(&ticket, |(ticket, _)| *ticket) else { return };
        if self.places[place].1.take().is_some() {
            self.waiting -= 1;
            self.tidy();
        }
    }

    /// Clears empty places away at the front, and everywhere once they are more than the others.
    fn tidy(&mut self) {
        while self.places.front().is_some_and(|(_, waiting)| waiting.is_none()) {
            look();
            self.places.pop_front();
        }
        if self.places.len() > 2 * self.waiting + 16 {
            self.places.retain(|(_, waiting)| {
                look();
                waiting.is_some()
            });
        }
    }

    fn into_waiting(self) -> impl Iterator<Item = Waiting> {
        self.places.into_iter().filter_map(|(_, waiting)| waiting)
    }
}

/// A grant that may be handed on.
struct Open {
    slot: u64,
    until: BootTime,
    /// Whether somebody will come to close it.
    timed: bool,
}

struct Waiting {
    terms: Arc<Terms>,
    turn: oneshot::Sender<Turn>,
}

/// What a waiting task gets.
pub(crate) enum Turn {
    /// The lock itself.
    HandedOn(Tenure),
    /// The right to claim at the store. Boxed, since the other is what usually comes.
    Front(Box<Front>),
    /// There is an outage, by which the front before it failed.
    Failed(StoreError),
}

/// The right to claim at the store for a lane; given up when dropped.
pub(crate) struct Front {
    alive: Arc<Alive>,
    name: Name,
    claiming: bool,
}

/// A place in a lane; given up when dropped.
pub(crate) struct LanePlace<'a> {
    alive: &'a Alive,
    name: &'a Name,
    ticket: u64,
    turn: oneshot::Receiver<Turn>,
    served: bool,
}

/// How a task enters a lane.
pub(crate) enum Entered<'a> {
    Front(Front),
    Place(LanePlace<'a>),
}

impl Lanes {
    fn lock(&self) -> MutexGuard<'_, HashMap<Name, Lane>> {
        support::lock(&self.lanes)
    }

    /// Enters the lane of `name`.
    pub(crate) fn enter<'a>(
        &self,
        alive: &'a Arc<Alive>,
        name: &'a Name,
        terms: &Arc<Terms>,
        now: BootTime,
    ) -> Entered<'a> {
        let mut lanes = self.lock();
        if self.shut.load(Ordering::Acquire) {
            // The store's line is where it hears that the keeper is closed.
            return Entered::Front(Front::new(alive, name));
        }
        let Some(lane) = lanes.get_mut(name) else {
            lanes.insert(name.clone(), Lane { front: true, ..Lane::default() });
            return Entered::Front(Front::new(alive, name));
        };
        let open = lane.open.as_ref().is_some_and(|open| now < open.until);
        if !lane.front && !open && lane.queue.is_empty() {
            lane.front = true;
            return Entered::Front(Front::new(alive, name));
        }
        let ticket = alive.engine().next_ticket();
        let (sender, turn) = oneshot::channel();
        lane.queue.push(ticket, Waiting { terms: terms.clone(), turn: sender });
        lane.see_that_it_closes(alive, name);
        Entered::Place(LanePlace { alive, name, ticket, turn, served: false })
    }

    /// A grant was made: it may be handed on for a while. The lane's front, if it was the one
    /// who got it, is front no more.
    pub(crate) fn opened(&self, alive: &Arc<Alive>, hold: &Hold, was_front: bool) {
        let now = alive.engine().clock().now();
        let mut lanes = self.lock();
        let lane = lanes.entry(hold.name.clone()).or_default();
        if was_front {
            lane.front = false;
        }
        let until = now.after(OPEN_FOR).min(hold.ends());
        lane.open = Some(Open { slot: hold.slot, until, timed: false });
        if lane.queue.is_empty() {
            return;
        }
        lane.see_that_it_closes(alive, &hold.name);
    }

    /// Whom step `step` of the grant may be handed on to: the first waiting task, if the grant is
    /// still open and that task asked for the same. It has left the lane.
    pub(crate) fn next_of(&self, hold: &Hold, step: u32, now: BootTime) -> Option<oneshot::Sender<Turn>> {
        if step + 1 >= Token::STEPS {
            return None;
        }
        let mut lanes = self.lock();
        let lane = lanes.get_mut(&hold.name)?;
        if !lane.open.as_ref().is_some_and(|open| open.slot == hold.slot && now < open.until) {
            return None;
        }
        loop {
            let next = lane.queue.first()?;
            if !Arc::ptr_eq(&next.terms, &hold.terms) && next.terms != hold.terms {
                return None;
            }
            look();
            let next = lane.queue.pop()?;
            if !next.turn.is_closed() {
                return Some(next.turn);
            }
        }
    }

    /// The grant `slot` is handed on no more: the next task of the lane may go to the store.
    pub(crate) fn close(&self, alive: &Arc<Alive>, name: &Name, slot: u64) {
        let mut lanes = self.lock();
        let Some(lane) = lanes.get_mut(name) else { return };
        if lane.open.as_ref().is_some_and(|open| open.slot == slot) {
            lane.open = None;
        }
        Self::advance(alive, lanes, name);
    }

    /// The front gave up or got its grant elsewhere.
    fn front_left(&self, alive: &Arc<Alive>, name: &Name) {
        let mut lanes = self.lock();
        let Some(lane) = lanes.get_mut(name) else { return };
        lane.front = false;
        Self::advance(alive, lanes, name);
    }

    /// Makes the first waiting task the front, if there is none and nothing is open.
    fn advance(alive: &Arc<Alive>, mut lanes: MutexGuard<'_, HashMap<Name, Lane>>, name: &Name) {
        let Some(lane) = lanes.get_mut(name) else { return };
        if lane.front || lane.open.is_some() {
            return;
        }
        let mut returned = Vec::new();
        while let Some(next) = lane.queue.pop() {
            look();
            lane.front = true;
            match next.turn.send(Turn::Front(Box::new(Front::new(alive, name)))) {
                Ok(()) => break,
                Err(turn) => {
                    lane.front = false;
                    returned.push(turn);
                }
            }
        }
        if !lane.front && lane.queue.is_empty() {
            lanes.remove(name);
        }
        drop(lanes);
        for turn in returned {
            if let Turn::Front(mut front) = turn {
                front.claiming = false;
            }
        }
    }

    /// The keeper closes: all who wait go on to the store, where they hear of it.
    pub(crate) fn shut(&self) {
        let mut lanes = self.lock();
        self.shut.store(true, Ordering::Release);
        let all = std::mem::take(&mut *lanes);
        drop(lanes);
        drop(all);
    }

    /// The store could not be reached for as long as one waits for that: all who wait behind the front hear of it
    /// now, not each after an outage of its own.
    pub(crate) fn failed(&self, name: &Name, error: &StoreError) {
        let queue = self.lock().get_mut(name).map(|lane| std::mem::take(&mut lane.queue));
        for waiting in queue.into_iter().flat_map(Line::into_waiting) {
            // Who gave up needs no answer.
            drop(waiting.turn.send(Turn::Failed(error.clone())));
        }
    }

    /// In how many lanes somebody holds or waits.
    pub(crate) fn count(&self) -> usize {
        self.lock().len()
    }

    fn leave(&self, name: &Name, ticket: u64) {
        let mut lanes = self.lock();
        if let Some(lane) = lanes.get_mut(name) {
            look();
            lane.queue.remove(ticket);
        }
    }
}

impl Lane {
    /// Has somebody close the open grant when its time is over, since tasks wait for that.
    fn see_that_it_closes(&mut self, alive: &Arc<Alive>, name: &Name) {
        let Some(open) = self.open.as_mut().filter(|open| !open.timed) else { return };
        open.timed = true;
        let (alive, name, slot, until) = (Arc::downgrade(alive), name.clone(), open.slot, open.until);
        let Some(engine) = alive.upgrade().map(|alive| alive.engine().clone()) else { return };
        let clock = engine.clock().clone();
        engine.background().spawn(async move {
            clock.sleep_until(until).await;
            if let Some(alive) = alive.upgrade() {
                alive.engine().lanes().close(&alive, &name, slot);
            }
        });
    }
}

impl Front {
    fn new(alive: &Arc<Alive>, name: &Name) -> Self {
        Self { alive: alive.clone(), name: name.clone(), claiming: true }
    }

    /// The front has its grant: from here on the grant, not the front, keeps the lane.
    pub(crate) fn granted(mut self, hold: &Hold) {
        self.claiming = false;
        let lanes = self.alive.engine().lanes();
        if hold.terms.hands_on() {
            lanes.opened(&self.alive, hold, true);
        } else {
            lanes.front_left(&self.alive, &self.name);
        }
    }
}

impl Drop for Front {
    fn drop(&mut self) {
        if self.claiming {
            self.alive.engine().lanes().front_left(&self.alive, &self.name);
        }
    }
}

impl LanePlace<'_> {
    /// Waits for this task's turn.
    pub(crate) async fn turn(&mut self) -> Option<Turn> {
        // Only a keeper that closes drops the sender: the task goes on to the store by itself.
        let turn = (&mut self.turn).await.ok();
        self.served = true;
        turn
    }
}

impl Drop for LanePlace<'_> {
    fn drop(&mut self) {
        if !self.served {
            self.alive.engine().lanes().leave(self.name, self.ticket);
        }
    }
}
