//! The JSON of the API: what callers send and what they get.
//!
//! Tokens are text, because not every JSON reader keeps such numbers exact. Times are text as the command has them.

use std::{
    hash::{BuildHasher, RandomState},
    sync::OnceLock,
    time::Duration,
};

use lockkeeper::{
    lock::Leader,
    store::{Capacity, ContenderId, CountState, Details, HolderView, ResourceView, Units, WaiterView},
    support::moment,
};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

/// Milliseconds, as JSON has them.
pub(crate) fn millis(length: Duration) -> u64 {
    u64::try_from(length.as_millis()).unwrap_or(u64::MAX)
}

/// A lock to acquire.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct AcquireRequest {
    /// The name of the lock: 1 to 512 bytes without control characters.
    #[schema(example = "stock/42", min_length = 1, max_length = 512, pattern = r"^[^\x00-\x1f\x7f-\x9f]+$")]
    pub(crate) name: String,
    /// How long to wait in the queue at most, such as `30s`. Without it, or with `0s`, it is only tried.
    #[schema(example = "30s")]
    pub(crate) wait: Option<String>,
    /// How long the lock stays held without a renewal, such as `1m`.
    #[schema(example = "1m")]
    pub(crate) lease: Option<String>,
    /// Whether it is held together with others that hold it shared.
    #[serde(default)]
    pub(crate) shared: bool,
    /// K of N permits, such as `1/4`. All callers give the same N.
    #[schema(example = json!(null))]
    pub(crate) permits: Option<String>,
    /// Exact order of arrival. Callers of this API always have it.
    #[serde(default)]
    #[expect(dead_code, reason = "it is always so")]
    pub(crate) fifo: bool,
    /// It is kept for at least this long, even if it is released before.
    pub(crate) min_hold: Option<String>,
    /// Words for people, shown with the holder.
    #[schema(max_length = 4096)]
    pub(crate) label: Option<String>,
    /// What a leader publishes, such as its address. It makes the lock an election.
    #[schema(max_length = 4096)]
    pub(crate) value: Option<String>,
}

/// A lock that was acquired.
#[derive(Clone, Serialize, ToSchema)]
pub(crate) struct Acquired {
    /// The name of the lock.
    pub(crate) name: String,
    /// What renews and releases it. Whoever has this text can do so: treat it as a key.
    pub(crate) lease: String,
    /// The fencing token. It grows with every holder.
    pub(crate) token: String,
    /// The smallest token that was held when this one was granted.
    pub(crate) floor: String,
    /// How long it is certainly held, counted from this answer. After a long wait, renew it and count from sending that.
    pub(crate) expires_in_ms: u64,
}

/// A lease to renew or to release.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct LeaseRequest {
    /// The `lease` of the answer to acquire.
    #[schema(min_length = 1)]
    pub(crate) lease: String,
}

/// A lease that was renewed.
#[derive(Serialize, ToSchema)]
pub(crate) struct Renewed {
    /// The name of the lock.
    pub(crate) name: String,
    /// The fencing token.
    pub(crate) token: String,
    /// How long it is certainly held, counted from this answer.
    pub(crate) expires_in_ms: u64,
}

/// A lock that was released.
#[derive(Serialize, ToSchema)]
pub(crate) struct Released {
    /// The name of the lock.
    pub(crate) name: String,
    /// Its fencing token.
    pub(crate) token: String,
}

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
    /// How much there is; null if it is free.
    pub(crate) capacity: Option<Amount>,
    /// The holders, by token.
    pub(crate) holders: Vec<Holder>,
    /// The waiters, in the order of the queue.
    pub(crate) waiters: Vec<Waiter>,
}

/// Somebody who holds a lock.
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
    /// Since when it holds, by the store's clock.
    pub(crate) since: String,
    /// The length of its lease.
    pub(crate) lease_ms: u64,
    /// What is left of its lease; null if the store cannot tell.
    pub(crate) remaining_ms: Option<u64>,
    /// How much it holds.
    pub(crate) units: Amount,
    /// What a leader publishes.
    pub(crate) value: Option<String>,
    /// Whether its process renews the lease.
    pub(crate) renewed: bool,
    /// Whether only its lease ends it, and not the end of a process.
    pub(crate) detached: bool,
    /// Whether an operator wants the lock back, and it has not left yet.
    pub(crate) evicted: bool,
}

/// Somebody who waits for a lock.
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
    /// Since when it waits, by the store's clock.
    pub(crate) since: String,
    /// How much it asks for.
    pub(crate) units: Amount,
}

/// A contender's id is the key to its lock. So a hash of it is shown, with a random key of this process: whoever guesses ids
/// cannot find out which guess is right.
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
    /// A name that nobody holds or waits for.
    pub(crate) fn free(name: &str) -> Self {
        Self { name: name.to_owned(), kind: None, capacity: None, holders: Vec::new(), waiters: Vec::new() }
    }
}

