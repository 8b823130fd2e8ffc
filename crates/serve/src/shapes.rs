//! The JSON of the API: the requests of callers and the answers that they get.
//!
//! Tokens are text, because not every JSON reader keeps such numbers exact. Times are text in the form of the command.

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

/// Returns whole milliseconds, the form of durations in this JSON.
pub(crate) fn millis(length: Duration) -> u64 {
    u64::try_from(length.as_millis()).unwrap_or(u64::MAX)
}
