//! The Redis store: a single server, the master behind sentinels, or a cluster.
//!
//! ```text
//! redis://[user:password@]host[:port][/db]        rediss://… is the same with TLS (feature `tls`)
//! redis+unix:///path/to/socket[?db=0]
//! redis+sentinel://host,host/master[/db]          rediss+sentinel://…
//! redis+cluster://host,host                       rediss+cluster://…
//! ```
//!
//! `docs/stores.md` in the repository explains each of the [options](OPTIONS).
//!
//! # How it works
//!
//! Every transition is a script, so the server does one after another. A resource is one key. It is a plain string
//! while it has one holder and no waiters, so a free lock costs one `SET` and one `DEL`; otherwise it is a list. Leases
//! end by the server's own clock. Requests that the tasks of a process make at the same time travel as one group. A
//! release grants to the first waiter of the queue and publishes the grant on the channel of that waiter's keeper,
//! which then holds without asking.
//!
//! # Limits
//!
//! Redis replicates after it has answered, and writes to its disk after that unless it has `appendfsync always`. So a
//! failover, a restart or eviction can lose a grant. Its holder learns of it within one renewal, and tokens still grow,
//! so a fence keeps the data right. `wait=n` makes the loss less likely, but it is no consensus.
//!
//! A master that is cut off from its replicas and sentinels goes on answering the clients that reach it. Behind
//! sentinels, its holders are told as soon as most sentinels name another master. Set `min-replicas-to-write` to 1 or
//! more: such a master then stops granting by itself.

mod address;
mod calls;
mod changes;
mod check;
mod codec;
mod connect;
mod connection;
mod counts;
mod groups;
mod layout;
mod listing;
mod member;
mod messages;
mod opener;
mod records;
mod replicas;
mod run_ids;
mod runtime;
mod scripts;
mod sentinels;
mod servers;
mod settings;
mod slots;
mod store;
#[cfg_attr(not(feature = "tls"), path = "without_tls.rs")]
mod tls;
mod tls_probe;
mod trouble;
mod wakes;

use lockkeeper_core::{StoreError, store::Connector, support::lease_option};

/// The options that a URL may have.
pub const OPTIONS: &[&str] = settings::OPTIONS;

pub use check::{Examination, Finding, Risk, check, examine};
pub use store::CAPABILITY;

/// Connects to the servers that `url` names; see [the crate](self) for its forms.
///
/// ```no_run
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let connector = lockkeeper_redis::connector("redis://localhost/0?namespace=shop")?;
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
    Ok(connect::connector(settings::Settings::parse(&url)?).with_lease(lease))
}

#[cfg(all(test, not(feature = "tls")))]
mod tests {
    #[tokio::test]
    async fn without_tls_the_error_names_the_features() {
        for url in [
            "rediss://ada:canary@localhost/0?ca=/ca.pem",
            "rediss+sentinel://ada:canary@localhost/m",
            "rediss+cluster://ada:canary@localhost",
        ] {
            let connector = super::connector(url).expect("the URL is right");
            let connecting = lockkeeper_core::Keeper::builder(connector).connect();
            let (connected, checked) = (connecting.await.expect_err("refused"), super::check(url).await);
            for error in [connected, checked.expect_err("refused")] {
                assert_eq!(error.kind(), lockkeeper_core::StoreErrorKind::Config, "{error}");
                let text = format!("{error} {error:?}");
                assert!(text.contains("redis-tls") && text.contains("feature"), "{text}");
                assert!(!text.contains("canary"), "{text}");
            }
        }
    }
}
