//! What the engine tells operators: `tracing` events and, with the feature `metrics`, counters
//! and histograms. Names are part of the public contract and listed in `docs/observability.md`.
//!
//! Resource names appear in events but never as metric labels: there may be millions of them.

use std::time::Duration;

use crate::{
    error::{AcquireError, Lost, StoreError},
    name::Name,
    store::Kind,
    token::Token,
};

/// Acquisitions by outcome: `kind`, `outcome`.
pub const ACQUIRED: &str = "lockkeeper_acquired_total";
/// How long acquisitions took: `kind`.
pub const WAIT: &str = "lockkeeper_wait_seconds";
/// How long grants were held: `kind`.
pub const HOLD: &str = "lockkeeper_hold_seconds";
/// Grants handed on inside a process.
pub const HANDED_ON: &str = "lockkeeper_handed_on_total";
/// How many waited before a claim that had to wait.
pub const QUEUE: &str = "lockkeeper_queue_ahead";
/// Claims that found the resource busy.
pub const CONTENDED: &str = "lockkeeper_contended_total";
/// Renewals that succeeded.
pub const RENEWED: &str = "lockkeeper_renewed_total";
/// Renewals that succeeded with less than a third of the lease left.
pub const RENEWED_LATE: &str = "lockkeeper_renewed_late_total";
/// Leases whose renewal failed and will be tried again.
pub const RENEWAL_FAILED: &str = "lockkeeper_renewal_failed_total";
/// Locks lost: `reason`.
pub const LOST: &str = "lockkeeper_lost_total";
/// Tokens that a fence rejected.
pub const FENCE_REJECTED: &str = "lockkeeper_fence_rejected_total";

// Times are passed as functions: without listeners nobody reads the clock for them. Without the
// feature the values are checked but never computed.
#[cfg(feature = "metrics")]
macro_rules! count {
    ($name:expr, $by:expr $(, $label:expr => $value:expr)*) => {
        metrics::counter!($name $(, $label => $value)*).increment($by)
    };
}
#[cfg(not(feature = "metrics"))]
macro_rules! count {
    ($name:expr, $by:expr $(, $label:expr => $value:expr)*) => {{ let _ = || ($name, $by $(, $value)*); }};
}
#[cfg(feature = "metrics")]
macro_rules! record {
    ($name:expr, $value:expr $(, $label:expr => $text:expr)*) => {
        metrics::histogram!($name $(, $label => $text)*).record($value)
    };
}
#[cfg(not(feature = "metrics"))]
macro_rules! record {
    ($name:expr, $value:expr $(, $label:expr => $text:expr)*) => {{ let _ = || ($name, $value $(, $text)*); }};
}

pub(crate) fn acquired(
    kind: Kind,
    result: Result<Option<(&Name, Token)>, &AcquireError>,
    waited: impl Fn() -> Duration,
) {
    let outcome = match result {
        Ok(Some(_)) => "granted",
        Ok(None) => "busy",
        Err(AcquireError::TimedOut { .. }) => "timed_out",
        Err(AcquireError::Store(_)) => "store_error",
        Err(_) => "refused",
    };
    count!(ACQUIRED, 1, "kind" => kind.word(), "outcome" => outcome);
    record!(WAIT, waited().as_secs_f64(), "kind" => kind.word());
    match result {
        Ok(Some((name, token))) => tracing::trace!(
            name = name.as_str(),
            token = %token,
            waited_ms = waited().as_millis(),
            "acquired"
        ),
        Ok(None) => {}
        Err(error) => tracing::debug!(%error, "not acquired"),
    }
}

pub(crate) fn released(name: &Name, kind: Kind, held: impl Fn() -> Duration) {
    record!(HOLD, held().as_secs_f64(), "kind" => kind.word());
    tracing::trace!(name = name.as_str(), held_ms = held().as_millis(), "released");
}

pub(crate) fn handed_on() {
    count!(HANDED_ON, 1);
}

pub(crate) fn queued(ahead: u32) {
    count!(CONTENDED, 1);
    record!(QUEUE, f64::from(ahead));
}

/// A lease of which `left` was left was renewed; `running` was its length.
pub(crate) fn renewed(name: &Name, left: Duration, running: Duration) {
    count!(RENEWED, 1);
    if left < running / 3 {
        count!(RENEWED_LATE, 1);
        tracing::warn!(
            name = name.as_str(),
            left_ms = left.as_millis(),
            "a renewal came late; the store or this machine is slow"
        );
    }
}

pub(crate) fn renewal_failed(leases: usize, error: &StoreError) {
    count!(RENEWAL_FAILED, leases as u64);
    tracing::warn!(leases, %error, "renewal failed; trying again");
}

pub(crate) fn lost(name: &Name, reason: Lost) {
    count!(LOST, 1, "reason" => reason.word());
    tracing::warn!(name = name.as_str(), reason = reason.word(), "lock lost");
}

pub(crate) fn fence_rejected() {
    count!(FENCE_REJECTED, 1);
}
