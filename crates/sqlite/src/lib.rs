//! The SQLite store: the processes of one host share locks through one file, with no server.
//!
//! `sqlite:PATH` is all it takes. The file is made when it is not there (readable by its owner
//! only), and beside it the folder `PATH-keepers`, which holds two small files per keeper: one
//! that shows whether it lives, and a socket that it is woken through.
//!
//! # How it works
//!
//! Every group of claims and leaves is one `BEGIN IMMEDIATE` transaction: the resources named in
//! it are loaded, [the model's own step](lockkeeper_core::model) is done, and the difference is
//! stored. So the file behaves as the model does, whoever writes.
//!
//! * **Leases** run on the host's boot-time clock, which all its processes share and nobody can
//!   set, also where a container sees it shifted. The file remembers the boot it belongs to: a
//!   restart of the machine ends every lease, detached ones and what is kept for its `min_hold` too: nobody
//!   who held one is left, and only the wall clock could tell how much of it was.
//! * **The dead** are passed at once. Each keeper has an OS lock on a file of its own, which ends
//!   with the process however it ends. Whoever finds somebody in the way looks at that file: free
//!   means dead. A missing file proves nothing, and then the lease decides. What is younger than its
//!   `min_hold` is kept until it is that old.
//! * **Wakes** go from process to process by datagram socket. They are hints: lost ones cost time
//!   until the next poll, the database is the truth.
//! * **Durability.** `synchronous=FULL`: a grant, a renewal, a count or a fence that was answered
//!   is on disk. With less, a disk that is pulled or a power cut could take back a grant that
//!   somebody acts on, and its number might be given again. Groups make it bearable: all that the
//!   tasks of a process ask for at one time costs a single sync. What gives nobody anything is not
//!   synced: places in line, and releases that nobody waits for. If such a one is lost, a lock
//!   looks held for longer than it was, which is safe, and a restart frees it anyway.
//!
//! # Limits
//!
//! * One host: network file systems are refused, since neither SQLite's locks nor the boot-time
//!   clock reach across hosts.
//! * Containers of one host may share a file if its folder is mounted in each of them, so that they
//!   share SQLite's log and the folder of the keepers, too. A container with a boot id of its own is
//!   refused while others live.
//! * Linux only. Elsewhere connecting fails with [`StoreErrorKind::Unsupported`](lockkeeper_core::StoreErrorKind::Unsupported).
//! * One writer at a time is SQLite's rule. A process stopped in the middle of its transaction
//!   stops the others until it goes on or is ended; they report
//!   [`StoreErrorKind::Conflict`](lockkeeper_core::StoreErrorKind::Conflict) and go on asking. Listings wait behind them.
//! * A child that was forked without `exec` shares its parent's life file, so the parent counts
//!   as alive until that child has ended too. `exec` closes it.

use lockkeeper_core::{StoreError, store::Connector};

#[cfg(target_os = "linux")]
mod boot;
#[cfg(target_os = "linux")]
mod codec;
#[cfg(target_os = "linux")]
mod counts;
#[cfg(target_os = "linux")]
mod crashes;
#[cfg(target_os = "linux")]
mod database;
#[cfg(target_os = "linux")]
mod file;
#[cfg(target_os = "linux")]
mod layout;
#[cfg(target_os = "linux")]
mod liveness;
#[cfg(target_os = "linux")]
mod poll;
mod settings;
#[cfg(target_os = "linux")]
mod store;
#[cfg(target_os = "linux")]
mod ticket;
#[cfg(target_os = "linux")]
mod trouble;
#[cfg(target_os = "linux")]
mod wakes;
#[cfg(target_os = "linux")]
mod work;
#[cfg(target_os = "linux")]
mod write_order;
#[cfg(target_os = "linux")]
mod writer;

#[cfg(target_os = "linux")]
pub use store::CAPABILITY;

/// Connects to the file that `url` names, which is made if it is not there: `sqlite:PATH`, where a
/// relative path starts at the current folder.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let folder = tempfile::tempdir()?;
/// # let url = format!("sqlite:{}/locks.db", folder.path().display());
/// let keeper = lockkeeper_core::Keeper::builder(lockkeeper_sqlite::connector(&url)?).connect().await?;
/// let guard = keeper.mutex("stock/42").lock().await?;
/// guard.release().await?;
/// keeper.close().await;
/// # Ok(()) }
/// ```
///
/// # Errors
/// [`StoreErrorKind::Config`](lockkeeper_core::StoreErrorKind::Config) if `url` names no file.
pub fn connector(url: &str) -> Result<Connector, StoreError> {
    connect_with(settings::Settings::parse(url)?)
}

#[cfg(target_os = "linux")]
fn connect_with(settings: settings::Settings) -> Result<Connector, StoreError> {
    Ok(store::connector(settings))
}

#[cfg(not(target_os = "linux"))]
fn connect_with(_settings: settings::Settings) -> Result<Connector, StoreError> {
    let message = "the sqlite: store needs Linux: elsewhere processes share no clock that counts sleep";
    Err(StoreError::new(lockkeeper_core::StoreErrorKind::Unsupported, message))
}
