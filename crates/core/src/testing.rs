//! For tests of code that uses locks: a keeper on a memory store, in virtual time if you like, with outages, slow
//! answers and lost replies if you like ([`Network`]).
//!
//! ```
//! # use std::time::Duration;
//! // In a test: #[tokio::test(start_paused = true)], with tokio's feature `test-util`.
//! # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() -> Result<(), lockkeeper::Error> {
//! use lockkeeper::testing::Virtual;
//!
//! let world = Virtual::new();
//! let (ours, theirs) = (world.keeper().await, world.keeper().await);     // two "processes"
//! let guard = ours.mutex("report").expires_after(Duration::from_secs(60)).lock().await?;
//! assert!(theirs.mutex("report").try_lock().await?.is_none());
//! tokio::time::sleep(Duration::from_secs(61)).await;                     // takes no time
//! assert!(!guard.is_held());
//! assert!(theirs.mutex("report").try_lock().await?.is_some());
//! # Ok(()) }
//! ```

use std::{sync::Arc, time::Duration};

use crate::{
    clock::Clock,
    id::ContenderId,
    keeper::{Keeper, KeeperBuilder},
    memory::MemoryServer,
    name::Name,
    share::{Capacity, Units},
    store::{Attachment, Claim, Details, Kind, ProcessInfo, StoreTime},
};

mod network;

pub use crate::clock::VirtualClock;
pub use network::{Fate, FateSource, Network};

/// A keeper on a memory store of its own, in real time.
///
/// # Panics
/// If no thread can be started.
pub async fn keeper() -> Keeper {
    let server = MemoryServer::new(Clock::boot());
    let keeper = Keeper::builder(server.connector("memory:")).connect().await;
    keeper.expect("a memory store can always be connected to")
}

/// A claim of a whole resource, which waits in the queue and has a lease of 30 s: for tests of stores, which name only
/// the fields that differ.
///
/// ```
/// use lockkeeper::{store::{Claim, ContenderId, KeeperId, Units}, testing};
///
/// # fn main() -> Result<(), lockkeeper::Error> {
/// let contender = ContenderId { keeper: KeeperId::random(), seq: 1 };
/// let reader = Claim { units: Units::ONE, ..testing::claim(&"stock/42".parse()?, contender) };
/// # assert!(reader.queue);
/// # Ok(()) }
/// ```
pub fn claim(name: &Name, contender: ContenderId) -> Claim {
    let process = ProcessInfo { host: "here".into(), pid: 1, program: "test".into() };
    Claim {
        name: name.clone(),
        contender,
        units: Units::All,
        capacity: Capacity::All,
        lease: Duration::from_secs(30),
        queue: true,
        attachment: Attachment::Process,
        renewed: true,
        at_least: 0,
        min_hold: Duration::ZERO,
        not_after: StoreTime(u64::MAX),
        stamp: 0,
        again: false,
        details: Details { kind: Kind::Mutex, process: Arc::new(process), label: None, value: None },
    }
}

/// A world with virtual time: one clock, one memory store, any number of keepers.
///
/// Everything runs in the current runtime, which should be a current-thread one with paused time.
#[derive(Clone, Debug)]
pub struct Virtual {
    /// The clock of clients and store: [`suspend`](VirtualClock::suspend) it to test pauses.
    pub clock: VirtualClock,
    /// The store.
    pub server: MemoryServer,
    /// The network between the keepers and the store: [`cut`](Network::cut) it to test an outage.
    pub network: Network,
}

impl Virtual {
    /// A world with an empty store. Needs a tokio runtime with time.
    #[expect(clippy::new_without_default, reason = "it reads the runtime's clock")]
    pub fn new() -> Self {
        let clock = VirtualClock::new();
        let server = MemoryServer::new(clock.clock());
        Self { clock, server, network: Network::new() }
    }

    /// A keeper to be, with virtual time.
    pub fn builder(&self) -> KeeperBuilder {
        self.builder_behind(&self.network)
    }

    /// A keeper to be that reaches the store through a network of its own.
    pub fn builder_behind(&self, network: &Network) -> KeeperBuilder {
        Keeper::builder(network.wrap(self.server.connector("memory:"))).virtual_time(self.clock.clock())
    }

    /// A keeper: another process, as far as the store can tell.
    ///
    /// # Panics
    /// Outside of a runtime, and while the network is cut: there [`builder`](Self::builder) shows the error.
    pub async fn keeper(&self) -> Keeper {
        self.keeper_behind(&self.network).await
    }

    /// A keeper that reaches the store through a network of its own: its outages are not those of others.
    ///
    /// # Panics
    /// As [`keeper`](Self::keeper).
    pub async fn keeper_behind(&self, network: &Network) -> Keeper {
        self.builder_behind(network)
            .connect()
            .await
            .expect("a memory store behind a good network can be connected to")
    }
}
