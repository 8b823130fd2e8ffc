//! The guard: proof of a hold, for as long as it lasts.

use std::{fmt, future::poll_fn, marker::PhantomData, pin::pin, task::Poll, time::Duration};

use crate::{
    engine::{
        release::{self, OwnedHold},
        renewal::{self, Change},
    },
    error::{InvalidInput, LeaseError, Lost, ReleaseError, StoreError},
    lock::{
        entry::Entry,
        guard_errors::{DowngradeError, IntoLeaseError},
        lease::Lease,
    },
    name::Name,
    share::Units,
    store::Attachment,
    support::duration::show,
    token::Token,
};

/// The marker of a mutex's guard.
#[derive(Debug)]
pub enum Exclusive {}
/// The marker of a guard of the read side.
#[derive(Debug)]
pub enum Read {}
/// The marker of a guard of the write side.
#[derive(Debug)]
pub enum Write {}
/// The marker of a semaphore's guard.
#[derive(Debug)]
pub enum Permits {}
/// The marker of an election's guard.
#[derive(Debug)]
pub enum Leads {}

/// Holds a lock until it is released, dropped or lost.
///
/// **Release on drop is not immediate**: dropping sends the release in the background, together with
/// the keeper's next requests, and within 20 ms also if the runtime is kept busy or there is
/// none. [`release`](Self::release) waits for it and tells whether the lock was
/// held to the end. A program may simply return from `main`: the last handle of a keeper
/// [waits for the releases](crate::Keeper#the-end-of-a-program). A panic in the critical section drops the guard and so
/// releases the lock; there is no poisoning.
///
/// No method answers "held" after the deadline, also when the process was suspended in between.
/// A lock cannot stop a write that is already on its way: give
/// [`token`](Self::token) to the resource and let it reject older ones.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), lockkeeper::Error> {
/// # let keeper = lockkeeper::testing::keeper().await;
/// let guard = keeper.mutex("stock/42").lock().await?;
/// println!("token {}", guard.token());
/// guard.release().await?;
/// # Ok(()) }
/// ```
#[must_use = "the lock is released as soon as the guard is dropped"]
#[clippy::has_significant_drop]
pub struct Guard<M = Exclusive> {
    entry: Entry,
    mode: PhantomData<fn() -> M>,
}

/// A guard of the read side of a [`RwLock`](crate::RwLock).
pub type ReadGuard = Guard<Read>;
/// A guard of the write side of a [`RwLock`](crate::RwLock).
pub type WriteGuard = Guard<Write>;
/// A guard of permits of a [`Semaphore`](crate::Semaphore).
pub type Permit = Guard<Permits>;
/// A guard of an [`Election`](crate::Election): this process leads.
pub type Leadership = Guard<Leads>;

impl<M> Guard<M> {
    pub(crate) fn new(owned: OwnedHold) -> Self {
        Self::share(Entry::new(owned))
    }

    pub(crate) fn share(entry: Entry) -> Self {
        Self { entry, mode: PhantomData }
    }

    pub(crate) fn entry(&self) -> &Entry {
        &self.entry
    }

    /// Returns the name of the held lock.
    pub fn name(&self) -> &Name {
        &self.entry.hold().name
    }

    /// The fencing token: larger than that of every earlier holder. Pass it with every write and
    /// let the resource reject smaller ones.
    pub fn token(&self) -> Token {
        self.entry.hold().token(self.entry.step())
    }

    /// The smallest token that still held when this was granted. It is the token itself for an
    /// exclusive guard; readers and permits pass it to
    /// [`admit_shared`](crate::StoredFence::admit_shared).
    pub fn floor(&self) -> Token {
        let hold = self.entry.hold();
        if hold.terms.units == Units::All { self.token() } else { Token::new(hold.floor, 0) }
    }

    /// Whether it is held, by this process's own clock; never optimistic.
    pub fn is_held(&self) -> bool {
        self.entry.check().is_ok()
    }

    /// How long it is certainly still held; zero if it is lost. Grows with each renewal.
    pub fn remaining(&self) -> Duration {
        // The clock is read after the look, so that a stop in between makes it shorter, not longer.
        let ends = self.entry.check();
        let now = self.entry.alive().engine().clock().now();
        ends.map_or(Duration::ZERO, |ends| ends.since(now))
    }

