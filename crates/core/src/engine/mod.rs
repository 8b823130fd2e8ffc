//! The engine behind a keeper: the work that every lock needs and no store knows.
//!
//! Each part has a file: [`acquisition`] (down to the store and up again), [`dispatch`] (requests in groups), [`wakes`]
//! (what a store says by itself), [`renewal`] and [`release`]. [`Engine`] owns the state that the parts share, and every
//! part is handed it. Nothing here knows a primitive or a particular store.

pub(crate) mod acquisition;
pub(crate) mod counting;
mod dispatch;
mod heard;
pub(crate) mod hold;
pub(crate) mod hold_step;
mod last_handle;
mod local_queue;
pub(crate) mod looks;
mod outages;
pub(crate) mod patience;
mod registry;
pub(crate) mod release;
pub(crate) mod renewal;
mod settle;
mod store_client;
mod store_clock;
mod subscriptions;
pub(crate) mod terms;
pub(crate) mod thread;
mod waiter;
mod wakes;
mod watchdog;
pub(crate) mod watching;

use std::{
    fmt,
    hash::{DefaultHasher, Hash, Hasher},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use tokio::runtime::Handle;

use self::{
    dispatch::{Dispatcher, Rescuer},
    last_handle::LastHandle,
    local_queue::LocalQueues,
    registry::Registry,
    release::{Leaves, OwnedHold},
    store_client::StoreClient,
    subscriptions::{Subscription, Subscriptions},
    thread::Stop,
    waiter::Outcome,
};
use crate::{
    clock::Clock,
    error::StoreError,
    id::{ContenderId, Ids, KeeperId},
    name::Name,
    store::{ProcessInfo, Reply, Store, StoreTime, Topic, Wake},
    support::calm::calm,
};

/// The settings that a keeper is made with.
pub(crate) struct Settings {
    pub(crate) clock: Clock,
    pub(crate) request_limit: Duration,
    pub(crate) outage_limit: Duration,
    /// The lease of a lock that says nothing else.
    pub(crate) default_lease: Duration,
    pub(crate) process: Arc<ProcessInfo>,
}

/// The counts of a keeper's grants, positions and more at this moment: all zero when everything was given back.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Stats {
    /// Grants held at the store.
    pub held: usize,
    /// Positions in the store's queues.
    pub waiting: usize,
    /// Grants and positions being given back.
    pub leaving: usize,
    /// Mutexes that tasks of this process hold or wait for together.
    pub local_queues: usize,
    /// Subscriptions at the store; one that nobody uses ends after a few seconds.
    pub subscriptions: usize,
}

pub(crate) struct Engine {
    client: Arc<StoreClient>,
    dispatcher: Arc<Dispatcher>,
    registry: Registry,
    local_queues: Arc<LocalQueues<OwnedHold>>,
    subscriptions: Subscriptions,
    leaves: Leaves,
    ids: Arc<Ids>,
    process: Arc<ProcessInfo>,
    outage_limit: Duration,
    default_lease: Duration,
    /// How far this keeper's polls are shifted, so that not all keepers of a store poll at once.
    phase: Duration,
    closed: AtomicBool,
    last_handle: LastHandle,
    stop: Stop,
}

impl Engine {
    pub(crate) fn new(
        store: Arc<dyn Store>,
        settings: Settings,
        ids: Arc<Ids>,
        background: Handle,
        stop: Stop,
    ) -> Arc<Self> {
        let Settings { clock, request_limit, outage_limit, default_lease, process } = settings;
        let client = Arc::new(StoreClient::new(store, clock.clone(), request_limit, background.clone()));
        let rescuer = Rescuer::new(background.clone(), stop.clone());
        Arc::new(Self {
            phase: phase(ids.keeper()),
            dispatcher: Dispatcher::new(client.clone(), rescuer),
            client,
            registry: Registry::new(request_limit),
            local_queues: LocalQueues::new(clock, background),
            subscriptions: Subscriptions::default(),
            leaves: Leaves::default(),
            ids,
            process,
            outage_limit,
            default_lease,
            closed: AtomicBool::new(false),
            last_handle: LastHandle::default(),
            stop,
        })
    }

    /// Learns the store's clock, and from then on renews and asks again.
    pub(crate) async fn start(self: &Arc<Self>) -> Result<(), StoreError> {
        self.client.learn_clock().await?;
        self.background().spawn(self.dispatcher.rescuer().clone().run(self.clock().clone()));
        self.background().spawn(watchdog::run(self.clone()));
        Ok(())
    }

    pub(crate) fn store(&self) -> &Arc<dyn Store> {
        &self.client.store
    }

    /// The lease of a lock that says nothing else.
    pub(crate) fn default_lease(&self) -> Duration {
        self.default_lease
    }

    pub(crate) fn clock(&self) -> &Clock {
        &self.client.clock
    }

    pub(crate) fn background(&self) -> &Handle {
        &self.client.background
    }

    fn asks_again(&self) -> Duration {
        self.store().capability().asks_again
    }

