//! A session: what the nodes of a claim live in, and until when they certainly do.
//!
//! The server ends a session that it has not heard of for its timeout. Heard of means: by the leader.
//! A server that is cut off from its leader still answers pings and reads, so only answers that took
//! the quorum to give move the deadline here. They prove that the leader has heard of the session
//! lately, but not of this very request: the servers tell it once per tick which sessions they heard
//! of. So an answered request counts once another one, sent a tick after that answer, was answered too.

use lockkeeper_core::support;
use std::{
    collections::VecDeque,
    future::Future,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use lockkeeper_core::{
    StoreError,
    clock::{BootTime, Clock},
    deadline::margin,
    store::{Wake, WakeSink},
};
use tokio::{runtime::Handle, sync::watch};
use zookeeper_client::{Client, Error, SessionState, StateWatcher};

use crate::{limits::Limits, memory::Task, settings::Settings, trouble::trouble};

/// A session with ZooKeeper and its deadline.
pub(crate) struct Session {
    pub(crate) client: Client,
    pub(crate) id: i64,
    /// What the server agreed to when it was opened.
    pub(crate) agreed: Duration,
    clock: Clock,
    pulse: Mutex<SessionDeadline>,
    over: watch::Sender<bool>,
    /// What keeps it, and what looks after its limits.
    tasks: Mutex<Vec<Task>>,
    /// How many bytes the paths have that are watched.
    watched: AtomicUsize,
    /// How long an answer is waited for, if not until the session ends.
    patience: Option<Duration>,
}

/// The client asks for its watches again when it has connected again. What does not fit into one such request would
/// cost it the session.
const WATCHES: usize = 100 << 10;

/// The right to watch a path; given back when dropped.
#[derive(Debug)]
pub(crate) struct WatchPermit {
    session: Arc<Session>,
    bytes: usize,
}

impl Drop for WatchPermit {
    fn drop(&mut self) {
        self.session.watched.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// How far the session is known to live.
#[derive(Debug)]
struct SessionDeadline {
    deadline: BootTime,
    /// How long it certainly lasts, whichever server it is with.
    timeout: Duration,
    /// How long it takes the leader to hear of it, at most.
    tick: Duration,
    /// Answered requests that no later one has confirmed yet: when sent, when answered.
    answered: VecDeque<(BootTime, BootTime)>,
}

impl SessionDeadline {
    fn new(sent: BootTime, timeout: Duration, tick: Duration) -> Self {
        Self { deadline: lives_until(sent, timeout), timeout, tick, answered: VecDeque::new() }
    }

    /// A request sent at `sent` was answered now by the quorum.
    fn answered(&mut self, sent: BootTime, now: BootTime) {
        if sent >= self.deadline || now >= self.deadline {
            return;
        }
        while let Some((earlier, answered)) = self.answered.front() {
            if answered.after(self.tick) > sent {
                break;
            }
            self.deadline = self.deadline.max(lives_until(*earlier, self.timeout));
            self.answered.pop_front();
        }
        // One per tenth of a tick is enough, however many requests there are.
        if self.answered.back().is_none_or(|(last, _)| last.after(self.tick / 10) <= sent) {
            self.answered.push_back((sent, now));
        }
    }

    /// It may not last as long as was thought, or be heard of as soon. What was derived from that is corrected.
    /// Says whether anything was.
    fn allow_for(&mut self, limits: Limits) -> bool {
        let shorter = self.timeout.saturating_sub(limits.longest);
        let later = limits.tick.saturating_sub(self.tick);
        self.timeout -= shorter;
        self.tick += later;
        self.deadline = self.deadline.before(shorter + later);
        !(shorter + later).is_zero()
    }
}

fn lives_until(heard: BootTime, timeout: Duration) -> BootTime {
    heard.after(timeout).before(margin(timeout))
}

impl Session {
    /// Opens a session and keeps it alive, on the keeper's own thread.
    pub(crate) async fn open(
        settings: &Settings,
        timeout: Duration,
        patience: Option<Duration>,
        detached: bool,
        clock: &Clock,
        background: &Handle,
        wakes: &WakeSink,
    ) -> Result<Arc<Self>, StoreError> {
        let sent = clock.now();
        let client = settings.open(timeout, detached).await?;
        let agreed = client.session_timeout();
        let session = Arc::new(Self {
            id: client.session_id().0,
            client,
            agreed,
            clock: clock.clone(),
            pulse: Mutex::new(SessionDeadline::new(sent, agreed, settings.tick)),
            over: watch::channel(false).0,
            tasks: Mutex::default(),
            watched: AtomicUsize::new(0),
            patience,
        });
        let news = settings.server_limits.news();
        session.pulse().allow_for(settings.limits());
        let beat = background.spawn(beat(Arc::downgrade(&session), settings.paths.root.clone()));
        let (weak, state) = (Arc::downgrade(&session), session.client.state_watcher());
        let follow = background.spawn(follow(state, settings.clone()));
        let heed = background.spawn(heed(weak, news, settings.clone(), wakes.clone()));
        let tasks = [beat, follow, heed].map(|task| Task(task.abort_handle()));
        support::lock(&session.tasks).extend(tasks);
        Ok(session)
    }

    fn pulse(&self) -> MutexGuard<'_, SessionDeadline> {
        support::lock(&self.pulse)
    }

    /// How long it lasts without a sign of life.
    pub(crate) fn timeout(&self) -> Duration {
        self.pulse().timeout
    }

    /// Until when the server certainly keeps the session.
    pub(crate) fn deadline(&self) -> BootTime {
        self.pulse().deadline
    }

    /// Whether it may still claim and confirm. Past its deadline it never may again.
    pub(crate) fn lives(&self) -> bool {
        let lives = self.clock.now() < self.deadline() && !self.client.state().is_terminated();
        if !lives {
            self.end();
        }
        lives && !*self.over.borrow()
    }

    /// Whether requests go out at once.
    pub(crate) fn is_connected(&self) -> bool {
        self.lives() && self.client.state() == SessionState::SyncConnected
    }

    /// Nothing is claimed or confirmed with it any more.
    pub(crate) fn end(&self) {
        self.over.send_if_modified(|over| !std::mem::replace(over, true));
    }

    /// Resolves when the session is over.
    pub(crate) async fn ended(&self) {
        let mut over = self.over.subscribe();
        // The sender lives as long as this session.
        drop(over.wait_for(|over| *over).await);
    }

    /// The answer to a request, unless the session ends first, or its patience.
    pub(crate) async fn read<T, E: From<Error>>(
        &self,
        answer: impl Future<Output = Result<T, E>>,
    ) -> Result<T, E> {
        tokio::select! {
            biased;
            answer = answer => answer,
            () = self.ended() => Err(Error::SessionExpired.into()),
            () = self.out_of_patience() => Err(Error::Timeout.into()),
        }
    }

    async fn out_of_patience(&self) {
        match self.patience {
            Some(patience) => tokio::time::sleep(patience).await,
            None => std::future::pending().await,
        }
    }

    /// The right to watch `path`, unless very many are watched already.
    pub(crate) fn may_watch(self: &Arc<Self>, path: &str) -> Option<WatchPermit> {
        self.may_watch_up_to(WATCHES, path)
    }

    /// The right to watch `path`, which one could do without, unless many are watched already.
    pub(crate) fn may_also_watch(self: &Arc<Self>, path: &str) -> Option<WatchPermit> {
        self.may_watch_up_to(WATCHES / 2, path)
    }

    fn may_watch_up_to(self: &Arc<Self>, most: usize, path: &str) -> Option<WatchPermit> {
        let bytes = path.len();
        let more = |watched: usize| (watched + bytes <= most).then_some(watched + bytes);
        self.watched.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).ok()?;
        Some(WatchPermit { session: self.clone(), bytes })
    }

    /// The time just before a request is sent.
    pub(crate) fn now(&self) -> BootTime {
        self.clock.now()
    }

    /// The answer to a request that needs the quorum and was sent at `sent`: success proves that the
    /// session lives.
    pub(crate) async fn write<T, E: From<Error>>(
        &self,
        sent: BootTime,
        answer: impl Future<Output = Result<T, E>>,
    ) -> Result<T, E> {
        let answer = self.read(answer).await?;
        self.pulse().answered(sent, self.clock.now());
        if self.lives() { Ok(answer) } else { Err(Error::SessionExpired.into()) }
    }

    /// Asks the quorum whether the session and the node `path` are there. Sent at once, so that it may go out behind
    /// another request.
    pub(crate) fn check(&self, path: &str) -> impl Future<Output = Result<(), Error>> + Send + use<'_> {
        let sent = self.now();
        let checked = self.client.new_check_writer(path, None).map(|check| check.commit());
        self.write(sent, async {
            match checked?.await {
                Ok(_) => Ok(()),
                Err(zookeeper_client::CheckWriteError::CheckFailed { source }) => Err(source),
                Err(error) => Err(error.into()),
            }
        })
    }
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "session {:#x}", self.id)
    }
}

