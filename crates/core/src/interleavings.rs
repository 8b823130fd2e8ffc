//! The code that is written by hand with atomics and wakers, in all interleavings of its threads and all orders that
//! memory may show: the same source files, compiled once more with the types of `loom`.

use std::{
    sync::Arc,
    task::{Context, Poll, Wake, Waker},
};

use loom::{
    sync::{Mutex, MutexGuard, atomic::AtomicBool},
    thread,
};

mod sync {
    pub(super) use loom::sync::{
        Mutex, MutexGuard,
        atomic::{AtomicBool, AtomicU64, Ordering},
    };
}

#[expect(clippy::duplicate_mod, reason = "the same code with other types of atomics")]
#[path = "engine/dispatch/exchange.rs"]
mod exchange;
#[expect(clippy::duplicate_mod, reason = "the same code with other types of atomics")]
#[path = "lock/guard_count.rs"]
mod guard_count;
#[expect(clippy::duplicate_mod, reason = "the same code with other types of atomics")]
#[path = "engine/dispatch/quiet_waker.rs"]
mod quiet_waker;

use exchange::Exchange;
use guard_count::{GuardCount, GuardsLeft, Refused};
use quiet_waker::{QuietWaker, Quietly};
use sync::{AtomicU64, Ordering};

/// A task that remembers that it was woken.
struct Task(AtomicBool);

impl Task {
    fn new() -> Arc<Self> {
        Arc::new(Self(AtomicBool::new(false)))
    }

    fn is_woken(&self) -> bool {
        self.0.load(Ordering::SeqCst)
    }
}

impl Wake for Task {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// News that somebody waits for.
trait News: Default + Send + Sync + 'static {
    fn tell(&self);

    fn poll(&self, context: &Context<'_>) -> Poll<()>;
}

/// News under a lock, as the engine and tokio's `Notify` keep them.
#[derive(Default)]
struct LockedNews(Mutex<State>);

#[derive(Default)]
struct State {
    there: bool,
    waiting: Option<Waker>,
}

impl LockedNews {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().expect("no panic")
    }
}

impl News for LockedNews {
    fn tell(&self) {
        let mut state = self.state();
        state.there = true;
        let waiting = state.waiting.take();
        drop(state);
        if let Some(waiting) = waiting {
            waiting.wake();
        }
    }

    fn poll(&self, context: &Context<'_>) -> Poll<()> {
        let mut state = self.state();
        if state.there {
            return Poll::Ready(());
        }
        state.waiting = Some(context.waker().clone());
        Poll::Pending
    }
}

/// News in an atomic, as tokio's `oneshot` keeps them: a poll whose waker is registered only loads.
#[derive(Default)]
struct AtomicNews {
    bits: AtomicU64,
    waiting: Mutex<Option<Waker>>,
}

const WAITING: u64 = 1;
const THERE: u64 = 2;

impl AtomicNews {
    fn waiting(&self) -> MutexGuard<'_, Option<Waker>> {
        self.waiting.lock().expect("no panic")
    }
}

impl News for AtomicNews {
    fn tell(&self) {
        if self.bits.fetch_or(THERE, Ordering::AcqRel) & WAITING != 0 {
            let waiting = self.waiting().take();
            waiting.expect("registered").wake();
        }
    }

    fn poll(&self, context: &Context<'_>) -> Poll<()> {
        let mut bits = self.bits.load(Ordering::Acquire);
        if bits & (WAITING | THERE) == 0 {
            *self.waiting() = Some(context.waker().clone());
            bits = self.bits.fetch_or(WAITING, Ordering::AcqRel);
        }
        if bits & THERE == 0 { Poll::Pending } else { Poll::Ready(()) }
    }
}

/// A task polls news as [`InFlight::bring`](crate::engine) does, while another thread tells them. True if the task has
/// them or was woken for them.
fn hears_of_it<N: News>(polls_afterwards: bool) -> bool {
    let (task, news) = (Task::new(), Arc::new(N::default()));
    let teller = thread::spawn({
        let news = news.clone();
        move || news.tell()
    });
    let quiet = QuietWaker::new(&Waker::from(task.clone()));
    assert!(quiet.will_wake(&Waker::from(task.clone())));
    let waker = Waker::from(quiet.clone());
    let context = Context::from_waker(&waker);
    let mut heard = news.poll(&context).is_ready();
    if !heard {
        quiet.quietly(thread::yield_now);
        heard = polls_afterwards && news.poll(&context).is_ready();
    }
    teller.join().expect("no panic");
    heard || task.is_woken()
}

#[test]
fn a_waker_that_is_quiet_for_a_while_loses_no_wake_up() {
    loom::model(|| assert!(hears_of_it::<LockedNews>(true), "a wake-up was lost"));
}

/// Without a lock, only the waker itself orders the wake-up and the poll.
#[test]
fn a_waker_that_is_quiet_for_a_while_loses_no_wake_up_by_news_in_an_atomic() {
    loom::model(|| assert!(hears_of_it::<AtomicNews>(true), "a wake-up was lost"));
}

/// A task polls a request quietly that waits for news, while another thread tells them. True if the request has them or the
/// task was woken for them.
fn request_hears_of_it<N: News>(heeds_what_was_skipped: bool) -> bool {
    let (task, news) = (Task::new(), Arc::new(N::default()));
    let teller = thread::spawn({
        let news = news.clone();
        move || news.tell()
    });
    let quiet = QuietWaker::new(&Waker::from(task.clone()));
    let waker = Waker::from(quiet.clone());
    let context = Context::from_waker(&waker);
    let Quietly { done, skipped } = quiet.quietly(|| news.poll(&context).is_ready());
    if !done && skipped && heeds_what_was_skipped {
        waker.wake();
    }
    teller.join().expect("no panic");
    done || task.is_woken()
}

