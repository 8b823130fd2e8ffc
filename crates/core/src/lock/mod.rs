//! The primitives: thin, one file each, with no knowledge of stores.

mod adopted;
mod all;
mod election;
mod entry;
mod fence;
mod guard;
mod guard_count;
mod guard_errors;
mod handle;
mod latch;
pub(crate) mod lease;
mod lease_claim;
mod mutex;
mod owner;
mod rw_lock;
mod segmented;
mod semaphore;

/// The parts that `guard_count` is made of; `interleavings` checks it with other types.
mod sync {
    pub(super) use std::sync::atomic::{AtomicU64, Ordering};
}

pub use adopted::Adopted;
pub use all::{All, AllGuard, all};
pub use election::{Election, Leader, Observer};
pub use fence::{Fence, StoredFence};
pub use guard::{Exclusive, Guard, Leadership, Leads, Permit, Permits, Read, ReadGuard, Write, WriteGuard};
pub use guard_errors::{DowngradeError, IntoLeaseError};
pub use latch::{Latch, LatchState};
pub use lease::Lease;
pub use lease_claim::{AcquiredLease, LeaseClaim};
pub use mutex::Mutex;
pub use owner::Owner;
pub use rw_lock::RwLock;
pub use segmented::Segmented;
pub use semaphore::Semaphore;

pub(crate) use handle::Handle;
