//! The poller of a request in flight: the task that waits for its answer, a task of the same runtime if nobody in
//! particular waits, and the keeper's runtime if neither does.
//!
//! The waiting task polls the request itself, so the answer never crosses threads.

use std::{
    future::poll_fn,
    pin::{Pin, pin},
    sync::Arc,
    task::{Context, Poll, Waker},
};

use tokio::runtime::Handle;

use super::{
    exchange,
    quiet_waker::{QuietWaker, Quietly},
    rescuer::{Exchange, Rescuer},
};
use crate::store::BoxFuture;

/// A request that is ready to be sent, which its first poll does. Dropped, it is sent and polled on the keeper's own
/// runtime: the requests in it are not lost with the task that happened to come first.
#[must_use = "dropped, it changes threads: poll it where its answer is waited for"]
pub(crate) struct InFlight {
    exchange: Arc<Exchange>,
    rescuer: Arc<Rescuer>,
    watched: bool,
}

impl InFlight {
    pub(super) fn new(rescuer: &Arc<Rescuer>, request: BoxFuture<'static, ()>) -> Self {
        let exchange = exchange::Exchange::new(request, rescuer.keep_alive());
        Self { exchange, rescuer: rescuer.clone(), watched: false }
    }

    /// Waits for `answer` and polls the request meanwhile.
    pub(crate) async fn bring<T>(self, answer: impl Future<Output = T>) -> T {
        let mut answer = pin!(answer);
        let (mut in_flight, mut quiet) = (Some(self), None::<Arc<QuietWaker>>);
        poll_fn(|context| {
            let Some(request) = &mut in_flight else { return answer.as_mut().poll(context) };
            let quiet = match &quiet {
                Some(quiet) if quiet.will_wake(context.waker()) => quiet,
                _ => quiet.insert(QuietWaker::new(context.waker())),
            };
            // It may also come by another way, or never because the keeper closes.
            let waker: Waker = quiet.clone().into();
            let mut quiet_context = Context::from_waker(&waker);
            if let Poll::Ready(answer) = answer.as_mut().poll(&mut quiet_context) {
                return Poll::Ready(answer);
            }
            let Quietly { done, skipped } =
                quiet.quietly(|| Pin::new(&mut *request).poll(&mut quiet_context).is_ready());
            // For the wake-up that was skipped.
            if done {
                in_flight = None;
                return answer.as_mut().poll(context);
            }
            if !std::mem::replace(&mut request.watched, true) {
                request.rescuer.watch(&request.exchange);
            }
            let answer = answer.as_mut().poll(&mut quiet_context);
            if answer.is_pending() && skipped {
                // It was for the request.
                waker.wake_by_ref();
            }
            answer
        })
        .await
    }

    /// Has a task of the current runtime poll it, because nobody in particular waits for it.
    pub(crate) fn spawn(self) {
        self.spawn_as(|in_flight| in_flight);
    }

    /// The same, once the tasks have run that are ready to: what they ask for goes along.
    pub(crate) fn spawn_last(self) {
        self.spawn_as(|in_flight| async {
            tokio::task::yield_now().await;
            in_flight.await;
        });
    }

    fn spawn_as<F>(self, task: impl FnOnce(Self) -> F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        match Handle::try_current() {
            Ok(here) if here.id() != self.rescuer.keeper().id() => {
                self.rescuer.watch(&self.exchange);
                drop(here.spawn(task(self)));
            }
            _ => drop(self),
        }
    }

    /// Has the keeper's runtime poll it.
    pub(crate) fn into_background(self) {
        drop(self);
    }
}

/// Polls it on a user's runtime.
impl Future for InFlight {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        self.exchange.poll(context)
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.rescuer.take_over(&self.exchange);
    }
}

#[cfg(test)]
mod tests {
    use std::{
        sync::atomic::{AtomicUsize, Ordering},
        task::Wake,
        time::Duration,
    };

    use tokio::{
        runtime::{Builder, Runtime},
        sync::oneshot,
    };

    use super::*;
    use crate::{
        clock::Clock,
        engine::{
            dispatch::rescuer::ROUND,
            thread::{self, Stop},
        },
    };

    fn runtime() -> Runtime {
        Builder::new_current_thread().enable_all().build().expect("a runtime")
    }

    struct Count(AtomicUsize);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// A keeper's thread with its rescuer; ends when dropped.
    struct Keeper(Arc<Rescuer>, Stop);

