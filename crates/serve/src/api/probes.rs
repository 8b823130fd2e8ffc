//! `/healthz` and `/readyz`: for balancers, without a token.

use std::sync::Arc;

use axum::{extract::State, http::StatusCode};

use crate::app::App;

/// Says that the process lives.
pub(super) async fn healthz() -> &'static str {
    "ok\n"
}

/// Says whether this server can do requests: it is not ending, and its store answers.
pub(super) async fn readyz(State(app): State<Arc<App>>) -> (StatusCode, &'static str) {
    match app.is_ready().await {
        true => (StatusCode::OK, "ready\n"),
        false => (StatusCode::SERVICE_UNAVAILABLE, "not ready\n"),
    }
}
