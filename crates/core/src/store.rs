//! The store trait: the whole contract between the engine and a store.
//!
//! A store keeps resources and runs their transitions; it knows nothing of tasks, guards,
//! watchdogs or primitives. The engine above knows nothing of servers. If a store needs special
//! handling above this trait, the trait is cut wrong.
//!
//! # Contract
//!
//! 1. **Linearizable per resource.** [`Store::apply`], [`Store::renew`] and [`Store::evict`] act
//!    on one resource as if one after another; holders never exceed the capacity, judged by the
//!    store's own clock.
//! 2. **Idempotent by contender id.** A claim asked again never enters twice: it answers what the
//!    contender has now. A repeated leave or renewal is harmless.
//! 3. **Remaining, not full.** Every `Granted` and `Held` carries what is left of the lease at
//!    the moment of the answer. A renewal never shortens a lease and never revives an ended one.
//! 4. **Numbers grow.** Each grant's number is larger than every earlier one of that resource,
//!    also after it was free for long.
//! 5. **Late copies do nothing.** A claim processed after its `not_after`, or whose contender has
//!    left with a mark, answers [`Verdict::Stale`] and changes nothing.
//! 6. **The dead are passed.** A lease that ends frees its units; a grant that nobody confirmed
//!    within its first lease drops that keeper's places in that queue; a place in the queue that
//!    is not asked for within [`WAIT_LEASE`](crate::model::WAIT_LEASE) ends.
//! 7. **Wakes are hints** that may be lost, late or doubled: nothing depends on them but time.
//! 8. **No retries below.** A driver never repeats a claim, renewal or leave by itself; an
//!    unknown outcome is reported as [`StoreErrorKind::Unreachable`](crate::StoreErrorKind) and
//!    the engine asks again with the same id.
//! 9. **One entry's refusal is a value** ([`Verdict::Refused`]) and never fails its group.
//!
//! [`model`](crate::model) is this contract as code; the test kit's refinement and behaviour
//! suites hold a store to it.

use std::{
    fmt,
    future::Future,
    pin::Pin,
    sync::Arc,
    time::{Duration, SystemTime},
};

use crate::{
    capability::Capability,
    error::StoreError,
    id::{ContenderId, KeeperId},
    name::Name,
    runtime::clock::Clock,
    share::{Capacity, Units},
    token::{GrantNumber, Token},
};

/// A boxed future: the one dynamic boundary between engine and stores.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// What a store call comes back with.
pub type Reply<'a, T> = BoxFuture<'a, Result<T, StoreError>>;

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

/// Which primitive a claim came from. For people only; it decides nothing.
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

/// Facts about a process that holds or waits, the same for all its claims.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Facts {
    /// Host name.
    pub host: String,
    /// Process id on that host.
    pub pid: u32,
    /// Program name.
    pub program: String,
}

/// What a claim shows to people: facts of its process, kind, label and published value.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Card {
    /// The primitive.
    pub kind: Kind,
    /// The process.
    pub facts: Arc<Facts>,
    /// The caller's own words, if any.
    pub label: Option<Arc<str>>,
    /// A leader's published value.
    pub value: Option<Arc<str>>,
}

/// Enter the queue of a resource, or ask again.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Claim {
    /// The resource.
    pub name: Name,
    /// Who asks.
    pub contender: ContenderId,
    /// How much is asked for.
    pub units: Units,
    /// How much the asker thinks there is.
    pub capacity: Capacity,
    /// How long a grant lasts from the moment it is made.
    pub lease: Duration,
    /// Whether to wait in line when it is not free.
    pub queue: bool,
    /// Whether the lease may later outlive this keeper (rule 11 of the design).
    pub detachable: bool,
    /// Later than this, on the store's clock, the claim must do nothing.
    pub not_after: StoreTime,
    /// The asker's own send stamp, kept with the entry and echoed in a [`GrantNotice`].
    pub stamp: u64,
    /// Whether an earlier copy was sent: a group has at most one claim per resource that was not.
    pub again: bool,
    /// What to show to people.
    pub card: Card,
}

/// Give a hold or a place in the queue back.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Leave {
    /// The resource.
    pub name: Name,
    /// Whose.
    pub contender: ContenderId,
    /// Until when late copies of this contender's claim may still arrive; until then a mark
    /// keeps them from having any effect.
    pub bury_until: Option<StoreTime>,
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

/// What was granted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Grant {
    /// The grant's number.
    pub number: GrantNumber,
    /// The smallest number still holding when this was granted: its own if exclusive.
    pub floor: GrantNumber,
    /// What is left of the lease at the moment of the answer.
    pub remaining: Duration,
}

