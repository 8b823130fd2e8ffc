//! Requests to a store and its answers: plain values, the same for every store.

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use crate::{
    error::StoreError,
    id::ContenderId,
    name::Name,
    share::{Capacity, Units},
    token::{GrantNumber, Token},
};

/// A moment on the store's own clock, in microseconds. Only differences mean anything.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct StoreTime(pub u64);

impl StoreTime {
    /// The moment `length` later.
    pub fn after(self, length: Duration) -> Self {
        Self(self.0.saturating_add(u64::try_from(length.as_micros()).unwrap_or(u64::MAX)))
    }

    /// How long after `earlier` this is; zero if it is not.
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_micros(self.0.saturating_sub(earlier.0))
    }
}

/// The primitive that a claim came from. For people only; it decides nothing.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum Kind {
    /// [`Mutex`](crate::Mutex).
    Mutex,
    /// [`RwLock`](crate::RwLock).
    RwLock,
    /// [`Semaphore`](crate::Semaphore).
    Semaphore,
    /// [`Election`](crate::Election).
    Election,
}

impl Kind {
    /// The kind's word in views, logs and metrics.
    pub fn word(self) -> &'static str {
        match self {
            Self::Mutex => "mutex",
            Self::RwLock => "rw_lock",
            Self::Semaphore => "semaphore",
            Self::Election => "election",
        }
    }

    /// The kind with this word.
    pub fn from_word(word: &str) -> Option<Self> {
        [Self::Mutex, Self::RwLock, Self::Semaphore, Self::Election].into_iter().find(|k| k.word() == word)
    }
}

/// A process that holds or waits, the same for all its claims.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct ProcessInfo {
    /// Host name.
    pub host: String,
    /// Process id on that host.
    pub pid: u32,
    /// Program name.
    pub program: String,
}

/// The details of a claim for people: its process, its primitive, a label and a published value.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Details {
    /// The primitive.
    pub kind: Kind,
    /// The process.
    pub process: Arc<ProcessInfo>,
    /// The caller's own words, if any.
    pub label: Option<Arc<str>>,
    /// A leader's published value.
    pub value: Option<Arc<str>>,
}

/// The bond of a grant to a process, whose end may end the grant before its lease does.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Attachment {
    /// The process of its keeper, whose crash ends it where a store can tell.
    #[default]
    Process,
    /// The same, but it may be detached later: then it outlives the process (rule 11 of the design).
    Detachable,
    /// Nothing, from the grant on: only its lease or a leave ends it.
    Detached,
}

impl Attachment {
    /// Whether a grant may outlive the process of its keeper, now or later.
    pub fn may_outlive_process(self) -> bool {
        self != Self::Process
    }
}

/// Enter the queue of a resource, or ask again.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Claim {
    /// The resource.
    pub name: Name,
    /// The contender that asks.
    pub contender: ContenderId,
    /// The units that are asked for.
    pub units: Units,
    /// The capacity that the asker assumes.
    pub capacity: Capacity,
    /// How long a grant lasts from the moment it is made.
    pub lease: Duration,
    /// Whether to wait in the queue when it is not free.
    pub queue: bool,
    /// Whether the end of this keeper's process may end the grant.
    pub attachment: Attachment,
    /// Whether its keeper will renew it. For people only; it decides nothing.
    pub renewed: bool,
    /// If this is not zero, the number of a grant is at least this, and the store's clock has no part in it. A waiter
    /// keeps it. Only for stores that [may be members](crate::Capability::may_be_member) of a quorum.
    pub at_least: GrantNumber,
    /// A grant that was confirmed is kept until it is this old, even if this keeper's process dies. The lease is no
    /// shorter, so this matters only to stores that free crashed processes before their leases end.
    pub min_hold: Duration,
    /// Later than this, on the store's clock, the claim must do nothing.
    pub not_after: StoreTime,
    /// The asker's own send stamp, kept with the entry and echoed in a [`GrantNotice`].
    pub stamp: u64,
    /// Whether an earlier copy was sent: a group has at most one claim per resource that was not.
    pub again: bool,
    /// The details for people.
    pub details: Details,
}

/// Give a hold or a position in the queue back.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Leave {
    /// The resource.
    pub name: Name,
    /// The contender that leaves.
    pub contender: ContenderId,
    /// The time until which late copies of this contender's claim may still arrive; until then a tombstone
    /// keeps them from having any effect.
    pub tombstone_until: Option<StoreTime>,
    /// A hold younger than this is kept, without its owner, until it is this old.
    pub hold_at_least: Duration,
}

/// One entry of a group.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Request {
    /// See [`Claim`].
    Claim(Claim),
    /// See [`Leave`].
    Leave(Leave),
}

impl Request {
    /// The resource it is about.
    pub fn name(&self) -> &Name {
        match self {
            Self::Claim(claim) => &claim.name,
            Self::Leave(leave) => &leave.name,
        }
    }
}

