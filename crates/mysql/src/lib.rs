//! The MariaDB and MySQL store: locks in the database that people already have (MariaDB 10.6 or newer, one primary).
//!
//! ```text
//! mysql://[user[:password]@]host[:port]/database          mariadb://… is the same
//! mysql://user@/database?socket=/run/mysqld/mysqld.sock   by the socket of a server on this host
//! ```
//!
//! | option | means | default |
//! |---|---|---|
//! | `prefix=app_` | the beginning of the names of the tables, which are made on first use | `lockkeeper_` |
//! | `socket=/path` | the socket of the server, instead of host and port | |
//! | `ssl-mode=verify_identity` | TLS with a certificate that is checked; `required` is the same | `disabled` |
//! | `ssl-ca=`, `ssl-cert=`, `ssl-key=` | PEM files for TLS | the system's certificates |
//! | `strict=true` | refuses a server on which locks are at risk | `false` |
//! | `request_limit=1s`, `connect_limit=1s` | how long a request, or connecting, may take | the keeper's, 2s |
//!
//! # How it works
//!
//! Rows in, the model's own step, rows out. A group of requests is one transaction in two round trips: the first locks
//! one row per name, reads the server's clock and the rows; the second writes the changes and commits. Of
//! several names, those that others have locked just then are asked again later, so no name waits for another.
//!
//! The server cannot tell anybody that something happened. So a keeper whose tasks wait reads about all of them in one
//! statement, every 5 ms after a queue has moved, and at most twice a second when it has not for long. A release grants
//! to the first waiter of the queue; its keeper sees that, and confirms.
//!
//! A keeper has up to three connections, on its own thread: one for requests, one for renewals, and one for work that
//! has to wait for others.
//!
//! # Limits
//!
//! A commit is on disk before it is answered, if the server is set up so ([`check()`]), so a restart loses nothing. A
//! failover to an asynchronous replica may lose the last grants; tokens still grow by the clock, so a fence keeps the
//! data right. MySQL 8 is not tested.

mod check;
mod codec;
mod connect;
mod connection;
mod counts;
mod durability;
mod flights;
mod groups;
mod layout;
mod listing;
mod member;
mod own;
mod server;
mod session;
mod settings;
mod statements;
mod store;
mod sweep;
#[cfg_attr(not(feature = "tls"), path = "without_tls.rs")]
mod tls;
mod trouble;
mod waits;
mod wakes;

use lockkeeper_core::{StoreError, store::Connector, support::lease_option};

use settings::Settings;

pub use check::{Finding, Risk, check};
pub use store::CAPABILITY;

/// All options of a URL, but `lease`, which every store has.
pub const OPTIONS: &[&str] = settings::OPTIONS;

/// Connects to the server that `url` names; see [the crate](self) for its forms.
///
/// ```no_run
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let connector = lockkeeper_mysql::connector("mysql://ada@localhost/shop?prefix=locks_")?;
/// let keeper = lockkeeper_core::Keeper::builder(connector).connect().await?;
/// let guard = keeper.mutex("stock/42").lock().await?;
/// guard.release().await?;
/// keeper.close().await;
/// # Ok(()) }
/// ```
///
/// # Errors
/// [`StoreErrorKind::Config`](lockkeeper_core::StoreErrorKind) if the URL is wrong; the message never repeats it.
pub fn connector(url: &str) -> Result<Connector, StoreError> {
    let (url, lease) = lease_option::take(url)?;
    Ok(connect::connector(Settings::parse(&url)?).with_lease(lease))
}

/// The SQL that makes the tables of the store at `url`, unless they are there, and gives its user the rights to use
/// them. An administrator runs it. It asks no server, and may be run again. The rights are for the account `user@'%'`:
/// another host has to be written there by hand.
///
/// # Errors
/// [`StoreErrorKind::Config`](lockkeeper_core::StoreErrorKind) if the URL is wrong or names no user.
pub fn schema(url: &str) -> Result<String, StoreError> {
    let (url, _) = lease_option::take(url)?;
    let settings = Settings::parse(&url)?;
    let user = settings.user.as_deref().ok_or_else(|| {
        trouble::config("the URL names no user, and the rights are for one; write mysql://USER@HOST/DATABASE")
    })?;
    Ok(layout::sql(&settings, &layout::Account::from_anywhere(user)))
}
