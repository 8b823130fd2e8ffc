//! The line that a terminal shows while this program waits: the lock's holder, since when it holds, and our position.

use std::{convert::Infallible, io::IsTerminal, time::Duration};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use lockkeeper::{Keeper, store::ResourceView};

use crate::{text::plain, view};

/// A shorter wait shows nothing.
const FIRST: Duration = Duration::from_millis(300);
/// The pause between two looks at the store.
const EVERY: Duration = Duration::from_secs(1);

/// The line. Dropping it clears it from the terminal.
pub(crate) struct Progress {
    name: String,
    line: Option<ProgressBar>,
}

impl Progress {
    pub(crate) fn new(name: &str, quiet: bool) -> Self {
        let seen = !quiet && std::io::stderr().is_terminal();
        let line = seen.then(|| ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr()));
        Self { name: name.to_owned(), line }
    }

    /// Keeps the line up to date until it is dropped. Without a terminal it does nothing.
    pub(crate) async fn show(&self, keeper: &Keeper) -> Infallible {
        let Some(line) = &self.line else { return std::future::pending().await };
        tokio::time::sleep(FIRST).await;
        if let Ok(style) = ProgressStyle::with_template("{spinner} {wide_msg}") {
            line.set_style(style);
        }
        loop {
            // While the store cannot be reached, the line stays as it is.
            if let Ok(Some(view)) = keeper.inspect(&self.name).await {
                let own = keeper.id();
                let position = view.waiters.iter().position(|waiter| waiter.contender.keeper == own);
                line.set_message(describe(&view, position));
            }
            line.tick();
            tokio::time::sleep(EVERY).await;
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some(line) = &self.line {
            line.finish_and_clear();
        }
    }
}

fn describe(view: &ResourceView, position: Option<usize>) -> String {
    let mut text = format!("waiting for {:?}", plain(view.name.as_str()));
    if let Some(holders) = view::holders(view) {
        text += &format!(", held by {holders}");
    }
    if let Some(position) = position {
        text += &format!("; position {} of {} in the queue", position + 1, view.waiters.len());
    }
    plain(&text)
}
