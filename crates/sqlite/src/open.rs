//! Opens a connection to the database file: refuses files that are not ours, brings the layout up to date, and sets
//! SQLite up.

use std::{path::Path, time::Duration};

use lockkeeper_core::StoreError;
use rusqlite::{Connection, OpenFlags, config::DbConfig};

use crate::{
    boot::Boot,
    checkpoint,
    durability::Durability,
    file::DatabaseFile,
    layout, liveness,
    patience::{be_patient, give_up_after, patiently},
    provenance,
    trouble::explain,
};

/// An open connection, and the id of the store in it.
pub(crate) struct OpenConnection {
    pub(crate) connection: Connection,
    pub(crate) store_id: String,
}

/// Opens the file for a keeper.
pub(crate) fn open(file: &DatabaseFile, boot: &Boot, limit: Duration) -> Result<OpenConnection, StoreError> {
    let mut connection = connect(&file.path, limit)?;
    file.make_keepers_folder()?;
    let any_alive = || liveness::any_alive(&file.keepers);
    let store_id = patiently(|| layout::settle(&mut connection, &file.path, &boot.id, any_alive))?;
    // Not earlier: until here each of many processes that open the file at once must look again after each wait,
    // because another one may have done the work.
    be_patient(&mut connection).map_err(|error| explain(&file.path, error))?;
    // SQLite shows a commit after its sync. But the first process to open the file takes each whole commit in the log as
    // one, also that of a process that was killed before the sync. A request that changes nothing is answered from it
    // without a sync, so this keeper and each that follows sync the log before their first answer.
    file.sync_log()?;
    Ok(OpenConnection { connection, store_id })
}

/// Connects to a database that is ours or empty.
pub(crate) fn connect(path: &Path, limit: Duration) -> Result<Connection, StoreError> {
    give_up_after(limit);
    let explain = |error| explain(path, error).not_applied();
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags).map_err(explain)?;
    // Else each step below would wait for seconds, even if the limit is shorter.
    connection.busy_timeout(Duration::ZERO).map_err(explain)?;
    // Nothing is written, not even on closing, until the owner of the database is known.
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true).map_err(explain)?;
    patiently(|| provenance::refuse_foreign(&connection, path))?;
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, false).map_err(explain)?;
    patiently(|| connection.pragma_update_and_check(None, "journal_mode", "WAL", is_wal).map_err(explain))?;
    if checkpoint::are_ours() {
        checkpoint::take_over(&connection).map_err(explain)?;
    }
    connection.pragma_update(None, "synchronous", Durability::Synced.synchronous()).map_err(explain)?;
    connection.set_prepared_statement_cache_capacity(64);
    // Else SQLite compiles a statement anew whenever another name is bound to it.
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true).map_err(explain)?;
    Ok(connection)
}

fn is_wal(row: &rusqlite::Row<'_>) -> rusqlite::Result<()> {
    if row.get_ref(0)?.as_str()? == "wal" { Ok(()) } else { Err(rusqlite::Error::InvalidQuery) }
}

#[cfg(test)]
mod tests {
    use rusqlite::StatementStatus;

    use super::*;
    use crate::codec::LOAD;

    /// Without a full sync, a power cut could take back a grant that was answered.
    #[test]
    fn answered_transactions_are_synced() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = DatabaseFile::prepare(&folder.path().join("locks.db")).expect("prepared");
        let connection = connect(&file.path, Duration::from_secs(1)).expect("connected");
        let setting = |name| connection.pragma_query_value(None, name, |row| row.get::<_, String>(0));
        assert_eq!(setting("journal_mode").expect("read"), "wal");
        let synchronous = connection.pragma_query_value(None, "synchronous", |row| row.get::<_, i64>(0));
        assert_eq!(synchronous.expect("read"), 2, "FULL");
    }

    /// Compiling was most of the cost of a claim.
    #[test]
    fn statements_are_not_compiled_anew_for_each_name() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = DatabaseFile::prepare(&folder.path().join("locks.db")).expect("prepared");
        let mut connection = connect(&file.path, Duration::from_secs(1)).expect("connected");
        layout::settle(&mut connection, &file.path, "boot", || Ok(false)).expect("made");
        for name in ["a", "b", "c"] {
            let mut load = connection.prepare_cached(LOAD).expect("compiled");
            assert!(!load.exists([name]).expect("read"));
            assert_eq!(load.get_status(StatementStatus::RePrepare), 0, "{name}");
        }
    }
}