#[test]
fn a_request_that_is_polled_quietly_loses_no_wake_up() {
    loom::model(|| assert!(request_hears_of_it::<LockedNews>(true), "a wake-up was lost"));
    loom::model(|| assert!(request_hears_of_it::<AtomicNews>(true), "a wake-up was lost"));
}

/// The check above can fail.
#[test]
#[should_panic(expected = "a wake-up was lost")]
fn a_request_loses_a_wake_up_that_was_skipped_and_is_not_heeded() {
    loom::model(|| assert!(request_hears_of_it::<LockedNews>(false), "a wake-up was lost"));
}

/// The checks above can fail.
#[test]
#[should_panic(expected = "a wake-up was lost")]
fn without_a_poll_afterwards_a_wake_up_is_lost() {
    loom::model(|| assert!(hears_of_it::<LockedNews>(false), "a wake-up was lost"));
}

/// The keeper takes a request over while a task polls it and the answer arrives.
#[test]
fn a_request_that_is_taken_over_is_polled_to_its_end_and_its_task_is_told() {
    loom::model(|| {
        let (task, keeper) = (Task::new(), Task::new());
        let (answer, done) = (Arc::new(LockedNews::default()), Arc::new(AtomicU64::new(0)));
        let request = {
            let (answer, done) = (answer.clone(), done.clone());
            async move {
                std::future::poll_fn(|context| answer.poll(context)).await;
                done.fetch_add(1, Ordering::SeqCst);
            }
        };
        let exchange = Exchange::new(Box::pin(request), ());
        let store = thread::spawn(move || answer.tell());
        let rescuer = thread::spawn({
            let (exchange, keeper) = (exchange.clone(), keeper.clone());
            move || {
                let mut taken_over = None;
                exchange.take_over(|taken| taken_over = Some(taken));
                let waker = Waker::from(keeper);
                let mut context = Context::from_waker(&waker);
                taken_over.filter(|taken| taken.poll(&mut context).is_pending())
            }
        });
        let waker = Waker::from(task.clone());
        let first = exchange.poll(&mut Context::from_waker(&waker));
        store.join().expect("no panic");
        let pending = rescuer.join().expect("no panic");
        assert!(first.is_ready() || task.is_woken(), "the task waits for ever");
        if let Some(taken) = pending {
            assert!(keeper.is_woken(), "the keeper waits for ever");
            assert!(taken.poll(&mut Context::from_waker(Waker::noop())).is_ready());
        }
        assert!(exchange.poll(&mut Context::from_waker(&waker)).is_ready(), "nothing is left to the task");
        assert_eq!(done.load(Ordering::SeqCst), 1, "answered once");
    });
}

#[test]
fn one_guard_is_the_last_and_sees_what_the_others_did() {
    loom::model(|| {
        let shared = Arc::new((GuardCount::one(), AtomicU64::new(0)));
        let owner = thread::spawn({
            let shared = shared.clone();
            move || {
                shared.0.enter(|_| true).ok()?;
                shared.1.fetch_add(1, Ordering::Relaxed);
                (shared.0.leave() != GuardsLeft::Others).then(|| shared.1.load(Ordering::Relaxed))
            }
        });
        shared.1.fetch_add(10, Ordering::Relaxed);
        let ours = (shared.0.leave() != GuardsLeft::Others).then(|| shared.1.load(Ordering::Relaxed));
        let theirs = owner.join().expect("no panic");
        match (ours, theirs) {
            (Some(done), None) => assert!(done == 10 || done == 11),
            (None, Some(done)) => assert_eq!(done, 11, "the last one sees all"),
            other => panic!("exactly one is the last: {other:?}"),
        }
        assert_eq!(shared.0.count(), 0);
        assert_eq!(shared.0.enter(|_| true), Err(Refused::Over));
    });
}

#[test]
fn nobody_enters_what_is_sealed_or_writes_what_is_lowered() {
    loom::model(|| {
        let (sealed, lowered) = (Arc::new(GuardCount::one()), Arc::new(GuardCount::one()));
        let owner = thread::spawn({
            let (sealed, lowered) = (sealed.clone(), lowered.clone());
            move || (sealed.enter(|_| true), lowered.enter(|lowered| !lowered))
        });
        let (seals, lowers) = (sealed.seal(), lowered.lower());
        let (entered, written) = owner.join().expect("no panic");
        assert_ne!(seals, entered.is_ok(), "one of the two comes first");
        assert_ne!(lowers, written.is_ok(), "one of the two comes first");
        assert_eq!(lowered.is_lowered(), lowers);
        if seals {
            assert!(sealed.is_sealed());
            assert_eq!(sealed.enter(|_| true), Err(Refused::Sealed));
            sealed.unseal();
            assert_eq!(sealed.enter(|_| true), Ok(()), "it is entered again");
            assert_eq!(sealed.leave(), GuardsLeft::Others);
            assert_eq!(sealed.leave(), GuardsLeft::None { sealed: false }, "the last of two");
        }
        lowered.raise();
        assert!(!lowered.is_lowered());
        lowered.enter_beside();
        assert_eq!(lowered.leave(), GuardsLeft::Others);
    });
}
