//! One keeper's side of the store: its session, its records, and the rest that its tasks share. Every request is a
//! method of [`KeeperState`], in the file of its subject.

use std::{
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use lockkeeper_core::{
    Name, StoreError,
    clock::{BootTime, Clock},
    store::{Context, StoreTime, Topic, Wake, WakeSink},
    support,
};
use tokio::{runtime::Handle, sync::Notify};
use zookeeper_client::{CreateMode, CreateOptions};

use crate::{
    limits::ServerLimits,
    records::Records,
    session::{Session, Sessions},
    settings::Settings,
    trouble::no_session,
};

/// One keeper's side of the store.
#[derive(Debug)]
pub(crate) struct KeeperState {
    pub(crate) settings: Arc<Settings>,
    pub(crate) limits: Arc<ServerLimits>,
    pub(crate) sessions: Sessions,
    pub(crate) clock: Clock,
    pub(crate) wakes: WakeSink,
    pub(crate) background: Handle,
    /// How long a request may take.
    pub(crate) limit: Duration,
    session: Mutex<Option<Arc<Session>>>,
    records: Mutex<Records>,
    /// Held while a group is applied, so that a repeated claim never meets its own first copy.
    pub(crate) turn: tokio::sync::Mutex<()>,
    /// Wakes the reaper: something may end earlier than it expects.
    pub(crate) sooner: Notify,
}

impl KeeperState {
    pub(crate) fn new(sessions: Sessions, context: Context, session: Arc<Session>) -> Arc<Self> {
        Arc::new(Self {
            settings: sessions.settings.clone(),
            limits: sessions.limits.clone(),
            sessions,
            clock: context.clock,
            wakes: context.wakes,
            background: context.background,
            limit: context.request_limit,
            session: Mutex::new(Some(session)),
            records: Mutex::default(),
            turn: tokio::sync::Mutex::default(),
            sooner: Notify::new(),
        })
    }

    pub(crate) fn records(&self) -> MutexGuard<'_, Records> {
        support::lock(&self.records)
    }

    pub(crate) fn now(&self) -> BootTime {
        self.clock.now()
    }

    /// The store's clock. ZooKeeper shows none, so the clock of the keeper's host decides whether a claim is late.
    pub(crate) fn store_time(&self) -> StoreTime {
        StoreTime(self.now().0 / 1000)
    }

    /// The keeper's session, if requests go out at once.
    pub(crate) fn session(&self) -> Result<Arc<Session>, StoreError> {
        self.any_session().filter(|session| session.is_connected()).ok_or_else(no_session)
    }

    /// The keeper's session, connected or not.
    pub(crate) fn any_session(&self) -> Option<Arc<Session>> {
        support::lock(&self.session).clone()
    }

    /// Replaces the keeper's session, and returns the one before.
    pub(crate) fn replace_session(&self, session: Option<Arc<Session>>) -> Option<Arc<Session>> {
        std::mem::replace(&mut *support::lock(&self.session), session)
    }

    pub(crate) fn ephemeral(&self) -> CreateOptions<'static> {
        CreateMode::Ephemeral.with_acls(self.settings.acls())
    }

    pub(crate) fn sequential(&self) -> CreateOptions<'static> {
        CreateMode::EphemeralSequential.with_acls(self.settings.acls())
    }

    pub(crate) fn persistent(&self) -> CreateOptions<'static> {
        CreateMode::Persistent.with_acls(self.settings.acls())
    }

    /// The kind of a folder's node: the servers remove it after its last child.
    pub(crate) fn container(&self) -> CreateOptions<'static> {
        CreateMode::Container.with_acls(self.settings.acls())
    }

    /// Makes the waiters for `name` claim again.
    pub(crate) fn wake_waiters(&self, name: &Name) {
        self.wakes.wake(Wake::Changed(Topic::Grants(name.clone())));
    }
}
