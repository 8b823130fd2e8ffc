//! Which server keeps what, and how calls get there: one server, the master behind sentinels, or the nodes of a
//! cluster, whose redirections are followed because a redirected call has done nothing.

use std::{
    sync::{
        Arc, PoisonError, RwLock, Weak,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use lockkeeper_core::{StoreError, StoreErrorKind};
use redis::{Cmd, ServerError, Value};
use tokio::{runtime::Handle, sync::watch};

use crate::{
    dial::{Dialler, checked},
    home::Home,
    keys::SLOTS,
    link::{Epoch, Link},
    scripts::Call,
    settings::{Address, Shape},
    trouble,
};

/// How often one call may be sent on at once before that is reported: a slot that moves to and fro. With a pause in
/// between, only the time limit ends it.
const ROUNDS: usize = 64;
/// How long a call waits for a slot on the move before it is tried again.
const SLOT_PAUSE: Duration = Duration::from_millis(20);

/// One server: a connection for requests, and one on the keeper's thread for what must not wait behind them.
pub(crate) struct Server {
    pub(crate) address: Address,
    main: Arc<Link>,
    reserved: Arc<Link>,
}

/// Which connection to take.
#[derive(Clone, Copy)]
pub(crate) enum Lane {
    Main,
    Reserved,
}

impl Server {
    pub(crate) fn link(&self, lane: Lane) -> &Arc<Link> {
        match lane {
            Lane::Main => &self.main,
            Lane::Reserved => &self.reserved,
        }
    }
}

/// The servers, and in a cluster which of them keeps which slot.
#[derive(Clone, Default)]
pub(crate) struct Map {
    pub(crate) servers: Vec<Arc<Server>>,
    slots: Vec<u16>,
}

/// How long a cluster that did not say who keeps what is left alone.
const REFRESH_PAUSE: Duration = Duration::from_millis(100);

impl Map {
    /// The servers that keep anything: a node may have become a replica, or be gone.
    pub(crate) fn in_use(&self) -> Vec<Arc<Server>> {
        if self.slots.is_empty() {
            return self.servers.clone();
        }
        let used: std::collections::BTreeSet<u16> = self.slots.iter().copied().collect();
        used.into_iter().map(|index| self.servers[usize::from(index)].clone()).collect()
    }

    /// The number of the server that keeps `slot`.
    pub(crate) fn index(&self, slot: usize) -> usize {
        self.slots.get(slot).map_or(0, |server| usize::from(*server))
    }
}

/// All servers of a store.
pub(crate) struct Fleet {
    pub(crate) dialler: Arc<Dialler>,
    /// The keeper's thread.
    keeper: Handle,
    /// The runtime that the keeper was made in, which is mostly the one that waits for answers.
    caller: Handle,
    pub(crate) limit: Duration,
    map: RwLock<Arc<Map>>,
    /// Counts changes of the map.
    pub(crate) changes: watch::Sender<u64>,
    /// Whether the cluster is being asked who keeps what.
    refreshing: AtomicBool,
    me: Weak<Self>,
    nonce: AtomicU64,
}

/// The answer to a call, and where it was given.
pub(crate) struct Answered {
    /// The reply's words, without the nonce.
    pub(crate) words: String,
    /// What came with it, if the script gives more than words.
    pub(crate) more: Value,
    pub(crate) server: Arc<Server>,
    pub(crate) epoch: Epoch,
}

/// Calls that are being made.
struct Run<'a> {
    lane: Lane,
    calls: &'a [Call<'a>],
    until: Instant,
    results: Vec<Option<Result<Answered, StoreError>>>,
    /// Calls that have done nothing and may be sent on, each with the reason.
    again: Vec<(Try, ServerError)>,
}

/// A call on its way.
struct Try {
    call: usize,
    server: Arc<Server>,
    whole: bool,
    asking: bool,
}

