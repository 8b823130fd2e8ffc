//! A store made of three, five or seven independent servers, of which a majority decides.
//!
//! ```text
//! quorum:max_lease=60s,redis://a,redis://b,redis://c
//! ```
//!
//! Leading `key=value` items are the quorum's [settings](OPTIONS), and all items after them are the URLs of its
//! members. `%2C` stands for a comma in the URL of a member. Members are single servers of Redis, PostgreSQL, MariaDB
//! or MySQL, and SQLite files, in any mix. All clients name the same members in the same order, and the same
//! `max_lease`.
//!
//! [`Attempt`] is the protocol from the view of one contender: a pure state machine without I/O and without a clock of
//! its own. Members' answers go in; requests to members and, in the end, a hold come out. The rules are in
//! `docs/design.md`, chapter "Quorum". The model checker in this crate's tests runs this very code against members that
//! are the real [model](lockkeeper_core::model), and [`connector`] runs it against real ones.
//!
//! # Limits
//!
//! Semaphores and latches are refused. The fence is refused where a member may lose its data. A lock lasts at most
//! `max_lease` without a renewal.

mod attempt;
mod connect;
mod contest;
mod entrance;
mod founding;
#[cfg(unix)]
mod life_line;
mod link;
mod majority;
mod member_ids;
mod operator;
mod outbox;
mod quorum;
mod record;
mod settings;
mod steward;
mod store;
mod views;

use lockkeeper_core::{StoreError, store::Connector};

pub use attempt::{Ask, Attempt, Ended, Hold, Request, Said, Sharing, Stamp};
pub use majority::Majority;
pub use operator::MemberReport;
pub use store::CAPABILITY;

/// The settings that a URL may have before its members.
pub const OPTIONS: &[&str] = settings::OPTIONS;

/// Connects to the quorum that `url` names. `member` makes the connector of each member.
///
/// A client starts as soon as a majority of the members can be reached. The members of a new quorum begin to vote when
/// a client has watched all of them for the longest lease; [`found_fresh`] has them vote at once.
///
/// # Errors
/// [`StoreErrorKind::Config`](lockkeeper_core::StoreErrorKind) if the URL is wrong; the message never repeats it.
pub fn connector(
    url: &str,
    member: impl Fn(&str) -> Result<Connector, StoreError>,
) -> Result<Connector, StoreError> {
    let (settings, members) = connectors(url, member)?;
    Ok(connect::connector(settings, members))
}

/// The URLs of the members of the quorum that `url` names, in order.
///
/// # Errors
/// As [`connector`].
pub fn members(url: &str) -> Result<Vec<String>, StoreError> {
    Ok(settings::Settings::parse(url)?.members)
}

/// The settings of a URL and the connectors of its members.
fn connectors(
    url: &str,
    member: impl Fn(&str) -> Result<Connector, StoreError>,
) -> Result<(settings::Settings, Vec<Connector>), StoreError> {
    let settings = settings::Settings::parse(url)?;
    let members = settings.members.iter().map(|url| member(url)).collect::<Result<Vec<_>, _>>()?;
    Ok((settings, members))
}

/// Founds the quorum that `url` names, so that its members vote at once. The caller vouches that no client has used
/// them as members of a quorum for at least the longest lease.
///
/// # Errors
/// [`StoreError`] if a member cannot be reached, or is a member of a quorum already.
pub async fn found_fresh(
    url: &str,
    member: impl Fn(&str) -> Result<Connector, StoreError>,
) -> Result<(), StoreError> {
    let (settings, members) = connectors(url, member)?;
    founding::found_fresh(&settings, members).await
}

/// Founds the quorum that `url` names: watches all its members for the longest lease, and has them vote. `tell` hears
/// the reasons for waiting.
///
/// # Errors
/// [`StoreError`] if a member cannot be reached or belongs to another quorum.
pub async fn found(
    url: &str,
    member: impl Fn(&str) -> Result<Connector, StoreError>,
    tell: impl FnMut(&str),
) -> Result<(), StoreError> {
    let (settings, members) = connectors(url, member)?;
    operator::have_vote(&settings, members, connect::Wanted::All, tell).await
}

/// Watches members that may have lost their data for the longest lease, and has them vote again, if they can be
/// reached. `tell` hears the reasons for waiting.
///
/// # Errors
/// [`StoreError`] if no majority can be reached, or a member belongs to another quorum.
pub async fn rejoin(
    url: &str,
    member: impl Fn(&str) -> Result<Connector, StoreError>,
    tell: impl FnMut(&str),
) -> Result<(), StoreError> {
    let (settings, members) = connectors(url, member)?;
    operator::have_vote(&settings, members, connect::Wanted::Majority, tell).await
}

/// Has the server `new` take the place of the member `old`, which is dead or about to go. All other members learn of
/// it, and the new one votes when they have known of it for the longest lease. It may be started again if it was ended
/// half-way. From then on, all clients have to name the new server in their URL.
///
/// # Errors
/// [`StoreError`] if `old` is not in `url`, if another member cannot be reached or does not vote, or if the new one
/// belongs to another quorum.
pub async fn replace(
    url: &str,
    old: &str,
    new: &str,
    member: impl Fn(&str) -> Result<Connector, StoreError>,
    tell: impl FnMut(&str),
) -> Result<(), StoreError> {
    let mut settings = settings::Settings::parse(url)?;
    let place = settings.replace(old, new)?;
    let members = settings.members.iter().map(|url| member(url)).collect::<Result<Vec<_>, _>>()?;
    operator::replace(&settings, members, place, tell).await
}

/// Looks at the members of the quorum that `url` names. It changes nothing.
///
/// # Errors
/// [`StoreError`] if the URL is wrong, or two members are the same server. A member that cannot be reached is in the
/// report.
pub async fn show(
    url: &str,
    member: impl Fn(&str) -> Result<Connector, StoreError>,
) -> Result<Vec<MemberReport>, StoreError> {
    let (settings, members) = connectors(url, member)?;
    operator::show_all(&settings, members).await
}

#[cfg(test)]
mod checker;
