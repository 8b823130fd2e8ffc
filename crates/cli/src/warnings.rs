//! Passes warnings of the library on to the user: outages always, and what a store finds risky about its servers if
//! somebody watches. Each is said once.

use std::{
    collections::BTreeSet,
    fmt::Debug,
    io::{IsTerminal, stderr},
    sync::Mutex,
};

use lockkeeper::support;
use tracing::{Event, Level, Metadata, Subscriber, field, span, subscriber};

use crate::text;

/// What the command says better itself.
const SAID_ANYWAY: [&str; 2] = ["lock lost", "eviction ordered"];

/// Says warnings from now on.
pub(crate) fn listen(verbose: bool) {
    let warnings = Warnings { checks: verbose || stderr().is_terminal(), said: Mutex::default() };
    // Nobody else sets one in this program.
    drop(subscriber::set_global_default(warnings));
}

struct Warnings {
    /// Whether to pass on what a store finds risky: not in a cron job, which would mail it after every run.
    checks: bool,
    said: Mutex<BTreeSet<String>>,
}

/// The parts of an event that people need.
#[derive(Default)]
struct Parts {
    message: String,
    server: String,
    error: String,
}

impl field::Visit for Parts {
    fn record_debug(&mut self, field: &field::Field, value: &dyn Debug) {
        let part = match field.name() {
            "message" => &mut self.message,
            "server" => &mut self.server,
            "error" => &mut self.error,
            _ => return,
        };
        *part = format!("{value:?}");
    }

    fn record_str(&mut self, field: &field::Field, value: &str) {
        self.record_debug(field, &format_args!("{value}"));
    }
}

impl Subscriber for Warnings {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        let core = metadata.target().starts_with("lockkeeper_core");
        *metadata.level() <= Level::WARN
            && metadata.is_event()
            && metadata.target().starts_with("lockkeeper")
            && (core || self.checks)
    }

    fn event(&self, event: &Event<'_>) {
        let mut parts = Parts::default();
        event.record(&mut parts);
        let Parts { message, server, error } = parts;
        if SAID_ANYWAY.contains(&message.as_str()) {
            return;
        }
        let about = if server.is_empty() { message } else { format!("{server}: {message}") };
        if !support::lock(&self.said).insert(about.clone()) {
            return;
        }
        text::say(&if error.is_empty() { about } else { format!("{about}: {error}") });
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}
    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}
    fn enter(&self, _: &span::Id) {}
    fn exit(&self, _: &span::Id) {}
}
