//! The store as the engine calls it: with a time limit, with errors that name their place, and with the keeper's
//! knowledge of the store's clock.

use std::{
    future::poll_fn,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Poll, ready},
    time::Duration,
};

use tokio::runtime::Handle;

use super::{outages::Outages, store_clock::StoreClock};
use crate::{
    clock::{BootTime, Clock},
    error::{At, StoreError, StoreErrorKind},
    name::Name,
    store::{Reply, Store},
    support::{backoff::Backoff, calm::calm, duration::show},
};

/// The pauses between copies of one request that fail.
pub(super) const BACKOFF: Backoff = Backoff::new(Duration::from_millis(50), Duration::from_millis(800));

pub(crate) struct StoreClient {
    pub(super) store: Arc<dyn Store>,
    pub(super) store_clock: StoreClock,
    pub(super) outages: Outages,
    pub(super) clock: Clock,
    pub(super) request_limit: Duration,
    /// The keeper's own runtime.
    pub(super) background: Handle,
    /// Whether the last request that ended had no answer.
    silent: AtomicBool,
}

impl StoreClient {
    pub(super) fn new(
        store: Arc<dyn Store>,
        clock: Clock,
        request_limit: Duration,
        background: Handle,
    ) -> Self {
        let outages = Outages::new(&store, &clock, request_limit);
        let (store_clock, silent) = (StoreClock::default(), AtomicBool::new(false));
        Self { store, store_clock, outages, clock, request_limit, background, silent }
    }

    /// Whether the last request that ended had no answer.
    pub(super) fn is_silent(&self) -> bool {
        self.silent.load(Ordering::Relaxed)
    }

    pub(super) fn server_of(&self, name: &Name) -> usize {
        self.store.server_of(name)
    }

    /// Whether `server` has answered after this moment, and has not failed after that.
    pub(super) fn has_answered(&self, server: usize, since: BootTime) -> bool {
        self.store_clock.has_heard(server, since) && !self.outages.fails(server)
    }

    /// How many requests may travel together.
    pub(super) fn group_limit(&self) -> usize {
        self.store.capability().group_limit.max(1)
    }

    /// How many groups may be in flight to one server.
    pub(super) fn requests_at_once(&self) -> usize {
        self.store.capability().requests_at_once.max(1)
    }

    /// Asks the store, but not for longer than a request may take.
    pub(crate) async fn ask<T>(&self, operation: &'static str, reply: Reply<'_, T>) -> Result<T, StoreError> {
        let limit = self.request_limit;
        let result = calm(self.clock.within(limit, reply)).await;
        self.located(operation, result.unwrap_or_else(|| Err(no_answer(limit))))
    }

    /// Asks the store from a request in flight. Whichever runtime polls it, its timers live on the keeper's runtime,
    /// because a runtime that ends takes its own timers along. Only the keeper's runtime limits its time: a timer costs
    /// a lone claim too much, and the rescuer lets no request stay elsewhere for long.
    pub(super) async fn ask_in_flight<T>(&self, mut reply: Reply<'_, T>) -> Result<T, StoreError> {
        let (sent, limit) = (self.clock.now(), self.request_limit);
        let mut timer = None;
        let result = poll_fn(|context| {
            let by_keeper = Handle::try_current().is_ok_and(|here| here.id() == self.background.id());
            let _timers = self.background.enter();
            if let Poll::Ready(result) = reply.as_mut().poll(context) {
                return Poll::Ready(result);
            }
            if by_keeper {
                let left = || limit.saturating_sub(self.clock.now().since(sent));
                let timer = timer.get_or_insert_with(|| Box::pin(tokio::time::sleep(left())));
                ready!(timer.as_mut().poll(context));
                return Poll::Ready(Err(no_answer(limit)));
            }
            Poll::Pending
        });
        self.located("claim", result.await)
    }

    fn located<T>(&self, operation: &'static str, result: Result<T, StoreError>) -> Result<T, StoreError> {
        let silent = matches!(&result, Err(error) if error.kind() == StoreErrorKind::Unreachable);
        self.silent.store(silent, Ordering::Relaxed);
        result.map_err(|error| error.at(At { store: self.store.url().clone(), resource: None, operation }))
    }

    /// Learns the store's clock: the first request of a keeper.
    pub(crate) async fn learn_clock(&self) -> Result<(), StoreError> {
        let answers = self.ask("connect", self.store.apply(&[])).await?;
        self.store_clock.heard(0, self.clock.now(), answers.now);
        Ok(())
    }
}

fn no_answer(limit: Duration) -> StoreError {
    let message = format!("no answer within {}; check that the store is up and reachable", show(limit));
    StoreError::new(StoreErrorKind::Unreachable, message)
}
