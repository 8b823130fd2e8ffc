//! Which server keeps what, and how calls get there: one server, the master behind sentinels, or the nodes of a
//! cluster, whose redirections are followed because a redirected call has done nothing.

use std::{
    sync::{
        Arc, PoisonError, RwLock, Weak,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use lockkeeper_core::{ContenderId, StoreError};
use redis::{Cmd, Pipeline, ServerError, Value};
use tokio::{runtime::Handle, sync::watch, task::JoinSet};

use crate::{
    connect::{Opener, checked},
    connection::{Connection, Generation, Location},
    layout::SLOTS,
    runtime::ConnectionRuntime,
    scripts::{Call, Script},
    sentinels::Sentinels,
    settings::{Address, Shape},
    slots::{self, View},
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
    pub(crate) location: Location,
    /// Its own for ever: a server that comes back is another one.
    pub(crate) number: usize,
    main: Arc<Connection>,
    reserved: Arc<Connection>,
}

/// Which connection to take.
#[derive(Clone, Copy)]
pub(crate) enum Priority {
    Normal,
    Urgent,
}

impl Server {
    pub(crate) fn connection(&self, priority: Priority) -> &Arc<Connection> {
        match priority {
            Priority::Normal => &self.main,
            Priority::Urgent => &self.reserved,
        }
    }
}

/// The servers, and in a cluster which of them keeps which slot. A server that keeps none any more is left out, and its
/// connections end with the last request that uses them.
#[derive(Clone, Default)]
pub(crate) struct Map {
    servers: Vec<Arc<Server>>,
    slots: Vec<u16>,
    /// All nodes of the cluster that are known, any of which can be asked.
    nodes: Vec<Address>,
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

    /// The server that keeps `slot`.
    pub(crate) fn of(&self, slot: usize) -> &Arc<Server> {
        &self.servers[self.slots.get(slot).map_or(0, |server| usize::from(*server))]
    }

    /// Whether the server is still one of them.
    pub(crate) fn has(&self, server: &Server) -> bool {
        self.servers.iter().any(|other| other.number == server.number)
    }

    fn at(&self, address: &Address) -> Option<&Arc<Server>> {
        self.servers.iter().find(|server| server.address == *address)
    }
}

/// All servers of a store.
pub(crate) struct Servers {
    pub(crate) opener: Arc<Opener>,
    /// Those that say where the master is, if that is how it is found.
    pub(crate) sentinels: Option<Arc<Sentinels>>,
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
    /// The number of the next server.
    next: AtomicUsize,
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
    pub(crate) generation: Generation,
}

/// Calls that are being made.
struct Run<'a> {
    priority: Priority,
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
    /// Whether the script must be loaded before.
    load: bool,
    asking: bool,
}

impl Servers {
    /// Finds the servers; makes no connection that it does not need for that.
    pub(crate) async fn find(
        opener: Arc<Opener>,
        keeper: Handle,
        limit: Duration,
    ) -> Result<Arc<Self>, StoreError> {
        let sentinels = match &opener.settings().shape {
            Shape::Sentinel(addresses, name) => Some(Sentinels::new(&opener, addresses, name, &keeper)),
            _ => None,
        };
        let servers = Arc::new_cyclic(|me| Self {
            opener,
            sentinels,
            keeper,
            caller: Handle::current(),
            limit,
            map: RwLock::default(),
            changes: watch::channel(0).0,
            refreshing: AtomicBool::new(false),
            next: AtomicUsize::new(0),
            me: me.clone(),
            nonce: AtomicU64::new(1),
        });
        let only = match &servers.opener.settings().shape {
            Shape::Single(address) => address,
            Shape::Sentinel(sentinels, _) => &sentinels[0],
            Shape::Cluster(_) => {
                servers.refresh().await?;
                return Ok(servers);
            }
        };
        let only = vec![servers.server(only)];
        servers.replace(|_| Some(Map { servers: only, ..Map::default() }));
        Ok(servers)
    }

    /// A runtime for one more connection.
    pub(crate) fn runtime(&self) -> ConnectionRuntime {
        ConnectionRuntime::new(&self.caller, &self.keeper)
    }

    pub(crate) fn is_cluster(&self) -> bool {
        matches!(self.opener.settings().shape, Shape::Cluster(_))
    }

    fn server(&self, address: &Address) -> Arc<Server> {
        let location = match &self.sentinels {
            Some(sentinels) => Location::Sentinels(sentinels.clone()),
            None => Location::Fixed(address.clone()),
        };
        let connection =
            |runtime| Arc::new(Connection::new(&self.opener, address, location.clone(), runtime));
        let (main, reserved) =
            (connection(self.runtime()), connection(ConnectionRuntime::new(&self.keeper, &self.keeper)));
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        Arc::new(Server { address: address.clone(), location, number, main, reserved })
    }

    pub(crate) fn map(&self) -> Arc<Map> {
        self.map.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Puts another map in the place of the one that is there now, unless that is as good.
    fn replace(&self, change: impl FnOnce(&Map) -> Option<Map>) {
        let mut map = self.map.write().unwrap_or_else(PoisonError::into_inner);
        let Some(new) = change(&map) else { return };
        let old = std::mem::replace(&mut *map, Arc::new(new));
        drop(map);
        // Outside of the lock: with it, connections may end.
        drop(old);
        self.changes.send_modify(|changes| *changes += 1);
    }

    pub(crate) fn until(&self) -> Instant {
        Instant::now() + self.limit
    }

    /// Learns which node keeps what: from more than half of the nodes that are known, if so many answer.
    async fn refresh(&self) -> Result<(), StoreError> {
        let mut nodes = self.map().nodes.clone();
        if let Shape::Cluster(named) = &self.opener.settings().shape {
            nodes.extend(named.iter().filter(|node| !self.map().nodes.contains(node)).cloned());
        }
        let mut asked = JoinSet::new();
        for node in &nodes {
            asked.spawn(view(self.opener.clone(), node.clone(), self.limit / 2));
        }
        let (mut views, mut last) = (Vec::new(), trouble::config("the URL names no node"));
        while let Some(told) = asked.join_next().await {
            match told {
                Ok(Ok(view)) => views.push(view),
                Ok(Err(error)) => last = error,
                // Its runtime has ended.
                Err(_) => {}
            }
            if 2 * views.len() > nodes.len() {
                break;
            }
        }
        let believed = slots::believed(views).ok_or_else(|| last.not_applied())?;
        self.replace(|before| self.redrawn(before, believed));
        Ok(())
    }

    /// The map as a node sees it, if that is another one. Servers that are known stay as they are.
    fn redrawn(&self, before: &Map, view: View) -> Option<Map> {
        let mut map = Map { servers: Vec::new(), slots: vec![0; SLOTS], nodes: view.nodes };
        for (first, last, address) in view.ranges {
            let known = map.servers.iter().position(|server| server.address == address);
            let index = known.unwrap_or_else(|| {
                map.servers.push(before.at(&address).cloned().unwrap_or_else(|| self.server(&address)));
                map.servers.len() - 1
            });
            // There are no more servers than slots.
            map.slots[first..=last].fill(index as u16);
        }
        let numbers = |map: &Map| map.servers.iter().map(|server| server.number).collect::<Vec<_>>();
        let same = numbers(&map) == numbers(before) && map.slots == before.slots && map.nodes == before.nodes;
        (!same).then_some(map)
    }

    /// The server that a redirection from `asked` names.
    fn redirected(&self, error: &ServerError, asked: &Server) -> Option<Arc<Server>> {
        let (_, place) = error.details()?.split_once(' ')?;
        let (host, port) = place.rsplit_once(':')?;
        let address = slots::at_host(&asked.address, host.trim_matches(['[', ']']), port.parse().ok()?)?;
        if let Some(known) = self.map().at(&address) {
            return Some(known.clone());
        }
        self.replace(|before| {
            let mut map = before.clone();
            map.servers.push(self.server(&address));
            // Another call may have been sent there at the same time.
            before.at(&address).is_none().then_some(map)
        });
        self.map().at(&address).cloned()
    }

    /// Calls scripts, each on the server that keeps its slot; those for one server go out as one request.
    pub(crate) async fn run(
        &self,
        priority: Priority,
        calls: &[Call<'_>],
    ) -> Vec<Result<Answered, StoreError>> {
        let results = calls.iter().map(|_| None).collect();
        let mut run = Run { priority, calls, until: self.until(), results, again: Vec::new() };
        let map = self.map();
        let first = |(call, of): (usize, &Call<'_>)| Try {
            call,
            server: map.of(of.slot).clone(),
            load: false,
            asking: false,
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
                run.results[call] = Some(Err(self.refused(&error)));
                // A renewal is asked for again by itself, and must not keep others waiting.
                let half_moved = trouble::is_half_moved(&error);
                let given_up = half_moved && matches!(priority, Priority::Urgent);
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

    /// What a server that refused says.
    fn refused(&self, error: &ServerError) -> StoreError {
        if !self.is_cluster()
            && matches!(error.code(), "MOVED" | "ASK" | "TRYAGAIN" | "CROSSSLOT" | "CLUSTERDOWN")
        {
            return trouble::part_of_a_cluster(error);
        }
        trouble::refused(error)
    }

    /// Where a call that has done nothing goes next.
    fn next_try(&self, of: Try, error: &ServerError) -> Option<Try> {
        match error.code() {
            "NOSCRIPT" => Some(Try { load: true, ..of }),
            _ if !self.is_cluster() => None,
            "MOVED" => {
                self.look_again();
                Some(Try { server: self.redirected(error, &of.server)?, asking: false, ..of })
            }
            "ASK" => Some(Try { server: self.redirected(error, &of.server)?, asking: true, ..of }),
            _ => Some(of),
        }
    }

    /// One request to one server.
    async fn round(&self, run: &mut Run<'_>, server: &Arc<Server>, tries: Vec<Try>) {
        let nonce = self.nonce.fetch_add(tries.len() as u64, Ordering::Relaxed);
        let (commands, places) = commands(run.calls, &tries, nonce);
        let connection = server.connection(run.priority);
        let (values, generation) = match connection.send(commands, run.until).await {
            Ok(answered) => answered,
            Err(error) => {
                self.look_again();
                for of in tries {
                    run.results[of.call] = Some(Err(error.clone()));
                }
                return;
            }
        };
        let mut values = values.into_iter().enumerate();
        for ((of, nonce), place) in tries.into_iter().zip(nonce..).zip(places) {
            let value = values.find(|(at, _)| *at == place).map(|(_, value)| value);
            run.results[of.call] = Some(match value.map(checked) {
                Some(Ok(value)) => match answer_to(nonce, value) {
                    Some((words, more)) => Ok(Answered { words, more, server: server.clone(), generation }),
                    None => {
                        connection.give_up(generation);
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
                        connection.give_up(generation);
                    }
                    Err(self.refused(&error))
                }
                None => Err(trouble::nonsense("no answer")),
            });
        }
    }

    /// A server is not what it was: ask the sentinels where the master is; or learn the cluster anew, aside from all
    /// requests, so that a dead node delays nothing on another.
    pub(crate) fn look_again(&self) {
        if let Some(sentinels) = &self.sentinels {
            sentinels.ask();
        }
        if !self.is_cluster() {
            return;
        }
        let Some(servers) = self.me.upgrade() else { return };
        if self.refreshing.swap(true, Ordering::Relaxed) {
            return;
        }
        self.keeper.spawn(async move {
            if servers.refresh().await.is_err() {
                // Whoever meets the trouble again asks again.
                tokio::time::sleep(REFRESH_PAUSE).await;
            }
            servers.refreshing.store(false, Ordering::Relaxed);
        });
    }

    /// Calls one script.
    pub(crate) async fn run_one(&self, priority: Priority, call: Call<'_>) -> Result<Answered, StoreError> {
        self.run(priority, &[call]).await.pop().unwrap_or_else(|| Err(trouble::nonsense("no answer")))
    }

    /// Sends one plain command, and refuses an answer that is an error.
    pub(crate) async fn ask(
        &self,
        priority: Priority,
        server: &Server,
        command: Cmd,
    ) -> Result<Value, StoreError> {
        let sent = server.connection(priority).send(vec![command], self.until()).await;
        let (mut values, generation) = sent.inspect_err(|_| self.look_again())?;
        let value = values.pop().ok_or_else(|| trouble::nonsense("no answer"))?;
        checked(value).map_err(|error| {
            if matches!(error.code(), "MOVED" | "ASK" | "READONLY" | "CLUSTERDOWN") {
                self.look_again();
                server.connection(priority).give_up(generation);
            }
            self.refused(&error)
        })
    }

    /// Something is held or waited for, for so long: until then a change of the master must be noticed.
    pub(crate) fn keep_watch(&self, who: ContenderId, lasts: Duration) {
        if let Some(sentinels) = &self.sentinels {
            sentinels.need(who, lasts);
        }
    }

    /// It is not any more.
    pub(crate) fn end_watch(&self, who: ContenderId) {
        if let Some(sentinels) = &self.sentinels {
            sentinels.done(who);
        }
    }

    /// Resolves when the master is not at `place` any more.
    pub(crate) async fn until_elsewhere(&self, place: &Address) {
        let Some(sentinels) = &self.sentinels else { return std::future::pending().await };
        // It cannot fail: the sender is ours.
        drop(sentinels.place().wait_for(|now| now.as_ref().is_some_and(|now| now != place)).await);
    }

    /// The master is at `place`: what goes elsewhere is given up, so that the next request goes there.
    pub(crate) fn move_to(&self, place: &Address) {
        for server in &self.map().servers {
            server.main.give_up_unless_at(place);
            server.reserved.give_up_unless_at(place);
        }
    }

    pub(crate) fn close(&self) {
        for server in &self.map().servers {
            server.main.close();
            server.reserved.close();
        }
        if let Some(sentinels) = &self.sentinels {
            sentinels.close();
        }
    }
}

/// The commands for some calls, whose nonces are counted from `nonce`, and where the replies to the calls are among all.
fn commands(calls: &[Call<'_>], tries: &[Try], nonce: u64) -> (Vec<Cmd>, Vec<usize>) {
    let mut commands: Vec<Cmd> = Vec::with_capacity(tries.len());
    let mut places = Vec::with_capacity(tries.len());
    let mut loaded: Vec<&Script> = Vec::new();
    for (of, nonce) in tries.iter().zip(nonce..) {
        let call = &calls[of.call];
        if of.load && !loaded.iter().any(|script| std::ptr::eq(*script, call.script)) {
            loaded.push(call.script);
            commands.push(call.script.load());
        }
        if of.asking {
            commands.push(redis::cmd("ASKING"));
        }
        places.push(commands.len());
        commands.push(call.command(nonce));
    }
    (commands, places)
}

/// Asks one node who keeps what, on a connection of its own: one that is given up early breaks no request.
async fn view(opener: Arc<Opener>, node: Address, limit: Duration) -> Result<View, StoreError> {
    let (mut connection, driver) = opener.requests(&node, None).await?;
    let mut questions = Pipeline::with_capacity(2);
    questions.cmd("CLUSTER").arg("SLOTS");
    questions.cmd("CLUSTER").arg("INFO");
    let answers = tokio::time::timeout(limit, connection.send_packed_commands(&questions, 0, 2)).await;
    driver.abort();
    let place = node.to_string();
    let answers = answers.map_err(|_| trouble::too_late(&place))?;
    let answers = answers.map_err(|error| trouble::unanswered(&place, error))?;
    let [slots, info] = <[Value; 2]>::try_from(answers).map_err(|_| trouble::nonsense("slots"))?;
    let slots = checked(slots).map_err(|error| trouble::refused(&error))?;
    let info = match info {
        Value::BulkString(text) => Some(String::from_utf8_lossy(&text).into_owned()),
        Value::VerbatimString { text, .. } => Some(text),
        // This user may not see it.
        _ => None,
    };
    View::read(&node, &slots, info.as_deref())
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
