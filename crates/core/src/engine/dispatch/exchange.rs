//! One request in flight, which two runtimes may poll, one after the other.

use std::{
    sync::{Arc, PoisonError},
    task::{Context, Poll, Waker},
};

use super::sync::{Mutex, MutexGuard};
use crate::store::BoxFuture;

/// A request and what must live as long as it does.
pub(crate) struct Exchange<K> {
    state: Mutex<State<K>>,
}

struct State<K> {
    /// `None` once it is done.
    running: Option<Running<K>>,
    /// The task that polls it, to be told if it is taken over.
    polled_by: Option<Waker>,
    taken_over: bool,
}

/// The two are dropped together, in this order: a task that is never polled again may keep the exchange for ever, but
/// not what the request needed.
struct Running<K> {
    request: BoxFuture<'static, ()>,
    _needs: K,
}

/// The runtime that polls.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Poller {
    /// A task of a user's runtime.
    Task,
    /// The keeper's runtime, which took it over.
    Keeper,
}

impl<K> Exchange<K> {
    pub(crate) fn new(request: BoxFuture<'static, ()>, needs: K) -> Arc<Self> {
        let running = Some(Running { request, _needs: needs });
        Arc::new(Self { state: Mutex::new(State { running, polled_by: None, taken_over: false }) })
    }

    fn state(&self) -> MutexGuard<'_, State<K>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Polls it as a task of a user's runtime. Ready when it is done, or polled elsewhere from now on.
    pub(crate) fn poll(&self, context: &mut Context<'_>) -> Poll<()> {
        self.poll_as(Poller::Task, context)
    }

    fn poll_as(&self, poller: Poller, context: &mut Context<'_>) -> Poll<()> {
        let mut state = self.state();
        if state.taken_over && poller == Poller::Task {
            return Poll::Ready(());
        }
        let Some(running) = &mut state.running else { return Poll::Ready(()) };
        if running.request.as_mut().poll(context).is_ready() {
            state.running = None;
            return Poll::Ready(());
        }
        if poller == Poller::Task && !state.polled_by.as_ref().is_some_and(|by| by.will_wake(context.waker()))
        {
            state.polled_by = Some(context.waker().clone());
        }
        Poll::Pending
    }

    /// Has `spawn` poll it from now on with the function that it is given, and tells the task that did so before.
    /// Does nothing if it is done or taken over already.
    pub(crate) fn take_over<P>(self: &Arc<Self>, spawn: impl FnOnce(TakenOver<K>) -> P) {
        let mut state = self.state();
        if state.running.is_none() || std::mem::replace(&mut state.taken_over, true) {
            return;
        }
        let polled_by = state.polled_by.take();
        drop(state);
        spawn(TakenOver(self.clone()));
        if let Some(task) = polled_by {
            task.wake();
        }
    }
}

/// An exchange that only its owner polls.
pub(crate) struct TakenOver<K>(Arc<Exchange<K>>);

impl<K> TakenOver<K> {
    pub(crate) fn poll(&self, context: &mut Context<'_>) -> Poll<()> {
        self.0.poll_as(Poller::Keeper, context)
    }
}
