//! The parts of a request, read within limits: the JSON of its body, its query, and its `Idempotency-Key`.

use std::sync::Arc;

use axum::{
    extract::{FromRequest, FromRequestParts, Query, Request},
    http::{header, request::Parts},
};
use bytes::Bytes;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use lockkeeper::support::duration;
use serde::de::DeserializeOwned;
use std::time::Duration;

use crate::{
    app::App,
    caller::Caller,
    idempotency,
    problem::{Code, Problem},
};

/// The JSON of a request.
pub(crate) struct Asked<T> {
    pub(crate) value: T,
    pub(crate) bytes: Bytes,
    /// The `Idempotency-Key`, if there is one.
    pub(crate) key: Option<String>,
}

impl<T: DeserializeOwned> FromRequest<Arc<App>> for Asked<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, app: &Arc<App>) -> Result<Self, Problem> {
        let (parts, body) = request.into_parts();
        let kind = parts.headers.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
        let kind = kind.and_then(|kind| kind.split(';').next()).unwrap_or_default().trim();
        if !kind.eq_ignore_ascii_case("application/json") {
            return Err(Problem::new(
                Code::NotJson,
                "the body must be JSON, and its Content-Type must say so",
            ));
        }
        let key = key(&parts)?;
        let limits = &app.settings.limits;
        let collected =
            tokio::time::timeout(limits.patience, Limited::new(body, limits.body).collect()).await;
        let bytes = match collected {
            Ok(Ok(collected)) => collected.to_bytes(),
            Ok(Err(error)) if error.is::<LengthLimitError>() => {
                let message = format!("the body is larger than {} bytes", limits.body);
                return Err(Problem::new(Code::TooLarge, message));
            }
            Ok(Err(_)) => return Err(Problem::invalid("the body ended too early")),
            Err(_) => return Err(Problem::new(Code::TooSlow, "the body did not arrive in time")),
        };
        let value = serde_json::from_slice(&bytes).map_err(|error| {
            Problem::new(Code::NotJson, format!("the body is not what is needed: {error}"))
        })?;
        if let Some(caller) = parts.extensions.get::<Caller>() {
            caller.begin()?;
        }
        Ok(Self { value, bytes, key })
    }
}

fn key(parts: &Parts) -> Result<Option<String>, Problem> {
    let mut keys = parts.headers.get_all("idempotency-key").iter();
    let Some(key) = keys.next() else { return Ok(None) };
    let good = |key: &&str| {
        (1..=idempotency::LONGEST).contains(&key.len()) && key.bytes().all(|byte| byte.is_ascii_graphic())
    };
    match (key.to_str().ok().filter(good), keys.next()) {
        (Some(key), None) => Ok(Some(key.to_owned())),
        _ => Err(Problem::invalid("the Idempotency-Key must be 1 to 255 letters without blanks, once")),
    }
}

/// The query of a request.
pub(crate) struct Params<T>(pub(crate) T);

impl<T: DeserializeOwned> FromRequestParts<Arc<App>> for Params<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _app: &Arc<App>) -> Result<Self, Problem> {
        let query = Query::<T>::try_from_uri(&parts.uri);
        let Query(value) =
            query.map_err(|error| Problem::invalid(format!("the query is not what is needed: {error}")))?;
        Ok(Self(value))
    }
}

/// Reads a time in the form of the command, such as `30s`.
pub(crate) fn time(what: &str, text: Option<&str>) -> Result<Option<Duration>, Problem> {
    let parsed = text.map(duration::parse).transpose();
    parsed.map_err(|why| Problem::invalid(format!("{what} is no time: {why}")))
}