    /// Resolves when the lock is lost, with the reason. The future is `'static`: move it into
    /// another task if you like. After a release it resolves with [`Lost::Released`].
    ///
    /// # Cancel safety
    /// Dropping it has no effect.
    pub fn lost(&self) -> impl Future<Output = Lost> + Send + Sync + 'static {
        let (hold, step) = (self.entry.hold().clone(), self.entry.step());
        let clock = self.entry.alive().engine().clock().clone();
        async move { hold.until_lost(step, &clock).await }
    }

    /// Returns the reason of the loss beyond [`Lost`]: the operator's words if the lock was evicted, or the
    /// [error of the last renewal](Self::renewal_error) if the lease ran out because of it. `None` if there is no such
    /// reason, or if the lock is not lost.
    pub fn lost_because(&self) -> Option<String> {
        let hold = self.entry.hold();
        let of_renewal = || self.renewal_error().filter(|_| hold.lost() == Some(Lost::Expired));
        let because = hold.lost_because().map(|because| because.to_string());
        because.or_else(|| of_renewal().map(|error| error.to_string()))
    }

    /// Returns the error of the last renewal; `None` if the store answered it. After [`Lost::Expired`] it tells why the
    /// lease could not be renewed: `None` then means that this process was suspended, or that the lease was a fixed
    /// one.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), lockkeeper::Error> {
    /// # let keeper = lockkeeper::testing::keeper().await;
    /// let guard = keeper.mutex("stock/42").lock().await?;
    /// # let work = async {};
    /// if let Err(lost) = guard.run(work).await {
    ///     match guard.renewal_error() {
    ///         Some(error) => eprintln!("{lost}: {error}"),
    ///         None => eprintln!("{lost}"),
    ///     }
    /// }
    /// # Ok(()) }
    /// ```
    pub fn renewal_error(&self) -> Option<StoreError> {
        self.entry.hold().renewal_error().map(|error| error.at(self.entry.at("renew")))
    }

    /// Runs `work` for as long as the lock is held, and drops it the moment the lock is lost.
    ///
    /// # Cancel safety
    /// Dropping the future drops `work`; the guard stays as it is.
    ///
    /// # Errors
    /// [`Lost`] if the lock was lost before `work` was done.
    pub async fn run<T>(&self, work: impl Future<Output = T>) -> Result<T, Lost> {
        while_held(|| self.entry.check().map(|_| ()), self.lost(), work).await
    }

    /// Makes the lease last at least `length` from now. The watchdog does this by itself for
    /// renewed leases; this is for fixed ones, and for a long step that must not be cut off.
    ///
    /// # Cancel safety
    /// Dropping the future leaves it open whether the lease was extended.
    ///
    /// # Errors
    /// [`LeaseError::NotHeld`] if it is lost, [`LeaseError::Invalid`] if `length` is more than
    /// the store allows or past `max_hold`.
    pub async fn extend(&self, length: Duration) -> Result<(), LeaseError> {
        let at = || self.entry.at("extend");
        let hold = self.entry.hold();
        let capability = self.entry.alive().engine().store().capability();
        let invalid = |why: String| LeaseError::Invalid { at: at(), why: InvalidInput::new(why) };
        if length.is_zero() || length > capability.max_lease {
            return Err(invalid(format!(
                "extend by more than zero and at most {}",
                show(capability.max_lease)
            )));
        }
        if hold.terms.max_hold.is_some_and(|most| self.held_for() + length > most) {
            return Err(invalid("that is past max_hold".into()));
        }
        renewal::change(&self.entry, Change::Extend(length), "extend").await
    }

    /// How long this hold has lasted.
    fn held_for(&self) -> Duration {
        self.entry.alive().engine().clock().now().since(self.entry.hold().granted)
    }

    /// A second guard on the same hold, without asking the store. The lock is free when the last
    /// of them is released; the token is the same.
    ///
    /// # Errors
    /// [`Lost`] if the lock is lost: there is nothing to enter.
    pub fn reenter(&self) -> Result<Self, Lost> {
        self.entry.check()?;
        Ok(Self::share(self.entry.again()))
    }

    /// How many guards share this hold.
    pub fn holds(&self) -> usize {
        self.entry.count()
    }

    /// Gives the lock back and waits until the store has it. With re-entered guards left, only
    /// this one ends.
    ///
    /// # Cancel safety
    /// Dropping the future does not stop the release.
    ///
    /// # When the store is unreachable
    /// Fails after the request limit; the keeper goes on trying until the lease ends by itself.
    ///
    /// # Errors
    /// [`ReleaseError::NotHeld`] if it was lost before: somebody else may have been in the
    /// critical section.
    pub async fn release(self) -> Result<(), ReleaseError> {
        match self.entry.end() {
            Ok(owned) => owned.release().await,
            Err(others) => match others.check() {
                // The last of them may have ended by now.
                Ok(_) | Err(Lost::Released) => Ok(()),
                Err(why) => Err(ReleaseError::NotHeld { at: others.at("release"), why }),
            },
        }
    }

    /// The lease as it is, for a guardian that [releases](crate::Keeper::release_lease) it once this process has died. The
    /// guard holds as before, so nobody may release it while this process lives.
    #[doc(hidden)]
    pub fn lease_for_guardian(&self) -> Lease {
        let now = self.entry.alive().engine().clock().now();
        Lease::of(self.entry.hold(), self.entry.units(), self.entry.step(), now)
    }

    /// Turns the guard into a text that another process can [adopt](crate::Keeper::adopt) or
    /// release. From here on only the lease ends it, and nobody renews it. The handle must have
    /// been made with `detachable`.
    ///
    /// # Cancel safety
    /// Dropping the future releases the lock.
    ///
    /// # Errors
    /// [`LeaseError::Invalid`] if the handle was not `detachable` or the guard is re-entered;
    /// [`LeaseError::NotHeld`] if it is lost. The error gives the guard back; with `?` it is dropped, and released.
    pub async fn into_lease(self) -> Result<Lease, IntoLeaseError<Self>> {
        let hold = self.entry.hold().clone();
        let invalid =
            |why: &str| LeaseError::Invalid { at: self.entry.at("into_lease"), why: InvalidInput::new(why) };
        if hold.terms.attachment == Attachment::Process {
            let error = invalid("make the handle with .detachable() before locking");
            return Err(IntoLeaseError::new(self, error));
        }
        if !self.entry.seal() {
            let error = invalid("release the re-entered guards first");
            return Err(IntoLeaseError::new(self, error));
        }
        if let Err(error) = renewal::change(&self.entry, Change::Detach, "into_lease").await
            // An adopted hold is detached already, and this only renews it.
            && !(hold.adopted && self.entry.check().is_ok())
        {
            self.entry.unseal();
            return Err(IntoLeaseError::new(self, error));
        }
        let (step, now) = (self.entry.step(), self.entry.alive().engine().clock().now());
        let lease = Lease::of(&hold, self.entry.units(), step, now);
        // Dropping the guard gives nothing back after this.
        if let Err(why) = release::detach(&self.entry) {
            self.entry.unseal();
            let error = LeaseError::NotHeld { at: self.entry.at("into_lease"), why };
            return Err(IntoLeaseError::new(self, error));
        }
        Ok(lease)
    }
}

