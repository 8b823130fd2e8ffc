//! A store of which a test overrides a part: its answers to claims and renewals, the server that keeps a name, its way
//! to subscribe, the wakes that it passes on.

use std::{fmt, sync::Arc};

use lockkeeper_core::{
    Capability, Name,
    store::{
        Admit, Admitted, Answer, Answers, BoxFuture, Claim, Connector, Context, Count, Counted, Evict,
        Evicted, LatchPage, ListQuery, Page, Renew, Renewed, Reply, Request, ResourceView, Store, Topic,
        Verdict, Wake, WakeSink, Watch,
    },
};

use crate::wrapper::same_store;

type ChangeVerdict = dyn Fn(&Claim, Verdict) -> Verdict + Send + Sync;
type ChangeRenewed = dyn Fn(&Renew, Renewed) -> Renewed + Send + Sync;
type BeforeAlone = dyn Fn(&[Request]) -> BoxFuture<'static, ()> + Send + Sync;
type ChangeServer = dyn Fn(&Name, usize) -> usize + Send + Sync;
type ChangeWake = dyn Fn(Wake) -> Option<Wake> + Send + Sync;
type ChangeWatch =
    dyn Fn(Topic, Reply<'static, Option<Watch>>) -> Reply<'static, Option<Watch>> + Send + Sync;

/// The overridden parts; by default none.
pub struct Overrides {
    capability: Box<dyn Fn(&mut Capability) + Send + Sync>,
    verdict: Box<ChangeVerdict>,
    alone: Box<BeforeAlone>,
    renewed: Box<ChangeRenewed>,
    server: Box<ChangeServer>,
    wake: Box<ChangeWake>,
    watch: Box<ChangeWatch>,
}

impl Overrides {
    /// Begins without any change.
    #[expect(clippy::new_without_default, reason = "there is nothing default about an overridden store")]
    pub fn new() -> Self {
        Self {
            capability: Box::new(|_| {}),
            verdict: Box::new(|_, verdict| verdict),
            alone: Box::new(|_| Box::pin(std::future::ready(()))),
            renewed: Box::new(|_, renewed| renewed),
            server: Box::new(|_, server| server),
            wake: Box::new(Some),
            watch: Box::new(|_, watch| watch),
        }
    }

    /// Changes the store's own description of its abilities.
    pub fn capability(mut self, change: impl Fn(&mut Capability) + Send + Sync + 'static) -> Self {
        self.capability = Box::new(change);
        self
    }

    /// Changes the answers to claims.
    pub fn verdicts(mut self, change: impl Fn(&Claim, Verdict) -> Verdict + Send + Sync + 'static) -> Self {
        self.verdict = Box::new(change);
        self
    }

    /// Does something before requests that are asked again alone.
    pub fn before_alone(
        mut self,
        act: impl Fn(&[Request]) -> BoxFuture<'static, ()> + Send + Sync + 'static,
    ) -> Self {
        self.alone = Box::new(act);
        self
    }

    /// Changes the answers to renewals.
    pub fn renewals(mut self, change: impl Fn(&Renew, Renewed) -> Renewed + Send + Sync + 'static) -> Self {
        self.renewed = Box::new(change);
        self
    }

    /// Changes which server keeps a name.
    pub fn servers(mut self, change: impl Fn(&Name, usize) -> usize + Send + Sync + 'static) -> Self {
        self.server = Box::new(change);
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

    fn server_of(&self, name: &Name) -> usize {
        (self.overrides.server)(name, self.inner.server_of(name))
    }

    same_store!(but capability, server_of);

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

    fn apply_alone<'a>(&'a self, group: &'a [Request]) -> Reply<'a, Answers<Answer>> {
        Box::pin(async move {
            (self.overrides.alone)(group).await;
            self.apply(group).await
        })
    }

    fn renew<'a>(&'a self, leases: &'a [Renew]) -> Reply<'a, Answers<Renewed>> {
        Box::pin(async move {
            let mut answers = self.inner.renew(leases).await?;
            let changed = leases.iter().zip(answers.each);
            answers.each = changed.map(|(renew, renewed)| (self.overrides.renewed)(renew, renewed)).collect();
            Ok(answers)
        })
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