    /// Returns the store's time until which a copy of a claim of `name` that is sent now takes effect.
    pub(crate) fn latest_copy(&self, name: &Name) -> StoreTime {
        self.client.store_clock.not_after(self.client.server_of(name), self.clock().now())
    }

    pub(crate) fn keeper_id(&self) -> KeeperId {
        self.ids.keeper()
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    pub(crate) fn next_id(&self) -> ContenderId {
        self.ids.next()
    }

    pub(crate) fn stats(&self) -> Stats {
        let (waiting, held) = self.registry.counts();
        Stats {
            held,
            waiting,
            leaving: self.leaves.count(),
            local_queues: self.local_queues.count(),
            subscriptions: self.subscriptions.count(),
        }
    }

    /// Asks the store, but not for longer than a request may take.
    pub(crate) async fn ask<T>(&self, operation: &'static str, reply: Reply<'_, T>) -> Result<T, StoreError> {
        self.client.ask(operation, reply).await
    }

    /// Subscribes to changes of a topic.
    pub(crate) async fn subscribe(&self, topic: &Topic) -> Result<Subscription, StoreError> {
        self.subscriptions.subscribe(&self.client, topic, || self.registry.nudge()).await
    }

    /// Takes in what the store says by itself.
    pub(crate) fn wake(self: &Arc<Self>, wake: Wake) {
        wakes::deliver(self, wake);
    }

    /// Gives everything back, and ends when that is done. Dropping the future stops nothing.
    pub(crate) async fn close(self: &Arc<Self>) {
        self.shut(None);
        calm(self.stop.stopped()).await;
    }

    /// Ends all that is held and waited for, once, and gives it back in the background: past `limit` the leases end by
    /// themselves.
    fn shut(self: &Arc<Self>, limit: Option<Duration>) {
        if self.closed.swap(true, Ordering::AcqRel) {
            return;
        }
        let everything = self.registry.close();
        self.local_queues.shut();
        for waiter in everything.waiters {
            drop(waiter.tell(Outcome::Closed));
            if waiter.is_known()
                && let Some(in_flight) = release::leave_queue(&waiter)
            {
                in_flight.into_background();
            }
        }
        for hold in everything.holds {
            release::closed(self, &hold);
        }
        self.subscriptions.all_changed();
        let engine = self.clone();
        self.background().spawn(async move {
            match limit {
                Some(limit) => drop(engine.clock().within(limit, engine.leaves.finished()).await),
                None => engine.leaves.finished().await,
            }
            engine.subscriptions.clear();
            // A store that does not answer must not keep the thread.
            engine.clock().within(engine.client.request_limit, engine.store().close()).await;
            engine.stop.stop();
        });
    }
}

/// The moment of the beat at which a keeper polls. By its id, so that a simulated run repeats exactly.
fn phase(keeper: KeeperId) -> Duration {
    let mut hasher = DefaultHasher::new();
    keeper.hash(&mut hasher);
    Duration::from_millis(hasher.finish() % 3_600_000)
}

/// The engine, for as long as a user has it: keepers, locks, guards and their futures. When the last one goes, it waits
/// for what is being given back (I16), and the keeper's thread ends.
///
/// Tasks of the engine's own have the engine and never this, or a user's last handle would not be seen as the last, and
/// the task would wait for itself.
pub(crate) struct Alive(Arc<Engine>);

impl Alive {
    pub(crate) fn new(engine: Arc<Engine>) -> Arc<Self> {
        Arc::new(Self(engine))
    }

    pub(crate) fn engine(&self) -> &Arc<Engine> {
        &self.0
    }
}

impl Drop for Alive {
    fn drop(&mut self) {
        last_handle::gone(&self.0);
    }
}

impl fmt::Debug for Alive {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.store().url())
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::{
        memory::MemoryServer,
        store::{Context, WakeSink},
    };

    /// An engine on a memory store of its own, without a watchdog: nothing happens by itself.
    pub(crate) async fn engine() -> Arc<Engine> {
        let (clock, background, limit) = (Clock::boot(), Handle::current(), Duration::from_secs(10));
        let ids = Arc::new(Ids::new(KeeperId::from_u128(1)));
        let context = Context {
            keeper: ids.keeper(),
            wakes: WakeSink::new(drop),
            background: background.clone(),
            clock: clock.clone(),
            request_limit: limit,
        };
        let connecting = MemoryServer::new(clock.clone()).connector("memory:").connect(context);
        let store = connecting.await.expect("a memory store");
        let process = ProcessInfo { host: "here".into(), pid: 1, program: "test".into() };
        let settings = Settings {
            clock,
            request_limit: limit,
            outage_limit: limit,
            default_lease: limit,
            process: Arc::new(process),
        };
        Engine::new(store, settings, ids, background, Stop::new())
    }

    /// Else a store with many waiting processes would hear nothing for two seconds, and then all.
    #[test]
    fn keepers_do_not_poll_at_the_same_moment() {
        let mut slots = std::collections::HashSet::new();
        for id in 0..64 {
            slots.insert(phase(KeeperId::from_u128(id)).as_millis() % 2000 / 100);
        }
        assert!(slots.len() >= 15, "64 keepers poll in {} of 20 tenths of a second", slots.len());
    }
}
