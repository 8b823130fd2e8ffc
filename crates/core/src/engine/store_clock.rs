//! The keeper's knowledge of its store's clock: enough to tell until when a claim may take effect.

use std::{sync::Mutex, time::Duration};

use crate::{clock::BootTime, store::StoreTime, support};

/// How long after it was sent a claim may still take effect at the store. Longer than any
/// request is waited for, short enough that a tombstone for a late copy does not live long.
const CLAIM_LIFE: Duration = Duration::from_secs(5);

/// The clocks of the store's servers as last heard.
#[derive(Debug, Default)]
pub(crate) struct StoreClock(Mutex<Vec<Option<(BootTime, StoreTime)>>>);

impl StoreClock {
    /// An answer of `server` that arrived at `received` said `now`.
    pub(crate) fn heard(&self, server: usize, received: BootTime, now: StoreTime) {
        let mut clocks = support::lock(&self.0);
        if clocks.len() <= server {
            clocks.resize(server + 1, None);
        }
        clocks[server] = Some((received, now));
    }

    /// Whether an answer of `server` arrived after this moment.
    pub(crate) fn has_heard(&self, server: usize, since: BootTime) -> bool {
        support::lock(&self.0).get(server).copied().flatten().is_some_and(|(received, _)| received > since)
    }

    /// Until when, on the clock of `server`, a request sent at `sent` may take effect. A guess that
    /// has become too early answers `Stale` with the right time, and the next one is right; for a
    /// server not yet heard of, another one's clock is a guess.
    pub(crate) fn not_after(&self, server: usize, sent: BootTime) -> StoreTime {
        let clocks = support::lock(&self.0);
        let own = clocks.get(server).copied().flatten();
        match own.or_else(|| clocks.iter().flatten().next().copied()) {
            Some((received, now)) => now.after(sent.since(received)).after(CLAIM_LIFE),
            None => StoreTime(0),
        }
    }
}
