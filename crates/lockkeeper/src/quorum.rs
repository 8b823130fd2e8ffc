//! The operations by hand on a quorum. The command `lockkeeper quorum` is made of these.

use crate::{StoreError, url};

pub use lockkeeper_quorum::MemberReport;

/// Founds the quorum that `url` names, so that its members vote at once. The caller vouches that no client has used
/// them as members of a quorum for at least the longest lease. Without this, the members of a new quorum begin to vote
/// when a client has watched all of them for that long.
///
/// # Errors
/// [`StoreError`] if a member cannot be reached, or is a member of a quorum already.
pub async fn found_fresh(url: &str) -> Result<(), StoreError> {
    lockkeeper_quorum::found_fresh(url, url::connector).await
}

/// Founds the quorum that `url` names: watches all its members for the longest lease, and has them vote. `tell` hears
/// each reason to wait. The call may be ended and started again at any time.
///
/// # Errors
/// [`StoreError`] if a member cannot be reached or belongs to another quorum.
pub async fn found(url: &str, tell: impl FnMut(&str)) -> Result<(), StoreError> {
    lockkeeper_quorum::found(url, url::connector, tell).await
}

/// Watches members that may have lost their data for the longest lease, and has them vote again, if they can be
/// reached. `tell` hears each reason to wait. Every client does this in the background; this call is for operators
/// without a client that lives that long.
///
/// # Errors
/// [`StoreError`] if no majority can be reached, or a member belongs to another quorum.
pub async fn rejoin(url: &str, tell: impl FnMut(&str)) -> Result<(), StoreError> {
    lockkeeper_quorum::rejoin(url, url::connector, tell).await
}

/// Has the server `new` take the place of the member `old`, which is named by its URL or its number. All other members
/// must vote. They learn of the new one, which votes when they have known of it for the longest lease. The call may be
/// started again if it was ended half-way. From then on, all clients have to name the new server in their URL.
///
/// # Errors
/// [`StoreError`] if `old` is not in `url`, if another member cannot be reached or does not vote, or if the new one belongs
/// to another quorum.
pub async fn replace(url: &str, old: &str, new: &str, tell: impl FnMut(&str)) -> Result<(), StoreError> {
    lockkeeper_quorum::replace(url, old, new, url::connector, tell).await
}

/// Looks at the members of the quorum that `url` names. It changes nothing.
///
/// # Errors
/// [`StoreError`] if the URL is wrong, or two members are the same server. A member that cannot be reached is in the report.
pub async fn show(url: &str) -> Result<Vec<MemberReport>, StoreError> {
    lockkeeper_quorum::show(url, url::connector).await
}
