//! The server's own account of itself. Servers that cannot keep locks are refused with the reason.

use lockkeeper_core::StoreError;

use crate::trouble::config;

/// Facts about the server that decide whether it can keep locks, and whether it is still the same one.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct ServerFacts {
    /// When it started, in microseconds: another value means that it is another server, or this one after a restart.
    pub(crate) started: i64,
    /// Its timeline, which grows with each replica that takes over.
    pub(crate) timeline: i32,
    /// The server process of this session.
    pub(crate) backend: i32,
    /// The user that this session is to the server.
    pub(crate) user: String,
}

/// Reads the [`ServerFacts`]. The setting is one of this session's own, which it gave when it connected: behind a
/// pooler, the server has not got it.
pub(crate) const FACTS: &str = "
SELECT current_setting('server_version_num')::integer, pg_is_in_recovery(),
    (extract(epoch FROM pg_postmaster_start_time()) * 1000000)::bigint,
    CASE WHEN pg_is_in_recovery() THEN 0
        ELSE ('x' || left(pg_walfile_name(pg_current_wal_insert_lsn()), 8))::bit(32)::integer END,
    pg_backend_pid(), current_user::text, current_setting('lockkeeper.session', true)";

/// Databases that speak the same protocol, but in which leases would meet several clocks, or whose locks do not wait for
/// each other.
pub(crate) fn refuse_foreign(version: &str) -> Result<(), StoreError> {
    let foreign = [
        ("CockroachDB", "its nodes have clocks of their own"),
        ("-YB-", "its nodes have clocks of their own"),
        ("Yugabyte", "its nodes have clocks of their own"),
        ("Greenplum", "its segments have clocks of their own"),
        ("Materialize", "it locks no rows"),
        ("RisingWave", "it locks no rows"),
    ];
    match foreign.into_iter().find(|(word, _)| version.contains(word)) {
        Some((_, why)) => {
            let name = version.split(" (").next().unwrap_or_default();
            Err(config(format!("the server is {name}, which cannot keep locks: {why}; use PostgreSQL")))
        }
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn databases_with_many_clocks_are_refused() {
        assert!(refuse_foreign("PostgreSQL 15.8 (Debian 15.8-0+deb12u1) on x86_64-pc-linux-gnu").is_ok());
        for other in ["CockroachDB CCL v23.1.0 (x86_64)", "PostgreSQL 11.2-YB-2.20.1.0-b0 on x86_64"] {
            let error = refuse_foreign(other).expect_err("refused").to_string();
            assert!(error.contains("clocks") && error.contains("use PostgreSQL"), "{error}");
        }
    }
}
