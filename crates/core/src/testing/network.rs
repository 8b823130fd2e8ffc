//! A network between keepers and their store, for tests: it delays, loses and doubles requests, replies and wakes.
//!
//! It wraps any store and knows the store trait alone. A delayed request arrives even if its sender has given up on it,
//! as on a real network.

use std::{
    borrow::Borrow,
    collections::VecDeque,
    fmt,
    future::pending,
    sync::{Arc, Mutex},
    time::Duration,
};

use tokio::{runtime::Handle, sync::oneshot, time::sleep};

use crate::{
    capability::Capability,
    error::{StoreError, StoreErrorKind},
    name::Name,
    store::{
        Admit, Admitted, Answer, Answers, BoxFuture, Connector, Context, Count, Counted, Enrolment, Evict,
        Evicted, LatchPage, ListQuery, Member, MemberAnswers, MemberState, Page, Renew, Renewed, Reply,
        Request, ResourceView, Store, Topic, Wake, WakeSink, Watch,
    },
    support,
};

/// The fate of one request.
#[derive(Clone, Copy, Debug)]
pub struct Fate {
    /// How long it is under way to the store.
    pub before: Duration,
    /// Whether it gets there.
    pub arrives: bool,
    /// Whether it gets there twice, and how much later if the first copy is not answered.
    pub again: Option<Duration>,
    /// How long the reply is under way.
    pub after: Duration,
    /// Whether the reply gets back.
    pub answers: bool,
}

impl Fate {
    /// Done and answered at once.
    pub const GOOD: Self =
        Self { before: Duration::ZERO, arrives: true, again: None, after: Duration::ZERO, answers: true };
    /// Never done.
    pub const LOST_REQUEST: Self = Self { arrives: false, answers: false, ..Self::GOOD };
    /// Done, but the reply is lost.
    pub const LOST_REPLY: Self = Self { answers: false, ..Self::GOOD };

    /// Arrives only after `delay`.
    pub const fn late(delay: Duration) -> Self {
        Self { before: delay, ..Self::GOOD }
    }
}

/// Decides the fates of requests and wakes for a [`Network`] where none was ordered: by chance, for instance.
pub trait FateSource: fmt::Debug + Send + Sync + 'static {
    /// Returns the fate of the next request.
    fn request(&self) -> Fate;

    /// How long each copy of the next wake is under way. Without copies the wake is lost.
    fn wake(&self) -> Vec<Duration>;
}

/// The network between keepers and their store, good until told otherwise. Clones are the same network.
///
/// Each [`Virtual`](super::Virtual) has one for all its keepers. A request that gets no reply fails after the keeper's
/// request limit (2 s), and nobody knows whether it was done.
///
/// **An outage**: a holder is told in time that it lost its lock, and asks again when the store is back.
///
/// ```
/// # use std::time::Duration;
/// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() -> Result<(), lockkeeper::Error> {
/// use lockkeeper::testing::Virtual;
///
/// let world = Virtual::new();
/// let keeper = world.keeper().await;
/// let guard = keeper.mutex("report").lock().await?;
/// world.network.cut();
/// assert!(keeper.mutex("other").try_lock().await.is_err());
/// guard.lost().await;                                        // the lease of 30 s could not be renewed
/// world.network.restore();
/// assert!(keeper.mutex("report").lock().await?.is_held());
/// # Ok(()) }
/// ```
///
/// **A slow store**: a caller that gives up leaves no lock behind, although its request arrives later.
///
/// ```
/// # use std::time::Duration;
/// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() -> Result<(), lockkeeper::Error> {
/// # use lockkeeper::testing::Virtual;
/// # let world = Virtual::new();
/// # let keeper = world.keeper().await;
/// world.network.delay(Duration::from_millis(500));
/// let report = keeper.mutex("report");
/// assert!(tokio::time::timeout(Duration::from_millis(200), report.lock()).await.is_err());
/// tokio::time::sleep(Duration::from_secs(2)).await;          // takes no time
/// assert!(keeper.inspect("report").await?.is_none());
/// # Ok(()) }
/// ```
///
/// **A lost reply**: the store granted the lock and the keeper does not know it. It asks again by itself.
///
/// ```
/// # use std::time::Duration;
/// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() -> Result<(), lockkeeper::Error> {
/// use lockkeeper::testing::{Fate, Network};
/// # use lockkeeper::testing::Virtual;
/// # let world = Virtual::new();
///
/// let network = Network::new();                              // of this keeper alone
/// let keeper = world.keeper_behind(&network).await;
/// network.next(Fate::LOST_REPLY);
/// let started = tokio::time::Instant::now();
/// let guard = keeper.mutex("report").lock().await?;
/// assert!(guard.is_held() && started.elapsed() >= Duration::from_secs(2));
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct Network(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    source: Option<Arc<dyn FateSource>>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// The fates of the next requests, in order.
    script: VecDeque<Fate>,
    delay: Duration,
    cut: bool,
    /// The sinks of the keepers behind this network.
    sinks: Vec<WakeSink>,
}

