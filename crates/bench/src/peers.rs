//! Lockkeeper in its variants, and tokio's own mutex. The peers of a store are with that store.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
};

use lockkeeper::{Guard, Keeper, support};
use lockkeeper_testkit::counting::RequestCounter;
use tokio::sync::{Mutex as TokioMutex, MutexGuard as TokioGuard};

use crate::{
    Failure,
    judge::Limit,
    peer::{Lock, Peer},
    workload::Workload,
};

/// Lockkeeper's mutex, with its defaults or with `.fifo()`.
pub(crate) struct KeeperPeer {
    keeper: Keeper,
    requests: RequestCounter,
    fifo: bool,
}

impl KeeperPeer {
    pub(crate) fn usual(keeper: &Keeper, requests: &RequestCounter) -> Self {
        Self { keeper: keeper.clone(), requests: requests.clone(), fifo: false }
    }

    pub(crate) fn fifo(keeper: &Keeper, requests: &RequestCounter) -> Self {
        Self { fifo: true, ..Self::usual(keeper, requests) }
    }
}

impl Peer for KeeperPeer {
    type Lock = lockkeeper::Mutex;

    fn name(&self) -> &'static str {
        if self.fifo { "lockkeeper fifo" } else { "lockkeeper" }
    }

    fn lock(&self, name: &str) -> Self::Lock {
        // Apart from each other, so that one peer never waits for the remains of another.
        let mutex = self.keeper.mutex(&format!("bench/{}/{name}", if self.fifo { "fifo" } else { "usual" }));
        if self.fifo { mutex.fifo() } else { mutex }
    }

    fn requests(&self) -> Option<u64> {
        Some(self.requests.so_far())
    }
}

impl Lock for lockkeeper::Mutex {
    type Held<'a> = Guard;

    async fn acquire(&self) -> Result<Guard, Failure> {
        Ok(self.lock().await?)
    }

    async fn release(held: Self::Held<'_>) -> Result<(), Failure> {
        Ok(held.release().await?)
    }
}

/// Lockkeeper's mutex, released by dropping the guard. Its task does not wait for the release.
pub(crate) struct DroppedPeer {
    keeper: Keeper,
    requests: RequestCounter,
}

impl DroppedPeer {
    pub(crate) fn new(keeper: &Keeper, requests: &RequestCounter) -> Self {
        Self { keeper: keeper.clone(), requests: requests.clone() }
    }
}

#[derive(Clone)]
pub(crate) struct DroppedLock(lockkeeper::Mutex);

impl Peer for DroppedPeer {
    type Lock = DroppedLock;

    fn name(&self) -> &'static str {
        "lockkeeper dropped"
    }

    fn lock(&self, name: &str) -> DroppedLock {
        DroppedLock(self.keeper.mutex(&format!("bench/dropped/{name}")))
    }

    fn requests(&self) -> Option<u64> {
        Some(self.requests.so_far())
    }
}

impl Lock for DroppedLock {
    type Held<'a> = Guard;

    async fn acquire(&self) -> Result<Guard, Failure> {
        Ok(self.0.lock().await?)
    }

    async fn release(held: Self::Held<'_>) -> Result<(), Failure> {
        drop(held);
        Ok(())
    }
}

/// tokio's own mutex: no store, no lease, no token. It is the limit of a lock between tasks of one process.
#[derive(Default)]
pub(crate) struct TokioPeer(Mutex<HashMap<String, Arc<TokioMutex<()>>>>);

impl Peer for TokioPeer {
    type Lock = Arc<TokioMutex<()>>;

    fn name(&self) -> &'static str {
        "tokio Mutex"
    }

    fn lock(&self, name: &str) -> Self::Lock {
        let mut locks = support::lock(&self.0);
        locks.entry(name.to_owned()).or_default().clone()
    }

    /// A lock that is handed on inside a process is at most four times as dear as one that knows
    /// of nothing outside of it.
    fn goal(&self, workload: Workload) -> Option<Limit> {
        (workload == Workload::W3).then_some(Limit::AtLeast(0.25))
    }
}

impl Lock for Arc<TokioMutex<()>> {
    type Held<'a> = TokioGuard<'a, ()>;

    async fn acquire(&self) -> Result<TokioGuard<'_, ()>, Failure> {
        Ok(TokioMutex::lock(self).await)
    }

    async fn release(held: Self::Held<'_>) -> Result<(), Failure> {
        drop(held);
        Ok(())
    }
}

/// A lock that locks nothing, to see that the harness finds it out.
#[cfg(test)]
pub(crate) mod broken {
    use super::{Failure, Lock, Peer};

    pub(crate) struct Broken;

    #[derive(Clone)]
    pub(crate) struct BrokenLock;

    impl Peer for Broken {
        type Lock = BrokenLock;

        fn name(&self) -> &'static str {
            "broken"
        }

        fn lock(&self, _: &str) -> BrokenLock {
            BrokenLock
        }
    }

    impl Lock for BrokenLock {
        type Held<'a> = ();

        async fn acquire(&self) -> Result<(), Failure> {
            tokio::task::consume_budget().await;
            Ok(())
        }

        async fn release((): Self::Held<'_>) -> Result<(), Failure> {
            Ok(())
        }
    }
}
