//! A store of which a test overrides a part: what it answers to claims, how it subscribes, which wakes it passes on.

use std::{fmt, sync::Arc};

use lockkeeper_core::{
    Capability, Name,
    store::{
        Admit, Admitted, Answer, Answers, Claim, Connector, Context, Count, Counted, Evict, Evicted,
        LatchPage, ListQuery, Page, Renew, Renewed, Reply, Request, ResourceView, Store, Topic, Verdict,
        Wake, WakeSink, Watch,
    },
};

use crate::wrapper::same_store;

type ChangeVerdict = dyn Fn(&Claim, Verdict) -> Verdict + Send + Sync;
type ChangeWake = dyn Fn(Wake) -> Option<Wake> + Send + Sync;
type ChangeWatch =
    dyn Fn(Topic, Reply<'static, Option<Watch>>) -> Reply<'static, Option<Watch>> + Send + Sync;

/// What is overridden; by default nothing.
pub struct Overrides {
    capability: Box<dyn Fn(&mut Capability) + Send + Sync>,
    verdict: Box<ChangeVerdict>,
    wake: Box<ChangeWake>,
    watch: Box<ChangeWatch>,
}

impl Overrides {
    /// Nothing is changed yet.
    #[expect(clippy::new_without_default, reason = "there is nothing default about an overridden store")]
    pub fn new() -> Self {
        Self {
            capability: Box::new(|_| {}),
            verdict: Box::new(|_, verdict| verdict),
            wake: Box::new(Some),
            watch: Box::new(|_, watch| watch),
        }
    }

    /// Changes what the store says of itself.
    pub fn capability(mut self, change: impl Fn(&mut Capability) + Send + Sync + 'static) -> Self {
        self.capability = Box::new(change);
        self
    }

    /// Changes the answers to claims.
    pub fn verdicts(mut self, change: impl Fn(&Claim, Verdict) -> Verdict + Send + Sync + 'static) -> Self {
        self.verdict = Box::new(change);
        self
    }

    /// Changes wakes, or keeps them back.
    pub fn wakes(mut self, change: impl Fn(Wake) -> Option<Wake> + Send + Sync + 'static) -> Self {
        self.wake = Box::new(change);
        self
    }

    /// Changes subscriptions: gets the one that the store would make.
    pub fn watches(
        mut self,
        change: impl Fn(Topic, Reply<'static, Option<Watch>>) -> Reply<'static, Option<Watch>>
        + Send
        + Sync
        + 'static,
    ) -> Self {
        self.watch = Box::new(change);
        self
    }

    /// The store that `connector` connects to, with these overrides.
    pub fn of(self, connector: Connector) -> Connector {
        let overrides = Arc::new(self);
        Connector::new(move |mut context: Context| {
            let (sink, of_wakes) = (context.wakes.clone(), overrides.clone());
            context.wakes = WakeSink::new(move |wake| {
                if let Some(wake) = (of_wakes.wake)(wake) {
                    sink.wake(wake);
                }
            });
            let (connecting, overrides) = (connector.connect(context), overrides.clone());
            async move {
                let inner = connecting.await?;
                let mut capability = inner.capability().clone();
                (overrides.capability)(&mut capability);
                Ok(Arc::new(OverriddenStore { inner, overrides, capability }) as Arc<dyn Store>)
            }
        })
    }
}

impl fmt::Debug for Overrides {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Overrides")
    }
}

#[derive(Debug)]
struct OverriddenStore {
    inner: Arc<dyn Store>,
    overrides: Arc<Overrides>,
    capability: Capability,
}

#[deny(clippy::missing_trait_methods)]
impl Store for OverriddenStore {
    fn capability(&self) -> &Capability {
        &self.capability
    }

    same_store!(but capability);

    fn apply<'a>(&'a self, group: &'a [Request]) -> Reply<'a, Answers<Answer>> {
        Box::pin(async move {
            let mut answers = self.inner.apply(group).await?;
            let changed = group.iter().zip(answers.each).map(|(request, answer)| match (request, answer) {
                (Request::Claim(claim), Answer::Claim(verdict)) => {
                    Answer::Claim((self.overrides.verdict)(claim, verdict))
                }
                (_, answer) => answer,
            });
            answers.each = changed.collect();
            Ok(answers)
        })
    }

    fn renew<'a>(&'a self, leases: &'a [Renew]) -> Reply<'a, Answers<Renewed>> {
        self.inner.renew(leases)
    }

    fn watch<'a>(&'a self, topic: &'a Topic) -> Reply<'a, Option<Watch>> {
        let (inner, asked) = (self.inner.clone(), topic.clone());
        (self.overrides.watch)(topic.clone(), Box::pin(async move { inner.watch(&asked).await }))
    }

    fn inspect<'a>(&'a self, name: &'a Name) -> Reply<'a, Option<ResourceView>> {
        self.inner.inspect(name)
    }

    fn list<'a>(&'a self, query: &'a ListQuery) -> Reply<'a, Page> {
        self.inner.list(query)
    }

    fn latches<'a>(&'a self, query: &'a ListQuery) -> Reply<'a, LatchPage> {
        self.inner.latches(query)
    }

    fn evict<'a>(&'a self, order: &'a Evict) -> Reply<'a, Evicted> {
        self.inner.evict(order)
    }

    fn count<'a>(&'a self, count: &'a Count) -> Reply<'a, Answers<Counted>> {
        self.inner.count(count)
    }

    fn fence<'a>(&'a self, admit: &'a Admit) -> Reply<'a, Admitted> {
        self.inner.fence(admit)
    }
}
