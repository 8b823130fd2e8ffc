//! The store: every request becomes a task on the keeper's own thread, so that dropping its future
//! leaves nothing half done.

use lockkeeper_core::support;
use std::{
    fmt,
    future::Future,
    sync::{Arc, Mutex},
    time::Duration,
};

use lockkeeper_core::{
    Capability, KeeperId, Name, StoreError, Survives,
    store::{
        Admit, Admitted, Answer, Answers, BoxFuture, Connector, Context, Count, Counted, Evict, Evicted,
        ListQuery, Page, Renew, Renewed, Reply, Request, ResourceView, Store, Topic, Watch,
    },
};
use zookeeper_client::{Client, CreateMode, Error, MultiReadResult};

use crate::{
    keeper::{self, KeeperState},
    layout::FOLDERS,
    memory::Task,
    session::{self, Session},
    settings::{Settings, config},
    trouble::{corrupt, trouble},
};

/// The version of the layout.
const LAYOUT: u32 = 1;

/// What the ZooKeeper store can do, with the default session.
pub static CAPABILITY: Capability = {
    let mut can = Capability::new("zookeeper");
    can.between_processes = true;
    can.pushes = true;
    can.min_lease = Duration::from_secs(10);
    can.max_lease = Duration::from_secs(366 * 24 * 3600);
    can.lease_per_claim = false;
    can.detachable = true;
    can.group_limit = 256;
    can.client_crash = Survives::Fully;
    can.restart = Survives::Fully;
    can.data_loss = Survives::No;
    can.clock_jump = Survives::Fully;
    can
};

/// Connects a keeper to `settings`.
pub(crate) fn connector(settings: Settings) -> Connector {
    Connector::new(move |context| async move {
        Ok(Arc::new(ZooKeeperStore::connect(settings, context).await?) as Arc<dyn Store>)
    })
}

/// One keeper's connection.
struct ZooKeeperStore {
    url: Arc<str>,
    id: String,
    capability: Capability,
    keeper: Arc<KeeperState>,
    tasks: Mutex<Vec<Task>>,
}

impl fmt::Debug for ZooKeeperStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.url)
    }
}

impl ZooKeeperStore {
    async fn connect(settings: Settings, context: Context) -> Result<Self, StoreError> {
        let background = context.background.clone();
        let connected = background.spawn(async move {
            // A server that is silent may be tried first.
            let limit = context.request_limit.max(settings.session);
            let opening = async {
                let Context { clock, background, wakes, .. } = &context;
                let open = Session::open(&settings, settings.session, None, false, clock, background, wakes);
                let session = match open.await {
                    Ok(session) => session,
                    Err(error) => return Err(settings.explain(error).await),
                };
                if session.agreed > settings.session {
                    return Err(config(format!(
                        "these servers keep a session for at least {:?}; write ?session={}ms",
                        session.agreed,
                        session.agreed.as_millis()
                    )));
                }
                let id = prepare(&session.client, &settings).await?;
                Ok((session, id))
            };
            // Nobody is told how long a lock is certain before the servers have said how long they keep sessions. One that
            // is silent does not say, and is not waited for much longer.
            let learning = async {
                drop(tokio::time::timeout(settings.session / 4, settings.learn_limits(None)).await);
                Ok(())
            };
            let opening = async { tokio::try_join!(opening, learning) };
            let ((session, id), ()) = session::within(limit, opening).await?;
            if let Some(reason) = settings.too_short(session.agreed) {
                return Err(config(reason));
            }
            // Shorter than a session nothing ends if its process dies.
            let mut capability = CAPABILITY.clone();
            capability.min_lease = session.agreed;
            let keeper = KeeperState::new(settings, context, session);
            let mut tasks = Vec::new();
            let mut spawn = |task| tasks.push(Task(task));
            spawn(keeper.background.spawn(keeper::keep_session(keeper.clone())).abort_handle());
            spawn(keeper.background.spawn(keeper::reap(keeper.clone())).abort_handle());
            let sweeper = keeper.clone();
            spawn(keeper.background.spawn(async move { sweeper.sweep().await }).abort_handle());
            let url = Arc::from(keeper.settings.shown.as_str());
            Ok(Self { url, id, capability, keeper, tasks: Mutex::new(tasks) })
        });
        connected.await.unwrap_or_else(|_| Err(trouble(Error::ClientClosed)))
    }

    /// Does `work` on the keeper's own thread. Whoever asked may go: it is done all the same.
    fn ask<'a, T, F>(&'a self, work: impl FnOnce(Arc<KeeperState>) -> F) -> Reply<'a, T>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, StoreError>> + Send + 'static,
    {
        let task = self.keeper.background.spawn(work(self.keeper.clone()));
        Box::pin(async move { task.await.unwrap_or_else(|_| Err(trouble(Error::ClientClosed))) })
    }
}

impl KeeperState {
    async fn sweep(&self) {
        if let Ok(session) = self.session()
            && let Err(error) = self.sweep_answers(&session).await
        {
            tracing::debug!(%error, "old answers were not swept");
        }
    }
}

