//! The writer: the one thread of a keeper that uses SQLite, and the backlog of actions before it.
//!
//! SQLite blocks, so no task of a runtime ever calls it.

use std::{
    collections::VecDeque,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread,
    time::Duration,
};

use lockkeeper_core::{StoreError, StoreErrorKind, support};
use tokio::sync::oneshot;

use crate::{
    database::Database,
    ticket::{Ticket, Urgency},
    trouble::busy,
};

/// A piece of work for the writer, on the database.
type Action = Box<dyn FnOnce(&mut Database) + Send>;

/// A keeper's handle of its writer. When it is dropped, the thread empties the backlog and ends.
#[derive(Debug)]
pub(crate) struct Writer {
    backlog: Arc<Backlog>,
    limit: Duration,
    /// The path of the file, as errors show it.
    file: String,
    /// Closed when the thread has closed the file.
    over: Mutex<Option<oneshot::Receiver<()>>>,
}

/// Actions that the thread has not begun.
#[derive(Default)]
struct Backlog {
    actions: Mutex<Actions>,
    arrived: Condvar,
}

#[derive(Default)]
struct Actions {
    waiting: VecDeque<Action>,
    /// Whether no more actions are taken.
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

    /// Waits for the next action; `None` once the backlog has ended and is empty.
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

/// Ends the backlog when the thread ends, even by a panic, so that nobody waits for an answer in vain.
struct CloseOnExit {
    backlog: Arc<Backlog>,
    /// Dropped after everything else, when the file is closed.
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

/// Gives up when the request's future is done or dropped.
struct GiveUpOnDrop(Ticket);

impl Drop for GiveUpOnDrop {
    fn drop(&mut self) {
        self.0.give_up();
    }
}

impl Writer {
    /// Starts the thread, which opens the database; returns the value that `open` returned beside it.
    pub(crate) async fn start<T: Send + 'static>(
        file: String,
        limit: Duration,
        open: impl FnOnce() -> Result<(Database, T), StoreError> + Send + 'static,
    ) -> Result<(Self, T), StoreError> {
        let backlog = Arc::new(Backlog::default());
        let (opened, is_opened) = oneshot::channel();
        let (is_over, over) = oneshot::channel();
        let run = {
            let exit = CloseOnExit { backlog: backlog.clone(), _over: is_over };
            move || {
                // Declared before the database, so dropped after it.
                let exit = exit;
                let mut database = match open() {
                    Err(error) => {
                        // The caller may have given up.
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
                while let Some(action) = exit.backlog.next() {
                    action(&mut database);
                    // The action has sent its answer, so nobody waits for this.
                    database.checkpoint_if_due();
                }
            }
        };
        // Made before the thread starts, so that dropping this future ends the thread too.
        let writer = Self { backlog, limit, file, over: Mutex::new(Some(over)) };
        thread::Builder::new().name("lockkeeper-sqlite".into()).spawn(run).map_err(|error| {
            StoreError::new(StoreErrorKind::Config, "the store's thread could not be started")
                .with_source(error)
        })?;
        let beside = is_opened.await.unwrap_or_else(|_| Err(ended()))?;
        Ok((writer, beside))
    }

    /// Adds an action to the backlog, and does not wait for it.
    pub(crate) fn send(&self, urgency: Urgency, action: impl FnOnce(&mut Database) + Send + 'static) {
        let mut actions = self.backlog.lock();
        if actions.ended {
            return;
        }
        match urgency {
            Urgency::Usual => actions.waiting.push_back(Box::new(action)),
            Urgency::First => actions.waiting.push_front(Box::new(action)),
        }
        drop(actions);
        self.backlog.arrived.notify_one();
    }

    /// Adds an action to the backlog and waits for its answer, a little shorter than the request limit: only here it is
    /// known whether the action has begun.
    pub(crate) async fn ask<T: Send + 'static>(
        &self,
        urgency: Urgency,
        action: impl FnOnce(&mut Database, &Ticket) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let request = GiveUpOnDrop(Ticket::new());
        let ticket = request.0.clone();
        let (reply, answer) = oneshot::channel();
        self.send(urgency, move |database| {
            // The caller may have given up meanwhile.
            drop(reply.send(action(database, &ticket)));
        });
        match tokio::time::timeout(self.limit - self.limit / 10, answer).await {
            Ok(answer) => answer.unwrap_or_else(|_| Err(ended())),
            Err(_) if request.0.give_up() => {
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

    fn end_backlog(&self) {
        self.backlog.lock().ended = true;
        self.backlog.arrived.notify_one();
    }

    /// Lets the thread empty the backlog and end; waits until the file is closed.
    pub(crate) async fn end(&self) {
        self.end_backlog();
        let over = support::lock(&self.over).take();
        if let Some(over) = over {
            // After the limit the thread ends later, by itself.
            drop(tokio::time::timeout(self.limit, over).await);
        }
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.end_backlog();
    }
}

fn ended() -> StoreError {
    StoreError::new(StoreErrorKind::Unreachable, "the store's thread has ended; connect anew")
}
