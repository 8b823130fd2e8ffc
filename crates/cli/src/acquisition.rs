//! Acquires a lock as the options say: its kind, how long to wait, and how to end when it is busy.

use std::{future::Future, pin::Pin, time::Duration};

use lockkeeper::{
    AcquireError, Error, Guard, Keeper, Lease, Lost, ReleaseError, StoreError, Token,
    error::{LeaseError, StoreErrorKind},
    support::duration,
};

use crate::{
    args::{HoldArgs, ShareArgs, WaitArgs},
    exit::{BUSY, Failure},
    progress::Progress,
    signals::Signals,
    store::Connected,
    text, view,
};

type Boxed<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// A guard of any kind of lock.
pub(crate) trait AnyGuard {
    fn token(&self) -> Token;
    fn floor(&self) -> Token;
    fn remaining(&self) -> Duration;
    fn lost(&self) -> Boxed<Lost>;
    fn extend(&self, length: Duration) -> Pin<Box<dyn Future<Output = Result<(), LeaseError>> + '_>>;
    fn release(self: Box<Self>) -> Boxed<Result<(), ReleaseError>>;
    fn into_lease(self: Box<Self>) -> Boxed<Result<Lease, LeaseError>>;
    fn lease_for_guardian(&self) -> Lease;
    fn lost_because(&self) -> Option<String>;
    fn renewal_error(&self) -> Option<StoreError>;
}

impl<M: 'static> AnyGuard for Guard<M> {
    fn token(&self) -> Token {
        self.token()
    }

    fn floor(&self) -> Token {
        self.floor()
    }

    fn remaining(&self) -> Duration {
        self.remaining()
    }

    fn lost(&self) -> Boxed<Lost> {
        Box::pin(self.lost())
    }

    fn extend(&self, length: Duration) -> Pin<Box<dyn Future<Output = Result<(), LeaseError>> + '_>> {
        Box::pin(self.extend(length))
    }

    fn release(self: Box<Self>) -> Boxed<Result<(), ReleaseError>> {
        Box::pin((*self).release())
    }

    fn into_lease(self: Box<Self>) -> Boxed<Result<Lease, LeaseError>> {
        // The command ends with this error, and the guard with the command.
        Box::pin(async move { Ok((*self).into_lease().await?) })
    }

    fn lease_for_guardian(&self) -> Lease {
        self.lease_for_guardian()
    }

    fn lost_because(&self) -> Option<String> {
        self.lost_because()
    }

    fn renewal_error(&self) -> Option<StoreError> {
        self.renewal_error()
    }
}

/// The kind of lock that is asked for.
#[derive(Debug)]
pub(crate) enum LockKind {
    Exclusive { fifo: bool },
    Shared,
    Permits { some: u32, of: u32 },
    Leadership { value: String },
}

impl LockKind {
    pub(crate) fn of(args: &ShareArgs) -> Self {
        match args.permits {
            // Permits and shared holds are always served in order of arrival.
            Some((some, of)) => Self::Permits { some, of },
            None if args.shared => Self::Shared,
            None => Self::Exclusive { fifo: args.fifo },
        }
    }
}

/// How long the lock may be held.
#[derive(Debug)]
pub(crate) enum Lifetime {
    /// This process renews the lease for as long as it runs.
    Renewed { max_hold: Option<Duration>, min_hold: Duration },
    /// The lease outlives this process.
    Detached,
}

impl Lifetime {
    pub(crate) fn of(args: &HoldArgs) -> Result<Self, Failure> {
        let min_hold = args.min_hold.unwrap_or_default();
        if let Some(most) = args.max_hold
            && (most.is_zero() || most < min_hold)
        {
            return Err(Failure::usage("--max-hold is zero or below --min-hold; raise it"));
        }
        Ok(Self::Renewed { max_hold: args.max_hold, min_hold })
    }
}

/// One acquisition: which lock, for how long, and how to wait for it.
pub(crate) struct Acquisition<'a> {
    pub(crate) connected: &'a Connected,
    pub(crate) name: &'a str,
    pub(crate) kind: LockKind,
    pub(crate) lifetime: Lifetime,
    pub(crate) wait: &'a WaitArgs,
    /// The program that runs under the lock, shown to operators as the default label.
    pub(crate) runs: Option<String>,
}

/// Makes the same calls on handles of different types: settings first, then one of three ways to wait.
macro_rules! ask {
    ($self:ident, $handle:expr, $try:ident, $within:ident, $forever:ident $(, $arg:expr)*) => {{
        let mut handle = $handle.lease($self.lease());
        if let Some(label) = $self.wait.label.as_ref().or($self.runs.as_ref()) {
            handle = handle.label(label);
        }
        match $self.lifetime {
            Lifetime::Renewed { max_hold, min_hold } => {
                handle = handle.min_hold(min_hold);
                if let Some(most) = max_hold {
                    handle = handle.max_hold(most);
                }
            }
            Lifetime::Detached => handle = handle.detachable(),
        }
        match $self.patience() {
            Some(Duration::ZERO) => handle.$try($($arg),*).await?.map(boxed),
            Some(limit) => Some(boxed(handle.$within($($arg,)* limit).await?)),
            None => Some(boxed(handle.$forever($($arg),*).await?)),
        }
    }};
}