/// Makes the namespace if it is not there; its id.
async fn prepare(client: &Client, settings: &Settings) -> Result<String, StoreError> {
    let root = &settings.paths.root;
    let options = CreateMode::Persistent.with_acls(settings.acls());
    let make = async |path: &str, data: &[u8]| -> Result<(), StoreError> {
        if client.check_stat(path).await.map_err(trouble)?.is_some() {
            return Ok(());
        }
        match client.create(path, data, &options).await {
            Ok(_) | Err(Error::NodeExists) => Ok(()),
            Err(error) => Err(trouble(error)),
        }
    };
    for (end, _) in root.match_indices('/').skip(1) {
        make(&root[..end], b"").await?;
    }
    make(root, format!("lockkeeper {LAYOUT} {}", KeeperId::random()).as_bytes()).await?;
    let data = read(client, root).await?;
    let text = String::from_utf8_lossy(&data);
    let mut words = text.split(' ');
    let head = (words.next(), words.next().and_then(|version| version.parse::<u32>().ok()), words.next());
    let (Some("lockkeeper"), Some(version), Some(id)) = head else {
        return Err(corrupt(format!("{root} belongs to something else; choose another namespace")));
    };
    if version > LAYOUT {
        return Err(corrupt(format!(
            "{root} has layout {version}, and this program knows {LAYOUT}; update it or choose another namespace"
        )));
    }
    let id = format!("zookeeper-{id}");
    for folder in FOLDERS {
        make(&settings.paths.folder(folder), b"").await?;
    }
    Ok(id)
}

/// What stands at `path`, read as renewals read: servers before 3.6 cannot, and say so here rather than then.
async fn read(client: &Client, path: &str) -> Result<Vec<u8>, StoreError> {
    let mut reader = client.new_multi_reader();
    reader.add_get_data(path).map_err(trouble)?;
    match reader.commit().await.map_err(trouble)?.pop() {
        Some(MultiReadResult::Data { data, .. }) => Ok(data),
        Some(MultiReadResult::Error { err }) => Err(trouble(err)),
        _ => Err(corrupt("ZooKeeper answered fewer reads than it was asked")),
    }
}

impl Store for ZooKeeperStore {
    fn capability(&self) -> &Capability {
        &self.capability
    }

    fn url(&self) -> &Arc<str> {
        &self.url
    }

    fn id(&self) -> &str {
        &self.id
    }

    fn shorter_leases(&self) -> Option<&str> {
        Some(
            "leases rest on a session here: add ?session= and &tick= to the URL, where the servers' tickTime allows it",
        )
    }

    fn apply<'a>(&'a self, group: &'a [Request]) -> Reply<'a, Answers<Answer>> {
        let group = group.to_vec();
        self.ask(async move |keeper| keeper.apply(&group).await)
    }

    fn renew<'a>(&'a self, leases: &'a [Renew]) -> Reply<'a, Answers<Renewed>> {
        let leases = leases.to_vec();
        self.ask(async move |keeper| keeper.renew(&leases).await)
    }

    fn watch<'a>(&'a self, topic: &'a Topic) -> Reply<'a, Option<Watch>> {
        if matches!(topic, Topic::Grants(_)) {
            return Box::pin(std::future::ready(Ok(None)));
        }
        let topic = topic.clone();
        self.ask(async move |keeper| {
            let (ready, armed) = tokio::sync::oneshot::channel();
            let task = keeper.background.spawn(keeper.clone().tell(topic, ready));
            let task = Task(task.abort_handle());
            armed.await.map_err(|_| trouble(Error::ClientClosed))??;
            Ok(Some(Watch::new(task)))
        })
    }

    fn inspect<'a>(&'a self, name: &'a Name) -> Reply<'a, Option<ResourceView>> {
        let name = name.clone();
        self.ask(async move |keeper| {
            let session = keeper.session()?;
            keeper.inspect(&session, &name).await
        })
    }

    fn list<'a>(&'a self, query: &'a ListQuery) -> Reply<'a, Page> {
        let query = query.clone();
        self.ask(async move |keeper| {
            let session = keeper.session()?;
            keeper.list(&session, &query).await
        })
    }

    fn evict<'a>(&'a self, order: &'a Evict) -> Reply<'a, Evicted> {
        let order = order.clone();
        self.ask(async move |keeper| {
            let session = keeper.session()?;
            keeper.evict(&session, &order).await
        })
    }

    fn count<'a>(&'a self, count: &'a Count) -> Reply<'a, Answers<Counted>> {
        let count = count.clone();
        self.ask(async move |keeper| {
            let session = keeper.session()?;
            keeper.count(&session, &count).await
        })
    }

    fn fence<'a>(&'a self, admit: &'a Admit) -> Reply<'a, Admitted> {
        let admit = admit.clone();
        self.ask(async move |keeper| {
            let session = keeper.session()?;
            keeper.fence(&session, &admit).await
        })
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        let tasks = std::mem::take(&mut *support::lock(&self.tasks));
        let closed = self.ask(async move |keeper| {
            let limit = keeper.limit;
            // First of all: one of them replaces a session that is over.
            drop(tasks);
            // What is not done within the limit ends with its session.
            drop(tokio::time::timeout(limit, keeper.close()).await);
            Ok(())
        });
        Box::pin(async move { drop(closed.await) })
    }
}

impl Drop for ZooKeeperStore {
    fn drop(&mut self) {
        self.keeper.abandon();
    }
}
