//! The console: its pages, the stream that they show, and the same as JSON for programs.

use std::{sync::Arc, time::Duration};

use axum::{
    extract::State,
    http::{HeaderValue, Uri, header},
    response::{IntoResponse, Response},
};
use bytes::Bytes;
use lockkeeper_console::{
    CONTENT_SECURITY_POLICY, Query, Scope, asset,
    view::{AlarmPage, By, HotPage, Page, Timeline},
};
use serde::Deserialize;
use tokio::sync::mpsc;
use utoipa::IntoParams;

use super::events::{AHEAD, counted, event_stream, line};
use crate::{
    app::{App, ok, to_json},
    caller::Caller,
    problem::{Code, Problem, Refusals},
    request::Params,
};

/// The longest pause between two messages to a page, so that it notices a broken connection.
const HEARTBEAT: Duration = Duration::from_secs(5);

/// Answers with a file of the pages, or says that there is no such path.
pub(super) async fn page(uri: Uri) -> Response {
    let Some(asset) = asset(uri.path()) else {
        return Problem::new(Code::NotFound, "there is no such path").into_response();
    };
    let headers = [
        (header::CONTENT_TYPE, HeaderValue::from_static(asset.content_type)),
        (header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(CONTENT_SECURITY_POLICY)),
    ];
    (headers, asset.body).into_response()
}

/// Streams the view that a page shows: a server-sent event for every sample.
pub(super) async fn stream(
    State(app): State<Arc<App>>,
    caller: Caller,
    Params(query): Params<Query>,
) -> Result<Response, Problem> {
    if query.view == Page::Lock {
        caller.check_name(&query.name)?;
    }
    // A query that can never be answered is refused at once.
    let first = shown(&app, &caller, &query)?;
    let counted = counted(&app, &caller)?;
    let (chunks, body) = mpsc::channel(AHEAD);
    tokio::spawn(async move {
        follow(app, caller, query, first, chunks).await;
        drop(counted);
    });
    Ok(event_stream(body))
}

fn shown(app: &App, caller: &Caller, query: &Query) -> Result<Bytes, Problem> {
    let scope = Scope::of(&caller.who.prefixes);
    let view = app.watched.console.view(query, scope, app.watched.clock.now()).map_err(Problem::invalid)?;
    Ok(format!("data: {}\n\n", line(&view)).into())
}

/// Sends views until the client is gone, its token is revoked, or the server ends. A slow client skips the views that
/// it missed.
async fn follow(app: Arc<App>, caller: Caller, query: Query, first: Bytes, chunks: mpsc::Sender<Bytes>) {
    let mut news = app.watched.console.news();
    news.mark_unchanged();
    let mut next = first;
    loop {
        tokio::select! {
            biased;
            () = app.draining() => return,
            sent = chunks.send(next) => if sent.is_err() { return },
        }
        next = tokio::select! {
            biased;
            () = app.draining() => return,
            () = chunks.closed() => return,
            changed = news.changed() => {
                if changed.is_err() || caller.who.is_revoked() {
                    return;
                }
                let Ok(view) = shown(&app, &caller, &query) else { return };
                view
            }
            () = tokio::time::sleep(HEARTBEAT) => Bytes::from_static(b":\n\n"),
        };
    }
}

/// The lock whose history is shown, and the time that it covers.
#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(super) struct HistoryParams {
    /// The name of the lock.
    #[param(min_length = 1, max_length = 512)]
    name: String,
    /// How many minutes back, 1 to 60; 60 without it.
    #[param(minimum = 1, maximum = 60)]
    minutes: Option<u64>,
}

/// Shows the holders and waiters of a lock in the last hour, as far as this server saw them in its samples.
#[utoipa::path(
    get,
    path = "/v1/history",
    tag = "looking",
    params(HistoryParams),
    responses((status = 200, description = "What was seen", body = Timeline), Refusals)
)]
pub(super) async fn history(
    State(app): State<Arc<App>>,
    caller: Caller,
    Params(params): Params<HistoryParams>,
) -> Result<Response, Problem> {
    caller.check_name(&params.name)?;
    let minutes = params.minutes.unwrap_or(60);
    if !(1..=60).contains(&minutes) {
        return Err(Problem::invalid("minutes is 1 to 60"));
    }
    let timeline = app.watched.console.history(&params.name, minutes).map_err(Problem::invalid)?;
    Ok(ok(to_json(&timeline)?))
}

/// The ranking of hot locks.
#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(super) struct HotParams {
    /// How many minutes back: 1, 5 or 60; 5 without it.
    minutes: Option<u64>,
    /// The measure that makes a lock hot; `waiting` without it.
    #[serde(default)]
    #[param(inline)]
    by: By,
}

/// Shows the locks that are waited for the most, with advice for each.
#[utoipa::path(
    get,
    path = "/v1/hot",
    tag = "looking",
    params(HotParams),
    responses((status = 200, description = "The hottest first", body = HotPage), Refusals)
)]
pub(super) async fn hot(
    State(app): State<Arc<App>>,
    caller: Caller,
    Params(params): Params<HotParams>,
) -> Result<Response, Problem> {
    let scope = Scope::of(&caller.who.prefixes);
    let page = app.watched.console.hot(params.minutes.unwrap_or(5), params.by, scope);
    Ok(ok(to_json(&page.map_err(Problem::invalid)?)?))
}

/// Shows the alarms that last, the alarms that are over, and the limits.
#[utoipa::path(
    get,
    path = "/v1/alarms",
    tag = "looking",
    responses((status = 200, description = "The alarms", body = AlarmPage), Refusals)
)]
pub(super) async fn alarms(State(app): State<Arc<App>>, caller: Caller) -> Result<Response, Problem> {
    Ok(ok(to_json(&app.watched.console.alarms(Scope::of(&caller.who.prefixes)))?))
}
