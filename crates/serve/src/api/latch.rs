//! `/v1/latch/…` and `/v1/latches`: countdowns that many wait for.

use std::{sync::Arc, time::Duration};

use axum::{extract::State, response::Response};
use serde_json::{Value, json};

use super::{change, outcome};
use crate::{
    app::{App, ok, to_json},
    caller::Caller,
    problem::{Code, ErrorBody, Problem, Refusals},
    request::{Asked, Params, time},
    sample::page,
    shapes::{
        LatchCreate, LatchDone, LatchDown, LatchLeft, LatchName, LatchPage, LatchView, LatchWait, ListParams,
        NameParams,
    },
};

/// Logs a change, and passes its result on.
fn audited<T>(
    app: &App,
    caller: &Caller,
    (what, done): (&str, &'static str),
    name: &str,
    result: Result<T, Problem>,
    more: Value,
) -> Result<T, Problem> {
    app.audit(caller, what, name, outcome(&result, done), more);
    result
}

/// Lists all latches, by the same sample as `/v1/locks`.
#[utoipa::path(
    get,
    path = "/v1/latches",
    tag = "looking",
    params(ListParams),
    responses((status = 200, description = "A page of the sample", body = LatchPage), Refusals)
)]
pub(super) async fn latches(
    State(app): State<Arc<App>>,
    caller: Caller,
    Params(params): Params<ListParams>,
) -> Result<Response, Problem> {
    let (after, limit) = super::locks::page_limits(&params)?;
    let sample = app.sample().await?;
    let (found, next) = page(&sample.latches, &caller.who, &params.prefix, after.as_ref(), limit);
    let page = LatchPage {
        sample: sample.info(&caller.who),
        next: next.map(|name| name.as_str().to_owned()),
        latches: found.into_iter().map(|(name, state)| LatchView::new(name.as_str(), state)).collect(),
    };
    Ok(ok(to_json(&page)?))
}

/// Creates a latch.
#[utoipa::path(
    post,
    path = "/v1/latch/create",
    tag = "latches",
    request_body = LatchCreate,
    params(("Idempotency-Key" = Option<String>, Header, description = "A repeat with the same key is done once")),
    responses(
        (status = 200, description = "It is there", body = LatchDone),
        (status = 409, description = "There is one of that name already", body = ErrorBody),
        Refusals,
    )
)]
pub(super) async fn create(
    State(app): State<Arc<App>>,
    caller: Caller,
    asked: Asked<LatchCreate>,
) -> Result<Response, Problem> {
    change(
        app,
        caller,
        "/v1/latch/create",
        asked,
        async move |app: Arc<App>, caller: Caller, LatchCreate { name, count }| {
            caller.check_name(&name)?;
            let result = app.keeper.latch(&name).create(count).await.map_err(Problem::from);
            audited(&app, &caller, ("latch create", "created"), &name, result, json!({ "count": count }))?;
            Ok(LatchDone { name })
        },
    )
    .await
}

/// Counts a latch down. Send an `Idempotency-Key`, or a repeat counts again.
#[utoipa::path(
    post,
    path = "/v1/latch/down",
    tag = "latches",
    request_body = LatchDown,
    params(("Idempotency-Key" = Option<String>, Header, description = "A repeat with the same key counts once")),
    responses(
        (status = 200, description = "It was counted down", body = LatchLeft),
        (status = 404, description = "There is no such latch", body = ErrorBody),
        Refusals,
    )
)]
pub(super) async fn down(
    State(app): State<Arc<App>>,
    caller: Caller,
    asked: Asked<LatchDown>,
) -> Result<Response, Problem> {
    change(
        app,
        caller,
        "/v1/latch/down",
        asked,
        async move |app: Arc<App>, caller: Caller, LatchDown { name, count }| {
            caller.check_name(&name)?;
            let count = count.unwrap_or(1);
            let result = app.keeper.latch(&name).count_down_by(count).await.map_err(Problem::from);
            let left =
                audited(&app, &caller, ("latch down", "counted"), &name, result, json!({ "count": count }))?;
            Ok(LatchLeft { name, remaining: left })
        },
    )
    .await
}

