//! The calls of the API, one file each or a few that belong together.

mod acquire;
mod console;
mod events;
mod evict;
mod fence;
mod latch;
mod leader;
mod leases;
mod locks;
mod probes;
mod store;

use std::{sync::Arc, time::Duration};

use axum::{
    Router,
    extract::State,
    http::{HeaderValue, header},
    response::{IntoResponse, Response},
    routing::get,
};
use lockkeeper::support::terminal;
use lockkeeper_console::Scope;
use serde::Serialize;
use utoipa::{
    Modify, OpenApi,
    openapi::security::{HttpAuthScheme, HttpBuilder, SecurityScheme},
};
use utoipa_axum::{router::OpenApiRouter, routes};

use crate::{
    app::{App, ok, to_json},
    caller::Caller,
    idempotency::{Answer, Key, TURN},
    metrics::{Exporter, with_own_alarms},
    problem::{Code, Problem},
    request::Asked,
};

/// The description of the API as a whole.
#[derive(OpenApi)]
#[openapi(
    info(
        title = "Lockkeeper",
        description = "Distributed locks over HTTP. Every call needs a token, names travel in the body or the query, and \
                       all errors have one shape.",
        license(name = "MIT OR Apache-2.0")
    ),
    security(("token" = [])),
    modifiers(&Token)
)]
struct Description;

struct Token;

impl Modify for Token {
    fn modify(&self, openapi: &mut utoipa::openapi::OpenApi) {
        let scheme = HttpBuilder::new().scheme(HttpAuthScheme::Bearer).build();
        let components = openapi.components.get_or_insert_default();
        components.add_security_scheme("token", SecurityScheme::Http(scheme));
    }
}

/// Returns all calls, with their description.
fn described() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::with_openapi(Description::openapi())
        .routes(routes!(acquire::acquire))
        .routes(routes!(leases::renew))
        .routes(routes!(leases::release))
        .routes(routes!(locks::locks))
        .routes(routes!(locks::lock))
        .routes(routes!(events::events))
        .routes(routes!(evict::evict))
        .routes(routes!(latch::latches))
        .routes(routes!(latch::create))
        .routes(routes!(latch::down))
        .routes(routes!(latch::wait))
        .routes(routes!(latch::show))
        .routes(routes!(latch::reset))
        .routes(routes!(latch::delete))
        .routes(routes!(leader::leader))
        .routes(routes!(fence::fence))
        .routes(routes!(store::whoami))
        .routes(routes!(store::store))
        .routes(routes!(console::history))
        .routes(routes!(console::hot))
        .routes(routes!(console::alarms))
}

/// Returns the description of the API, made from its code, as JSON.
pub fn description() -> String {
    described().into_openapi().to_pretty_json().unwrap_or_default()
}

/// How long a scrape waits for a listing.
const LISTED_WITHIN: Duration = Duration::from_secs(2);

/// Returns the router of all paths of the server.
pub(crate) fn router(app: Arc<App>) -> Router {
    let (router, openapi) = described().split_for_parts();
    let description: Arc<str> = openapi.to_json().unwrap_or_default().into();
    router
        .route("/v1/openapi.json", get(move || async move { ok(description.to_string()) }))
        .route("/healthz", get(probes::healthz))
        .route("/readyz", get(probes::readyz))
        .route("/metrics", get(metrics))
        .route("/v1/console", get(console::stream))
        .route("/", get(console::page))
        .route("/console/{file}", get(console::page))
        .fallback(async || Problem::new(Code::NotFound, "there is no such path"))
        .method_not_allowed_fallback(async || Problem::new(Code::WrongMethod, "this path has another method"))
        .with_state(app)
}

async fn metrics(State(app): State<Arc<App>>, caller: Caller) -> Response {
    let sample = tokio::time::timeout(LISTED_WITHIN, app.sample()).await.ok().and_then(Result::ok);
    let render = |exporter: &Exporter| {
        exporter.render(app.keeper.url(), app.settings.hottest, sample.as_deref(), &caller.who)
    };
    let mut text = app.exporter.as_ref().map(render).unwrap_or_default();
    let prefixes = &caller.who.prefixes;
    if !prefixes.is_empty() {
        let active = app.watched.console.alarms(Scope::of(prefixes)).active;
        text = with_own_alarms(&text, &active);
    }
    let kind = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
    ([(header::CONTENT_TYPE, kind)], terminal_safe(&text)).into_response()
}

/// Replaces characters that could harm a terminal: metrics hold names of locks if the settings ask for these.
fn terminal_safe(text: &str) -> String {
    text.chars().map(|c| if c != '\n' && terminal::is_unsafe(c) { '\u{fffd}' } else { c }).collect()
}

/// Does a change and answers with JSON. If the request has an `Idempotency-Key`, the change is done once. A change that
/// has begun is finished and logged even if its caller hangs up.
async fn change<T, R, F>(
    app: Arc<App>,
    caller: Caller,
    path: &'static str,
    asked: Asked<T>,
    work: impl FnOnce(Arc<App>, Caller, T) -> F + Send + 'static,
) -> Result<Response, Problem>
where
    T: Send + 'static,
    R: Serialize + Send,
    F: Future<Output = Result<R, Problem>> + Send + 'static,
{
    let outstanding = app.work.clone();
    let work = async move {
        let Asked { value, bytes, key } = asked;
        let who = caller.who.id;
        let work = work(app.clone(), caller, value);
        let Some(key) = key else { return to_json(&work.await?) };
        let key = Key { who, path, key };
        let work = async { Ok(Answer::Other(to_json(&work.await?)?)) };
        match app.remembered.once(key, &bytes, TURN, work, async |answer| Ok(answer)).await? {
            Answer::Other(json) => Ok(json),
            Answer::Acquired(acquired, _) => to_json(&acquired),
        }
    };
    outstanding.finish(work).await.map(ok)
}

/// Returns the log's word for the outcome of a change.
fn outcome<T>(result: &Result<T, Problem>, done: &'static str) -> &'static str {
    match result {
        Ok(_) => done,
        Err(problem) => problem.code.word(),
    }
}
