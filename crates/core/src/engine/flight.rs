//! Who carries a request: the runtime of the task that asked, and the keeper's own thread should that one not do it.
//!
//! Carried by the runtime that waits for it, an answer changes threads not once. But a user's runtime may be blocked, or
//! driven no more, and the jobs of others may be on board: so the keeper's thread looks at all that fly elsewhere once a
//! [`ROUND`], and takes over those it has seen before.

use std::{
    future::poll_fn,
    pin::{Pin, pin},
    sync::{
        Arc, Mutex, MutexGuard, Weak,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, Wake, Waker},
    time::Duration,
};

use tokio::{runtime::Handle, sync::Notify};

use super::thread::{Guest, Stop};
use crate::{clock::Clock, store::BoxFuture, support};

/// A flight on a user's runtime is taken over when it is between one and two rounds old.
const ROUND: Duration = Duration::from_millis(10);

/// A request under way.
struct Craft {
    state: Mutex<State>,
}

struct State {
    /// `None` once it has landed.
    flying: Option<Flying>,
    /// Who carries it on a user's runtime, to be told if that is over.
    carrier: Option<Waker>,
    taken_over: bool,
}

/// The two end together, in this order: a task that is never polled again keeps a craft, but no thread.
struct Flying {
    request: BoxFuture<'static, ()>,
    /// Its timers are on the keeper's thread, wherever it is carried.
    _guest: Guest,
}

impl Craft {
    fn state(&self) -> MutexGuard<'_, State> {
        support::lock(&self.state)
    }

    fn poll(&self, context: &mut Context<'_>, by_keeper: bool) -> Poll<()> {
        let mut state = self.state();
        if state.taken_over && !by_keeper {
            return Poll::Ready(());
        }
        let Some(flying) = &mut state.flying else { return Poll::Ready(()) };
        if flying.request.as_mut().poll(context).is_ready() {
            state.flying = None;
            return Poll::Ready(());
        }
        if !by_keeper && !state.carrier.as_ref().is_some_and(|carrier| carrier.will_wake(context.waker())) {
            state.carrier = Some(context.waker().clone());
        }
        Poll::Pending
    }
}

/// A request that is ready to go. Dropped, it flies on the keeper's own thread: its jobs are not
/// lost with the task that happened to ask first.
pub(crate) struct Flight {
    craft: Arc<Craft>,
    patrol: Arc<Patrol>,
    looked_after: bool,
}

/// Wakes a task that carries a flight and waits for something it brings, but not while it is at the door itself: being
/// woken by itself would cost it a second turn, and on a runtime of many threads another of them would be woken for it.
struct Doorbell {
    rings_for: Waker,
    off: AtomicBool,
}

impl Doorbell {
    fn new(rings_for: &Waker) -> Arc<Self> {
        Arc::new(Self { rings_for: rings_for.clone(), off: AtomicBool::new(false) })
    }
}

impl Wake for Doorbell {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if !self.off.load(Ordering::Acquire) {
            self.rings_for.wake_by_ref();
        }
    }
}

impl Flight {
    /// Sends it from here, and has the task that waits for `answer` carry it.
    pub(crate) async fn bring<T>(self, answer: impl Future<Output = T>) -> T {
        let mut answer = pin!(answer);
        let (mut flight, mut doorbell) = (Some(self), None::<Arc<Doorbell>>);
        poll_fn(|context| {
            let Some(flying) = &mut flight else { return answer.as_mut().poll(context) };
            let doorbell = match &doorbell {
                Some(doorbell) if doorbell.rings_for.will_wake(context.waker()) => doorbell,
                _ => doorbell.insert(Doorbell::new(context.waker())),
            };
            // It may also come by another way, or never because the keeper closes.
            let waker = doorbell.clone().into();
            if let Poll::Ready(answer) = answer.as_mut().poll(&mut Context::from_waker(&waker)) {
                return Poll::Ready(answer);
            }
            doorbell.off.store(true, Ordering::Release);
            let landed = Pin::new(&mut *flying).poll(context).is_ready();
            doorbell.off.store(false, Ordering::Release);
            if landed {
                flight = None;
            } else if !std::mem::replace(&mut flying.looked_after, true) {
                flying.patrol.look_after(&flying.craft);
            }
            // What the doorbell did not ring for.
            answer.as_mut().poll(&mut Context::from_waker(if landed { context.waker() } else { &waker }))
        })
        .await
    }

    /// Has it carried by a task of this runtime, since nobody in particular waits for it.
    pub(crate) fn depart(self) {
        match Handle::try_current() {
            Ok(here) if here.id() != self.patrol.keeper.id() => {
                self.patrol.look_after(&self.craft);
                drop(here.spawn(self));
            }
            _ => drop(self),
        }
    }

    /// Lets it fly on the keeper's own thread.
    pub(crate) fn in_background(self) {
        drop(self);
    }
}

/// Carries it on a user's runtime.
impl Future for Flight {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        self.craft.poll(context, false)
    }
}

impl Drop for Flight {
    fn drop(&mut self) {
        self.patrol.take_over(&self.craft);
    }
}

