//! Whether the server's commits are on disk when they are answered, by its settings. Pure.

use crate::server::Dialect;

/// The settings that decide it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Durability {
    pub(crate) dialect: Dialect,
    /// `innodb_flush_log_at_trx_commit`.
    pub(crate) flush: i64,
    /// `log_bin`.
    pub(crate) has_binary_log: bool,
    /// `sync_binlog`.
    pub(crate) sync_binlog: i64,
}

/// The setting because of which a crash takes back commits that were answered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Weakness {
    /// The log of the tables is not synced with each commit.
    Flush,
    /// The binary log is not synced with each commit. The server relies on it: it leaves out its own last sync, and after a
    /// crash it takes back what was prepared and is missing in the binary log.
    BinaryLog,
}

impl Durability {
    pub(crate) fn weakness(self) -> Option<Weakness> {
        match self.flush {
            // MariaDB syncs at the commit, too, so it does not need the binary log to know what was committed.
            3 if self.dialect == Dialect::MariaDb => None,
            1 if self.binary_log_lags() => Some(Weakness::BinaryLog),
            1 => None,
            _ => Some(Weakness::Flush),
        }
    }

    /// Whether a crash of the machine loses the end of the binary log.
    pub(crate) fn binary_log_lags(self) -> bool {
        self.has_binary_log && self.sync_binlog != 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_binary_log_that_is_not_synced_takes_commits_back() {
        let server = |dialect, flush, has_binary_log, sync_binlog| {
            Durability { dialect, flush, has_binary_log, sync_binlog }.weakness()
        };
        for dialect in [Dialect::MariaDb, Dialect::MySql] {
            assert_eq!((server(dialect, 1, false, 0), server(dialect, 1, true, 1)), (None, None));
            for lags in [0, 2, 1000] {
                assert_eq!(server(dialect, 1, true, lags), Some(Weakness::BinaryLog));
            }
            assert_eq!(server(dialect, 0, false, 1), Some(Weakness::Flush));
            assert_eq!(server(dialect, 2, true, 1), Some(Weakness::Flush));
        }
        assert_eq!(server(Dialect::MariaDb, 3, true, 0), None);
        assert_eq!(server(Dialect::MySql, 3, false, 1), Some(Weakness::Flush), "it has no such value");
    }
}
