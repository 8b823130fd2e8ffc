//! A connection that lasts: it does one piece of work after the other on the keeper's thread, and opens a new session
//! when the last one was lost.
//!
//! Work is never repeated. A caller that goes away harms nothing: its work is finished, or not begun.

use std::{
    future::Future,
    pin::Pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, AtomicUsize, Ordering},
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
    codec::another_store,
    layout,
    server::ServerFacts,
    session::Session,
    settings::{Encryption, Settings, address},
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

    /// Opens a session, and makes the tables if they are not there. It may take as long as connecting may, even if the
    /// request that needs it has less time: the next one finds it open.
    pub(crate) async fn open(&self) -> Result<Opened, StoreError> {
        self.open_within(self.settings.connect_limit).await
    }

    /// Does the same with more time: many keepers that start at once make the tables together.
    pub(crate) async fn open_first(&self) -> Result<Opened, StoreError> {
        self.open_within(self.settings.connect_limit * 2 + Duration::from_secs(8)).await
    }

    async fn open_within(&self, limit: Duration) -> Result<Opened, StoreError> {
        let silent = |_| trouble::silent(&address(&self.options));
        let opening = async {
            // A server that says nothing does not get the time that tables may take, but on a busy machine some more.
            let greeting = Session::open(self.options.clone(), &self.prefix);
            let session = timeout(self.settings.connect_limit * 2, greeting).await.map_err(silent)??;
            let id = layout::settle(&session, &self.settings).await?;
            let generation = self.remember(Known { id: id.into(), facts: session.facts.clone() })?;
            Ok(Opened { session: Arc::new(session), generation })
        };
        timeout(limit, opening).await.map_err(silent)?
    }

    /// Notes the server, and returns the number of the generation. All holds are renewed when another server has taken
    /// over, or the same one came back: it may have lost the last grants.
    fn remember(&self, now: Known) -> Result<u64, StoreError> {
        let mut known = support::lock(&self.known);
        match &*known {
            Some(before) if before.id != now.id => return Err(another_store()),
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

/// The error of failed work, and whether the session can be used on.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) error: StoreError,
    pub(crate) session: After,
}

/// The fate of a session after a failure.
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

/// The number of commits of a piece of work that may have done something.
#[derive(Debug, Default)]
pub(crate) struct Progress(AtomicUsize);

impl Progress {
    /// Notes that a packet that commits something goes out now.
    pub(crate) fn commits(&self) {
        self.0.fetch_add(1, Ordering::AcqRel);
    }

    /// Notes that the last commit did nothing. Others of the same work may have.
    pub(crate) fn nothing_done(&self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }

    fn may_have_committed(&self) -> bool {
        self.0.load(Ordering::Acquire) > 0
    }
}

/// The queue that work waits in. The two queues are served in turn, so that neither holds the other up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum WorkQueue {
    /// Work for the requests of an engine, of which there may be many.
    Requests,
    /// Work that a user's call waits for by itself.
    Calls,
}

/// A connection that was idle for so long is tried before it is used: the server may have ended it.
const IDLE: Duration = Duration::from_secs(1);
/// How long the server may take for that.
const ALIVE_WITHIN: Duration = Duration::from_millis(500);

/// How long closing may take.
const GOODBYE: Duration = Duration::from_millis(300);

/// The result of a piece of work.
pub(crate) type Worked<T> = Result<T, Failure>;
pub(crate) type Working<T> = Pin<Box<dyn Future<Output = Worked<T>> + Send>>;
type Job =
    Box<dyn FnOnce(Result<Arc<Session>, StoreError>) -> Pin<Box<dyn Future<Output = After> + Send>> + Send>;

struct Queued {
    until: Instant,
    is_abandoned: Box<dyn Fn() -> bool + Send>,
    job: Job,
}

/// The two queues.
struct Senders {
    requests: mpsc::UnboundedSender<Queued>,
    calls: mpsc::UnboundedSender<Queued>,
}

struct Queues {
    requests: mpsc::UnboundedReceiver<Queued>,
    calls: mpsc::UnboundedReceiver<Queued>,
    /// The queue that is served first now.
    next: WorkQueue,
}

impl Queues {
    fn new() -> (Senders, Self) {
        let (requests, more_requests) = mpsc::unbounded_channel();
        let (calls, more_calls) = mpsc::unbounded_channel();
        let queues = Self { requests: more_requests, calls: more_calls, next: WorkQueue::Requests };
        (Senders { requests, calls }, queues)
    }

    /// The next piece of work; `None` once the connection is closed.
    async fn next(&mut self) -> Option<Queued> {
        let (queue, queued) = match self.next {
            WorkQueue::Requests => tokio::select! {
                biased;
                Some(queued) = self.requests.recv() => (WorkQueue::Requests, Some(queued)),
                Some(queued) = self.calls.recv() => (WorkQueue::Calls, Some(queued)),
                else => (WorkQueue::Requests, None),
            },
            WorkQueue::Calls => tokio::select! {
                biased;
                Some(queued) = self.calls.recv() => (WorkQueue::Calls, Some(queued)),
                Some(queued) = self.requests.recv() => (WorkQueue::Requests, Some(queued)),
                else => (WorkQueue::Calls, None),
            },
        };
        self.next = match queue {
            WorkQueue::Requests => WorkQueue::Calls,
            WorkQueue::Calls => WorkQueue::Requests,
        };
        queued
    }
}

