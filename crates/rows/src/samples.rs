//! Requests, holders and waiters for the tests of this crate.

use std::{sync::Arc, time::Duration};

use lockkeeper_core::{
    ContenderId, KeeperId, Name, Units,
    model::{Holder, Now, Waiter},
    store::{Claim, Details, Kind, Leave, ProcessInfo, Request, StoreTime},
    testing,
};

pub(crate) fn name(text: &str) -> Name {
    Name::new(text).expect("valid")
}

pub(crate) fn contender(seq: u64) -> ContenderId {
    ContenderId { keeper: KeeperId::from_u128(1), seq }
}

pub(crate) fn at(seconds: u64) -> Now {
    Now { lease: StoreTime(seconds * 1_000_000), wall: 100 }
}

fn details() -> Details {
    let process = ProcessInfo { host: "host".into(), pid: 1, program: "test".into() };
    Details { kind: Kind::RwLock, process: Arc::new(process), label: Some("label".into()), value: None }
}

/// A claim that waits, for everything, with a lease of ten seconds.
pub(crate) fn claim(resource: &str, seq: u64) -> Claim {
    Claim {
        lease: Duration::from_secs(10),
        stamp: seq,
        details: details(),
        ..testing::claim(&name(resource), contender(seq))
    }
}

pub(crate) fn claims(resource: &str, seq: u64) -> Request {
    Request::Claim(claim(resource, seq))
}

pub(crate) fn leave(resource: &str, seq: u64) -> Leave {
    Leave {
        name: name(resource),
        contender: contender(seq),
        tombstone_until: None,
        hold_at_least: Duration::ZERO,
    }
}

pub(crate) fn leaves(resource: &str, seq: u64) -> Request {
    Request::Leave(leave(resource, seq))
}

pub(crate) fn waiter(seq: u64) -> Waiter {
    Waiter {
        contender: contender(seq),
        units: Units::ONE,
        lease: Duration::from_secs(1),
        min_hold: Duration::from_secs(2),
        renewed: true,
        detached: false,
        at_least: 0,
        stamp: seq,
        asked: StoreTime(1),
        since: 1,
        details: details(),
    }
}

pub(crate) fn holder(seq: u64, number: u64) -> Holder {
    Holder {
        contender: contender(seq),
        units: Units::ONE,
        number,
        granted: StoreTime(1),
        since: 1,
        expires: StoreTime(9_000_000),
        lease: Duration::from_secs(1),
        min_hold: Duration::from_secs(2),
        confirmed: true,
        renewed: true,
        evicted: false,
        reason: None,
        retired: false,
        detached: false,
        details: details(),
    }
}
