//! A countdown that many wait for.

use std::{
    sync::{
        OnceLock,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use super::handle::Handle;
use crate::{
    engine::Patience,
    error::{InvalidInput, LatchError, StoreError, StoreErrorKind},
    model::COUNT_MEMORY,
    store::{Count, CountAction, CountState, Counted, Topic},
};

/// How often a waiter looks without being told.
const POLL: Duration = Duration::from_secs(1);

/// A counter that is made with a number, counted down by anybody, and waited for by anybody.
///
/// A latch belongs to no process and has no lease: it stays until it is deleted. Its name is in a
/// space of its own, so a latch and a lock may share one.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), lockkeeper_core::Error> {
/// # let keeper = lockkeeper_core::testing::keeper().await;
/// let latch = keeper.latch("import");
/// latch.create(2).await?;
/// latch.count_down().await?;
/// latch.count_down().await?;
/// latch.wait().await?;          // two of two: open
/// latch.delete().await?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct Latch {
    pub(crate) handle: Handle,
}

/// What is known of a latch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LatchState {
    /// What is left to count; the latch is open at zero.
    pub remaining: u64,
    /// What it was created with.
    pub initial: u64,
}

impl Latch {
    /// The most that a latch can be created with.
    pub const MAX: u64 = (1 << 53) - 1;

    /// Makes the latch with `count` to go.
    ///
    /// # Cancel safety
    /// Of this and all other operations: dropping the future leaves it open whether it was done;
    /// it is never done twice.
    ///
    /// # When the store is unreachable
    /// Of this and all other operations: asks again, each operation counting once, until the
    /// keeper's outage limit.
    ///
    /// # Errors
    /// [`LatchError::Exists`] if there is one.
    pub async fn create(&self, count: u64) -> Result<(), LatchError> {
        if count > Self::MAX {
            let why = InvalidInput::new(format!("a latch counts at most {}", Self::MAX));
            return Err(LatchError::Invalid { at: self.handle.at("create"), why });
        }
        match self.count(CountAction::Create(count), "create").await? {
            Counted::Exists(state) => Err(LatchError::Exists {
                at: self.handle.at("create"),
                remaining: state.remaining,
                initial: state.initial,
            }),
            _ => Ok(()),
        }
    }

    /// Counts down by one; returns what is left. At zero nothing more happens.
    ///
    /// # Errors
    /// [`LatchError::Missing`] if there is no such latch.
    pub async fn count_down(&self) -> Result<u64, LatchError> {
        self.count_down_by(1).await
    }

    /// Counts down by several; returns what is left.
    ///
    /// # Errors
    /// [`LatchError::Missing`] if there is no such latch.
    pub async fn count_down_by(&self, count: u64) -> Result<u64, LatchError> {
        if count == 0 {
            let why =
                InvalidInput::new("counting down by zero does nothing; give at least 1, or ask for state()");
            return Err(self.invalid(why, "count_down"));
        }
        Ok(self.change(CountAction::Down(count), "count_down").await?.remaining)
    }

    /// Back to what it was created with.
    ///
    /// # Errors
    /// [`LatchError::Missing`] if there is no such latch.
    pub async fn reset(&self) -> Result<(), LatchError> {
        self.change(CountAction::Reset, "reset").await.map(|_| ())
    }

    /// Removes the latch; those who wait get [`LatchError::Deleted`].
    ///
    /// # Errors
    /// [`LatchError::Missing`] if there is no such latch.
    pub async fn delete(&self) -> Result<(), LatchError> {
        self.change(CountAction::Delete, "delete").await.map(|_| ())
    }

    /// How far it has come; `None` if there is no such latch.
    ///
    /// # Errors
    /// See [`LatchError`].
    pub async fn state(&self) -> Result<Option<LatchState>, LatchError> {
        Ok(match self.count(CountAction::Read, "state").await? {
            Counted::State(state) => Some(LatchState { remaining: state.remaining, initial: state.initial }),
            _ => None,
        })
    }

    /// Waits until it has counted to zero. A reset in between does not take that back.
    ///
    /// # Cancel safety
    /// Dropping the future has no effect.
    ///
    /// # Errors
    /// [`LatchError::Missing`] if there is no such latch, [`LatchError::Deleted`] if it is
    /// removed while waiting.
    pub async fn wait(&self) -> Result<(), LatchError> {
        self.wait_until(Patience::Forever).await
    }

    /// Waits, at most `limit`.
    ///
    /// # Errors
    /// [`LatchError::TimedOut`] when the limit passes; otherwise as [`wait`](Self::wait).
    pub async fn wait_within(&self, limit: Duration) -> Result<(), LatchError> {
        let until = self.handle.alive.engine().clock().now().after(limit);
        self.wait_until(Patience::Until(until)).await
    }

