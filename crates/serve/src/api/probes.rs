//! `/healthz` and `/readyz`: for balancers, without a token.

use std::sync::Arc;

use axum::{extract::State, http::StatusCode};

use crate::app::App;

/// The process lives.
pub(super) async fn healthz() -> &'static str {
    "ok\n"
}

/// It is worth sending requests here.
pub(super) async fn readyz(State(app): State<Arc<App>>) -> (StatusCode, &'static str) {
    match app.is_ready().await {
        true => (StatusCode::OK, "ready\n"),
        false => (StatusCode::SERVICE_UNAVAILABLE, "not ready\n"),
    }
}
