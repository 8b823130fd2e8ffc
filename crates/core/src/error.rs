//! Errors: typed per operation, one superset, each naming store, resource and operation.
//!
//! "Busy" is not an error (`try_lock` answers `None`), and losing a lock is a state ([`Lost`])
//! before it is an error. No message ever holds a password: stores describe themselves by a
//! redacted URL. `Debug` is the same sentence with its causes, because `main` and `unwrap` show it to people.

use std::{error::Error as StdError, fmt, sync::Arc, time::Duration};

pub use crate::invalid::InvalidInput;
use crate::{
    name::Name,
    share::Capacity,
    support::{duration::show, sentence},
    token::Token,
};

/// The place of an error: store, resource and operation.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct At {
    /// The store's redacted URL.
    pub store: Arc<str>,
    /// The resource's name as it was given, if the operation had one.
    pub resource: Option<Arc<str>>,
    /// The operation, such as `lock` or `count_down`.
    pub operation: &'static str,
}

impl fmt::Display for At {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.operation)?;
        if let Some(resource) = &self.resource {
            // Debug quotes and escapes: a name from outside never reaches a terminal raw.
            write!(f, " of {resource:?}")?;
        }
        // A colon follows, and some URLs end with one.
        write!(f, " on {}", self.store.trim_end_matches(':'))
    }
}

/// The kind of trouble that a store had. Callers decide by this, never by the text.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum StoreErrorKind {
    /// No answer: the server is down, the network is cut, or the time limit passed.
    Unreachable,
    /// The store refused for a reason that may pass, such as a deadlock or a slot on the move.
    Conflict,
    /// Not allowed: wrong password, missing rights.
    Denied,
    /// The URL, an option or the store's own settings are wrong.
    Config,
    /// This store cannot do that; its capability says so.
    Unsupported,
    /// The store's data is not as it should be, or has a newer layout.
    Corrupt,
}

/// An error of a store: its kind, its place, and a message with the remedy.
#[derive(Clone)]
pub struct StoreError(Arc<StoreErrorInner>);

#[derive(Clone)]
struct StoreErrorInner {
    kind: StoreErrorKind,
    at: Option<At>,
    message: String,
    maybe_applied: bool,
    source: Option<Arc<dyn StdError + Send + Sync>>,
}

impl StoreError {
    /// An error of `kind`; `message` names the cause and the remedy, without secrets.
    ///
    /// An [`Unreachable`](StoreErrorKind::Unreachable) error counts as maybe applied until
    /// [`not_applied`](Self::not_applied) says otherwise; the other kinds as not applied.
    pub fn new(kind: StoreErrorKind, message: impl Into<String>) -> Self {
        let maybe_applied = kind == StoreErrorKind::Unreachable;
        Self(Arc::new(StoreErrorInner {
            kind,
            at: None,
            message: message.into(),
            maybe_applied,
            source: None,
        }))
    }

    fn inner(&mut self) -> &mut StoreErrorInner {
        Arc::make_mut(&mut self.0)
    }

    /// Adds the driver's own error as source.
    pub fn with_source(mut self, source: impl StdError + Send + Sync + 'static) -> Self {
        self.inner().source = Some(Arc::new(source));
        self
    }

    /// Names the place, unless one that says at least as much was named before.
    pub fn at(mut self, at: At) -> Self {
        let says_more = |before: &At| before.resource.is_none() && at.resource.is_some();
        if self.0.at.as_ref().is_none_or(says_more) {
            self.inner().at = Some(at);
        }
        self
    }

    /// Says that the request certainly changed nothing.
    pub fn not_applied(mut self) -> Self {
        self.inner().maybe_applied = false;
        self
    }

    /// Says that the request may have changed something, such as by an earlier copy.
    pub fn perhaps_applied(mut self) -> Self {
        self.inner().maybe_applied = true;
        self
    }

    /// Says that a wait of this length ended with this failure.
    pub(crate) fn after_waiting(mut self, waited: Duration) -> Self {
        let inner = self.inner();
        inner.message = format!("gave up after {}: {}", show(waited), inner.message);
        self
    }

