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
//! 3. **Remaining, not full.** Every `Granted` and `Held` carries the rest of the lease at
//!    the moment of the answer, or less: a store whose leases rest on a session vouches only for as
//!    long as that is sure to last, and is asked again in time. A renewal never shortens a lease and
//!    never revives an ended one.
//! 4. **Numbers grow.** Each grant's number is larger than every earlier one of that resource,
//!    also after it was free for long.
//! 5. **Late copies do nothing.** A claim processed after its `not_after`, or whose contender has
//!    left with a tombstone, answers [`Verdict::Stale`] and changes nothing.
//! 6. **Crashed processes are passed.** A lease that ends frees its units. A grant that nobody confirmed within its first
//!    lease takes that keeper's positions in that queue with it. A position ends
//!    [`WAIT_LEASE`](crate::model::WAIT_LEASE) after the last claim that was written down for it. A claim that asks
//!    again need not be written down within [`POSITION_KEPT`](crate::model::POSITION_KEPT) of the one before.
//! 7. **Wakes are hints** that may be lost, late or doubled: nothing depends on them but time.
//! 8. **No retries below.** A driver never repeats a claim, renewal or leave by itself; an
//!    unknown outcome is reported as [`StoreErrorKind::Unreachable`](crate::StoreErrorKind) and
//!    the engine asks again with the same id.
//! 9. **One entry's refusal is a value** ([`Verdict::Refused`], [`Verdict::NotNow`], [`Left::NotNow`],
//!    [`Renewed::Unknown`]) and never fails its group. A request that was answered *not now* is asked again alone
//!    ([`Store::apply_alone`]).
//!
//! [`model`](crate::model) is this contract as code; the refinement and behaviour suites
//! of `lockkeeper-store-tests` hold a store to it.

mod member;
mod messages;

use std::{fmt, future::Future, pin::Pin, sync::Arc, time::Duration};

pub use member::{Enrolment, Member, MemberAnswers, MemberState, Membership};
pub use messages::{
    Admit, Admitted, Answer, Answers, Attachment, Claim, Count, CountAction, CountState, Counted, Details,
    Evict, Evicted, Eviction, Grant, GrantNotice, HolderView, Kind, LatchPage, Leave, Left, ListQuery, Page,
    ProcessInfo, Renew, Renewed, Request, ResourceView, StoreTime, Verdict, WaiterView,
};

use crate::{capability::Capability, clock::Clock, error::StoreError, id::KeeperId, name::Name};

/// A boxed future: the one dynamic boundary between engine and stores.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// The future result of a store call.
pub type Reply<'a, T> = BoxFuture<'a, Result<T, StoreError>>;

/// A subject that a keeper can be told about.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
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
#[non_exhaustive]
pub enum Wake {
    /// A contender of this keeper was granted the named resource, which it waits for.
    Granted(Name, GrantNotice),
    /// Something about the topic changed: ask again.
    Changed(Topic),
    /// Wakes may have been lost: ask again about everything.
    Resync,
    /// Another server has taken the place of the one that granted, and may not know of the holds: renew everything now.
    Reconfirm,
}

/// The sink of a store's wakes: never blocks, callable from any thread.
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

/// The values that a store gets from its keeper when it connects.
#[derive(Clone, Debug)]
pub struct Context {
    /// The keeper's id: the first part of all its contender ids.
    pub keeper: KeeperId,
    /// The sink of the store's wakes.
    pub wakes: WakeSink,
    /// The keeper's own thread: renewals are called there, and a store's reserved connection and
    /// background tasks belong there, out of reach of a blocked user runtime.
    pub background: tokio::runtime::Handle,
    /// The clock for time limits and waits.
    pub clock: Clock,
    /// How long one request may take. The engine gives up after it; a store may use it for limits of its own.
    pub request_limit: Duration,
}

