//! Errors as callers see them: a status, a stable code, a sentence, and a remedy. All errors have this one shape.

use std::time::Duration;

use axum::{
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use lockkeeper::{
    AcquireError, Error, ReleaseError, StoreError,
    error::{FenceError, InvalidInput, LatchError, LeaseError, StoreErrorKind},
    support::{sentence, terminal},
};
use serde::Serialize;
use utoipa::{IntoResponses, ToSchema};

/// How soon a caller that was refused for now should come back.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// Defines the stable codes, each with its status and its remedy.
macro_rules! codes {
    ($($variant:ident $code:literal $status:ident $what_to_do:literal,)*) => {
        /// The kind of an error, as a word that programs compare.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub(crate) enum Code { $($variant,)* }

        impl Code {
            /// All of them, for documentation and tests.
            #[cfg(test)]
            pub(crate) const ALL: &[Self] = &[$(Self::$variant,)*];

            pub(crate) fn word(self) -> &'static str {
                match self { $(Self::$variant => $code,)* }
            }

            pub(crate) fn status(self) -> StatusCode {
                match self { $(Self::$variant => StatusCode::$status,)* }
            }

            fn what_to_do(self) -> &'static str {
                match self { $(Self::$variant => $what_to_do,)* }
            }
        }
    };
}

codes! {
    Invalid "invalid" BAD_REQUEST "change the request as the message says",
    NotJson "not_json" BAD_REQUEST "send one JSON object with the header Content-Type: application/json",
    TooSlow "too_slow" BAD_REQUEST "send the whole request at once",
    NotHttp "not_http" BAD_REQUEST "send a request of HTTP/1; if the server speaks TLS, call it by https://",
    KeyReused "key_reused" BAD_REQUEST "use a new Idempotency-Key for each request that differs",
    NoToken "no_token" UNAUTHORIZED "send the header Authorization: Bearer TOKEN",
    WrongToken "wrong_token" UNAUTHORIZED "ask the operator for a token; tokens may have been replaced",
    WrongRole "wrong_role" FORBIDDEN "use a token whose role allows it",
    WrongPrefix "wrong_prefix" FORBIDDEN "use a name that begins with one of your token's prefixes",
    WrongHost "wrong_host" FORBIDDEN "call it by a name that it knows, or start it with --host NAME",
    WrongOrigin "wrong_origin" FORBIDDEN "call it from its own page, or from a program",
    NotFound "not_found" NOT_FOUND "see /v1/openapi.json for all paths",
    NoLatch "no_latch" NOT_FOUND "create the latch first",
    WrongMethod "wrong_method" METHOD_NOT_ALLOWED "see /v1/openapi.json for the method of each path",
    Busy "busy" CONFLICT "try again later, or give a wait",
    NotInTime "not_in_time" CONFLICT "ask again, or wait longer",
    OtherCapacity "other_capacity" CONFLICT "use one capacity per name",
    LatchExists "latch_exists" CONFLICT "reset or delete it first, or use another name",
    StaleToken "stale_token" CONFLICT "stop: a later holder has been here",
    NotHeld "not_held" GONE "stop what the lock protects, and acquire it anew",
    LatchDeleted "latch_deleted" GONE "ask who deleted it, and create it anew",
    TooLarge "too_large" PAYLOAD_TOO_LARGE "send less",
    HeadTooLarge "head_too_large" REQUEST_HEADER_FIELDS_TOO_LARGE "send fewer and shorter headers",
    TooManyRequests "too_many_requests" TOO_MANY_REQUESTS "wait for as long as Retry-After says",
    TooManyWaiting "too_many_waiting" TOO_MANY_REQUESTS "wait for as long as Retry-After says, or ask another server",
    Internal "internal" INTERNAL_SERVER_ERROR "report it",
    StoreUnreachable "store_unreachable" SERVICE_UNAVAILABLE "try again; if it stays so, check the store",
    Refused "refused" SERVICE_UNAVAILABLE "check the store's settings, such as with lockkeeper doctor",
    ShuttingDown "shutting_down" SERVICE_UNAVAILABLE "ask again: another server, or this one after its restart",
}

/// The body of every error.
#[derive(Serialize, ToSchema)]
#[schema(as = Error)]
pub(crate) struct ErrorBody {
    /// A stable word that programs compare.
    #[schema(example = "busy")]
    pub(crate) code: &'static str,
    /// The mistake or the trouble, for people.
    pub(crate) message: String,
    /// The remedy, for people.
    pub(crate) what_to_do: &'static str,
}

/// The error of a request that was not done, or of which nobody knows whether it was.
#[derive(Debug)]
pub(crate) struct Problem {
    pub(crate) code: Code,
    message: String,
    retry_after: Option<Duration>,
}

impl Problem {
    pub(crate) fn new(code: Code, message: impl Into<String>) -> Self {
        let passes = matches!(code, Code::Busy | Code::NotInTime | Code::OtherCapacity)
            || matches!(code.status(), StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE);
        Self { code, message: message.into(), retry_after: passes.then_some(RETRY_AFTER) }
    }

    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        Self::new(Code::Invalid, message)
    }

    pub(crate) fn shutting_down() -> Self {
        Self::new(Code::ShuttingDown, "this server is shutting down")
    }

    /// Returns the JSON that callers get.
    pub(crate) fn body(&self) -> String {
        let body = ErrorBody {
            code: self.code.word(),
            message: self.message.clone(),
            what_to_do: self.code.what_to_do(),
        };
        terminal::json(serde_json::to_string(&body).unwrap_or_default())
    }

    /// Sets another time to come back than the usual one.
    pub(crate) fn retry_after(mut self, pause: Duration) -> Self {
        self.retry_after = Some(pause);
        self
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let Self { code, retry_after, .. } = self;
        let mut response = (code.status(), self.body()).into_response();
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        if let Some(pause) = retry_after {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(pause.as_secs().max(1)));
        }
        if code.status() == StatusCode::UNAUTHORIZED {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response.extensions_mut().insert(code);
        response
    }
}