/// Waits until a latch has counted to zero.
#[utoipa::path(
    post,
    path = "/v1/latch/wait",
    tag = "latches",
    request_body = LatchWait,
    responses(
        (status = 200, description = "It is open", body = LatchDone),
        (status = 404, description = "There is no such latch", body = ErrorBody),
        (status = 409, description = "It was not open in time", body = ErrorBody),
        (status = 410, description = "It was deleted meanwhile", body = ErrorBody),
        Refusals,
    )
)]
pub(super) async fn wait(
    State(app): State<Arc<App>>,
    caller: Caller,
    asked: Asked<LatchWait>,
) -> Result<Response, Problem> {
    let LatchWait { name, wait } = asked.value;
    caller.check_name(&name)?;
    let wait = time("wait", wait.as_deref())?.unwrap_or_default();
    let _waiting = app.wait(wait.max(Duration::from_millis(1)))?;
    let latch = app.keeper.latch(&name);
    if wait.is_zero() {
        return match latch.state().await? {
            Some(state) if state.remaining == 0 => Ok(ok(to_json(&LatchDone { name })?)),
            Some(state) => Err(Problem::new(Code::NotInTime, format!("still {} to go", state.remaining))),
            None => Err(Problem::new(Code::NoLatch, "there is no such latch")),
        };
    }
    app.until_drained(async { Ok(latch.wait_within(wait).await?) }).await?;
    caller.check_current()?;
    Ok(ok(to_json(&LatchDone { name })?))
}

/// Shows a latch.
#[utoipa::path(
    get,
    path = "/v1/latch/show",
    tag = "latches",
    params(NameParams),
    responses(
        (status = 200, description = "The latch", body = LatchView),
        (status = 404, description = "There is no such latch", body = ErrorBody),
        Refusals,
    )
)]
pub(super) async fn show(
    State(app): State<Arc<App>>,
    caller: Caller,
    Params(NameParams { name }): Params<NameParams>,
) -> Result<Response, Problem> {
    caller.check_name(&name)?;
    match app.keeper.latch(&name).state().await? {
        Some(state) => {
            Ok(ok(to_json(&LatchView { name, remaining: state.remaining, initial: state.initial })?))
        }
        None => Err(Problem::new(Code::NoLatch, "there is no such latch")),
    }
}

/// Sets a latch back to the count that it was created with.
#[utoipa::path(
    post,
    path = "/v1/latch/reset",
    tag = "latches",
    request_body = LatchName,
    responses(
        (status = 200, description = "It was set back", body = LatchDone),
        (status = 404, description = "There is no such latch", body = ErrorBody),
        Refusals,
    )
)]
pub(super) async fn reset(
    State(app): State<Arc<App>>,
    caller: Caller,
    asked: Asked<LatchName>,
) -> Result<Response, Problem> {
    change(
        app,
        caller,
        "/v1/latch/reset",
        asked,
        async move |app: Arc<App>, caller: Caller, LatchName { name }| {
            caller.check_name(&name)?;
            let result = app.keeper.latch(&name).reset().await.map_err(Problem::from);
            audited(&app, &caller, ("latch reset", "reset"), &name, result, json!({}))?;
            Ok(LatchDone { name })
        },
    )
    .await
}

/// Deletes a latch.
#[utoipa::path(
    post,
    path = "/v1/latch/delete",
    tag = "latches",
    request_body = LatchName,
    responses(
        (status = 200, description = "It is gone", body = LatchDone),
        (status = 404, description = "There is no such latch", body = ErrorBody),
        Refusals,
    )
)]
pub(super) async fn delete(
    State(app): State<Arc<App>>,
    caller: Caller,
    asked: Asked<LatchName>,
) -> Result<Response, Problem> {
    change(
        app,
        caller,
        "/v1/latch/delete",
        asked,
        async move |app: Arc<App>, caller: Caller, LatchName { name }| {
            caller.check_name(&name)?;
            let result = app.keeper.latch(&name).delete().await.map_err(Problem::from);
            audited(&app, &caller, ("latch delete", "deleted"), &name, result, json!({}))?;
            Ok(LatchDone { name })
        },
    )
    .await
}
