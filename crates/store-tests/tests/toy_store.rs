//! A store by somebody else: the worked example of "Adding a store, step by step" in `CONTRIBUTING.md`, with the same
//! numbers. The server is a thread behind a channel. The store does not push, uses only the public API of
//! `lockkeeper-core`, and passes both suites.

use std::{
    process::ExitCode,
    sync::{Arc, mpsc},
    thread,
    time::{Duration, Instant, SystemTime},
};

use lockkeeper_core::{
    Capability, KeeperId, Name, StoreError, StoreErrorKind, Survives,
    model::{Effects, Model, Now},
    store::{
        Admit, Admitted, Answer, Answers, BoxFuture, Connector, Count, Counted, Evict, Evicted, LatchPage,
        ListQuery, Page, Renew, Renewed, Reply, Request, ResourceView, Store, StoreTime, Topic, Watch,
    },
};
use lockkeeper_store_tests::{run, trials};
use tokio::sync::oneshot;

/// Step 1: the abilities of the store, and the failures that it survives.
static CAPABILITY: Capability = {
    let mut can = Capability::new("toy");
    can.min_lease = Duration::from_millis(100);
    can.detachable = true;
    can.counts_permits = true;
    can.may_be_member = true;
    can.group_limit = 16;
    can.client_crash = Survives::NotApplicable;
    can.restart = Survives::NotApplicable;
    can.data_loss = Survives::NotApplicable;
    can.clock_jump = Survives::Fully;
    can
};

/// Step 2: the home of the state, which makes its transitions happen one after another. Here it is a thread that owns
/// the model and works off one job at a time.
struct Server {
    model: Model,
    started: Instant,
}

type Job = Box<dyn FnOnce(&mut Server) + Send>;

impl Server {
    /// Starts a server; it ends with the last sender of its channel.
    fn start() -> mpsc::Sender<Job> {
        let (sender, jobs) = mpsc::channel::<Job>();
        thread::spawn(move || {
            let mut server = Self { model: Model::default(), started: Instant::now() };
            for job in jobs {
                job(&mut server);
            }
        });
        sender
    }

    /// Step 3: the store's clock. Leases run on one that never jumps; the wall clock is only the
    /// ground of grant numbers.
    fn now(&self) -> Now {
        let micros = |span: Duration| u64::try_from(span.as_micros()).unwrap_or(u64::MAX);
        let wall = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        Now { lease: StoreTime(micros(self.started.elapsed())), wall: micros(wall) }
    }

    /// Runs a step of the model for each request, all at one moment. The effects list the grants and changes to push,
    /// and this store pushes nothing.
    fn each<R, T>(
        &mut self,
        requests: &[R],
        step: impl Fn(&mut Model, Now, &R, &mut Effects) -> T,
    ) -> Answers<T> {
        let now = self.now();
        let step = |request| step(&mut self.model, now, request, &mut Effects::default());
        Answers { now: now.lease, each: requests.iter().map(step).collect() }
    }
}

/// Step 4: one keeper's connection.
#[derive(Debug)]
struct Toy {
    url: Arc<str>,
    id: Arc<str>,
    jobs: mpsc::Sender<Job>,
}

impl Toy {
    /// Sends a job and waits for its answer. Without an answer nobody knows whether it was done,
    /// and `Unreachable` says so: the engine asks again with the same id.
    fn ask<'a, T: Send + 'static>(
        &self,
        job: impl FnOnce(&mut Server) -> T + Send + 'static,
    ) -> Reply<'a, T> {
        let gone = || StoreError::new(StoreErrorKind::Unreachable, "the toy's thread has ended; start anew");
        let (sender, answer) = oneshot::channel();
        // The caller may have stopped waiting for the answer.
        let job: Job = Box::new(move |server| drop(sender.send(job(server))));
        let sent = self.jobs.send(job).map_err(|_| gone().not_applied());
        Box::pin(async move {
            sent?;
            answer.await.map_err(|_| gone())
        })
    }
}

/// Step 5: the trait. Every call is a job; the model does the rest.
impl Store for Toy {
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
        let group = group.to_vec();
        self.ask(move |server| server.each(&group, Model::apply))
    }

    fn renew<'a>(&'a self, leases: &'a [Renew]) -> Reply<'a, Answers<Renewed>> {
        let leases = leases.to_vec();
        self.ask(move |server| server.each(&leases, Model::renew))
    }

    /// Step 6: without push there is nothing to subscribe to, and waiters ask again.
    fn watch<'a>(&'a self, _topic: &'a Topic) -> Reply<'a, Option<Watch>> {
        Box::pin(async { Ok(None) })
    }

    fn inspect<'a>(&'a self, name: &'a Name) -> Reply<'a, Option<ResourceView>> {
        let name = name.clone();
        self.ask(move |server| server.model.inspect(server.now(), &name))
    }

    fn list<'a>(&'a self, query: &'a ListQuery) -> Reply<'a, Page> {
        let query = query.clone();
        self.ask(move |server| server.model.list(server.now(), &query))
    }

    fn latches<'a>(&'a self, query: &'a ListQuery) -> Reply<'a, LatchPage> {
        let query = query.clone();
        self.ask(move |server| server.model.latches(&query))
    }

    fn evict<'a>(&'a self, order: &'a Evict) -> Reply<'a, Evicted> {
        let order = order.clone();
        self.ask(move |server| {
            let now = server.now();
            server.model.evict(now, &order, &mut Effects::default())
        })
    }

    fn count<'a>(&'a self, count: &'a Count) -> Reply<'a, Answers<Counted>> {
        let count = count.clone();
        self.ask(move |server| {
            let now = server.now();
            Answers { now: now.lease, each: vec![server.model.count(now, &count)] }
        })
    }

    fn fence<'a>(&'a self, admit: &'a Admit) -> Reply<'a, Admitted> {
        let admit = admit.clone();
        self.ask(move |server| server.model.fence(&admit))
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        Box::pin(async {})
    }
}

/// Step 7: the connector, which is all that the rest of the world sees of a store.
fn connector(jobs: &mpsc::Sender<Job>, id: &Arc<str>) -> Connector {
    let (jobs, id) = (jobs.clone(), id.clone());
    Connector::new(move |_context| {
        let toy = Toy { url: "toy:".into(), id: id.clone(), jobs: jobs.clone() };
        std::future::ready(Ok(Arc::new(toy) as Arc<dyn Store>))
    })
}

/// Step 8: the behaviour suite and refinement, as a test target of its own (`harness = false`).
fn main() -> ExitCode {
    let (jobs, id) = (Server::start(), Arc::from(format!("toy-{}", KeeperId::random())));
    run(trials(move || connector(&jobs, &id)))
}
