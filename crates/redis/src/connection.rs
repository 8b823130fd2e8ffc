//! One connection to one server, made when it is first needed and made anew after it broke.
//!
//! Nothing is ever sent twice from here. A connection that left a request unanswered is given up, because its
//! later replies could be taken for answers to other requests.

use lockkeeper_core::support;
use std::{
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use lockkeeper_core::{StoreError, StoreErrorKind};
use redis::{Cmd, Pipeline, Value, aio::MultiplexedConnection};
use tokio::task::JoinHandle;

use crate::{
    connect::{Opener, checked},
    runtime::ConnectionRuntime,
    sentinels::Sentinels,
    settings::Address,
    trouble,
};

/// After a connection could not be made, the next one waits this long, twice as long each time.
const SHORTEST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// Where a server is.
#[derive(Clone)]
pub(crate) enum Location {
    /// Always there.
    Fixed(Address),
    /// Where the sentinels say.
    Sentinels(Arc<Sentinels>),
}

impl Location {
    pub(crate) async fn locate(&self) -> Result<Address, StoreError> {
        match self {
            Self::Fixed(address) => Ok(address.clone()),
            Self::Sentinels(sentinels) => sentinels.locate().await,
        }
    }

    /// Whether a connection that goes to `place` may stay.
    fn is_at(&self, place: &Address) -> bool {
        match self {
            Self::Fixed(_) => true,
            Self::Sentinels(sentinels) => sentinels.is_at(place),
        }
    }
}

/// A connection to one server.
pub(crate) struct Connection {
    opener: Arc<Opener>,
    /// What it is called in messages while there is no connection.
    address: Address,
    location: Location,
    runtime: ConnectionRuntime,
    live: Mutex<Option<Live>>,
    dialling: tokio::sync::Mutex<Failures>,
    /// How many times replicas were waited for, and what the last time came to.
    waits: AtomicU64,
    waited: tokio::sync::Mutex<Option<Waited>>,
}

/// What waiting for replicas came to.
struct Waited {
    number: u64,
    generation: Generation,
    have: i64,
}

/// Which connection of a connection it was.
pub(crate) type Generation = u64;

struct Live {
    connection: MultiplexedConnection,
    driver: JoinHandle<()>,
    generation: Generation,
    at: Address,
}

impl Drop for Live {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

/// How connecting has gone so far.
#[derive(Default)]
struct Failures {
    generation: Generation,
    pause: Duration,
    last: Option<(Instant, StoreError)>,
}

impl Connection {
    pub(crate) fn new(
        opener: &Arc<Opener>,
        address: &Address,
        location: Location,
        runtime: ConnectionRuntime,
    ) -> Self {
        Self {
            opener: opener.clone(),
            address: address.clone(),
            location,
            runtime,
            live: Mutex::default(),
            dialling: tokio::sync::Mutex::default(),
            waits: AtomicU64::new(0),
            waited: tokio::sync::Mutex::default(),
        }
    }

    fn live(&self) -> MutexGuard<'_, Option<Live>> {
        support::lock(&self.live)
    }

    /// The connection, if there is one that is not known to be broken.
    fn current(&self) -> Option<(MultiplexedConnection, Generation)> {
        let live = self.live();
        // A runtime that ends takes its drivers along.
        let live = live.as_ref().filter(|live| !live.driver.is_finished())?;
        Some((live.connection.clone(), live.generation))
    }

    /// Where the connection goes to, while there is one.
    pub(crate) fn place(&self) -> Option<Address> {
        self.live().as_ref().map(|live| live.at.clone())
    }

    async fn connection(&self) -> Result<(MultiplexedConnection, Generation), StoreError> {
        if let Some(current) = self.current() {
            return Ok(current);
        }
        let mut failures = self.dialling.lock().await;
        if let Some(current) = self.current() {
            return Ok(current);
        }
        if let Some((when, error)) = &failures.last
            && when.elapsed() < failures.pause
        {
            return Err(error.clone());
        }
        let dialled = loop {
            match self.dial().await {
                Ok((connection, driver, at)) => {
                    failures.generation += 1;
                    let made = Live { connection, driver, generation: failures.generation, at };
                    let mut live = self.live();
                    // Looked at under the lock: whoever learns later that the master has moved finds it here.
                    if self.location.is_at(&made.at) {
                        let current = (made.connection.clone(), made.generation);
                        *live = Some(made);
                        break Ok(current);
                    }
                }
                Err(error) => break Err(error),
            }
        };
        match dialled {
            Ok(current) => {
                failures.pause = Duration::ZERO;
                failures.last = None;
                Ok(current)
            }
            Err(error) => {
                failures.pause = jittered((failures.pause * 2).clamp(SHORTEST_PAUSE, LONGEST_PAUSE));
                failures.last = Some((Instant::now(), error.clone()));
                Err(error)
            }
        }
    }

    async fn dial(&self) -> Result<(MultiplexedConnection, JoinHandle<()>, Address), StoreError> {
        let dial = || {
            let (opener, location) = (self.opener.clone(), self.location.clone());
            async move {
                let at = location.locate().await?;
                let (mut connection, driver) = opener.requests(&at, None).await?;
                if matches!(location, Location::Sentinels(_)) && is_replica(&mut connection, &opener).await {
                    driver.abort();
                    return Err(trouble::not_a_master(&at));
                }
                Ok((connection, driver, at))
            }
        };
        // As a task, since the socket and its timers must live in one runtime from the start.
        self.runtime.spawn(dial).await.unwrap_or_else(|_| {
            let message = "the runtime that connects has ended; if this happens again, connect anew";
            Err(StoreError::new(StoreErrorKind::Unreachable, message).not_applied())
        })
    }

    /// After a request without an answer, whose reason may be the runtime that the connection lives in.
    fn check_runtime(&self) {
        self.runtime.check_runtime(|| ());
    }

    /// Sends commands as one and waits for all answers, at most until `until`.
    pub(crate) async fn send(
        self: &Arc<Self>,
        commands: Vec<Cmd>,
        until: Instant,
    ) -> Result<(Vec<Value>, Generation), StoreError> {
        let (connection, generation) = match self.current() {
            Some(current) => current,
            None => tokio::time::timeout_at(until.into(), self.connection()).await.map_err(|_| {
                self.check_runtime();
                trouble::too_late(&self.address.to_string()).not_applied()
            })??,
        };
        Ok((self.exchange(connection, generation, commands, until).await?, generation))
    }

    /// Sends one command on the very connection that `generation` names; `None` if it is gone.
    pub(crate) async fn send_on(
        self: &Arc<Self>,
        generation: Generation,
        command: Cmd,
        until: Instant,
    ) -> Result<Option<Value>, StoreError> {
        let Some((connection, _)) = self.current().filter(|(_, current)| *current == generation) else {
            return Ok(None);
        };
        Ok(self.exchange(connection, generation, vec![command], until).await?.pop())
    }

    async fn exchange(
        self: &Arc<Self>,
        mut connection: MultiplexedConnection,
        generation: Generation,
        mut commands: Vec<Cmd>,
        until: Instant,
    ) -> Result<Vec<Value>, StoreError> {
        let count = commands.len();
        let exchange = async {
            match commands.pop() {
                Some(one) if count == 1 => {
                    connection.send_packed_command(&one).await.map(|value| vec![value])
                }
                Some(last) => {
                    let mut pipeline = Pipeline::with_capacity(count);
                    for command in commands {
                        pipeline.add_command(command);
                    }
                    pipeline.add_command(last);
                    connection.send_packed_commands(&pipeline, 0, count).await
                }
                None => Ok(Vec::new()),
            }
        };
        let address = || self.place().unwrap_or_else(|| self.address.clone()).to_string();
        let error = match tokio::time::timeout_at(until.into(), exchange).await {
            Ok(Ok(values)) if values.len() == count => return Ok(values),
            Ok(Ok(_)) => trouble::nonsense("a wrong number of replies"),
            Ok(Err(error)) => trouble::unanswered(&address(), error),
            Err(_) => {
                self.check_runtime();
                trouble::too_late(&address())
            }
        };
        self.give_up(generation);
        Err(error)
    }

    /// Ends the connection that `generation` names: the next request makes a new one.
    pub(crate) fn give_up(&self, generation: Generation) {
        let ended = self.live().take_if(|live| live.generation == generation);
        drop(ended);
    }

    /// How many replicas have what was written on the connection that `generation` names; zero if it is gone. Those who come
    /// while others wait share the next waiting.
    pub(crate) async fn replicas(
        self: &Arc<Self>,
        generation: Generation,
        wanted: u32,
        patience: Duration,
        until: Instant,
    ) -> Result<i64, StoreError> {
        let before = self.waits.load(Ordering::Acquire);
        let mut waited = self.waited.lock().await;
        // One that began after this one came, so it was for all that had been written by then.
        if let Some(waited) =
            waited.as_ref().filter(|waited| waited.number > before && waited.generation == generation)
        {
            return Ok(waited.have);
        }
        let number = self.waits.fetch_add(1, Ordering::AcqRel) + 1;
        let mut wait = redis::cmd("WAIT");
        wait.arg(wanted).arg(patience.as_millis().max(1) as u64);
        let have = match self.send_on(generation, wait, until).await? {
            Some(Value::Int(have)) => have,
            // WAIT on another connection would count nothing.
            _ => 0,
        };
        *waited = Some(Waited { number, generation, have });
        Ok(have)
    }

    /// Ends the connection if the master is elsewhere.
    pub(crate) fn give_up_unless_at(&self, place: &Address) {
        let ended = self.live().take_if(|live| live.at != *place);
        drop(ended);
    }

    /// Ends the connection, whichever it is.
    pub(crate) fn close(&self) {
        let ended = self.live().take();
        drop(ended);
    }
}

/// Whether the server says that it is a replica. Who may not ask takes it for a master.
async fn is_replica(connection: &mut MultiplexedConnection, opener: &Opener) -> bool {
    let role = redis::cmd("ROLE");
    let limit = opener.settings().connect_limit;
    let answer = tokio::time::timeout(limit, connection.send_packed_command(&role)).await;
    match answer.ok().and_then(Result::ok).map(checked) {
        Some(Ok(Value::Array(role))) => {
            matches!(role.first(), Some(Value::BulkString(role)) if role != b"master")
        }
        _ => false,
    }
}

/// Between half and all of `pause`, so that many clients do not come back at once.
pub(crate) fn jittered(pause: Duration) -> Duration {
    let dice = getrandom::u32().unwrap_or(u32::MAX / 2);
    pause / 2 + (pause / 2).mul_f64(f64::from(dice) / f64::from(u32::MAX))
}
