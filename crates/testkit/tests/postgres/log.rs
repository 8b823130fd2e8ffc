//! The events that stores write to the log.

use std::sync::Mutex;

use lockkeeper_core::support;

static SAID: Mutex<String> = Mutex::new(String::new());

/// Listens to warnings from now on.
pub(crate) fn listen() {
    let wanted = |metadata: &tracing::Metadata<'_>| {
        *metadata.level() <= tracing::Level::WARN && metadata.target().starts_with("lockkeeper_postgres")
    };
    lockkeeper_testkit::log::listen(wanted, |row| {
        let mut said = support::lock(&SAID);
        said.push_str(row);
        said.push('\n');
    });
}

/// Whether something was said with these words.
pub(crate) fn has(words: &str) -> bool {
    support::lock(&SAID).contains(words)
}
