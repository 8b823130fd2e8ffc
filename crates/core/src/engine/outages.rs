//! Tells operators about an outage of a keeper: one event when waits or renewals begin to fail, few while they do, and
//! one when the store answers again; and a gauge. A thousand locks cause no more events than one.
//!
//! Servers of one store fail independently, so each has its own state.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use tokio::sync::Notify;

use crate::{
    clock::{BootTime, Clock},
    error::StoreError,
    name::Name,
    store::Store,
    support,
    telemetry::{self, Gauges},
};

/// A second outage of waits that begins this soon after another is not reported at once: a server that answers every
/// other request would fill the log.
const BETWEEN_WAITS: Duration = Duration::from_secs(10);

/// The events about renewals of one kind are at least this far apart.
const BETWEEN_RENEWALS: Duration = Duration::from_secs(1);

/// Work without a failure for this long, or for twice the request limit if that is more, is not being tried any more.
/// Then an answer to other work ends its outage.
const QUIET: Duration = Duration::from_secs(10);

/// A server that nobody has asked for this long is not known to be down any more.
const FORGOTTEN: Duration = Duration::from_secs(60);

/// The kind of work that fails in an outage.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Work {
    /// Claims of waiters, and looks at latches that tasks wait for.
    Waits,
    Renewals,
    /// Requests of any kind. This is for the gauge and not logged.
    Requests,
}

impl Work {
    fn word(self) -> &'static str {
        match self {
            Self::Waits => "waits",
            Self::Renewals => "renewals",
            Self::Requests => "requests",
        }
    }
}

/// A request that failed.
#[derive(Clone, Copy)]
pub(super) struct FailedRequest<'a> {
    /// One of its resources. It tells the server.
    pub(super) name: &'a Name,
    pub(super) sent: BootTime,
}

/// The outages of one keeper.
pub(crate) struct Outages {
    store: Arc<dyn Store>,
    clock: Clock,
    quiet: Duration,
    pub(super) gauges: Gauges,
    /// Told when a server is found to be down.
    went_down: Notify,
    /// Whether anything fails. While nothing does, an answer costs one load.
    any: AtomicBool,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    outages: Vec<Outage>,
    /// The past of a server for one kind of work.
    past: BTreeMap<(usize, Work), Past>,
    late: Throttle,
    closed: bool,
}

/// An outage of one server for one kind of work.
struct Outage {
    work: Work,
    /// A resource that failed. After a failover, another server keeps it, and that one's answers end the outage.
    name: Name,
    since: BootTime,
    /// The latest failure.
    latest: BootTime,
    /// Whether its beginning was logged.
    logged: bool,
    /// Whether nobody does this work any more. Then an answer to other work ends the outage.
    abandoned: bool,
}

impl Outage {
    fn new(work: Work, name: &Name, now: BootTime) -> Self {
        Self { work, name: name.clone(), since: now, latest: now, logged: false, abandoned: false }
    }
}

/// An outage that was logged and is over.
struct Ended {
    name: Name,
    work: Work,
    lasted: Duration,
}

#[derive(Default)]
struct Past {
    /// When the latest outage ended. A request that was sent before and fails afterwards is a part of that outage.
    ended: Option<BootTime>,
    throttle: Throttle,
}

/// Lets one event pass in a period, and counts those that it holds back.
#[derive(Default)]
struct Throttle {
    passed: Option<BootTime>,
    held_back: usize,
}

impl Throttle {
    /// Whether an event about `count` things may pass; gives the count of all since the last that passed.
    fn pass(&mut self, now: BootTime, period: Duration, count: usize) -> Option<usize> {
        self.held_back += count;
        if self.passed.is_some_and(|passed| now.since(passed) < period) {
            return None;
        }
        self.passed = Some(now);
        Some(std::mem::take(&mut self.held_back))
    }
}

impl State {
    fn is_down(&self) -> bool {
        self.outages.iter().any(|outage| outage.work == Work::Requests)
    }
}

