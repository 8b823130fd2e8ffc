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
    connection::{Connection, WorkQueue, Worked, Working},
    groups::Group,
    own::Own,
    statements::LockWait,
};

/// The abilities of the MariaDB and MySQL store. It is tested with MariaDB 10.11, and not with MySQL.
pub static CAPABILITY: Capability = {
    let mut can = Capability::new("mysql");
    can.between_processes = true;
    can.pushes = false;
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
pub(crate) struct MySqlStore {
    pub(crate) url: Arc<str>,
    pub(crate) own: Own,
    /// Groups, reads and polls. Nothing on it waits for others for long.
    pub(crate) requests: Arc<Connection>,
    pub(crate) renewals: Connection,
    /// Work that may have to wait for a row: requests that are asked again alone, latches, fences.
    pub(crate) waits: Connection,
    /// Polls and sweeps.
    pub(crate) tasks: Mutex<Vec<Background>>,
}

impl fmt::Debug for MySqlStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MySqlStore").field("url", &self.url).finish_non_exhaustive()
    }
}

impl MySqlStore {
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

    /// Does work that a user's call waits for by itself, and that may have to wait for a row. Work that loses against
    /// others waits in the queue again for most of the time of a request: nobody else repeats it, and nothing was done.
    async fn call<T, F>(&self, work: impl Fn(Group) -> F + Clone + Send + 'static) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: Future<Output = Worked<T>> + Send + 'static,
    {
        let until = Instant::now() + self.waits.limit().mul_f32(0.8);
        loop {
            let (own, work) = (self.own.clone(), work.clone());
            let work = move |session, progress| -> Working<T> {
                Box::pin(work(Group { session, progress, own, wait: LockWait::Whole }))
            };
            match self.waits.run_in(WorkQueue::Calls, work).await {
                Err(error)
                    if error.kind() == StoreErrorKind::Conflict
                        && !error.maybe_applied()
                        && Instant::now() < until => {}
                done => return done,
            }
        }
    }
}

impl Store for MySqlStore {
    fn capability(&self) -> &Capability {
        &CAPABILITY
    }

    fn url(&self) -> &Arc<str> {
        &self.url
    }

    fn id(&self) -> &str {
        &self.own.id
    }

    fn apply<'a>(&'a self, group: &'a [Request]) -> Reply<'a, Answers<Answer>> {
        let requests: Arc<[Request]> = group.into();
        Box::pin(self.request(move |group| group.apply(requests)))
    }

    fn apply_alone<'a>(&'a self, group: &'a [Request]) -> Reply<'a, Answers<Answer>> {
        let requests: Arc<[Request]> = group.into();
        Box::pin(self.work(&self.waits, LockWait::Whole, move |group| group.apply(requests)))
    }

    fn renew<'a>(&'a self, leases: &'a [Renew]) -> Reply<'a, Answers<Renewed>> {
        let leases: Arc<[Renew]> = leases.into();
        Box::pin(self.work(&self.renewals, LockWait::Whole, move |group| group.renew(leases)))
    }

    fn watch<'a>(&'a self, topic: &'a Topic) -> Reply<'a, Option<Watch>> {
        // A waiter is polled for from its first claim on.
        let watched = !matches!(topic, Topic::Grants(_));
        let watch = watched.then(|| Watch::new(self.own.waits.watch(topic.clone())));
        Box::pin(std::future::ready(Ok(watch)))
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
        Box::pin(self.request(move |group| group.latches(query)))
    }

    fn evict<'a>(&'a self, order: &'a Evict) -> Reply<'a, Evicted> {
        let order = order.clone();
        Box::pin(self.call(move |group| group.evict(order.clone())))
    }

    fn count<'a>(&'a self, count: &'a Count) -> Reply<'a, Answers<Counted>> {
        let count = count.clone();
        Box::pin(async move {
            match count.action {
                CountAction::Read => self.request(move |group| group.count(count)).await,
                _ => self.call(move |group| group.count(count.clone())).await,
            }
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
        support::lock(&self.tasks).clear();
        Box::pin(async {
            tokio::join!(self.renewals.close(), self.waits.close(), self.requests.close());
        })
    }
}