/// The answer to a claim.
#[derive(Clone, Debug)]
pub enum Verdict {
    /// The contender holds it.
    Granted(Grant),
    /// Somebody else does.
    Busy {
        /// How many stand in line before this contender.
        ahead: u32,
        /// When asking again may tell something new even without a wake: at the earliest end of
        /// a lease.
        retry_in: Duration,
    },
    /// The claim came too late, or its contender has left: nothing was changed.
    Stale,
    /// Others hold or wait with another capacity.
    Mismatch {
        /// Theirs.
        in_use: Capacity,
    },
    /// This store cannot serve this claim.
    Refused(StoreError),
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
    /// Whose.
    pub contender: ContenderId,
    /// The lease lasts at least this long from now. Zero only confirms a grant that was pushed,
    /// which extends its first short lease to the full one.
    pub lease: Duration,
    /// Hold only so much from now on (downgrade); more than is held is ignored.
    pub lower_to: Option<Units>,
    /// From now on only the lease ends it, not the death of the process.
    pub detach: bool,
}

/// The answer to a renewal.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Renewed {
    /// Still held, for at least this long from the moment of the answer.
    Held {
        /// What is left of the lease.
        remaining: Duration,
    },
    /// Not held any more.
    Gone,
    /// Held, but an operator wants it back: the lease was not extended.
    Evicted,
}

/// A grant that a releaser made for a waiter, pushed to the waiter's keeper.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GrantNotice {
    /// Who was granted.
    pub contender: ContenderId,
    /// The grant's number.
    pub number: GrantNumber,
    /// The smallest number still holding at that moment.
    pub floor: GrantNumber,
    /// The stamp of the claim copy that the entry kept.
    pub stamp: u64,
    /// From that claim copy to the grant, by the store's clock, at least zero.
    pub waited: Duration,
    /// The first lease, from the moment of the grant.
    pub lease: Duration,
}

/// What a keeper can be told about.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Topic {
    /// Grants to this keeper's waiting contenders of a resource.
    Grants(Name),
    /// Any change of a resource's holders.
    Changes(Name),
    /// Any change of a latch.
    Latch(Name),
}

/// A wake: a hint that something happened.
#[derive(Clone, Debug)]
pub enum Wake {
    /// A contender of this keeper was granted the named resource, which it waits for.
    Granted(Name, GrantNotice),
    /// Something about the topic changed: ask again.
    Changed(Topic),
    /// Wakes may have been lost: ask again about everything.
    Resync,
}

/// Where a store delivers its wakes: never blocks, callable from any thread.
#[derive(Clone)]
pub struct WakeSink(Arc<dyn Fn(Wake) + Send + Sync>);

impl WakeSink {
    /// A sink that calls `deliver`.
    pub fn new(deliver: impl Fn(Wake) + Send + Sync + 'static) -> Self {
        Self(Arc::new(deliver))
    }

    /// Delivers one wake.
    pub fn wake(&self, wake: Wake) {
        (self.0)(wake);
    }
}

impl fmt::Debug for WakeSink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("WakeSink")
    }
}

/// A subscription: ends when dropped.
pub struct Watch(#[expect(dead_code, reason = "kept for its drop")] Box<dyn Send + Sync>);

impl Watch {
    /// A watch that lasts until `subscription` is dropped.
    pub fn new(subscription: impl Send + Sync + 'static) -> Self {
        Self(Box::new(subscription))
    }
}

impl fmt::Debug for Watch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Watch")
    }
}

/// One holder, as shown to people.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HolderView {
    /// Who.
    pub contender: ContenderId,
    /// The grant's token (its first step).
    pub token: Token,
    /// How much it holds.
    pub units: Units,
    /// What it shows.
    pub card: Card,
    /// When it was granted, on the store's wall clock.
    pub since: SystemTime,
    /// What is left of its lease.
    pub remaining: Duration,
    /// Whether an operator asked for it back.
    pub evicted: bool,
    /// Whether only its lease ends it: detached, or released before its `min_hold`.
    pub detached: bool,
}

/// One waiter, as shown to people.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct WaiterView {
    /// Who.
    pub contender: ContenderId,
    /// How much it asks for.
    pub units: Units,
    /// What it shows.
    pub card: Card,
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
    /// Who holds it, by token.
    pub holders: Vec<HolderView>,
    /// Who waits, in line.
    pub waiters: Vec<WaiterView>,
}

/// Which resources to list.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ListQuery {
    /// Only names that start so.
    pub prefix: String,
    /// Only names after this one: the `next` of the page before.
    pub after: Option<Name>,
    /// At most so many; the store may give fewer.
    pub limit: usize,
}