    /// The kind of trouble.
    pub fn kind(&self) -> StoreErrorKind {
        self.0.kind
    }

    /// Whether the request may have taken effect although it failed: the one question that
    /// matters after a failure.
    pub fn maybe_applied(&self) -> bool {
        self.0.maybe_applied
    }

    /// Whether asking again may help.
    pub fn is_passing(&self) -> bool {
        matches!(self.0.kind, StoreErrorKind::Unreachable | StoreErrorKind::Conflict)
    }
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(at) = &self.0.at {
            write!(f, "{at}: ")?;
        }
        f.write_str(&self.0.message)
    }
}

impl StdError for StoreError {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.0.source.as_deref().map(|source| source as _)
    }
}

/// The way in which a guard lost its lock.
#[derive(Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum Lost {
    /// The deadline passed without a renewal that arrived in time: the store was out of reach,
    /// this process was paused, or a fixed lease came to its end.
    #[error("the lease ran out")]
    Expired,
    /// The store says that the lease is gone: evicted at once, data lost, or clock jumped.
    #[error("the store no longer knows the lease")]
    Gone,
    /// An operator asked for the lock back.
    #[error("evicted by an operator")]
    Evicted,
    /// The guard's `max_hold` is used up.
    #[error("held for as long as max_hold allows")]
    MaxHold,
    /// The keeper was closed.
    #[error("the keeper was closed")]
    Closed,
    /// The guard was released; seen only by a `lost()` future that outlived it.
    #[error("the guard was released")]
    Released,
}

impl Lost {
    /// A short word for metrics and logs.
    pub fn word(self) -> &'static str {
        match self {
            Self::Expired => "expired",
            Self::Gone => "gone",
            Self::Evicted => "evicted",
            Self::MaxHold => "max_hold",
            Self::Closed => "closed",
            Self::Released => "released",
        }
    }
}

/// The error of a call that did not acquire a lock, permit or leadership.
#[derive(Clone, thiserror::Error)]
#[non_exhaustive]
pub enum AcquireError {
    /// The limit passed while others held it. If the store was out of reach when the limit passed, the error is
    /// [`Store`](Self::Store) instead.
    #[error("{at}: not acquired within {}{}; wait longer, or see who holds it", show(*waited), ahead_text(*ahead))]
    TimedOut {
        /// The call that failed.
        at: At,
        /// How long the call waited.
        waited: Duration,
        /// How many waited before this one when last heard, if heard.
        ahead: Option<u32>,
        /// Whether the store may know of the claim, and have granted it at this very moment.
        maybe_applied: bool,
    },
    /// The input can never work.
    #[error("{at}: {why}")]
    Invalid {
        /// The call that failed.
        at: At,
        /// The fault and its remedy.
        why: InvalidInput,
    },
    /// Others use this name with another capacity.
    #[error(
        "{at}: asked with capacity {asked} while it is in use with capacity {in_use}; use one capacity per name"
    )]
    CapacityMismatch {
        /// The call that failed.
        at: At,
        /// The capacity of this call.
        asked: Capacity,
        /// The capacity of those who hold or wait.
        in_use: Capacity,
    },
    /// The owner holds this lock for reading; waiting for the write side would wait for itself.
    #[error("{at}: this owner already holds it for reading; release that guard first")]
    UpgradeRefused {
        /// The call that failed.
        at: At,
    },
    /// The keeper was closed.
    #[error("{at}: the keeper is closed; connect anew")]
    Closed {
        /// The call that failed.
        at: At,
        /// Whether the store may know of the claim; closing gives it back.
        maybe_applied: bool,
    },
    /// The store could not do it, or did not answer for as long as the call waited.
    #[error(transparent)]
    Store(#[from] StoreError),
}

fn ahead_text(ahead: Option<u32>) -> String {
    match ahead {
        Some(0) => ", next in the queue".into(),
        Some(ahead) => format!(", {ahead} ahead in the queue"),
        None => String::new(),
    }
}

