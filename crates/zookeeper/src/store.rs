//! The store of one keeper. Every request is a task of the keeper's own runtime, so a caller that drops the future leaves
//! nothing half done.

use std::{
    fmt,
    future::Future,
    sync::{Arc, Mutex},
};

use lockkeeper_core::{
    Capability, Name, StoreError,
    store::{
        Admit, Admitted, Answer, Answers, BoxFuture, Count, Counted, Evict, Evicted, LatchPage, ListQuery,
        Page, Renew, Renewed, Reply, Request, ResourceView, Store, Topic, Watch,
    },
    support,
    support::background::Background,
};
use zookeeper_client::Error;

use crate::{keeper::KeeperState, trouble::trouble};

/// One keeper's store.
pub(crate) struct ZooKeeperStore {
    url: Arc<str>,
    id: String,
    capability: Capability,
    keeper: Arc<KeeperState>,
    tasks: Mutex<Vec<Background>>,
}

impl fmt::Debug for ZooKeeperStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.url)
    }
}

impl ZooKeeperStore {
    /// Makes the store. The `tasks` run until it is closed or dropped.
    pub(crate) fn new(
        id: String,
        capability: Capability,
        keeper: Arc<KeeperState>,
        tasks: Vec<Background>,
    ) -> Self {
        let url = Arc::from(keeper.settings.shown.as_str());
        Self { url, id, capability, keeper, tasks: Mutex::new(tasks) }
    }

    /// Does `work` as a task of its own. It goes on if the caller drops the reply.
    fn ask<'a, T, F>(&'a self, work: impl FnOnce(Arc<KeeperState>) -> F) -> Reply<'a, T>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, StoreError>> + Send + 'static,
    {
        let task = self.keeper.background.spawn(work(self.keeper.clone()));
        Box::pin(async move { task.await.unwrap_or_else(|_| Err(trouble(Error::ClientClosed))) })
    }
}

impl Store for ZooKeeperStore {
    fn capability(&self) -> &Capability {
        &self.capability
    }

    fn url(&self) -> &Arc<str> {
        &self.url
    }

    fn id(&self) -> &str {
        &self.id
    }

    fn shorter_leases(&self) -> Option<&str> {
        Some(
            "leases end with a session here: add ?session= and &tick= to the URL, if the servers' tickTime allows it",
        )
    }

    fn apply<'a>(&'a self, group: &'a [Request]) -> Reply<'a, Answers<Answer>> {
        let group = group.to_vec();
        self.ask(async move |keeper| keeper.apply(&group).await)
    }

    fn renew<'a>(&'a self, leases: &'a [Renew]) -> Reply<'a, Answers<Renewed>> {
        let leases = leases.to_vec();
        self.ask(async move |keeper| keeper.renew(&leases).await)
    }

    fn watch<'a>(&'a self, topic: &'a Topic) -> Reply<'a, Option<Watch>> {
        // Each waiter tells its keeper of its own grant.
        if matches!(topic, Topic::Grants(_)) {
            return Box::pin(std::future::ready(Ok(None)));
        }
        let topic = topic.clone();
        self.ask(async move |keeper| keeper.subscribe(topic).await.map(Some))
    }

    fn inspect<'a>(&'a self, name: &'a Name) -> Reply<'a, Option<ResourceView>> {
        let name = name.clone();
        self.ask(async move |keeper| {
            let session = keeper.session()?;
            keeper.inspect(&session, &name).await
        })
    }

    fn list<'a>(&'a self, query: &'a ListQuery) -> Reply<'a, Page> {
        let query = query.clone();
        self.ask(async move |keeper| {
            let session = keeper.session()?;
            keeper.list(&session, &query).await
        })
    }

    fn latches<'a>(&'a self, query: &'a ListQuery) -> Reply<'a, LatchPage> {
        let query = query.clone();
        self.ask(async move |keeper| {
            let session = keeper.session()?;
            keeper.latches(&session, &query).await
        })
    }

    fn evict<'a>(&'a self, order: &'a Evict) -> Reply<'a, Evicted> {
        let order = order.clone();
        self.ask(async move |keeper| {
            let session = keeper.session()?;
            keeper.evict(&session, &order).await
        })
    }

    fn count<'a>(&'a self, count: &'a Count) -> Reply<'a, Answers<Counted>> {
        let count = count.clone();
        self.ask(async move |keeper| {
            let session = keeper.session()?;
            keeper.count(&session, &count).await
        })
    }

    fn fence<'a>(&'a self, admit: &'a Admit) -> Reply<'a, Admitted> {
        let admit = admit.clone();
        self.ask(async move |keeper| {
            let session = keeper.session()?;
            keeper.fence(&session, &admit).await
        })
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        let tasks = std::mem::take(&mut *support::lock(&self.tasks));
        let closed = self.ask(async move |keeper| {
            let limit = keeper.limit;
            // The tasks end first, since one of them replaces sessions that are over.
            drop(tasks);
            // Everything that is not done within the limit ends with its session.
            drop(tokio::time::timeout(limit, keeper.close()).await);
            Ok(())
        });
        Box::pin(async move { drop(closed.await) })
    }
}

impl Drop for ZooKeeperStore {
    fn drop(&mut self) {
        self.keeper.abandon();
    }
}
