//! `watch`: the list, live in the terminal.

use std::{
    io::IsTerminal,
    sync::mpsc::{Receiver, TryRecvError, channel},
    time::Duration,
};

use lockkeeper::Keeper;
use ratatui::{
    DefaultTerminal, Frame,
    crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers},
    layout::{Constraint, Layout},
    style::{Modifier, Style},
    widgets::{Paragraph, Row, Table, TableState},
};

use crate::{
    args::WatchArgs,
    exit::{self, Failure},
    signals::Signals,
    text::plain,
    view,
};

/// The pause between two requests to the store.
const EVERY: Duration = Duration::from_secs(1);
/// The longest delay before a key or a new list is seen.
const KEY_POLL: Duration = Duration::from_millis(100);

/// An answer of the store.
enum Update {
    Rows(Vec<Vec<String>>),
    Failed(String),
}

/// Runs `lockkeeper watch`.
pub(crate) async fn watch(keeper: &Keeper, args: &WatchArgs) -> Result<u8, Failure> {
    if !std::io::stdin().is_terminal() || !std::io::stdout().is_terminal() {
        return Err(Failure::usage("watch needs a terminal; use list --json elsewhere"));
    }
    let mut signals = Signals::listen()?;
    let title = format!("{}  (q ends, arrows scroll)", plain(keeper.url()));
    let (sender, updates) = channel();
    let screen = tokio::task::spawn_blocking(move || {
        let mut terminal = ratatui::try_init()?;
        let result = draw_until_done(&mut terminal, &title, &updates);
        ratatui::restore();
        result
    });
    tokio::pin!(screen);
    let mut signal = None;
    let shown = loop {
        let latest = match view::all(keeper, &args.prefix).await {
            Ok(views) => Update::Rows(view::rows(&views)),
            Err(failure) => Update::Failed(failure.message.unwrap_or_default()),
        };
        // The screen has ended; the loop sees it below.
        drop(sender.send(latest));
        tokio::select! {
            shown = &mut screen => break shown,
            arrived = signals.next() => {
                // Without a sender the screen ends and restores the terminal.
                signal = Some(arrived);
                drop(sender);
                break screen.await;
            }
            () = tokio::time::sleep(EVERY) => {}
        }
    };
    let failed = |error: std::io::Error| Failure::internal("cannot draw", error);
    shown.map_err(|error| Failure::internal("cannot draw", error))?.map_err(failed)?;
    Ok(signal.map_or(0, |signal| exit::of_signal(signal as i32)))
}

fn draw_until_done(
    terminal: &mut DefaultTerminal,
    title: &str,
    updates: &Receiver<Update>,
) -> std::io::Result<()> {
    let mut rows = Vec::new();
    let mut error = String::new();
    let mut state = TableState::default();
    loop {
        match updates.try_recv() {
            Ok(Update::Rows(new)) => {
                rows = new;
                error.clear();
            }
            Ok(Update::Failed(why)) => error = plain(&why),
            Err(TryRecvError::Empty) => {}
            Err(TryRecvError::Disconnected) => return Ok(()),
        }
        terminal.draw(|frame| draw(frame, title, &rows, &error, &mut state))?;
        if !event::poll(KEY_POLL)? {
            continue;
        }
        if let Event::Key(key) = event::read()?
            && key.kind == KeyEventKind::Press
        {
            match key.code {
                KeyCode::Char('q') | KeyCode::Esc => return Ok(()),
                KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => return Ok(()),
                KeyCode::Down | KeyCode::Char('j') => state.select_next(),
                KeyCode::Up | KeyCode::Char('k') => state.select_previous(),
                KeyCode::PageDown => state.scroll_down_by(10),
                KeyCode::PageUp => state.scroll_up_by(10),
                _ => {}
            }
        }
    }
}

fn draw(frame: &mut Frame<'_>, title: &str, rows: &[Vec<String>], error: &str, state: &mut TableState) {
    let [top, body, bottom] =
        Layout::vertical([Constraint::Length(1), Constraint::Min(1), Constraint::Length(1)])
            .areas(frame.area());
    frame.render_widget(Paragraph::new(title), top);
    if let Some((head, rows)) = rows.split_first() {
        let widths = (0..head.len()).map(|column| {
            let all = rows.iter().chain([head]);
            let width = all.filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max();
            Constraint::Max(u16::try_from(width.unwrap_or(0)).unwrap_or(u16::MAX))
        });
        let table = Table::new(rows.iter().map(|row| Row::new(row.iter().map(String::as_str))), widths)
            .header(
                Row::new(head.iter().map(String::as_str)).style(Style::new().add_modifier(Modifier::BOLD)),
            )
            .row_highlight_style(Style::new().add_modifier(Modifier::REVERSED))
            .column_spacing(2);
        frame.render_stateful_widget(table, body, state);
    }
    frame.render_widget(Paragraph::new(error), bottom);
}
