//! Exchanges that are under way. The caller that waits for their answers polls them, or the keeper's runtime does.
//!
//! A caller polls its own exchanges, so that answers do not cross threads. When the caller is answered, some of its
//! exchanges may still be under way. If nothing depends on these, the next caller polls them as well. The keeper's
//! runtime polls those that no caller has polled for a [`ROUND`].

use std::{
    future::poll_fn,
    pin::{Pin, pin},
    sync::{Arc, Mutex, MutexGuard, Weak},
    task::{Context, Poll},
    time::Duration,
};

use futures_util::{Stream, stream::FuturesUnordered};
use lockkeeper_core::{clock::Clock, store::BoxFuture, support};

use super::{Quorum, exchange::Exchange};

/// Exchanges that no caller polls are taken over by the keeper's runtime when they are between one and two rounds old.
const ROUND: Duration = Duration::from_millis(5);

/// Exchanges that one task polls. Those that follow from them are begun at once.
#[derive(Debug)]
struct Running {
    quorum: Arc<Quorum>,
    each: FuturesUnordered<BoxFuture<'static, Vec<Exchange>>>,
}

impl Running {
    fn new(quorum: &Arc<Quorum>) -> Self {
        Self { quorum: quorum.clone(), each: FuturesUnordered::new() }
    }

    /// Begins exchanges: they are sent with the next poll, in this order.
    fn begin(&mut self, exchanges: Vec<Exchange>) {
        for exchange in exchanges {
            self.each.push(Box::pin(self.quorum.clone().exchange_one(exchange)));
        }
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<()> {
        loop {
            match Pin::new(&mut self.each).poll_next(context) {
                Poll::Ready(Some(next)) => self.begin(next),
                Poll::Ready(None) => return Poll::Ready(()),
                Poll::Pending => return Poll::Pending,
            }
        }
    }

    /// Has the keeper's runtime poll them to their end.
    fn in_background(mut self) {
        if !self.each.is_empty() {
            let background = self.quorum.background.clone();
            background.spawn(async move { poll_fn(|context| self.poll(context)).await });
        }
    }
}

/// Exchanges that a caller polls. Dropped, they go on in the background.
#[derive(Debug)]
pub(crate) struct UnderWay(Option<Running>);

impl UnderWay {
    pub(crate) fn begin(quorum: &Arc<Quorum>, left_over: Option<Self>, exchanges: Vec<Exchange>) -> Self {
        let before = left_over.and_then(|mut left_over| left_over.0.take());
        let mut running = before.unwrap_or_else(|| Running::new(quorum));
        running.begin(exchanges);
        Self(Some(running))
    }

    /// Polls them while the caller waits for something.
    pub(crate) async fn poll_until<T>(&mut self, something: impl Future<Output = T>) -> T {
        let mut something = pin!(something);
        poll_fn(|context| {
            if let Some(running) = &mut self.0 {
                // Whether all are done does not matter.
                let _ = running.poll(context);
            }
            something.as_mut().poll(context)
        })
        .await
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        if let Some(running) = self.0.take() {
            running.in_background();
        }
    }
}

impl Quorum {
    /// Has the keeper's runtime poll them.
    pub(super) fn in_background(self: &Arc<Self>, exchanges: Vec<Exchange>) {
        drop(UnderWay::begin(self, None, exchanges));
    }
}

/// Exchanges that callers have left over, for the next caller. The exchanges keep the quorum alive, and not the other
/// way round: this belongs to the store.
#[derive(Default, Debug)]
pub(crate) struct LeftOver(Mutex<State>);

#[derive(Default, Debug)]
struct State {
    waiting: Option<UnderWay>,
    /// Whether they were there in the last round.
    is_old: bool,
    /// Whether any were left over since the last round.
    is_used: bool,
    /// Whether a task takes over exchanges that no caller polls.
    is_watched: bool,
}

impl LeftOver {
    fn state(&self) -> MutexGuard<'_, State> {
        support::lock(&self.0)
    }

    /// Takes all of them.
    pub(crate) fn take(&self) -> Option<UnderWay> {
        self.state().waiting.take()
    }

    /// Leaves these to the next caller.
    pub(crate) fn put(self: &Arc<Self>, mut rest: UnderWay) {
        let Some(running) = rest.0.as_mut().filter(|running| !running.each.is_empty()) else { return };
        let quorum = running.quorum.clone();
        let mut state = self.state();
        (state.is_old, state.is_used) = (false, true);
        if let Some(before) = state.waiting.take().and_then(|mut before| before.0.take()) {
            running.each.extend(before.each);
        }
        state.waiting = Some(rest);
        if !std::mem::replace(&mut state.is_watched, true) {
            quorum.background.spawn(watch(Arc::downgrade(self), quorum.clock.clone()));
        }
    }

    /// Takes over exchanges that were there in the last round; true if nothing was left over since then.
    fn round(&self) -> bool {
        let mut state = self.state();
        let was_old = std::mem::replace(&mut state.is_old, true);
        let old = state.waiting.take_if(|_| was_old);
        let is_quiet = !std::mem::take(&mut state.is_used) && state.waiting.is_none();
        state.is_watched = !is_quiet;
        drop(state);
        drop(old);
        is_quiet
    }
}

/// Goes its rounds while anything is left over.
async fn watch(left_over: Weak<LeftOver>, clock: Clock) {
    loop {
        clock.sleep_until(clock.now().after(ROUND)).await;
        if left_over.upgrade().is_none_or(|left_over| left_over.round()) {
            return;
        }
    }
}
