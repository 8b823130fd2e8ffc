//! A connection that lasts: it does one piece of work after the other on the keeper's thread, and opens a new session
//! when the last one was lost.
//!
//! Work is never repeated. A caller that goes away harms nothing: its work is finished, or not begun.

use std::{
    future::Future,
    pin::Pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use lockkeeper_core::{
    StoreError,
    store::{Wake, WakeSink},
    support::{self, background::Background},
};
use mysql_async::Opts;
use tokio::{
    runtime::Handle,
    sync::{mpsc, oneshot},
    time::{Instant, timeout, timeout_at},
};

use crate::{
    layout,
    rows::other_store,
    server::ServerFacts,
    session::Session,
    settings::{Encryption, Settings},
    tls, trouble,
};

/// Opens sessions of one store, and notices when another server answers.
pub(crate) struct Opener {
    pub(crate) background: Handle,
    pub(crate) wakes: WakeSink,
    settings: Settings,
    options: Opts,
    prefix: Arc<str>,
    known: Mutex<Option<Known>>,
    /// Grows when another server answers. Sessions of an earlier number are not used any more.
    generation: AtomicU64,
}

/// The server as it was last seen.
#[derive(Clone, Debug)]
struct Known {
    id: Arc<str>,
    facts: ServerFacts,
}

/// A session, and the server that it is of.
#[derive(Clone)]
pub(crate) struct Opened {
    pub(crate) session: Arc<Session>,
    generation: u64,
}

impl Opener {
    /// Reads the files for TLS, if there are any.
    pub(crate) fn new(settings: Settings, background: Handle, wakes: WakeSink) -> Result<Self, StoreError> {
        let driver = settings.driver.clone();
        let options = match &settings.encryption {
            Encryption::None => driver,
            Encryption::Verified(files) => tls::secure(driver, files)?,
        };
        let (options, prefix) = (options.into(), settings.prefix.as_str().into());
        let (known, generation) = (Mutex::new(None), AtomicU64::new(0));
        Ok(Self { background, wakes, settings, options, prefix, known, generation })
    }

    /// Opens a session, and makes the tables if they are not there. It may take as long as connecting may, whatever time
    /// the request has that needs it: the next one finds it open.
    pub(crate) async fn open(&self) -> Result<Opened, StoreError> {
        self.open_within(self.settings.connect_limit).await
    }

    /// The same with more time: many keepers that start at once make the tables together.
    pub(crate) async fn open_first(&self) -> Result<Opened, StoreError> {
        self.open_within(self.settings.connect_limit + Duration::from_secs(8)).await
    }

    async fn open_within(&self, limit: Duration) -> Result<Opened, StoreError> {
        let opening = async {
            let session = Session::open(self.options.clone(), &self.prefix).await?;
            let id = layout::settle(&session, &self.settings).await?;
            let generation = self.remember(Known { id: id.into(), facts: session.facts.clone() })?;
            Ok(Opened { session: Arc::new(session), generation })
        };
        timeout(limit, opening).await.map_err(|_| trouble::too_slow().not_applied())?
    }

    /// All holds are renewed when another server has taken over, or the same one came back: it may have lost the last
    /// grants.
    fn remember(&self, now: Known) -> Result<u64, StoreError> {
        let mut known = support::lock(&self.known);
        match &*known {
            Some(before) if before.id != now.id => return Err(other_store()),
            Some(before) if !before.facts.is_same_run(&now.facts) => {
                tracing::info!(
                    "the server was restarted, or another one has taken over; all holds are renewed"
                );
                self.generation.fetch_add(1, Ordering::AcqRel);
                self.wakes.wake(Wake::Reconfirm);
            }
            _ => {}
        }
        *known = Some(now);
        Ok(self.generation.load(Ordering::Acquire))
    }

    /// The id that is kept in the store.
    pub(crate) fn id(&self) -> Option<Arc<str>> {
        support::lock(&self.known).as_ref().map(|known| known.id.clone())
    }

    fn is_current(&self, opened: &Opened) -> bool {
        opened.generation == self.generation.load(Ordering::Acquire) && !opened.session.is_closed()
    }
}

/// Why work failed, and whether the session can be used on.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) error: StoreError,
    pub(crate) session: After,
}

/// What becomes of a session after a failure.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum After {
    /// It is as good as before.
    Kept,
    /// Its state is not known.
    Closed,
}

impl Failure {
    pub(crate) fn keeps(error: StoreError) -> Self {
        Self { error, session: After::Kept }
    }

    pub(crate) fn closes(error: StoreError) -> Self {
        Self { error, session: After::Closed }
    }

    pub(crate) fn not_applied(self) -> Self {
        Self { error: self.error.not_applied(), ..self }
    }

    pub(crate) fn perhaps_applied(self) -> Self {
        Self { error: self.error.perhaps_applied(), ..self }
    }
}

/// Whether a commit was sent whose answer is not known yet.
#[derive(Debug, Default)]
pub(crate) struct Progress(AtomicBool);

impl Progress {
    /// A packet that commits something goes out now.
    pub(crate) fn commits(&self) {
        self.0.store(true, Ordering::Release);
    }

