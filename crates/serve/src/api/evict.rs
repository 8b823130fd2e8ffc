//! `/v1/evict`: evicts the holders of a lock.

use std::sync::Arc;

use axum::{extract::State, response::Response};
use lockkeeper::{Token, store::Eviction};
use lockkeeper_console::Eviction as Noted;
use serde_json::json;

use crate::{
    app::App,
    caller::Caller,
    problem::{Problem, Refusals},
    request::Asked,
    shapes::{EvictRequest, EvictedHolder, Evictions},
};

/// The longest reason, in bytes. It is checked even if nobody holds the lock.
const LONGEST_REASON: usize = 4096;

/// Evicts one holder of a lock, or all of its present holders. Later holders are not evicted.
///
/// The holder's renewals are refused from then on, and the lock passes when it leaves or when its lease ends. With `now` it
/// passes at once, while the holder may still work.
#[utoipa::path(
    post,
    path = "/v1/evict",
    tag = "operating",
    request_body = EvictRequest,
    responses((status = 200, description = "The order was given to these", body = Evictions), Refusals)
)]
pub(super) async fn evict(
    State(app): State<Arc<App>>,
    caller: Caller,
    asked: Asked<EvictRequest>,
) -> Result<Response, Problem> {
    super::change(app, caller, "/v1/evict", asked, async move |app: Arc<App>, caller: Caller, request| {
        evicted(&app, &caller, request).await
    })
    .await
}

async fn evicted(app: &App, caller: &Caller, request: EvictRequest) -> Result<Evictions, Problem> {
    let EvictRequest { name, token, now, reason } = request;
    caller.check_name(&name)?;
    if reason.trim().is_empty() {
        return Err(Problem::invalid("an eviction needs a reason, for the record and for the holder"));
    }
    if reason.len() > LONGEST_REASON {
        return Err(Problem::invalid(format!(
            "the reason is longer than {LONGEST_REASON} bytes; shorten it"
        )));
    }
    let token: Option<Token> = token.map(|token| token.parse()).transpose()?;
    let mut holders = app.keeper.inspect(&name).await?.map(|view| view.holders).unwrap_or_default();
    if let Some(token) = token {
        // A hand-on inside a process has a later step of the same grant.
        holders.retain(|holder| holder.token.number() == token.number());
    }
    let how = if now { Eviction::Immediate } else { Eviction::Graceful };
    let mut evicted = Vec::new();
    for holder in holders {
        let result = app.keeper.evict_because(&name, holder.contender, holder.token, how, &reason).await;
        let result = result.map_err(Problem::from);
        let process = &holder.details.process;
        let what = match &result {
            Ok(true) => "evicted",
            Ok(false) => "had_left",
            Err(problem) => problem.code.word(),
        };
        let more = json!({
            "token": holder.token.to_string(), "now": now, "reason": reason,
            "holder": format!("{}[{}]@{}", process.program, process.pid, process.host),
        });
        app.audit(caller, "evict", &name, what, more);
        if let Ok(true) = result {
            let (by, reason) = (caller.who.name.clone(), reason.as_str().into());
            app.watched.console.evicted(&name, holder.token, Noted { by, reason, immediate: now });
        }
        app.remembered.ended(&name, holder.token);
        evicted.push(EvictedHolder {
            token: holder.token.to_string(),
            host: process.host.clone(),
            pid: process.pid,
            program: process.program.clone(),
            done: result?,
        });
    }
    Ok(Evictions { name, evicted })
}
