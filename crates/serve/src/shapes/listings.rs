//! The JSON of listings: the names to list, and the sample that they are from.

use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::locks::Lock;

/// The names to list.
#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(crate) struct ListParams {
    /// Only names that start with this.
    #[serde(default)]
    pub(crate) prefix: String,
    /// Only names after this one: the `next` of the page before.
    pub(crate) after: Option<String>,
    /// At most so many, 1 to 10000; 1000 without it.
    #[param(minimum = 1, maximum = 10000)]
    pub(crate) limit: Option<usize>,
}

/// A name.
#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(crate) struct NameParams {
    /// The name.
    #[param(min_length = 1, max_length = 512, pattern = r"^[^\x00-\x1f\x7f-\x9f]+$")]
    pub(crate) name: String,
}

/// The changes to hear of.
#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(crate) struct EventParams {
    /// Only names that start with this.
    #[serde(default)]
    pub(crate) prefix: String,
    /// Begin with the differences from this sample, if it is the latest: the `sample` of `/v1/locks`. Otherwise, and
    /// without it, all locks and latches come first.
    pub(crate) since: Option<u64>,
}

/// Facts about the listing that a sample was made of.
#[derive(Serialize, ToSchema)]
pub(crate) struct SampleInfo {
    /// The number of the sample. It grows by one with each, and begins anew with the server.
    pub(crate) sample: u64,
    /// The moment at which it was taken, by this server's clock.
    pub(crate) at: String,
    /// How long ago that was.
    pub(crate) age_ms: u64,
    /// How long it took.
    pub(crate) took_ms: u64,
    /// How often one is taken while somebody looks.
    pub(crate) every_ms: u64,
    /// How many names are held or waited for in all, of those that this token may see.
    pub(crate) total_locks: usize,
    /// How many latches there are in all, of those that this token may see.
    pub(crate) total_latches: usize,
}

/// A part of a listing of locks, in the order of their names. It is written as text, and only described by this.
#[derive(Serialize, ToSchema)]
pub(crate) struct LockPage {
    /// The sample that it is from.
    #[serde(flatten)]
    pub(crate) sample: SampleInfo,
    /// The name after which the next page starts; null if there is none.
    pub(crate) next: Option<String>,
    /// The locks.
    pub(crate) locks: Vec<Lock>,
}
