//! A countdown that many wait for.

use std::time::Duration;

use super::handle::Handle;
use crate::{
    engine::{counting, patience::Patience, terms::check_counts_permits},
    error::{InvalidInput, LatchError},
    name::Name,
    store::{CountAction, CountState, Counted},
};

/// A counter that is made with a number, counted down by anybody, and waited for by anybody.
///
/// A latch belongs to no process and has no lease: it stays until it is deleted. Its name is in a
/// space of its own, so a latch and a lock may share one.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), lockkeeper::Error> {
/// # let keeper = lockkeeper::testing::keeper().await;
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

/// The state of a latch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LatchState {
    /// The count that remains; the latch is open at zero.
    pub remaining: u64,
    /// The count that it was created with.
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
    /// Of this and all other operations: asks again, each operation counting once, for the keeper's
    /// [outage limit](crate::KeeperBuilder::outage_limit), but not for more than 30 s.
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

    /// Counts down by one; returns the remaining count. At zero nothing more happens.
    ///
    /// # Errors
    /// [`LatchError::Missing`] if there is no such latch.
    pub async fn count_down(&self) -> Result<u64, LatchError> {
        self.count_down_by(1).await
    }

    /// Counts down by several; returns the remaining count.
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

    /// Sets the count back to its initial value.
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
    /// # When the store is unreachable
    /// Goes on looking for the keeper's [outage limit](crate::KeeperBuilder::outage_limit) of 30 s, then fails with
    /// [`LatchError::Store`].
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
    /// [`LatchError::TimedOut`] when the limit passes while the latch is closed, [`LatchError::Store`] if the store is out
    /// of reach at that moment; otherwise as [`wait`](Self::wait).
    pub async fn wait_within(&self, limit: Duration) -> Result<(), LatchError> {
        self.wait_until(Patience::within(self.handle.alive.engine().clock(), limit)).await
    }

    async fn wait_until(&self, patience: Patience) -> Result<(), LatchError> {
        let name = self.name("wait")?;
        counting::wait(self.handle.alive.engine(), name, patience).await
    }

    /// The name of a latch that this store can have.
    fn name(&self, operation: &'static str) -> Result<&Name, LatchError> {
        check_counts_permits(self.handle.alive.engine().store().as_ref())
            .and_then(|()| self.handle.name())
            .map_err(|why| self.invalid(why, operation))
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

    async fn count(&self, action: CountAction, operation: &'static str) -> Result<Counted, LatchError> {
        let name = self.name(operation)?;
        counting::count(self.handle.alive.engine(), name, action, operation).await
    }
}
