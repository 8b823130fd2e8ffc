//! The least that a server of locks on Redis can do: two axum handlers that run two scripts of one line. No token, no queue,
//! no checks, no log.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use axum::{Json, Router, extract::State, http::StatusCode, routing::post, serve::ListenerExt as _};
use redis::{AsyncConnectionConfig, Client, Script, aio::MultiplexedConnection};
use serde_json::{Value, json};

use crate::{
    Failure,
    redis::{CLAIM, RELEASE},
};

/// How long an answer may take. The client's own limit is short for a machine with much else to do.
const PATIENCE: Duration = Duration::from_secs(10);

#[derive(Clone)]
struct Scripts {
    connection: MultiplexedConnection,
    claim: Arc<str>,
    release: Arc<str>,
    count: Arc<AtomicU64>,
}

/// Serves until its process is ended; prints where.
pub(crate) async fn serve(url: &str) -> Result<(), Failure> {
    let config = AsyncConnectionConfig::new().set_response_timeout(Some(PATIENCE));
    let mut connection = Client::open(url)?.get_multiplexed_async_connection_with_config(&config).await?;
    let claim: String = Script::new(CLAIM).prepare_invoke().load_async(&mut connection).await?;
    let release: String = Script::new(RELEASE).prepare_invoke().load_async(&mut connection).await?;
    let scripts = Scripts { connection, claim: claim.into(), release: release.into(), count: Arc::default() };
    let router = Router::new()
        .route("/v1/acquire", post(acquire))
        .route("/v1/release", post(released))
        .with_state(scripts);
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    println!("listening on http://{}", listener.local_addr()?);
    let listener = listener.tap_io(|stream| {
        // Without it, an answer may wait for another packet; no client is harmed.
        let _ = stream.set_nodelay(true);
    });
    Ok(axum::serve(listener, router).await?)
}

type Answered = Result<Json<Value>, StatusCode>;

async fn acquire(State(mut scripts): State<Scripts>, Json(body): Json<Value>) -> Answered {
    let name = body["name"].as_str().ok_or(StatusCode::BAD_REQUEST)?;
    let owner = format!("{}-{}", std::process::id(), scripts.count.fetch_add(1, Ordering::Relaxed));
    let mut call = redis::cmd("EVALSHA");
    call.arg(&*scripts.claim).arg(1).arg(key(name)).arg(&owner).arg(30_000);
    let held: Option<String> =
        call.query_async(&mut scripts.connection).await.map_err(|_| StatusCode::SERVICE_UNAVAILABLE)?;
    held.ok_or(StatusCode::CONFLICT)?;
    Ok(Json(json!({ "name": name, "lease": format!("{owner} {name}") })))
}

async fn released(State(mut scripts): State<Scripts>, Json(body): Json<Value>) -> Answered {
    let lease =
        body["lease"].as_str().and_then(|lease| lease.split_once(' ')).ok_or(StatusCode::BAD_REQUEST)?;
    let mut call = redis::cmd("EVALSHA");
    call.arg(&*scripts.release).arg(1).arg(key(lease.1)).arg(lease.0);
    let done: i64 =
        call.query_async(&mut scripts.connection).await.map_err(|_| StatusCode::SERVICE_UNAVAILABLE)?;
    if done == 1 { Ok(Json(json!({ "name": lease.1 }))) } else { Err(StatusCode::GONE) }
}

fn key(name: &str) -> String {
    format!("lockkeeper:{{bench/_bare/{name}}}")
}
