//! A connection that lasts: it does one piece of work after the other on the keeper's thread, and opens a new session
//! when the last one was lost.
//!
//! Work is never repeated. A caller that goes away harms nothing: its work is finished, or not begun.

use std::{
    future::Future,
    pin::Pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use lockkeeper_core::{
    StoreError,
    store::{Wake, WakeSink},
    support::{self, background::Background},
};
use tokio::{
    runtime::Handle,
    sync::{mpsc, oneshot},
    time::{Instant, timeout_at},
};

use crate::{
    layout,
    session::{ServerFacts, Session},
    settings::Settings,
    trouble,
};

/// Opens sessions of one store, and notices when another server answers.
pub(crate) struct Opener {
    pub(crate) settings: Settings,
    pub(crate) background: Handle,
    pub(crate) wakes: WakeSink,
    known: Mutex<Option<Known>>,
}

/// The server as it was last seen.
#[derive(Clone, Debug)]
struct Known {
    id: String,
    facts: ServerFacts,
}

impl Opener {
    pub(crate) fn new(settings: Settings, background: Handle, wakes: WakeSink) -> Self {
        Self { settings, background, wakes, known: Mutex::new(None) }
    }

    /// Opens a session, and makes the tables if they are not there.
    pub(crate) async fn open(
        &self,
        messages: Option<mpsc::UnboundedSender<String>>,
    ) -> Result<Session, StoreError> {
        let session = Session::open(&self.settings, &self.background, messages).await?;
        let facts = session.greet().await?;
        let user = self.settings.driver.get_user().unwrap_or("PUBLIC");
        let id = layout::settle(&session, &self.settings.schema, user).await?;
        self.remember(Known { id, facts })?;
        Ok(session)
    }

    /// All holds are renewed when another server has taken over, or the same one came back: it may have lost the last
    /// grants.
    fn remember(&self, now: Known) -> Result<(), StoreError> {
        let mut known = support::lock(&self.known);
        match &*known {
            Some(before) if before.id != now.id => {
                return Err(trouble::corrupt(
                    "another store answers under this URL: its tables were made anew, or the URL leads elsewhere now; \
                     connect again",
                ));
            }
            Some(before) if before.facts.started != now.facts.started => {
                tracing::info!(
                    "the server was restarted, or another one has taken over; all holds are renewed"
                );
                self.wakes.wake(Wake::Reconfirm);
            }
            _ => {}
        }
        *known = Some(now);
        Ok(())
    }

    /// The id that is kept in the store.
    pub(crate) fn id(&self) -> Option<String> {
        support::lock(&self.known).as_ref().map(|known| known.id.clone())
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
}

/// Whether a commit was sent whose answer is not known yet.
#[derive(Debug, Default)]
pub(crate) struct Progress(AtomicBool);

impl Progress {
    /// A statement that may commit something goes out now.
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

/// What work comes to.
pub(crate) type Worked<T> = Result<T, Failure>;
type Working<T> = Pin<Box<dyn Future<Output = Worked<T>> + Send>>;
type Job =
    Box<dyn FnOnce(Result<Arc<Session>, StoreError>) -> Pin<Box<dyn Future<Output = After> + Send>> + Send>;

struct Queued {
    until: Instant,
    is_abandoned: Box<dyn Fn() -> bool + Send>,
    job: Job,
}

/// A connection that lasts.
pub(crate) struct Connection {
    jobs: mpsc::UnboundedSender<Queued>,
    limit: Duration,
    background: Handle,
    task: Mutex<Option<Background>>,
}

impl Connection {
    /// A connection whose work takes `limit` at most, the time in its queue included.
    pub(crate) fn new(opener: Arc<Opener>, limit: Duration, first: Option<Session>) -> Self {
        let (jobs, queue) = mpsc::unbounded_channel();
        let background = opener.background.clone();
        let task = Background::spawn(&background, serve(opener, queue, first.map(Arc::new)));
        Self { jobs, limit, background, task: Mutex::new(Some(task)) }
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
        let until = Instant::now() + self.limit;
        self.send(until, reply, work)?;
        answer.await.map_err(|_| trouble::closed().perhaps_applied())?
    }

    /// Does `work` some time, unless the store is closed before.
    pub(crate) fn run_detached(
        &self,
        work: impl FnOnce(Arc<Session>, Arc<Progress>) -> Working<()> + Send + 'static,
    ) {
        let until = Instant::now() + self.limit;
        let (reply, answer) = oneshot::channel();
        // Nobody waits for the answer, but the work is not abandoned.
        let kept = async move {
            if let Ok(Err(error)) = answer.await {
                tracing::debug!(%error, "work in the background failed; it is made up for later");
            }
        };
        if self.send(until, reply, work).is_ok() {
            self.background.spawn(kept);
        }
    }

    /// Ends it. Work that is under way is given up, and later work is refused.
    pub(crate) fn close(&self) {
        drop(support::lock(&self.task).take());
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
                        return After::Closed;
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
        self.jobs.send(Queued { until, is_abandoned, job }).map_err(|_| trouble::closed())
    }
}

/// Does one piece of work after the other.
async fn serve(opener: Arc<Opener>, mut queue: mpsc::UnboundedReceiver<Queued>, first: Option<Arc<Session>>) {
    let mut session = first;
    while let Some(Queued { until, is_abandoned, job }) = queue.recv().await {
        if is_abandoned() {
            continue;
        }
        session = session.filter(|session| !session.is_closed());
        let opened = match &session {
            Some(session) => Ok(session.clone()),
            None => match timeout_at(until, opener.open(None)).await {
                Ok(opened) => opened.map(Arc::new),
                Err(_) => Err(trouble::too_slow().not_applied()),
            },
        };
        session = opened.as_ref().ok().cloned();
        if job(opened).await == After::Closed
            && let Some(session) = session.take()
        {
            session.cut();
        }
    }
}
