//! Who is measured: anything that can acquire and release a named lock.
//!
//! A new peer is a [`Peer`] and its [`Lock`]; what does not run as tasks of this process (a
//! program of its own, say) is a [`Contestant`] instead.

use lockkeeper::support;
use std::{
    collections::HashMap,
    path::Path,
    sync::{Arc, Mutex},
};

use lockkeeper::{Guard, Keeper};
use lockkeeper_testkit::counting::Requests;
use tokio::sync::{Mutex as TokioMutex, MutexGuard as TokioGuard};

use crate::{
    Failure,
    bench::Workload,
    files::{FileLockPeer, FlockPeer, RowPeer},
    judge::Limit,
    rounds::Contestant,
};

/// Whom Lockkeeper is compared with on this store. A store that comes with peers adds them here.
pub(crate) fn peers_of(keeper: &Keeper, folder: Option<&Path>) -> Vec<Box<dyn Contestant>> {
    match (keeper.capability().store, folder) {
        ("memory", _) => vec![Box::new(TokioPeer::default())],
        ("sqlite", Some(folder)) => vec![
            Box::new(FlockPeer { folder: folder.to_owned() }),
            Box::new(FileLockPeer { folder: folder.to_owned() }),
            Box::new(RowPeer { file: folder.join("rows.db") }),
        ],
        _ => Vec::new(),
    }
}

/// A kind of lock, by name.
pub(crate) trait Peer: Send + Sync + 'static {
    type Lock: Lock;

    /// What the table calls it.
    fn name(&self) -> &'static str;

    /// The lock of this name; every task has a clone of it.
    fn lock(&self, name: &str) -> Self::Lock;

    /// How many requests to its store it has sent so far, if that is known.
    fn requests(&self) -> Option<u64> {
        None
    }

    /// What Lockkeeper's rate divided by this peer's is held to.
    fn goal(&self, _: Workload) -> Option<Limit> {
        None
    }

    /// The same with `.fifo()`, where that takes part.
    fn fifo_goal(&self, _: Workload) -> Option<Limit> {
        None
    }

    /// Whether it can do this at all: one that lets two in at once would end the run.
    fn takes_part(&self, _: Workload) -> bool {
        true
    }
}

/// How one task acquires and releases. The futures are not boxed, so that nothing is added to
/// what is measured.
pub(crate) trait Lock: Clone + Send + Sync + 'static {
    type Held<'a>: Send;

    fn acquire(&self) -> impl Future<Output = Result<Self::Held<'_>, Failure>> + Send;

    fn release(held: Self::Held<'_>) -> impl Future<Output = Result<(), Failure>> + Send;
}

/// Lockkeeper's mutex, as it comes or with `.fifo()`.
pub(crate) struct KeeperPeer {
    keeper: Keeper,
    requests: Requests,
    fifo: bool,
}

impl KeeperPeer {
    pub(crate) fn usual(keeper: &Keeper, requests: &Requests) -> Self {
        Self { keeper: keeper.clone(), requests: requests.clone(), fifo: false }
    }

    pub(crate) fn fifo(keeper: &Keeper, requests: &Requests) -> Self {
        Self { fifo: true, ..Self::usual(keeper, requests) }
    }
}

impl Peer for KeeperPeer {
    type Lock = lockkeeper::Mutex;

    fn name(&self) -> &'static str {
        if self.fifo { "lockkeeper fifo" } else { "lockkeeper" }
    }

    fn lock(&self, name: &str) -> Self::Lock {
        // Apart from each other, so that one peer never waits for what another left behind.
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

/// Lockkeeper's mutex, given back by dropping the guard, while its task goes on.
pub(crate) struct DroppedPeer {
    keeper: Keeper,
    requests: Requests,
}

impl DroppedPeer {
    pub(crate) fn new(keeper: &Keeper, requests: &Requests) -> Self {
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

/// tokio's own mutex: no store, no lease, no token. The limit of what a lock between tasks of
/// one process can do.
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
