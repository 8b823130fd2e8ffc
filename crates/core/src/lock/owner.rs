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
    engine::{
        acquisition::{self, Ahead},
        looks::look,
        patience::Patience,
        terms::Terms,
    },
    error::{AcquireError, At},
    name::Name,
    support::{self, calm::calm},
    telemetry,
};

/// Somebody who may enter the same lock several times; made by [`Keeper::owner`](crate::Keeper::owner).
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), lockkeeper::Error> {
/// # let keeper = lockkeeper::testing::keeper().await;
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
    by_resource: HashMap<StoreAndName, Arc<Held>>,
    /// With how many entries to look for those that are over: twice as many as were left the last time, so that an
    /// owner of many names looks at each of them a few times only.
    sweep_at: usize,
}

/// The least number of entries that is worth a look.
const SWEEP: usize = 16;

/// The store's own id, and the name in it.
type StoreAndName = (String, Name);

/// An owner's hold on one name.
#[derive(Debug, Default)]
struct Held {
    /// Taken while acquiring, so that two calls of one owner do not wait for each other at the store.
    acquiring: tokio::sync::Mutex<()>,
    entered: Mutex<Weak<Entered>>,
}

impl Held {
    /// Returns the entered hold, if it may still be acted on.
    fn entered(&self) -> Option<Arc<Entered>> {
        let entered = support::lock(&self.entered).upgrade();
        entered.filter(|entered| entered.is_live() && entered.check().is_ok())
    }

    /// Whether anybody has a part in the entered hold. Looks without taking part in it: the last part waits for the
    /// store, and must not end under a lock.
    fn is_in_use(&self) -> bool {
        support::lock(&self.entered).strong_count() > 0
    }
}

impl Holds {
    /// Forgets, now and then, the holds that their owner no longer has and nobody is entering.
    fn sweep(&mut self) {
        if self.by_resource.len() < self.sweep_at.max(SWEEP) {
            return;
        }
        self.by_resource.retain(|_, held| {
            look();
            // Only the calls that enter it have other parts in it, and they come by under the lock that is held here.
            Arc::strong_count(held) > 1 || held.is_in_use()
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

    /// Enters the held lock again, or acquires it, waiting for as long as it takes.
    pub(crate) async fn wait(
        &self,
        handle: &Handle,
        terms: &Arc<Terms>,
        operation: &'static str,
    ) -> Result<Entry, AcquireError> {
        handle.waited(self.enter(handle, terms, Patience::Forever, operation).await, operation)
    }

    /// Enters the held lock again, or acquires it, waiting at most `limit`.
    pub(crate) async fn wait_within(
        &self,
        handle: &Handle,
        terms: &Arc<Terms>,
        limit: Duration,
        operation: &'static str,
    ) -> Result<Entry, AcquireError> {
        let patience = Patience::within(handle.alive.engine().clock(), limit);
        handle.waited(self.enter(handle, terms, patience, operation).await, operation)
    }

    /// Enters the held lock again, or acquires it for as long as `patience` allows. `None`: it is busy, and the caller
    /// does not wait.
    pub(crate) async fn enter(
        &self,
        handle: &Handle,
        terms: &Arc<Terms>,
        patience: Patience,
        operation: &'static str,
    ) -> Result<Option<Entry>, AcquireError> {
        let name = handle.name().map_err(|why| AcquireError::Invalid { at: handle.at(operation), why })?;
        let held = self.held(handle.alive.engine().store().id(), name);
        let clock = handle.alive.engine().clock();
        let started = clock.now();
        // An acquisition that ends here never comes to the engine, which counts the others.
        let timed_out = || {
            let (engine, at) = (handle.alive.engine(), handle.at(operation));
            let error = acquisition::timed_out_behind(engine, name, at, started, Ahead::Any);
            telemetry::acquired(terms.kind, Err(&error), || clock.now().since(started));
            error
        };
        let busy = || {
            telemetry::acquired(terms.kind, Ok(None), || clock.now().since(started));
            Ok(None)
        };
        loop {
            match again(&held, terms, || handle.at(operation))? {
                Again::Entered(entry) => return Ok(Some(entry)),
                Again::Sealed(_) if !patience.waits() => return busy(),
                Again::Sealed(entered) => {
                    patience.limit(clock, entered.unsealed()).await.ok_or_else(timed_out)?;
                    continue;
                }
                Again::NotHeld => {}
            }
            let acquiring = match held.acquiring.try_lock() {
                Ok(acquiring) => acquiring,
                // Another call of this owner is acquiring it at this moment.
                Err(_) if !patience.waits() => return busy(),
                Err(_) => {
                    let others = calm(held.acquiring.lock());
                    patience.limit(clock, others).await.ok_or_else(timed_out)?
                }
            };
            // The call before this one may have acquired it.
            if held.entered().is_some() {
                continue;
            }
            let Some(owned) = handle.acquire(terms, patience, operation).await? else { return Ok(None) };
            let entry = Entry::new(owned);
            *support::lock(&held.entered) = entry.weak();
            drop(acquiring);
            return Ok(Some(entry));
        }
    }
}

/// The outcome of entering again.
enum Again {
    Entered(Entry),
    /// It is about to be detached: whether it may be entered again is not known yet.
    Sealed(Arc<Entered>),
    NotHeld,
}

fn again(held: &Held, terms: &Terms, at: impl Fn() -> At) -> Result<Again, AcquireError> {
    let Some(entered) = held.entered() else { return Ok(Again::NotHeld) };
    let in_use = entered.hold().terms.capacity;
    if in_use != terms.capacity {
        return Err(AcquireError::CapacityMismatch { at: at(), asked: terms.capacity, in_use });
    }
    match entered.enter(terms.units) {
        Ok(entry) => Ok(Again::Entered(entry)),
        Err(Refused::Upgrade) => Err(AcquireError::UpgradeRefused { at: at() }),
        Err(Refused::Sealed) => Ok(Again::Sealed(entered)),
        Err(Refused::Over) => Ok(Again::NotHeld),
    }
}
