//! A connection that lasts: it does one piece of work after the other on the keeper's thread, and opens a new session
//! when the last one was lost.
//!
//! Work is never repeated. A caller that goes away harms nothing: its work is finished, or not begun.

use std::{
    future::Future,
    pin::Pin,
    sync::{
        Arc, Mutex, Weak,
        atomic::{AtomicBool, AtomicUsize, Ordering},
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
    sync::{mpsc, oneshot, watch},
    task::JoinHandle,
    time::{Instant, timeout, timeout_at},
};
use tokio_postgres::Config;

use crate::{
    abandoned::Abandoned,
    layout,
    origin::{Header, another_store},
    server::ServerFacts,
    session::{Life, Session},
    settings::{Settings, address},
    trouble,
};

/// How long a session may take to be useful after it is connected. Many keepers that start at once make the tables one
/// after the other.
const SETTLED_WITHIN: Duration = Duration::from_secs(4);

/// Opens sessions of one store, and notices when another server answers.
pub(crate) struct Opener {
    pub(crate) settings: Settings,
    pub(crate) background: Handle,
    pub(crate) wakes: WakeSink,
    known: Mutex<Option<Known>>,
    /// The server of the URL that a session was last opened at.
    last_good: AtomicUsize,
    abandoned: Abandoned,
    /// How many sessions were lost and replaced. Rows that were written without a sync may be gone then.
    losses: watch::Sender<u64>,
}

/// The server as it was last seen.
#[derive(Debug)]
struct Known {
    id: String,
    started: i64,
    timeline: i32,
    /// The sessions that are open there.
    sessions: Vec<Weak<Life>>,
}

impl Known {
    fn is_same_server(&self, facts: &ServerFacts) -> bool {
        (self.started, self.timeline) == (facts.started, facts.timeline)
    }
}

impl Opener {
    pub(crate) fn new(settings: Settings, background: Handle, wakes: WakeSink) -> Self {
        let (known, last_good, losses) = (Mutex::new(None), AtomicUsize::new(0), watch::Sender::new(0));
        Self { settings, background, wakes, known, last_good, abandoned: Abandoned::default(), losses }
    }

    /// Opens a session, and makes the tables if they are not there. Of several servers, the one that was good last is tried
    /// first, and then the others: a server that hangs, or was replaced, does not keep a keeper from its successor.
    pub(crate) async fn open(&self) -> Result<Session, StoreError> {
        let servers = self.settings.drivers.len();
        let first = self.last_good.load(Ordering::Acquire);
        let mut told: Option<StoreError> = None;
        for server in (0..servers).map(|next| (first + next) % servers) {
            match self.open_at(&self.settings.drivers[server]).await {
                Ok(session) => {
                    self.last_good.store(server, Ordering::Release);
                    return Ok(session);
                }
                // An error that does not pass by itself is worth telling.
                Err(error) => told = Some(told.filter(|told| !told.is_passing()).unwrap_or(error)),
            }
        }
        Err(told.unwrap_or_else(trouble::closed))
    }

    async fn open_at(&self, driver: &Config) -> Result<Session, StoreError> {
        let limit = self.settings.connect_limit + SETTLED_WITHIN;
        let greeted_within = match self.settings.drivers.len() {
            1 => limit,
            _ => self.settings.connect_limit * 2,
        };
        let opened = timeout(limit, self.open_in_time(driver, greeted_within)).await;
        opened.unwrap_or_else(|_| Err(trouble::silent(&address(driver))))
    }

    async fn open_in_time(&self, driver: &Config, greeted_within: Duration) -> Result<Session, StoreError> {
        let greeting = async {
            let session = Session::open(&self.settings, driver, &self.background).await?;
            let facts = session.greet().await?;
            Ok::<_, StoreError>((session, facts))
        };
        let greeted = timeout(greeted_within, greeting).await;
        let (mut session, facts) = greeted.map_err(|_| trouble::silent(&address(driver)))??;
        self.abandoned.cancel(&session, &facts).await?;
        let id = layout::settle(&session, &self.settings.schema, &facts.user).await?;
        self.remember(&id, &facts, session.life())?;
        session.set_origin(&facts, id);
        Ok(session)
    }

    /// Takes note of the server that a new session leads to. If another server has taken over, or the same one came
    /// back, the last grants may be lost. So all other sessions are cut, because the old server may live on and grant
    /// the same locks as the new one, and all holds are renewed.
    fn remember(&self, id: &str, facts: &ServerFacts, session: &Arc<Life>) -> Result<(), StoreError> {
        let mut known = support::lock(&self.known);
        let Some(known) = &mut *known else {
            let sessions = vec![Arc::downgrade(session)];
            let (started, timeline) = (facts.started, facts.timeline);
            *known = Some(Known { id: id.to_owned(), started, timeline, sessions });
            return Ok(());
        };
        if known.id != id {
            return Err(another_store());
        }
        if facts.timeline < known.timeline {
            return Err(trouble::replaced());
        }
        if !known.is_same_server(facts) {
            tracing::info!("the server was restarted, or another one has taken over; all holds are renewed");
            (known.started, known.timeline) = (facts.started, facts.timeline);
            known
                .sessions
                .drain(..)
                .filter_map(|session| session.upgrade())
                .for_each(|session| session.cut());
            self.wakes.wake(Wake::Reconfirm);
        }
        known.sessions.retain(|session| session.strong_count() > 0);
        known.sessions.push(Arc::downgrade(session));
        Ok(())
    }

    /// The id that is kept in the store.
    pub(crate) fn id(&self) -> Option<String> {
        support::lock(&self.known).as_ref().map(|known| known.id.clone())
    }
}

/// The error of work that failed, and the state of its session.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) error: StoreError,
    pub(crate) session: After,
}

