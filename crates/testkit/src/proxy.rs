//! A bad network between client and server: a TCP proxy that cuts, swallows, delays, pauses and refuses, by script
//! or by seed.
//!
//! It never drops bytes in the middle of a stream, as no network does: after the first byte that is lost, all
//! later ones of that direction are lost too.

mod connection;

use std::{
    collections::VecDeque,
    io,
    net::{SocketAddr, TcpListener},
    sync::{Arc, Mutex, MutexGuard},
    thread::{self, JoinHandle},
    time::Duration,
};

use lockkeeper_core::support;
use tokio::{net, runtime, sync::watch, task::JoinSet};

use crate::{dice::Dice, port::Port};
use connection::Connection;

/// A direction of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Direction {
    /// Requests.
    ToServer,
    /// Replies and pushed messages.
    ToClient,
}

/// The fate of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Action {
    /// It is closed, in both directions.
    Cut,
    /// Nothing more gets through in this direction, and nobody is told.
    Swallow,
}

/// Something bad that happens to one connection, once.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fault {
    /// In which direction bytes are counted.
    pub direction: Direction,
    /// How many more bytes get through before.
    pub after: u64,
    /// The action that then follows, at the next byte.
    pub action: Action,
}

impl Fault {
    /// The connection is closed in place of the next reply: the request was heard, its answer is not.
    pub const LOST_REPLY: Self = Self { direction: Direction::ToClient, after: 0, action: Action::Cut };
    /// Replies vanish from now on, on a connection that looks well.
    pub const SILENCE: Self = Self { direction: Direction::ToClient, after: 0, action: Action::Swallow };
}

/// Faults by seed, for new connections.
#[derive(Clone, Debug)]
pub struct RandomFaults {
    /// The same dice, the same faults in the same order of connections.
    pub dice: Dice,
    /// How many connections of a thousand have a fault.
    pub per_mille: u64,
    /// How many bytes get through before it, at most.
    pub most: u64,
}

impl RandomFaults {
    fn next(&mut self) -> Option<Fault> {
        if !self.dice.chance(self.per_mille) {
            return None;
        }
        let direction = if self.dice.chance(500) { Direction::ToServer } else { Direction::ToClient };
        let action = if self.dice.chance(700) { Action::Cut } else { Action::Swallow };
        Some(Fault { direction, after: self.dice.below(self.most + 1), action })
    }
}

/// The conditions for all connections at the moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Conditions {
    refuses: bool,
    paused: bool,
    delay: Duration,
    closed: bool,
}

/// A proxy in front of one server. It listens until it is dropped.
#[derive(Debug)]
pub struct Proxy {
    port: Port,
    conditions: watch::Sender<Conditions>,
    shared: Arc<Shared>,
    /// Ended on drop.
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    struck: watch::Sender<u64>,
    server: Mutex<SocketAddr>,
}

#[derive(Debug, Default)]
struct State {
    next: VecDeque<Fault>,
    random_faults: Option<RandomFaults>,
    /// Each with how many had come until then.
    open: Vec<(u64, Arc<Connection>)>,
    accepted: u64,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        support::lock(&self.state)
    }

    fn server(&self) -> MutexGuard<'_, SocketAddr> {
        support::lock(&self.server)
    }
}

impl Proxy {
    /// A proxy in front of `server`, without any faults so far.
    ///
    /// # Errors
    /// If there is no port or no thread for it.
    pub fn start(server: SocketAddr) -> io::Result<Self> {
        let port = Port::free()?;
        let listener = TcpListener::bind(port.address())?;
        let (conditions, receiver) = watch::channel(Conditions::default());
        let (state, struck) = (Mutex::default(), watch::Sender::default());
        let shared = Arc::new(Shared { state, struck, server: Mutex::new(server) });
        let runtime = runtime::Builder::new_current_thread().enable_all().build()?;
        // A thread of its own: a test that blocks, or its paused clock, must not stop the proxy.
        let thread = thread::Builder::new().name("proxy".to_owned()).spawn({
            let shared = shared.clone();
            move || runtime.block_on(listen(listener, receiver, &shared))
        })?;
        Ok(Self { port, conditions, shared, thread: Some(thread) })
    }

    /// The address that clients connect to.
    pub fn address(&self) -> SocketAddr {
        self.port.address()
    }

    /// The next new connection that has no fault yet gets this one.
    pub fn next(&self, fault: Fault) {
        self.shared.state().next.push_back(fault);
    }

    /// Gives every open connection this fault, counted from now.
    pub fn now(&self, fault: Fault) {
        self.now_after(0, fault);
    }

