//! `/v1/locks` and `/v1/lock`: holders and waiters.

use std::{sync::Arc, time::Instant};

use axum::{extract::State, response::Response};
use lockkeeper::store::Name;

use crate::{
    app::{App, ok, to_json},
    caller::Caller,
    metrics,
    problem::{Problem, Refusals},
    request::Params,
    sample::{Entry, page},
    shapes::{ListParams, Lock, LockPage, NameParams},
};

/// How many names a page has unless the request says so, and at most.
const USUAL: usize = 1000;
const MOST: usize = 10_000;
/// A page with so many bytes gets no more locks: one lock may have thousands of waiters.
const LARGEST: usize = 1024 * 1024;

/// Returns the name that a page begins after, and the most names that it has.
pub(super) fn page_limits(params: &ListParams) -> Result<(Option<Name>, usize), Problem> {
    let after = params.after.as_deref().map(Name::new).transpose()?;
    let limit = params.limit.unwrap_or(USUAL);
    if !(1..=MOST).contains(&limit) {
        return Err(Problem::invalid(format!("limit must be 1 to {MOST}")));
    }
    Ok((after, limit))
}

/// Lists all names that are held or waited for, by a sample that this server takes at most once a second for all callers.
#[utoipa::path(
    get,
    path = "/v1/locks",
    tag = "looking",
    params(ListParams),
    responses((status = 200, description = "A page of the sample", body = LockPage), Refusals)
)]
pub(super) async fn locks(
    State(app): State<Arc<App>>,
    caller: Caller,
    Params(params): Params<ListParams>,
) -> Result<Response, Problem> {
    let (after, limit) = page_limits(&params)?;
    let sample = app.sample().await?;
    let (mut found, mut next) = page(&sample.locks, &caller.who, &params.prefix, after.as_ref(), limit);
    let mut bytes = 0;
    let fits = |(_, entry): &&(&Name, &Arc<Entry>)| {
        let before = bytes;
        bytes += entry.json().len();
        before < LARGEST
    };
    let fitting = found.iter().take_while(fits).count();
    if fitting < found.len() {
        found.truncate(fitting);
        next = found.last().map(|(name, _)| *name);
    }
    let head = LockPage {
        sample: sample.info(&caller.who),
        next: next.map(|name| name.as_str().to_owned()),
        locks: Vec::new(),
    };
    // Each lock is text already: it goes into the empty list at the end of the object.
    let mut text = String::from_utf8_lossy(&to_json(&head)?).into_owned();
    text.truncate(text.len() - "]}".len());
    for (index, (_, entry)) in found.iter().enumerate() {
        if index > 0 {
            text.push(',');
        }
        text.push_str(entry.json());
    }
    text.push_str("]}");
    Ok(ok(text))
}

/// Shows the present holders and waiters of a name.
#[utoipa::path(
    get,
    path = "/v1/lock",
    tag = "looking",
    params(NameParams),
    responses((status = 200, description = "The lock; a free one has neither holders nor waiters", body = Lock), Refusals)
)]
pub(super) async fn lock(
    State(app): State<Arc<App>>,
    caller: Caller,
    Params(NameParams { name }): Params<NameParams>,
) -> Result<Response, Problem> {
    caller.check_name(&name)?;
    let started = Instant::now();
    let view = app.keeper.inspect(&name).await?;
    metrics::store_request("inspect", started);
    let lock = view.as_ref().map_or_else(|| Lock::free(&name), Lock::from);
    Ok(ok(to_json(&lock)?))
}
