//! A keeper whose connections get faults, beside one with good connections.

use std::{net::SocketAddr, time::Duration};

use lockkeeper::{Keeper, Token};
use tokio::{
    task::JoinSet,
    time::{Instant, sleep, timeout},
};

use crate::{
    dice::Dice,
    proxy::{Action, Direction, Fault, Proxy},
};

/// Longer than anything takes, also on a busy machine.
const LONG: Duration = Duration::from_secs(20);

/// A keeper behind a proxy that makes faults, and one that is connected directly.
#[derive(Debug)]
pub struct BadConnection {
    /// The source of the faults.
    pub proxy: Proxy,
    /// Connected through the proxy. It soon gives up waiting for a reply.
    pub ours: Keeper,
    /// Connected directly.
    pub theirs: Keeper,
    name: String,
}

impl BadConnection {
    /// Connects to the server at this address. `url` gives the URL of a server at an address; `name` names the lock.
    ///
    /// # Panics
    /// If there is no connection to it.
    pub async fn new(server: SocketAddr, name: &str, url: impl Fn(SocketAddr) -> String) -> Self {
        let proxy = Proxy::start(server).expect("started");
        let (ours, theirs) = (impatient(&url(proxy.address())).await, patient(&url(server)).await);
        Self { proxy, ours, theirs, name: name.to_owned() }
    }

    /// The token of a section without a fault.
    ///
    /// # Panics
    /// If the lock is not free.
    pub async fn first_token(&self) -> Token {
        let guard = self.ours.mutex(&self.name).lock().await.expect("free");
        let token = guard.token();
        guard.release().await.expect("held");
        token
    }

    /// Acquires and releases the lock, each with the same fault. Nothing is left of it after the lease at the latest,
    /// and at once if the release succeeded. Returns the token, which must be larger than `last`.
    ///
    /// # Panics
    /// If something of that is not so.
    pub async fn acquire_and_release(&self, fault: Fault, last: Token) -> Token {
        self.proxy.now(fault);
        let (name, lease) = (&self.name, Duration::from_secs(5));
        let guard = timeout(LONG, self.ours.mutex(name).lease(lease).lock()).await;
        let guard = guard.expect("in time").expect("granted in the end");
        assert!(guard.is_held() && guard.token() > last, "{fault:?}: {} after {last}", guard.token());
        let token = guard.token();
        self.theirs.fence(name).admit(token).await.expect("the newest");
        let view = self.theirs.inspect(name).await.expect("reachable").expect("held");
        assert_eq!(view.holders.len(), 1, "{fault:?}");
        assert!(view.waiters.is_empty(), "{fault:?}: {view:?}");
        self.proxy.now(fault);
        let released = guard.release().await;
        let deadline = Instant::now() + lease + Duration::from_secs(1);
        while let Some(view) = self.theirs.inspect(name).await.expect("reachable") {
            assert!(released.is_err(), "{fault:?}: said to be free, but {view:?}");
            assert!(Instant::now() < deadline, "{fault:?}: held without an owner: {view:?}");
            sleep(Duration::from_millis(5)).await;
        }
        token
    }

    /// Acquires and releases until `count` connections went silent for good, each somewhere within the next `most` bytes.
    /// Only the client's own limit ends such a wait. Returns how many went silent.
    async fn swallow(self, seed: u64, count: usize, most: u64) -> usize {
        let mut last = self.first_token().await;
        let mut dice = Dice::new(seed);
        while (self.proxy.struck() as usize) < count {
            // Somewhere in the reply, in the request, or just between the two.
            let direction = if dice.chance(700) { Direction::ToClient } else { Direction::ToServer };
            let fault = Fault { direction, after: dice.below(most), action: Action::Swallow };
            last = self.acquire_and_release(fault, last).await;
        }
        self.proxy.struck() as usize
    }

    /// Has `count` connections in all go silent for good, on these pairs of keepers side by side, each somewhere within
    /// the next `most` bytes. Returns how many did.
    ///
    /// # Panics
    /// As [`acquire_and_release`](Self::acquire_and_release).
    pub async fn swallow_replies(pairs: Vec<Self>, count: usize, most: u64) -> usize {
        let each = count.div_ceil(pairs.len());
        let mut all = JoinSet::new();
        for (pair, seed) in pairs.into_iter().zip(0..) {
            all.spawn(pair.swallow(seed, each, most));
        }
        all.join_all().await.into_iter().sum()
    }
}

/// Connects to a server that is up. On a busy machine it may not answer within the limits at first.
async fn patient(url: &str) -> Keeper {
    let started = Instant::now();
    loop {
        match lockkeeper::connect(url).await {
            Ok(keeper) => return keeper,
            Err(error) => {
                assert!(error.is_passing() && started.elapsed() < LONG, "not connected: {error}");
            }
        }
    }
}

/// A keeper that soon gives up waiting for a reply. On a busy machine it may do so while it connects without a fault.
///
/// # Panics
/// If it does so for long.
pub async fn impatient(url: &str) -> Keeper {
    let started = Instant::now();
    loop {
        let builder = lockkeeper::builder(url).expect("a good URL").request_limit(Duration::from_millis(300));
        match builder.connect().await {
            Ok(keeper) => return keeper,
            Err(error) => assert!(started.elapsed() < LONG, "not connected: {error}"),
        }
    }
}