/// Runs `work` until it is done or the lock is lost. The clock is looked at before each step of
/// the work and after the last: a process that was suspended does not go on as if nothing were.
pub(crate) async fn while_held<T>(
    check: impl Fn() -> Result<(), Lost>,
    lost: impl Future<Output = Lost>,
    work: impl Future<Output = T>,
) -> Result<T, Lost> {
    let (mut lost, mut work) = (pin!(lost), pin!(work));
    poll_fn(|context| {
        if let Poll::Ready(why) = lost.as_mut().poll(context) {
            return Poll::Ready(Err(why));
        }
        if let Err(why) = check() {
            return Poll::Ready(Err(why));
        }
        work.as_mut().poll(context).map(|result| check().map(|()| result))
    })
    .await
}

impl WriteGuard {
    /// Becomes a reader without letting a writer in between; the token stays the same.
    ///
    /// # Cancel safety
    /// Dropping the future releases the lock.
    ///
    /// # When the store is unreachable
    /// Fails after the request limit. The guard is a reader all the same, because the store may have let readers in.
    ///
    /// # Errors
    /// [`LeaseError::NotHeld`] if it is lost; [`LeaseError::Invalid`] if the guard is re-entered, since the others would
    /// still believe that they write alone. The error gives the guard back; with `?` it is dropped, and released.
    pub async fn downgrade(self) -> Result<ReadGuard, DowngradeError<Self, ReadGuard>> {
        if !self.entry.lower() {
            let why = InvalidInput::new("release the re-entered guards first");
            let error = LeaseError::Invalid { at: self.entry.at("downgrade"), why };
            return Err(DowngradeError::Unchanged { guard: self, error });
        }
        match renewal::change(&self.entry, Change::Lower(Units::ONE), "downgrade").await {
            Ok(()) => Ok(Guard::share(self.entry)),
            // It could otherwise write beside readers.
            Err(error) if error.maybe_applied() => {
                Err(DowngradeError::Unknown { guard: Guard::share(self.entry), error })
            }
            Err(error) => {
                self.entry.raise();
                Err(DowngradeError::Unchanged { guard: self, error })
            }
        }
    }
}

impl Leadership {
    /// The value this leader published.
    pub fn value(&self) -> &str {
        self.entry.hold().terms.shown().and_then(|shown| shown.value.as_deref()).unwrap_or_default()
    }

    /// Gives the leadership back: [`release`](Guard::release) by the name people look for.
    ///
    /// # Errors
    /// As [`release`](Guard::release).
    pub async fn resign(self) -> Result<(), ReleaseError> {
        self.release().await
    }
}

impl<M> fmt::Debug for Guard<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Guard")
            .field("name", self.name())
            .field("token", &self.token())
            .field("held", &self.is_held())
            .finish()
    }
}
