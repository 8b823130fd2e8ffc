//! The servers of a store and their resources: one server, the master behind sentinels, or the nodes of a
//! cluster. The way of requests there and back is in `calls.rs`.

use std::{
    sync::{
        Arc, PoisonError, RwLock, Weak,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use lockkeeper_core::{ContenderId, StoreError};
use tokio::{runtime::Handle, sync::watch, task::JoinSet};

use crate::{
    address::{Address, Shape},
    connection::{Connection, Location},
    layout::SLOTS,
    opener::Opener,
    runtime::ConnectionRuntime,
    sentinels::Sentinels,
    settings::Settings,
    slots::{self, View},
    trouble,
};

/// The pause before the cluster is asked again after it did not tell which node keeps each slot.
const REFRESH_PAUSE: Duration = Duration::from_millis(100);

/// One server and its connections.
pub(crate) struct Server {
    pub(crate) address: Address,
    pub(crate) location: Location,
    /// Never used again: a server that comes back has another number.
    pub(crate) number: usize,
    normal: Connection,
    /// On the keeper's runtime.
    urgent: Connection,
    /// Whether a task was started to open `urgent`.
    opens_urgent: AtomicBool,
}

/// Which connection a request takes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Priority {
    Normal,
    /// For requests that must not wait behind others, such as renewals.
    Urgent,
}

impl Server {
    pub(crate) fn connection(&self, priority: Priority) -> &Connection {
        match priority {
            Priority::Normal => &self.normal,
            Priority::Urgent => &self.urgent,
        }
    }

    /// A contender holds or waits here. The first time, opens the urgent connection in the background: renewals need it
    /// later, and so does the last leave of a program, which has no time to open it.
    pub(crate) fn open_urgent(self: &Arc<Self>, keeper: &Handle) {
        if self.opens_urgent.load(Ordering::Relaxed) || self.opens_urgent.swap(true, Ordering::Relaxed) {
            return;
        }
        let server = self.clone();
        keeper.spawn(async move { server.urgent.prepare().await });
    }
}

/// The servers, and in a cluster which of them keeps which slot. A server that no longer keeps any is left out, and its
/// connections end with the last request that uses them.
#[derive(Clone, Default)]
pub(crate) struct Map {
    servers: Vec<Arc<Server>>,
    /// For each slot an index into `servers`; empty unless this is a cluster.
    slots: Vec<u16>,
    /// All known nodes of the cluster, any of which can be asked.
    nodes: Vec<Address>,
}

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

    pub(crate) fn at(&self, address: &Address) -> Option<&Arc<Server>> {
        self.servers.iter().find(|server| server.address == *address)
    }

    fn is_same(&self, other: &Self) -> bool {
        let numbers = |map: &Self| map.servers.iter().map(|server| server.number).collect::<Vec<_>>();
        numbers(self) == numbers(other) && self.slots == other.slots && self.nodes == other.nodes
    }
}

/// All servers of a store.
pub(crate) struct Servers {
    opener: Arc<Opener>,
    /// Present if sentinels say where the master is.
    sentinels: Option<Arc<Sentinels>>,
    /// The keeper's runtime.
    keeper: Handle,
    /// The runtime that the keeper was made in. Most tasks that wait for answers run there.
    caller: Handle,
    /// How long a request may take.
    pub(crate) limit: Duration,
    map: RwLock<Arc<Map>>,
    /// Counts changes of the map.
    pub(crate) map_changes: watch::Sender<u64>,
    /// Whether a task asks the cluster which node keeps what.
    refreshing: AtomicBool,
    /// Whether connections may no longer belong to the caller's runtime.
    caller_left: AtomicBool,
    next_number: AtomicUsize,
    /// For tasks that outlive a call.
    this: Weak<Self>,
    /// The number of the next script call.
    pub(crate) nonces: AtomicU64,
}

