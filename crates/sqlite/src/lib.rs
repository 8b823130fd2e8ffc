//! The SQLite store: the processes of one host share locks through one file, without a server.
//!
//! `sqlite:PATH` is all it takes. The file is made if it is not there, readable by its owner only; its folder must be
//! there, so that a mistyped path is an error. Beside it is the folder
//! `PATH-keepers` with two small files per keeper: one that shows whether the keeper is alive, and a socket that it is
//! woken through.
//!
//! # How it works
//!
//! Every group of claims and leaves is one `BEGIN IMMEDIATE` transaction. It loads the resources that the group names,
//! does [the model's own step](lockkeeper_core::model), and stores the difference. So the file behaves as the model
//! does, no matter which process writes.
//!
//! * **Leases** run on the host's boot-time clock. All processes of the host share it and nobody can set it, and where
//!   a container sees it shifted, the offset is taken off. The file remembers the boot that it belongs to. A restart of
//!   the machine ends every lease, also detached ones and those kept for their `min_hold`: no process that held one is
//!   left, and only the wall clock could tell how much of the time is over.
//! * **Crashed keepers** are passed at once. Each keeper has an OS lock on a file of its own, which ends with the
//!   process, also in a crash. A claim that finds a keeper in its way looks at that file: if it is not locked, the
//!   keeper has crashed. A missing file proves nothing, and then the lease decides. A hold that is younger than its
//!   `min_hold` is kept until it is that old.
//! * **Wakes** go from process to process through datagram sockets. They are hints: a lost wake costs time until the
//!   next poll, and the database decides.
//! * **Durability.** An answered grant, renewal, count or fence is on disk (`synchronous=FULL`). With less, a power cut
//!   could take back a grant that its holder acts on, and its number might be given again. Groups make it cheap: all
//!   requests that the tasks of a process make at one time cost a single sync. Transactions that give nobody anything
//!   are not synced: positions in queues, and releases that nobody waits for. If one is lost, a lock looks held for
//!   longer than it was, which is safe, and a restart frees it anyway.
//!
//! # Limits
//!
//! * One host: network file systems are refused, because neither SQLite's locks nor the boot-time clock reach across
//!   hosts.
//! * Containers of one host may share a file if its folder is mounted in each of them, so that they also share SQLite's
//!   log and the folder of the keepers. A container with a boot id of its own is refused while other keepers are alive.
//! * Linux only. Elsewhere connecting fails with
//!   [`StoreErrorKind::Unsupported`](lockkeeper_core::StoreErrorKind::Unsupported).
//! * SQLite allows one writer at a time. A process that is stopped in the middle of its transaction stops the others
//!   until it continues or is ended. They report
//!   [`StoreErrorKind::Conflict`](lockkeeper_core::StoreErrorKind::Conflict) and go on asking. Listings wait behind
//!   them.
//! * Any SQLite from 3.46 on may be linked (rusqlite 0.32 to 0.41), so that the store fits beside other crates that
//!   link it. Versions before 3.51.3 have a bug in their checkpoints, which the store avoids. Other programs cannot
//!   know that: nothing else should write to the file, such as an old `sqlite3` command.
//! * A child that was forked without `exec` shares its parent's life file, so the parent counts as alive until that
//!   child has ended too. `exec` closes it.

use lockkeeper_core::{StoreError, store::Connector, support::lease_option};

#[cfg(target_os = "linux")]
mod blockers;
#[cfg(target_os = "linux")]
mod boot;
#[cfg(target_os = "linux")]
mod check;
#[cfg(target_os = "linux")]
mod checkpoint;
#[cfg(target_os = "linux")]
mod codec;
#[cfg(target_os = "linux")]
mod connect;
#[cfg(target_os = "linux")]
mod counts;
#[cfg(target_os = "linux")]
mod crashes;
#[cfg(target_os = "linux")]
mod database;
#[cfg(target_os = "linux")]
mod durability;
#[cfg(target_os = "linux")]
mod expiry;
#[cfg(target_os = "linux")]
mod fences;
#[cfg(target_os = "linux")]
mod file;
#[cfg(target_os = "linux")]
mod layout;
#[cfg(target_os = "linux")]
mod listing;
#[cfg(target_os = "linux")]
mod liveness;
#[cfg(target_os = "linux")]
mod member;
#[cfg(target_os = "linux")]
mod new_file;
#[cfg(target_os = "linux")]
mod open;
#[cfg(target_os = "linux")]
mod paths;
#[cfg(target_os = "linux")]
mod patience;
#[cfg(target_os = "linux")]
mod poll;
#[cfg(target_os = "linux")]
mod provenance;
#[cfg(target_os = "linux")]
mod refusals;
#[cfg(target_os = "linux")]
mod requests;
mod settings;
#[cfg(target_os = "linux")]
mod store;
#[cfg(target_os = "linux")]
mod subscribers;
#[cfg(target_os = "linux")]
mod subscription;
#[cfg(target_os = "linux")]
mod sweep;
#[cfg(target_os = "linux")]
mod ticket;
#[cfg(target_os = "linux")]
mod tombstones;
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

#[cfg(target_os = "linux")]
pub use check::{Finding, Risk, check};

/// Connects to the file that `url` names, and makes it if it is not there, but not its folder: `sqlite:PATH`, where a
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
    let (url, lease) = lease_option::take(url)?;
    Ok(connect_with(settings::Settings::parse(&url)?)?.with_lease(lease))
}

/// Returns the SQL that makes the tables in a new file, and names the rights of its users in a comment. It touches no
/// file.
///
/// # Errors
/// [`StoreErrorKind::Config`](lockkeeper_core::StoreErrorKind::Config) if `url` names no file.
#[cfg(target_os = "linux")]
pub fn schema(url: &str) -> Result<String, StoreError> {
    let (url, _) = lease_option::take(url)?;
    Ok(layout::sql(&settings::Settings::parse(&url)?.path))
}

#[cfg(target_os = "linux")]
fn connect_with(settings: settings::Settings) -> Result<Connector, StoreError> {
    Ok(connect::connector(settings))
}

#[cfg(not(target_os = "linux"))]
fn connect_with(_settings: settings::Settings) -> Result<Connector, StoreError> {
    let message = "the sqlite: store needs Linux: elsewhere processes share no clock that counts sleep";
    Err(StoreError::new(lockkeeper_core::StoreErrorKind::Unsupported, message))
}