/// A connection that lasts.
pub(crate) struct Connection {
    /// `None` once it is closed.
    jobs: Mutex<Option<Senders>>,
    limit: Duration,
    task: Mutex<Option<(Background, oneshot::Receiver<()>)>>,
}

impl Connection {
    /// A connection whose work takes `limit` at most, the time in its queue included.
    pub(crate) fn new(opener: Arc<Opener>, limit: Duration, first: Option<Opened>) -> Self {
        let (jobs, queues) = Queues::new();
        let background = opener.background.clone();
        let (end, ended) = oneshot::channel();
        let task = Background::spawn(&background, async move {
            serve(opener, queues, first).await;
            // The store may have been dropped.
            end.send(()).ok();
        });
        Self { jobs: Mutex::new(Some(jobs)), limit, task: Mutex::new(Some((task, ended))) }
    }

    /// Returns how long work may take.
    pub(crate) fn limit(&self) -> Duration {
        self.limit
    }

    /// Does `work` on the keeper's thread. It runs to its end even if the caller goes away meanwhile.
    ///
    /// # Errors
    /// The error of the work, or one that says that there was no time for it.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce(Arc<Session>, Arc<Progress>) -> Working<T> + Send + 'static,
    ) -> Result<T, StoreError> {
        self.run_in(WorkQueue::Requests, work).await
    }

    /// Does the same in one of the two queues.
    pub(crate) async fn run_in<T: Send + 'static>(
        &self,
        queue: WorkQueue,
        work: impl FnOnce(Arc<Session>, Arc<Progress>) -> Working<T> + Send + 'static,
    ) -> Result<T, StoreError> {
        let (reply, answer) = oneshot::channel();
        self.send(queue, Instant::now() + self.limit, reply, work)?;
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
        queue: WorkQueue,
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
        let jobs = match queue {
            WorkQueue::Requests => &jobs.requests,
            WorkQueue::Calls => &jobs.calls,
        };
        jobs.send(Queued { until, is_abandoned, job }).map_err(|_| trouble::closed())
    }
}

/// Does one piece of work after the other.
async fn serve(opener: Arc<Opener>, mut queues: Queues, first: Option<Opened>) {
    let (mut opened, mut used) = (first, Instant::now());
    while let Some(Queued { until, is_abandoned, job }) = queues.next().await {
        if is_abandoned() {
            continue;
        }
        opened = opened.filter(|opened| opener.is_current(opened));
        if let Some(idle) = opened.take_if(|_| used.elapsed() > IDLE) {
            // A request would fail that nobody repeats, although only this connection is at fault.
            match timeout(ALIVE_WITHIN, idle.session.run("DO 0")).await {
                Ok(Ok(_)) => opened = Some(idle),
                _ => idle.session.cut(),
            }
        }
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
        used = Instant::now();
    }
    if let Some(opened) = opened {
        opened.session.quit().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_commit_that_did_nothing_does_not_undo_one_before_it() {
        let progress = Progress::default();
        assert!(!progress.may_have_committed());
        progress.commits();
        progress.nothing_done();
        assert!(!progress.may_have_committed());
        progress.commits();
        progress.commits();
        progress.nothing_done();
        assert!(progress.may_have_committed());
    }

    /// A server that takes connections and says nothing does not get the time that tables may take.
    #[tokio::test(start_paused = true)]
    async fn a_silent_server_is_given_up_in_time_and_named() {
        let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = silent.local_addr().expect("bound");
        let settings = Settings::parse(&format!("mysql://ada:canary@{address}/shop")).expect("a good URL");
        let limit = settings.connect_limit * 2;
        let opener = Opener::new(settings, Handle::current(), WakeSink::new(|_| {})).expect("no files");
        let started = Instant::now();
        let error = opener.open_first().await.err().expect("silent");
        assert!(started.elapsed() <= limit + Duration::from_millis(100), "{:?}", started.elapsed());
        let told = error.to_string();
        assert!(told.contains(&format!("no answer from {address} in time")), "{told}");
        assert!(!format!("{error:?}").contains("canary") && error.is_passing() && !error.maybe_applied());
    }

    #[tokio::test]
    async fn neither_queue_holds_the_other_up() {
        let (senders, mut queues) = Queues::new();
        let queued = |queue| {
            let until = Instant::now();
            let job: Job = Box::new(|_| Box::pin(std::future::ready(After::Kept)));
            let jobs = if queue == WorkQueue::Calls { &senders.calls } else { &senders.requests };
            assert!(
                jobs.send(Queued { until, is_abandoned: Box::new(move || queue == WorkQueue::Calls), job })
                    .is_ok()
            );
        };
        (0..9).for_each(|_| queued(WorkQueue::Requests));
        queued(WorkQueue::Calls);
        let mut is_call = async || queues.next().await.is_some_and(|queued| (queued.is_abandoned)());
        assert_eq!([is_call().await, is_call().await, is_call().await], [false, true, false]);
        drop(senders);
        let mut rest = 0;
        while queues.next().await.is_some() {
            rest += 1;
        }
        assert_eq!(rest, 7, "what is queued is done before the end");
    }
}