impl Fleet {
    /// Finds the servers; makes no connection that it does not need for that.
    pub(crate) async fn find(
        dialler: Arc<Dialler>,
        keeper: Handle,
        limit: Duration,
    ) -> Result<Arc<Self>, StoreError> {
        let fleet = Arc::new_cyclic(|me| Self {
            dialler,
            keeper,
            caller: Handle::current(),
            limit,
            map: RwLock::default(),
            changes: watch::channel(0).0,
            refreshing: AtomicBool::new(false),
            me: me.clone(),
            nonce: AtomicU64::new(1),
        });
        let seeds = match &fleet.dialler.settings().shape {
            Shape::Single(address) => vec![address.clone()],
            Shape::Sentinel(sentinels, _) => sentinels[..1].to_vec(),
            Shape::Cluster(nodes) => nodes.clone(),
        };
        let servers = seeds.iter().map(|seed| fleet.server(seed)).collect();
        fleet.replace(|_| Ok::<_, StoreError>(Map { servers, ..Map::default() }))?;
        if fleet.is_cluster() {
            fleet.refresh().await?;
        }
        Ok(fleet)
    }

    /// A home for one more connection.
    pub(crate) fn home(&self) -> Home {
        Home::new(&self.caller, &self.keeper)
    }

    pub(crate) fn is_cluster(&self) -> bool {
        matches!(self.dialler.settings().shape, Shape::Cluster(_))
    }

    fn server(&self, address: &Address) -> Arc<Server> {
        Arc::new(Server {
            address: address.clone(),
            main: Arc::new(Link::new(&self.dialler, address, self.home())),
            reserved: Arc::new(Link::new(&self.dialler, address, Home::new(&self.keeper, &self.keeper))),
        })
    }