/// A part of a listing, in order of name.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Page {
    /// The resources.
    pub resources: Vec<ResourceView>,
    /// Where the next page starts, if there is more.
    pub next: Option<Name>,
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
    /// Pass it on at once instead of refusing renewals. Safe only with fencing.
    pub now: bool,
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
    /// What to do.
    pub action: CountAction,
}

/// What to do with a counter.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CountAction {
    /// Make it, with so many to go.
    Create(u64),
    /// Count down by so many; never below zero.
    Down(u64),
    /// Back to what it was created with.
    Reset,
    /// Remove it.
    Delete,
    /// Only look.
    Read,
}

/// A counter's state.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CountState {
    /// What is left to count.
    pub remaining: u64,
    /// What it was created with.
    pub initial: u64,
    /// How often it reached zero: a waiter that slept through a reset still sees it.
    pub opened: u64,
    /// Which creation this is: another value means deleted and made anew.
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

/// What a store gets from its keeper when it connects.
#[derive(Clone, Debug)]
pub struct Context {
    /// The keeper's id: the first part of all its contender ids.
    pub keeper: KeeperId,
    /// Where wakes go.
    pub wakes: WakeSink,
    /// The keeper's own thread: renewals are called there, and a store's reserved connection and
    /// background tasks belong there, out of reach of a blocked user runtime.
    pub background: tokio::runtime::Handle,
    /// The clock for time limits and waits.
    pub clock: Clock,
    /// How long one request may take.
    pub request_limit: Duration,
}

/// One connection of one keeper to a store. See the [module](self) for the contract.
pub trait Store: fmt::Debug + Send + Sync + 'static {
    /// What this store can do and survive.
    fn capability(&self) -> &Capability;

    /// The store's URL without secrets, for messages.
    fn url(&self) -> &Arc<str>;

    /// An id kept in the store itself: two URLs may mean one server (rule 13 of the design).
    fn id(&self) -> &str;

    /// Which of the store's servers keeps `name`. Requests are grouped per server, so a dead one
    /// never delays another.
    fn server_of(&self, _name: &Name) -> usize {
        0
    }

    /// Claims and leaves, in order, as one request. An empty group only answers the clock.
    fn apply<'a>(&'a self, group: &'a [Request]) -> Reply<'a, Answers<Answer>>;

    /// Extends leases, as one request of its own on a connection of its own.
    fn renew<'a>(&'a self, leases: &'a [Renew]) -> Reply<'a, Answers<Renewed>>;

    /// Subscribes to wakes about `topic`. `None`: they reach the sink without subscribing.
    fn watch<'a>(&'a self, topic: &'a Topic) -> Reply<'a, Option<Watch>>;

    /// Who holds and who waits; `None` if nobody.
    fn inspect<'a>(&'a self, name: &'a Name) -> Reply<'a, Option<ResourceView>>;

    /// All resources that are held or waited for.
    fn list<'a>(&'a self, query: &'a ListQuery) -> Reply<'a, Page>;

    /// Takes a lock back.
    fn evict<'a>(&'a self, order: &'a Evict) -> Reply<'a, Evicted>;

    /// Works a latch's counter.
    fn count<'a>(&'a self, count: &'a Count) -> Reply<'a, Answers<Counted>>;

    /// Shows a token to a fence.
    fn fence<'a>(&'a self, admit: &'a Admit) -> Reply<'a, Admitted>;

    /// A handle that makes this keeper count as alive for as long as anybody, in any process, has
    /// it open: a guardian that outlives its process inherits it. `None` on stores where the death
    /// of a process frees nothing before its leases end.
    #[cfg(unix)]
    fn life_line(&self) -> Option<std::os::fd::OwnedFd> {
        None
    }

    /// Ends the connection. Called once, after everything was left.
    fn close(&self) -> BoxFuture<'_, ()>;
}

/// Makes a store for a keeper: what a store crate exports, one function per URL.
///
/// ```
/// use lockkeeper_core::{StoreError, StoreErrorKind, store::Connector};
///
/// let never = Connector::new(|_context| async {
///     Err(StoreError::new(StoreErrorKind::Config, "this store is only an example"))
/// });
/// # drop(never);
/// ```
pub struct Connector(Box<dyn FnOnce(Context) -> Reply<'static, Arc<dyn Store>> + Send>);

impl Connector {
    /// A connector that calls `connect`, once.
    pub fn new<F, R>(connect: F) -> Self
    where
        F: FnOnce(Context) -> R + Send + 'static,
        R: Future<Output = Result<Arc<dyn Store>, StoreError>> + Send + 'static,
    {
        Self(Box::new(|context| Box::pin(connect(context))))
    }

    /// Connects.
    pub fn connect(self, context: Context) -> Reply<'static, Arc<dyn Store>> {
        (self.0)(context)
    }
}

impl fmt::Debug for Connector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Connector")
    }
}