/// Which names to list.
#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(crate) struct ListParams {
    /// Only names that start with this.
    #[serde(default)]
    pub(crate) prefix: String,
    /// Only names after this one: the `next` of the page before.
    pub(crate) after: Option<String>,
    /// At most so many, 1 to 10000; 1000 without it.
    #[param(minimum = 1, maximum = 10000)]
    pub(crate) limit: Option<usize>,
}

/// A name.
#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(crate) struct NameParams {
    /// The name.
    #[param(min_length = 1, max_length = 512, pattern = r"^[^\x00-\x1f\x7f-\x9f]+$")]
    pub(crate) name: String,
}

/// Which changes to hear of.
#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(crate) struct EventParams {
    /// Only names that start with this.
    #[serde(default)]
    pub(crate) prefix: String,
    /// Begin with what differs from this sample, if it is the latest: the `sample` of `/v1/locks`. Otherwise, and without
    /// it, everything there is comes first.
    pub(crate) since: Option<u64>,
}

/// When and how a listing was made.
#[derive(Serialize, ToSchema)]
pub(crate) struct SampleInfo {
    /// The number of the sample. It grows by one with each, and begins anew with the server.
    pub(crate) sample: u64,
    /// When it was taken, by this server's clock.
    pub(crate) at: String,
    /// How long ago that was.
    pub(crate) age_ms: u64,
    /// How long it took.
    pub(crate) took_ms: u64,
    /// How often one is taken while somebody looks.
    pub(crate) every_ms: u64,
    /// How many names are held or waited for in all, of those that this token may see.
    pub(crate) total_locks: usize,
    /// How many latches there are in all, of those that this token may see.
    pub(crate) total_latches: usize,
}

/// A part of a listing of locks, in the order of their names. It is written as text, and only described by this.
#[derive(Serialize, ToSchema)]
pub(crate) struct LockPage {
    /// The sample that it is from.
    #[serde(flatten)]
    pub(crate) sample: SampleInfo,
    /// Where the next page starts; null if there is none.
    pub(crate) next: Option<String>,
    /// The locks.
    pub(crate) locks: Vec<Lock>,
}

/// A latch.
#[derive(Serialize, ToSchema)]
pub(crate) struct LatchView {
    /// Its name.
    pub(crate) name: String,
    /// What is left to count.
    pub(crate) remaining: u64,
    /// What it was created with.
    pub(crate) initial: u64,
}

impl LatchView {
    pub(crate) fn new(name: &str, state: &CountState) -> Self {
        Self { name: name.to_owned(), remaining: state.remaining, initial: state.initial }
    }
}

/// A part of a listing of latches, in the order of their names.
#[derive(Serialize, ToSchema)]
pub(crate) struct LatchPage {
    /// The sample that it is from.
    #[serde(flatten)]
    pub(crate) sample: SampleInfo,
    /// Where the next page starts; null if there is none.
    pub(crate) next: Option<String>,
    /// The latches.
    pub(crate) latches: Vec<LatchView>,
}

/// A latch to create.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct LatchCreate {
    /// Its name.
    #[schema(min_length = 1, max_length = 512, pattern = r"^[^\x00-\x1f\x7f-\x9f]+$")]
    pub(crate) name: String,
    /// How many to count.
    #[schema(example = 3)]
    pub(crate) count: u64,
}

/// A latch to count down.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct LatchDown {
    /// Its name.
    #[schema(min_length = 1, max_length = 512, pattern = r"^[^\x00-\x1f\x7f-\x9f]+$")]
    pub(crate) name: String,
    /// By how many; 1 without it.
    pub(crate) count: Option<u64>,
}

/// A latch to wait for.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct LatchWait {
    /// Its name.
    #[schema(min_length = 1, max_length = 512, pattern = r"^[^\x00-\x1f\x7f-\x9f]+$")]
    pub(crate) name: String,
    /// How long to wait at most, such as `30s`. Without it, or with `0s`, it is only looked at.
    #[schema(example = "0s")]
    pub(crate) wait: Option<String>,
}

/// A latch to work with.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct LatchName {
    /// Its name.
    #[schema(min_length = 1, max_length = 512, pattern = r"^[^\x00-\x1f\x7f-\x9f]+$")]
    pub(crate) name: String,
}

/// What is left of a latch.
#[derive(Serialize, ToSchema)]
pub(crate) struct LatchLeft {
    /// Its name.
    pub(crate) name: String,
    /// What is left to count.
    pub(crate) remaining: u64,
}

/// A latch that something was done with.
#[derive(Serialize, ToSchema)]
pub(crate) struct LatchDone {
    /// Its name.
    pub(crate) name: String,
}