impl From<InvalidInput> for Problem {
    fn from(error: InvalidInput) -> Self {
        Self::invalid(error.to_string())
    }
}

impl From<StoreError> for Problem {
    fn from(error: StoreError) -> Self {
        let code = match error.kind() {
            StoreErrorKind::Unreachable | StoreErrorKind::Conflict => Code::StoreUnreachable,
            _ => Code::Refused,
        };
        Self::new(code, sentence::of(&error))
    }
}

impl From<AcquireError> for Problem {
    fn from(error: AcquireError) -> Self {
        let code = match error {
            AcquireError::Store(error) => return error.into(),
            AcquireError::TimedOut { .. } => Code::NotInTime,
            AcquireError::CapacityMismatch { .. } => Code::OtherCapacity,
            AcquireError::Closed { .. } => return Self::shutting_down(),
            _ => Code::Invalid,
        };
        Self::new(code, sentence::of(&error))
    }
}

impl From<ReleaseError> for Problem {
    fn from(error: ReleaseError) -> Self {
        match error {
            ReleaseError::Store(error) => error.into(),
            _ => Self::new(Code::NotHeld, sentence::of(&error)),
        }
    }
}

impl From<LeaseError> for Problem {
    fn from(error: LeaseError) -> Self {
        match error {
            LeaseError::Store(error) => error.into(),
            LeaseError::NotHeld { .. } => Self::new(Code::NotHeld, sentence::of(&error)),
            _ => Self::invalid(sentence::of(&error)),
        }
    }
}

impl From<LatchError> for Problem {
    fn from(error: LatchError) -> Self {
        let code = match error {
            LatchError::Store(error) => return error.into(),
            LatchError::Missing { .. } => Code::NoLatch,
            LatchError::Exists { .. } => Code::LatchExists,
            LatchError::Deleted { .. } => Code::LatchDeleted,
            LatchError::TimedOut { .. } => Code::NotInTime,
            LatchError::Closed { .. } => return Self::shutting_down(),
            _ => Code::Invalid,
        };
        Self::new(code, sentence::of(&error))
    }
}

impl From<FenceError> for Problem {
    fn from(error: FenceError) -> Self {
        match error {
            // This store has no fences, so trying again never helps.
            FenceError::Store(error) if error.kind() == StoreErrorKind::Unsupported => {
                Self::invalid(sentence::of(&error))
            }
            FenceError::Store(error) => error.into(),
            FenceError::Stale { .. } => Self::new(Code::StaleToken, sentence::of(&error)),
            _ => Self::invalid(sentence::of(&error)),
        }
    }
}

impl From<Error> for Problem {
    fn from(error: Error) -> Self {
        match error {
            Error::Acquire(error) => error.into(),
            Error::Release(error) => error.into(),
            Error::Lease(error) => error.into(),
            Error::Latch(error) => error.into(),
            Error::Fence(error) => error.into(),
            Error::Invalid(error) => error.into(),
            Error::Store(error) => error.into(),
            _ => Self::new(Code::Internal, sentence::of(&error)),
        }
    }
}

/// The errors that every call of the API may answer with, for its description.
#[derive(IntoResponses)]
#[expect(dead_code, reason = "only described")]
pub(crate) enum Refusals {
    /// The request can never work.
    #[response(status = 400)]
    Invalid(ErrorBody),
    /// There is no token, or a wrong one.
    #[response(status = 401)]
    Unauthorized(ErrorBody),
    /// The token, the host or the origin does not allow it.
    #[response(status = 403)]
    Forbidden(ErrorBody),
    /// The request is too large.
    #[response(status = 413)]
    TooLarge(ErrorBody),
    /// The head of the request is too large.
    #[response(status = 431)]
    HeadTooLarge(ErrorBody),
    /// Too many requests; Retry-After says when to come back.
    #[response(status = 429)]
    TooMany(ErrorBody),
    /// The store is out of reach, or the server shuts down; Retry-After says when to come back.
    #[response(status = 503)]
    Unavailable(ErrorBody),
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// A stale token never becomes a new one, and a latch stays until somebody deletes it.
    #[test]
    fn only_what_passes_by_itself_says_when_to_come_back() {
        let comes_back = |code: &&Code| Problem::new(**code, "no").retry_after.is_some();
        let words: Vec<&str> = Code::ALL.iter().filter(comes_back).map(|code| code.word()).collect();
        let (busy, many) =
            (["busy", "not_in_time", "other_capacity"], ["too_many_requests", "too_many_waiting"]);
        let unavailable = ["store_unreachable", "refused", "shutting_down"];
        assert_eq!(words, [&busy[..], &many, &unavailable].concat());
    }

    #[test]
    fn codes_are_words_of_their_own() {
        let words: BTreeSet<_> = Code::ALL.iter().map(|code| code.word()).collect();
        assert_eq!(words.len(), Code::ALL.len());
        assert!(words.iter().all(|word| word.bytes().all(|b| b.is_ascii_lowercase() || b == b'_')));
    }
}
