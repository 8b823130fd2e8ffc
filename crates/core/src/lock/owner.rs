//! Re-entrancy by explicit owner. Not by thread or task: two branches of a `join!` share a task.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, Weak},
    time::Duration,
};

use super::{
    entry::{Entered, Entry},
    guard_count::Refused,
    handle::Handle,
};
use crate::{
    engine::{looks::look, patience::Patience, terms::Terms},
    error::AcquireError,
    name::Name,
    support,
};

/// Somebody who may enter the same lock several times; made by [`Keeper::owner`](crate::Keeper::owner).
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), lockkeeper_core::Error> {
/// # let keeper = lockkeeper_core::testing::keeper().await;
/// let owner = keeper.owner();
/// let stock = keeper.mutex("stock/42");
/// let outer = stock.lock_as(&owner).await?;
/// let inner = stock.lock_as(&owner).await?;    // no waiting for oneself
/// assert_eq!(outer.token(), inner.token());
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, Default)]
pub struct Owner {
    /// By store, too: an owner may enter locks of several keepers.
    holds: Arc<Mutex<Holds>>,
}

#[derive(Debug, Default)]
struct Holds {
    by_resource: HashMap<Resource, Arc<Held>>,
    /// With how many entries to look for those that are over: twice as many as were left the last time, so that an
    /// owner of many names looks at each of them a few times only.
    sweep_at: usize,
}

/// The least number of entries that is worth a look.
const SWEEP: usize = 16;

/// The store's own id, and the name in it.
type Resource = (String, Name);

/// What an owner holds of one name. The lock is taken while acquiring, so that two calls of one
/// owner at the same time do not wait for each other at the store.
type Held = tokio::sync::Mutex<Weak<Entered>>;

impl Holds {
    /// Forgets what its owner no longer holds and nobody is entering, now and then.
    fn sweep(&mut self) {
        if self.by_resource.len() < self.sweep_at.max(SWEEP) {
            return;
        }
        self.by_resource.retain(|_, held| {
            look();
            Arc::strong_count(held) > 1
                || held.try_lock().is_ok_and(|held| held.upgrade().is_some_and(|held| held.is_live()))
        });
        self.sweep_at = 2 * self.by_resource.len();
    }
}

impl Owner {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    fn held(&self, store: &str, name: &Name) -> Arc<Held> {
        let key = (store.to_owned(), name.clone());
        let mut holds = support::lock(&self.holds);
        if let Some(held) = holds.by_resource.get(&key) {
            return held.clone();
        }
        holds.sweep();
        let held = Arc::new(Held::default());
        holds.by_resource.insert(key, held.clone());
        held
    }

    /// Enters again what is held, or acquires it, waiting for as long as it takes.
    pub(crate) async fn wait(
        &self,
        handle: &Handle,
        terms: &Arc<Terms>,
        operation: &'static str,
    ) -> Result<Entry, AcquireError> {
        handle.waited(self.enter(handle, terms, Patience::Forever, operation).await, operation)
    }

    /// Enters again what is held, or acquires it, waiting at most `limit`.
    pub(crate) async fn wait_within(
        &self,
        handle: &Handle,
        terms: &Arc<Terms>,
        limit: Duration,
        operation: &'static str,
    ) -> Result<Entry, AcquireError> {
        let until = handle.alive.engine().clock().now().after(limit);
        handle.waited(self.enter(handle, terms, Patience::Until(until), operation).await, operation)
    }

    /// Enters again what is held, or acquires it for as long as `patience` allows. `None`: it is busy, and the caller
    /// does not wait.
    pub(crate) async fn enter(
        &self,
        handle: &Handle,
        terms: &Arc<Terms>,
        patience: Patience,
        operation: &'static str,
    ) -> Result<Option<Entry>, AcquireError> {
        let at = || handle.at(operation);
        let name = handle.name().map_err(|why| AcquireError::Invalid { at: at(), why })?;
        let held = self.held(handle.alive.engine().store().id(), name);
        let mut held = match patience {
            // Another call of this owner is acquiring it at this moment.
            Patience::Try => match held.try_lock() {
                Ok(held) => held,
                Err(_) => return Ok(None),
            },
            _ => {
                let clock = handle.alive.engine().clock();
                let started = clock.now();
                let locked = patience.limit(clock, held.lock()).await;
                locked.ok_or_else(|| {
                    let waited = clock.now().since(started);
                    AcquireError::TimedOut { at: at(), waited, ahead: None, maybe_applied: false }
                })?
            }
        };
        if let Some(entered) = held.upgrade().filter(|entered| entered.is_live() && entered.check().is_ok()) {
            let in_use = entered.hold().terms.capacity;
            if in_use != terms.capacity {
                return Err(AcquireError::CapacityMismatch { at: at(), asked: terms.capacity, in_use });
            }
            match entered.enter(terms.units) {
                Ok(entry) => return Ok(Some(entry)),
                Err(Refused::Upgrade) => return Err(AcquireError::UpgradeRefused { at: at() }),
                Err(Refused::Over) => {}
            }
        }
        let Some(owned) = handle.acquire(terms, patience, operation).await? else { return Ok(None) };
        let entry = Entry::new(owned);
        *held = entry.weak();
        Ok(Some(entry))
    }
}