    /// Gives every open connection that came after the first `others` this fault, counted from now. So connections of
    /// servers among each other can be left in peace.
    pub fn now_after(&self, others: u64, fault: Fault) {
        for (_, connection) in self.shared.state().open.iter().filter(|(number, _)| *number > others) {
            connection.arm(fault);
        }
    }

    /// Gives new connections these random faults from now on, or none.
    pub fn random_faults(&self, random_faults: Option<RandomFaults>) {
        self.shared.state().random_faults = random_faults;
    }

    /// Closes all connections; new ones are welcome.
    pub fn cut_all(&self) {
        for (_, connection) in &self.shared.state().open {
            connection.cut();
        }
    }

    /// Leads new connections to another server, as if a name had got another address.
    pub fn lead_to(&self, server: SocketAddr) {
        *self.shared.server() = server;
    }

    /// Whether new connections are refused. Open ones stay.
    pub fn refuse(&self, refuses: bool) {
        self.conditions.send_modify(|conditions| conditions.refuses = refuses);
    }

    /// Whether all bytes are held back, in both directions. Nothing is lost.
    pub fn pause(&self, paused: bool) {
        self.conditions.send_modify(|conditions| conditions.paused = paused);
    }

    /// How long bytes take, in each direction.
    pub fn delay(&self, delay: Duration) {
        self.conditions.send_modify(|conditions| conditions.delay = delay);
    }

    /// How many connections there were so far.
    pub fn accepted(&self) -> u64 {
        self.shared.state().accepted
    }

    /// How many are open.
    pub fn open(&self) -> usize {
        self.shared.state().open.len()
    }

    /// How many faults have happened so far.
    pub fn struck(&self) -> u64 {
        *self.shared.struck.borrow()
    }

    /// Waits until this many faults have happened.
    pub async fn until_struck(&self, count: u64) {
        let mut struck = self.shared.struck.subscribe();
        // It cannot fail: the sender is ours.
        drop(struck.wait_for(|now| *now >= count).await);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.conditions.send_modify(|conditions| conditions.closed = true);
        if let Some(thread) = self.thread.take() {
            // A panic of the thread has been printed.
            drop(thread.join());
        }
    }
}

/// Takes connections until the proxy is closed; while it refuses, nobody listens on the port.
async fn listen(listener: TcpListener, mut conditions: watch::Receiver<Conditions>, shared: &Arc<Shared>) {
    let Ok(address) = listener.local_addr() else { return };
    let mut listener = Some(listener);
    let mut connections = JoinSet::new();
    while !conditions.borrow().closed {
        if conditions.borrow().refuses {
            drop(listener.take());
            if conditions.wait_for(|conditions| !conditions.refuses || conditions.closed).await.is_err() {
                return;
            }
            continue;
        }
        let open = match listener.take() {
            Some(open) => open,
            None => match TcpListener::bind(address) {
                Ok(open) => open,
                Err(error) => panic!("the port of a proxy was taken while it refused: {error}"),
            },
        };
        let Ok(open) = open.set_nonblocking(true).and_then(|()| net::TcpListener::from_std(open)) else {
            return;
        };
        loop {
            let accepted = tokio::select! {
                accepted = open.accept() => accepted,
                changed = conditions.wait_for(|conditions| conditions.refuses || conditions.closed) => {
                    if changed.is_err() {
                        return;
                    }
                    break;
                }
                // Ended ones are forgotten.
                Some(_) = connections.join_next() => continue,
            };
            let Ok((client, _)) = accepted else { continue };
            let (connection, server) = (shared.admit(), *shared.server());
            // A test that refuses and then cuts all connections means this one too, which may have come between.
            if conditions.borrow().refuses {
                connection.cut();
            }
            connections.spawn(connection::carry(
                client,
                server,
                connection,
                conditions.clone(),
                shared.clone(),
            ));
        }
    }
}

impl Shared {
    /// A new connection, with its fault if it gets one.
    fn admit(&self) -> Arc<Connection> {
        let mut state = self.state();
        state.accepted += 1;
        let scripted = state.next.pop_front();
        let fault = scripted.or_else(|| state.random_faults.as_mut().and_then(RandomFaults::next));
        let connection = Arc::new(Connection::new(fault));
        let number = state.accepted;
        state.open.push((number, connection.clone()));
        connection
    }

    fn forget(&self, connection: &Arc<Connection>) {
        self.state().open.retain(|(_, open)| !Arc::ptr_eq(open, connection));
    }

    fn strike(&self) {
        self.struck.send_modify(|struck| *struck += 1);
    }
}

#[cfg(test)]
mod tests;
