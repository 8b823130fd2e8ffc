//! Text for terminals and files: escapes unsafe characters, formats times and tables, and notices a closed output.

use std::{
    io::{self, Write},
    os::fd::AsFd,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use serde_json::Value;

use crate::exit::{Failure, INTERNAL};

/// Whether a terminal could take `c` for an order, or a reader be deceived by it: control
/// characters, line separators, and the marks that change direction or cannot be seen.
fn is_unsafe(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}')
}

/// `text` with everything unsafe written as `\u{…}`.
pub(crate) fn plain(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for c in text.chars() {
        if is_unsafe(c) {
            safe.extend(c.escape_unicode());
        } else {
            safe.push(c);
        }
    }
    safe
}

/// One line of JSON. The parts of a string that JSON allows but a terminal should not get are
/// escaped as JSON does it, so every reader gets the same text back.
pub(crate) fn json(value: &Value) -> String {
    let text = value.to_string();
    let mut safe = String::with_capacity(text.len());
    let mut units = [0; 2];
    for c in text.chars() {
        if is_unsafe(c) {
            for unit in c.encode_utf16(&mut units) {
                safe.push_str(&format!("\\u{unit:04x}"));
            }
        } else {
            safe.push(c);
        }
    }
    safe
}

/// A moment in UTC, as RFC 3339 writes it, to the millisecond.
pub(crate) fn moment(time: SystemTime) -> String {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    let seconds = since.as_secs();
    let (year, month, day) = date(seconds / 86_400);
    let (hour, minute, second) = (seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{:03}Z", since.subsec_millis())
}

/// The date so many days after 1970-01-01.
fn date(mut days: u64) -> (u64, usize, u64) {
    let leap = |year: u64| year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    // Whole cycles of 400 years have the same length.
    let mut year = 1970 + days / 146_097 * 400;
    days %= 146_097;
    while days >= 365 + u64::from(leap(year)) {
        days -= 365 + u64::from(leap(year));
        year += 1;
    }
    let lengths = [31, 28 + u64::from(leap(year)), 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    let mut month = 0;
    while days >= lengths[month] {
        days -= lengths[month];
        month += 1;
    }
    (year, month + 1, days + 1)
}

/// How long ago `time` was; zero if clocks disagree.
pub(crate) fn ago(time: SystemTime) -> Duration {
    SystemTime::now().duration_since(time).unwrap_or_default()
}

/// Rows with aligned columns, two blanks apart.
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
        // Asked for nothing, poll tells errors only.
        let mut ends = [PollFd::new(stdout.as_fd(), PollFlags::empty())];
        if poll(&mut ends, PollTimeout::NONE).is_ok() {
            // Nobody may be interested any more.
            let _ = sender.send(());
        }
    });
    // Without the thread, the next line that is printed tells.
    if waiter.is_err() || gone.await.is_err() {
        std::future::pending::<()>().await;
    }
}

/// Says one line to people, on stderr. If nobody can hear it, that is all the same.
pub(crate) fn say(message: &str) {
    drop(writeln!(io::stderr(), "lockkeeper: {}", plain(message)));
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOSTILE: &str = "a\u{1b}[2J\u{9b}31m\u{7f}\r\n\u{202e}b\u{e0041}é";

    #[test]
    fn hostile_text_is_harmless_and_readable() {
        assert_eq!(plain("stock/42 é 漢"), "stock/42 é 漢");
        let safe = plain(HOSTILE);
        assert!(!safe.chars().any(is_unsafe), "{safe}");
        assert!(safe.contains("\\u{1b}[2J") && safe.ends_with('é'), "{safe}");
    }

    #[test]
    fn json_stays_the_same_text() {
        let line = json(&Value::from(HOSTILE));
        assert!(!line.chars().any(is_unsafe), "{line}");
        assert_eq!(serde_json::from_str::<String>(&line).ok().as_deref(), Some(HOSTILE));
    }

    #[test]
    fn moments_are_dates() {
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00.000Z"),
            (951_782_400, "2000-02-29T00:00:00.000Z"),
            (1_794_700_799, "2026-11-14T23:59:59.000Z"),
            (4_107_542_400, "2100-03-01T00:00:00.000Z"),
            (13_574_649_599, "2400-02-29T23:59:59.000Z"),
        ] {
            assert_eq!(moment(UNIX_EPOCH + Duration::from_secs(seconds)), text);
        }
    }

    #[test]
    fn columns_are_aligned_by_characters() {
        let rows = [vec!["é".into(), "b".into()], vec!["long".into(), "c".into()]];
        assert_eq!(table(&rows), "é     b\nlong  c\n");
    }
}
