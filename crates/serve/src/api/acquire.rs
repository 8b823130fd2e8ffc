//! `/v1/acquire`: a claim whose hold belongs to no process from the grant on, so it is one request to the store.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use axum::{extract::State, response::Response};
use lockkeeper::{
    Lease,
    lock::{AcquiredLease, LeaseClaim},
    store::{Capacity, Kind, ProcessInfo, Units},
};
use serde_json::json;

use crate::{
    app::{App, ok, to_json},
    caller::Caller,
    delivery::{GrantBody, Undelivered},
    idempotency::{self, Answer, Key},
    metrics,
    problem::{Code, ErrorBody, Problem, Refusals},
    request::{Asked, time},
    shapes::{AcquireRequest, Acquired, millis},
};

const PATH: &str = "/v1/acquire";
/// The least time to wait that a repeat keeps when its turn comes.
const SHORTEST_WAIT: Duration = Duration::from_millis(1);

/// Acquires a lock, or waits for it.
///
/// Nobody but the caller renews the lease. A caller that hangs up while it waits leaves the queue, and a grant that
/// cannot be sent is released. With an `Idempotency-Key` it is kept instead, so that a repeat of the request to the
/// same server gets it.
#[utoipa::path(
    post,
    path = "/v1/acquire",
    tag = "locks",
    request_body = AcquireRequest,
    params(("Idempotency-Key" = Option<String>, Header, description = "A repeat with the same key gets the same lease")),
    responses(
        (status = 200, description = "It is held", body = Acquired),
        (status = 409, description = "It is busy, was not free in time, or is in use with another capacity", body = ErrorBody),
        Refusals,
    )
)]
pub(super) async fn acquire(
    State(app): State<Arc<App>>,
    caller: Caller,
    asked: Asked<AcquireRequest>,
) -> Result<Response, Problem> {
    let Asked { value: request, bytes, key } = asked;
    caller.check_name(&request.name)?;
    let claim = claim(&app, &caller, &request)?;
    let wait = time("wait", request.wait.as_deref())?.unwrap_or_default();
    let asked = Claimed { app: &app, caller: &caller, name: &request.name, claim: &claim };
    // A repeat that waits for the first request waits, too.
    let _waiting = app.wait(wait).map_err(|problem| asked.refused(problem))?;
    let Some(key) = key else {
        let (lease, acquired) = asked.take(wait).await?;
        let grant = Undelivered::new(lease, &app.keeper, &app.log, &app.work);
        let body = GrantBody::new(to_json(&acquired)?, grant, caller.peer.delivery.clone());
        return Ok(ok(axum::body::Body::new(body)));
    };
    let key = Key { who: caller.who.id, path: PATH, key };
    let end = Instant::now() + wait;
    let turn = if wait.is_zero() { idempotency::TURN } else { wait };
    let work = async {
        // A wait whose time went by before its turn is still no try.
        let left = end.saturating_duration_since(Instant::now()).max(wait.min(SHORTEST_WAIT));
        let (lease, acquired) = asked.take(left).await?;
        Ok(Answer::Acquired(Box::new(acquired), Box::new(lease)))
    };
    match app.remembered.once(key, &bytes, turn, work, |answer| asked.again(answer)).await? {
        Answer::Acquired(acquired, _) => Ok(ok(to_json(&acquired)?)),
        Answer::Other(json) => Ok(ok(json)),
    }
}

/// Returns the claim that the request asks for.
fn claim(app: &App, caller: &Caller, request: &AcquireRequest) -> Result<LeaseClaim, Problem> {
    let (kind, units, capacity) = match (request.shared, &request.permits, &request.value) {
        (false, None, None) => (Kind::Mutex, Units::All, Capacity::All),
        (true, None, None) => (Kind::RwLock, Units::ONE, Capacity::All),
        (false, Some(permits), None) => {
            let (units, capacity) = parse_permits(permits)?;
            (Kind::Semaphore, units, capacity)
        }
        (false, None, Some(_)) => (Kind::Election, Units::All, Capacity::All),
        _ => return Err(Problem::invalid("shared, permits and value exclude each other; give one of them")),
    };
    let mut claim = LeaseClaim::new(kind, units, capacity);
    claim.lease = time("lease", request.lease.as_deref())?.unwrap_or(app.keeper.default_lease());
    claim.min_hold = time("min_hold", request.min_hold.as_deref())?.unwrap_or_default();
    claim.label.clone_from(&request.label);
    claim.value.clone_from(&request.value);
    claim.process =
        Some(ProcessInfo { host: caller.from.to_string(), pid: 0, program: caller.who.name.to_string() });
    Ok(claim)
}