    pub(crate) fn map(&self) -> Arc<Map> {
        self.map.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Puts another map in the place of the one that is there now.
    fn replace<E>(&self, change: impl FnOnce(&Map) -> Result<Map, E>) -> Result<(), E> {
        let mut map = self.map.write().unwrap_or_else(PoisonError::into_inner);
        *map = Arc::new(change(&map)?);
        drop(map);
        self.changes.send_modify(|changes| *changes += 1);
        Ok(())
    }

    pub(crate) fn until(&self) -> Instant {
        Instant::now() + self.limit
    }

    /// Learns from any node which node keeps what. Known servers keep their numbers.
    async fn refresh(&self) -> Result<(), StoreError> {
        let mut ask = redis::cmd("CLUSTER");
        ask.arg("SLOTS");
        let mut last = trouble::config("the URL names no node");
        for server in &self.map().servers {
            let told = self.ask_aside(server, &ask).await;
            match told.and_then(|told| self.replace(|before| self.read_slots(before, server, &told))) {
                Ok(()) => return Ok(()),
                Err(error) => last = error,
            }
        }
        Err(last.not_applied())
    }

    /// Asks on a connection of its own: one that is given up early breaks no request.
    async fn ask_aside(&self, server: &Server, command: &Cmd) -> Result<Value, StoreError> {
        let (mut connection, driver) = self.dialler.requests(&server.address, None).await?;
        let answer = tokio::time::timeout(self.limit / 2, connection.send_packed_command(command)).await;
        driver.abort();
        let address = server.address.to_string();
        let answer = answer.map_err(|_| trouble::too_late(&address))?;
        checked(answer.map_err(|error| trouble::unanswered(&address, error))?)
            .map_err(|error| trouble::refused(&error))
    }

    fn read_slots(&self, before: &Map, from: &Server, told: &Value) -> Result<Map, StoreError> {
        let mut map = Map { servers: before.servers.clone(), slots: vec![0; SLOTS] };
        let nonsense = || trouble::nonsense("slots");
        let number = |value: &Value| match value {
            Value::Int(number) => usize::try_from(*number).map_err(|_| nonsense()),
            _ => Err(nonsense()),
        };
        let Value::Array(ranges) = told else { return Err(nonsense()) };
        if ranges.is_empty() {
            return Err(StoreError::new(
                StoreErrorKind::Unreachable,
                "the cluster has no slots yet; make it with `redis-cli --cluster create`",
            ));
        }
        for range in ranges {
            let Value::Array(range) = range else { return Err(nonsense()) };
            let [first, last, Value::Array(master), ..] = &range[..] else { return Err(nonsense()) };
            let [host, port, ..] = &master[..] else { return Err(nonsense()) };
            let host = match host {
                Value::BulkString(host) if !host.is_empty() => String::from_utf8_lossy(host).into_owned(),
                // The node does not know its own name: it is the one that was asked.
                _ => match &from.address {
                    Address::Tcp(host, _) => host.to_string(),
                    Address::Unix(_) => return Err(nonsense()),
                },
            };
            let port = u16::try_from(number(port)?).map_err(|_| nonsense())?;
            let index = self.index_of(&mut map, &Address::Tcp(host.into(), port));
            let range = number(first)?..=number(last)?;
            map.slots
                .get_mut(range)
                .ok_or_else(nonsense)?
                .fill(u16::try_from(index).map_err(|_| nonsense())?);
        }
        Ok(map)
    }

    fn index_of(&self, map: &mut Map, address: &Address) -> usize {
        map.servers.iter().position(|server| server.address == *address).unwrap_or_else(|| {
            map.servers.push(self.server(address));
            map.servers.len() - 1
        })
    }

    /// The server that a redirection names.
    fn redirected(&self, error: &ServerError) -> Option<Arc<Server>> {
        let (_, place) = error.details()?.split_once(' ')?;
        let (host, port) = place.rsplit_once(':')?;
        let address = Address::Tcp(host.trim_matches(['[', ']']).into(), port.parse().ok()?);
        let known = |map: &Map| map.servers.iter().find(|server| server.address == address).cloned();
        known(&self.map()).or_else(|| {
            let add = |before: &Map| {
                let mut map = before.clone();
                self.index_of(&mut map, &address);
                Ok::<_, StoreError>(map)
            };
            self.replace(add).ok()?;
            known(&self.map())
        })
    }

    /// Calls scripts, each on the server that keeps its slot; those for one server go out as one request.
    pub(crate) async fn run(&self, lane: Lane, calls: &[Call<'_>]) -> Vec<Result<Answered, StoreError>> {
        let results = calls.iter().map(|_| None).collect();
        let mut run = Run { lane, calls, until: self.until(), results, again: Vec::new() };
        let map = self.map();
        let first = |(call, of): (usize, &Call<'_>)| {
            let server = map.servers[map.index(of.slot)].clone();
            Try { call, server, whole: false, asking: false }
        };
        let mut tries: Vec<Try> = calls.iter().enumerate().map(first).collect();
        let mut rounds = 0;
        while rounds < ROUNDS {
            while let Some(server) = tries.first().map(|first| first.server.clone()) {
                let elsewhere = |of: &mut Try| !Arc::ptr_eq(&of.server, &server);
                let rest = tries.extract_if(.., elsewhere).collect();
                self.round(&mut run, &server, std::mem::replace(&mut tries, rest)).await;
            }
            let mut pause = false;
            for (of, error) in std::mem::take(&mut run.again) {
                let call = of.call;
                // What the outcome is if this was the last round.
                run.results[call] = Some(Err(trouble::refused(&error)));
                // A renewal is asked for again by itself, and must not keep others waiting.
                let half_moved = trouble::is_half_moved(&error);
                let given_up = half_moved && matches!(lane, Lane::Reserved);
                if !given_up && Instant::now() + SLOT_PAUSE < run.until {
                    pause |= half_moved;
                    tries.extend(self.next_try(of, &error));
                }
            }
            if tries.is_empty() {
                break;
            }
            if pause {
                tokio::time::sleep(SLOT_PAUSE).await;
            } else {
                rounds += 1;
            }
        }
        let none = || Err(trouble::nonsense("no answer"));
        run.results.into_iter().map(|result| result.unwrap_or_else(none)).collect()
    }

    /// Where a call that has done nothing goes next.
    fn next_try(&self, of: Try, error: &ServerError) -> Option<Try> {
        match error.code() {
            "NOSCRIPT" => Some(Try { whole: true, ..of }),
            "MOVED" => {
                self.look_again();
                Some(Try { server: self.redirected(error)?, asking: false, ..of })
            }
            "ASK" => Some(Try { server: self.redirected(error)?, asking: true, whole: true, ..of }),
            _ => Some(of),
        }
    }

    /// One request to one server.
    async fn round(&self, run: &mut Run<'_>, server: &Arc<Server>, tries: Vec<Try>) {
        let mut commands: Vec<Cmd> = Vec::with_capacity(tries.len());
        let nonce = self.nonce.fetch_add(tries.len() as u64, Ordering::Relaxed);
        for (of, nonce) in tries.iter().zip(nonce..) {
            if of.asking {
                commands.push(redis::cmd("ASKING"));
            }
            commands.push(run.calls[of.call].command(of.whole, nonce));
        }
        let link = server.link(run.lane);
        let (values, epoch) = match link.send(commands, run.until).await {
            Ok(answered) => answered,
            Err(error) => {
                self.look_again();
                for of in tries {
                    run.results[of.call] = Some(Err(error.clone()));
                }
                return;
            }
        };
        let mut values = values.into_iter();
        for (of, nonce) in tries.into_iter().zip(nonce..) {
            if of.asking {
                values.next();
            }
            run.results[of.call] = Some(match values.next().map(checked) {
                Some(Ok(value)) => match answer_to(nonce, value) {
                    Some((words, more)) => Ok(Answered { words, more, server: server.clone(), epoch }),
                    None => {
                        link.give_up(epoch);
                        Err(trouble::nonsense("the reply to another request"))
                    }
                },
                Some(Err(error))
                    if matches!(error.code(), "NOSCRIPT" | "MOVED" | "ASK")
                        || trouble::is_half_moved(&error) =>
                {
                    run.again.push((of, error));
                    continue;
                }
                Some(Err(error)) => {
                    // The next request looks for the master anew, or logs in again.
                    if matches!(error.code(), "READONLY" | "MASTERDOWN" | "NOAUTH" | "CLUSTERDOWN") {
                        self.look_again();
                        link.give_up(epoch);
                    }
                    Err(trouble::refused(&error))
                }
                None => Err(trouble::nonsense("no answer")),
            });
        }
    }

    /// A server is not what it was: learn the cluster anew, aside from all requests, so that a dead node delays
    /// nothing on another; and let the listeners see where the master is.
    pub(crate) fn look_again(&self) {
        if !self.is_cluster() {
            self.changes.send_modify(|changes| *changes += 1);
            return;
        }
        let Some(fleet) = self.me.upgrade() else { return };
        if self.refreshing.swap(true, Ordering::Relaxed) {
            return;
        }
        self.keeper.spawn(async move {
            if fleet.refresh().await.is_err() {
                // Whoever meets the trouble again asks again.
                tokio::time::sleep(REFRESH_PAUSE).await;
            }
            fleet.refreshing.store(false, Ordering::Relaxed);
        });
    }

    /// Calls one script.
    pub(crate) async fn run_one(&self, lane: Lane, call: Call<'_>) -> Result<Answered, StoreError> {
        self.run(lane, &[call]).await.pop().unwrap_or_else(|| Err(trouble::nonsense("no answer")))
    }

    /// Sends one plain command, and refuses an answer that is an error.
    pub(crate) async fn ask(&self, lane: Lane, server: &Server, command: Cmd) -> Result<Value, StoreError> {
        let sent = server.link(lane).send(vec![command], self.until()).await;
        let (mut values, epoch) = sent.inspect_err(|_| self.look_again())?;
        let value = values.pop().ok_or_else(|| trouble::nonsense("no answer"))?;
        checked(value).map_err(|error| {
            if matches!(error.code(), "MOVED" | "ASK" | "READONLY" | "CLUSTERDOWN") {
                self.look_again();
                server.link(lane).give_up(epoch);
            }
            trouble::refused(&error)
        })
    }

    pub(crate) fn close(&self) {
        for server in &self.map().servers {
            server.main.close();
            server.reserved.close();
        }
    }
}

/// The reply to the request with this nonce, without it; `None` if it is the reply to another one.
fn answer_to(nonce: u64, value: Value) -> Option<(String, Value)> {
    let (words, more) = match value {
        Value::BulkString(words) => (words, Value::Nil),
        Value::Array(both) => match <[Value; 2]>::try_from(both) {
            Ok([Value::BulkString(words), more]) => (words, more),
            _ => return None,
        },
        _ => return None,
    };
    let mut words = String::from_utf8(words).ok()?;
    let (first, _) = words.split_once(' ')?;
    if first.parse() != Ok(nonce) {
        return None;
    }
    words.drain(..=first.len());
    Some((words, more))
}
