//! The state that all requests share.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use axum::{
    http::{HeaderValue, header},
    response::{IntoResponse, Response},
};
use bytes::Bytes;
use lockkeeper::{
    Keeper,
    support::{self, terminal},
};
use serde::Serialize;
use serde_json::{Value, json};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

use crate::{
    caller::Caller,
    connections::Connections,
    console::Watched,
    idempotency::Remembered,
    log::Log,
    metrics,
    outstanding::Outstanding,
    problem::{Code, Problem},
    rate::Failures,
    sample::Sample,
    sampler::Sampler,
    settings::Settings,
    tokens::{Role, Tokens},
};

/// How many requests may wait unless the settings say so.
const WAITING: usize = 4096;
/// The same where every claim is a session of its own: servers allow 60 of these from one address unless they are told
/// otherwise.
const WAITING_BY_SESSION: usize = 32;
/// How long the result of a probe of the store is good for.
const READY_FOR: Duration = Duration::from_secs(1);

/// How long a probe waits for the store. One that has not answered by then is not ready.
const READY_WITHIN: Duration = Duration::from_secs(2);

/// Whether the store answered.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Ready {
    at: Instant,
    answered: bool,
}

/// The state that all requests share.
pub(crate) struct App {
    pub(crate) settings: Settings,
    pub(crate) keeper: Keeper,
    pub(crate) sampler: Sampler,
    pub(crate) watched: Watched,
    pub(crate) tokens: Tokens,
    pub(crate) failures: Failures,
    pub(crate) connections: Arc<Connections>,
    pub(crate) remembered: Remembered,
    pub(crate) log: Log,
    /// Work that the end of the server waits for.
    pub(crate) work: Outstanding,
    pub(crate) exporter: Option<metrics::Exporter>,
    waiting: Arc<Semaphore>,
    most_waiting: usize,
    draining: watch::Sender<bool>,
    ready: watch::Sender<Option<Ready>>,
    /// Whether the store is being asked.
    asking: AtomicBool,
}

/// The parts of an app that are made elsewhere.
pub(crate) struct Parts {
    pub(crate) settings: Settings,
    pub(crate) keeper: Keeper,
    pub(crate) sampler: Sampler,
    pub(crate) watched: Watched,
    pub(crate) tokens: Tokens,
    pub(crate) log: Log,
    pub(crate) exporter: Option<metrics::Exporter>,
}

impl App {
    pub(crate) fn new(parts: Parts) -> Self {
        let Parts { settings, keeper, sampler, watched, tokens, log, exporter } = parts;
        let usual = if claims_are_sessions(&keeper) { WAITING_BY_SESSION } else { WAITING };
        let most_waiting = settings.limits.waiting.unwrap_or(usual).min(Semaphore::MAX_PERMITS);
        Self {
            connections: Arc::new(Connections::new(settings.limits.connections)),
            settings,
            keeper,
            sampler,
            watched,
            tokens,
            failures: Failures::default(),
            remembered: Remembered::default(),
            log,
            work: Outstanding::new(),
            exporter,
            waiting: Arc::new(Semaphore::new(most_waiting)),
            most_waiting,
            draining: watch::Sender::new(false),
            ready: watch::Sender::new(None),
            asking: AtomicBool::new(false),
        }
    }

    /// Takes a place for a request that waits for `wait`. A request that only tries needs none, unless it costs a
    /// session.
    pub(crate) fn wait(&self, wait: Duration) -> Result<Option<Waiting>, Problem> {
        let longest = self.settings.limits.longest_wait;
        if wait > longest {
            let longest = support::duration::show(longest);
            return Err(Problem::invalid(format!(
                "the longest wait of this server is {longest}; ask again after it"
            )));
        }
        if *self.draining.borrow() {
            return Err(Problem::shutting_down());
        }
        let by_session = claims_are_sessions(&self.keeper);
        if wait.is_zero() && !by_session {
            return Ok(None);
        }
        let Ok(permit) = self.waiting.clone().try_acquire_owned() else {
            let why = if by_session { ", because each needs a session of its own at ZooKeeper" } else { "" };
            let message =
                format!("{} requests wait here already, which is the limit{why}", self.most_waiting);
            return Err(Problem::new(Code::TooManyWaiting, message));
        };
        Ok(Some(Waiting::new(permit)))
    }