    impl Keeper {
        fn start() -> Self {
            let stop = Stop::new();
            let rescuer = Rescuer::new(thread::start(&stop).expect("a thread"), stop.clone());
            rescuer.keeper().spawn(rescuer.clone().run(Clock::boot()));
            Self(rescuer, stop)
        }

        /// A request that is answered when it is told to be, and then says on which thread.
        fn request(&self) -> (InFlight, oneshot::Sender<()>, oneshot::Receiver<std::thread::ThreadId>) {
            let ((answer, told), (answered, on)) = (oneshot::channel::<()>(), oneshot::channel());
            let request = Box::pin(async move {
                told.await.expect("told to answer");
                answered.send(std::thread::current().id()).expect("somebody listens");
            });
            (InFlight::new(&self.0, request), answer, on)
        }
    }

    impl Drop for Keeper {
        fn drop(&mut self) {
            self.1.stop();
        }
    }

    #[test]
    fn a_task_that_waits_polls_its_request_and_is_not_woken_by_itself() {
        let keeper = Keeper::start();
        let (request, answer, on) = keeper.request();
        let woken = Arc::new(Count(AtomicUsize::new(0)));
        let waker = Waker::from(woken.clone());
        let mut context = Context::from_waker(&waker);
        let mut waiting = pin!(request.bring(on));
        assert!(waiting.as_mut().poll(&mut context).is_pending());
        answer.send(()).expect("it is in flight");
        assert_eq!(woken.0.load(Ordering::Relaxed), 1, "the request can go on");
        let Poll::Ready(thread) = waiting.as_mut().poll(&mut context) else { panic!("it is answered") };
        assert_eq!(thread.expect("answered"), std::thread::current().id());
        assert_eq!(woken.0.load(Ordering::Relaxed), 1, "nobody else had to wake it");
    }

    #[test]
    fn a_request_whose_task_is_gone_is_answered_all_the_same() {
        let keeper = Keeper::start();
        let (request, answer, on) = keeper.request();
        let user = runtime();
        user.block_on(async {
            let task = tokio::spawn(request.bring(std::future::pending::<()>()));
            tokio::task::yield_now().await;
            task.abort();
        });
        answer.send(()).expect("it is in flight");
        assert_ne!(user.block_on(on).expect("answered"), std::thread::current().id());
    }

    /// What they ask for is to go along. Nobody goes rounds here, who might poll it before them on a slow machine.
    #[test]
    fn a_request_that_goes_last_is_polled_after_the_tasks_that_are_ready() {
        let stop = Stop::new();
        let rescuer = Rescuer::new(thread::start(&stop).expect("a thread"), stop.clone());
        let (ran, told) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        runtime().block_on(async {
            let (seen, says) = (ran.clone(), told.clone());
            let request =
                Box::pin(async move { says.store(1 + seen.load(Ordering::Relaxed), Ordering::Relaxed) });
            InFlight::new(&rescuer, request).spawn_last();
            tokio::spawn(async move { ran.store(1, Ordering::Relaxed) });
            while told.load(Ordering::Relaxed) == 0 {
                tokio::task::yield_now().await;
            }
        });
        stop.stop();
        assert_eq!(told.load(Ordering::Relaxed), 2, "the other task has run");
    }

    #[test]
    fn a_request_on_a_runtime_that_is_not_driven_is_taken_over() {
        let keeper = Keeper::start();
        let idle = runtime();
        let (request, answer, on) = keeper.request();
        idle.block_on(async { request.spawn() });
        answer.send(()).expect("it is in flight");
        assert_ne!(on.blocking_recv().expect("answered"), std::thread::current().id());
        // The runtime wakes up to a task that has nothing left to do.
        idle.block_on(tokio::task::yield_now());
    }

    #[test]
    fn a_request_on_a_runtime_that_ends_is_taken_over() {
        let keeper = Keeper::start();
        let (request, answer, on) = keeper.request();
        let ends = runtime();
        ends.block_on(async { request.spawn() });
        drop(ends);
        answer.send(()).expect("it is in flight");
        assert_ne!(on.blocking_recv().expect("answered"), std::thread::current().id());
    }

