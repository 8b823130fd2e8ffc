//! The facts that a server tells about itself. Servers that cannot keep locks are refused with the reason.

use std::collections::HashMap;

use lockkeeper_core::StoreError;

use crate::trouble::{config, replica};

/// The two kinds of servers, which differ in a few statements.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Dialect {
    MariaDb,
    MySql,
}

/// The facts about a server.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct ServerFacts {
    pub(crate) dialect: Dialect,
    /// The identity of the server: another one after a failover.
    pub(crate) which: String,
    /// The time at which it started, in seconds since 1970, give or take one.
    pub(crate) started: u64,
    /// How long the server is to let a connection idle.
    pub(crate) wait_timeout: u64,
}

/// The variables that are asked for when a connection begins.
pub(crate) const VARIABLES: &[&str] = &[
    "version",
    "version_comment",
    "read_only",
    "wait_timeout",
    "hostname",
    "port",
    "server_id",
    "server_uuid",
    "wsrep_on",
    "wsrep_provider",
    "group_replication_group_name",
    "group_replication_single_primary_mode",
    "tidb_version",
];

/// The oldest versions: they skip rows that others have locked.
const OLDEST_MARIADB: (u32, u32) = (10, 6);
const OLDEST_MYSQL: (u32, u32) = (8, 0);

/// A server may end the connections of others sooner. A keeper's stay for as long as they do by default, in seconds.
const LEAST_IDLE: u64 = 28_800;

impl ServerFacts {
    /// Reads the variables; `started` comes from the server's clock and its uptime.
    pub(crate) fn new(variables: &HashMap<String, String>, started: u64) -> Result<Self, StoreError> {
        let variable = |name: &str| variables.get(name).map(String::as_str).unwrap_or_default();
        let version = variable("version");
        let dialect = if version.contains("MariaDB") { Dialect::MariaDb } else { Dialect::MySql };
        refuse_foreign(version, variable("version_comment"), variable("tidb_version"))?;
        refuse_clusters(&variable)?;
        let (oldest, name) = match dialect {
            Dialect::MariaDb => (OLDEST_MARIADB, "MariaDB"),
            Dialect::MySql => (OLDEST_MYSQL, "MySQL"),
        };
        if numbers(version) < oldest {
            let (major, minor) = oldest;
            return Err(config(format!(
                "the server is {name} {version}; use {name} {major}.{minor} or newer"
            )));
        }
        if is_on(variable("read_only")) {
            return Err(replica());
        }
        let which = ["hostname", "port", "server_id", "server_uuid"].map(&variable).join(" ");
        let wait_timeout = variable("wait_timeout").parse().unwrap_or(0).max(LEAST_IDLE);
        Ok(Self { dialect, which, started, wait_timeout })
    }

    /// Whether this is the same server, and it was not restarted since.
    pub(crate) fn is_same_run(&self, other: &Self) -> bool {
        self.which == other.which && self.started.abs_diff(other.started) <= 2
    }
}

/// A variable that is a switch.
pub(crate) fn is_on(value: &str) -> bool {
    // NO_LOCK and NO_LOCK_NO_ADMIN are newer degrees of read_only.
    !matches!(value.to_ascii_uppercase().as_str(), "" | "0" | "OFF")
}

/// Major and minor version.
pub(crate) fn numbers(version: &str) -> (u32, u32) {
    let mut parts = version.split(['.', '-']).map(|part| part.parse().unwrap_or(0));
    (parts.next().unwrap_or(0), parts.next().unwrap_or(0))
}

