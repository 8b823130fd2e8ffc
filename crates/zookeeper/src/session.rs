//! A session: its client, whether it certainly lives, and the tasks that keep it alive. Touches the servers.

use std::{
    future::Future,
    sync::{Arc, Mutex, MutexGuard, Weak},
    time::{Duration, Instant},
};

use lockkeeper_core::{
    StoreError,
    clock::{BootTime, Clock},
    store::{Wake, WakeSink},
    support,
    support::background::Background,
};
use tokio::{runtime::Handle, sync::watch};
use zookeeper_client::{Client, Error, SessionState, Stat, StateWatcher};

use crate::{
    deadline::SessionDeadline,
    limits::ServerLimits,
    open::Lifetime,
    settings::Settings,
    trouble::{check_failed, trouble},
    watch_budget::WatchBudget,
};

/// The purpose of a session.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Purpose {
    /// All claims of a keeper, as long as its process lives.
    Keeper,
    /// One claim that outlives the process. Its server may be silent while the keeper's answers, so no answer is awaited
    /// for longer than `patience`.
    OneClaim { patience: Duration },
}

/// Opens the sessions of one keeper.
#[derive(Debug)]
pub(crate) struct Sessions {
    pub(crate) settings: Arc<Settings>,
    pub(crate) limits: Arc<ServerLimits>,
    pub(crate) clock: Clock,
    pub(crate) background: Handle,
    pub(crate) wakes: WakeSink,
}

impl Sessions {
    /// Opens a session within `limit`, and keeps it alive by tasks in the background.
    pub(crate) async fn open(
        &self,
        timeout: Duration,
        purpose: Purpose,
        limit: Duration,
    ) -> Result<Arc<Session>, StoreError> {
        let opened = tokio::time::timeout(limit, self.open_slowly(timeout, purpose)).await;
        opened.unwrap_or_else(|_| Err(trouble(Error::Timeout)))
    }

    async fn open_slowly(&self, timeout: Duration, purpose: Purpose) -> Result<Arc<Session>, StoreError> {
        let lifetime = match purpose {
            Purpose::Keeper => Lifetime::Client,
            Purpose::OneClaim { .. } => Lifetime::Timeout,
        };
        let sent = self.clock.now();
        let client = self.settings.open(timeout, lifetime).await?;
        let agreed = client.session_timeout();
        let session = Arc::new(Session {
            id: client.session_id().0,
            client,
            agreed,
            watch_budget: WatchBudget::default(),
            clock: self.clock.clone(),
            deadline: Mutex::new(SessionDeadline::new(sent, agreed, self.settings.tick)),
            over: watch::channel(false).0,
            tasks: Mutex::default(),
            purpose,
        });
        let changes = self.limits.changes();
        session.lock_deadline().allow_for(self.limits.known());
        let (weak, state) = (Arc::downgrade(&session), session.client.state_watcher());
        let tasks = [
            self.background.spawn(keep_alive(weak.clone(), self.settings.paths.root.clone())),
            self.background.spawn(learn_limits(state, self.limits.clone())),
            self.background.spawn(allow_for_limits(weak, changes, self.limits.clone(), self.wakes.clone())),
        ];
        support::lock(&session.tasks).extend(tasks.map(|task| Background::from(task.abort_handle())));
        Ok(session)
    }
}

/// A session with ZooKeeper and its deadline.
pub(crate) struct Session {
    pub(crate) client: Client,
    pub(crate) id: i64,
    /// The timeout that the first server agreed to.
    pub(crate) agreed: Duration,
    pub(crate) watch_budget: WatchBudget,
    clock: Clock,
    deadline: Mutex<SessionDeadline>,
    over: watch::Sender<bool>,
    /// Keep it alive and follow the servers' limits.
    tasks: Mutex<Vec<Background>>,
    purpose: Purpose,
}