    async fn wait_until(&self, patience: Patience) -> Result<(), LatchError> {
        let engine = self.handle.alive.engine();
        let started = engine.clock().now();
        let name = self.handle.name().map_err(|why| self.invalid(why, "wait"))?;
        let topic = Topic::Latch(name.clone());
        let last = OnceLock::new();
        let opened = engine.limited(patience, self.until_open(&topic, &last)).await;
        let waited = engine.clock().now().since(started);
        match (opened, last.get()) {
            (Some(opened), _) => opened,
            (None, Some(remaining)) => {
                let remaining = remaining.load(Ordering::Relaxed);
                Err(LatchError::TimedOut { at: self.handle.at("wait"), waited, remaining })
            }
            (None, None) => {
                let message =
                    format!("no answer within {waited:?}; check that the store is up and reachable");
                Err(StoreError::new(StoreErrorKind::Unreachable, message).at(self.handle.at("wait")).into())
            }
        }
    }

    /// Waits until it opens or is deleted, and notes in `last` what was left at each look.
    async fn until_open(&self, topic: &Topic, last: &OnceLock<AtomicU64>) -> Result<(), LatchError> {
        let engine = self.handle.alive.engine();
        let mut interest = None;
        let mut first = None;
        loop {
            if interest.is_none() {
                // Subscribe first, then look: nothing falls in between. A failure is told by the
                // look, or costs only time: the next poll subscribes again.
                interest = engine.watches().subscribe(engine, topic).await.ok();
            }
            let state = match (self.count(CountAction::Read, "wait").await?, first) {
                (Counted::State(state), None) => *first.insert(state),
                (Counted::State(state), Some(first)) if state.born == first.born => state,
                (_, None) => return Err(LatchError::Missing { at: self.handle.at("wait") }),
                _ => return Err(LatchError::Deleted { at: self.handle.at("wait") }),
            };
            last.get_or_init(AtomicU64::default).store(state.remaining, Ordering::Relaxed);
            if state.remaining == 0 || first.is_some_and(|first| state.opened > first.opened) {
                return Ok(());
            }
            let poll = engine.clock().now().after(POLL);
            tokio::select! {
                biased;
                () = async {
                    match &mut interest {
                        Some(interest) => interest.changed().await,
                        None => std::future::pending().await,
                    }
                } => {}
                () = engine.clock().sleep_until(poll) => {}
            }
        }
    }

    fn invalid(&self, why: InvalidInput, operation: &'static str) -> LatchError {
        LatchError::Invalid { at: self.handle.at(operation), why }
    }

    /// An operation on a latch that must exist.
    async fn change(&self, action: CountAction, operation: &'static str) -> Result<CountState, LatchError> {
        match self.count(action, operation).await? {
            Counted::State(state) => Ok(state),
            _ => Err(LatchError::Missing { at: self.handle.at(operation) }),
        }
    }

    /// One operation with one id: asked again until its outcome is known, counted once.
    async fn count(&self, action: CountAction, operation: &'static str) -> Result<Counted, LatchError> {
        let at = || self.handle.at(operation);
        let name = self.handle.name().map_err(|why| self.invalid(why, operation))?;
        let engine = self.handle.alive.engine();
        let mut started = engine.clock().now();
        let server = engine.store().server_of(name);
        let not_after = engine.store_clock().not_after(server, started);
        let mut count = Count { name: name.clone(), op: engine.next_id(), not_after, action };
        let mut pause = Duration::from_millis(50);
        let mut unknown = false;
        let mut too_late = 0;
        loop {
            if engine.is_closed() {
                return Err(LatchError::Closed { at: at() });
            }
            let result = engine.ask_store(operation, engine.store().count(&count)).await;
            let now = engine.clock().now();
            let error = match result.map(|answers| (answers.now, answers.each.first().copied())) {
                Ok((time, Some(Counted::Stale) | None)) if too_late < 5 => {
                    // The store remembers what counted for longer than anybody asks again, so
                    // this means that no copy counted or ever will: a new one is in order.
                    engine.store_clock().heard(server, now, time);
                    too_late += 1;
                    unknown = false;
                    started = now;
                    count.op = engine.next_id();
                    count.not_after = engine.store_clock().not_after(server, now);
                    continue;
                }
                Ok((_, Some(Counted::Stale) | None)) => StoreError::new(
                    StoreErrorKind::Conflict,
                    "requests keep arriving too late for the store's clock; check clocks and latency",
                ),
                Ok((time, Some(counted))) => {
                    engine.store_clock().heard(server, now, time);
                    return Ok(counted);
                }
                Err(error) => error,
            };
            unknown |= error.maybe_applied();
            if !error.is_passing() || now.since(started) >= engine.outage_limit().min(COUNT_MEMORY / 2) {
                let error = if unknown { error.perhaps_applied() } else { error };
                return Err(error.at(at()).into());
            }
            engine.clock().sleep_until(now.after(pause)).await;
            pause = (pause * 2).min(Duration::from_secs(1));
        }
    }
}