/// Refuses databases that speak the same protocol, but in which leases would meet several clocks, or whose locks do not
/// wait for each other.
fn refuse_foreign(version: &str, comment: &str, tidb: &str) -> Result<(), StoreError> {
    let foreign = [
        ("tidb", "its nodes have clocks of their own"),
        ("vitess", "its shards have clocks of their own"),
        ("planetscale", "its shards have clocks of their own"),
        ("oceanbase", "its nodes have clocks of their own"),
        ("xpand", "its nodes have clocks of their own"),
        ("singlestore", "its nodes have clocks of their own"),
        ("memsql", "its nodes have clocks of their own"),
        ("doris", "it locks no rows"),
        ("starrocks", "it locks no rows"),
        ("dolt", "it locks no rows"),
    ];
    let words =
        format!("{version} {comment}{}", if tidb.is_empty() { "" } else { " tidb" }).to_ascii_lowercase();
    match foreign.into_iter().find(|(word, _)| words.contains(word)) {
        Some((_, why)) => Err(config(format!(
            "the server is {version} ({comment}), which cannot keep locks: {why}; use MariaDB or MySQL"
        ))),
        None => Ok(()),
    }
}

/// Refuses clusters in which several servers take writes.
fn refuse_clusters<'a>(variable: &impl Fn(&str) -> &'a str) -> Result<(), StoreError> {
    let provider = variable("wsrep_provider");
    if is_on(variable("wsrep_on")) && !matches!(provider, "" | "none") {
        return Err(config(
            "the server is a node of a Galera cluster, which cannot keep locks: a row that is locked on one node is not \
             locked on the others, and each has a clock of its own; use one primary",
        ));
    }
    let group = variable("group_replication_group_name");
    if !group.is_empty() && !is_on(variable("group_replication_single_primary_mode")) {
        return Err(config(
            "the server is one of several primaries of a replication group, which cannot keep locks: a row that is locked \
             on one is not locked on the others; set group_replication_single_primary_mode",
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts(variables: &[(&str, &str)]) -> Result<ServerFacts, StoreError> {
        let own = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        ServerFacts::new(&variables.iter().map(own).collect(), 1000)
    }

    #[test]
    fn servers_that_cannot_keep_locks_are_refused_with_the_reason() {
        let good = facts(&[
            ("version", "10.11.14-MariaDB-0+deb12u2"),
            ("wsrep_on", "OFF"),
            ("read_only", "OFF"),
            ("wait_timeout", "600"),
        ]);
        let good = good.expect("a good server");
        assert_eq!((good.dialect, good.wait_timeout), (Dialect::MariaDb, 28_800));
        assert_eq!(facts(&[("version", "8.0.36")]).expect("a good server").dialect, Dialect::MySql);
        let one_primary = [
            ("version", "8.4.0"),
            ("group_replication_group_name", "x"),
            ("group_replication_single_primary_mode", "ON"),
        ];
        assert!(facts(&one_primary).is_ok());
        for (variables, word) in [
            (vec![("version", "10.5.9-MariaDB")], "10.6"),
            (vec![("version", "5.7.44-log")], "8.0"),
            (vec![("version", "8.0.11-TiDB-v7.5.0")], "clocks"),
            (vec![("version", "8.0.30-Vitess")], "clocks"),
            (vec![("version", "10.11.2-MariaDB"), ("read_only", "ON")], "replica"),
            (vec![("version", "11.8.1-MariaDB"), ("read_only", "NO_LOCK")], "replica"),
            (
                vec![
                    ("version", "10.11.2-MariaDB"),
                    ("wsrep_on", "ON"),
                    ("wsrep_provider", "/usr/lib/galera.so"),
                ],
                "Galera",
            ),
            (
                vec![
                    ("version", "8.0.36"),
                    ("group_replication_group_name", "x"),
                    ("group_replication_single_primary_mode", "OFF"),
                ],
                "single_primary",
            ),
        ] {
            let error = facts(&variables).expect_err("refused").to_string();
            assert!(error.contains(word), "{error}");
        }
    }

    #[test]
    fn a_restart_is_another_run() {
        let server = facts(&[("version", "10.11.2-MariaDB"), ("hostname", "a")]).expect("a good server");
        assert!(server.is_same_run(&ServerFacts { started: 1001, ..server.clone() }));
        assert!(!server.is_same_run(&ServerFacts { started: 1010, ..server.clone() }));
        assert!(!server.is_same_run(&ServerFacts { which: "b".into(), ..server.clone() }));
    }
}
