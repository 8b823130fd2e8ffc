//! One connection through the proxy: two pumps, one for each direction, that share its fate.

use std::{
    io,
    net::SocketAddr,
    sync::{Arc, Mutex},
};

use lockkeeper_core::support;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{
        TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
    sync::{Notify, watch},
    time::sleep,
};

use super::{Action, Conditions, Direction, Fault, Shared};

/// One connection, as seen from outside.
#[derive(Debug)]
pub(super) struct Connection {
    fault: Mutex<Option<Fault>>,
    cut: Notify,
}

/// The fate of a piece of data.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Passage {
    /// This many bytes get through.
    pass: usize,
    /// The action after them.
    then: Option<Action>,
}

impl Connection {
    pub(super) fn new(fault: Option<Fault>) -> Self {
        Self { fault: Mutex::new(fault), cut: Notify::new() }
    }

    pub(super) fn arm(&self, fault: Fault) {
        *support::lock(&self.fault) = Some(fault);
    }

    pub(super) fn cut(&self) {
        // One permit is kept for a task that does not wait yet.
        self.cut.notify_one();
    }

    /// Counts bytes in one direction, and says where they end.
    fn meet(&self, direction: Direction, bytes: usize) -> Passage {
        let mut fault = support::lock(&self.fault);
        match fault.as_mut() {
            Some(armed) if armed.direction == direction && armed.after < bytes as u64 => {
                let passage = Passage { pass: armed.after as usize, then: Some(armed.action) };
                *fault = None;
                passage
            }
            Some(armed) if armed.direction == direction => {
                armed.after -= bytes as u64;
                Passage { pass: bytes, then: None }
            }
            _ => Passage { pass: bytes, then: None },
        }
    }
}

/// Carries one connection until either side closes it or it is cut.
pub(super) async fn carry(
    client: TcpStream,
    server: SocketAddr,
    connection: Arc<Connection>,
    conditions: watch::Receiver<Conditions>,
    shared: Arc<Shared>,
) {
    let mut end = conditions.clone();
    tokio::select! {
        // A client whose server is not there is cut off.
        _ = join(client, server, &connection, &conditions, &shared) => {}
        () = connection.cut.notified() => {}
        _ = end.wait_for(|conditions| conditions.closed) => {}
    }
    shared.forget(&connection);
}

async fn join(
    client: TcpStream,
    server: SocketAddr,
    connection: &Connection,
    conditions: &watch::Receiver<Conditions>,
    shared: &Shared,
) -> io::Result<()> {
    let server = TcpStream::connect(server).await?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let ((from_client, to_client), (from_server, to_server)) = (client.into_split(), server.into_split());
    let there = pump(from_client, to_server, Direction::ToServer, connection, conditions.clone(), shared);
    let back = pump(from_server, to_client, Direction::ToClient, connection, conditions.clone(), shared);
    tokio::try_join!(there, back).map(drop)
}

/// Moves bytes in one direction to their end. A cut is an error, so that the other direction ends too.
async fn pump(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    direction: Direction,
    connection: &Connection,
    mut conditions: watch::Receiver<Conditions>,
    shared: &Shared,
) -> io::Result<()> {
    let mut buffer = vec![0; 64 << 10];
    let mut silent = false;
    loop {
        let bytes = from.read(&mut buffer).await?;
        let delay = conditions.borrow().delay;
        if !delay.is_zero() {
            sleep(delay).await;
        }
        drop(conditions.wait_for(|conditions| !conditions.paused || conditions.closed).await);
        if bytes == 0 {
            return to.shutdown().await;
        }
        if silent {
            continue;
        }
        let passage = connection.meet(direction, bytes);
        to.write_all(&buffer[..passage.pass]).await?;
        match passage.then {
            None => {}
            Some(Action::Swallow) => {
                silent = true;
                shared.strike();
            }
            Some(Action::Cut) => {
                shared.strike();
                return Err(io::ErrorKind::ConnectionAborted.into());
            }
        }
    }
}
