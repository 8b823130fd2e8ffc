//! Peers of a quorum in this process: the least that a lock on five servers can do, and the crate `rslock`, which is RedLock.

use std::{
    future::poll_fn,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    task::Poll,
    time::Duration,
};

use redis::{Client, Script, aio::MultiplexedConnection};
use rslock::{LockGuard, LockManager};
use tokio::sync::mpsc;

use super::MEMBERS;
use crate::{
    Failure,
    judge::Limit,
    peer::{Lock, Peer},
    redis::{CLAIM, RELEASE},
    workload::Workload,
};

/// The name of the bare fan-out in the table.
pub(super) const BARE: &str = "bare fan-out";

/// As long as Lockkeeper's own lease.
const LEASE: Duration = Duration::from_secs(30);

/// How many answers are waited for.
const ENOUGH: usize = MEMBERS / 2 + 1;

/// One script of one line to all servers, which waits for most answers: no token, no queue, nobody is told. The limit.
pub(super) struct FanOutPeer {
    connections: Vec<MultiplexedConnection>,
    claim: Arc<str>,
    release: Arc<str>,
}

#[derive(Clone)]
pub(super) struct FanOutLock {
    connections: Vec<MultiplexedConnection>,
    claim: Arc<str>,
    release: Arc<str>,
    key: String,
    count: Arc<AtomicU64>,
}

pub(super) struct FanOutHeld {
    lock: FanOutLock,
    owner: String,
}

impl FanOutPeer {
    pub(super) async fn connect(urls: &[&str]) -> Result<Self, Failure> {
        let (mut connections, mut digests) = (Vec::new(), Default::default());
        for url in urls {
            let mut connection = Client::open(*url)?.get_multiplexed_async_connection().await?;
            let claim: String = Script::new(CLAIM).prepare_invoke().load_async(&mut connection).await?;
            let release: String = Script::new(RELEASE).prepare_invoke().load_async(&mut connection).await?;
            digests = (claim, release);
            connections.push(connection);
        }
        Ok(Self { connections, claim: digests.0.into(), release: digests.1.into() })
    }
}

/// Sends one command to all servers, and returns when most have answered it with yes. A request whose answer is not waited
/// for is sent all the same.
async fn to_most(connections: &[MultiplexedConnection], command: redis::Cmd) -> Result<(), Failure> {
    let (sender, mut answers) = mpsc::channel(MEMBERS);
    let command = Arc::new(command);
    for connection in connections {
        let (mut connection, command, sender) = (connection.clone(), command.clone(), sender.clone());
        let mut sent = Box::pin(async move {
            let answer = command.query_async::<redis::Value>(&mut connection).await;
            // Nobody waits for the last ones.
            sender.send(answer).await.ok();
        });
        // It is on its way before the next request of this lock is: tasks begin in any order.
        let begun = poll_fn(|context| Poll::Ready(sent.as_mut().poll(context))).await;
        if begun.is_pending() {
            tokio::spawn(sent);
        }
    }
    drop(sender);
    let mut yes = 0;
    while yes < ENOUGH {
        let answer = answers.recv().await.ok_or("a name of its own was taken")??;
        // At a server whose last answer was not waited for, the release before may arrive after this claim.
        yes += usize::from(!matches!(answer, redis::Value::Nil | redis::Value::Int(0)));
    }
    Ok(())
}

impl Peer for FanOutPeer {
    type Lock = FanOutLock;

    fn name(&self) -> &'static str {
        BARE
    }

    fn lock(&self, name: &str) -> FanOutLock {
        let Self { connections, claim, release } = self;
        FanOutLock {
            connections: connections.clone(),
            claim: claim.clone(),
            release: release.clone(),
            // As long as Lockkeeper's.
            key: format!("lockkeeper:{{bench/_bare/{name}}}"),
            count: Arc::default(),
        }
    }

    /// It does not wait.
    fn takes_part(&self, workload: Workload) -> bool {
        matches!(workload, Workload::W1 | Workload::W2)
    }
}

impl Lock for FanOutLock {
    type Held<'a> = FanOutHeld;

    async fn acquire(&self) -> Result<FanOutHeld, Failure> {
        let owner = format!("{:032x}", self.count.fetch_add(1, Ordering::Relaxed));
        let lock = self.clone();
        let mut claim = redis::cmd("EVALSHA");
        claim.arg(&*self.claim).arg(1).arg(&self.key).arg(&owner).arg(LEASE.as_millis() as u64);
        to_most(&lock.connections, claim).await?;
        Ok(FanOutHeld { lock, owner })
    }

    async fn release(held: Self::Held<'_>) -> Result<(), Failure> {
        let FanOutHeld { lock, owner } = held;
        let mut release = redis::cmd("EVALSHA");
        release.arg(&*lock.release).arg(1).arg(&lock.key).arg(&owner);
        to_most(&lock.connections, release).await
    }
}

/// The crate `rslock` on the same servers, as it comes. A task without a majority asks again after up to 200 ms.
pub(super) struct RedlockPeer(LockManager);

#[derive(Clone)]
pub(super) struct Redlock {
    manager: LockManager,
    key: String,
}

impl RedlockPeer {
    pub(super) fn connect(urls: &[&str]) -> Result<Self, Failure> {
        let clients = urls.iter().map(|url| Client::open(*url));
        Ok(Self(LockManager::from_clients(clients.collect::<Result<_, _>>()?)))
    }
}

impl Peer for RedlockPeer {
    type Lock = Redlock;

    fn name(&self) -> &'static str {
        "rslock"
    }

    fn lock(&self, name: &str) -> Redlock {
        Redlock { manager: self.0.clone(), key: format!("bench/rslock/{name}") }
    }

    fn goal(&self, workload: Workload) -> Option<Limit> {
        (workload == Workload::W2).then_some(Limit::AtLeast(2.0))
    }

    fn takes_part(&self, workload: Workload) -> bool {
        matches!(workload, Workload::W1 | Workload::W2 | Workload::W3)
    }
}

impl Lock for Redlock {
    type Held<'a> = LockGuard;

    async fn acquire(&self) -> Result<LockGuard, Failure> {
        Ok(self.manager.acquire(self.key.as_str(), LEASE).await?)
    }

    async fn release(held: Self::Held<'_>) -> Result<(), Failure> {
        held.release().await;
        Ok(())
    }
}
