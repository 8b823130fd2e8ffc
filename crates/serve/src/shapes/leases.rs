//! The JSON of leases: to acquire, to renew, to release, and to show to a fence.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A lock to acquire.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct AcquireRequest {
    /// The name of the lock: 1 to 512 bytes without control characters.
    #[schema(example = "stock/42", min_length = 1, max_length = 512, pattern = r"^[^\x00-\x1f\x7f-\x9f]+$")]
    pub(crate) name: String,
    /// How long to wait in the queue at most, such as `30s`. Without it, or with `0s`, it is only tried.
    #[schema(example = "30s")]
    pub(crate) wait: Option<String>,
    /// How long the lock stays held without a renewal, such as `1m`.
    #[schema(example = "1m")]
    pub(crate) lease: Option<String>,
    /// Whether it is held together with others that hold it shared.
    #[serde(default)]
    pub(crate) shared: bool,
    /// K of N permits, such as `1/4`. All callers give the same N.
    #[schema(example = json!(null))]
    pub(crate) permits: Option<String>,
    /// Exact order of arrival. Callers of this API always have it.
    #[serde(default)]
    #[expect(dead_code, reason = "it is always so")]
    pub(crate) fifo: bool,
    /// It is kept for at least this long, even if it is released before.
    pub(crate) min_hold: Option<String>,
    /// Words for people, shown with the holder.
    #[schema(max_length = 4096)]
    pub(crate) label: Option<String>,
    /// The text that a leader publishes, such as its address. It makes the lock an election.
    #[schema(max_length = 4096)]
    pub(crate) value: Option<String>,
}

/// A lock that was acquired.
#[derive(Clone, Serialize, ToSchema)]
pub(crate) struct Acquired {
    /// The name of the lock.
    pub(crate) name: String,
    /// The text that renews and releases it. Anybody who has it can do so: treat it as a key.
    pub(crate) lease: String,
    /// The fencing token. It grows with every holder.
    pub(crate) token: String,
    /// The smallest token that was held when this one was granted.
    pub(crate) floor: String,
    /// How long it is certainly held, counted from this answer. After a long wait, renew it and count from sending that.
    pub(crate) expires_in_ms: u64,
}

/// A lease to renew or to release.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct LeaseRequest {
    /// The `lease` of the answer to acquire.
    #[schema(min_length = 1)]
    pub(crate) lease: String,
}

/// A lease that was renewed.
#[derive(Serialize, ToSchema)]
pub(crate) struct Renewed {
    /// The name of the lock.
    pub(crate) name: String,
    /// The fencing token.
    pub(crate) token: String,
    /// How long it is certainly held, counted from this answer.
    pub(crate) expires_in_ms: u64,
}

/// A lock that was released.
#[derive(Serialize, ToSchema)]
pub(crate) struct Released {
    /// The name of the lock.
    pub(crate) name: String,
    /// Its fencing token.
    pub(crate) token: String,
}

/// A token to show to a fence.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct FenceRequest {
    /// The name of the fence, usually that of the lock.
    #[schema(min_length = 1, max_length = 512, pattern = r"^[^\x00-\x1f\x7f-\x9f]+$")]
    pub(crate) name: String,
    /// The fencing token.
    #[schema(example = "1837811290110431232")]
    pub(crate) token: String,
    /// The floor, for shared holds and permits; the token itself without it.
    pub(crate) floor: Option<String>,
}

/// A token that a fence admitted.
#[derive(Serialize, ToSchema)]
pub(crate) struct Admitted {
    /// The name of the fence.
    pub(crate) name: String,
    /// The token.
    pub(crate) token: String,
}
