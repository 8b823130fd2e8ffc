//! The JSON of the API: what callers send and what they get.
//!
//! Tokens are text, because not every JSON reader keeps such numbers exact. Times are text as the command has them.

mod latches;
mod leases;
mod listings;
mod locks;
mod operators;

use std::time::Duration;

pub(crate) use self::{
    latches::{LatchCreate, LatchDone, LatchDown, LatchLeft, LatchName, LatchPage, LatchView, LatchWait},
    leases::{AcquireRequest, Acquired, Admitted, FenceRequest, LeaseRequest, Released, Renewed},
    listings::{EventParams, ListParams, LockPage, NameParams, SampleInfo},
    locks::{Leadership, Lock},
    operators::{EvictRequest, EvictedHolder, Evictions, StoreInfo, Survives, WhoAmI},
};

/// Milliseconds, as JSON has them.
pub(crate) fn millis(length: Duration) -> u64 {
    u64::try_from(length.as_millis()).unwrap_or(u64::MAX)
}
