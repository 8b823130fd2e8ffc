//! The common part of all lock handles: a name that may turn out bad, terms, and the way to acquire.

use std::{sync::Arc, time::Duration};

use crate::{
    engine::{Alive, acquisition, patience::Patience, release::OwnedHold, terms::Terms},
    error::{AcquireError, At, InvalidInput},
    name::Name,
};

/// A named thing at a keeper. Making one never fails; a bad name is told when it is used.
#[derive(Clone, Debug)]
pub(crate) struct Handle {
    pub(crate) alive: Arc<Alive>,
    given: Arc<str>,
    name: Result<Name, InvalidInput>,
    terms: Arc<Terms>,
    bad: Option<InvalidInput>,
}

impl Handle {
    pub(crate) fn new(alive: &Arc<Alive>, name: &str, terms: Terms) -> Self {
        Self {
            alive: alive.clone(),
            given: name.chars().take(Name::MAX_BYTES).collect::<String>().into(),
            name: Name::new(name),
            terms: Arc::new(terms),
            bad: None,
        }
    }

    /// Another name on the same terms.
    pub(crate) fn renamed(&self, name: &str) -> Self {
        Self::new(&self.alive, name, Terms::clone(&self.terms))
    }

    /// The name as it was given, valid or not.
    pub(crate) fn given(&self) -> &str {
        &self.given
    }

    pub(crate) fn terms(&self) -> &Arc<Terms> {
        &self.terms
    }

    /// With other terms.
    pub(crate) fn with(mut self, change: impl FnOnce(&mut Terms)) -> Self {
        change(Arc::make_mut(&mut self.terms));
        self
    }

    /// With an error to be told at first use, unless there is one already.
    pub(crate) fn refused(mut self, why: InvalidInput) -> Self {
        self.bad.get_or_insert(why);
        self
    }

    pub(crate) fn at(&self, operation: &'static str) -> At {
        At { store: self.alive.engine().store().url().clone(), resource: Some(self.given.clone()), operation }
    }

    pub(crate) fn name(&self) -> Result<&Name, InvalidInput> {
        match (&self.bad, &self.name) {
            (Some(why), _) | (None, Err(why)) => Err(why.clone()),
            (None, Ok(name)) => Ok(name),
        }
    }

    /// Acquires on these terms.
    pub(crate) async fn acquire(
        &self,
        terms: &Arc<Terms>,
        patience: Patience,
        operation: &'static str,
    ) -> Result<Option<OwnedHold>, AcquireError> {
        let name = self.name().map_err(|why| AcquireError::Invalid { at: self.at(operation), why })?;
        acquisition::acquire(&self.alive, name, terms, patience, operation).await
    }

    /// Acquires, waiting for as long as it takes.
    pub(crate) async fn wait(
        &self,
        terms: &Arc<Terms>,
        operation: &'static str,
    ) -> Result<OwnedHold, AcquireError> {
        self.waited(self.acquire(terms, Patience::Forever, operation).await, operation)
    }

    /// Acquires, waiting at most `limit`.
    pub(crate) async fn wait_within(
        &self,
        terms: &Arc<Terms>,
        limit: Duration,
        operation: &'static str,
    ) -> Result<OwnedHold, AcquireError> {
        let patience = Patience::within(self.alive.engine().clock(), limit);
        self.waited(self.acquire(terms, patience, operation).await, operation)
    }

    /// The result of a caller that waits.
    pub(super) fn waited<T>(
        &self,
        result: Result<Option<T>, AcquireError>,
        operation: &'static str,
    ) -> Result<T, AcquireError> {
        // A wait is never answered with "busy", so only a closed keeper leads here.
        result?.ok_or_else(|| AcquireError::Closed { at: self.at(operation), maybe_applied: false })
    }
}

/// The settings that every lock handle has.
macro_rules! lease_settings {
    () => {
        /// The length of each lease (default: [`Keeper::default_lease`](crate::Keeper::default_lease)). The watchdog
        /// renews it when a third of it has passed. Where the store does not notice a crash by itself, this is how long
        /// the lock stays held after one.
        pub fn lease(self, lease: Duration) -> Self {
            Self {
                handle: self.handle.with(|terms| {
                    terms.lease = lease;
                    terms.renewed = true;
                }),
            }
        }

        /// A fixed lease: never renewed, lost after `lease` at the latest.
        pub fn expires_after(self, lease: Duration) -> Self {
            Self {
                handle: self.handle.with(|terms| {
                    terms.lease = lease;
                    terms.renewed = false;
                }),
            }
        }

        /// Renewed, but never past `most` in all: then it is lost with [`Lost::MaxHold`](crate::Lost::MaxHold).
        pub fn max_hold(self, most: Duration) -> Self {
            Self { handle: self.handle.with(|terms| terms.max_hold = Some(most)) }
        }

        /// Kept for at least this long, also if it is released or dropped earlier, or if the process dies: for jobs that
        /// must not run twice in a row because clocks differ. It needs a store whose leases can be detached, and lasts
        /// no longer than they do: with SQLite, a restart of the machine ends both. In [`all`](crate::all) it counts
        /// once all are held.
        pub fn min_hold(self, least: Duration) -> Self {
            Self { handle: self.handle.with(|terms| terms.min_hold = least) }
        }

        /// The guard may become a [`Lease`](crate::Lease) that outlives this process.
        pub fn detachable(self) -> Self {
            Self { handle: self.handle.with(|terms| terms.attachment = crate::store::Attachment::Detachable) }
        }

        /// Words for people: shown with the holder in listings.
        pub fn label(self, label: &str) -> Self {
            Self { handle: self.handle.with(|terms| terms.show().label = Some(label.into())) }
        }

        /// The name as it was given.
        pub fn name(&self) -> &str {
            self.handle.given()
        }
    };
}
pub(crate) use lease_settings;
