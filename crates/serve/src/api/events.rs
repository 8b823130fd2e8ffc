//! `/v1/events`: what changes, as server-sent events. They are the differences between samples.

use std::{
    convert::Infallible,
    fmt::Write,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use axum::{
    body::Body,
    extract::State,
    http::{HeaderValue, header},
    response::{IntoResponse, Response},
};
use bytes::Bytes;
use http_body::Frame;
use lockkeeper::support::moment;
use serde_json::json;
use tokio::sync::mpsc;

use crate::{
    app::{App, to_json},
    gate::Caller,
    problem::{Problem, Refusals},
    request::Params,
    sample::{Changes, Sample, page},
    sampler::{News, Outage, Reader},
    shapes::{EventParams, LatchView},
};

/// How many chunks wait for a client that is slow.
pub(super) const AHEAD: usize = 2;

/// Tells what changes, as server-sent events.
///
/// `reset`: what was told before is void, and everything there is follows. `lock` and `latch`: one that is new or different.
/// `gone` and `latch_gone`: the name of one that is no longer there. `sample`: the sample that these were from, also if
/// nothing changed. `outage`: the store cannot be listed; samples come again when it can.
#[utoipa::path(
    get,
    path = "/v1/events",
    tag = "looking",
    params(EventParams),
    responses((status = 200, description = "Events without an end", content_type = "text/event-stream", body = String), Refusals)
)]
pub(super) async fn events(
    State(app): State<Arc<App>>,
    caller: Caller,
    Params(params): Params<EventParams>,
) -> Result<Response, Problem> {
    // Before the first sample, so that nothing is missed in between.
    let reader = app.sampler.read();
    let first = app.sampler.latest().await?;
    let (chunks, body) = mpsc::channel(AHEAD);
    tokio::spawn(follow(app, caller, params, reader, first, chunks));
    Ok(event_stream(body))
}

/// An answer of events, as they come.
pub(super) fn event_stream(events: mpsc::Receiver<Bytes>) -> Response {
    let mut response = Body::new(Events(events)).into_response();
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    // Proxies must pass each event on at once.
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
}

/// Sends events until the client is gone, its token is revoked, or the server ends.
async fn follow(
    app: Arc<App>,
    caller: Caller,
    params: EventParams,
    mut reader: Reader,
    first: Arc<Sample>,
    chunks: mpsc::Sender<Bytes>,
) {
    let filter = Filter { caller: &caller, prefix: &params.prefix };
    let mut last = first.number;
    let begin = if params.since == Some(last) { filter.same(&first) } else { filter.everything(&first) };
    if chunks.send(begin.into()).await.is_err() {
        return;
    }
    loop {
        let news = tokio::select! {
            biased;
            () = app.draining() => return,
            () = chunks.closed() => return,
            news = reader.next() => news,
        };
        if caller.who.is_revoked() {
            return;
        }
        let text = match news {
            // Older than what it began with.
            Some(News::Sample(sample, _)) if sample.number <= last => continue,
            Some(News::Sample(sample, changes)) if sample.number == last + 1 => {
                last = sample.number;
                filter.changes(&sample, &changes)
            }
            Some(News::Sample(sample, _)) => {
                last = sample.number;
                filter.everything(&sample)
            }
            Some(News::Outage(outage)) => outage_event(&outage),
            // Some were missed: the next sample is told whole.
            None => continue,
        };
        if chunks.send(text.into()).await.is_err() {
            return;
        }
    }
}

/// What one client wants to hear and may hear.
struct Filter<'a> {
    caller: &'a Caller,
    prefix: &'a str,
}

impl Filter<'_> {
    fn wants(&self, name: &str) -> bool {
        name.starts_with(self.prefix) && self.caller.who.may_use(name)
    }

    fn everything(&self, sample: &Sample) -> String {
        let mut text = event("reset", "{}");
        let (locks, _) = page(&sample.locks, &self.caller.who, self.prefix, None, usize::MAX);
        for (_, entry) in locks {
            text += &event("lock", entry.json());
        }
        let (latches, _) = page(&sample.latches, &self.caller.who, self.prefix, None, usize::MAX);
        for (name, state) in latches {
            text += &event("latch", &line(&LatchView::new(name.as_str(), state)));
        }
        text + &self.end(sample)
    }

    fn same(&self, sample: &Sample) -> String {
        self.end(sample)
    }

    fn changes(&self, sample: &Sample, changes: &Changes) -> String {
        let mut text = String::new();
        for entry in changes.locks.iter().filter(|entry| self.wants(entry.view.name.as_str())) {
            text += &event("lock", entry.json());
        }
        for name in changes.gone.iter().filter(|name| self.wants(name.as_str())) {
            text += &event("gone", &line(&json!({ "name": name.as_str() })));
        }
        for latch in changes.latches.iter().filter(|latch| self.wants(&latch.name)) {
            text += &event("latch", &line(latch));
        }
        for name in changes.latches_gone.iter().filter(|name| self.wants(name.as_str())) {
            text += &event("latch_gone", &line(&json!({ "name": name.as_str() })));
        }
        text + &self.end(sample)
    }

    fn end(&self, sample: &Sample) -> String {
        let mut text = String::new();
        // Writing to text does not fail.
        let _ = writeln!(text, "id: {}", sample.number);
        text + &event("sample", &line(&sample.info(&self.caller.who)))
    }
}

fn outage_event(outage: &Outage) -> String {
    event("outage", &line(&json!({ "since": moment::show(outage.since), "message": outage.message })))
}

/// JSON as one line.
pub(super) fn line(value: &impl serde::Serialize) -> String {
    to_json(value).map_or_else(|_| "{}".into(), |json| String::from_utf8_lossy(&json).into_owned())
}

fn event(kind: &str, json: &str) -> String {
    format!("event: {kind}\ndata: {json}\n\n")
}

/// The body of the answer.
struct Events(mpsc::Receiver<Bytes>);

impl http_body::Body for Events {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        self.0.poll_recv(context).map(|chunk| chunk.map(|chunk| Ok(Frame::data(chunk))))
    }
}
