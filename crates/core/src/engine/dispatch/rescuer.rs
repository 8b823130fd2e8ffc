//! Takes requests over that a user's runtime does not poll to their end.
//!
//! A user's runtime may be blocked, or driven no more, and requests of other tasks may travel in the same group. The
//! keeper's own thread looks at all requests in flight elsewhere once a [`ROUND`] and polls those itself that it has seen
//! before.

use std::{
    future::poll_fn,
    sync::{
        Arc, Mutex, MutexGuard, Weak,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use tokio::{runtime::Handle, sync::Notify};

use super::exchange;
use crate::{
    clock::Clock,
    engine::thread::{KeepAlive, Stop},
    support,
};

/// A request on a user's runtime is taken over when it is between one and two rounds old.
pub(super) const ROUND: Duration = Duration::from_millis(10);

/// A request in flight. Its timers are on the keeper's thread, whichever runtime polls it, so it keeps that alive.
pub(super) type Exchange = exchange::Exchange<KeepAlive>;

pub(crate) struct Rescuer {
    keeper: Handle,
    stop: Stop,
    watched: Mutex<Vec<Watched>>,
    /// Whether requests are polled here from the start.
    takes_all: AtomicBool,
    on_duty: AtomicBool,
    wanted: Notify,
}

/// A request in flight on a user's runtime.
struct Watched {
    exchange: Weak<Exchange>,
    seen_before: bool,
}

impl Rescuer {
    pub(crate) fn new(keeper: Handle, stop: Stop) -> Arc<Self> {
        Arc::new(Self {
            keeper,
            stop,
            watched: Mutex::default(),
            takes_all: AtomicBool::new(false),
            on_duty: AtomicBool::new(false),
            wanted: Notify::new(),
        })
    }

    /// The keeper's runtime.
    pub(super) fn keeper(&self) -> &Handle {
        &self.keeper
    }

    pub(super) fn keep_alive(&self) -> KeepAlive {
        self.stop.keep_alive()
    }

    /// Has the keeper's runtime poll the request from now on.
    pub(super) fn take_over(&self, exchange: &Arc<Exchange>) {
        exchange.take_over(|taken| self.keeper.spawn(poll_fn(move |context| taken.poll(context))));
    }

    fn list(&self) -> MutexGuard<'_, Vec<Watched>> {
        support::lock(&self.watched)
    }

    /// Sees to it that the request ends, even if the runtime that polls it is blocked or has ended.
    pub(super) fn watch(&self, exchange: &Arc<Exchange>) {
        let mut list = self.list();
        list.retain(|watched| watched.exchange.strong_count() > 0);
        list.push(Watched { exchange: Arc::downgrade(exchange), seen_before: false });
        drop(list);
        if self.stop.is_stopped() || self.takes_all.load(Ordering::Acquire) {
            // The last round is over, or takes this one over as well.
            self.take_over(exchange);
        } else if !self.on_duty.swap(true, Ordering::AcqRel) {
            self.wanted.notify_one();
        }
    }

    /// Goes its rounds while there is anything to watch, until the keeper ends.
    pub(crate) async fn run(self: Arc<Self>, clock: Clock) {
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
        // The thread waits for what is still in flight, and nobody will watch that any more.
        self.take_over_watched();
    }

    fn take_over_watched(&self) {
        let watched = std::mem::take(&mut *self.list());
        for exchange in watched.iter().filter_map(|watched| watched.exchange.upgrade()) {
            self.take_over(&exchange);
        }
    }

    /// Has the keeper's runtime poll all requests from now on, because users' runtimes may not come to it.
    ///
    /// The caller may be inside of a request that it polls, so the keeper's thread takes the requests.
    pub(crate) fn take_all(self: &Arc<Self>) {
        self.takes_all.store(true, Ordering::Release);
        let rescuer = self.clone();
        self.keeper.spawn(async move { rescuer.take_over_watched() });
    }

    /// Takes over the requests seen before. True if nothing was in flight since the last round: the next one calls.
    fn round(&self) -> bool {
        let mut late = Vec::new();
        let mut list = self.list();
        // Exchanges that are done are removed by others, so an empty list has been empty for a whole round.
        let quiet = list.is_empty();
        list.retain_mut(|watched| {
            let Some(exchange) = watched.exchange.upgrade() else { return false };
            if std::mem::replace(&mut watched.seen_before, true) {
                late.push(exchange);
                return false;
            }
            true
        });
        if quiet {
            self.on_duty.store(false, Ordering::Release);
        }
        drop(list);
        for exchange in late {
            self.take_over(&exchange);
        }
        quiet
    }

    #[cfg(test)]
    pub(super) fn is_on_duty(&self) -> bool {
        self.on_duty.load(Ordering::Acquire)
    }

    #[cfg(test)]
    pub(super) fn watches_nothing(&self) -> bool {
        self.list().is_empty()
    }
}