/// One connection of one keeper to a store. See the [module](self) for the contract.
pub trait Store: fmt::Debug + Send + Sync + 'static {
    /// Returns the abilities of this store, and the troubles that it survives.
    fn capability(&self) -> &Capability;

    /// The store's URL without secrets, for messages.
    fn url(&self) -> &Arc<str>;

    /// An id kept in the store itself: two URLs may mean one server (rule 13 of the design). It is the same for every
    /// connection to one server, differs between servers, and never changes:
    /// 128 random bits as text will do.
    fn id(&self) -> &str;

    /// Returns the number of the server that keeps `name`. Requests are grouped per server, so a dead one
    /// never delays another.
    fn server_of(&self, _name: &Name) -> usize {
        0
    }

    /// Returns advice on the store's settings where a lease is to be shorter than it keeps one, if there is any.
    fn shorter_leases(&self) -> Option<&str> {
        None
    }

    /// Claims and leaves, in order, as one request. An empty group only answers the clock.
    fn apply<'a>(&'a self, group: &'a [Request]) -> Reply<'a, Answers<Answer>>;

    /// Claims and leaves of one resource that were answered with *not now* before. Nothing else travels with them, and other
    /// groups do not wait for them: a store may wait until the resource can be served, for a part of the time that a request
    /// has.
    fn apply_alone<'a>(&'a self, group: &'a [Request]) -> Reply<'a, Answers<Answer>> {
        self.apply(group)
    }

    /// Extends leases, as one request of its own on a connection of its own.
    fn renew<'a>(&'a self, leases: &'a [Renew]) -> Reply<'a, Answers<Renewed>>;

    /// Subscribes to wakes about `topic`. `None`: no subscription is needed, because they reach the sink anyway, or
    /// because this store sends none and waiters poll.
    fn watch<'a>(&'a self, topic: &'a Topic) -> Reply<'a, Option<Watch>>;

    /// Returns the holders of `name` and its waiters; `None` if there are none.
    fn inspect<'a>(&'a self, name: &'a Name) -> Reply<'a, Option<ResourceView>>;

    /// All resources that are held or waited for.
    fn list<'a>(&'a self, query: &'a ListQuery) -> Reply<'a, Page>;

    /// All latches.
    fn latches<'a>(&'a self, query: &'a ListQuery) -> Reply<'a, LatchPage>;

    /// Takes a lock back.
    fn evict<'a>(&'a self, order: &'a Evict) -> Reply<'a, Evicted>;

    /// Works a latch's counter. There is exactly one answer.
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

    /// The program has no handle of this keeper any more: the runtime that it connected in may be blocked, ending or
    /// gone. Requests from now on must not need that runtime. A request in flight that does fails at once, and the engine
    /// sends it again. Must not block.
    fn leave_caller(&self) {}

    /// Whether a server has not heard yet of a leave that was answered, as others have that are enough. A program that ends
    /// then waits until the store is closed, for a moment.
    fn still_leaves(&self) -> bool {
        false
    }

    /// Returns this store as a member of a quorum. `None`: it cannot be one.
    fn member(&self) -> Option<&dyn Member> {
        None
    }

    /// Ends the connection. Called once, after everything was left.
    fn close(&self) -> BoxFuture<'_, ()>;
}

/// Makes a store for a keeper. A store crate exports one function from URL to connector. Each call connects anew.
///
/// ```
/// use lockkeeper::{StoreError, error::StoreErrorKind, store::Connector};
///
/// let never = Connector::new(|_context| async {
///     Err(StoreError::new(StoreErrorKind::Config, "this store is only an example"))
/// });
/// # drop(never);
/// ```
#[derive(Clone)]
pub struct Connector {
    connect: Arc<dyn Fn(Context) -> Reply<'static, Arc<dyn Store>> + Send + Sync>,
    lease: Option<Duration>,
}

impl Connector {
    /// A connector that calls `connect` each time.
    pub fn new<F, R>(connect: F) -> Self
    where
        F: Fn(Context) -> R + Send + Sync + 'static,
        R: Future<Output = Result<Arc<dyn Store>, StoreError>> + Send + 'static,
    {
        Self { connect: Arc::new(move |context| Box::pin(connect(context))), lease: None }
    }

    /// The same with a lease for locks whose handle and keeper name none, as a URL's
    /// [`lease=`](crate::support::lease_option) says.
    #[must_use]
    pub fn with_lease(self, lease: Option<Duration>) -> Self {
        Self { lease, ..self }
    }

    /// The lease for locks whose handle and keeper name none.
    pub fn lease(&self) -> Option<Duration> {
        self.lease
    }

    /// Connects.
    pub fn connect(&self, context: Context) -> Reply<'static, Arc<dyn Store>> {
        (self.connect)(context)
    }
}

impl fmt::Debug for Connector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Connector")
    }
}