impl AcquireError {
    /// Whether the lock may be held at the store all the same. The keeper cleans up after such
    /// an error in the background; at the latest the lease ends it.
    pub fn maybe_applied(&self) -> bool {
        match self {
            Self::Store(error) => error.maybe_applied(),
            Self::TimedOut { maybe_applied, .. } | Self::Closed { maybe_applied, .. } => *maybe_applied,
            Self::Invalid { .. } | Self::CapacityMismatch { .. } | Self::UpgradeRefused { .. } => false,
        }
    }
}

/// The error of a release.
#[derive(Clone, thiserror::Error)]
#[non_exhaustive]
pub enum ReleaseError {
    /// It was lost before: somebody else may have been in the critical section.
    #[error("{at}: not held any more: {why}")]
    NotHeld {
        /// The call that failed.
        at: At,
        /// How it was lost.
        why: Lost,
    },
    /// The store did not answer. The keeper goes on trying in the background until the lease ends.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl ReleaseError {
    /// Whether the release may have taken effect.
    pub fn maybe_applied(&self) -> bool {
        matches!(self, Self::Store(error) if error.maybe_applied())
    }
}

/// The error of a held lease that could not be extended, downgraded, detached or adopted.
#[derive(Clone, thiserror::Error)]
#[non_exhaustive]
pub enum LeaseError {
    /// It is not held any more.
    #[error("{at}: not held any more: {why}")]
    NotHeld {
        /// The call that failed.
        at: At,
        /// How it was lost.
        why: Lost,
    },
    /// The input can never work.
    #[error("{at}: {why}")]
    Invalid {
        /// The call that failed.
        at: At,
        /// The fault and its remedy.
        why: InvalidInput,
    },
    /// The store could not do it.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl LeaseError {
    /// Whether the change may have taken effect.
    pub fn maybe_applied(&self) -> bool {
        matches!(self, Self::Store(error) if error.maybe_applied())
    }
}

/// The error of a latch operation.
#[derive(Clone, thiserror::Error)]
#[non_exhaustive]
pub enum LatchError {
    /// There is no such latch.
    #[error("{at}: there is no such latch; create it first")]
    Missing {
        /// The call that failed.
        at: At,
    },
    /// The latch was created before.
    #[error("{at}: it exists with {remaining} of {initial} to go; reset or delete it first")]
    Exists {
        /// The call that failed.
        at: At,
        /// The count that remains.
        remaining: u64,
        /// The count that it was created with.
        initial: u64,
    },
    /// The latch was deleted while waiting for it.
    #[error("{at}: the latch was deleted while waiting")]
    Deleted {
        /// The call that failed.
        at: At,
    },
    /// The limit passed while the latch was closed. If the store was out of reach when the limit passed, the error is
    /// [`Store`](Self::Store) instead.
    #[error("{at}: still {remaining} to go after {}", show(*waited))]
    TimedOut {
        /// The call that failed.
        at: At,
        /// How long the call waited.
        waited: Duration,
        /// The count that remained when last heard.
        remaining: u64,
    },
    /// The input can never work.
    #[error("{at}: {why}")]
    Invalid {
        /// The call that failed.
        at: At,
        /// The fault and its remedy.
        why: InvalidInput,
    },
    /// The keeper was closed.
    #[error("{at}: the keeper is closed; connect anew")]
    Closed {
        /// The call that failed.
        at: At,
    },
    /// The store could not do it.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl LatchError {
    /// Whether the operation may have taken effect.
    pub fn maybe_applied(&self) -> bool {
        matches!(self, Self::Store(error) if error.maybe_applied())
    }
}

