//! The events that were logged at WARN on this thread, one row for each.

use std::cell::RefCell;

use tracing::Level;

thread_local! {
    static LOGGED: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
}

pub(crate) struct Log;

impl Log {
    /// Forgets the events that were logged before.
    pub(crate) fn listen() -> Self {
        lockkeeper_testkit::log::listen(
            |metadata| *metadata.level() == Level::WARN && metadata.target().starts_with("lockkeeper"),
            |row| LOGGED.with_borrow_mut(|logged| logged.push(row.to_owned())),
        );
        Self.forget();
        Self
    }

    pub(crate) fn forget(&self) {
        LOGGED.take();
    }

    /// The rows with these words, in order.
    pub(crate) fn with(&self, words: &str) -> Vec<String> {
        LOGGED.with_borrow(|logged| logged.iter().filter(|row| row.contains(words)).cloned().collect())
    }

    pub(crate) fn all(&self) -> Vec<String> {
        self.with("")
    }
}
