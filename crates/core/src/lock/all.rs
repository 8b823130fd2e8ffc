//! Several locks, all or nothing, over any mix of stores.

use std::{fmt, time::Duration};

use super::{
    guard::{Guard, while_held},
    mutex::Mutex,
};
use crate::{
    engine::{patience::Patience, release::OwnedHold},
    error::{AcquireError, At, InvalidInput, Lost, ReleaseError},
    token::Token,
};

/// Several mutexes to be locked together; made by [`all`].
#[derive(Clone, Debug)]
pub struct All {
    /// In the order in which they were given.
    mutexes: Vec<Mutex>,
}

/// Names several mutexes, of any keepers, to be locked together.
///
/// They are taken in one order that all callers share (by name, then by the store's own id), so
/// two callers that name them differently do not wait for each other for ever. If one cannot be
/// had, all are given back, and without their `min_hold`, since nobody has begun anything.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), lockkeeper::Error> {
/// # let keeper = lockkeeper::testing::keeper().await;
/// let (a, b) = (keeper.mutex("account/1"), keeper.mutex("account/2"));
/// let both = lockkeeper::all([&a, &b]).lock().await?;
/// println!("{} and {}", both.tokens()[0], both.tokens()[1]);
/// both.release().await?;
/// # Ok(()) }
/// ```
pub fn all<'a>(mutexes: impl IntoIterator<Item = &'a Mutex>) -> All {
    All { mutexes: mutexes.into_iter().cloned().collect() }
}

impl All {
    /// Waits for all of them.
    ///
    /// # Fairness
    /// Each is waited for in its own line, one after another, while the earlier ones are held.
    ///
    /// # Cancel safety
    /// Dropping the future gives everything back.
    ///
    /// # When the store is unreachable
    /// As [`Mutex::lock`]; the locks taken so far are given back.
    ///
    /// # Errors
    /// See [`AcquireError`]; [`Invalid`](AcquireError::Invalid) if none or the same one twice is
    /// named.
    pub async fn lock(&self) -> Result<AllGuard, AcquireError> {
        loop {
            if let Some(guard) = self.take(Patience::Forever).await? {
                return Ok(guard);
            }
        }
    }

    /// Takes all of them if all are free; `None` if one is not.
    ///
    /// # Errors
    /// As [`lock`](Self::lock).
    pub async fn try_lock(&self) -> Result<Option<AllGuard>, AcquireError> {
        self.take(Patience::Try).await
    }

    /// Waits for all of them, at most `limit` in all.
    ///
    /// # Errors
    /// [`TimedOut`](AcquireError::TimedOut) when the limit passes; as [`lock`](Self::lock).
    pub async fn lock_within(&self, limit: Duration) -> Result<AllGuard, AcquireError> {
        let patience = |mutex: &Mutex| Patience::within(mutex.handle.alive.engine().clock(), limit);
        let patience = self.mutexes.first().map_or(Patience::Forever, patience);
        loop {
            if let Some(guard) = self.take(patience).await? {
                return Ok(guard);
            }
        }
    }

    /// One round over all of them. `None`: one was busy, or one was lost while waiting for the
    /// next, so that there is no moment at which all were held.
    async fn take(&self, patience: Patience) -> Result<Option<AllGuard>, AcquireError> {
        let mut taken = Taken(Vec::with_capacity(self.mutexes.len()));
        for place in self.order()? {
            let handle = &self.mutexes[place].handle;
            match handle.acquire(handle.terms(), patience, "lock").await? {
                Some(owned) => taken.0.push((place, owned)),
                None => return Ok(None),
            }
        }
        Ok(taken.into_guard())
    }

