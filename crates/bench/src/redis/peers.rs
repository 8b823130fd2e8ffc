//! Peers of the Redis store in this process: the least that a lock on Redis can do, and the crate `rslock`.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use redis::{Client, Script, aio::MultiplexedConnection};
use rslock::{LockGuard, LockManager};

use crate::{
    Failure,
    judge::Limit,
    peer::{Lock, Peer},
    workload::Workload,
};

/// The name of the bare scripts in the table.
pub(super) const BARE: &str = "bare scripts";

/// As long as Lockkeeper's own lease.
const LEASE: Duration = Duration::from_secs(30);

pub(crate) const CLAIM: &str = "return redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2])";
pub(crate) const RELEASE: &str =
    "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0";

/// Two scripts of one line, by digest, on one connection for all tasks: no token, no queue, nobody is told. The limit.
pub(super) struct BarePeer {
    connection: MultiplexedConnection,
    claim: Arc<str>,
    release: Arc<str>,
}

#[derive(Clone)]
pub(super) struct BareLock {
    connection: MultiplexedConnection,
    claim: Arc<str>,
    release: Arc<str>,
    key: String,
    count: Arc<AtomicU64>,
}

pub(super) struct BareHeld {
    lock: BareLock,
    owner: String,
}

impl BarePeer {
    pub(super) async fn connect(url: &str) -> Result<Self, Failure> {
        let mut connection = Client::open(url)?.get_multiplexed_async_connection().await?;
        let load = async |connection: &mut MultiplexedConnection, text| {
            Script::new(text).prepare_invoke().load_async(connection).await
        };
        let claim: String = load(&mut connection, CLAIM).await?;
        let release: String = load(&mut connection, RELEASE).await?;
        Ok(Self { connection, claim: claim.into(), release: release.into() })
    }
}

impl Peer for BarePeer {
    type Lock = BareLock;

    fn name(&self) -> &'static str {
        BARE
    }

    fn lock(&self, name: &str) -> BareLock {
        let Self { connection, claim, release } = self;
        BareLock {
            connection: connection.clone(),
            claim: claim.clone(),
            release: release.clone(),
            // As long as Lockkeeper's.
            key: format!("lockkeeper:{{bench/_bare/{name}}}"),
            count: Arc::default(),
        }
    }

    /// Requests that travel in groups are one command for the client.
    fn goal(&self, workload: Workload) -> Option<Limit> {
        (workload == Workload::W2).then_some(Limit::AtLeast(1.2))
    }

    /// It does not wait.
    fn takes_part(&self, workload: Workload) -> bool {
        matches!(workload, Workload::W1 | Workload::W2)
    }
}

impl Lock for BareLock {
    type Held<'a> = BareHeld;

    async fn acquire(&self) -> Result<BareHeld, Failure> {
        // As long as the 128 random bits that such a lock would use, without the time that they take.
        let owner = format!("{:032x}", self.count.fetch_add(1, Ordering::Relaxed));
        let mut lock = self.clone();
        let mut claim = redis::cmd("EVALSHA");
        claim.arg(&*self.claim).arg(1).arg(&self.key).arg(&owner).arg(LEASE.as_millis() as u64);
        match claim.query_async::<Option<String>>(&mut lock.connection).await? {
            Some(_) => Ok(BareHeld { lock, owner }),
            None => Err("a name of its own was taken".into()),
        }
    }

    async fn release(held: Self::Held<'_>) -> Result<(), Failure> {
        let BareHeld { mut lock, owner } = held;
        let mut release = redis::cmd("EVALSHA");
        release.arg(&*lock.release).arg(1).arg(&lock.key).arg(&owner);
        let freed: u64 = release.query_async(&mut lock.connection).await?;
        if freed == 1 { Ok(()) } else { Err("what was held was not there".into()) }
    }
}

/// The crate `rslock`, as it comes: a task that finds a lock taken asks again after a random while of up to 200 ms.
pub(super) struct RslockPeer(LockManager);

#[derive(Clone)]
pub(super) struct Rslock {
    manager: LockManager,
    key: String,
}

impl RslockPeer {
    pub(super) fn connect(url: &str) -> Result<Self, Failure> {
        Ok(Self(LockManager::from_clients(vec![Client::open(url)?])))
    }
}

impl Peer for RslockPeer {
    type Lock = Rslock;

    fn name(&self) -> &'static str {
        "rslock"
    }

    fn lock(&self, name: &str) -> Rslock {
        Rslock { manager: self.0.clone(), key: format!("bench/rslock/{name}") }
    }

    /// A lock that is handed on inside of a process asks nobody.
    fn goal(&self, workload: Workload) -> Option<Limit> {
        (workload == Workload::W3).then_some(Limit::AtLeast(50.0))
    }

    /// A waiter in the server's own queue need not poll for its turn.
    fn fifo_goal(&self, workload: Workload) -> Option<Limit> {
        (workload == Workload::W3).then_some(Limit::AtLeast(1.5))
    }

    fn takes_part(&self, workload: Workload) -> bool {
        workload == Workload::W3
    }
}

impl Lock for Rslock {
    type Held<'a> = LockGuard;

    async fn acquire(&self) -> Result<LockGuard, Failure> {
        Ok(self.manager.acquire(self.key.as_str(), LEASE).await?)
    }

    async fn release(held: Self::Held<'_>) -> Result<(), Failure> {
        held.release().await;
        Ok(())
    }
}