fn parse_permits(text: &str) -> Result<(Units, Capacity), Problem> {
    let parsed = text.split_once('/').and_then(|(k, n)| Some((k.parse().ok()?, n.parse().ok()?)));
    match parsed {
        Some((k, n)) if 1 <= k && k <= n => Ok((Units::count(k)?, Capacity::count(n)?)),
        _ => Err(Problem::invalid("permits must be K/N with 1 <= K <= N, such as 1/4")),
    }
}

/// A claim of a caller.
#[derive(Clone, Copy)]
struct Claimed<'a> {
    app: &'a App,
    caller: &'a Caller,
    name: &'a str,
    claim: &'a LeaseClaim,
}

impl Claimed<'_> {
    /// Acquires the lock, and logs the outcome.
    async fn take(self, wait: Duration) -> Result<(Lease, Acquired), Problem> {
        let mut left = HungUp { asked: self, armed: true };
        let result = self.acquired(wait).await;
        left.armed = false;
        let outcome = super::outcome(&result, "granted");
        let token = result.as_ref().ok().map(|(lease, _)| lease.token().to_string());
        self.app.audit(self.caller, "acquire", self.name, outcome, json!({ "token": token }));
        result
    }

    /// Logs that the claim was refused.
    fn refused(self, problem: Problem) -> Problem {
        self.app.audit(self.caller, "acquire", self.name, problem.code.word(), json!({ "token": null }));
        problem
    }

    async fn acquired(self, wait: Duration) -> Result<(Lease, Acquired), Problem> {
        let Self { app, caller, name, claim } = self;
        let started = Instant::now();
        let work = async { Ok(app.keeper.acquire_lease(name, claim, Some(wait)).await?) };
        let granted = app.until_drained(work).await?;
        if wait.is_zero() {
            metrics::store_request("acquire", started);
        }
        let Some(AcquiredLease { lease, remaining, .. }) = granted else {
            return Err(Problem::new(Code::Busy, "somebody else holds it or waits for it"));
        };
        if let Err(problem) = caller.check_current() {
            drop(Undelivered::new(lease, &app.keeper, &app.log, &app.work));
            return Err(problem);
        }
        let acquired = Acquired {
            name: name.to_owned(),
            lease: lease.to_string(),
            token: lease.token().to_string(),
            floor: lease.floor().to_string(),
            expires_in_ms: millis(remaining),
        };
        Ok((lease, acquired))
    }

    /// Returns the answer to a repeat. The lease may have been released, evicted or ended: only the store knows, so it
    /// is renewed.
    async fn again(self, before: Answer) -> Result<Answer, Problem> {
        let Answer::Acquired(mut acquired, lease) = before else { return Ok(before) };
        let mut left = HungUp { asked: self, armed: true };
        let started = Instant::now();
        let renewed = self.app.keeper.renew_lease(&lease).await.map_err(Problem::from);
        left.armed = false;
        metrics::store_request("renew", started);
        let outcome = super::outcome(&renewed, "repeated");
        self.app.audit(self.caller, "acquire", self.name, outcome, json!({ "token": acquired.token }));
        acquired.expires_in_ms = millis(renewed?);
        Ok(Answer::Acquired(acquired, lease))
    }
}

/// Logs that a caller hung up, if it is dropped while armed.
struct HungUp<'a> {
    asked: Claimed<'a>,
    armed: bool,
}

impl Drop for HungUp<'_> {
    fn drop(&mut self) {
        if self.armed {
            let Claimed { app, caller, name, .. } = self.asked;
            app.audit(caller, "acquire", name, "hung_up", json!({}));
        }
    }
}