    /// The order that all callers share: by name, then by an id kept in the store itself, since
    /// two URLs may mean one server.
    fn order(&self) -> Result<Vec<usize>, AcquireError> {
        let key = |place: usize| {
            let mutex = &self.mutexes[place];
            (mutex.name(), mutex.handle.alive.engine().store().id())
        };
        let mut order: Vec<usize> = (0..self.mutexes.len()).collect();
        order.sort_by(|a, b| key(*a).cmp(&key(*b)));
        let invalid = |at: At, why: &str| AcquireError::Invalid { at, why: InvalidInput::new(why) };
        if order.is_empty() {
            let at = At { store: "no store".into(), resource: None, operation: "lock" };
            return Err(invalid(at, "no locks were named; name at least one"));
        }
        if let Some(twice) = order.windows(2).find(|pair| key(pair[0]) == key(pair[1])) {
            let at = self.mutexes[twice[0]].handle.at("lock");
            return Err(invalid(
                at,
                "it is named twice, so the second would wait for the first; name it once",
            ));
        }
        Ok(order)
    }
}

/// The locks taken so far, with the place of each. Dropped before all are there, they are given back as never begun: a
/// `min_hold` keeps others away only from work that was begun.
struct Taken(Vec<(usize, OwnedHold)>);

impl Taken {
    /// All of them, unless one was lost meanwhile.
    fn into_guard(mut self) -> Option<AllGuard> {
        if self.0.iter().any(|(_, owned)| owned.check().is_err()) {
            return None;
        }
        let mut all = std::mem::take(&mut self.0);
        all.sort_by_key(|(place, _)| *place);
        Some(AllGuard { guards: all.into_iter().map(|(_, owned)| Guard::new(owned)).collect() })
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        for (_, owned) in self.0.drain(..) {
            owned.call_off();
        }
    }
}

/// Holds several locks. It is held only as long as each of them is.
#[must_use = "the locks are released as soon as the guard is dropped"]
#[clippy::has_significant_drop]
pub struct AllGuard {
    guards: Vec<Guard>,
}

impl AllGuard {
    /// The guards, in the order in which the locks were named.
    pub fn guards(&self) -> &[Guard] {
        &self.guards
    }

    /// One token per lock, in the order in which they were named.
    pub fn tokens(&self) -> Vec<Token> {
        self.guards.iter().map(Guard::token).collect()
    }

    /// Whether all are held.
    pub fn is_held(&self) -> bool {
        self.guards.iter().all(Guard::is_held)
    }

    /// How long all are certainly still held.
    pub fn remaining(&self) -> Duration {
        self.guards.iter().map(Guard::remaining).min().unwrap_or_default()
    }

    /// Resolves when the first of them is lost, with the reason.
    ///
    /// # Cancel safety
    /// Dropping it has no effect.
    pub fn lost(&self) -> impl Future<Output = Lost> + Send + Sync + 'static {
        let mut waits: Vec<_> = self.guards.iter().map(|guard| Box::pin(guard.lost())).collect();
        std::future::poll_fn(move |context| {
            for wait in &mut waits {
                if let std::task::Poll::Ready(lost) = wait.as_mut().poll(context) {
                    return std::task::Poll::Ready(lost);
                }
            }
            std::task::Poll::Pending
        })
    }

    /// Runs `work` for as long as all are held, and drops it the moment one is lost.
    ///
    /// # Errors
    /// [`Lost`] if one was lost before `work` was done.
    pub async fn run<T>(&self, work: impl Future<Output = T>) -> Result<T, Lost> {
        let check = || self.guards.iter().try_for_each(|guard| guard.entry().check().map(|_| ()));
        while_held(check, self.lost(), work).await
    }

    /// Gives all back, also if one of them was lost.
    ///
    /// # Cancel safety
    /// Dropping the future does not stop the release.
    ///
    /// # Errors
    /// The first [`ReleaseError`] of them.
    pub async fn release(self) -> Result<(), ReleaseError> {
        let mut outcome = Ok(());
        for guard in self.guards.into_iter().rev() {
            let released = guard.release().await;
            outcome = outcome.and(released);
        }
        outcome
    }
}

impl fmt::Debug for AllGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(&self.guards).finish()
    }
}