impl Network {
    /// A good network.
    #[expect(clippy::new_without_default, reason = "a network is shared, so another one is made on purpose")]
    pub fn new() -> Self {
        Self(Arc::default())
    }

    /// A network that asks `source` about every request and every wake.
    pub fn by(source: Arc<dyn FateSource>) -> Self {
        Self(Arc::new(Shared { source: Some(source), state: Mutex::default() }))
    }

    /// Decides the fate of the next request that has none yet. Renewals are requests too.
    pub fn next(&self, fate: Fate) {
        support::lock(&self.0.state).script.push_back(fate);
    }

    /// Every later request and wake takes this long to arrive; zero ends it.
    pub fn delay(&self, delay: Duration) {
        support::lock(&self.0.state).delay = delay;
    }

    /// An outage: nothing passes in either direction, and all that is under way is lost.
    pub fn cut(&self) {
        support::lock(&self.0.state).cut = true;
    }

    /// Ends an outage. Keepers hear that they may have missed something, as after a reconnection.
    pub fn restore(&self) {
        let sinks = {
            let mut state = support::lock(&self.0.state);
            state.cut = false;
            state.sinks.clone()
        };
        for sink in sinks {
            sink.wake(Wake::Resync);
        }
    }

    /// The store that `connector` connects to, behind this network.
    pub fn wrap(&self, connector: Connector) -> Connector {
        let network = self.clone();
        Connector::new(move |mut context: Context| {
            let (sink, background) = (context.wakes.clone(), context.background.clone());
            support::lock(&network.0.state).sinks.push(sink.clone());
            let wakes = network.clone();
            context.wakes = WakeSink::new(move |wake| wakes.wake(&sink, &wake, &background));
            let (connecting, network) = (connector.connect(context), network.clone());
            async move { Ok(Arc::new(DistantStore { inner: connecting.await?, network }) as Arc<dyn Store>) }
        })
    }

    fn is_cut(&self) -> bool {
        support::lock(&self.0.state).cut
    }

    /// The fate of a request; `None` if there is nothing between keeper and store.
    fn fate(&self) -> Option<Fate> {
        let mut state = support::lock(&self.0.state);
        if let Some(fate) = state.script.pop_front() {
            return Some(fate);
        }
        let (delay, cut) = (state.delay, state.cut);
        drop(state);
        match &self.0.source {
            Some(source) => Some(source.request()),
            None => (cut || !delay.is_zero()).then(|| Fate::late(delay)),
        }
    }

    /// Sends a wake over the network.
    fn wake(&self, sink: &WakeSink, wake: &Wake, background: &Handle) {
        if self.is_cut() {
            return;
        }
        let copies = match &self.0.source {
            Some(source) => source.wake(),
            None => match support::lock(&self.0.state).delay {
                Duration::ZERO => return sink.wake(wake.clone()),
                delay => vec![delay],
            },
        };
        for delay in copies {
            let (network, sink, wake) = (self.clone(), sink.clone(), wake.clone());
            // Wakes come from any thread, also from one without a runtime.
            background.spawn(async move {
                sleep(delay).await;
                if !network.is_cut() {
                    sink.wake(wake);
                }
            });
        }
    }
}

/// A store behind a network.
#[derive(Debug)]
struct DistantStore {
    inner: Arc<dyn Store>,
    network: Network,
}

impl DistantStore {
    /// Sends `request` over the network in a task of its own, so it arrives even if its sender gives up.
    fn send<'s, R, T>(
        &'s self,
        request: &'s R,
        ask: impl for<'a> Fn(&'a dyn Store, &'a R) -> Reply<'a, T> + Send + Sync + 'static,
    ) -> Reply<'s, T>
    where
        R: ToOwned + Sync + ?Sized,
        R::Owned: Send + Sync + 'static,
        T: Send + 'static,
    {
        let Some(fate) = self.network.fate() else { return ask(&*self.inner, request) };
        let (inner, network, request) = (self.inner.clone(), self.network.clone(), request.to_owned());
        let (sender, reply) = oneshot::channel::<Result<T, StoreError>>();
        tokio::spawn(async move {
            let request = request.borrow();
            sleep(fate.before).await;
            if network.is_cut() || !fate.arrives {
                return;
            }
            let result = ask(&*inner, request).await;
            if fate.again.is_some() {
                drop(ask(&*inner, request).await);
            }
            if fate.answers {
                sleep(fate.after).await;
                if !network.is_cut() {
                    // The sender may have given up.
                    sender.send(result).ok();
                }
            } else if let Some(later) = fate.again {
                sleep(later).await;
                if !network.is_cut() {
                    drop(ask(&*inner, request).await);
                }
            }
        });
        Box::pin(async move {
            match reply.await {
                Ok(result) => result,
                // Never an answer: the sender waits as long as it likes.
                Err(_) => pending().await,
            }
        })
    }
}

