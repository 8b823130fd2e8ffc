//! Counts the requests that go to a store, whichever store it is.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use lockkeeper_core::{
    Name,
    store::{
        Admit, Admitted, Answer, Answers, Connector, Context, Count, Counted, Evict, Evicted, LatchPage,
        ListQuery, Page, Renew, Renewed, Reply, Request, ResourceView, Store, Topic, Watch,
    },
};

use crate::wrapper::same_store;

/// How many requests were sent so far. Clones count together.
#[derive(Clone, Debug, Default)]
pub struct RequestCounter(Arc<Counts>);

#[derive(Debug, Default)]
struct Counts {
    all: AtomicU64,
    watches: AtomicU64,
}

impl RequestCounter {
    /// All of them; a group of claims and leaves is one.
    pub fn so_far(&self) -> u64 {
        self.0.all.load(Ordering::Relaxed)
    }

    /// How many subscriptions were asked for.
    pub fn watches(&self) -> u64 {
        self.0.watches.load(Ordering::Relaxed)
    }

    /// The store that `connector` connects to, with its requests counted here.
    pub fn of(&self, connector: Connector) -> Connector {
        let requests = self.clone();
        Connector::new(move |context: Context| {
            let (connecting, requests) = (connector.connect(context), requests.clone());
            async move { Ok(Arc::new(CountingStore { inner: connecting.await?, requests }) as Arc<dyn Store>) }
        })
    }
}

/// A store that passes everything on.
#[derive(Debug)]
struct CountingStore {
    inner: Arc<dyn Store>,
    requests: RequestCounter,
}

impl CountingStore {
    fn ask(&self) -> &dyn Store {
        self.requests.0.all.fetch_add(1, Ordering::Relaxed);
        &*self.inner
    }
}

#[deny(clippy::missing_trait_methods)]
impl Store for CountingStore {
    same_store!();

    fn apply<'a>(&'a self, group: &'a [Request]) -> Reply<'a, Answers<Answer>> {
        self.ask().apply(group)
    }

    fn apply_alone<'a>(&'a self, group: &'a [Request]) -> Reply<'a, Answers<Answer>> {
        self.ask().apply_alone(group)
    }

    fn renew<'a>(&'a self, leases: &'a [Renew]) -> Reply<'a, Answers<Renewed>> {
        self.ask().renew(leases)
    }

    fn watch<'a>(&'a self, topic: &'a Topic) -> Reply<'a, Option<Watch>> {
        self.requests.0.watches.fetch_add(1, Ordering::Relaxed);
        self.ask().watch(topic)
    }

    fn inspect<'a>(&'a self, name: &'a Name) -> Reply<'a, Option<ResourceView>> {
        self.ask().inspect(name)
    }

    fn list<'a>(&'a self, query: &'a ListQuery) -> Reply<'a, Page> {
        self.ask().list(query)
    }

    fn latches<'a>(&'a self, query: &'a ListQuery) -> Reply<'a, LatchPage> {
        self.ask().latches(query)
    }

    fn evict<'a>(&'a self, order: &'a Evict) -> Reply<'a, Evicted> {
        self.ask().evict(order)
    }

    fn count<'a>(&'a self, count: &'a Count) -> Reply<'a, Answers<Counted>> {
        self.ask().count(count)
    }

    fn fence<'a>(&'a self, admit: &'a Admit) -> Reply<'a, Admitted> {
        self.ask().fence(admit)
    }
}