/// The state of a session after a failure.
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

/// The progress of a piece of work, and the time that it has.
#[derive(Debug)]
pub(crate) struct Progress {
    /// How many commits may have done something: they were sent, and nothing is known to the contrary.
    commits: AtomicUsize,
    /// The number of the last transaction.
    transaction: Mutex<Option<u64>>,
    until: Instant,
    waiting: Arc<AtomicUsize>,
}

impl Progress {
    /// Notes the transaction that has locked something.
    pub(crate) fn works_in(&self, header: &Header) {
        *support::lock(&self.transaction) =
            header.transaction.as_ref().and_then(|number| number.parse().ok());
    }

    /// Notes that a statement goes out that may commit something.
    pub(crate) fn commits(&self) {
        self.commits.fetch_add(1, Ordering::AcqRel);
    }

    /// Notes that the last statement is known to have committed nothing. Others of the same work may have.
    pub(crate) fn nothing_done(&self) {
        self.commits.fetch_sub(1, Ordering::AcqRel);
    }

    fn may_have_committed(&self) -> bool {
        self.commits.load(Ordering::Acquire) > 0
    }

    /// Returns the moment at which a quarter of the time left will have passed. Work that may be left out stops then.
    pub(crate) fn a_part_of_the_rest(&self) -> Instant {
        let now = Instant::now();
        now + self.until.saturating_duration_since(now) / 4
    }

    /// Whether other work waits for this one.
    pub(crate) fn others_wait(&self) -> bool {
        self.waiting.load(Ordering::Acquire) > 0
    }
}

/// The result of a piece of work.
pub(crate) type Worked<T> = Result<T, Failure>;
pub(crate) type Working<T> = Pin<Box<dyn Future<Output = Worked<T>> + Send>>;
type Job =
    Box<dyn FnOnce(Result<Arc<Session>, StoreError>) -> Pin<Box<dyn Future<Output = Ended> + Send>> + Send>;

/// The end of a job, for the session that it had.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Ended {
    /// The session is as good as before.
    Kept,
    /// The session is not used any more.
    Closed,
    /// The server may still be at it, in this transaction if that is known.
    Unanswered(Option<u64>),
}

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
    /// How many jobs are in the queue.
    waiting: Arc<AtomicUsize>,
    works: Arc<AtomicBool>,
    /// When the server last answered.
    answered: Arc<Mutex<Instant>>,
    losses: watch::Receiver<u64>,
    task: Mutex<Option<Background>>,
}

impl Connection {
    /// Makes a connection whose work takes `limit` at most, the time in its queue included.
    pub(crate) fn new(opener: Arc<Opener>, limit: Duration, first: Option<Session>) -> Self {
        let (jobs, queue) = mpsc::unbounded_channel();
        let background = opener.background.clone();
        let (waiting, works) = (Arc::<AtomicUsize>::default(), Arc::new(AtomicBool::new(true)));
        let (losses, answered) = (opener.losses.subscribe(), Arc::new(Mutex::new(Instant::now())));
        let server = Server {
            opener,
            session: first.map(Arc::new),
            was_lost: false,
            opening: None,
            waiting: waiting.clone(),
            works: works.clone(),
            answered: answered.clone(),
        };
        let task = Background::spawn(&background, server.serve(queue));
        Self { jobs, limit, background, waiting, works, answered, losses, task: Mutex::new(Some(task)) }
    }

    /// How long work may take.
    pub(crate) fn limit(&self) -> Duration {
        self.limit
    }

    /// Changes whenever a session of this keeper was lost and replaced.
    pub(crate) fn losses(&self) -> watch::Receiver<u64> {
        self.losses.clone()
    }

    /// Whether there was a session for the last piece of work.
    pub(crate) fn works(&self) -> bool {
        self.works.load(Ordering::Acquire)
    }

    /// How long the server has given no sign of life on it.
    pub(crate) fn quiet_for(&self) -> Duration {
        support::lock(&self.answered).elapsed()
    }