/// Sees that flights land.
pub(crate) struct Patrol {
    keeper: Handle,
    stop: Stop,
    /// Flights on users' runtimes.
    looked_after: Mutex<Vec<(Weak<Craft>, Seen)>>,
    on_round: AtomicBool,
    wanted: Notify,
}

/// Whether the patrol has seen a flight before.
type Seen = bool;

impl Patrol {
    pub(crate) fn new(keeper: Handle, stop: Stop) -> Arc<Self> {
        Arc::new(Self {
            keeper,
            stop,
            looked_after: Mutex::default(),
            on_round: AtomicBool::new(false),
            wanted: Notify::new(),
        })
    }

    pub(crate) fn flight(self: &Arc<Self>, request: BoxFuture<'static, ()>) -> Flight {
        let flying = Flying { request, _guest: self.stop.guest() };
        let craft =
            Craft { state: Mutex::new(State { flying: Some(flying), carrier: None, taken_over: false }) };
        Flight { craft: Arc::new(craft), patrol: self.clone(), looked_after: false }
    }

    /// The keeper's thread carries the flight from here on.
    fn take_over(&self, craft: &Arc<Craft>) {
        let mut state = craft.state();
        if state.flying.is_none() || std::mem::replace(&mut state.taken_over, true) {
            return;
        }
        let carrier = state.carrier.take();
        drop(state);
        let craft = craft.clone();
        self.keeper.spawn(poll_fn(move |context| craft.poll(context, true)));
        if let Some(carrier) = carrier {
            carrier.wake();
        }
    }

