//! Text for terminals and files: escapes unsafe characters, formats tables, and notices a closed output.

use std::{
    io::{self, Write},
    os::fd::AsFd,
    time::{Duration, SystemTime},
};

pub(crate) use lockkeeper::support::{
    moment::show as moment,
    terminal::{self, plain},
};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use serde_json::Value;

use crate::exit::{Failure, INTERNAL};

/// Returns one line of JSON. Characters that JSON allows but a terminal should not get are escaped in JSON's way, so
/// every reader gets the same text back.
pub(crate) fn json(value: &Value) -> String {
    terminal::json(value.to_string())
}

/// How long ago `time` was; zero if it lies ahead of this machine's clock.
pub(crate) fn ago(time: SystemTime) -> Duration {
    SystemTime::now().duration_since(time).unwrap_or_default()
}

/// Returns the rows with aligned columns, two blanks apart.
pub(crate) fn table(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width =
        |column: usize| rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max();
    let widths: Vec<usize> = (0..columns).map(|column| width(column).unwrap_or(0)).collect();
    let mut text = String::new();
    for row in rows {
        let line: Vec<String> =
            row.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}", width = *width)).collect();
        text.push_str(line.join("  ").trim_end());
        text.push('\n');
    }
    text
}

/// Writes to stdout. When its reader has gone, there is nothing more to do and nothing to say.
pub(crate) fn print(text: &str) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).map_err(|error| match error.kind() {
        io::ErrorKind::BrokenPipe => Failure::silent(0),
        _ => Failure::new(INTERNAL, format!("cannot write to stdout: {error}; check where it goes")),
    })
}

/// Resolves when nobody can read stdout any more, such as after `| head -n 1`.
pub(crate) async fn reader_gone() {
    let (sender, gone) = tokio::sync::oneshot::channel();
    // A thread of its own, which the end of the program does not wait for.
    let waiter = std::thread::Builder::new().spawn(move || {
        let stdout = io::stdout();
        // Without events to wait for, poll reports errors only.
        let mut ends = [PollFd::new(stdout.as_fd(), PollFlags::empty())];
        if poll(&mut ends, PollTimeout::NONE).is_ok() {
            // Nobody may be interested any more.
            let _ = sender.send(());
        }
    });
    // Without the thread, the next line that is printed finds out.
    if waiter.is_err() || gone.await.is_err() {
        std::future::pending::<()>().await;
    }
}

/// Prints one line for people, on stderr. A failure to do so is ignored.
pub(crate) fn say(message: &str) {
    drop(writeln!(io::stderr(), "lockkeeper: {}", plain(message)));
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOSTILE: &str = "a\u{1b}[2J\u{9b}31m\u{7f}\r\n\u{202e}b\u{e0041}é";

    #[test]
    fn json_stays_the_same_text() {
        let line = json(&Value::from(HOSTILE));
        assert!(!line.chars().any(terminal::is_unsafe), "{line}");
        assert_eq!(serde_json::from_str::<String>(&line).ok().as_deref(), Some(HOSTILE));
    }

    #[test]
    fn columns_are_aligned_by_characters() {
        let rows = [vec!["é".into(), "b".into()], vec!["long".into(), "c".into()]];
        assert_eq!(table(&rows), "é     b\nlong  c\n");
    }
}
