//! The log as a test hears it: a subscriber for all tests of a program, from the first event on. With one for each
//! test, `tracing` may miss events that another test has been the first to send.

use std::{
    fmt::{self, Write as _},
    sync::OnceLock,
};

use tracing::{Event, Metadata, Subscriber, field, span};

struct Log {
    wanted: fn(&Metadata<'_>) -> bool,
    keep: fn(&str),
}

/// Has `keep` called with each event and span that is `wanted`: its target, then its fields as `name=value`. Only the
/// first call in a process counts.
///
/// # Panics
/// If something else listens to the log of this process.
pub fn listen(wanted: fn(&Metadata<'_>) -> bool, keep: fn(&str)) {
    static ONCE: OnceLock<()> = OnceLock::new();
    ONCE.get_or_init(|| tracing::subscriber::set_global_default(Log { wanted, keep }).expect("the first"));
}

struct Row(String);

impl field::Visit for Row {
    fn record_debug(&mut self, field: &field::Field, value: &dyn fmt::Debug) {
        // A string takes everything.
        _ = write!(self.0, " {field}={value:?}");
    }
}

impl Log {
    fn row(&self, target: &str, record: impl FnOnce(&mut Row)) {
        let mut row = Row(target.to_owned());
        record(&mut row);
        (self.keep)(&row.0);
    }
}

impl Subscriber for Log {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        (self.wanted)(metadata)
    }

    fn new_span(&self, span: &span::Attributes<'_>) -> span::Id {
        self.row(span.metadata().target(), |row| span.record(row));
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, values: &span::Record<'_>) {
        self.row("", |row| values.record(row));
    }

    fn event(&self, event: &Event<'_>) {
        self.row(event.metadata().target(), |row| event.record(row));
    }

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}
    fn enter(&self, _: &span::Id) {}
    fn exit(&self, _: &span::Id) {}
}
