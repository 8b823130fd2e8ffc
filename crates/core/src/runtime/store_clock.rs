//! What the keeper knows of its store's clock: enough to say until when a claim may take effect.

use std::{
    sync::{Mutex, PoisonError},
    time::Duration,
};

use super::clock::BootTime;
use crate::store::StoreTime;

/// How long after it was sent a claim may still take effect at the store. Longer than any
/// request is waited for, short enough that a mark left for a late copy does not live long.
const CLAIM_LIFE: Duration = Duration::from_secs(5);

/// The store's clock as last heard.
#[derive(Debug, Default)]
pub(crate) struct StoreClock(Mutex<Option<(BootTime, StoreTime)>>);

impl StoreClock {
    /// An answer that arrived at `received` said `now`.
    pub(crate) fn heard(&self, received: BootTime, now: StoreTime) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some((received, now));
    }

    /// Until when, on the store's clock, a request sent at `sent` may take effect. A guess that
    /// has become too early answers `Stale` with the right time, and the next one is right.
    pub(crate) fn not_after(&self, sent: BootTime) -> StoreTime {
        match *self.0.lock().unwrap_or_else(PoisonError::into_inner) {
            Some((received, now)) => now.after(sent.since(received)).after(CLAIM_LIFE),
            None => StoreTime(0),
        }
    }
}
