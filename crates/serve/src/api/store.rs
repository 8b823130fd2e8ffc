//! `/v1/whoami` and `/v1/store`: facts that a page needs before it shows anything.

use std::sync::Arc;

use axum::{extract::State, response::Response};

use crate::{
    app::{App, ok, to_json},
    caller::Caller,
    problem::{Problem, Refusals},
    shapes::{StoreInfo, Survives, WhoAmI, millis},
};

/// Shows the rights of the request's token.
#[utoipa::path(
    get,
    path = "/v1/whoami",
    tag = "looking",
    responses((status = 200, description = "The token's name, role and prefixes", body = WhoAmI), Refusals)
)]
pub(super) async fn whoami(caller: Caller) -> Result<Response, Problem> {
    let who = &caller.who;
    let name = who.name.to_string();
    Ok(ok(to_json(&WhoAmI { name, role: who.role.word(), prefixes: who.prefixes.clone() })?))
}

/// Shows the abilities of the store behind this server, and the troubles that it survives.
#[utoipa::path(
    get,
    path = "/v1/store",
    tag = "looking",
    responses((status = 200, description = "The store", body = StoreInfo), Refusals)
)]
pub(super) async fn store(State(app): State<Arc<App>>, _caller: Caller) -> Result<Response, Problem> {
    let can = app.keeper.capability();
    let info = StoreInfo {
        url: app.keeper.url().to_owned(),
        store: can.store,
        version: env!("CARGO_PKG_VERSION"),
        default_lease_ms: millis(app.keeper.default_lease()),
        min_lease_ms: millis(can.min_lease),
        max_lease_ms: millis(can.max_lease),
        longest_wait_ms: millis(app.settings.limits.longest_wait),
        between_processes: can.between_processes,
        pushes: can.pushes,
        frees_crashed_at_once: can.frees_crashed_at_once,
        survives: Survives {
            client_crash: can.client_crash.word(),
            restart: can.restart.word(),
            data_loss: can.data_loss.word(),
            clock_jump: can.clock_jump.word(),
        },
    };
    Ok(ok(to_json(&info)?))
}
