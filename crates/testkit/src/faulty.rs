//! A store behind a bad network: requests and replies are delayed, lost or doubled, wakes too.
//!
//! It wraps any store, so it tests the engine's logic in virtual time and a real store's in real
//! time. A delayed request arrives even if its sender has given up on it, as on a real network.

use std::{
    collections::VecDeque,
    future::pending,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use lockkeeper_core::{
    Name, StoreError,
    store::{
        Admit, Admitted, Answer, Answers, Connector, Context, Count, Counted, Evict, Evicted, ListQuery,
        Page, Renew, Renewed, Reply, Request, ResourceView, Store, Topic, Wake, WakeSink, Watch,
    },
    support,
};
use tokio::{runtime::Handle, sync::oneshot, time::sleep};

use crate::{dice::Dice, wrapper::same_store};

/// How bad a network is: chances in a thousand, times in milliseconds.
#[derive(Clone, Copy, Debug)]
pub struct Faults {
    /// Requests that never arrive.
    pub lost_request: u64,
    /// Requests that are done but whose reply never comes.
    pub lost_reply: u64,
    /// Requests that arrive once more: at once if the first copy is answered, up to `late` later
    /// if not. (A copy that comes after an answer that arrived would be the work of a driver that
    /// repeats requests by itself, which the contract forbids.)
    pub doubled: u64,
    /// Requests or replies that take up to `late`.
    pub slow: u64,
    /// Wakes that never come.
    pub lost_wake: u64,
    /// Wakes that come twice or late.
    pub odd_wake: u64,
    /// What every request takes at most.
    pub usual: u64,
    /// What a slow one takes at most.
    pub late: u64,
}

impl Faults {
    /// A good network.
    pub const NONE: Self = Self {
        lost_request: 0,
        lost_reply: 0,
        doubled: 0,
        slow: 0,
        lost_wake: 0,
        odd_wake: 0,
        usual: 3,
        late: 0,
    };

    /// A bad network, drawn from dice.
    pub fn some(dice: &mut Dice) -> Self {
        let mut rate = |most| if dice.chance(500) { dice.below(most) } else { 0 };
        Self {
            lost_request: rate(60),
            lost_reply: rate(100),
            doubled: rate(150),
            slow: rate(100),
            lost_wake: rate(400),
            odd_wake: rate(300),
            usual: 1 + rate(20),
            late: 1 + rate(9000),
        }
    }
}

/// The network between one keeper and its store.
#[derive(Debug)]
pub struct Network {
    dice: Mutex<Dice>,
    /// What becomes of the next requests, before chance decides again.
    script: Mutex<VecDeque<Fate>>,
    faults: Mutex<Faults>,
    cut: AtomicBool,
}

impl Network {
    /// A network with these faults.
    pub fn new(dice: Dice, faults: Faults) -> Arc<Self> {
        Arc::new(Self {
            dice: Mutex::new(dice),
            script: Mutex::default(),
            faults: Mutex::new(faults),
            cut: AtomicBool::new(false),
        })
    }

    /// A good network, for a script.
    pub fn good() -> Arc<Self> {
        Self::new(Dice::new(0), Faults { usual: 0, ..Faults::NONE })
    }

    /// Decides what becomes of the next request that has no fate yet.
    pub fn next(&self, fate: Fate) {
        support::lock(&self.script).push_back(fate);
    }

    /// Other faults from now on.
    pub fn set(&self, faults: Faults) {
        *support::lock(&self.faults) = faults;
    }

    /// Nothing passes any more in either direction, as after a crash of the keeper's process.
    pub fn cut(&self) {
        self.cut.store(true, Ordering::SeqCst);
    }

    fn is_cut(&self) -> bool {
        self.cut.load(Ordering::SeqCst)
    }

    fn roll<T>(&self, draw: impl FnOnce(&mut Dice, Faults) -> T) -> T {
        let faults = *support::lock(&self.faults);
        draw(&mut support::lock(&self.dice), faults)
    }

    fn fate(&self) -> Fate {
        if let Some(fate) = support::lock(&self.script).pop_front() {
            return fate;
        }
        self.roll(|dice, faults| {
            let delay = |dice: &mut Dice| {
                let most = if dice.chance(faults.slow) { faults.late } else { faults.usual };
                dice.up_to(most)
            };
            Fate {
                before: delay(dice),
                arrives: !dice.chance(faults.lost_request),
                again: dice.chance(faults.doubled).then(|| dice.up_to(faults.late)),
                after: delay(dice),
                answers: !dice.chance(faults.lost_reply),
            }
        })
    }

    /// Sends a wake over the network.
    fn wake(self: &Arc<Self>, sink: &WakeSink, wake: &Wake, background: &Handle) {
        let (lost, copies, delays) = self.roll(|dice, faults| {
            let odd = dice.chance(faults.odd_wake);
            let most = if odd { faults.late.min(4000) } else { faults.usual };
            (dice.chance(faults.lost_wake), 1 + usize::from(odd), [dice.up_to(most), dice.up_to(most)])
        });
        if lost || self.is_cut() {
            return;
        }
        for delay in delays.into_iter().take(copies) {
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

/// What happens to one request.
#[derive(Clone, Copy, Debug)]
pub struct Fate {
    /// How long it is under way to the store.
    pub before: Duration,
    /// Whether it gets there.
    pub arrives: bool,
    /// Whether it gets there twice, and how much later.
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
    /// Done, but the reply is lost.
    pub const LOST_REPLY: Self = Self { answers: false, ..Self::GOOD };

    /// Arrives only after `delay`.
    pub const fn late(delay: Duration) -> Self {
        Self { before: delay, ..Self::GOOD }
    }
}

/// The store that `connector` connects to, behind `network`.
pub fn faulty(connector: Connector, network: Arc<Network>) -> Connector {
    Connector::new(move |mut context: Context| async move {
        let (sink, bad, background) = (context.wakes.clone(), network.clone(), context.background.clone());
        context.wakes = WakeSink::new(move |wake| bad.wake(&sink, &wake, &background));
        let inner = connector.connect(context).await?;
        Ok(Arc::new(FaultyStore { inner, network }) as Arc<dyn Store>)
    })
}

#[derive(Debug)]
struct FaultyStore {
    inner: Arc<dyn Store>,
    network: Arc<Network>,
}

impl FaultyStore {
    /// Sends `request` over the network in a task of its own, so it arrives even if its sender gives up.
    fn send<R, T>(
        &self,
        request: R,
        ask: impl for<'a> Fn(&'a dyn Store, &'a R) -> Reply<'a, T> + Send + Sync + 'static,
    ) -> Reply<'static, T>
    where
        R: Send + Sync + 'static,
        T: Send + 'static,
    {
        let (inner, network) = (self.inner.clone(), self.network.clone());
        let (sender, reply) = oneshot::channel::<Result<T, StoreError>>();
        let fate = network.fate();
        tokio::spawn(async move {
            sleep(fate.before).await;
            if network.is_cut() || !fate.arrives {
                pending::<()>().await;
            }
            let result = ask(&*inner, &request).await;
            if fate.again.is_some() {
                drop(ask(&*inner, &request).await);
            }
            if fate.answers {
                sleep(fate.after).await;
                if !network.is_cut() {
                    // The sender may have given up.
                    sender.send(result).ok();
                    return;
                }
            } else if let Some(later) = fate.again {
                sleep(later).await;
                if !network.is_cut() {
                    drop(ask(&*inner, &request).await);
                }
            }
            // Never an answer: the sender waits as long as it likes.
            pending::<()>().await;
            drop(sender);
        });
        Box::pin(async move {
            match reply.await {
                Ok(result) => result,
                // Only when the runtime ends.
                Err(_) => pending().await,
            }
        })
    }
}

#[deny(clippy::missing_trait_methods)]
impl Store for FaultyStore {
    same_store!();

    fn apply<'a>(&'a self, group: &'a [Request]) -> Reply<'a, Answers<Answer>> {
        self.send(group.to_vec(), |store, group| store.apply(group))
    }

    fn renew<'a>(&'a self, leases: &'a [Renew]) -> Reply<'a, Answers<Renewed>> {
        self.send(leases.to_vec(), |store, leases| store.renew(leases))
    }

    fn watch<'a>(&'a self, topic: &'a Topic) -> Reply<'a, Option<Watch>> {
        self.inner.watch(topic)
    }

    fn inspect<'a>(&'a self, name: &'a Name) -> Reply<'a, Option<ResourceView>> {
        self.send(name.clone(), |store, name| store.inspect(name))
    }

    fn list<'a>(&'a self, query: &'a ListQuery) -> Reply<'a, Page> {
        self.send(query.clone(), |store, query| store.list(query))
    }

    fn evict<'a>(&'a self, order: &'a Evict) -> Reply<'a, Evicted> {
        self.send(order.clone(), |store, order| store.evict(order))
    }

    fn count<'a>(&'a self, count: &'a Count) -> Reply<'a, Answers<Counted>> {
        self.send(count.clone(), |store, count| store.count(count))
    }

    fn fence<'a>(&'a self, admit: &'a Admit) -> Reply<'a, Admitted> {
        self.send(admit.clone(), |store, admit| store.fence(admit))
    }
}
