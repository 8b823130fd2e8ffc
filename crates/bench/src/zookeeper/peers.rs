//! Peers of the ZooKeeper store that run as tasks of this process, each with one session for all tasks: the
//! recipe that comes with the crate `zookeeper-client`, and the two writes that every lock has to make.

use zookeeper_client::{Acls, Client, CreateMode, Error, LockClient, LockOptions, LockPrefix};

use super::{BARE, RECIPE};
use crate::{
    Failure,
    judge::Limit,
    peer::{Lock, Peer},
    workload::Workload,
};

/// The lock recipe of `zookeeper-client`, with names that Curator would understand.
#[derive(Clone)]
pub(crate) struct RecipePeer(Client);

impl RecipePeer {
    pub(crate) async fn connect(servers: &str) -> Result<Self, Failure> {
        Ok(Self(Client::connector().connect(servers).await?))
    }

    pub(crate) fn session(&self) -> i64 {
        self.0.session_id().0
    }
}

#[derive(Clone)]
pub(crate) struct RecipeLock {
    client: Client,
    folder: String,
}

impl Peer for RecipePeer {
    type Lock = RecipeLock;

    fn name(&self) -> &'static str {
        RECIPE
    }

    fn lock(&self, name: &str) -> RecipeLock {
        RecipeLock { client: self.0.clone(), folder: format!("/bench/recipe/{name}") }
    }

    fn goal(&self, workload: Workload) -> Option<Limit> {
        goal(workload)
    }
}

/// Requests that travel in groups are fewer than those that each lock sends by itself.
pub(super) fn goal(workload: Workload) -> Option<Limit> {
    (workload == Workload::W2).then_some(Limit::AtLeast(2.0))
}

impl Lock for RecipeLock {
    type Held<'a> = LockClient<'a>;

    async fn acquire(&self) -> Result<LockClient<'_>, Failure> {
        let prefix = LockPrefix::new_curator(&self.folder, "lock-")?;
        let parents = CreateMode::Container.with_acls(Acls::anyone_all());
        let options = LockOptions::new(Acls::anyone_all()).with_ancestor_options(parents)?;
        Ok(self.client.lock(prefix, b"", options).await?)
    }

    /// Drops the lock, as its users are meant to. Its node is removed while the task goes on.
    async fn release(held: Self::Held<'_>) -> Result<(), Failure> {
        drop(held);
        Ok(())
    }
}

/// One ephemeral sequential node made and removed, and nothing else: no lock, but the part that each lock has to do.
pub(crate) struct BarePeer(Client);

impl BarePeer {
    pub(crate) async fn connect(servers: &str) -> Result<Self, Failure> {
        Ok(Self(Client::connector().connect(servers).await?))
    }

    pub(crate) fn session(&self) -> i64 {
        self.0.session_id().0
    }
}

#[derive(Clone)]
pub(crate) struct BareLock {
    client: Client,
    folder: String,
}

impl Peer for BarePeer {
    type Lock = BareLock;

    fn name(&self) -> &'static str {
        BARE
    }

    fn lock(&self, name: &str) -> BareLock {
        BareLock { client: self.0.clone(), folder: format!("/bench/bare/{name}") }
    }

    /// It keeps nobody out.
    fn takes_part(&self, workload: Workload) -> bool {
        matches!(workload, Workload::W1 | Workload::W2)
    }
}

/// A node that is to be removed.
pub(crate) struct BareHeld<'a> {
    client: &'a Client,
    node: String,
}

impl Lock for BareLock {
    type Held<'a> = BareHeld<'a>;

    async fn acquire(&self) -> Result<BareHeld<'_>, Failure> {
        let prefix = format!("{}/n-", self.folder);
        let options = CreateMode::EphemeralSequential.with_acls(Acls::anyone_all());
        loop {
            match self.client.create(&prefix, b"", &options).await {
                Ok((_, sequence)) => {
                    return Ok(BareHeld { client: &self.client, node: format!("{prefix}{sequence}") });
                }
                Err(Error::NoNode) => {
                    let parents = CreateMode::Container.with_acls(Acls::anyone_all());
                    self.client.mkdir(&self.folder, &parents).await?;
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    async fn release(held: Self::Held<'_>) -> Result<(), Failure> {
        Ok(held.client.delete(&held.node, None).await?)
    }
}