impl Servers {
    /// Finds the servers; opens only the connections that it needs for that.
    pub(crate) async fn find(
        opener: Arc<Opener>,
        keeper: Handle,
        limit: Duration,
    ) -> Result<Arc<Self>, StoreError> {
        let sentinels = match &opener.settings().shape {
            Shape::Sentinel(addresses, name) => Some(Sentinels::new(&opener, addresses, name, &keeper)),
            _ => None,
        };
        let servers = Arc::new_cyclic(|this| Self {
            opener,
            sentinels,
            keeper,
            caller: Handle::current(),
            limit,
            map: RwLock::default(),
            map_changes: watch::channel(0).0,
            refreshing: AtomicBool::new(false),
            caller_left: AtomicBool::new(false),
            next_number: AtomicUsize::new(0),
            this: this.clone(),
            nonces: AtomicU64::new(1),
        });
        let only = match &servers.settings().shape {
            Shape::Single(address) => address,
            Shape::Sentinel(sentinels, _) => &sentinels[0],
            Shape::Cluster(_) => {
                servers.refresh().await?;
                return Ok(servers);
            }
        };
        let only = vec![servers.server(only)];
        servers.replace_map(|_| Some(Map { servers: only, ..Map::default() }));
        Ok(servers)
    }

    pub(crate) fn opener(&self) -> &Opener {
        &self.opener
    }

    pub(crate) fn settings(&self) -> &Settings {
        self.opener.settings()
    }

    /// The runtime for one more connection.
    pub(crate) fn runtime(&self) -> ConnectionRuntime {
        let first = if self.has_left_caller() { &self.keeper } else { &self.caller };
        ConnectionRuntime::new(first, &self.keeper)
    }

    /// Whether the keeper's runtime owns all connections.
    pub(crate) fn has_left_caller(&self) -> bool {
        self.caller_left.load(Ordering::Acquire)
    }

    /// The caller's runtime may be blocked or gone: the keeper's runtime owns all connections from now on.
    pub(crate) fn leave_caller(&self) {
        // Before the look at the map: a server that is added later sees it.
        self.caller_left.store(true, Ordering::Release);
        for server in &self.map().servers {
            server.normal.leave_caller();
            server.urgent.leave_caller();
        }
    }

    pub(crate) fn is_cluster(&self) -> bool {
        matches!(self.settings().shape, Shape::Cluster(_))
    }

    fn server(&self, address: &Address) -> Arc<Server> {
        let location = match &self.sentinels {
            Some(sentinels) => Location::Sentinels(sentinels.clone()),
            None => Location::Fixed(address.clone()),
        };
        let connection = |runtime| Connection::new(&self.opener, address, location.clone(), runtime);
        Arc::new(Server {
            normal: connection(self.runtime()),
            urgent: connection(ConnectionRuntime::new(&self.keeper, &self.keeper)),
            opens_urgent: AtomicBool::new(false),
            address: address.clone(),
            number: self.next_number.fetch_add(1, Ordering::Relaxed),
            location,
        })
    }