/// The error of a fence that did not admit a token.
#[derive(Clone, thiserror::Error)]
#[non_exhaustive]
pub enum FenceError {
    /// A later holder has been here: this one's lock is no longer valid.
    #[error("{at}: token {token} is stale; {highest} has been seen")]
    Stale {
        /// The call that failed.
        at: At,
        /// The token that was shown.
        token: Token,
        /// The highest floor admitted so far.
        highest: Token,
    },
    /// The input can never work.
    #[error("{at}: {why}")]
    Invalid {
        /// The call that failed.
        at: At,
        /// The fault and its remedy.
        why: InvalidInput,
    },
    /// The store could not do it: treat the token as not admitted.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Everything that can go wrong, for applications that want one type for `?`.
#[derive(Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Acquiring failed.
    #[error(transparent)]
    Acquire(#[from] AcquireError),
    /// Releasing failed.
    #[error(transparent)]
    Release(#[from] ReleaseError),
    /// Extending, downgrading, detaching or adopting failed.
    #[error(transparent)]
    Lease(#[from] LeaseError),
    /// A latch operation failed.
    #[error(transparent)]
    Latch(#[from] LatchError),
    /// A fence rejected a token or could not be asked.
    #[error(transparent)]
    Fence(#[from] FenceError),
    /// A guard lost its lock.
    #[error("lock lost: {0}")]
    Lost(#[from] Lost),
    /// The input can never work.
    #[error(transparent)]
    Invalid(#[from] InvalidInput),
    /// The store could not do it.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl Error {
    /// Whether the operation may have taken effect although it failed.
    pub fn maybe_applied(&self) -> bool {
        match self {
            Self::Acquire(error) => error.maybe_applied(),
            Self::Release(error) => error.maybe_applied(),
            Self::Lease(error) => error.maybe_applied(),
            Self::Latch(error) => error.maybe_applied(),
            Self::Fence(FenceError::Store(error)) | Self::Store(error) => error.maybe_applied(),
            Self::Fence(_) | Self::Lost(_) | Self::Invalid(_) => false,
        }
    }
}

impl At {
    /// The place of an operation on a named resource.
    pub fn resource(store: &Arc<str>, name: &Name, operation: &'static str) -> Self {
        Self { store: store.clone(), resource: Some(name.as_str().into()), operation }
    }
}

/// `main` shows the error that it returns with `Debug`, and so does `unwrap`.
macro_rules! debug_is_the_sentence {
    ($($error:ident)*) => {$(
        impl fmt::Debug for $error {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&sentence::of(self))
            }
        }
    )*};
}

debug_is_the_sentence!(StoreError Lost AcquireError ReleaseError LeaseError LatchError FenceError Error InvalidInput);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn main_shows_a_sentence_with_its_causes() {
        let source = std::io::Error::other("connection refused");
        let error = StoreError::new(StoreErrorKind::Unreachable, "no answer; check that it is up")
            .with_source(source);
        let error = Error::from(AcquireError::from(error));
        assert_eq!(format!("{error:?}"), "no answer; check that it is up (connection refused)");
        assert_eq!(format!("{:?}", Error::from(Lost::Evicted)), "lock lost: evicted by an operator");
        assert_eq!(format!("{:?}", InvalidInput::new("too long; shorten it")), "too long; shorten it");
    }

    #[test]
    fn messages_name_the_place_and_escape_names() {
        let at = At { store: "memory:".into(), resource: Some("a\u{1b}b".into()), operation: "lock" };
        let waited = Duration::from_secs(5);
        let error = AcquireError::TimedOut { at, waited, ahead: Some(3), maybe_applied: true };
        assert_eq!(
            error.to_string(),
            "lock of \"a\\u{1b}b\" on memory: not acquired within 5s, 3 ahead in the queue; wait longer, or see who holds it"
        );
    }

    #[test]
    fn the_deepest_place_wins_and_outcomes_are_kept() {
        let at = |operation| At { store: "x:".into(), resource: None, operation };
        let error = StoreError::new(StoreErrorKind::Unreachable, "no answer").at(at("renew")).at(at("lock"));
        assert_eq!(error.to_string(), "renew on x: no answer");
        assert!(error.maybe_applied() && error.is_passing());
        assert!(!error.not_applied().maybe_applied());
    }
}
