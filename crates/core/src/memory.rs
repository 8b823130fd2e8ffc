//! The memory store: the model behind a mutex, shared by the keepers of one process.
//!
//! It is the reference for every other store, and users test their own code with it. Several
//! keepers on one [`MemoryServer`] behave like several processes on one server.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak},
    time::Duration,
};

use crate::{
    capability::{Capability, Survives},
    clock::Clock,
    error::StoreError,
    id::KeeperId,
    model::{Effects, Model, Now},
    name::Name,
    store::{
        Admit, Admitted, Answer, Answers, BoxFuture, Connector, Context, Count, CountAction, Counted,
        Enrolment, Evict, Evicted, LatchPage, ListQuery, Member, MemberAnswers, MemberState, Membership,
        Page, Renew, Renewed, Reply, Request, ResourceView, Store, Topic, Wake, WakeSink, Watch,
    },
};

use crate::support;

/// The abilities of the memory store.
pub static CAPABILITY: Capability = {
    let mut can = Capability::new("memory");
    can.pushes = true;
    can.max_lease = Duration::from_secs(366 * 24 * 3600);
    can.detachable = true;
    can.counts_permits = true;
    can.may_be_member = true;
    can.group_limit = 1024;
    can.client_crash = Survives::NotApplicable;
    can.restart = Survives::NotApplicable;
    can.data_loss = Survives::NotApplicable;
    can.clock_jump = Survives::Fully;
    can
};

/// A store in this process's memory. Clones share it.
#[derive(Clone, Debug)]
pub struct MemoryServer(Arc<Server>);

#[derive(Debug)]
struct Server {
    id: String,
    clock: Clock,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    model: Model,
    /// The record that it keeps for the quorum that it is a member of.
    record: Option<Arc<str>>,
    /// How often it lost its data.
    losses: u64,
    /// In order, so that a simulated run repeats exactly.
    keepers: BTreeMap<KeeperId, WakeSink>,
    watches: HashMap<Topic, BTreeSet<KeeperId>>,
}

impl MemoryServer {
    /// An empty store whose leases run on `clock`.
    pub fn new(clock: Clock) -> Self {
        let id = format!("memory-{}", KeeperId::random());
        Self(Arc::new(Server { id, clock, state: Mutex::default() }))
    }

    /// The store with this name in this process, made when first asked for and dropped with its
    /// last keeper.
    pub fn named(name: &str) -> Self {
        static NAMED: OnceLock<Mutex<HashMap<String, Weak<Server>>>> = OnceLock::new();
        let mut named = NAMED.get_or_init(Mutex::default).lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(server) = named.get(name).and_then(Weak::upgrade) {
            return Self(server);
        }
        named.retain(|_, server| server.strong_count() > 0);
        let server = Self::new(Clock::boot());
        named.insert(name.to_owned(), Arc::downgrade(&server.0));
        server
    }

    /// Connects a keeper to this store; messages call it `url`.
    pub fn connector(&self, url: &str) -> Connector {
        let (server, url) = (self.clone(), Arc::<str>::from(url));
        Connector::new(move |context: Context| {
            let (keeper, server, url) = (context.keeper, server.clone(), Arc::clone(&url));
            server.0.lock().keepers.insert(keeper, context.wakes);
            std::future::ready(Ok(Arc::new(MemoryStore { server, keeper, url }) as Arc<dyn Store>))
        })
    }

    /// How many resources the store keeps: zero when everything was given back.
    pub fn kept(&self) -> usize {
        self.0.lock().model.kept()
    }

    /// Forgets everything, as a server that restarts without its data does.
    pub fn lose_data(&self) {
        let mut state = self.0.lock();
        state.model = Model::default();
        state.record = None;
        state.losses += 1;
        state.wake_all(&Wake::Resync);
    }
}

/// Connects to the memory store named by `url`: `memory:` is a new one of its own,
/// `memory:NAME` is shared by this process.
pub fn connector(url: &str) -> Connector {
    let server = match url.strip_prefix("memory:").unwrap_or_default() {
        "" => MemoryServer::new(Clock::boot()),
        name => MemoryServer::named(name),
    };
    server.connector(url)
}

impl Server {
    fn lock(&self) -> MutexGuard<'_, State> {
        support::lock(&self.state)
    }

    fn now(&self) -> Now {
        Now::of(&self.clock)
    }
}

impl State {
    fn membership(&self) -> Membership {
        Membership { record: self.record.clone(), incarnation: self.losses.to_string().into() }
    }

    /// Runs the model's step for each request, telling the effects as they come.
    fn each<R, T>(
        &mut self,
        now: Now,
        requests: &[R],
        name: impl Fn(&R) -> &Name,
        step: impl Fn(&mut Model, Now, &R, &mut Effects) -> T,
    ) -> Answers<T> {
        let each = requests.iter().map(|request| {
            let mut effects = Effects::default();
            let answer = step(&mut self.model, now, request, &mut effects);
            self.tell(name(request), effects);
            answer
        });
        Answers { now: now.lease, each: each.collect() }
    }

    /// Pushes the effects of a transition of `name`.
    fn tell(&self, name: &Name, effects: Effects) {
        for grant in effects.grants {
            if let Some(sink) = self.keepers.get(&grant.contender.keeper) {
                sink.wake(Wake::Granted(name.clone(), grant));
            }
        }
        if effects.changed && !self.watches.is_empty() {
            self.tell_watchers(&Topic::Changes(name.clone()));
        }
    }

    fn tell_watchers(&self, topic: &Topic) {
        for keeper in self.watches.get(topic).into_iter().flatten() {
            if let Some(sink) = self.keepers.get(keeper) {
                sink.wake(Wake::Changed(topic.clone()));
            }
        }
    }

