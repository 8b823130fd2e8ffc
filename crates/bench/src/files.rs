//! Peers of the SQLite store: the limit of locks made of files, and the lock that one would write oneself. Each task
//! has a handle of its own, as each process would.

use std::{
    fs::File,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, OnceLock},
    time::Duration,
};

use distributed_lock_core::traits::{DistributedLock as _, LockHandle as _};
use distributed_lock_file::{FileDistributedLock, FileLockHandle};
use lockkeeper::support;
use rusqlite::{Connection, TransactionBehavior, params};
use tokio::task::spawn_blocking;

use crate::{
    Failure,
    judge::Limit,
    peer::{Lock, Peer},
    workload::Workload,
};

/// `flock` on a file per name: no lease, no token, no queue, nothing on disk. The limit.
pub(crate) struct FlockPeer {
    pub(crate) folder: PathBuf,
}

#[derive(Clone)]
pub(crate) struct FlockLock(PathBuf);

impl Peer for FlockPeer {
    type Lock = FlockLock;

    fn name(&self) -> &'static str {
        "flock"
    }

    fn lock(&self, name: &str) -> FlockLock {
        FlockLock(self.folder.join(name.replace('/', "-")))
    }
}

impl Lock for FlockLock {
    type Held<'a> = File;

    async fn acquire(&self) -> Result<File, Failure> {
        let path = self.0.clone();
        spawn_blocking(move || {
            let file = File::create(path)?;
            file.lock()?;
            Ok(file)
        })
        .await?
    }

    async fn release(held: Self::Held<'_>) -> Result<(), Failure> {
        drop(held);
        Ok(())
    }
}

/// The file lock of the crate `distributed-lock`: the same system call, asked again and again.
///
/// Its release unlocks the file and then deletes it, so that somebody may by then hold the deleted
/// one while the next makes another: with contention two can get in at once, which would end the
/// run. So it only takes part where nobody waits.
pub(crate) struct FileLockPeer {
    pub(crate) folder: PathBuf,
}

#[derive(Clone)]
pub(crate) struct FileLock(Arc<FileDistributedLock>);

impl Peer for FileLockPeer {
    type Lock = FileLock;

    fn name(&self) -> &'static str {
        "distributed-lock"
    }

    fn lock(&self, name: &str) -> FileLock {
        let path = self.folder.join(format!("{}.lock", name.replace('/', "-")));
        FileLock(Arc::new(FileDistributedLock::from_path(path).expect("the name is one of ours")))
    }

    fn takes_part(&self, workload: Workload) -> bool {
        matches!(workload, Workload::W1 | Workload::W2)
    }
}

impl Lock for FileLock {
    type Held<'a> = FileLockHandle;

    async fn acquire(&self) -> Result<FileLockHandle, Failure> {
        Ok(self.0.acquire(None).await?)
    }

    async fn release(held: Self::Held<'_>) -> Result<(), Failure> {
        Ok(held.release().await?)
    }
}

/// A lease row in SQLite with the settings of the store, one connection per task, and one transaction per claim and per
/// release. Most people would write it like this.
pub(crate) struct RowPeer {
    pub(crate) file: PathBuf,
}

/// A connection of its own for every clone, opened when first used.
pub(crate) struct RowLock {
    file: PathBuf,
    name: String,
    connection: OnceLock<Arc<Mutex<Connection>>>,
}

impl Clone for RowLock {
    fn clone(&self) -> Self {
        Self { file: self.file.clone(), name: self.name.clone(), connection: OnceLock::new() }
    }
}

/// A held row, to be given back.
pub(crate) struct RowHeld {
    connection: Arc<Mutex<Connection>>,
    name: String,
}

/// Opens a file with the settings of the SQLite store.
pub(crate) fn open(file: &Path) -> rusqlite::Result<Connection> {
    let connection = Connection::open(file)?;
    connection.busy_timeout(Duration::from_secs(60))?;
    connection.pragma_update(None, "journal_mode", "WAL")?;
    connection.pragma_update(None, "synchronous", "FULL")?;
    Ok(connection)
}

impl Peer for RowPeer {
    type Lock = RowLock;

    fn name(&self) -> &'static str {
        "a transaction each"
    }

    fn lock(&self, name: &str) -> RowLock {
        RowLock { file: self.file.clone(), name: name.to_owned(), connection: OnceLock::new() }
    }

    /// Requests that travel in groups share the sync that each of these pays.
    fn goal(&self, workload: Workload) -> Option<Limit> {
        (workload == Workload::W2).then_some(Limit::AtLeast(8.0))
    }
}

impl RowLock {
    fn connection(&self) -> Result<Arc<Mutex<Connection>>, Failure> {
        if let Some(connection) = self.connection.get() {
            return Ok(connection.clone());
        }
        let connection = open(&self.file)?;
        connection.execute_batch(
            "CREATE TABLE IF NOT EXISTS lease (name TEXT PRIMARY KEY, held INTEGER, token INTEGER) WITHOUT ROWID",
        )?;
        Ok(self.connection.get_or_init(|| Arc::new(Mutex::new(connection))).clone())
    }
}

/// One transaction; whether it changed a row.
fn transact(connection: &Mutex<Connection>, statement: &str, name: &str) -> rusqlite::Result<bool> {
    let mut connection = support::lock(connection);
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let changed = transaction.prepare_cached(statement)?.execute(params![name])? > 0;
    transaction.commit()?;
    Ok(changed)
}

const CLAIM: &str = "INSERT INTO lease VALUES (?, 1, 1)
    ON CONFLICT (name) DO UPDATE SET held = 1, token = token + 1 WHERE NOT held";
const RELEASE: &str = "UPDATE lease SET held = 0 WHERE name = ?";

impl Lock for RowLock {
    type Held<'a> = RowHeld;

    async fn acquire(&self) -> Result<RowHeld, Failure> {
        let held = RowHeld { connection: self.connection()?, name: self.name.clone() };
        loop {
            let (connection, name) = (held.connection.clone(), held.name.clone());
            if spawn_blocking(move || transact(&connection, CLAIM, &name)).await?? {
                return Ok(held);
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    async fn release(held: Self::Held<'_>) -> Result<(), Failure> {
        spawn_blocking(move || transact(&held.connection, RELEASE, &held.name)).await??;
        Ok(())
    }
}
