//! The JSON for operators: evictions, the rights of a token, and the store behind the server.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Holders to evict.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct EvictRequest {
    /// The name of the lock.
    #[schema(min_length = 1, max_length = 512, pattern = r"^[^\x00-\x1f\x7f-\x9f]+$")]
    pub(crate) name: String,
    /// Only the holder with this token; without it, every holder there is now.
    pub(crate) token: Option<String>,
    /// Whether the lock passes at once, while the holder may still work: safe only where tokens are checked.
    #[serde(default)]
    pub(crate) now: bool,
    /// The reason, for the record and for the holder.
    #[schema(min_length = 1, max_length = 4096, example = "its machine is gone")]
    pub(crate) reason: String,
}

/// Holders that were evicted.
#[derive(Serialize, ToSchema)]
pub(crate) struct Evictions {
    /// The name of the lock.
    pub(crate) name: String,
    /// The holders; none if nobody held it.
    pub(crate) evicted: Vec<EvictedHolder>,
}

/// A holder that was evicted.
#[derive(Serialize, ToSchema)]
pub(crate) struct EvictedHolder {
    /// Its fencing token.
    pub(crate) token: String,
    /// The host, or the address of a caller of this API.
    pub(crate) host: String,
    /// The process; 0 for a caller of this API.
    pub(crate) pid: u32,
    /// The program, or the name of the token of a caller of this API.
    pub(crate) program: String,
    /// Whether the order stands. If not, it had left before.
    pub(crate) done: bool,
}

/// The rights of a token.
#[derive(Serialize, ToSchema)]
pub(crate) struct WhoAmI {
    /// The name of its owner in logs and on holders.
    pub(crate) name: String,
    /// `look`, `use` or `administer`.
    pub(crate) role: &'static str,
    /// Beginnings of the names that it may use; none if it may use all.
    pub(crate) prefixes: Vec<String>,
}

/// The store behind this server.
#[derive(Serialize, ToSchema)]
pub(crate) struct StoreInfo {
    /// Its URL, without its password.
    pub(crate) url: String,
    /// Its kind, such as `redis`.
    pub(crate) store: &'static str,
    /// The version of this server.
    pub(crate) version: &'static str,
    /// The lease of a request that names none.
    pub(crate) default_lease_ms: u64,
    /// The shortest lease.
    pub(crate) min_lease_ms: u64,
    /// The longest lease.
    pub(crate) max_lease_ms: u64,
    /// The longest `wait` of a request.
    pub(crate) longest_wait_ms: u64,
    /// Whether locks are shared between processes.
    pub(crate) between_processes: bool,
    /// Whether a release reaches the next waiter at once.
    pub(crate) pushes: bool,
    /// Whether the end of a process frees its locks before their leases end.
    pub(crate) frees_crashed_at_once: bool,
    /// Whether it survives each trouble: `yes`, `with the fence`, `no` or `n/a`.
    pub(crate) survives: Survives,
}

/// The troubles that a store may survive.
#[derive(Serialize, ToSchema)]
pub(crate) struct Survives {
    /// A client that crashes.
    pub(crate) client_crash: &'static str,
    /// A restart of the store.
    pub(crate) restart: &'static str,
    /// A restart of the store without its data.
    pub(crate) data_loss: &'static str,
    /// A jump of the store's clock.
    pub(crate) clock_jump: &'static str,
}
