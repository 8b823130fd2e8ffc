//! One connection to one server, made when it is first needed and made anew after it broke.
//!
//! Nothing is ever sent twice from here. A connection that left a request unanswered is given up, because its
//! later replies could be taken for answers to other requests.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use lockkeeper_core::{StoreError, StoreErrorKind};
use redis::{Cmd, Pipeline, Value, aio::MultiplexedConnection};
use tokio::task::JoinHandle;

use crate::{dial::Dialler, home::Home, settings::Address, trouble};

/// After a connection could not be made, the next one waits this long, twice as long each time.
const SHORTEST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// A connection to one server.
pub(crate) struct Link {
    dialler: Arc<Dialler>,
    address: Address,
    home: Home,
    live: Mutex<Option<Live>>,
    dialling: tokio::sync::Mutex<Failures>,
}

/// Which connection of a link it was.
pub(crate) type Epoch = u64;

struct Live {
    connection: MultiplexedConnection,
    driver: JoinHandle<()>,
    epoch: Epoch,
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
    epoch: Epoch,
    pause: Duration,
    last: Option<(Instant, StoreError)>,
}

impl Link {
    pub(crate) fn new(dialler: &Arc<Dialler>, address: &Address, home: Home) -> Self {
        Self {
            dialler: dialler.clone(),
            address: address.clone(),
            home,
            live: Mutex::default(),
            dialling: tokio::sync::Mutex::default(),
        }
    }

    fn live(&self) -> MutexGuard<'_, Option<Live>> {
        self.live.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The connection, if there is one that is not known to be broken.
    fn current(&self) -> Option<(MultiplexedConnection, Epoch)> {
        let live = self.live();
        // A runtime that ends takes its drivers along.
        let live = live.as_ref().filter(|live| !live.driver.is_finished())?;
        Some((live.connection.clone(), live.epoch))
    }

    /// Where the connection goes to, while there is one.
    pub(crate) fn place(&self) -> Option<Address> {
        self.live().as_ref().map(|live| live.at.clone())
    }

    async fn connection(&self) -> Result<(MultiplexedConnection, Epoch), StoreError> {
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
        match self.dial().await {
            Ok((connection, driver, at)) => {
                failures.epoch += 1;
                failures.pause = Duration::ZERO;
                failures.last = None;
                let epoch = failures.epoch;
                *self.live() = Some(Live { connection: connection.clone(), driver, epoch, at });
                Ok((connection, epoch))
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
            let (dialler, address) = (self.dialler.clone(), self.address.clone());
            async move {
                let at = dialler.locate(&address).await?;
                let (connection, driver) = dialler.requests(&at, None).await?;
                Ok((connection, driver, at))
            }
        };
        // As a task, since the socket and its timers must live in one runtime from the start.
        self.home.spawn(dial).await.unwrap_or_else(|_| {
            let message = "the runtime that connects has ended; if this happens again, connect anew";
            Err(StoreError::new(StoreErrorKind::Unreachable, message).not_applied())
        })
    }

    /// After a request without an answer, whose reason may be the runtime that the connection lives in.
    fn see_whether_home_lives(&self) {
        self.home.see_whether_it_lives(|| ());
    }

    /// Sends commands as one and waits for all answers, at most until `until`.
    pub(crate) async fn send(
        self: &Arc<Self>,
        commands: Vec<Cmd>,
        until: Instant,
    ) -> Result<(Vec<Value>, Epoch), StoreError> {
        let (connection, epoch) = match self.current() {
            Some(current) => current,
            None => tokio::time::timeout_at(until.into(), self.connection()).await.map_err(|_| {
                self.see_whether_home_lives();
                trouble::too_late(&self.address.to_string()).not_applied()
            })??,
        };
        Ok((self.exchange(connection, epoch, commands, until).await?, epoch))
    }

    /// Sends one command on the very connection that `epoch` names; `None` if it is gone.
    pub(crate) async fn send_on(
        self: &Arc<Self>,
        epoch: Epoch,
        command: Cmd,
        until: Instant,
    ) -> Result<Option<Value>, StoreError> {
        let Some((connection, _)) = self.current().filter(|(_, current)| *current == epoch) else {
            return Ok(None);
        };
        Ok(self.exchange(connection, epoch, vec![command], until).await?.pop())
    }

    async fn exchange(
        self: &Arc<Self>,
        mut connection: MultiplexedConnection,
        epoch: Epoch,
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
                self.see_whether_home_lives();
                trouble::too_late(&address())
            }
        };
        self.give_up(epoch);
        Err(error)
    }

    /// Ends the connection that `epoch` names: the next request makes a new one.
    pub(crate) fn give_up(&self, epoch: Epoch) {
        let ended = self.live().take_if(|live| live.epoch == epoch);
        drop(ended);
    }

    /// Ends the connection, whichever it is.
    pub(crate) fn close(&self) {
        let ended = self.live().take();
        drop(ended);
    }
}

/// Between half and all of `pause`, so that many clients do not come back at once.
pub(crate) fn jittered(pause: Duration) -> Duration {
    let dice = getrandom::u32().unwrap_or(u32::MAX / 2);
    pause / 2 + (pause / 2).mul_f64(f64::from(dice) / f64::from(u32::MAX))
}
