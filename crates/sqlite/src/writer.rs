//! The writer: the one thread of a keeper that talks to SQLite, and the line of work before it.

use lockkeeper_core::support;
use std::{
    collections::VecDeque,
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU8, Ordering},
    },
    thread,
    time::Duration,
};

use lockkeeper_core::{StoreError, StoreErrorKind};
use tokio::sync::oneshot;

use crate::{database::Database, trouble::busy};

/// A piece of work for the writer.
type Job = Box<dyn FnOnce(&mut Database) + Send>;

/// The way to a keeper's writer. When it is dropped, the thread does what is in line and ends.
#[derive(Debug)]
pub(crate) struct Writer {
    line: Arc<Line>,
    limit: Duration,
    file: String,
    over: Mutex<Option<oneshot::Receiver<()>>>,
}

#[derive(Default)]
struct Line {
    jobs: Mutex<Jobs>,
    arrived: Condvar,
}

#[derive(Default)]
struct Jobs {
    waiting: VecDeque<Job>,
    ended: bool,
}

impl std::fmt::Debug for Line {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Line")
    }
}

impl Line {
    fn lock(&self) -> MutexGuard<'_, Jobs> {
        support::lock(&self.jobs)
    }

    fn next(&self) -> Option<Job> {
        let mut jobs = self.lock();
        loop {
            if let Some(job) = jobs.waiting.pop_front() {
                return Some(job);
            }
            if jobs.ended {
                return None;
            }
            jobs = self.arrived.wait(jobs).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// The thread's end of the line: when it ends, even by a panic, nobody waits for an answer.
struct Ending {
    line: Arc<Line>,
    /// Dropped last of all, when the file is closed.
    _over: oneshot::Sender<()>,
}

impl Drop for Ending {
    fn drop(&mut self) {
        let mut jobs = self.line.lock();
        jobs.ended = true;
        let unanswered = std::mem::take(&mut jobs.waiting);
        drop(jobs);
        drop(unanswered);
    }
}

/// A request's way through the line: begun at most once, and not after its asker gave up.
#[derive(Clone, Debug)]
pub(crate) struct Ticket(Arc<AtomicU8>);

const WAITING: u8 = 0;
const BEGUN: u8 = 1;
const GIVEN_UP: u8 = 2;

impl Ticket {
    pub(crate) fn new() -> Self {
        Self(Arc::new(AtomicU8::new(WAITING)))
    }

    /// The writer has the file to itself and begins. False: nobody waits for it any more.
    pub(crate) fn begin(&self) -> bool {
        self.0.compare_exchange(WAITING, BEGUN, Ordering::AcqRel, Ordering::Acquire) != Err(GIVEN_UP)
    }

    /// The asker gives up. True: it was not begun and never will be.
    fn give_up(&self) -> bool {
        self.0.compare_exchange(WAITING, GIVEN_UP, Ordering::AcqRel, Ordering::Acquire) != Err(BEGUN)
    }
}

/// Gives up when the asker stops waiting, however that comes.
struct Asker(Ticket);

impl Drop for Asker {
    fn drop(&mut self) {
        self.0.give_up();
    }
}

/// Which work goes first.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Urgency {
    /// In order of arrival.
    Usual,
    /// Before the others: renewals, whose leases run out meanwhile.
    First,
}

impl Writer {
    /// Starts the thread, which opens the file; the answer is what `open` gave beside it.
    pub(crate) async fn start<T: Send + 'static>(
        file: String,
        limit: Duration,
        open: impl FnOnce() -> Result<(Database, T), StoreError> + Send + 'static,
    ) -> Result<(Self, T), StoreError> {
        let line = Arc::new(Line::default());
        let (opened, is_opened) = oneshot::channel();
        let (is_over, over) = oneshot::channel();
        let work = {
            let ending = Ending { line: line.clone(), _over: is_over };
            move || {
                // Declared before the file, so dropped after it.
                let ending = ending;
                let mut database = match open() {
                    Err(error) => {
                        // Whoever connects may have given up.
                        drop(opened.send(Err(error)));
                        return;
                    }
                    Ok((database, beside)) => {
                        if opened.send(Ok(beside)).is_err() {
                            return;
                        }
                        database
                    }
                };
                while let Some(job) = ending.line.next() {
                    job(&mut database);
                }
            }
        };
        // Made before the thread, so that a connect that is given up ends it too.
        let writer = Self { line, limit, file, over: Mutex::new(Some(over)) };
        thread::Builder::new().name("lockkeeper-sqlite".into()).spawn(work).map_err(|error| {
            StoreError::new(StoreErrorKind::Config, "the store's thread could not be started")
                .with_source(error)
        })?;
        let beside = is_opened.await.unwrap_or_else(|_| Err(ended()))?;
        Ok((writer, beside))
    }

    /// Has `work` done; nobody waits for it.
    pub(crate) fn send(&self, urgency: Urgency, work: impl FnOnce(&mut Database) + Send + 'static) {
        let mut jobs = self.line.lock();
        if jobs.ended {
            return;
        }
        match urgency {
            Urgency::Usual => jobs.waiting.push_back(Box::new(work)),
            Urgency::First => jobs.waiting.push_front(Box::new(work)),
        }
        drop(jobs);
        self.line.arrived.notify_one();
    }

    /// Has `work` done and waits for its answer, a little less long than a request may take: here
    /// it is known whether the work was begun.
    pub(crate) async fn ask<T: Send + 'static>(
        &self,
        urgency: Urgency,
        work: impl FnOnce(&mut Database, &Ticket) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let asker = Asker(Ticket::new());
        let ticket = asker.0.clone();
        let (reply, answer) = oneshot::channel();
        self.send(urgency, move |database| {
            // The asker may have given up meanwhile.
            drop(reply.send(work(database, &ticket)));
        });
        match tokio::time::timeout(self.limit - self.limit / 10, answer).await {
            Ok(answer) => answer.unwrap_or_else(|_| Err(ended())),
            Err(_) if asker.0.give_up() => {
                Err(StoreError::new(StoreErrorKind::Conflict, busy(&self.file)).not_applied())
            }
            Err(_) => Err(StoreError::new(
                StoreErrorKind::Unreachable,
                format!(
                    "writing to {} takes too long; check its disk, or raise the request limit",
                    self.file
                ),
            )),
        }
    }
}

impl Writer {
    fn no_more(&self) {
        self.line.lock().ended = true;
        self.line.arrived.notify_one();
    }

    /// Lets the thread do what is in line, then end; waits until the file is closed.
    pub(crate) async fn end(&self) {
        self.no_more();
        let over = support::lock(&self.over).take();
        if let Some(over) = over {
            // Past the limit the thread ends by itself, later.
            drop(tokio::time::timeout(self.limit, over).await);
        }
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.no_more();
    }
}

fn ended() -> StoreError {
    StoreError::new(StoreErrorKind::Unreachable, "the store's thread has ended; connect anew")
}