#[deny(clippy::missing_trait_methods)]
impl Store for DistantStore {
    fn capability(&self) -> &Capability {
        self.inner.capability()
    }

    fn url(&self) -> &Arc<str> {
        self.inner.url()
    }

    fn id(&self) -> &str {
        self.inner.id()
    }

    fn server_of(&self, name: &Name) -> usize {
        self.inner.server_of(name)
    }

    fn shorter_leases(&self) -> Option<&str> {
        self.inner.shorter_leases()
    }

    fn apply<'a>(&'a self, group: &'a [Request]) -> Reply<'a, Answers<Answer>> {
        self.send(group, |store, group| store.apply(group))
    }

    fn apply_alone<'a>(&'a self, group: &'a [Request]) -> Reply<'a, Answers<Answer>> {
        self.send(group, |store, group| store.apply_alone(group))
    }

    fn renew<'a>(&'a self, leases: &'a [Renew]) -> Reply<'a, Answers<Renewed>> {
        self.send(leases, |store, leases| store.renew(leases))
    }

    fn watch<'a>(&'a self, topic: &'a Topic) -> Reply<'a, Option<Watch>> {
        self.inner.watch(topic)
    }

    fn inspect<'a>(&'a self, name: &'a Name) -> Reply<'a, Option<ResourceView>> {
        self.send(name, |store, name| store.inspect(name))
    }

    fn list<'a>(&'a self, query: &'a ListQuery) -> Reply<'a, Page> {
        self.send(query, |store, query| store.list(query))
    }

    fn latches<'a>(&'a self, query: &'a ListQuery) -> Reply<'a, LatchPage> {
        self.send(query, |store, query| store.latches(query))
    }

    fn evict<'a>(&'a self, order: &'a Evict) -> Reply<'a, Evicted> {
        self.send(order, |store, order| store.evict(order))
    }

    fn count<'a>(&'a self, count: &'a Count) -> Reply<'a, Answers<Counted>> {
        self.send(count, |store, count| store.count(count))
    }

    fn fence<'a>(&'a self, admit: &'a Admit) -> Reply<'a, Admitted> {
        self.send(admit, |store, admit| store.fence(admit))
    }

    #[cfg(unix)]
    fn life_line(&self) -> Option<std::os::fd::OwnedFd> {
        self.inner.life_line()
    }

    fn leave_caller(&self) {
        self.inner.leave_caller();
    }

    fn still_leaves(&self) -> bool {
        self.inner.still_leaves()
    }

    fn member(&self) -> Option<&dyn Member> {
        self.inner.member().is_some().then_some(self as &dyn Member)
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        self.inner.close()
    }
}

/// Asks a member that is there: nobody gets a [`DistantStore`] as a member otherwise.
fn of_member<'a, T: Send + 'a>(
    store: &'a dyn Store,
    ask: impl FnOnce(&'a dyn Member) -> Reply<'a, T>,
) -> Reply<'a, T> {
    let none = || StoreError::new(StoreErrorKind::Unsupported, "this store cannot be a member of a quorum");
    match store.member() {
        Some(member) => ask(member),
        None => Box::pin(std::future::ready(Err(none()))),
    }
}

impl Member for DistantStore {
    fn apply<'a>(&'a self, group: &'a [Request]) -> Reply<'a, MemberAnswers<Answer>> {
        self.send(group, |store, group| of_member(store, |member| member.apply(group)))
    }

    fn renew<'a>(&'a self, leases: &'a [Renew]) -> Reply<'a, MemberAnswers<Renewed>> {
        self.send(leases, |store, leases| of_member(store, |member| member.renew(leases)))
    }

    fn state(&self) -> Reply<'_, MemberState> {
        self.send(&(), |store, ()| of_member(store, Member::state))
    }

    fn enrol<'a>(&'a self, enrolment: &'a Enrolment) -> Reply<'a, bool> {
        self.send(enrolment, |store, enrolment| of_member(store, |member| member.enrol(enrolment)))
    }
}