    fn wake_all(&self, wake: &Wake) {
        for sink in self.keepers.values() {
            sink.wake(wake.clone());
        }
    }
}

/// One keeper's connection to a [`MemoryServer`].
#[derive(Debug)]
struct MemoryStore {
    server: MemoryServer,
    keeper: KeeperId,
    url: Arc<str>,
}

impl MemoryStore {
    fn run<T>(&self, act: impl FnOnce(&mut State, Now) -> T) -> T {
        let server = &self.server.0;
        let mut state = server.lock();
        let now = server.now();
        act(&mut state, now)
    }
}

impl Drop for MemoryStore {
    /// A keeper that goes without closing hears nothing more; its leases run out by themselves.
    fn drop(&mut self) {
        self.run(|state, _| state.keepers.remove(&self.keeper));
    }
}

fn ready<'a, T: Send + 'a>(value: T) -> Reply<'a, T> {
    Box::pin(std::future::ready(Ok::<T, StoreError>(value)))
}

impl Store for MemoryStore {
    fn capability(&self) -> &Capability {
        &CAPABILITY
    }

    fn url(&self) -> &Arc<str> {
        &self.url
    }

    fn id(&self) -> &str {
        &self.server.0.id
    }

    fn apply<'a>(&'a self, group: &'a [Request]) -> Reply<'a, Answers<Answer>> {
        ready(self.run(|state, now| state.each(now, group, Request::name, Model::apply)))
    }

    fn renew<'a>(&'a self, leases: &'a [Renew]) -> Reply<'a, Answers<Renewed>> {
        ready(self.run(|state, now| state.each(now, leases, |renew| &renew.name, Model::renew)))
    }

    fn watch<'a>(&'a self, topic: &'a Topic) -> Reply<'a, Option<Watch>> {
        if matches!(topic, Topic::Grants(_)) {
            return ready(None);
        }
        self.run(|state, _| state.watches.entry(topic.clone()).or_default().insert(self.keeper));
        let subscription =
            Subscription { server: self.server.clone(), keeper: self.keeper, topic: topic.clone() };
        ready(Some(Watch::new(subscription)))
    }

    fn inspect<'a>(&'a self, name: &'a Name) -> Reply<'a, Option<ResourceView>> {
        ready(self.run(|state, now| state.model.inspect(now, name)))
    }

    fn list<'a>(&'a self, query: &'a ListQuery) -> Reply<'a, Page> {
        ready(self.run(|state, now| state.model.list(now, query)))
    }

    fn latches<'a>(&'a self, query: &'a ListQuery) -> Reply<'a, LatchPage> {
        ready(self.run(|state, _| state.model.latches(query)))
    }

    fn evict<'a>(&'a self, order: &'a Evict) -> Reply<'a, Evicted> {
        ready(self.run(|state, now| {
            let mut effects = Effects::default();
            let evicted = state.model.evict(now, order, &mut effects);
            state.tell(&order.name, effects);
            evicted
        }))
    }

    fn count<'a>(&'a self, count: &'a Count) -> Reply<'a, Answers<Counted>> {
        ready(self.run(|state, now| {
            let counted = state.model.count(now, count);
            if count.action != CountAction::Read {
                state.tell_watchers(&Topic::Latch(count.name.clone()));
            }
            Answers { now: now.lease, each: vec![counted] }
        }))
    }

    fn fence<'a>(&'a self, admit: &'a Admit) -> Reply<'a, Admitted> {
        ready(self.run(|state, _| state.model.fence(admit)))
    }

    fn member(&self) -> Option<&dyn Member> {
        Some(self)
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        self.run(|state, _| state.keepers.remove(&self.keeper));
        Box::pin(std::future::ready(()))
    }
}

impl Member for MemoryStore {
    fn apply<'a>(&'a self, group: &'a [Request]) -> Reply<'a, MemberAnswers<Answer>> {
        ready(self.run(|state, now| MemberAnswers {
            membership: state.membership(),
            answers: state.each(now, group, Request::name, Model::apply),
        }))
    }

    fn renew<'a>(&'a self, leases: &'a [Renew]) -> Reply<'a, MemberAnswers<Renewed>> {
        ready(self.run(|state, now| MemberAnswers {
            membership: state.membership(),
            answers: state.each(now, leases, |renew| &renew.name, Model::renew),
        }))
    }

    fn state(&self) -> Reply<'_, MemberState> {
        ready(self.run(|state, now| MemberState {
            membership: state.membership(),
            wall: now.wall,
            high_water: state.model.high_water.0,
            server: self.server.0.id.as_str().into(),
        }))
    }

    fn enrol<'a>(&'a self, enrolment: &'a Enrolment) -> Reply<'a, bool> {
        ready(self.run(|state, _| {
            let is_expected =
                state.membership() == enrolment.expected && state.model.high_water.0 <= enrolment.high_water;
            if is_expected {
                state.record = Some(enrolment.record.clone());
                state.model.high_water.raise(enrolment.high_water);
            }
            is_expected
        }))
    }
}

/// A keeper's interest in a topic; the engine has at most one per keeper and topic.
struct Subscription {
    server: MemoryServer,
    keeper: KeeperId,
    topic: Topic,
}

impl Drop for Subscription {
    fn drop(&mut self) {
        let mut state = self.server.0.lock();
        if let Some(keepers) = state.watches.get_mut(&self.topic) {
            keepers.remove(&self.keeper);
            if keepers.is_empty() {
                state.watches.remove(&self.topic);
            }
        }
    }
}
