//! The log: one JSON object a line on stderr, for every change and for every warning of the library.
//!
//! A thread of its own writes, because nobody may wait for a pipe that is not read. If it cannot keep up, lines are
//! dropped and counted, and the next line that is written says how many.

use std::{
    fmt::Debug,
    io::Write,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
        mpsc::{self, Receiver, SyncSender},
    },
    thread,
    time::{Duration, SystemTime},
};

use lockkeeper::support::{self, moment, terminal};
use serde_json::{Map, Value, json};
use tracing::{Event, Level, Metadata, Subscriber, field, span, subscriber};

use crate::{
    count::{Count, OneOf},
    error::ServeError,
};

/// The most lines that wait to be written.
const UNWRITTEN: usize = 16_384;
/// How many more may wait of the changes by administrators: those of others cannot push them out.
const RESERVE: usize = 4_096;
/// A piece with so many bytes is written. With its last line it may be longer. Pipes keep 4 KiB whole, also if others
/// write to them.
const PIECE: usize = 3 * 1024;
/// How long the end of the server waits for lines to be written.
const WRITTEN_WITHIN: Duration = Duration::from_secs(1);

/// The destination of the lines.
pub type Output = Box<dyn Write + Send>;

enum Item {
    Line(Map<String, Value>, OneOf),
    Flush(SyncSender<()>),
}

/// The log of one server; clones write to the same.
#[derive(Clone)]
pub(crate) struct Log {
    items: SyncSender<Item>,
    unwritten: Arc<Count>,
    lost: Arc<AtomicU64>,
}

impl Log {
    pub(crate) fn start(output: Output) -> Result<Self, ServeError> {
        let (items, to_write) = mpsc::sync_channel(UNWRITTEN + RESERVE);
        let lost = Arc::new(AtomicU64::new(0));
        let counted = lost.clone();
        thread::Builder::new()
            .name("log".into())
            .spawn(move || write(&to_write, output, &counted))
            .map_err(|error| ServeError::internal(format!("cannot start the thread of the log: {error}")))?;
        Ok(Self { items, unwritten: Arc::default(), lost })
    }

    /// Writes one line, without waiting.
    pub(crate) fn write(&self, level: &str, what: &str, fields: Value) {
        self.write_among(UNWRITTEN, level, what, fields);
    }

    /// Writes one line that lines of others cannot push out.
    pub(crate) fn write_reserved(&self, level: &str, what: &str, fields: Value) {
        self.write_among(UNWRITTEN + RESERVE, level, what, fields);
    }

    /// Writes one line unless `most` wait to be written.
    fn write_among(&self, most: usize, level: &str, what: &str, fields: Value) {
        let mut line = Map::new();
        line.insert("time".into(), moment::show(SystemTime::now()).into());
        line.insert("level".into(), level.into());
        line.insert("what".into(), what.into());
        if let Value::Object(fields) = fields {
            line.extend(fields);
        }
        let sent = self.unwritten.one_of(most).map(|one| self.items.try_send(Item::Line(line, one)));
        if !matches!(sent, Some(Ok(()))) {
            self.lost.fetch_add(1, Ordering::Relaxed);
            metrics::counter!(crate::metrics::LOG_LOST).increment(1);
        }
    }

    /// Waits briefly until the lines so far are written.
    pub(crate) fn flush(&self) {
        let (done, written) = mpsc::sync_channel(1);
        if self.items.try_send(Item::Flush(done)).is_ok() {
            // If nobody reads, the server ends all the same.
            let _ = written.recv_timeout(WRITTEN_WITHIN);
        }
    }

    /// Has warnings of the library written here, too, unless the program has a subscriber of its own.
    pub(crate) fn subscribe(&self) {
        let warnings = Warnings { log: Mutex::new(self.clone()) };
        drop(subscriber::set_global_default(warnings));
    }
}

/// Writes lines as they come. Lines that came meanwhile are written in one piece: with many of them, calls of the
/// system would cost more than the lines.
fn write(items: &Receiver<Item>, mut output: Output, lost: &AtomicU64) {
    let (mut text, mut lines, mut waiting) = (String::new(), Vec::new(), Vec::new());
    while let Ok(first) = items.recv() {
        let mut next = Some(first);
        while let Some(item) = next {
            match item {
                Item::Line(line, one) => {
                    add_lost(&mut text, lost.swap(0, Ordering::Relaxed));
                    add(&mut text, line);
                    lines.push(one);
                }
                Item::Flush(done) => waiting.push(done),
            }
            next = if text.len() < PIECE { items.try_recv().ok() } else { None };
        }
        // Nobody may be there to read it.
        drop(output.write_all(text.as_bytes()));
        text.clear();
        lines.clear();
        for done in waiting.drain(..) {
            // The server may have ended its wait.
            let _ = done.try_send(());
        }
    }
}

fn add(text: &mut String, line: Map<String, Value>) {
    text.push_str(&terminal::json(Value::Object(line).to_string()));
    text.push('\n');
}

fn add_lost(text: &mut String, missing: u64) {
    if missing > 0 {
        let mut said = Map::new();
        said.insert("time".into(), moment::show(SystemTime::now()).into());
        said.insert("level".into(), "warn".into());
        said.insert("what".into(), "lines of this log were lost".into());
        said.insert("lines".into(), missing.into());
        add(text, said);
    }
}

/// Writes warnings of the library to the log.
struct Warnings {
    log: Mutex<Log>,
}

#[derive(Default)]
struct Fields {
    message: String,
    others: Map<String, Value>,
}

impl field::Visit for Fields {
    fn record_debug(&mut self, field: &field::Field, value: &dyn Debug) {
        self.record_str(field, &format!("{value:?}"));
    }

    fn record_str(&mut self, field: &field::Field, value: &str) {
        match field.name() {
            "message" => self.message = value.to_owned(),
            name => drop(self.others.insert(name.to_owned(), value.into())),
        }
    }

    fn record_u64(&mut self, field: &field::Field, value: u64) {
        self.others.insert(field.name().to_owned(), json!(value));
    }
}

impl Subscriber for Warnings {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= Level::WARN && metadata.is_event() && metadata.target().starts_with("lockkeeper")
    }

    fn event(&self, event: &Event<'_>) {
        let mut fields = Fields::default();
        event.record(&mut fields);
        let level = if *event.metadata().level() == Level::ERROR { "error" } else { "warn" };
        support::lock(&self.log).write(level, &fields.message, Value::Object(fields.others));
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}
    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}
    fn enter(&self, _: &span::Id) {}
    fn exit(&self, _: &span::Id) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Writes nothing until it is told to.
    struct Stuck {
        go: Receiver<()>,
        text: Arc<Mutex<Vec<u8>>>,
    }

    impl Write for Stuck {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            // Fails once nobody holds it back.
            let _ = self.go.recv();
            support::lock(&self.text).extend(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn lines_of_administrators_are_not_pushed_out() {
        let (stuck, go) = mpsc::sync_channel(0);
        let text = Arc::<Mutex<Vec<u8>>>::default();
        let log = Log::start(Box::new(Stuck { go, text: text.clone() })).expect("a thread");
        for _ in 0..UNWRITTEN + 100 {
            log.write("info", "renew", json!({}));
        }
        log.write_reserved("info", "evict", json!({}));
        drop(stuck);
        // Until everything is written.
        while log.unwritten.one_of(1).is_none() {
            thread::yield_now();
        }
        let text = String::from_utf8_lossy(&support::lock(&text)).into_owned();
        assert!(text.contains("evict") && text.contains("were lost"));
    }
}
