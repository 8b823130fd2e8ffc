//! The JSON of locks and elections as they are shown: holders, waiters and leaders.

use std::{
    hash::{BuildHasher, RandomState},
    sync::OnceLock,
};

use lockkeeper::{
    lock::Leader,
    store::{Capacity, ContenderId, Details, HolderView, ResourceView, Units, WaiterView},
    support::moment,
};
use serde::Serialize;
use utoipa::ToSchema;

use super::millis;

/// `"all"`, or a number.
#[derive(Serialize, ToSchema)]
#[serde(untagged)]
pub(crate) enum Amount {
    // Comments of variants would become schemas of their own.
    All(AllWord),
    Count(u32),
}

/// `"all"`.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum AllWord {
    All,
}

impl From<Units> for Amount {
    fn from(units: Units) -> Self {
        match units {
            Units::All => Self::All(AllWord::All),
            Units::Count(count) => Self::Count(count.get()),
        }
    }
}

impl From<Capacity> for Amount {
    fn from(capacity: Capacity) -> Self {
        match capacity {
            Capacity::All => Self::All(AllWord::All),
            Capacity::Count(count) => Self::Count(count.get()),
        }
    }
}

/// A name with its holders and waiters. A free name has neither.
#[derive(Serialize, ToSchema)]
pub(crate) struct Lock {
    /// The name.
    pub(crate) name: String,
    /// `mutex`, `rw_lock`, `semaphore` or `election`; null if it is free.
    pub(crate) kind: Option<&'static str>,
    /// The capacity that its holders share; null if it is free.
    pub(crate) capacity: Option<Amount>,
    /// The holders, by token.
    pub(crate) holders: Vec<Holder>,
    /// The waiters, in the order of the queue.
    pub(crate) waiters: Vec<Waiter>,
}

/// A holder of a lock.
#[derive(Serialize, ToSchema)]
pub(crate) struct Holder {
    /// Tells this acquisition from others at this server, also while it waited. It is no key.
    pub(crate) id: String,
    /// The fencing token.
    pub(crate) token: String,
    /// The host, or the address of a caller of this API.
    pub(crate) host: String,
    /// The process; 0 for a caller of this API.
    pub(crate) pid: u32,
    /// The program, or the name of the token of a caller of this API.
    pub(crate) program: String,
    /// Its own words.
    pub(crate) label: Option<String>,
    /// The moment at which it got the lock, by the store's clock.
    pub(crate) since: String,
    /// The length of its lease.
    pub(crate) lease_ms: u64,
    /// The rest of its lease; null if the store cannot tell.
    pub(crate) remaining_ms: Option<u64>,
    /// The units that it holds.
    pub(crate) units: Amount,
    /// The text that a leader publishes.
    pub(crate) value: Option<String>,
    /// Whether its process renews the lease.
    pub(crate) renewed: bool,
    /// Whether only its lease ends it, and not the end of a process.
    pub(crate) detached: bool,
    /// Whether an operator wants the lock back, and it has not left yet.
    pub(crate) evicted: bool,
}

/// A waiter for a lock.
#[derive(Serialize, ToSchema)]
pub(crate) struct Waiter {
    /// Tells this acquisition from others at this server. It is no key.
    pub(crate) id: String,
    /// The host, or the address of a caller of this API.
    pub(crate) host: String,
    /// The process; 0 for a caller of this API.
    pub(crate) pid: u32,
    /// The program, or the name of the token of a caller of this API.
    pub(crate) program: String,
    /// Its own words.
    pub(crate) label: Option<String>,
    /// The moment at which it began to wait, by the store's clock.
    pub(crate) since: String,
    /// The units that it asks for.
    pub(crate) units: Amount,
}

/// Returns a hash of a contender's id, with a random key of this process. The id itself is the key to its lock, and a
/// client that guesses ids cannot find out by the hash which guess is right.
fn shown_id(contender: ContenderId) -> String {
    static KEY: OnceLock<RandomState> = OnceLock::new();
    format!("{:016x}", KEY.get_or_init(RandomState::new).hash_one(contender))
}

fn owned(text: Option<&str>) -> Option<String> {
    text.map(str::to_owned)
}

impl From<&HolderView> for Holder {
    fn from(holder: &HolderView) -> Self {
        let Details { process, label, value, .. } = &holder.details;
        Self {
            id: shown_id(holder.contender),
            token: holder.token.to_string(),
            host: process.host.clone(),
            pid: process.pid,
            program: process.program.clone(),
            label: owned(label.as_deref()),
            since: moment::show(holder.since),
            lease_ms: millis(holder.lease),
            remaining_ms: holder.remaining.map(millis),
            units: holder.units.into(),
            value: owned(value.as_deref()),
            renewed: holder.renewed,
            detached: holder.detached,
            evicted: holder.evicted,
        }
    }
}

impl From<&WaiterView> for Waiter {
    fn from(waiter: &WaiterView) -> Self {
        let Details { process, label, .. } = &waiter.details;
        Self {
            id: shown_id(waiter.contender),
            host: process.host.clone(),
            pid: process.pid,
            program: process.program.clone(),
            label: owned(label.as_deref()),
            since: moment::show(waiter.since),
            units: waiter.units.into(),
        }
    }
}

impl From<&ResourceView> for Lock {
    fn from(view: &ResourceView) -> Self {
        let details = view.holders.first().map(|holder| &holder.details);
        let details = details.or(view.waiters.first().map(|waiter| &waiter.details));
        Self {
            name: view.name.as_str().to_owned(),
            kind: details.map(|details| details.kind.word()),
            capacity: Some(view.capacity.into()),
            holders: view.holders.iter().map(Into::into).collect(),
            waiters: view.waiters.iter().map(Into::into).collect(),
        }
    }
}

impl Lock {
    /// Returns a name that nobody holds or waits for.
    pub(crate) fn free(name: &str) -> Self {
        Self { name: name.to_owned(), kind: None, capacity: None, holders: Vec::new(), waiters: Vec::new() }
    }
}

/// An election and its leader.
#[derive(Serialize, ToSchema)]
pub(crate) struct Leadership {
    /// The name of the election.
    pub(crate) name: String,
    /// The leader; null if there is none.
    pub(crate) leader: Option<LeaderView>,
}

/// The leader of an election.
#[derive(Serialize, ToSchema)]
pub(crate) struct LeaderView {
    /// The text that it publishes.
    pub(crate) value: String,
    /// Its fencing token.
    pub(crate) token: String,
    /// The host, or the address of a caller of this API.
    pub(crate) host: String,
    /// The process; 0 for a caller of this API.
    pub(crate) pid: u32,
    /// The program, or the name of the token of a caller of this API.
    pub(crate) program: String,
    /// The moment at which it began to lead, by the store's clock.
    pub(crate) since: String,
}

impl From<Leader> for LeaderView {
    fn from(leader: Leader) -> Self {
        Self {
            value: leader.value,
            token: leader.token.to_string(),
            host: leader.process.host.clone(),
            pid: leader.process.pid,
            program: leader.process.program.clone(),
            since: moment::show(leader.since),
        }
    }
}
