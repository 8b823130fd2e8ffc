//! The abilities of a store and its guarantees: one value that drives documentation, early errors
//! and the choice of tests.

use std::time::Duration;

/// How far a store keeps its word in a given trouble.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Survives {
    /// Locks stay exclusive and tokens grow.
    Fully,
    /// A lock may be lost, but tokens still grow, so a fence keeps the data right.
    WithFence,
    /// Locks are lost, and tokens may fall.
    No,
    /// The trouble cannot happen to this store.
    NotApplicable,
}

impl Survives {
    /// The word in tables.
    pub fn word(self) -> &'static str {
        match self {
            Self::Fully => "yes",
            Self::WithFence => "with the fence",
            Self::No => "no",
            Self::NotApplicable => "n/a",
        }
    }
}

/// The abilities of a store, and the troubles that it survives.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() {
/// # let keeper = lockkeeper::testing::keeper().await;
/// if !keeper.capability().between_processes {
///     println!("locks of this store are seen by this process only");
/// }
/// # }
/// ```
///
/// A store begins with [`new`](Self::new), which promises nothing, and sets what it can do:
///
/// ```
/// use lockkeeper::store::{Capability, Survives};
///
/// static CAPABILITY: Capability = {
///     let mut can = Capability::new("an example");
///     can.between_processes = true;
///     can.client_crash = Survives::Fully;
///     can
/// };
/// # assert!(!CAPABILITY.pushes);
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Capability {
    /// The store's name in tables.
    pub store: &'static str,
    /// Whether locks are shared between processes.
    pub between_processes: bool,
    /// Whether a release reaches the next waiter by push.
    pub pushes: bool,
    /// How long a waiter that hears nothing goes without asking: less than the first lease of a grant where a wake may
    /// get lost unnoticed. The first in the queue asks twice as often. No waiter goes for longer while the store
    /// answers.
    pub asks_again: Duration,
    /// The shortest lease.
    pub min_lease: Duration,
    /// The longest lease.
    pub max_lease: Duration,
    /// Whether each claim can have a lease of its own length, all of which the store vouches for at
    /// once. Otherwise it does so for a part at a time, such as for as long as a session lasts.
    pub lease_per_claim: bool,
    /// Whether a lease can outlive its process.
    pub detachable: bool,
    /// Whether it has semaphores and latches.
    pub counts_permits: bool,
    /// Whether it keeps fences.
    pub fences: bool,
    /// Whether it may be a member of a quorum: one server, which grants numbers as high as it is asked to
    /// ([`Claim::at_least`](crate::store::Claim::at_least), [`Renew::at_least`](crate::store::Renew::at_least)).
    pub may_be_member: bool,
    /// Whether a process's death frees its locks before their leases end.
    pub frees_crashed_at_once: bool,
    /// The most entries of a group, and the most leases of one renewal.
    pub group_limit: usize,
    /// How many groups of one keeper a server can make use of at a time: one if it would only finish them one by one,
    /// and a larger group costs it less than two.
    pub requests_at_once: usize,
    /// The client dies.
    pub client_crash: Survives,
    /// The store restarts.
    pub restart: Survives,
    /// The store restarts without its data.
    pub data_loss: Survives,
    /// The store's wall clock jumps.
    pub clock_jump: Survives,
}

impl Capability {
    /// The value of [`asks_again`](Self::asks_again) for stores whose wakes may get lost unnoticed. A pushed grant that
    /// is not heard of lasts longer than this with all that may come on top, so that a lost wake costs time but never
    /// the position. It is also so long that the waiters of one process cost a server less than a request a second.
    pub const ASKS_AGAIN: Duration = Duration::from_millis(2400);

    /// A store with the least abilities that a store may have. `name` is its word in tables.
    pub const fn new(name: &'static str) -> Self {
        Self {
            store: name,
            between_processes: false,
            pushes: false,
            asks_again: Self::ASKS_AGAIN,
            min_lease: Duration::from_millis(10),
            max_lease: Duration::from_secs(24 * 3600),
            lease_per_claim: true,
            detachable: false,
            counts_permits: false,
            fences: true,
            may_be_member: false,
            frees_crashed_at_once: false,
            group_limit: 1,
            requests_at_once: 1,
            client_crash: Survives::No,
            restart: Survives::No,
            data_loss: Survives::No,
            clock_jump: Survives::No,
        }
    }

    /// The row of this store in the guarantee table of the README.
    pub fn table_row(&self) -> String {
        let yes = |flag| if flag { "yes" } else { "no" };
        format!(
            "| {} | {} | {} | {} | {} | {} | {} |",
            self.store,
            yes(self.between_processes),
            if self.pushes { "push" } else { "poll" },
            self.client_crash.word(),
            self.restart.word(),
            self.data_loss.word(),
            self.clock_jump.word(),
        )
    }
}
