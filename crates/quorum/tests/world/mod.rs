//! Memory members in virtual time, and clients behind networks of their own.

mod moods;

use std::{sync::Arc, time::Duration};

use lockkeeper_core::{
    Keeper, KeeperId, StoreError,
    memory::MemoryServer,
    store::{Connector, Context, Store, WakeSink},
    testing::{Network, VirtualClock},
};

pub(crate) use moods::{Mood, Moods};

/// Members whose clocks are that of the test.
pub(crate) struct World {
    pub(crate) clock: VirtualClock,
    pub(crate) servers: Arc<[MemoryServer]>,
    pub(crate) moods: Vec<Moods>,
    pub(crate) url: String,
}

/// A client, and its network to each member.
pub(crate) struct Client {
    pub(crate) keeper: Keeper,
    pub(crate) networks: Vec<Network>,
}

pub(crate) const fn secs(count: u64) -> Duration {
    Duration::from_secs(count)
}

pub(crate) const fn millis(count: u64) -> Duration {
    Duration::from_millis(count)
}

pub(crate) fn networks(count: usize) -> Vec<Network> {
    (0..count).map(|_| Network::new()).collect()
}

impl World {
    pub(crate) fn new(members: usize) -> Self {
        let clock = VirtualClock::new();
        let servers = (0..members).map(|_| MemoryServer::new(clock.clock())).collect();
        let urls: Vec<String> = (0..members).map(|member| format!("memory:{member}")).collect();
        let moods = (0..members).map(|_| Moods::default()).collect();
        Self { clock, servers, moods, url: format!("quorum:{}", urls.join(",")) }
    }

    /// Makes one whose members vote.
    pub(crate) async fn founded(members: usize) -> Self {
        let world = Self::new(members);
        let founded = lockkeeper_quorum::found_fresh(&world.url, world.member(&networks(members)));
        founded.await.expect("founded");
        world
    }

    pub(crate) fn member(
        &self,
        networks: &[Network],
    ) -> impl Fn(&str) -> Result<Connector, StoreError> + use<> {
        let (servers, moods, networks) = (self.servers.clone(), self.moods.clone(), networks.to_vec());
        move |url| {
            let member: usize = url.trim_start_matches("memory:").parse().expect("a number");
            Ok(networks[member].wrap(moods[member].wrap(servers[member].connector(url))))
        }
    }

    pub(crate) async fn client_at(&self, url: &str, networks: Vec<Network>) -> Result<Client, StoreError> {
        let connector = lockkeeper_quorum::connector(url, self.member(&networks))?;
        let keeper = Keeper::builder(connector).virtual_time(self.clock.clock()).connect().await?;
        Ok(Client { keeper, networks })
    }

    fn context(&self) -> Context {
        Context {
            keeper: KeeperId::random(),
            wakes: WakeSink::new(drop),
            background: tokio::runtime::Handle::current(),
            clock: self.clock.clock(),
            request_limit: secs(2),
        }
    }

    /// The store of a client without a keeper, for tests that send groups of their own.
    pub(crate) async fn store(&self, networks: &[Network]) -> Arc<dyn Store> {
        let connector = lockkeeper_quorum::connector(&self.url, self.member(networks)).expect("a good URL");
        connector.connect(self.context()).await.expect("connected")
    }

    /// The members as stores of their own.
    pub(crate) async fn member_stores(&self) -> Vec<Arc<dyn Store>> {
        let mut stores = Vec::new();
        for server in self.servers.iter() {
            stores.push(server.connector("memory:").connect(self.context()).await.expect("connected"));
        }
        stores
    }

    /// Returns the members as they show themselves.
    pub(crate) async fn moody_stores(&self) -> Vec<Arc<dyn Store>> {
        let mut stores = Vec::new();
        for (server, moods) in self.servers.iter().zip(&self.moods) {
            let connector = moods.wrap(server.connector("memory:"));
            stores.push(connector.connect(self.context()).await.expect("connected"));
        }
        stores
    }

    pub(crate) async fn client(&self) -> Client {
        self.client_at(&self.url, networks(self.servers.len())).await.expect("connected")
    }
}
