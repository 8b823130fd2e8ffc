//! The line that a person at a terminal sees while waiting: who holds it, since when, one's place.

use std::{convert::Infallible, io::IsTerminal, time::Duration};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use lockkeeper::store::ResourceView;
use lockkeeper::support::duration;

use crate::{
    store::Connection,
    text::{ago, plain},
};

/// A wait shorter than this shows nothing.
const FIRST: Duration = Duration::from_millis(300);
/// How often the line is brought up to date.
const EVERY: Duration = Duration::from_secs(1);

/// The line; gone from the terminal when dropped.
pub(crate) struct Waiting {
    name: String,
    line: Option<ProgressBar>,
}

impl Waiting {
    pub(crate) fn new(name: &str, quiet: bool) -> Self {
        let seen = !quiet && std::io::stderr().is_terminal();
        let line = seen.then(|| ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr()));
        Self { name: name.to_owned(), line }
    }

    /// Keeps the line up to date, for ever. Without a terminal it does nothing at all.
    pub(crate) async fn show(&self, connection: &Connection) -> Infallible {
        let Some(line) = &self.line else { return std::future::pending().await };
        tokio::time::sleep(FIRST).await;
        if let Ok(style) = ProgressStyle::with_template("{spinner} {wide_msg}") {
            line.set_style(style);
        }
        loop {
            // While the store cannot be asked, the line stays as it is.
            if let Ok(Some(view)) = connection.keeper.inspect(&self.name).await {
                let place = view.waiters.iter().position(|waiter| waiter.contender.keeper == connection.id);
                line.set_message(describe(&view, place));
            }
            line.tick();
            tokio::time::sleep(EVERY).await;
        }
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        if let Some(line) = &self.line {
            line.finish_and_clear();
        }
    }
}

fn describe(view: &ResourceView, place: Option<usize>) -> String {
    let mut text = format!("waiting for {:?}", plain(view.name.as_str()));
    if let Some(holder) = view.holders.first() {
        let process = &holder.details.process;
        let since = duration::show(ago(holder.since));
        text +=
            &format!(", held for {since} by {} (pid {} on {})", process.program, process.pid, process.host);
        if let Some(label) = &holder.details.label {
            text += &format!(": {label}");
        }
        if view.holders.len() > 1 {
            text += &format!(" and {} more", view.holders.len() - 1);
        }
    }
    if let Some(place) = place {
        text += &format!("; place {} of {} in line", place + 1, view.waiters.len());
    }
    plain(&text)
}
