//! Help texts, and counters at zero, for an exporter to show before anything has happened.

use metrics::{Unit, counter, describe_counter, describe_gauge, describe_histogram};

use super::{
    ACQUIRED, BUSY, CONTENDED, FENCE_REJECTED, GRANTED, HANDED_ON, HELD, HOLD, LOST, QUEUE, REFUSED,
    RENEWAL_FAILED, RENEWED, RENEWED_LATE, STORE_ERROR, STORE_UP, TIMED_OUT, WAIT, WAITING, gauges,
};
use crate::{error::Lost, store::Kind};

/// Names and the help texts of counters without labels.
const COUNTERS: [(&str, &str); 6] = [
    (CONTENDED, "Claims that found the resource busy"),
    (HANDED_ON, "Grants handed on inside a process, without the store"),
    (RENEWED, "Renewals that succeeded"),
    (RENEWED_LATE, "Renewals that succeeded with less than a third of the lease left"),
    (RENEWAL_FAILED, "Leases whose renewal failed and is tried again"),
    (FENCE_REJECTED, "Tokens that a fence rejected"),
];

/// Describes all metrics, registers the counters at zero, and sets the gauges.
///
/// Every keeper does so when it connects. Call it yourself if the exporter is installed after that.
pub fn register() {
    for (name, help) in COUNTERS {
        describe_counter!(name, Unit::Count, help);
        drop(counter!(name));
    }
    describe_counter!(ACQUIRED, Unit::Count, "Acquisitions that ended, by kind and outcome");
    for kind in [Kind::Mutex, Kind::RwLock, Kind::Semaphore, Kind::Election] {
        for outcome in [GRANTED, BUSY, TIMED_OUT, STORE_ERROR, REFUSED] {
            drop(counter!(ACQUIRED, "kind" => kind.word(), "outcome" => outcome));
        }
    }
    describe_counter!(LOST, Unit::Count, "Locks lost while a guard stood for them, by reason");
    for reason in [Lost::Expired, Lost::Gone, Lost::Evicted, Lost::MaxHold, Lost::Closed] {
        drop(counter!(LOST, "reason" => reason.word()));
    }
    describe_histogram!(WAIT, Unit::Seconds, "How long acquisitions took, whatever their outcome");
    describe_histogram!(HOLD, Unit::Seconds, "How long locks were held, from grant to release");
    describe_histogram!(QUEUE, Unit::Count, "How many waited before a claim that found the resource busy");
    describe_gauge!(HELD, Unit::Count, "Locks held at this moment");
    describe_gauge!(WAITING, Unit::Count, "Claims that wait at the store at this moment");
    describe_gauge!(STORE_UP, "0 while requests to the store fail, else 1");
    gauges::show_all();
}