impl Outages {
    pub(super) fn new(store: &Arc<dyn Store>, clock: &Clock, request_limit: Duration) -> Self {
        #[cfg(feature = "metrics")]
        telemetry::register();
        Self {
            store: store.clone(),
            clock: clock.clone(),
            quiet: QUIET.max(request_limit.saturating_mul(2)),
            gauges: Gauges::new(store.url()),
            went_down: Notify::new(),
            any: AtomicBool::new(false),
            state: Mutex::default(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        support::lock(&self.state)
    }

    /// Notes a failure and gives the outage that it is a part of; `None` if that one is over.
    fn note<'s>(
        &self,
        state: &'s mut State,
        work: Work,
        request: FailedRequest<'_>,
    ) -> Option<(&'s mut Outage, &'s mut Throttle)> {
        let (now, server) = (self.clock.now(), self.store.server_of(request.name));
        let past = state.past.entry((server, work)).or_default();
        if state.closed || past.ended.is_some_and(|ended| request.sent < ended) {
            return None;
        }
        self.any.store(true, Ordering::Release);
        let is_this = |outage: &Outage| outage.work == work && self.store.server_of(&outage.name) == server;
        let known = state.outages.iter().position(is_this);
        let place = known.unwrap_or(state.outages.len());
        if known.is_none() {
            state.outages.push(Outage::new(work, request.name, now));
        }
        let outage = state.outages.get_mut(place)?;
        // Nobody has tried for long, so that this is another outage.
        if now.since(outage.latest) >= self.quiet {
            *outage = Outage::new(work, request.name, now);
        }
        outage.latest = now;
        outage.abandoned = false;
        Some((outage, &mut past.throttle))
    }

    /// A request of a wait failed, and the wait goes on. `waiting` tells how many wait.
    pub(super) fn wait_goes_on(
        &self,
        request: FailedRequest<'_>,
        error: &StoreError,
        waiting: impl FnOnce() -> usize,
    ) {
        let mut state = self.state();
        let Some((outage, throttle)) = self.note(&mut state, Work::Waits, request) else { return };
        if outage.logged || throttle.pass(outage.latest, BETWEEN_WAITS, 1).is_none() {
            return;
        }
        outage.logged = true;
        drop(state);
        telemetry::wait_goes_on(self.store.url(), request.name, waiting(), error);
    }

    /// A wait ended without an answer. If it was the last one, nobody asks again, so any answer ends the outage.
    pub(super) fn wait_ended(&self, waiting: impl FnOnce() -> usize) {
        if !self.any.load(Ordering::Acquire) || waiting() > 0 {
            return;
        }
        for outage in self.state().outages.iter_mut().filter(|outage| outage.work == Work::Waits) {
            outage.abandoned = true;
        }
    }

    /// The renewals of so many leases failed together.
    pub(super) fn renewals_failed(&self, request: FailedRequest<'_>, leases: usize, error: &StoreError) {
        telemetry::renewal_failed(leases);
        let mut state = self.state();
        let Some((outage, throttle)) = self.note(&mut state, Work::Renewals, request) else { return };
        let Some(leases) = throttle.pass(outage.latest, BETWEEN_RENEWALS, leases) else { return };
        outage.logged = true;
        drop(state);
        telemetry::renewals_fail(request.name, leases, error);
    }

    /// A lease of which `left` was left was renewed; `running` was its length.
    pub(super) fn renewed(&self, name: &Name, left: Duration, running: Duration) {
        let late = left < running / 3;
        telemetry::renewed(late);
        if !late {
            return;
        }
        let leases = self.state().late.pass(self.clock.now(), BETWEEN_RENEWALS, 1);
        if let Some(leases) = leases {
            telemetry::renewals_are_late(name, left, leases);
        }
    }

    /// A request about `name`, among others, that was sent at `sent` has this result.
    pub(super) fn heard<T>(&self, name: &Name, sent: BootTime, result: &Result<T, StoreError>) {
        if result.is_ok() {
            return self.answered(name, Work::Requests);
        }
        let mut state = self.state();
        let was_down = state.is_down();
        if self.note(&mut state, Work::Requests, FailedRequest { name, sent }).is_some() {
            self.changed(&state);
            if !was_down {
                self.went_down.notify_one();
            }
        }
    }

    /// Resolves when a server is found to be down, so that somebody asks [`is_down`](Self::is_down) now and then.
    pub(super) async fn went_down(&self) {
        self.went_down.notified().await;
    }

    /// The server of `name` answered a request of this kind.
    pub(super) fn answered(&self, name: &Name, work: Work) {
        if !self.any.load(Ordering::Acquire) {
            return;
        }
        let (now, server) = (self.clock.now(), self.store.server_of(name));
        let mut over = Vec::new();
        let mut state = self.state();
        let State { outages, past, .. } = &mut *state;
        outages.retain(|outage| {
            let proven = outage.work == work || outage.abandoned;
            let quiet = now.since(outage.latest) >= self.quiet;
            if self.store.server_of(&outage.name) != server || !(proven || quiet) {
                return true;
            }
            let past = past.entry((server, outage.work)).or_default();
            past.ended = Some(now);
            past.throttle.held_back = 0;
            if outage.logged {
                // If nobody has tried since the latest failure, more is not known.
                let end = if proven { now } else { outage.latest };
                over.push(Ended {
                    name: outage.name.clone(),
                    work: outage.work,
                    lasted: end.since(outage.since),
                });
            }
            false
        });
        self.changed(&state);
        drop(state);
        for Ended { name, work, lasted } in over {
            telemetry::answers_again(self.store.url(), &name, work.word(), lasted);
        }
    }

    /// Whether the latest request to `server` of which anything was heard failed.
    pub(super) fn fails(&self, server: usize) -> bool {
        let fails =
            |outage: &Outage| outage.work == Work::Requests && self.store.server_of(&outage.name) == server;
        self.any.load(Ordering::Acquire) && self.state().outages.iter().any(fails)
    }

    /// Whether a server is known to be down. One that nobody asks any more is forgotten after a while.
    pub(super) fn is_down(&self) -> bool {
        if !self.any.load(Ordering::Acquire) {
            return false;
        }
        let now = self.clock.now();
        let mut state = self.state();
        state.outages.retain(|outage| {
            outage.work != Work::Requests || now.since(outage.latest) < FORGOTTEN.max(self.quiet)
        });
        self.changed(&state);
        state.is_down()
    }

    /// The keeper ends: it knows of no outage any more, and has nothing in hand.
    pub(super) fn close(&self) {
        let mut state = self.state();
        state.closed = true;
        state.outages.clear();
        self.changed(&state);
        self.gauges.set_counts(0, 0);
    }

    fn changed(&self, state: &State) {
        self.any.store(!state.outages.is_empty(), Ordering::Release);
        self.gauges.set_failing(state.is_down());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{engine::tests::engine, error::StoreErrorKind};

    /// Its gauges are shared with other keepers of the store, which may be well.
    #[tokio::test(start_paused = true)]
    async fn a_keeper_that_ended_knows_of_no_outage() {
        let engine = engine().await;
        let outages = &engine.client.outages;
        let name = Name::new("stock").expect("a good name");
        let fail = || {
            let failed: Result<(), _> = Err(StoreError::new(StoreErrorKind::Unreachable, "no answer"));
            outages.heard(&name, engine.clock().now(), &failed);
            outages.is_down()
        };
        assert!(fail());
        outages.close();
        assert!(!outages.is_down(), "it has ended");
        assert!(!fail(), "a request that was still in flight");
    }
}