    /// It is known that nothing was committed.
    pub(crate) fn nothing_done(&self) {
        self.0.store(false, Ordering::Release);
    }

    fn may_have_committed(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

/// How long closing may take.
const GOODBYE: Duration = Duration::from_millis(300);

/// What work comes to.
pub(crate) type Worked<T> = Result<T, Failure>;
pub(crate) type Working<T> = Pin<Box<dyn Future<Output = Worked<T>> + Send>>;
type Job =
    Box<dyn FnOnce(Result<Arc<Session>, StoreError>) -> Pin<Box<dyn Future<Output = After> + Send>> + Send>;

struct Queued {
    until: Instant,
    is_abandoned: Box<dyn Fn() -> bool + Send>,
    job: Job,
}

/// A connection that lasts.
pub(crate) struct Connection {
    /// `None` once it is closed.
    jobs: Mutex<Option<mpsc::UnboundedSender<Queued>>>,
    limit: Duration,
    task: Mutex<Option<(Background, oneshot::Receiver<()>)>>,
}

impl Connection {
    /// A connection whose work takes `limit` at most, the time in its queue included.
    pub(crate) fn new(opener: Arc<Opener>, limit: Duration, first: Option<Opened>) -> Self {
        let (jobs, queue) = mpsc::unbounded_channel();
        let background = opener.background.clone();
        let (end, ended) = oneshot::channel();
        let task = Background::spawn(&background, async move {
            serve(opener, queue, first).await;
            // The store may have been dropped.
            end.send(()).ok();
        });
        Self { jobs: Mutex::new(Some(jobs)), limit, task: Mutex::new(Some((task, ended))) }
    }

    /// Does `work` on the keeper's thread. It runs to its end even if the caller goes away meanwhile.
    ///
    /// # Errors
    /// What the work failed with, or that there was no time for it.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce(Arc<Session>, Arc<Progress>) -> Working<T> + Send + 'static,
    ) -> Result<T, StoreError> {
        let (reply, answer) = oneshot::channel();
        self.send(Instant::now() + self.limit, reply, work)?;
        answer.await.map_err(|_| trouble::closed().perhaps_applied())?
    }

    /// Ends it. Later work is refused. Work that is under way may take a moment more, and the server is told.
    pub(crate) async fn close(&self) {
        drop(support::lock(&self.jobs).take());
        let Some((task, ended)) = support::lock(&self.task).take() else { return };
        drop(timeout(GOODBYE, ended).await);
        drop(task);
    }

    fn send<T: Send + 'static>(
        &self,
        until: Instant,
        reply: oneshot::Sender<Result<T, StoreError>>,
        work: impl FnOnce(Arc<Session>, Arc<Progress>) -> Working<T> + Send + 'static,
    ) -> Result<(), StoreError> {
        let reply = Arc::new(Mutex::new(Some(reply)));
        let waiting = reply.clone();
        let is_abandoned =
            Box::new(move || support::lock(&waiting).as_ref().is_none_or(oneshot::Sender::is_closed));
        let answer = move |result| {
            if let Some(reply) = support::lock(&reply).take() {
                // The caller may have gone.
                drop(reply.send(result));
            }
        };
        let job: Job = Box::new(move |session| {
            Box::pin(async move {
                let session = match session {
                    Ok(session) => session,
                    Err(error) => {
                        answer(Err(error));
                        return After::Kept;
                    }
                };
                let progress = Arc::new(Progress::default());
                let (result, after) = match timeout_at(until, work(session, progress.clone())).await {
                    Ok(Ok(done)) => (Ok(done), After::Kept),
                    Ok(Err(failure)) => (Err(failure.error), failure.session),
                    Err(_) if progress.may_have_committed() => (Err(trouble::too_slow()), After::Closed),
                    Err(_) => (Err(trouble::too_slow().not_applied()), After::Closed),
                };
                answer(result);
                after
            })
        });
        let jobs = support::lock(&self.jobs);
        let jobs = jobs.as_ref().ok_or_else(trouble::closed)?;
        jobs.send(Queued { until, is_abandoned, job }).map_err(|_| trouble::closed())
    }
}

/// Does one piece of work after the other.
async fn serve(opener: Arc<Opener>, mut queue: mpsc::UnboundedReceiver<Queued>, first: Option<Opened>) {
    let mut opened = first;
    while let Some(Queued { until, is_abandoned, job }) = queue.recv().await {
        if is_abandoned() {
            continue;
        }
        opened = opened.filter(|opened| opener.is_current(opened));
        let session = match &opened {
            Some(opened) => Ok(opened.session.clone()),
            None => opener.open().await.map(|new| opened.insert(new).session.clone()),
        };
        // Work whose time has passed says nothing about the session.
        let session = session.and_then(|session| {
            if Instant::now() < until { Ok(session) } else { Err(trouble::too_slow().not_applied()) }
        });
        if job(session).await == After::Closed
            && let Some(opened) = opened.take()
        {
            opened.session.cut();
        }
    }
    if let Some(opened) = opened {
        opened.session.quit().await;
    }
}
