//! `/v1/events`: changes as server-sent events. They are the differences between samples.

use std::{
    convert::Infallible,
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
    caller::Caller,
    count::OneOf,
    problem::{Code, Problem, Refusals},
    request::Params,
    sample::{Changes, Entry, Sample, page},
    sampler::{Outage, Reader},
    shapes::{EventParams, LatchView, SampleInfo},
};

/// How many chunks wait for a client that is slow.
pub(super) const AHEAD: usize = 1;
/// A chunk with so many bytes is sent.
const CHUNK: usize = 32 * 1024;
/// How many names are looked up at once.
const PAGE: usize = 100;

/// Tells of changes, as server-sent events.
///
/// `reset`: all earlier events are void, and all locks and latches follow. `lock` and `latch`: one that is new or
/// different. `gone` and `latch_gone`: the name of one that is no longer there. `sample`: the sample that these were
/// from, also if nothing changed. `outage`: the store cannot be listed; samples come again when it can.
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
    let counted = counted(&app, &caller)?;
    // Before the first sample, so that nothing is missed in between.
    let reader = app.sampler.read();
    let first = app.sample().await?;
    let (chunks, body) = mpsc::channel(AHEAD);
    let EventParams { prefix, since } = params;
    let stream = Stream { app, caller, prefix, reader, chunks, text: String::new(), last: 0 };
    tokio::spawn(async move {
        // The stream has no end of its own.
        let _gone = stream.follow(since, first).await;
        drop(counted);
    });
    Ok(event_stream(body))
}

/// Counts a stream without an end until the returned value is dropped, or refuses the stream.
pub(super) fn counted(app: &App, caller: &Caller) -> Result<(OneOf, OneOf), Problem> {
    app.connections.stream(&caller.who.streams).ok_or_else(|| {
        let message = "too many streams of events are open; close some, or ask for /v1/locks now and then";
        Problem::new(Code::TooManyRequests, message)
    })
}

/// Returns an answer whose body is these events, as they come.
pub(super) fn event_stream(events: mpsc::Receiver<Bytes>) -> Response {
    let mut response = Body::new(Events(events)).into_response();
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    // Proxies must pass each event on at once.
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
}

/// The client is gone, or has to go.
struct Gone;

/// One client's stream. It is sent in small pieces. Each is made when the client has taken those before, so a slow
/// client costs little: it hears less often, and begins anew if it is too far behind.
struct Stream {
    app: Arc<App>,
    caller: Caller,
    prefix: String,
    reader: Reader,
    chunks: mpsc::Sender<Bytes>,
    text: String,
    /// The sample that the client knows.
    last: u64,
}

impl Stream {
    /// Sends events until the client is gone, its token is revoked, or the server ends.
    async fn follow(mut self, since: Option<u64>, first: Arc<Sample>) -> Result<(), Gone> {
        if since == Some(first.number) {
            self.last = first.number;
            self.text += &Self::end(&first.info(&self.caller.who), first.number);
            drop(first);
            self.flush().await?;
        } else {
            drop(first);
            self.everything().await?;
        }
        loop {
            let known = tokio::select! {
                biased;
                () = self.app.draining() => return Err(Gone),
                () = self.chunks.closed() => return Err(Gone),
                known = self.reader.next() => known,
            };
            let changes = known.since(self.last);
            let told = known.sample.map(|sample| (sample.number, sample.info(&self.caller.who)));
            // No sample is kept while the client takes the events.
            match (known.outage, changes, told) {
                (Some(outage), ..) => self.text += &outage_event(&outage),
                // Nothing is new.
                (None, Some(changes), _) if changes.is_empty() => {}
                (None, Some(changes), Some((number, info))) => {
                    self.changes(&changes).await?;
                    self.last = number;
                    self.text += &Self::end(&info, number);
                }
                (None, ..) => self.everything().await?,
            }
            self.flush().await?;
        }
    }

    /// Sends the events that were written.
    async fn flush(&mut self) -> Result<(), Gone> {
        if self.text.is_empty() {
            return Ok(());
        }
        if self.caller.who.is_revoked() {
            return Err(Gone);
        }
        let chunk = std::mem::take(&mut self.text).into();
        tokio::select! {
            biased;
            () = self.app.draining() => Err(Gone),
            sent = self.chunks.send(chunk) => sent.map_err(|_| Gone),
        }
    }

    /// Writes an event, and sends all that were written if they fill a chunk.
    async fn tell(&mut self, kind: &str, json: &str) -> Result<(), Gone> {
        self.text += &event(kind, json);
        if self.text.len() < CHUNK { Ok(()) } else { self.flush().await }
    }

    fn wants(&self, name: &str) -> bool {
        name.starts_with(&self.prefix) && self.caller.who.may_use(name)
    }

    /// Tells of all locks and latches. Each piece is of the latest sample, so that no old one is kept for a slow
    /// client. The pieces may be of different samples, but the changes since the first of these follow.
    async fn everything(&mut self) -> Result<(), Gone> {
        let Some(sample) = self.reader.sample() else { return Ok(()) };
        let (number, info) = (sample.number, sample.info(&self.caller.who));
        drop(sample);
        self.tell("reset", "{}").await?;
        let mut after = None;
        while let Some(sample) = self.reader.sample() {
            let (locks, next) = page(&sample.locks, &self.caller.who, &self.prefix, after.as_ref(), PAGE);
            let entries: Vec<Arc<Entry>> = locks.into_iter().map(|(_, entry)| entry.clone()).collect();
            after = next.cloned();
            drop(sample);
            for entry in entries {
                self.tell("lock", entry.json()).await?;
            }
            if after.is_none() {
                break;
            }
        }
        while let Some(sample) = self.reader.sample() {
            let (latches, next) = page(&sample.latches, &self.caller.who, &self.prefix, after.as_ref(), PAGE);
            let latches: Vec<_> = latches
                .into_iter()
                .map(|(name, state)| line(&LatchView::new(name.as_str(), state)))
                .collect();
            after = next.cloned();
            drop(sample);
            for latch in latches {
                self.tell("latch", &latch).await?;
            }
            if after.is_none() {
                break;
            }
        }
        self.last = number;
        self.text += &Self::end(&info, number);
        self.flush().await
    }

    async fn changes(&mut self, changes: &[Arc<Changes>]) -> Result<(), Gone> {
        for changes in changes {
            for entry in &changes.locks {
                if self.wants(entry.view.name.as_str()) {
                    self.tell("lock", entry.json()).await?;
                }
            }
            for name in &changes.gone {
                if self.wants(name.as_str()) {
                    self.tell("gone", &line(&json!({ "name": name.as_str() }))).await?;
                }
            }
            for latch in &changes.latches {
                if self.wants(&latch.name) {
                    self.tell("latch", &line(latch)).await?;
                }
            }
            for name in &changes.latches_gone {
                if self.wants(name.as_str()) {
                    self.tell("latch_gone", &line(&json!({ "name": name.as_str() }))).await?;
                }
            }
        }
        Ok(())
    }

    fn end(info: &SampleInfo, number: u64) -> String {
        format!("id: {number}\n{}", event("sample", &line(info)))
    }
}

fn outage_event(outage: &Outage) -> String {
    event("outage", &line(&json!({ "since": moment::show(outage.since), "message": outage.message })))
}

/// Returns a value as one line of JSON.
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
