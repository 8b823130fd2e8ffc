//! Connects a keeper and closes its connection: the first session, the namespace, the background tasks.

use std::{sync::Arc, time::Duration};

use lockkeeper_core::{
    Capability, StoreError, Survives,
    store::{Connector, Context, Store},
    support::background::Background,
};
use zookeeper_client::{Error, SessionState};

use crate::{
    keeper::KeeperState,
    limits::ServerLimits,
    namespace, reaper, reconnect,
    session::{Purpose, Session, Sessions},
    settings::Settings,
    store::ZooKeeperStore,
    trouble::{config, trouble},
};

/// The abilities of the ZooKeeper store, with the default session.
pub static CAPABILITY: Capability = {
    let mut can = Capability::new("zookeeper");
    can.between_processes = true;
    can.pushes = true;
    can.min_lease = Duration::from_secs(10);
    can.max_lease = Duration::from_secs(366 * 24 * 3600);
    can.lease_per_claim = false;
    can.detachable = true;
    can.counts_permits = true;
    can.group_limit = 256;
    can.client_crash = Survives::Fully;
    can.restart = Survives::Fully;
    can.data_loss = Survives::No;
    can.clock_jump = Survives::Fully;
    can
};

/// Connects a keeper by `settings`.
pub(crate) fn connector(settings: Settings) -> Connector {
    Connector::new(move |context| {
        let connecting = context.background.clone().spawn(connect(settings.clone(), context));
        async move {
            let store = connecting.await.unwrap_or_else(|_| Err(trouble(Error::ClientClosed)))?;
            Ok(Arc::new(store) as Arc<dyn Store>)
        }
    })
}

async fn connect(settings: Settings, context: Context) -> Result<ZooKeeperStore, StoreError> {
    let settings = Arc::new(settings);
    let sessions = Sessions {
        settings: settings.clone(),
        limits: ServerLimits::new(settings.clone()),
        clock: context.clock.clone(),
        background: context.background.clone(),
        wakes: context.wakes.clone(),
    };
    // The client may try a silent server first.
    let limit = context.request_limit.max(settings.session);
    // The keeper tells nobody how long a lock is certain before the servers have said how long they keep sessions. It does
    // not wait much longer for a server that is silent.
    let learning = async {
        drop(tokio::time::timeout(settings.session / 4, sessions.limits.learn(None)).await);
        Ok(())
    };
    let opening = async { tokio::try_join!(open(&sessions, limit), learning) };
    let opened = tokio::time::timeout(limit, opening).await;
    let ((session, id), ()) = match opened.unwrap_or_else(|_| Err(trouble(Error::Timeout))) {
        Ok(opened) => opened,
        Err(error) => return Err(settings.explain(error).await),
    };
    if let Some(reason) = sessions.limits.too_short(session.agreed) {
        return Err(config(reason));
    }
    // If a process dies, its leases end with its session and no earlier.
    let mut capability = CAPABILITY.clone();
    capability.min_lease = session.agreed;
    let keeper = KeeperState::new(sessions, context, session);
    let tasks = [
        keeper.background.spawn(reconnect::run(keeper.clone())),
        keeper.background.spawn(reaper::run(keeper.clone())),
        keeper.background.spawn({
            let keeper = keeper.clone();
            async move { keeper.sweep_answers().await }
        }),
    ];
    let tasks = tasks.map(|task| Background::from(task.abort_handle())).into();
    Ok(ZooKeeperStore::new(id, capability, keeper, tasks))
}

/// Opens the keeper's session and the namespace; the session, and the id of the store.
async fn open(sessions: &Sessions, limit: Duration) -> Result<(Arc<Session>, String), StoreError> {
    let settings = &sessions.settings;
    let session = sessions.open(settings.session, Purpose::Keeper, limit).await?;
    if session.agreed > settings.session {
        return Err(config(format!(
            "these servers keep a session for at least {:?}; write ?session={}ms",
            session.agreed,
            session.agreed.as_millis()
        )));
    }
    let id = namespace::prepare(&session.client, settings).await?;
    Ok((session, id))
}

impl KeeperState {
    /// Closes the keeper's session, after everything was left.
    pub(crate) async fn close(self: &Arc<Self>) {
        let session = self.session();
        if let Ok(session) = &session {
            self.hand_over_retired(session).await;
            self.remove_read_answers(session).await;
        }
        drop(session);
        self.forget_claims();
        let Some(session) = self.replace_session(None) else { return };
        let mut state = session.client.state_watcher();
        session.end();
        drop(session);
        // The client closes the session when its last user has dropped it. The servers then remove the rest of its nodes.
        while !matches!(
            state.state(),
            SessionState::Closed | SessionState::Expired | SessionState::AuthFailed
        ) {
            state.changed().await;
        }
    }

    /// Forgets all claims. Their tasks end.
    fn forget_claims(&self) {
        self.records().claims.clear();
    }

    /// Ends the waiters and the session of a keeper that was dropped without being closed.
    pub(crate) fn abandon(&self) {
        self.forget_claims();
        if let Some(session) = self.replace_session(None) {
            session.end();
        }
    }
}
