//! Memory members in virtual time, and clients behind networks of their own.

use std::{sync::Arc, time::Duration};

use lockkeeper_core::{
    Keeper, StoreError,
    memory::MemoryServer,
    store::Connector,
    testing::{Network, VirtualClock},
};

/// Members whose clocks are that of the test.
pub(crate) struct World {
    pub(crate) clock: VirtualClock,
    pub(crate) servers: Arc<[MemoryServer]>,
    pub(crate) url: String,
}

/// A client, and its network to each member.
pub(crate) struct Client {
    pub(crate) keeper: Keeper,
    pub(crate) networks: Vec<Network>,
}

pub(crate) fn secs(count: u64) -> Duration {
    Duration::from_secs(count)
}

pub(crate) fn millis(count: u64) -> Duration {
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
        Self { clock, servers, url: format!("quorum:{}", urls.join(",")) }
    }

    /// One whose members vote.
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
        let (servers, networks) = (self.servers.clone(), networks.to_vec());
        move |url| {
            let member: usize = url.trim_start_matches("memory:").parse().expect("a number");
            Ok(networks[member].wrap(servers[member].connector(url)))
        }
    }

    pub(crate) async fn client_at(&self, url: &str, networks: Vec<Network>) -> Result<Client, StoreError> {
        let connector = lockkeeper_quorum::connector(url, self.member(&networks))?;
        let keeper = Keeper::builder(connector).virtual_time(self.clock.clock()).connect().await?;
        Ok(Client { keeper, networks })
    }

    pub(crate) async fn client(&self) -> Client {
        self.client_at(&self.url, networks(self.servers.len())).await.expect("connected")
    }
}
