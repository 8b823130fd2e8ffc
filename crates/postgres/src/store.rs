//! The store: its abilities, and its side of the `Store` trait.

use std::{
    fmt,
    sync::{Arc, Mutex},
    time::Duration,
};

use lockkeeper_core::{
    Capability, Name, StoreError, StoreErrorKind, Survives,
    store::{
        Admit, Admitted, Answer, Answers, BoxFuture, Count, CountAction, Counted, Evict, Evicted, LatchPage,
        ListQuery, Member, Page, Renew, Renewed, Reply, Request, ResourceView, Store, Topic, Watch,
    },
    support::{self, background::Background},
};

use tokio::time::Instant;

use crate::{
    connection::{Connection, Worked, Working},
    counts,
    flights::LockWait,
    groups::Group,
    own::Own,
    wakes::Listener,
    watching::Subscription,
};

/// How long a waiter goes without asking; the first in the queue asks twice in that time. So both of its polls come
/// within the three seconds that a pushed grant lasts if its message was lost. And polls are so rare that the waiters
/// of one process cost the server less than a request a second, renewals and signs of life included.
const ASKS_AGAIN: Duration = Duration::from_millis(2600);

/// The abilities of the PostgreSQL store.
pub static CAPABILITY: Capability = {
    let mut can = Capability::new("postgres");
    can.between_processes = true;
    can.pushes = true;
    can.asks_again = ASKS_AGAIN;
    can.min_lease = Duration::from_millis(100);
    can.max_lease = Duration::from_secs(366 * 24 * 3600);
    can.detachable = true;
    can.counts_permits = true;
    can.may_be_member = true;
    can.group_limit = 256;
    can.client_crash = Survives::Fully;
    can.restart = Survives::Fully;
    can.data_loss = Survives::WithFence;
    can.clock_jump = Survives::WithFence;
    can
};

/// One keeper's connections to a store.
pub(crate) struct PostgresStore {
    pub(crate) url: Arc<str>,
    pub(crate) id: String,
    pub(crate) own: Own,
    /// Groups, and reads. Nothing on it waits for others for long.
    pub(crate) requests: Arc<Connection>,
    pub(crate) renewals: Connection,
    /// Work that may have to wait for a row: requests asked again alone, latches, fences. The listener hears on it.
    pub(crate) waits: Arc<Connection>,
    pub(crate) listener: Arc<Listener>,
    pub(crate) background: tokio::runtime::Handle,
    pub(crate) sweep: Mutex<Option<Background>>,
}

impl fmt::Debug for PostgresStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostgresStore").field("url", &self.url).finish_non_exhaustive()
    }
}

impl PostgresStore {
    /// Does work on a connection.
    pub(crate) async fn work<T, F>(
        &self,
        connection: &Connection,
        wait: LockWait,
        work: impl FnOnce(Group) -> F + Send + 'static,
    ) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: Future<Output = Worked<T>> + Send + 'static,
    {
        let own = self.own.clone();
        let work =
            move |session, progress| -> Working<T> { Box::pin(work(Group { session, progress, own, wait })) };
        connection.run(work).await
    }

    /// Does work that waits for nobody, or briefly.
    pub(crate) async fn request<T, F>(
        &self,
        work: impl FnOnce(Group) -> F + Send + 'static,
    ) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: Future<Output = Worked<T>> + Send + 'static,
    {
        self.work(&self.requests, LockWait::Brief, work).await
    }

    /// Does work that may have to wait for a row.
    pub(crate) async fn wait<T, F>(
        &self,
        work: impl FnOnce(Group) -> F + Send + 'static,
    ) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: Future<Output = Worked<T>> + Send + 'static,
    {
        self.work(&self.waits, LockWait::Whole, work).await
    }

    /// Does work that only a user's call waits for. Work that loses against others is tried again for most of the time
    /// of a request: nobody else repeats it, and nothing was done.
    async fn call<T, F>(&self, work: impl Fn(Group) -> F + Clone + Send + 'static) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: Future<Output = Worked<T>> + Send + 'static,
    {
        let until = Instant::now() + self.waits.limit().mul_f32(0.8);
        loop {
            match self.wait(work.clone()).await {
                Err(error)
                    if error.kind() == StoreErrorKind::Conflict
                        && !error.maybe_applied()
                        && Instant::now() < until => {}
                done => return done,
            }
        }
    }
}

impl Store for PostgresStore {
    fn capability(&self) -> &Capability {
        &CAPABILITY
    }

    fn url(&self) -> &Arc<str> {
        &self.url
    }

    fn id(&self) -> &str {
        &self.id
    }

    fn apply<'a>(&'a self, group: &'a [Request]) -> Reply<'a, Answers<Answer>> {
        let requests: Arc<[Request]> = group.into();
        Box::pin(self.request(move |group| group.apply(requests)))
    }

    fn apply_alone<'a>(&'a self, group: &'a [Request]) -> Reply<'a, Answers<Answer>> {
        let requests: Arc<[Request]> = group.into();
        Box::pin(self.wait(move |group| group.apply(requests)))
    }

    fn renew<'a>(&'a self, leases: &'a [Renew]) -> Reply<'a, Answers<Renewed>> {
        let leases: Arc<[Renew]> = leases.into();
        Box::pin(self.work(&self.renewals, LockWait::Whole, move |group| group.renew(leases)))
    }

    fn watch<'a>(&'a self, topic: &'a Topic) -> Reply<'a, Option<Watch>> {
        Box::pin(async move {
            let interest = self.listener.interest().await;
            if matches!(topic, Topic::Grants(_)) {
                return Ok(Some(Watch::new(interest)));
            }
            let (waits, background) = (&self.waits, &self.background);
            let subscription =
                Subscription::start(waits, background, self.own.clone(), topic.clone(), interest).await?;
            Ok(Some(Watch::new(subscription)))
        })
    }

    fn inspect<'a>(&'a self, name: &'a Name) -> Reply<'a, Option<ResourceView>> {
        let name = name.clone();
        Box::pin(self.request(move |group| group.inspect(name)))
    }

    fn list<'a>(&'a self, query: &'a ListQuery) -> Reply<'a, Page> {
        let query = query.clone();
        Box::pin(self.request(move |group| group.list(query)))
    }

    fn latches<'a>(&'a self, query: &'a ListQuery) -> Reply<'a, LatchPage> {
        let query = query.clone();
        Box::pin(self.request(move |group| counts::latches(group.session, query)))
    }

    fn evict<'a>(&'a self, order: &'a Evict) -> Reply<'a, Evicted> {
        let order = order.clone();
        Box::pin(self.call(move |group| group.evict(order.clone())))
    }

    fn count<'a>(&'a self, count: &'a Count) -> Reply<'a, Answers<Counted>> {
        let count = count.clone();
        Box::pin(async move {
            if count.action == CountAction::Read {
                // A look that needs a commit, which may wait for a replica, must not keep other requests waiting.
                let look = count.clone();
                if let Some(answers) = self.request(|group| async move { group.look(&look).await }).await? {
                    return Ok(answers);
                }
            }
            self.call(move |group| group.count(count.clone())).await
        })
    }

    fn fence<'a>(&'a self, admit: &'a Admit) -> Reply<'a, Admitted> {
        let admit = admit.clone();
        Box::pin(self.call(move |group| group.fence(admit.clone())))
    }

    fn member(&self) -> Option<&dyn Member> {
        Some(self)
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        drop(support::lock(&self.sweep).take());
        self.listener.close();
        self.renewals.close();
        self.waits.close();
        self.requests.close();
        Box::pin(std::future::ready(()))
    }
}