/// The number, floor and remaining lease of a grant.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Grant {
    /// The grant's number.
    pub number: GrantNumber,
    /// The smallest number still holding at the moment of the answer: its own if exclusive.
    pub floor: GrantNumber,
    /// The rest of the lease at the moment of the answer.
    pub remaining: Duration,
}

/// The answer to a claim.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Verdict {
    /// The contender holds it.
    Granted(Grant),
    /// Somebody else does; see [`busy`](Self::busy).
    #[non_exhaustive]
    Busy {
        /// How many wait in the queue before this contender.
        ahead: u32,
        /// When asking again may tell something new even without a wake: at the earliest end of
        /// a lease.
        retry_in: Duration,
    },
    /// The claim came too late, or its contender has left: nothing was changed.
    Stale,
    /// Others hold or wait with another capacity; see [`mismatch`](Self::mismatch).
    #[non_exhaustive]
    Mismatch {
        /// The capacity of the others.
        in_use: Capacity,
    },
    /// This store cannot serve this claim.
    Refused(StoreError),
    /// Nothing was done, for a reason that passes and that does not concern the others of the group. It is asked again.
    NotNow(StoreError),
    /// The contender gave way, has left, and its id is used up. Claim again with another id after a pause.
    Again,
}

impl Verdict {
    /// Somebody else holds it, and `ahead` contenders wait before this one. Asking again may tell something new after
    /// `retry_in`, even without a wake.
    pub fn busy(ahead: u32, retry_in: Duration) -> Self {
        Self::Busy { ahead, retry_in }
    }

    /// Others hold or wait with the capacity `in_use`.
    pub fn mismatch(in_use: Capacity) -> Self {
        Self::Mismatch { in_use }
    }
}

/// The answer to a leave.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Left {
    /// It was held, and is not any more (or only for the rest of `hold_at_least`).
    Released,
    /// It was waiting, and is not any more.
    LeftQueue,
    /// It was neither.
    NotThere,
    /// Nothing was done, for a reason that passes and that does not concern the others of the group. It is asked again.
    NotNow,
}

/// The answer to one entry of a group.
#[derive(Clone, Debug)]
pub enum Answer {
    /// To a [`Claim`].
    Claim(Verdict),
    /// To a [`Leave`].
    Leave(Left),
}

/// Answers in the order of the requests, and the store's clock at that time.
#[derive(Clone, Debug)]
pub struct Answers<T> {
    /// The store's clock when it answered.
    pub now: StoreTime,
    /// One answer per request.
    pub each: Vec<T>,
}

/// Extend a lease.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Renew {
    /// The resource.
    pub name: Name,
    /// The contender that holds.
    pub contender: ContenderId,
    /// The lease lasts at least this long from now. Zero only confirms a grant that was pushed,
    /// which extends its first short lease to the full one.
    pub lease: Duration,
    /// Hold only so much from now on (downgrade); more than is held is ignored.
    pub lower_to: Option<Units>,
    /// From now on only the lease ends it, not the death of the process.
    pub detach: bool,
    /// Raises the number of the grant to this, and the store's high-water mark with it, if they are below. Zero raises
    /// nothing. Only for stores that [may be members](crate::Capability::may_be_member) of a quorum.
    pub at_least: GrantNumber,
}

/// The answer to a renewal.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Renewed {
    /// Still held: the grant as it is now.
    Held(Grant),
    /// Not held any more.
    Gone,
    /// Held, but an operator wants it back, for this reason: the lease was not extended.
    Evicted(Option<Arc<str>>),
    /// Not known: this one was refused for now, or got no answer, while others of its group did. It is asked again.
    Unknown,
}

/// A grant that a releaser made for a waiter, pushed to the waiter's keeper.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GrantNotice {
    /// The contender that was granted.
    pub contender: ContenderId,
    /// The grant's number.
    pub number: GrantNumber,
    /// The smallest number still holding at that moment.
    pub floor: GrantNumber,
    /// The stamp of the claim copy that the entry kept.
    pub stamp: u64,
    /// The time from that claim copy to the grant, by the store's clock, at least zero.
    pub waited: Duration,
    /// The first lease, from the moment of the grant.
    pub lease: Duration,
}

/// One holder, as shown to people.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HolderView {
    /// The contender that holds.
    pub contender: ContenderId,
    /// The grant's token (its first step). A quorum may show a higher one for a detached lease, and takes the lease back
    /// by either.
    pub token: Token,
    /// The units that it holds.
    pub units: Units,
    /// The details of its claim.
    pub details: Details,
    /// When it was granted, on the store's wall clock.
    pub since: SystemTime,
    /// The length of its lease.
    pub lease: Duration,
    /// The rest of its lease, if the store can tell.
    pub remaining: Option<Duration>,
    /// Whether its keeper renews its lease. False once it is detached.
    pub renewed: bool,
    /// Whether an operator asked for it back.
    pub evicted: bool,
    /// Whether only its lease ends it: detached, or released before its `min_hold`.
    pub detached: bool,
}