/// Who leads an election.
#[derive(Serialize, ToSchema)]
pub(crate) struct Leadership {
    /// The name of the election.
    pub(crate) name: String,
    /// Who leads; null if nobody does.
    pub(crate) leader: Option<LeaderView>,
}

/// The leader of an election.
#[derive(Serialize, ToSchema)]
pub(crate) struct LeaderView {
    /// What it publishes.
    pub(crate) value: String,
    /// Its fencing token.
    pub(crate) token: String,
    /// The host, or the address of a caller of this API.
    pub(crate) host: String,
    /// The process; 0 for a caller of this API.
    pub(crate) pid: u32,
    /// The program, or the name of the token of a caller of this API.
    pub(crate) program: String,
    /// Since when it leads, by the store's clock.
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

/// A token to show to a fence.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct FenceRequest {
    /// The name of the fence, usually that of the lock.
    #[schema(min_length = 1, max_length = 512, pattern = r"^[^\x00-\x1f\x7f-\x9f]+$")]
    pub(crate) name: String,
    /// The fencing token.
    #[schema(example = "1837811290110431232")]
    pub(crate) token: String,
    /// The floor, for shared holds and permits; the token itself without it.
    pub(crate) floor: Option<String>,
}

/// A token that a fence admitted.
#[derive(Serialize, ToSchema)]
pub(crate) struct Admitted {
    /// The name of the fence.
    pub(crate) name: String,
    /// The token.
    pub(crate) token: String,
}

/// Holders to evict.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct EvictRequest {
    /// The name of the lock.
    #[schema(min_length = 1, max_length = 512, pattern = r"^[^\x00-\x1f\x7f-\x9f]+$")]
    pub(crate) name: String,
    /// Only the holder with this token; without it, every holder there is now.
    pub(crate) token: Option<String>,
    /// Whether the lock passes at once, while the holder may still work: safe only where tokens are checked.
    #[serde(default)]
    pub(crate) now: bool,
    /// Why, for the record and for the holder.
    #[schema(min_length = 1, max_length = 4096, example = "its machine is gone")]
    pub(crate) reason: String,
}

/// Holders that were evicted.
#[derive(Serialize, ToSchema)]
pub(crate) struct Evictions {
    /// The name of the lock.
    pub(crate) name: String,
    /// The holders; none if nobody held it.
    pub(crate) evicted: Vec<EvictedHolder>,
}

/// A holder that was evicted.
#[derive(Serialize, ToSchema)]
pub(crate) struct EvictedHolder {
    /// Its fencing token.
    pub(crate) token: String,
    /// The host, or the address of a caller of this API.
    pub(crate) host: String,
    /// The process; 0 for a caller of this API.
    pub(crate) pid: u32,
    /// The program, or the name of the token of a caller of this API.
    pub(crate) program: String,
    /// Whether the order stands. If not, it had left before.
    pub(crate) done: bool,
}

/// What a token may do.
#[derive(Serialize, ToSchema)]
pub(crate) struct WhoAmI {
    /// How its owner is called in logs and on holders.
    pub(crate) name: String,
    /// `look`, `use` or `administer`.
    pub(crate) role: &'static str,
    /// What the names begin with that it may use; none if it may use all.
    pub(crate) prefixes: Vec<String>,
}

/// The store behind this server.
#[derive(Serialize, ToSchema)]
pub(crate) struct StoreInfo {
    /// Its URL, without user and password.
    pub(crate) url: String,
    /// Its kind, such as `redis`.
    pub(crate) store: &'static str,
    /// The version of this server.
    pub(crate) version: &'static str,
    /// The lease of a request that names none.
    pub(crate) default_lease_ms: u64,
    /// The shortest lease.
    pub(crate) min_lease_ms: u64,
    /// The longest lease.
    pub(crate) max_lease_ms: u64,
    /// The longest `wait` of a request.
    pub(crate) longest_wait_ms: u64,
    /// Whether locks are shared between processes.
    pub(crate) between_processes: bool,
    /// Whether a release reaches the next waiter at once.
    pub(crate) pushes: bool,
    /// Whether the end of a process frees its locks before their leases end.
    pub(crate) frees_crashed_at_once: bool,
    /// What it survives: `yes`, `with the fence`, `no` or `n/a` for each trouble.
    pub(crate) survives: Survives,
}

/// What a store survives.
#[derive(Serialize, ToSchema)]
pub(crate) struct Survives {
    /// A client that crashes.
    pub(crate) client_crash: &'static str,
    /// A restart of the store.
    pub(crate) restart: &'static str,
    /// A restart of the store without its data.
    pub(crate) data_loss: &'static str,
    /// A jump of the store's clock.
    pub(crate) clock_jump: &'static str,
}