fn boxed<M: 'static>(guard: Guard<M>) -> Box<dyn AnyGuard> {
    Box::new(guard)
}

impl Acquisition<'_> {
    /// Returns the length of the lease: the option's, or else the store's default.
    pub(crate) fn lease(&self) -> Duration {
        self.wait.lease.unwrap_or_else(|| self.connected.keeper.default_lease())
    }

    /// How long to wait; `None` means without a limit.
    fn patience(&self) -> Option<Duration> {
        if self.wait.nonblock { Some(Duration::ZERO) } else { self.wait.wait }
    }

    /// Asks the store; `None` if it is busy.
    async fn ask(&self, keeper: &Keeper) -> Result<Option<Box<dyn AnyGuard>>, AcquireError> {
        let name = self.name;
        Ok(match &self.kind {
            LockKind::Exclusive { fifo } => {
                let mut mutex = keeper.mutex(name);
                if *fifo {
                    mutex = mutex.fifo();
                }
                ask!(self, mutex, try_lock, lock_within, lock)
            }
            LockKind::Shared => ask!(self, keeper.rw_lock(name), try_read, read_within, read),
            LockKind::Permits { some, of } => {
                let permits = keeper.semaphore(name, *of);
                ask!(self, permits, try_acquire_many, acquire_many_within, acquire_many, *some)
            }
            LockKind::Leadership { value } => {
                ask!(self, keeper.election(name), try_campaign, campaign_within, campaign, value)
            }
        })
    }

    /// Acquires the lock, and shows its holder at a terminal meanwhile. A signal ends the wait; closing the keeper then
    /// leaves the queue.
    pub(crate) async fn acquire(&self, signals: &mut Signals) -> Result<Box<dyn AnyGuard>, Failure> {
        let keeper = &self.connected.keeper;
        let clock = std::time::Instant::now();
        let progress = Progress::new(self.name, self.wait.quiet);
        let acquired = tokio::select! {
            biased;
            signal = signals.next() => Err(signal),
            acquired = self.ask(keeper) => Ok(acquired),
            never = progress.show(keeper) => match never {},
        };
        drop(progress);
        let acquired = match acquired {
            Ok(acquired) => acquired,
            Err(signal) => return Err(Failure::interrupted(signal)),
        };
        match acquired {
            Ok(Some(held)) => {
                if self.connected.verbose {
                    let waited = duration::show(clock.elapsed());
                    text::say(&format!("holds {:?} after {waited}, token {}", self.name, held.token()));
                }
                Ok(held)
            }
            Ok(None) => Err(self.busy(None).await),
            Err(AcquireError::TimedOut { waited, .. }) => Err(self.busy(Some(waited)).await),
            Err(error) => Err(error.into()),
        }
    }

    /// Returns the failure for a lock that others hold, or whose wait was too short. With `--skip-ok` it says nothing:
    /// the caller expects that, and cron would mail every word. A store that does not answer any more is no busy lock.
    async fn busy(&self, waited: Option<Duration>) -> Failure {
        let code = if self.wait.skip_ok { 0 } else { self.wait.conflict_exit_code.unwrap_or(BUSY) };
        let is_silent = self.wait.quiet || self.wait.skip_ok && !self.connected.verbose;
        // A try was answered just now. The last answer to a wait may be older than an outage.
        if is_silent && waited.is_none() {
            return Failure::silent(code);
        }
        let view = match self.connected.keeper.inspect(self.name).await {
            Err(Error::Store(error)) if waited.is_some() && error.kind() == StoreErrorKind::Unreachable => {
                return error.into();
            }
            // Without the right to look, the message says less.
            view => view.ok(),
        };
        if is_silent {
            return Failure::silent(code);
        }
        let holder =
            view.flatten().and_then(|view| view::holders(&view)).unwrap_or_else(|| "others".to_owned());
        let held = format!("{:?} is held by {holder}", self.name);
        let message = match waited {
            _ if self.wait.skip_ok => format!("skipped: {held}"),
            None => format!("{held}; wait for it with -w"),
            Some(waited) => {
                // The answer to the last request came a little later.
                let limit = duration::show(self.wait.wait.unwrap_or(waited));
                format!("{held}, and was not acquired within {limit}; wait longer with -w")
            }
        };
        Failure::new(code, message)
    }
}
