//! `/v1/renew` and `/v1/release`, which take the lease of an answer. Each is one request to the store.

use std::{sync::Arc, time::Instant};

use axum::{extract::State, response::Response};
use lockkeeper::Lease;
use serde_json::json;

use crate::{
    app::App,
    caller::Caller,
    metrics,
    problem::{ErrorBody, Problem, Refusals},
    request::Asked,
    shapes::{LeaseRequest, Released, Renewed, millis},
};

fn lease(caller: &Caller, text: &str) -> Result<Lease, Problem> {
    let lease: Lease = text.parse()?;
    caller.check_name(lease.name().as_str())?;
    Ok(lease)
}

/// Renews a lease for as long as it was acquired for.
#[utoipa::path(
    post,
    path = "/v1/renew",
    tag = "locks",
    request_body = LeaseRequest,
    responses(
        (status = 200, description = "It is still held", body = Renewed),
        (status = 410, description = "It is no longer held", body = ErrorBody),
        Refusals,
    )
)]
pub(super) async fn renew(
    State(app): State<Arc<App>>,
    caller: Caller,
    asked: Asked<LeaseRequest>,
) -> Result<Response, Problem> {
    super::change(
        app,
        caller,
        "/v1/renew",
        asked,
        async move |app: Arc<App>, caller: Caller, request: LeaseRequest| {
            let lease = lease(&caller, &request.lease)?;
            let started = Instant::now();
            let result = app.keeper.renew_lease(&lease).await.map_err(Problem::from);
            metrics::store_request("renew", started);
            let token = lease.token().to_string();
            let name = lease.name().as_str();
            app.audit(&caller, "renew", name, super::outcome(&result, "renewed"), json!({ "token": token }));
            Ok(Renewed { name: name.to_owned(), token, expires_in_ms: millis(result?) })
        },
    )
    .await
}

/// Releases a lease. Its `min_hold` is kept.
#[utoipa::path(
    post,
    path = "/v1/release",
    tag = "locks",
    request_body = LeaseRequest,
    responses(
        (status = 200, description = "It was held until now", body = Released),
        (status = 410, description = "It was no longer held: somebody else may have been in between", body = ErrorBody),
        Refusals,
    )
)]
pub(super) async fn release(
    State(app): State<Arc<App>>,
    caller: Caller,
    asked: Asked<LeaseRequest>,
) -> Result<Response, Problem> {
    super::change(
        app,
        caller,
        "/v1/release",
        asked,
        async move |app: Arc<App>, caller: Caller, request: LeaseRequest| {
            let lease = lease(&caller, &request.lease)?;
            let started = Instant::now();
            let result = app.keeper.release_lease(&lease).await.map_err(Problem::from);
            metrics::store_request("release", started);
            let token = lease.token().to_string();
            let name = lease.name().as_str();
            app.remembered.ended(name, lease.token());
            app.audit(
                &caller,
                "release",
                name,
                super::outcome(&result, "released"),
                json!({ "token": token }),
            );
            result.map(|()| Released { name: name.to_owned(), token })
        },
    )
    .await
}
