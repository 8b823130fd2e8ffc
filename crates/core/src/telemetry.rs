//! The engine's signals for operators: `tracing` events and, with the feature `metrics`, counters,
//! histograms and gauges. Names are part of the public contract and listed in `docs/observability.md`.
//!
//! Resource names appear in events but never as metric labels: there may be millions of them.

#[cfg(feature = "metrics")]
mod gauges;
#[cfg(not(feature = "metrics"))]
#[path = "telemetry/no_gauges.rs"]
mod gauges;
#[cfg(feature = "metrics")]
mod register;
mod writer;

use std::{sync::Arc, time::Duration};

pub(crate) use self::gauges::Gauges;
#[cfg(feature = "metrics")]
pub use self::register::register;
pub use self::writer::flush;
pub(crate) use self::writer::write_here;

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
/// Locks held at this moment: `store`.
pub const HELD: &str = "lockkeeper_held";
/// Claims that wait at the store at this moment: `store`.
pub const WAITING: &str = "lockkeeper_waiting";
/// 0 while requests to the store fail, else 1: `store`.
pub const STORE_UP: &str = "lockkeeper_store_up";

const GRANTED: &str = "granted";
const BUSY: &str = "busy";
const TIMED_OUT: &str = "timed_out";
const STORE_ERROR: &str = "store_error";
const REFUSED: &str = "refused";

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
        Ok(Some(_)) => GRANTED,
        Ok(None) => BUSY,
        Err(AcquireError::TimedOut { .. }) => TIMED_OUT,
        Err(AcquireError::Store(_)) => STORE_ERROR,
        Err(_) => REFUSED,
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

/// A lease was renewed, with less than a third of it left if `late`.
pub(crate) fn renewed(late: bool) {
    count!(RENEWED, 1);
    if late {
        count!(RENEWED_LATE, 1);
    }
}

/// The renewals of so many leases came late since the last event; `name` is one of them, of which `left` was left.
pub(crate) fn renewals_are_late(name: &Name, left: Duration, leases: usize) {
    let name = name.clone();
    writer::warn(move || {
        tracing::warn!(
            name = name.as_str(),
            left_ms = left.as_millis(),
            leases,
            "a renewal came late; the store or this machine is slow"
        );
    });
}

pub(crate) fn renewal_failed(leases: usize) {
    count!(RENEWAL_FAILED, leases as u64);
}

/// The renewals of so many leases failed since the last event; `name` is one of them.
pub(crate) fn renewals_fail(name: &Name, leases: usize, error: &StoreError) {
    let (name, error) = (name.clone(), error.clone());
    writer::warn(move || {
        tracing::warn!(name = name.as_str(), leases, %error, "renewal failed; trying again");
    });
}

/// A request of a wait for `name`, among others, failed, and the wait goes on.
pub(crate) fn wait_goes_on(store: &Arc<str>, name: &Name, waiting: usize, error: &StoreError) {
    let (store, name, error) = (store.clone(), name.clone(), error.clone());
    writer::warn(move || {
        let (store, name) = (&*store, name.as_str());
        tracing::warn!(store, name, waiting, %error, "the store fails; waiting goes on");
    });
}

/// The server of `name` that failed `work` for `lasted` answers.
pub(crate) fn answers_again(store: &Arc<str>, name: &Name, work: &'static str, lasted: Duration) {
    let (store, name, failed_for_ms) = (store.clone(), name.clone(), lasted.as_millis());
    writer::warn(move || {
        tracing::warn!(store = &*store, name = name.as_str(), work, failed_for_ms, "the store answers again");
    });
}

/// A lock was lost; `error` is that of its last renewal, if that is why.
pub(crate) fn lost(name: &Name, reason: Lost, error: Option<StoreError>) {
    count!(LOST, 1, "reason" => reason.word());
    let (name, reason) = (name.clone(), reason.word());
    writer::warn(move || {
        let error = error.as_ref().map(tracing::field::display);
        tracing::warn!(name = name.as_str(), reason, error, "lock lost");
    });
}

pub(crate) fn fence_rejected() {
    count!(FENCE_REJECTED, 1);
}