/// Keeps moving the deadline; when it passes, or the server says so, the session is over.
async fn beat(session: std::sync::Weak<Session>, root: String) {
    loop {
        let Some(session) = session.upgrade() else { return };
        let (clock, period) = (session.clock.clone(), (session.timeout() / 8).max(Duration::from_millis(10)));
        let next = clock.now().after(period);
        tokio::select! {
            biased;
            () = session.ended() => return,
            result = session.check(&root) => {
                if let Err(error) = result {
                    tracing::debug!(?session, %error, "a sign of life got no answer");
                }
            }
            // The client may wait for a connection until long after the deadline.
            () = clock.sleep_until(session.deadline()) => {}
        }
        if !session.lives() {
            tracing::warn!(?session, "the session is over");
            return;
        }
        drop(session);
        clock.sleep_until(next).await;
    }
}

/// Asks how long the session lasts whenever that may have changed: each server that it moves to has limits of its own.
async fn follow(mut state: StateWatcher, settings: Settings) {
    let mut since = None;
    loop {
        settings.learn_limits(since).await;
        while state.changed().await != SessionState::SyncConnected {
            if state.peek_state().is_terminated() {
                return;
            }
        }
        since = Some(Instant::now());
    }
}

/// Allows for what the servers tell. Whoever holds something may have been told a later end than is certain now: so
/// everything is renewed at once.
async fn heed(
    session: std::sync::Weak<Session>,
    mut news: watch::Receiver<()>,
    settings: Settings,
    wakes: WakeSink,
) {
    while news.changed().await.is_ok() {
        let Some(session) = session.upgrade() else { return };
        let earlier = session.pulse().allow_for(settings.limits());
        if earlier {
            wakes.wake(Wake::Reconfirm);
        }
    }
}

