//! The engine of Lockkeeper: one model, one store trait, every primitive, and the memory store.
//!
//! Applications use the crate `lockkeeper`, which adds `connect(url)` and the other stores. A new
//! store depends on this crate alone: it implements [`store::Store`] and is held to
//! [`model`] by the test kit. The specification is `docs/design.md` in the repository.

pub mod blocking;
pub mod clock;
pub mod deadline;
pub mod memory;
pub mod model;
pub mod store;
pub mod support;
pub mod telemetry;
pub mod testing;

mod capability;
mod engine;
mod error;
mod id;
#[cfg(test)]
mod interleavings;
mod invalid;
mod keeper;
mod lock;
mod name;
mod share;
mod token;

pub use capability::{Capability, Survives};
pub use engine::Stats;
pub use error::{
    AcquireError, At, Error, FenceError, InvalidInput, LatchError, LeaseError, Lost, ReleaseError,
    StoreError, StoreErrorKind,
};
pub use id::{ContenderId, KeeperId};
pub use keeper::{Keeper, KeeperBuilder};
#[doc(hidden)]
pub use lock::{AcquiredLease, LeaseClaim};
pub use lock::{
    Adopted, All, AllGuard, DowngradeError, Election, Exclusive, Fence, Guard, IntoLeaseError, Latch,
    LatchState, Leader, Leadership, Leads, Lease, Mutex, Observer, Owner, Permit, Permits, Read, ReadGuard,
    RwLock, Segmented, Semaphore, StoredFence, Write, WriteGuard, all,
};
pub use name::Name;
pub use share::{Capacity, Units};
pub use token::{GrantNumber, Token};
