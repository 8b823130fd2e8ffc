//! One connection to one server: opened when it is first needed, and opened again after it broke.
//!
//! Nothing is ever sent twice from here. A connection that left a request unanswered is closed, because its later
//! replies could be taken for answers to other requests.

use std::{
    pin::pin,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use lockkeeper_core::{
    StoreError, StoreErrorKind,
    support::{self, backoff::Backoff},
};
use redis::{Cmd, Pipeline, Value, aio::MultiplexedConnection};
use tokio::runtime::{Handle, Id};

use crate::{
    address::Address,
    opener::{Driven, Opener, checked},
    runtime::ConnectionRuntime,
    sentinels::Sentinels,
    trouble,
};

/// After a connection could not be opened, requests fail at once for a pause between these.
const SHORTEST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_millis(250);

/// A request that takes longer has its runtime looked at. A member of a quorum that takes twice as long is suspected.
const SLOW_AFTER: Duration = Duration::from_millis(250);

/// How the address of a server is found.
#[derive(Clone)]
pub(crate) enum Location {
    /// It is always the same.
    Fixed(Address),
    /// The sentinels say it.
    Sentinels(Arc<Sentinels>),
}

impl Location {
    pub(crate) async fn locate(&self) -> Result<Address, StoreError> {
        match self {
            Self::Fixed(address) => Ok(address.clone()),
            Self::Sentinels(sentinels) => sentinels.locate().await,
        }
    }

    /// Whether a connection to `address` may stay.
    fn is_at(&self, address: &Address) -> bool {
        match self {
            Self::Fixed(_) => true,
            Self::Sentinels(sentinels) => sentinels.is_master(address),
        }
    }
}

/// Counts how often a connection was opened.
pub(crate) type Generation = u64;

/// A connection to one server.
pub(crate) struct Connection {
    opener: Arc<Opener>,
    /// The name of the server in errors while there is no connection.
    address: Address,
    location: Location,
    runtime: ConnectionRuntime,
    live: Mutex<Option<Live>>,
    /// Held by the one request that opens the connection.
    attempts: tokio::sync::Mutex<Attempts>,
    /// Whether it is opened again after a short pause, however often that failed.
    in_a_hurry: AtomicBool,
    /// How many `WAIT`s were begun, and the result of the last one.
    waits: AtomicU64,
    last_wait: tokio::sync::Mutex<Option<Waited>>,
}

/// The result of a `WAIT`.
struct Waited {
    number: u64,
    generation: Generation,
    replicas: i64,
}

/// The connection while there is one.
struct Live {
    open: Opened,
    generation: Generation,
}

/// An open connection.
struct Opened {
    driven: Driven,
    peer: Address,
    /// The runtime that owns it.
    runtime: Id,
}

/// The connection as a request uses it.
struct Current {
    connection: MultiplexedConnection,
    generation: Generation,
    runtime: Id,
}

impl Live {
    fn current(&self) -> Current {
        Current {
            connection: self.open.driven.connection.clone(),
            generation: self.generation,
            runtime: self.open.runtime,
        }
    }
}

/// The tries to open the connection so far.
struct Attempts {
    generation: Generation,
    backoff: Backoff,
    failed: Option<Failed>,
}

/// The last try failed; the next one is made after a pause.
struct Failed {
    at: Instant,
    pause: Duration,
    error: StoreError,
}

impl Connection {
    pub(crate) fn new(
        opener: &Arc<Opener>,
        address: &Address,
        location: Location,
        runtime: ConnectionRuntime,
    ) -> Self {
        let backoff = Backoff::new(SHORTEST_PAUSE, LONGEST_PAUSE);
        Self {
            opener: opener.clone(),
            address: address.clone(),
            location,
            runtime,
            live: Mutex::default(),
            attempts: tokio::sync::Mutex::new(Attempts { generation: 0, backoff, failed: None }),
            in_a_hurry: AtomicBool::new(false),
            waits: AtomicU64::new(0),
            last_wait: tokio::sync::Mutex::default(),
        }
    }

    fn live(&self) -> MutexGuard<'_, Option<Live>> {
        support::lock(&self.live)
    }

    /// The connection, if there is one that is not known to be broken.
    fn current(&self) -> Option<Current> {
        let live = self.live();
        Some(live.as_ref().filter(|live| !live.open.driven.has_ended())?.current())
    }

    /// The address that the connection goes to, while there is one.
    pub(crate) fn peer(&self) -> Option<Address> {
        self.live().as_ref().map(|live| live.open.peer.clone())
    }

    /// Opens the connection if there is none. If that fails, the next request tries again.
    pub(crate) async fn prepare(&self) {
        drop(self.connected().await);
    }

    /// The connection, which is opened if there is none.
    async fn connected(&self) -> Result<Current, StoreError> {
        if let Some(current) = self.current() {
            return Ok(current);
        }
        let mut attempts = self.attempts.lock().await;
        if let Some(current) = self.current() {
            return Ok(current);
        }
        if let Some(failed) =
            attempts.failed.as_ref().filter(|failed| failed.at.elapsed() < self.limited(failed.pause))
        {
            return Err(failed.error.clone());
        }
        match self.open(&mut attempts.generation).await {
            Ok(current) => {
                attempts.backoff.reset();
                attempts.failed = None;
                Ok(current)
            }
            Err(error) => {
                let (at, pause) = (Instant::now(), attempts.backoff.jittered());
                attempts.failed = Some(Failed { at, pause, error: error.clone() });
                Err(error)
            }
        }
    }

    /// A pause as long as it may be now.
    fn limited(&self, pause: Duration) -> Duration {
        if self.in_a_hurry.load(Ordering::Acquire) { pause.min(SHORTEST_PAUSE) } else { pause }
    }

    /// Opens the connection; again, if the master has moved meanwhile, or another runtime is to own it.
    async fn open(&self, generation: &mut Generation) -> Result<Current, StoreError> {
        loop {
            let open = self.open_on_runtime().await?;
            *generation += 1;
            let mut live = self.live();
            // Checked under the lock: a task that learns of another master or runtime later finds this connection in
            // its place.
            if self.location.is_at(&open.peer) && self.runtime.is_chosen(open.runtime) {
                return Ok(live.insert(Live { open, generation: *generation }).current());
            }
        }
    }

    async fn open_on_runtime(&self) -> Result<Opened, StoreError> {
        let open = || {
            let (opener, location) = (self.opener.clone(), self.location.clone());
            async move {
                let address = location.locate().await?;
                let mut driven = opener.for_requests(&address, None).await?;
                let named = matches!(location, Location::Sentinels(_));
                if named && is_replica(&mut driven.connection, opener.settings().connect_limit).await {
                    return Err(trouble::not_a_master(&address));
                }
                Ok(Opened { driven, peer: address, runtime: Handle::current().id() })
            }
        };
        // In a task of its own: the socket and its timers belong to the runtime that they are made in.
        self.runtime.run(open).await.unwrap_or_else(|| {
            let message = "the runtime that connects has ended; if this happens again, make a new keeper";
            Err(StoreError::new(StoreErrorKind::Unreachable, message).not_applied())
        })
    }

    /// The runtime of the caller may be blocked or gone: the keeper's runtime owns the connection from now on. Requests
    /// in flight on the old one fail. The process may end soon, so all pauses are short.
    pub(crate) fn leave_caller(&self) {
        self.in_a_hurry.store(true, Ordering::Release);
        if self.runtime.choose_keeper() {
            self.close();
        }
    }

    /// A request got no answer: the runtime that owns the connection may be blocked or gone.
    fn check_runtime(&self) {
        self.runtime.check(|| ());
    }

    /// Sends commands as one request and waits for all answers, at most until `until`.
    pub(crate) async fn send(
        &self,
        commands: Vec<Cmd>,
        until: Instant,
    ) -> Result<(Vec<Value>, Generation), StoreError> {
        let current = match self.current() {
            Some(current) => current,
            None => tokio::time::timeout_at(until.into(), self.connected()).await.map_err(|_| {
                self.check_runtime();
                trouble::too_late(&self.address.to_string()).not_applied()
            })??,
        };
        let generation = current.generation;
        Ok((self.exchange(current, commands, until).await?, generation))
    }

    /// Sends one command on the connection of this generation; `None` if it is gone.
    pub(crate) async fn send_on(
        &self,
        generation: Generation,
        command: Cmd,
        until: Instant,
    ) -> Result<Option<Value>, StoreError> {
        let Some(current) = self.current().filter(|current| current.generation == generation) else {
            return Ok(None);
        };
        Ok(self.exchange(current, vec![command], until).await?.pop())
    }

    async fn exchange(
        &self,
        current: Current,
        commands: Vec<Cmd>,
        until: Instant,
    ) -> Result<Vec<Value>, StoreError> {
        let count = commands.len();
        let address = || self.peer().unwrap_or_else(|| self.address.clone()).to_string();
        let answered = tokio::select! {
            biased;
            answered = self.in_time(send_packed(current.connection, commands), until) => answered,
            () = self.runtime.left(current.runtime) => {
                self.give_up(current.generation);
                return Err(trouble::caller_left(&address()));
            }
        };
        let error = match answered {
            Some(Ok(values)) if values.len() == count => return Ok(values),
            Some(Ok(_)) => trouble::nonsense("a wrong number of replies"),
            Some(Err(error)) => trouble::unanswered(&address(), error),
            None => trouble::too_late(&address()),
        };
        self.give_up(current.generation);
        Err(error)
    }

    /// Waits for an answer until this time. If it takes long, the runtime that owns the connection may be blocked or gone.
    async fn in_time<T>(&self, answer: impl Future<Output = T>, until: Instant) -> Option<T> {
        let mut answer = pin!(answer);
        let slow = until.min(Instant::now() + SLOW_AFTER);
        if let Ok(answered) = tokio::time::timeout_at(slow.into(), answer.as_mut()).await {
            return Some(answered);
        }
        self.check_runtime();
        tokio::time::timeout_at(until.into(), answer).await.ok()
    }

    /// Closes the connection of this generation: the next request opens a new one.
    pub(crate) fn give_up(&self, generation: Generation) {
        let ended = self.live().take_if(|live| live.generation == generation);
        drop(ended);
    }

    /// How many replicas have the writes of the connection of this generation; zero if it is gone. Callers that
    /// come during a `WAIT` share the next one.
    pub(crate) async fn replicas(
        &self,
        generation: Generation,
        wanted: u32,
        patience: Duration,
        until: Instant,
    ) -> Result<i64, StoreError> {
        let begun = self.waits.load(Ordering::Acquire);
        let mut last = self.last_wait.lock().await;
        // A WAIT that began after this call covers all that this caller has written.
        if let Some(last) = last.as_ref().filter(|last| last.number > begun && last.generation == generation)
        {
            return Ok(last.replicas);
        }
        let number = self.waits.fetch_add(1, Ordering::AcqRel) + 1;
        let mut wait = redis::cmd("WAIT");
        wait.arg(wanted).arg(patience.as_millis().max(1) as u64);
        let replicas = match self.send_on(generation, wait, until).await? {
            Some(Value::Int(replicas)) => replicas,
            // A WAIT on another connection would count nothing.
            _ => 0,
        };
        *last = Some(Waited { number, generation, replicas });
        Ok(replicas)
    }

    /// Closes the connection unless it goes to `master`.
    pub(crate) fn give_up_unless_at(&self, master: &Address) {
        let ended = self.live().take_if(|live| live.open.peer != *master);
        drop(ended);
    }

    /// Closes the connection.
    pub(crate) fn close(&self) {
        let ended = self.live().take();
        drop(ended);
    }
}

async fn send_packed(
    mut connection: MultiplexedConnection,
    mut commands: Vec<Cmd>,
) -> redis::RedisResult<Vec<Value>> {
    let count = commands.len();
    if count == 1
        && let Some(only) = commands.pop()
    {
        return connection.send_packed_command(&only).await.map(|value| vec![value]);
    }
    if count == 0 {
        return Ok(Vec::new());
    }
    let mut pipeline = Pipeline::with_capacity(count);
    for command in commands {
        pipeline.add_command(command);
    }
    connection.send_packed_commands(&pipeline, 0, count).await
}

/// Whether the server says that it is a replica. If this user may not ask, it counts as a master.
async fn is_replica(connection: &mut MultiplexedConnection, limit: Duration) -> bool {
    let role = redis::cmd("ROLE");
    let answer = tokio::time::timeout(limit, connection.send_packed_command(&role)).await;
    match answer.ok().and_then(Result::ok).map(checked) {
        Some(Ok(Value::Array(role))) => {
            matches!(role.first(), Some(Value::BulkString(role)) if role != b"master")
        }
        _ => false,
    }
}
