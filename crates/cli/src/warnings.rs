//! Passes warnings of the library on to the user: outages always, and risky settings of servers if somebody watches.
//! Each is said once, an outage once more when it is over.
//!
//! A thread of its own writes them. They come from the keeper's thread, which renews leases and must not wait for a
//! terminal that is stopped or a pipe that nobody reads.

use std::{
    collections::BTreeSet,
    fmt::Debug,
    io::{IsTerminal, stderr},
    sync::{
        Mutex, OnceLock,
        mpsc::{self, Receiver, SyncSender},
    },
    thread,
    time::Duration,
};

use lockkeeper::{support, telemetry};
use tracing::{Event, Level, Metadata, Subscriber, field, span, subscriber};

use crate::text;

/// The warnings that the command words better itself.
const SAID_ANYWAY: [&str; 2] = ["lock lost", "eviction ordered"];

/// The library's warnings that an outage begins, each with the `work` of the event that ends it.
const OUTAGES: [(&str, &str); 2] =
    [("waits", "the store fails; waiting goes on"), ("renewals", "renewal failed; trying again")];

/// The most warnings that wait to be written. Those beyond are dropped: nobody reads.
const UNWRITTEN: usize = 64;

/// How long the end of the program waits for warnings to be written.
const WRITTEN_WITHIN: Duration = Duration::from_millis(500);

static WRITER: OnceLock<Writer> = OnceLock::new();

/// Prints warnings from now on.
pub(crate) fn listen(verbose: bool) {
    // Without the thread nothing is said, and nothing else suffers.
    let Ok(writer) = Writer::start() else { return };
    drop(WRITER.set(writer));
    let warnings = Warnings { checks: verbose || stderr().is_terminal(), said: Mutex::default() };
    // Nobody else sets one in this program.
    drop(subscriber::set_global_default(warnings));
}

/// Waits briefly until the warnings so far are written.
pub(crate) fn flush() {
    // The library may have warnings that it has not passed on yet.
    telemetry::flush(WRITTEN_WITHIN);
    let Some(writer) = WRITER.get() else { return };
    let (done, written) = mpsc::sync_channel(1);
    if writer.lines.try_send(Line::Flush(done)).is_ok() {
        // If nobody reads, the program ends all the same.
        let _ = written.recv_timeout(WRITTEN_WITHIN);
    }
}

/// A message to the thread that writes.
enum Line {
    Say(String),
    Flush(SyncSender<()>),
}

struct Writer {
    lines: SyncSender<Line>,
}

impl Writer {
    fn start() -> std::io::Result<Self> {
        let (lines, to_write) = mpsc::sync_channel(UNWRITTEN);
        thread::Builder::new().name("warnings".to_owned()).spawn(move || write(&to_write))?;
        Ok(Self { lines })
    }
}

fn write(lines: &Receiver<Line>) {
    for line in lines {
        match line {
            Line::Say(message) => text::say(&message),
            // The program may have ended its wait.
            Line::Flush(done) => {
                let _ = done.try_send(());
            }
        }
    }
}

struct Warnings {
    /// Whether to pass on the risks that a store finds: not in a cron job, which would mail them after every run.
    checks: bool,
    said: Mutex<BTreeSet<String>>,
}

/// The parts of an event that people need.
#[derive(Default)]
struct Parts {
    message: String,
    server: String,
    error: String,
    work: String,
}

impl field::Visit for Parts {
    fn record_debug(&mut self, field: &field::Field, value: &dyn Debug) {
        let part = match field.name() {
            "message" => &mut self.message,
            "server" => &mut self.server,
            "error" => &mut self.error,
            "work" => &mut self.work,
            _ => return,
        };
        *part = format!("{value:?}");
    }

    fn record_str(&mut self, field: &field::Field, value: &str) {
        self.record_debug(field, &format_args!("{value}"));
    }
}

impl Warnings {
    /// Whether this is news. The end of an outage always is, and so is the beginning of the next one.
    fn is_news(&self, about: &str, work: &str) -> bool {
        let mut said = support::lock(&self.said);
        match OUTAGES.iter().find(|(ended, _)| *ended == work) {
            Some((_, beginning)) => said.remove(*beginning),
            None => said.insert(about.to_owned()),
        }
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
        let Parts { message, server, error, work } = parts;
        if SAID_ANYWAY.contains(&message.as_str()) {
            return;
        }
        let about = if server.is_empty() { message } else { format!("{server}: {message}") };
        if !self.is_news(&about, &work) {
            return;
        }
        let line = if error.is_empty() { about } else { format!("{about}: {error}") };
        if let Some(writer) = WRITER.get() {
            // Full: nobody reads.
            drop(writer.lines.try_send(Line::Say(line)));
        }
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}
    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}
    fn enter(&self, _: &span::Id) {}
    fn exit(&self, _: &span::Id) {}
}