    pub(crate) fn map(&self) -> Arc<Map> {
        self.map.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Replaces the map if `change` returns another one.
    fn replace_map(&self, change: impl FnOnce(&Map) -> Option<Map>) {
        let mut map = self.map.write().unwrap_or_else(PoisonError::into_inner);
        let Some(new) = change(&map) else { return };
        let old = std::mem::replace(&mut *map, Arc::new(new));
        drop(map);
        // Outside of the lock, since connections may end with it.
        drop(old);
        self.map_changes.send_modify(|changes| *changes += 1);
    }

    /// The time limit of a request that begins now.
    pub(crate) fn until(&self) -> Instant {
        Instant::now() + self.limit
    }

    /// Learns which node keeps what: from more than half of the known nodes, if so many answer.
    async fn refresh(&self) -> Result<(), StoreError> {
        let mut nodes = self.map().nodes.clone();
        if let Shape::Cluster(named) = &self.settings().shape {
            nodes.extend(named.iter().filter(|node| !self.map().nodes.contains(node)).cloned());
        }
        let mut questions = JoinSet::new();
        for node in &nodes {
            questions.spawn(slots::ask(self.opener.clone(), node.clone(), self.limit / 2));
        }
        let (mut views, mut last_error) = (Vec::new(), trouble::config("the URL names no node"));
        while let Some(answer) = questions.join_next().await {
            match answer {
                Ok(Ok(view)) => views.push(view),
                Ok(Err(error)) => last_error = error,
                // Its runtime has ended.
                Err(_) => {}
            }
            if 2 * views.len() > nodes.len() {
                break;
            }
        }
        let believed = slots::believed(views).ok_or_else(|| last_error.not_applied())?;
        self.replace_map(|before| {
            let map = self.map_from(before, believed);
            (!map.is_same(before)).then_some(map)
        });
        Ok(())
    }

    /// The map that a node describes. Known servers stay as they are.
    fn map_from(&self, before: &Map, view: View) -> Map {
        let mut map = Map { servers: Vec::new(), slots: vec![0; SLOTS], nodes: view.nodes };
        for range in view.ranges {
            let known = map.servers.iter().position(|server| server.address == range.master);
            let index = known.unwrap_or_else(|| {
                let server = before.at(&range.master).cloned();
                map.servers.push(server.unwrap_or_else(|| self.server(&range.master)));
                map.servers.len() - 1
            });
            // There are no more servers than slots.
            map.slots[range.first..=range.last].fill(index as u16);
        }
        map
    }

    /// The server at `address`, which is added if it is new.
    pub(crate) fn at(&self, address: &Address) -> Option<Arc<Server>> {
        if let Some(known) = self.map().at(address) {
            return Some(known.clone());
        }
        self.replace_map(|before| {
            let mut map = before.clone();
            map.servers.push(self.server(address));
            // Another call may have added it at the same time.
            before.at(address).is_none().then_some(map)
        });
        self.map().at(address).cloned()
    }

    /// A server has changed its part: asks the sentinels for the master, or the cluster for the node of each slot. A
    /// task of its own does that, so a dead node delays no request to another one.
    pub(crate) fn look_again(&self) {
        if let Some(sentinels) = &self.sentinels {
            sentinels.ask();
        }
        if !self.is_cluster() {
            return;
        }
        let Some(servers) = self.this.upgrade() else { return };
        if self.refreshing.swap(true, Ordering::Relaxed) {
            return;
        }
        self.keeper.spawn(async move {
            if servers.refresh().await.is_err() {
                // The next request that fails asks again.
                tokio::time::sleep(REFRESH_PAUSE).await;
            }
            servers.refreshing.store(false, Ordering::Relaxed);
        });
    }

    /// A contender holds or waits for `lasts`: until then a change of the master must be noticed.
    pub(crate) fn follow_master(&self, contender: ContenderId, lasts: Duration) {
        if let Some(sentinels) = &self.sentinels {
            sentinels.need(contender, lasts);
        }
    }

    /// A contender no longer holds or waits.
    pub(crate) fn end_following(&self, contender: ContenderId) {
        if let Some(sentinels) = &self.sentinels {
            sentinels.done(contender);
        }
    }

    /// The address of the master and each change of it, if sentinels say it.
    pub(crate) fn master(&self) -> Option<watch::Receiver<Option<Address>>> {
        Some(self.sentinels.as_ref()?.master())
    }

    /// Returns when the master is no longer at `address`.
    pub(crate) async fn until_master_moves(&self, address: &Address) {
        let Some(mut master) = self.master() else { return std::future::pending().await };
        // It cannot fail: the sentinels are not dropped before this.
        drop(master.wait_for(|now| now.as_ref().is_some_and(|now| now != address)).await);
    }

    /// The master is at `master`: connections to elsewhere end, so the next request goes there.
    pub(crate) fn move_to(&self, master: &Address) {
        for server in &self.map().servers {
            server.normal.give_up_unless_at(master);
            server.urgent.give_up_unless_at(master);
        }
    }

    pub(crate) fn close(&self) {
        for server in &self.map().servers {
            server.normal.close();
            server.urgent.close();
        }
        if let Some(sentinels) = &self.sentinels {
            sentinels.close();
        }
    }
}
