//! What a keeper tells operators about an outage: one event when waits or renewals begin to fail, few while they do, and
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

/// What fails in an outage.
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
pub(super) struct FailedRequest {
    pub(super) server: usize,
    pub(super) sent: BootTime,
}

/// The outages of one keeper.
pub(crate) struct Outages {
    store: Arc<str>,
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
    failing: BTreeMap<(usize, Work), Failing>,
    /// When the latest outage ended. A request that was sent before and fails afterwards is a part of that outage.
    ended: BTreeMap<(usize, Work), BootTime>,
    waits: Throttle,
    renewals: Throttle,
    late: Throttle,
}

/// An outage of one server for one kind of work.
struct Failing {
    since: BootTime,
    /// The latest failure.
    latest: BootTime,
    /// Whether its beginning was logged.
    logged: bool,
}

/// Lets one event pass in a period, and counts what the others would have said.
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
    /// The outage that the request is a part of; `None` if that one is over.
    fn failing(&mut self, request: FailedRequest, work: Work, now: BootTime) -> Option<&mut Failing> {
        let key = (request.server, work);
        if self.ended.get(&key).is_some_and(|ended| request.sent < *ended) {
            return None;
        }
        let failing = self.failing.entry(key).or_insert(Failing { since: now, latest: now, logged: false });
        failing.latest = now;
        Some(failing)
    }

    /// Notes that the beginning of an outage is logged.
    fn log(&mut self, request: FailedRequest, work: Work) {
        if let Some(failing) = self.failing.get_mut(&(request.server, work)) {
            failing.logged = true;
        }
    }

    fn is_down(&self) -> bool {
        self.failing.keys().any(|(_, work)| *work == Work::Requests)
    }
}

impl Outages {
    pub(super) fn new(store: &Arc<str>, clock: &Clock, request_limit: Duration) -> Self {
        Self {
            store: store.clone(),
            clock: clock.clone(),
            quiet: QUIET.max(request_limit.saturating_mul(2)),
            gauges: Gauges::new(store),
            went_down: Notify::new(),
            any: AtomicBool::new(false),
            state: Mutex::default(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        support::lock(&self.state)
    }

    /// A request of a wait failed, and the wait goes on. `waiting` tells how many wait.
    pub(super) fn wait_goes_on(
        &self,
        request: FailedRequest,
        error: &StoreError,
        waiting: impl FnOnce() -> usize,
    ) {
        let now = self.clock.now();
        let mut state = self.state();
        let Some(failing) = state.failing(request, Work::Waits, now) else { return };
        self.any.store(true, Ordering::Release);
        if failing.logged || state.waits.pass(now, BETWEEN_WAITS, 1).is_none() {
            return;
        }
        state.log(request, Work::Waits);
        drop(state);
        telemetry::wait_goes_on(&self.store, waiting(), error);
    }

    /// The renewals of so many leases failed together.
    pub(super) fn renewals_failed(&self, request: FailedRequest, leases: usize, error: &StoreError) {
        telemetry::renewal_failed(leases);
        let now = self.clock.now();
        let mut state = self.state();
        if state.failing(request, Work::Renewals, now).is_none() {
            return;
        }
        self.any.store(true, Ordering::Release);
        let Some(leases) = state.renewals.pass(now, BETWEEN_RENEWALS, leases) else { return };
        state.log(request, Work::Renewals);
        drop(state);
        telemetry::renewals_fail(leases, error);
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

    /// A request that was sent to `server` at `sent` has this result.
    pub(super) fn heard<T>(&self, server: usize, sent: BootTime, result: &Result<T, StoreError>) {
        if result.is_ok() {
            return self.answered(|| server, Work::Requests);
        }
        let mut state = self.state();
        let was_down = state.is_down();
        if state.failing(FailedRequest { server, sent }, Work::Requests, self.clock.now()).is_some() {
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

    /// The server answered a request of this kind.
    pub(super) fn answered(&self, server: impl FnOnce() -> usize, work: Work) {
        if !self.any.load(Ordering::Acquire) {
            return;
        }
        let (now, server) = (self.clock.now(), server());
        let mut over = Vec::new();
        let mut state = self.state();
        let State { failing, ended, .. } = &mut *state;
        failing.retain(|key, failing| {
            let quiet = now.since(failing.latest) >= self.quiet;
            let ends = key.0 == server && (key.1 == work || quiet);
            if ends {
                ended.insert(*key, now);
            }
            if ends && failing.logged {
                over.push((key.1, now.since(failing.since)));
            }
            !ends
        });
        self.changed(&state);
        drop(state);
        for (work, lasted) in over {
            telemetry::answers_again(&self.store, work.word(), lasted);
        }
    }

    /// Whether the latest request to `server` of which anything was heard failed.
    pub(super) fn fails(&self, server: usize) -> bool {
        self.any.load(Ordering::Acquire) && self.state().failing.contains_key(&(server, Work::Requests))
    }

    /// Whether a server is known to be down. One that nobody asks any more is forgotten after a while.
    pub(super) fn is_down(&self) -> bool {
        if !self.any.load(Ordering::Acquire) {
            return false;
        }
        let now = self.clock.now();
        let mut state = self.state();
        state.failing.retain(|key, failing| {
            key.1 != Work::Requests || now.since(failing.latest) < FORGOTTEN.max(self.quiet)
        });
        self.changed(&state);
        state.is_down()
    }

    fn changed(&self, state: &State) {
        self.any.store(!state.failing.is_empty(), Ordering::Release);
        self.gauges.set_failing(state.is_down());
    }
}
