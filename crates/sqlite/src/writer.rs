//! The writer: the one thread of a keeper that talks to SQLite, and the line of work before it.

use lockkeeper_core::support;
use std::{
    collections::VecDeque,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread,
    time::Duration,
};

use lockkeeper_core::{StoreError, StoreErrorKind};
use tokio::sync::oneshot;

use crate::{
    database::Database,
    ticket::{Ticket, Urgency},
    trouble::busy,
};

/// A piece of work for the writer.
type Action = Box<dyn FnOnce(&mut Database) + Send>;

/// The way to a keeper's writer. When it is dropped, the thread does what is in line and ends.
#[derive(Debug)]
pub(crate) struct Writer {
    backlog: Arc<Backlog>,
    limit: Duration,
    file: String,
    over: Mutex<Option<oneshot::Receiver<()>>>,
}

#[derive(Default)]
struct Backlog {
    actions: Mutex<Actions>,
    arrived: Condvar,
}

#[derive(Default)]
struct Actions {
    waiting: VecDeque<Action>,
    ended: bool,
}

impl std::fmt::Debug for Backlog {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Backlog")
    }
}

impl Backlog {
    fn lock(&self) -> MutexGuard<'_, Actions> {
        support::lock(&self.actions)
    }

    fn next(&self) -> Option<Action> {
        let mut actions = self.lock();
        loop {
            if let Some(action) = actions.waiting.pop_front() {
                return Some(action);
            }
            if actions.ended {
                return None;
            }
            actions = self.arrived.wait(actions).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// The thread's end of the line: when it ends, even by a panic, nobody waits for an answer.
struct CloseOnExit {
    backlog: Arc<Backlog>,
    /// Dropped last of all, when the file is closed.
    _over: oneshot::Sender<()>,
}

impl Drop for CloseOnExit {
    fn drop(&mut self) {
        let mut actions = self.backlog.lock();
        actions.ended = true;
        let unanswered = std::mem::take(&mut actions.waiting);
        drop(actions);
        drop(unanswered);
    }
}

/// Gives up when the asker stops waiting, however that comes.
struct GiveUpOnDrop(Ticket);

impl Drop for GiveUpOnDrop {
    fn drop(&mut self) {
        self.0.give_up();
    }
}

impl Writer {
    /// Starts the thread, which opens the file; the answer is what `open` gave beside it.
    pub(crate) async fn start<T: Send + 'static>(
        file: String,
        limit: Duration,
        open: impl FnOnce() -> Result<(Database, T), StoreError> + Send + 'static,
    ) -> Result<(Self, T), StoreError> {
        let backlog = Arc::new(Backlog::default());
        let (opened, is_opened) = oneshot::channel();
        let (is_over, over) = oneshot::channel();
        let work = {
            let ending = CloseOnExit { backlog: backlog.clone(), _over: is_over };
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
                while let Some(action) = ending.backlog.next() {
                    action(&mut database);
                }
            }
        };
        // Made before the thread, so that a connect that is given up ends it too.
        let writer = Self { backlog, limit, file, over: Mutex::new(Some(over)) };
        thread::Builder::new().name("lockkeeper-sqlite".into()).spawn(work).map_err(|error| {
            StoreError::new(StoreErrorKind::Config, "the store's thread could not be started")
                .with_source(error)
        })?;
        let beside = is_opened.await.unwrap_or_else(|_| Err(ended()))?;
        Ok((writer, beside))
    }

    /// Has `work` done; nobody waits for it.
    pub(crate) fn send(&self, urgency: Urgency, work: impl FnOnce(&mut Database) + Send + 'static) {
        let mut actions = self.backlog.lock();
        if actions.ended {
            return;
        }
        match urgency {
            Urgency::Usual => actions.waiting.push_back(Box::new(work)),
            Urgency::First => actions.waiting.push_front(Box::new(work)),
        }
        drop(actions);
        self.backlog.arrived.notify_one();
    }

    /// Has `work` done and waits for its answer, a little less long than a request may take: here
    /// it is known whether the work was begun.
    pub(crate) async fn ask<T: Send + 'static>(
        &self,
        urgency: Urgency,
        work: impl FnOnce(&mut Database, &Ticket) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let asker = GiveUpOnDrop(Ticket::new());
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
        self.backlog.lock().ended = true;
        self.backlog.arrived.notify_one();
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
