//! The PostgreSQL store: locks in the database that people already have (version 13 or newer, one primary).
//!
//! ```text
//! postgres://[user[:password]@]host[:port]/database       postgresql://… is the same
//! postgres://user@%2Frun%2Fpostgresql/database            the folder of a socket, with %2F for each slash
//! postgres://host,host/database                           the one of several servers that takes writes
//! ```
//!
//! | option | means | default |
//! |---|---|---|
//! | `schema=app` | the schema of the tables, which are made on first use | `lockkeeper` |
//! | `sslmode=require` | TLS with a certificate that is checked; `verify-full` is the same | `disable` |
//! | `sslrootcert=`, `sslcert=`, `sslkey=` | PEM files for TLS | the system's certificates |
//! | `pooler=true` | for a pooler between: statements are not prepared, and waiters poll | `false` |
//! | `strict=true` | refuses a server on which locks are at risk, instead of a warning in the log | `false` |
//! | `request_limit=1s` | how long a request may take | the keeper's, 2s |
//! | `connect_limit=1s` | how long connecting to one server may take | 1s |
//! | `application_name=app` | the name that the server shows for the connections | `lockkeeper` |
//!
//! # How it works
//!
//! Rows in, the model's own step, rows out. A group of requests is one transaction in two round trips: the first locks
//! one row per name, reads the server's clock and the rows; the second writes the rows that became different and
//! commits. Of several names, those that others have locked just then are asked again later, so no name waits for
//! another. A release grants to the first waiter of the queue, and tells its keeper by `NOTIFY` once that is committed.
//!
//! A keeper has up to three connections, on its own thread: one for groups of requests, which never wait for long, one
//! for renewals, and one for requests that may have to wait, such as those for a busy name or a latch. That one also
//! listens while somebody waits.
//!
//! # Limits
//!
//! A commit that gives somebody something is on disk before it is answered, so a restart loses no grant. A crash may take
//! back releases of the last 0.6 s, of leases that end within 30 s. A failover to an asynchronous replica may lose
//! the last grants. Tokens still grow, so a fence keeps the data right, if the clock of the new server is not behind that of
//! the old one by more than the age of the lost grant.

mod abandoned;
mod check;
mod codec;
mod connect;
mod connection;
mod counts;
mod flights;
mod groups;
mod layout;
mod listing;
mod member;
mod origin;
mod own;
mod positions;
mod server;
mod session;
mod settings;
mod statements;
mod store;
mod sweep;
#[cfg_attr(not(feature = "tls"), path = "without_tls.rs")]
mod tls;
mod told;
mod trouble;
mod wakes;
mod watching;

use lockkeeper_core::{StoreError, store::Connector, support::lease_option};

use settings::Settings;

pub use check::{Finding, Risk, check};
pub use store::CAPABILITY;
pub use sweep::sweep;

/// All options of a URL, but `lease`, which every store has.
pub const OPTIONS: &[&str] = settings::OPTIONS;

/// Connects to the server that `url` names; see [the crate](self) for its forms.
///
/// ```no_run
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let connector = lockkeeper_postgres::connector("postgres://localhost/shop?schema=locks")?;
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

/// The SQL that makes the tables of the store at `url`, unless they are there, and gives its user the rights to use them. An
/// administrator runs it in the database. It asks no server, and may be run again.
///
/// # Errors
/// [`StoreErrorKind::Config`](lockkeeper_core::StoreErrorKind) if the URL is wrong or names no user.
pub fn schema(url: &str) -> Result<String, StoreError> {
    let (url, _) = lease_option::take(url)?;
    let settings = Settings::parse(&url)?;
    let user = settings.drivers.first().and_then(|driver| driver.get_user()).ok_or_else(|| {
        trouble::config(
            "the URL names no user, and the rights are for one; write postgres://USER@HOST/DATABASE",
        )
    })?;
    Ok(layout::sql(&settings.schema, user))
}