    /// How many requests wait.
    pub(crate) fn waiting(&self) -> usize {
        self.most_waiting - self.waiting.available_permits()
    }

    /// Begins the end: requests that wait are refused.
    pub(crate) fn drain(&self) {
        self.draining.send_replace(true);
    }

    pub(crate) fn is_draining(&self) -> bool {
        *self.draining.borrow()
    }

    /// Waits until the end begins.
    pub(crate) async fn draining(&self) {
        // Only fails if the sender is gone, and this has it.
        drop(self.draining.subscribe().wait_for(|draining| *draining).await);
    }

    /// Does `work` until the end begins.
    pub(crate) async fn until_drained<T>(
        &self,
        work: impl Future<Output = Result<T, Problem>>,
    ) -> Result<T, Problem> {
        tokio::select! {
            biased;
            () = self.draining() => Err(Problem::shutting_down()),
            done = work => done,
        }
    }

    /// Returns the latest sample of the store.
    pub(crate) async fn sample(&self) -> Result<Arc<Sample>, Problem> {
        self.until_drained(self.sampler.latest()).await
    }

    /// Whether the store answers. Anybody may ask this server, so it asks the store once a second at most. A task of
    /// its own asks, so a probe that hangs up changes nothing.
    pub(crate) async fn is_ready(self: &Arc<Self>) -> bool {
        if self.is_draining() {
            return false;
        }
        let mut known = self.ready.subscribe();
        let before = *known.borrow_and_update();
        if let Some(ready) = before
            && ready.at.elapsed() < READY_FOR
        {
            return ready.answered;
        }
        if !self.asking.swap(true, Ordering::AcqRel) {
            let app = self.clone();
            self.work.spawn(async move {
                let answered = app.keeper.inspect("lockkeeper/ready").await.is_ok();
                app.ready.send_replace(Some(Ready { at: Instant::now(), answered }));
                app.asking.store(false, Ordering::Release);
            });
        }
        let answer = tokio::time::timeout(READY_WITHIN, known.wait_for(|now| *now != before)).await;
        matches!(answer, Ok(Ok(ready)) if ready.is_some_and(|ready| ready.answered))
    }

    /// Writes a change to the log: its caller and address, the call, the name and the outcome.
    pub(crate) fn audit(&self, caller: &Caller, what: &str, name: &str, outcome: &str, more: Value) {
        let mut fields = json!({
            "who": &*caller.who.name,
            "from": &*caller.from,
            "name": name,
            "outcome": outcome,
        });
        if let (Value::Object(fields), Value::Object(more)) = (&mut fields, more) {
            fields.extend(more);
        }
        match caller.who.role {
            Role::Administer => self.log.write_reserved("info", what, fields),
            Role::Look | Role::Use => self.log.write("info", what, fields),
        }
    }
}

/// Whether every claim that outlives its process needs a session at the servers.
fn claims_are_sessions(keeper: &Keeper) -> bool {
    !keeper.capability().lease_per_claim
}

/// A request that waits.
pub(crate) struct Waiting {
    _permit: OwnedSemaphorePermit,
}

impl Waiting {
    fn new(permit: OwnedSemaphorePermit) -> Self {
        ::metrics::gauge!(metrics::WAITING).increment(1.0);
        Self { _permit: permit }
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        ::metrics::gauge!(metrics::WAITING).decrement(1.0);
    }
}

/// Returns a value as JSON that is safe for terminals, too.
pub(crate) fn to_json(value: &impl Serialize) -> Result<Bytes, Problem> {
    let text =
        serde_json::to_string(value).map_err(|error| Problem::new(Code::Internal, error.to_string()))?;
    Ok(terminal::json(text).into())
}

/// Returns an answer of JSON with status 200.
pub(crate) fn ok(body: impl Into<axum::body::Body>) -> Response {
    let mut response = body.into().into_response();
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}
