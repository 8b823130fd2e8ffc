//! What all lock handles share: a name that may turn out bad, terms, and the way to acquire.

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

    /// What a caller that waits was told.
    pub(super) fn waited<T>(
        &self,
        result: Result<Option<T>, AcquireError>,
        operation: &'static str,
    ) -> Result<T, AcquireError> {
        // Whoever waits is never told "busy"; a closed keeper is the only way to end up here.
        result?.ok_or_else(|| AcquireError::Closed { at: self.at(operation), maybe_applied: false })
    }
}

/// The settings that every lock handle has.
macro_rules! lease_settings {
    () => {
        /// The length of each lease (default 30 s). The watchdog renews it at a third of it, so
        /// this is how long the lock stays taken after a crash.
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

        /// Renewed, but never past `most` in all: then it is lost with
        /// [`Lost::MaxHold`](crate::Lost::MaxHold).
        pub fn max_hold(self, most: Duration) -> Self {
            Self { handle: self.handle.with(|terms| terms.max_hold = Some(most)) }
        }

        /// The guard may become a [`Lease`](crate::Lease) that outlives this process.
        pub fn detachable(self) -> Self {
            Self { handle: self.handle.with(|terms| terms.attachment = crate::store::Attachment::Detachable) }
        }

        /// Words for people: shown with the holder in listings.
        pub fn label(self, label: &str) -> Self {
            Self { handle: self.handle.with(|terms| terms.label = Some(label.into())) }
        }

        /// The name as it was given.
        pub fn name(&self) -> &str {
            self.handle.given()
        }
    };
}
pub(crate) use lease_settings;