impl Session {
    fn lock_deadline(&self) -> MutexGuard<'_, SessionDeadline> {
        support::lock(&self.deadline)
    }

    /// Whether the session serves one claim alone and outlives the process.
    pub(crate) fn is_for_one_claim(&self) -> bool {
        self.purpose != Purpose::Keeper
    }

    /// How long the session lasts without a sign of life.
    pub(crate) fn timeout(&self) -> Duration {
        self.lock_deadline().timeout
    }

    /// The time until which the servers certainly keep the session.
    pub(crate) fn deadline(&self) -> BootTime {
        self.lock_deadline().until
    }

    /// Whether the session may still claim and confirm. Past its deadline it never may again.
    pub(crate) fn lives(&self) -> bool {
        let lives = self.clock.now() < self.deadline() && !self.client.state().is_terminated();
        if !lives {
            self.end();
        }
        lives && !*self.over.borrow()
    }

    /// Whether the session lives and requests go out at once.
    pub(crate) fn is_connected(&self) -> bool {
        self.lives() && self.client.state() == SessionState::SyncConnected
    }

    /// Lets nobody claim or confirm with the session any more.
    pub(crate) fn end(&self) {
        self.over.send_if_modified(|over| !std::mem::replace(over, true));
    }

    /// Resolves when the session is over.
    pub(crate) async fn ended(&self) {
        let mut over = self.over.subscribe();
        // This cannot fail: the sender lives as long as this session.
        drop(over.wait_for(|over| *over).await);
    }

    /// The time just before a request is sent.
    pub(crate) fn now(&self) -> BootTime {
        self.clock.now()
    }

    /// Awaits the answer to a request, unless the session or its patience ends first.
    pub(crate) async fn read<T, E: From<Error>>(
        &self,
        answer: impl Future<Output = Result<T, E>>,
    ) -> Result<T, E> {
        tokio::select! {
            biased;
            answer = answer => answer,
            () = self.ended() => Err(Error::SessionExpired.into()),
            () = self.out_of_patience() => Err(Error::Timeout.into()),
        }
    }

    async fn out_of_patience(&self) {
        match self.purpose {
            Purpose::OneClaim { patience } => tokio::time::sleep(patience).await,
            Purpose::Keeper => std::future::pending().await,
        }
    }

    /// Awaits the answer to a request that needs the quorum and was sent at `sent`. Success proves the session's life.
    pub(crate) async fn write<T, E: From<Error>>(
        &self,
        sent: BootTime,
        answer: impl Future<Output = Result<T, E>>,
    ) -> Result<T, E> {
        let answer = self.read(answer).await?;
        self.lock_deadline().answered(sent, self.clock.now());
        if self.lives() { Ok(answer) } else { Err(Error::SessionExpired.into()) }
    }

    /// Asks the quorum whether the session and the node `path` are there. The request is sent at once, so that others can
    /// follow before it is awaited.
    pub(crate) fn check(&self, path: &str) -> impl Future<Output = Result<(), Error>> + Send + use<'_> {
        let sent = self.now();
        let checked = self.client.new_check_writer(path, None).map(|check| check.commit());
        self.write(sent, async { checked?.await.map(drop).map_err(check_failed) })
    }

    /// Reads the data of the node at `path`; `None` if there is no such node.
    pub(crate) async fn data(&self, path: &str) -> Result<Option<(Vec<u8>, Stat)>, StoreError> {
        match self.read(self.client.get_data(path)).await {
            Ok(data) => Ok(Some(data)),
            Err(Error::NoNode) => Ok(None),
            Err(error) => Err(trouble(error)),
        }
    }

    /// Reads the data of a node as [`data`](Self::data) does, but no older than this call.
    pub(crate) async fn synced_data(&self, path: &str) -> Result<Option<(Vec<u8>, Stat)>, StoreError> {
        let synced = self.client.sync(path);
        let data = self.client.get_data(path);
        self.read(synced).await.map_err(trouble)?;
        match self.read(data).await {
            Ok(data) => Ok(Some(data)),
            Err(Error::NoNode) => Ok(None),
            Err(error) => Err(trouble(error)),
        }
    }
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "session {:#x}", self.id)
    }
}

/// Sends signs of life, which move the deadline. Ends when the session is over.
async fn keep_alive(session: Weak<Session>, root: String) {
    loop {
        let Some(session) = session.upgrade() else { return };
        let (clock, period) = (session.clock.clone(), (session.timeout() / 8).max(Duration::from_millis(10)));
        let next = clock.now().after(period);
        tokio::select! {
            biased;
            () = session.ended() => return,
            result = session.check(&root) => {
                if let Err(error) = result {
                    tracing::debug!(?session, %error, "a sign of life got no answer");
                }
            }
            // The client may wait for a connection until long after the deadline.
            () = clock.sleep_until(session.deadline()) => {}
        }
        if !session.lives() {
            tracing::warn!(?session, "the session is over");
            return;
        }
        drop(session);
        clock.sleep_until(next).await;
    }
}

/// Asks for the servers' limits whenever the session has connected again, since it may be on another server by then.
async fn learn_limits(mut state: StateWatcher, limits: Arc<ServerLimits>) {
    let mut since = None;
    loop {
        limits.learn(since).await;
        while state.changed().await != SessionState::SyncConnected {
            if state.peek_state().is_terminated() {
                return;
            }
        }
        since = Some(Instant::now());
    }
}

/// Corrects the deadline by the limits that servers tell. If it becomes earlier, holders have been promised more than
/// is certain now, so everything is renewed at once.
async fn allow_for_limits(
    session: Weak<Session>,
    mut changes: watch::Receiver<()>,
    limits: Arc<ServerLimits>,
    wakes: WakeSink,
) {
    while changes.changed().await.is_ok() {
        let Some(session) = session.upgrade() else { return };
        let earlier = session.lock_deadline().allow_for(limits.known());
        if earlier {
            wakes.wake(Wake::Reconfirm);
        }
    }
}
