//! Servers for the tests, keepers with good and bad connections, and functions that look at the nodes themselves.

use std::{
    net::SocketAddr,
    time::{Duration, Instant},
};

use lockkeeper::{Guard, Keeper};
use lockkeeper_testkit::{
    proxy::Proxy,
    servers::{ZooKeeper, ZooKeeperOptions},
};
use zookeeper_client::{Client, Error};

/// Longer than anything takes that a test waits for.
pub(crate) const LONG: Duration = Duration::from_secs(30);

/// The servers' ticks.
pub(crate) const TICK: Duration = Duration::from_millis(200);

/// The servers of one test.
pub(crate) struct Stage {
    pub(crate) servers: ZooKeeper,
    session: Duration,
}

impl Stage {
    /// One server; sessions end after `session` without a sign of life.
    pub(crate) fn single(session: Duration) -> Self {
        Self { servers: ZooKeeper::start().expect("started"), session }
    }

    /// One server with special options.
    pub(crate) fn with(options: &ZooKeeperOptions, session: Duration) -> Self {
        Self { servers: options.start().expect("started"), session }
    }

    /// Three servers.
    pub(crate) fn ensemble(session: Duration) -> Self {
        Self { servers: ZooKeeper::ensemble().expect("started"), session }
    }

    fn options(&self) -> String {
        format!("?session={}ms&tick={}ms", self.session.as_millis(), TICK.as_millis())
    }

    /// The URL of all servers.
    pub(crate) fn url(&self) -> String {
        format!("{}{}", self.servers.url(), self.options())
    }

    /// A keeper with a good connection.
    pub(crate) async fn keeper(&self) -> Keeper {
        lockkeeper::connect(&self.url()).await.expect("connected")
    }

    /// A keeper that waits long for each answer, however busy the machine is.
    pub(crate) async fn patient(&self) -> Keeper {
        let builder = lockkeeper::builder(&self.url()).expect("a good URL").request_limit(LONG);
        builder.connect().await.expect("connected")
    }

    /// The address of the first server.
    pub(crate) fn address(&self) -> SocketAddr {
        self.servers.nodes()[0].address()
    }

    /// A proxy to the first server, and a keeper that connects through it.
    pub(crate) async fn proxied(&self) -> (Proxy, Keeper) {
        let proxy = Proxy::start(self.address()).expect("started");
        let url = format!("zookeeper://{}{}", proxy.address(), self.options());
        let builder = lockkeeper::builder(&url).expect("a good URL").outage_limit(Duration::from_secs(60));
        let keeper = builder.connect().await.expect("connected");
        (proxy, keeper)
    }

    /// As [`proxied`](Self::proxied), with a keeper that waits long for each answer.
    pub(crate) async fn patiently_proxied(&self) -> (Proxy, Keeper) {
        let proxy = Proxy::start(self.address()).expect("started");
        let url = format!("zookeeper://{}{}", proxy.address(), self.options());
        let keeper = lockkeeper::builder(&url).expect("a good URL").request_limit(LONG).connect().await;
        (proxy, keeper.expect("connected"))
    }

    /// A plain client.
    pub(crate) async fn client(&self) -> Client {
        Client::connect(&self.address().to_string()).await.expect("connected")
    }
}

/// The nodes under the resource `name`, which is not encoded.
pub(crate) async fn nodes(client: &Client, name: &str) -> Vec<String> {
    let path = format!("/lockkeeper/locks/{name}");
    client.sync(&path).await.expect("synced");
    match client.list_children(&path).await {
        Ok(children) => children,
        Err(Error::NoNode) => Vec::new(),
        Err(error) => panic!("{error}"),
    }
}

/// Waits until there are so many nodes under `name`.
pub(crate) async fn until_nodes(client: &Client, name: &str, count: usize) {
    let started = Instant::now();
    loop {
        let now = nodes(client, name).await;
        if now.len() == count {
            return;
        }
        assert!(started.elapsed() < LONG, "never {count} nodes, but {now:?}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// The result of `work`, which must not take long.
pub(crate) async fn soon<T>(work: impl Future<Output = T>) -> T {
    tokio::time::timeout(LONG, work).await.expect("in time")
}

/// Waits until the lock is certain to be held for longer than it is now.
pub(crate) async fn until_renewed<M>(guard: &Guard<M>) {
    let ends = || Instant::now() + guard.remaining();
    let certain = ends() + Duration::from_millis(500);
    soon(async {
        while ends() < certain {
            assert!(guard.is_held(), "lost");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
}
