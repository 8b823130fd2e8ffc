//! What lives behind a handle: waiting, renewing, giving back. Nothing here knows a primitive or
//! a particular store.

pub mod clock;
pub mod deadline;

pub(crate) mod engine;
pub(crate) mod flight;
pub(crate) mod group;
pub(crate) mod hold;
pub(crate) mod keeping;
pub(crate) mod lane;
pub(crate) mod ledger;
pub(crate) mod seat;
pub(crate) mod steps;
pub(crate) mod store_clock;
pub(crate) mod terms;
pub(crate) mod thread;
pub(crate) mod watchdog;
pub(crate) mod watches;