    fn list(&self) -> MutexGuard<'_, Vec<(Weak<Craft>, Seen)>> {
        support::lock(&self.looked_after)
    }

    fn look_after(&self, craft: &Arc<Craft>) {
        let mut list = self.list();
        list.retain(|(craft, _)| craft.strong_count() > 0);
        list.push((Arc::downgrade(craft), false));
        drop(list);
        if self.stop.is_stopped() {
            // The last round is over, or takes this one over, too.
            self.take_over(craft);
        } else if !self.on_round.swap(true, Ordering::AcqRel) {
            self.wanted.notify_one();
        }
    }

    /// Goes its rounds while there is anything to look after, until the keeper ends.
    pub(crate) async fn go(self: Arc<Self>, clock: Clock) {
        let rounds = async {
            loop {
                self.wanted.notified().await;
                let mut quiet = false;
                while !quiet {
                    clock.sleep_until(clock.now().after(ROUND)).await;
                    quiet = self.round();
                }
            }
        };
        tokio::select! {
            () = self.stop.stopped() => {}
            () = rounds => {}
        }
        // The thread waits for what still flies, and nobody will look after that any more.
        let last = std::mem::take(&mut *self.list());
        for craft in last.iter().filter_map(|(craft, _)| craft.upgrade()) {
            self.take_over(&craft);
        }
    }

    /// Takes over what has been seen before. True if nothing has flown since the last round: then the next flight calls.
    fn round(&self) -> bool {
        let mut late = Vec::new();
        let mut list = self.list();
        // Those who land leave the list to others, so an empty one has been so for a whole round.
        let quiet = list.is_empty();
        list.retain_mut(|(craft, seen)| {
            let Some(craft) = craft.upgrade() else { return false };
            if std::mem::replace(seen, true) {
                late.push(craft);
                return false;
            }
            true
        });
        if quiet {
            self.on_round.store(false, Ordering::Release);
        }
        drop(list);
        for craft in late {
            self.take_over(&craft);
        }
        quiet
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use tokio::{
        runtime::{Builder, Runtime},
        sync::oneshot,
    };

    use super::*;
    use crate::engine::thread;

    fn runtime() -> Runtime {
        Builder::new_current_thread().enable_all().build().expect("a runtime")
    }

    /// A keeper's thread with its patrol; ends when dropped.
    struct Keeper(Arc<Patrol>, Stop);

    impl Keeper {
        fn start() -> Self {
            let stop = Stop::new();
            let patrol = Patrol::new(thread::start(&stop).expect("a thread"), stop.clone());
            patrol.keeper.spawn(patrol.clone().go(Clock::boot()));
            Self(patrol, stop)
        }

        /// A flight that lands when it is told to, and then says on which thread.
        fn flight(&self) -> (Flight, oneshot::Sender<()>, oneshot::Receiver<std::thread::ThreadId>) {
            let ((land, told), (landed, on)) = (oneshot::channel::<()>(), oneshot::channel());
            let flying = Box::pin(async move {
                told.await.expect("told to land");
                landed.send(std::thread::current().id()).expect("somebody listens");
            });
            (self.0.flight(flying), land, on)
        }
    }

    impl Drop for Keeper {
        fn drop(&mut self) {
            self.1.stop();
        }
    }

    #[test]
    fn a_task_that_waits_carries_its_flight_and_is_not_woken_by_itself() {
        struct Count(AtomicUsize);
        impl Wake for Count {
            fn wake(self: Arc<Self>) {
                self.0.fetch_add(1, Ordering::Relaxed);
            }
        }
        let keeper = Keeper::start();
        let (flight, land, on) = keeper.flight();
        let woken = Arc::new(Count(AtomicUsize::new(0)));
        let waker = Waker::from(woken.clone());
        let mut context = Context::from_waker(&waker);
        let mut waiting = pin!(flight.bring(on));
        assert!(waiting.as_mut().poll(&mut context).is_pending());
        land.send(()).expect("it flies");
        assert_eq!(woken.0.load(Ordering::Relaxed), 1, "the flight can go on");
        let Poll::Ready(thread) = waiting.as_mut().poll(&mut context) else { panic!("it has landed") };
        assert_eq!(thread.expect("landed"), std::thread::current().id());
        assert_eq!(woken.0.load(Ordering::Relaxed), 1, "nobody else had to wake it");
    }

    #[test]
    fn a_flight_whose_task_is_gone_lands_all_the_same() {
        let keeper = Keeper::start();
        let (flight, land, on) = keeper.flight();
        let user = runtime();
        user.block_on(async {
            let carrier = tokio::spawn(flight.bring(std::future::pending::<()>()));
            tokio::task::yield_now().await;
            carrier.abort();
        });
        land.send(()).expect("it flies");
        assert_ne!(user.block_on(on).expect("landed"), std::thread::current().id());
    }

    #[test]
    fn a_flight_on_a_runtime_that_is_not_driven_is_taken_over() {
        let keeper = Keeper::start();
        let idle = runtime();
        let (flight, land, on) = keeper.flight();
        idle.block_on(async { flight.depart() });
        land.send(()).expect("it flies");
        assert_ne!(on.blocking_recv().expect("landed"), std::thread::current().id());
        // The runtime wakes up to a task that has nothing left to do.
        idle.block_on(tokio::task::yield_now());
    }

    #[test]
    fn a_flight_on_a_runtime_that_ends_is_taken_over() {
        let keeper = Keeper::start();
        let (flight, land, on) = keeper.flight();
        let ends = runtime();
        ends.block_on(async { flight.depart() });
        drop(ends);
        land.send(()).expect("it flies");
        assert_ne!(on.blocking_recv().expect("landed"), std::thread::current().id());
    }

    /// A timer of a runtime that has ended panics.
    #[test]
    fn a_keeper_that_ends_waits_for_timers_of_its_flights() {
        let keeper = Keeper::start();
        let timers = keeper.0.keeper.clone();
        let (landed, on) = oneshot::channel();
        let flight = keeper.0.flight(Box::pin(async move {
            let timer = {
                let _timers = timers.enter();
                tokio::time::sleep(3 * ROUND)
            };
            timer.await;
            landed.send(()).expect("somebody listens");
        }));
        let user = runtime();
        let carrier = user.spawn(flight.bring(on));
        user.block_on(tokio::task::yield_now());
        keeper.1.stop();
        user.block_on(carrier).expect("no panic").expect("landed");
    }

    /// Waits until the keeper's thread has ended.
    fn until_ended(keeper: &Keeper) {
        let (user, since) = (runtime(), std::time::Instant::now());
        while user.block_on(keeper.0.keeper.spawn(async {})).is_ok() {
            assert!(since.elapsed() < Duration::from_secs(20), "the keeper's thread does not end");
            std::thread::yield_now();
        }
    }

    #[test]
    fn a_landed_flight_on_a_runtime_that_is_not_driven_keeps_no_thread() {
        let keeper = Keeper::start();
        let idle = runtime();
        let (flight, land, on) = keeper.flight();
        idle.block_on(async { flight.depart() });
        land.send(()).expect("it flies");
        on.blocking_recv().expect("landed");
        keeper.1.stop();
        until_ended(&keeper);
        drop(idle);
    }

    /// It was made before the keeper stopped, and leaves after the last round of the patrol.
    #[test]
    fn a_flight_that_departs_when_the_keeper_has_stopped_lands() {
        let keeper = Keeper::start();
        let idle = runtime();
        let (flight, land, on) = keeper.flight();
        keeper.1.stop();
        // The patrol has gone home when it no longer has a part in this.
        while Arc::strong_count(&keeper.0) > 2 {
            std::thread::yield_now();
        }
        idle.block_on(async { flight.depart() });
        land.send(()).expect("it flies");
        until_ended(&keeper);
        drop((on, idle));
    }

    #[test]
    fn the_patrol_rests_when_nothing_flies() {
        let keeper = Keeper::start();
        let (flight, land, on) = keeper.flight();
        let user = runtime();
        let carrier = user.spawn(flight.bring(on));
        user.block_on(tokio::task::yield_now());
        assert!(keeper.0.on_round.load(Ordering::Acquire), "a flight is looked after");
        land.send(()).expect("it flies");
        drop(user.block_on(carrier).expect("landed"));
        while keeper.0.on_round.load(Ordering::Acquire) {
            std::thread::yield_now();
        }
        assert!(keeper.0.list().is_empty());
    }
}
