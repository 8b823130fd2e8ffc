//! What all parts of one keeper's store share: its session, its memory, and the two tasks that keep
//! them: one replaces a session that is over, the other ends what has ended.

use lockkeeper_core::support;
use std::{
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use lockkeeper_core::{
    ContenderId, Name, StoreError,
    clock::{BootTime, Clock},
    store::{Left, StoreTime, Topic, Wake, WakeSink},
};
use tokio::{runtime::Handle, sync::Notify};
use zookeeper_client::{CreateMode, CreateOptions, Error};

use crate::{
    claims::delete_markers,
    memory::{ClaimRecord, ClaimState, HoldRecord, Memory},
    queue::Queue,
    session::{self, Session},
    settings::Settings,
    trouble::{no_session, trouble},
};

/// How long the reaper waits before it tries again what got no answer.
const AGAIN: Duration = Duration::from_millis(100);

/// Ever longer pauses between tries: some errors stay.
#[derive(Debug)]
pub(crate) struct Pause(Duration);

impl Default for Pause {
    fn default() -> Self {
        Self(Duration::from_millis(20))
    }
}

impl Pause {
    pub(crate) async fn pass(&mut self, clock: &Clock) {
        clock.sleep_until(clock.now().after(self.0)).await;
        self.0 = (self.0 * 2).min(Duration::from_secs(1));
    }
}

/// What the reaper has found.
struct Ended {
    /// Sessions that are over.
    lost: Vec<Arc<Session>>,
    /// Whose nodes have to go.
    leaving: Vec<ContenderId>,
    /// Who may have a node that nobody asks for.
    unknown: Vec<(ContenderId, Name)>,
    /// When to look again.
    next: BootTime,
}

/// One keeper's side of the store.
#[derive(Debug)]
pub(crate) struct KeeperState {
    pub(crate) settings: Settings,
    pub(crate) clock: Clock,
    pub(crate) wakes: WakeSink,
    pub(crate) background: Handle,
    pub(crate) limit: Duration,
    session: Mutex<Option<Arc<Session>>>,
    memory: Mutex<Memory>,
    /// One group at a time: a claim that is asked again never meets its own first copy.
    pub(crate) turn: tokio::sync::Mutex<()>,
    /// Something may end earlier than the reaper expects.
    pub(crate) sooner: Notify,
}

impl KeeperState {
    pub(crate) fn new(
        settings: Settings,
        context: lockkeeper_core::store::Context,
        session: Arc<Session>,
    ) -> Arc<Self> {
        Arc::new(Self {
            settings,
            clock: context.clock,
            wakes: context.wakes,
            background: context.background,
            limit: context.request_limit,
            session: Mutex::new(Some(session)),
            memory: Mutex::default(),
            turn: tokio::sync::Mutex::default(),
            sooner: Notify::new(),
        })
    }

    pub(crate) fn memory(&self) -> MutexGuard<'_, Memory> {
        support::lock(&self.memory)
    }

    fn current(&self) -> MutexGuard<'_, Option<Arc<Session>>> {
        support::lock(&self.session)
    }

    pub(crate) fn now(&self) -> BootTime {
        self.clock.now()
    }

    /// The store's clock, as far as this keeper is concerned: ZooKeeper shows none, so claims are
    /// late by the clock of their own host.
    pub(crate) fn store_time(&self) -> StoreTime {
        StoreTime(self.now().0 / 1000)
    }

    /// The keeper's session, if requests go out at once.
    pub(crate) fn session(&self) -> Result<Arc<Session>, StoreError> {
        self.current().clone().filter(|session| session.is_connected()).ok_or_else(no_session)
    }

    /// A session for one claim, which outlives this process by `timeout` at least.
    pub(crate) async fn own_session(&self, timeout: Duration) -> Result<Arc<Session>, StoreError> {
        // The protocol has milliseconds of 32 bits.
        let timeout = timeout.min(Duration::from_millis(i32::MAX as u64));
        // Its own line may be silent while the keeper's is not, and must not keep other claims waiting for long.
        let patience = Some(self.limit / 2);
        session::within(self.limit, self.open(timeout, patience, true)).await
    }

    async fn open(
        &self,
        timeout: Duration,
        patience: Option<Duration>,
        detached: bool,
    ) -> Result<Arc<Session>, StoreError> {
        let Self { settings, clock, background, wakes, .. } = self;
        Session::open(settings, timeout, patience, detached, clock, background, wakes).await
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

    /// Vanishes by itself once its last child has.
    pub(crate) fn container(&self) -> CreateOptions<'static> {
        CreateMode::Container.with_acls(self.settings.acls())
    }

    /// Who holds and waits for the resource at `path`, by the server that this session talks to.
    pub(crate) async fn queue(&self, session: &Session, path: &str) -> Result<Queue, StoreError> {
        match session.read(session.client.list_children(path)).await {
            Ok(children) => Ok(self.queue_of(path, children)),
            Err(Error::NoNode) => Ok(Queue::default()),
            Err(error) => Err(trouble(error)),
        }
    }

    /// As [`line`](Self::line), but not older than this call.
    pub(crate) async fn queue_now(&self, session: &Session, path: &str) -> Result<Queue, StoreError> {
        let synced = session.client.sync(path);
        let listed = session.client.list_children(path);
        session.read(synced).await.map_err(trouble)?;
        match session.read(listed).await {
            Ok(children) => Ok(self.queue_of(path, children)),
            Err(Error::NoNode) => Ok(Queue::default()),
            Err(error) => Err(trouble(error)),
        }
    }

    /// The line of these children. Strangers among them are reported, once.
    pub(crate) fn queue_of(&self, path: &str, children: Vec<String>) -> Queue {
        let queue = Queue::new(children);
        for stranger in &queue.strangers {
            let stranger = format!("{path}/{stranger}");
            if self.memory().reported.insert(stranger.clone()) {
                tracing::warn!(node = stranger, "a node that Lockkeeper did not make stands among its own");
            }
        }
        queue
    }

    pub(crate) fn wake_waiters(&self, name: &Name) {
        self.wakes.wake(Wake::Changed(Topic::Grants(name.clone())));
    }

    /// Removes the node of an record that is `Leaving`; `false` if that is not certain yet.
    pub(crate) async fn remove_node(&self, contender: ContenderId) -> bool {
        let (session, node, markers) = match self.memory().records.get(&contender) {
            Some(ClaimRecord { session, node, markers, state: ClaimState::Leaving(_), .. }) => {
                (session.clone(), node.clone(), markers.clone())
            }
            _ => return true,
        };
        // Its own session may be suspended while the keeper's is not.
        let client = self.session().unwrap_or(session).client.clone();
        let removing = async {
            match client.delete(&node, None).await {
                Ok(()) | Err(Error::NoNode) => delete_markers(&client, &markers).await,
                Err(error) => Err(error),
            }
        };
        let gone = matches!(tokio::time::timeout(self.limit, removing).await, Ok(Ok(())));
        if gone {
            let record = self.memory().records.remove(&contender);
            drop(record);
        }
        gone
    }
}