    /// Does `work` on the keeper's thread. It runs to its end even if the caller goes away meanwhile.
    ///
    /// # Errors
    /// The error of the work, or one that says that there was no time for it.
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
        let waiting = self.waiting.clone();
        let job: Job = Box::new(move |session| {
            Box::pin(async move {
                let session = match session {
                    Ok(session) => session,
                    Err(error) => {
                        answer(Err(error));
                        return Ended::Closed;
                    }
                };
                let (commits, transaction) = (AtomicUsize::new(0), Mutex::new(None));
                let progress = Arc::new(Progress { commits, transaction, until, waiting });
                let worked = timeout_at(until, work(session, progress.clone())).await;
                let may_have_committed = progress.may_have_committed();
                let unanswered = Ended::Unanswered(*support::lock(&progress.transaction));
                let (result, ended) = match worked {
                    Ok(Ok(done)) => (Ok(done), Ended::Kept),
                    Ok(Err(Failure { error, session: After::Kept })) => (Err(error), Ended::Kept),
                    Ok(Err(failure)) if may_have_committed => (Err(failure.error), unanswered),
                    Ok(Err(failure)) => (Err(failure.error), Ended::Closed),
                    Err(_) if may_have_committed => (Err(trouble::too_slow()), unanswered),
                    // A statement may still wait, as those that are transactions of their own.
                    Err(_) => (Err(trouble::too_slow().not_applied()), unanswered),
                };
                answer(result);
                ended
            })
        });
        self.waiting.fetch_add(1, Ordering::AcqRel);
        self.jobs.send(Queued { until, is_abandoned, job }).map_err(|_| trouble::closed())
    }
}

/// Does the work of a connection.
struct Server {
    opener: Arc<Opener>,
    session: Option<Arc<Session>>,
    was_lost: bool,
    opening: Option<Opening>,
    waiting: Arc<AtomicUsize>,
    works: Arc<AtomicBool>,
    answered: Arc<Mutex<Instant>>,
}

/// A session that is being opened. That may take longer than a piece of work has time, so it goes on for the next one.
struct Opening(JoinHandle<Result<Session, StoreError>>);

impl Drop for Opening {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Server {
    /// Does one piece of work after the other.
    async fn serve(mut self, mut queue: mpsc::UnboundedReceiver<Queued>) {
        while let Some(Queued { until, is_abandoned, job }) = queue.recv().await {
            self.waiting.fetch_sub(1, Ordering::AcqRel);
            if is_abandoned() {
                continue;
            }
            if Instant::now() >= until {
                // It spent its time in the queue. The session has done nothing wrong.
                job(Err(trouble::too_slow().not_applied())).await;
                continue;
            }
            let session = self.session(until).await;
            self.works.store(session.is_ok(), Ordering::Release);
            let ended = job(session).await;
            if ended == Ended::Kept {
                *support::lock(&self.answered) = Instant::now();
            } else if let Some(session) = self.session.take() {
                if let Ended::Unanswered(transaction) = ended {
                    self.abandon(&session, transaction);
                }
                session.cut();
                self.was_lost = true;
            }
        }
    }

    fn abandon(&self, session: &Session, transaction: Option<u64>) {
        let Opener { settings, background, abandoned, .. } = &*self.opener;
        abandoned.add(session, transaction, &settings.encryption, background);
    }

    /// Returns the session, and opens one if need be.
    async fn session(&mut self, until: Instant) -> Result<Arc<Session>, StoreError> {
        if let Some(session) = self.session.take_if(|session| session.is_closed()) {
            // Its other users lose it too.
            session.cut();
            self.was_lost = true;
        }
        if let Some(session) = &self.session {
            return Ok(session.clone());
        }
        let opener = self.opener.clone();
        let opening =
            self.opening.get_or_insert_with(|| Opening(tokio::spawn(async move { opener.open().await })));
        let opened = match timeout_at(until, &mut opening.0).await {
            Err(_) => return Err(trouble::too_slow().not_applied()),
            Ok(Ok(opened)) => opened,
            Ok(Err(_)) => Err(trouble::closed()),
        };
        self.opening = None;
        let session = Arc::new(opened?);
        if session.is_closed() {
            // It was opened for an earlier piece of work, and lost since.
            return Box::pin(self.session(until)).await;
        }
        self.session = Some(session.clone());
        if std::mem::take(&mut self.was_lost) {
            self.opener.losses.send_modify(|losses| *losses += 1);
        }
        Ok(session)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A server that takes connections and says nothing costs no more time than the URL allows.
    #[tokio::test(start_paused = true)]
    async fn a_silent_server_is_given_up_in_time_and_named() {
        let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let at = silent.local_addr().expect("bound");
        let settings = Settings::parse(&format!("postgres://ada:canary@{at}/shop")).expect("a good URL");
        let limit = settings.connect_limit + SETTLED_WITHIN;
        let opener = Opener::new(settings, Handle::current(), WakeSink::new(|_| {}));
        let started = Instant::now();
        let error = opener.open().await.err().expect("silent");
        assert!(started.elapsed() <= limit + Duration::from_millis(100), "{:?}", started.elapsed());
        assert!(error.to_string().contains(&format!("no answer from {at} in time")), "{error}");
        assert!(!format!("{error:?}").contains("canary") && error.is_passing() && !error.maybe_applied());
    }
}