/// One waiter, as shown to people.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct WaiterView {
    /// The contender that waits.
    pub contender: ContenderId,
    /// The units that it asks for.
    pub units: Units,
    /// The details of its claim.
    pub details: Details,
    /// When it came, on the store's wall clock.
    pub since: SystemTime,
}

/// A resource that is held or waited for, as shown to people.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ResourceView {
    /// Its name.
    pub name: Name,
    /// Its capacity.
    pub capacity: Capacity,
    /// The holders, by token.
    pub holders: Vec<HolderView>,
    /// The waiters, in order of arrival.
    pub waiters: Vec<WaiterView>,
}

/// The resources to list.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ListQuery {
    /// Only names that start so.
    pub prefix: String,
    /// Only names after this one: the `next` of the page before.
    pub after: Option<Name>,
    /// At most so many; the store may give fewer.
    pub limit: usize,
}

impl ListQuery {
    /// Whether a resource or latch with this name belongs to the listing, on this page or a later one.
    pub fn asks_for(&self, name: &Name) -> bool {
        name.as_str().starts_with(&self.prefix) && self.after.as_ref().is_none_or(|after| name > after)
    }
}

/// A part of a listing, in order of name.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Page {
    /// The resources.
    pub resources: Vec<ResourceView>,
    /// The start of the next page, if there is more.
    pub next: Option<Name>,
}

/// A part of a listing of latches, in order of name.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LatchPage {
    /// The latches.
    pub latches: Vec<(Name, CountState)>,
    /// The start of the next page, if there is more.
    pub next: Option<Name>,
}

impl LatchPage {
    /// The first page of `latches`, which are those that `query` asks for, in order of name.
    pub fn cut(mut latches: Vec<(Name, CountState)>, query: &ListQuery) -> Self {
        let limit = query.limit.max(1);
        let more = latches.len() > limit;
        latches.truncate(limit);
        let next = latches.last().filter(|_| more).map(|(name, _)| name.clone());
        Self { latches, next }
    }
}

/// An operator's order to take a lock back. Naming contender and number, a repeated order never
/// hits the next holder.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Evict {
    /// The resource.
    pub name: Name,
    /// The holder.
    pub contender: ContenderId,
    /// Its grant's number.
    pub number: GrantNumber,
    /// How it is taken back.
    pub how: Eviction,
    /// The operator's words to the holder, if any. A holder that is evicted at once does not hear them.
    pub reason: Option<Arc<str>>,
}

/// How a lock is taken back from its holder.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Eviction {
    /// The holder's renewals are refused. It learns of it within a third of its lease, and the lock passes when it
    /// leaves or when its lease ends.
    Graceful,
    /// The lock passes at once, while the holder still believes that it holds. This is safe only with fencing.
    Immediate,
}

/// The answer to an eviction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Evicted {
    /// The order stands.
    Done,
    /// That contender does not hold it with that number.
    NotHeld,
}

/// An operation on a latch's counter.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Count {
    /// The latch.
    pub name: Name,
    /// The operation's own id: however often it arrives, it counts once.
    pub op: ContenderId,
    /// Later than this, on the store's clock, the operation must do nothing.
    pub not_after: StoreTime,
    /// The change to make, or a look.
    pub action: CountAction,
}

/// A change of a counter, or a look at it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CountAction {
    /// Make it, with so many to go.
    Create(u64),
    /// Count down by so many; never below zero.
    Down(u64),
    /// Set the count back to the one it was created with.
    Reset,
    /// Remove it.
    Delete,
    /// Only look.
    Read,
}

/// A counter's state.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CountState {
    /// The count that remains.
    pub remaining: u64,
    /// The count that it was created with.
    pub initial: u64,
    /// How often it reached zero: a waiter that slept through a reset still sees it.
    pub opened: u64,
    /// The number of this creation: another value means deleted and made anew.
    pub born: GrantNumber,
}

/// The answer to a counter operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Counted {
    /// Done; this is the state now (for a delete, the state before).
    State(CountState),
    /// There is none.
    Missing,
    /// There is one already.
    Exists(CountState),
    /// The operation came too late and did nothing.
    Stale,
}

/// Show a token to the fence of a resource.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Admit {
    /// The fence.
    pub name: Name,
    /// The token shown.
    pub token: Token,
    /// The smallest token that held when it was granted; the token itself if exclusive.
    pub floor: Token,
}

/// The answer of a fence.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Admitted {
    /// Not stale.
    Yes,
    /// A later floor has been seen.
    Stale {
        /// The highest floor seen.
        highest: Token,
    },
}