/// Replaces the keeper's session whenever it is over, until the keeper ends.
pub(crate) async fn keep_session(keeper: Arc<KeeperState>) {
    loop {
        let Some(session) = keeper.current().clone() else { return };
        session.ended().await;
        *keeper.current() = None;
        keeper.bury(&session);
        drop(session);
        let mut pause = Pause::default();
        loop {
            let opening = keeper.open(keeper.settings.session, None, false);
            match session::within(keeper.settings.session, opening).await {
                Ok(session) => {
                    tracing::info!(?session, "a new session with ZooKeeper");
                    *keeper.current() = Some(session);
                    break;
                }
                Err(error) => tracing::debug!(%error, "no new session yet"),
            }
            pause.pass(&keeper.clock).await;
        }
        keeper.wakes.wake(Wake::Resync);
    }
}

impl KeeperState {
    /// Everything that lived in `session` is lost.
    fn bury(&self, session: &Arc<Session>) {
        let mut memory = self.memory();
        let lost: Vec<ContenderId> = memory
            .records
            .iter()
            .filter(|(_, record)| Arc::ptr_eq(&record.session, session))
            .map(|(contender, _)| *contender)
            .collect();
        let lost: Vec<ClaimRecord> =
            lost.iter().filter_map(|contender| memory.records.remove(contender)).collect();
        drop(memory);
        for record in &lost {
            self.wake_waiters(&record.name);
        }
    }

    /// Marks what has ended.
    fn ended(&self, now: BootTime) -> Ended {
        let mut next = BootTime::NEVER;
        let (mut lost, mut leaving, mut unknown) = (Vec::new(), Vec::new(), Vec::new());
        let mut silent = Vec::new();
        let mut memory = self.memory();
        for record in memory.records.values_mut().filter(|record| record.due() <= now) {
            if !record.session.lives() {
                lost.push(record.session.clone());
                continue;
            }
            match record.state {
                ClaimState::Waiting { .. } => record.leave(Left::LeftQueue),
                ClaimState::Holding(HoldRecord { confirmed, .. }) => {
                    if !confirmed {
                        silent.push(record.name.clone());
                    }
                    record.leave(Left::Released);
                }
                ClaimState::Retired { .. } => record.leave(Left::Released),
                ClaimState::Unknown { .. } | ClaimState::Leaving(_) => {}
            }
        }
        for (contender, record) in &mut memory.records {
            // The keeper did not hear of a grant: its other places would each cost the line as much (I8).
            if matches!(record.state, ClaimState::Waiting { .. }) && silent.contains(&record.name) {
                record.leave(Left::LeftQueue);
            }
            match record.state {
                ClaimState::Leaving(_) => leaving.push(*contender),
                // Nobody asks for it any more.
                ClaimState::Unknown { .. } if record.due() <= now => {
                    unknown.push((*contender, record.name.clone()))
                }
                _ => {}
            }
            next = next.min(record.due());
        }
        Ended { lost, leaving, unknown, next }
    }

    /// Ends what has ended; returns when to look again.
    async fn reap(self: &Arc<Self>) -> BootTime {
        let now = self.now();
        let Ended { lost, leaving, unknown, mut next } = self.ended(now);
        for session in lost {
            self.bury(&session);
        }
        for contender in leaving {
            // Not while a group is removing it: that one would find it gone, and tell its owner that it was not held.
            let _turn = self.turn.lock().await;
            if !self.remove_node(contender).await {
                next = next.min(now.after(AGAIN));
            }
        }
        for (contender, name) in unknown {
            if self.leave_forgotten(&name, contender).await.is_err() {
                // It is overdue, and would be asked for without a pause.
                next = next.max(self.now().after(AGAIN));
            }
        }
        next
    }

    /// Takes the keeper's session away for good.
    pub(crate) fn take_session(&self) -> Option<Arc<Session>> {
        self.current().take()
    }
}

/// Ends leases and places whose time is over, and removes nodes whose removal got no answer.
pub(crate) async fn reap(keeper: Arc<KeeperState>) {
    loop {
        let sooner = keeper.sooner.notified();
        tokio::pin!(sooner);
        sooner.as_mut().enable();
        let next = keeper.reap().await;
        tokio::select! {
            () = keeper.clock.sleep_until(next) => {}
            () = sooner => {}
        }
    }
}