    /// A timer of a runtime that has ended panics.
    #[test]
    fn a_keeper_that_ends_waits_for_timers_of_its_requests() {
        let keeper = Keeper::start();
        let timers = keeper.0.keeper().clone();
        let (answered, on) = oneshot::channel();
        let request = InFlight::new(
            &keeper.0,
            Box::pin(async move {
                let timer = {
                    let _timers = timers.enter();
                    tokio::time::sleep(3 * ROUND)
                };
                timer.await;
                answered.send(()).expect("somebody listens");
            }),
        );
        let user = runtime();
        let task = user.spawn(request.bring(on));
        user.block_on(tokio::task::yield_now());
        keeper.1.stop();
        user.block_on(task).expect("no panic").expect("answered");
    }

    /// Timers of a request run on the keeper's thread, and wake the task that polls it.
    #[test]
    fn a_waker_that_panics_does_not_end_the_keepers_thread() {
        struct Panics;
        impl Wake for Panics {
            fn wake(self: Arc<Self>) {
                panic!("a waker that panics");
            }
        }
        let stop = Stop::new();
        // Nobody goes rounds here, who might take the request over before its timer ends.
        let rescuer = Rescuer::new(thread::start(&stop).expect("a thread"), stop.clone());
        let keeper = rescuer.keeper().clone();
        let timers = keeper.clone();
        let request = InFlight::new(
            &rescuer,
            Box::pin(async move {
                let timer = {
                    let _timers = timers.enter();
                    tokio::time::sleep(ROUND)
                };
                timer.await;
            }),
        );
        let mut waiting = pin!(request.bring(std::future::pending::<()>()));
        let waker = Waker::from(Arc::new(Panics));
        assert!(waiting.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        let later = keeper.spawn(async { tokio::time::sleep(3 * ROUND).await });
        runtime().block_on(later).expect("the keeper's thread goes on");
        stop.stop();
    }

    /// It may have been woken before it was polled to where it waits.
    #[test]
    fn a_request_that_is_woken_while_it_is_polled_is_polled_again() {
        let keeper = Keeper::start();
        let (answered, on) = oneshot::channel();
        let request = InFlight::new(
            &keeper.0,
            Box::pin(async move {
                // Outside of a runtime, it wakes its task at once.
                tokio::task::yield_now().await;
                answered.send(()).expect("somebody listens");
            }),
        );
        let woken = Arc::new(Count(AtomicUsize::new(0)));
        let waker = Waker::from(woken.clone());
        let mut context = Context::from_waker(&waker);
        let mut waiting = pin!(request.bring(on));
        assert!(waiting.as_mut().poll(&mut context).is_pending());
        assert_eq!(woken.0.load(Ordering::Relaxed), 1);
        assert!(waiting.as_mut().poll(&mut context).is_ready());
    }

    /// Waits until the keeper's thread has ended.
    fn until_ended(keeper: &Keeper) {
        let (user, since) = (runtime(), std::time::Instant::now());
        while user.block_on(keeper.0.keeper().spawn(async {})).is_ok() {
            assert!(since.elapsed() < Duration::from_secs(20), "the keeper's thread does not end");
            std::thread::yield_now();
        }
    }

    #[test]
    fn an_answered_request_on_a_runtime_that_is_not_driven_keeps_no_thread() {
        let keeper = Keeper::start();
        let idle = runtime();
        let (request, answer, on) = keeper.request();
        idle.block_on(async { request.spawn() });
        answer.send(()).expect("it is in flight");
        on.blocking_recv().expect("answered");
        keeper.1.stop();
        until_ended(&keeper);
        drop(idle);
    }

    /// It was made before the keeper stopped, and is sent after the last round of the rescuer.
    #[test]
    fn a_request_that_is_sent_when_the_keeper_has_stopped_is_answered() {
        let keeper = Keeper::start();
        let idle = runtime();
        let (request, answer, on) = keeper.request();
        keeper.1.stop();
        // The rescuer's task has ended when it no longer has a part in this.
        while Arc::strong_count(&keeper.0) > 2 {
            std::thread::yield_now();
        }
        idle.block_on(async { request.spawn() });
        answer.send(()).expect("it is in flight");
        until_ended(&keeper);
        drop((on, idle));
    }

    #[test]
    fn the_rescuer_rests_when_nothing_is_in_flight() {
        let keeper = Keeper::start();
        let (request, answer, on) = keeper.request();
        let user = runtime();
        let task = user.spawn(request.bring(on));
        user.block_on(tokio::task::yield_now());
        assert!(keeper.0.is_on_duty(), "a request is watched");
        answer.send(()).expect("it is in flight");
        drop(user.block_on(task).expect("answered"));
        while keeper.0.is_on_duty() {
            std::thread::yield_now();
        }
        assert!(keeper.0.watches_nothing());
    }
}