/// Opens a session, but not for longer than `limit`.
pub(crate) async fn within<T>(
    limit: Duration,
    opening: impl Future<Output = Result<T, StoreError>>,
) -> Result<T, StoreError> {
    match tokio::time::timeout(limit, opening).await {
        Ok(opened) => opened,
        Err(_) => Err(trouble(Error::Timeout)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: BootTime = BootTime(1_000_000_000_000);
    const TICK: Duration = Duration::from_secs(2);
    const TIMEOUT: Duration = Duration::from_secs(10);

    fn at(seconds: u64) -> BootTime {
        START.after(Duration::from_secs(seconds))
    }

    fn pulse() -> SessionDeadline {
        SessionDeadline::new(START, TIMEOUT, TICK)
    }

    #[test]
    fn i3_an_answer_counts_once_a_tick_later_another_is_answered() {
        let mut pulse = pulse();
        pulse.answered(at(3), at(4));
        pulse.answered(at(5), at(5));
        assert_eq!(pulse.deadline, lives_until(START, TIMEOUT), "nobody told the leader yet, perhaps");
        pulse.answered(at(6), at(6));
        assert_eq!(pulse.deadline, lives_until(at(3), TIMEOUT));
    }

    #[test]
    fn i3_nothing_sent_or_answered_past_the_deadline_extends_it() {
        let mut pulse = pulse();
        pulse.answered(at(1), at(1));
        pulse.answered(at(9), at(11));
        pulse.answered(at(11), at(11));
        assert_eq!(pulse.deadline, lives_until(START, TIMEOUT));
    }

    #[test]
    fn i3_a_session_that_became_shorter_ends_earlier() {
        let mut pulse = pulse();
        pulse.answered(at(1), at(1));
        pulse.answered(at(3), at(3));
        assert_eq!(pulse.deadline, lives_until(at(1), TIMEOUT));
        let (longest, tick) = (TIMEOUT / 2, TICK * 2);
        pulse.allow_for(Limits { longest, tick });
        assert!(pulse.deadline <= lives_until(at(1), longest).before(TICK));
        let before = pulse.deadline;
        pulse.answered(at(3), at(3));
        assert_eq!(pulse.deadline, before, "two of the ticks that were counted with before");
        pulse.allow_for(Limits { longest: TIMEOUT, tick: TICK });
        assert_eq!((pulse.timeout, pulse.tick), (longest, tick), "some server has these limits");
    }
}
