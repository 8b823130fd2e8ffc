//! The JSON of latches: requests, and latches as they are shown.

use lockkeeper::store::CountState;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::listings::SampleInfo;

/// A latch.
#[derive(Serialize, ToSchema)]
pub(crate) struct LatchView {
    /// Its name.
    pub(crate) name: String,
    /// The count that is left.
    pub(crate) remaining: u64,
    /// The count that it was created with.
    pub(crate) initial: u64,
}

impl LatchView {
    pub(crate) fn new(name: &str, state: &CountState) -> Self {
        Self { name: name.to_owned(), remaining: state.remaining, initial: state.initial }
    }
}

/// A part of a listing of latches, in the order of their names.
#[derive(Serialize, ToSchema)]
pub(crate) struct LatchPage {
    /// The sample that it is from.
    #[serde(flatten)]
    pub(crate) sample: SampleInfo,
    /// The name after which the next page starts; null if there is none.
    pub(crate) next: Option<String>,
    /// The latches.
    pub(crate) latches: Vec<LatchView>,
}

/// A latch to create.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct LatchCreate {
    /// Its name.
    #[schema(min_length = 1, max_length = 512, pattern = r"^[^\x00-\x1f\x7f-\x9f]+$")]
    pub(crate) name: String,
    /// How many to count.
    #[schema(example = 3)]
    pub(crate) count: u64,
}

/// A latch to count down.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct LatchDown {
    /// Its name.
    #[schema(min_length = 1, max_length = 512, pattern = r"^[^\x00-\x1f\x7f-\x9f]+$")]
    pub(crate) name: String,
    /// By how many; 1 without it.
    pub(crate) count: Option<u64>,
}

/// A latch to wait for.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct LatchWait {
    /// Its name.
    #[schema(min_length = 1, max_length = 512, pattern = r"^[^\x00-\x1f\x7f-\x9f]+$")]
    pub(crate) name: String,
    /// How long to wait at most, such as `30s`. Without it, or with `0s`, it is only looked at.
    #[schema(example = "0s")]
    pub(crate) wait: Option<String>,
}

/// A latch to work with.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct LatchName {
    /// Its name.
    #[schema(min_length = 1, max_length = 512, pattern = r"^[^\x00-\x1f\x7f-\x9f]+$")]
    pub(crate) name: String,
}

/// A latch that was counted down.
#[derive(Serialize, ToSchema)]
pub(crate) struct LatchLeft {
    /// Its name.
    pub(crate) name: String,
    /// The count that is left.
    pub(crate) remaining: u64,
}

/// A latch that something was done with.
#[derive(Serialize, ToSchema)]
pub(crate) struct LatchDone {
    /// Its name.
    pub(crate) name: String,
}
