//! Checks the server for settings that put locks at risk: when a keeper connects, and on demand.

use std::{
    collections::HashMap,
    fmt,
    sync::Arc,
    time::{Duration, SystemTime},
};

use lockkeeper_core::{
    StoreError,
    store::WakeSink,
    support::{lease_option, risks},
};
use mysql_async::Row;

use crate::{
    codec::{number, text},
    connection::{Connection, Failure, Opener, Worked},
    durability::{Durability, Weakness},
    flights,
    server::{is_on, numbers},
    session::Session,
    settings::Settings,
    statements::CLOCK,
    trouble,
};

/// The oldest version of MariaDB that this store is tested with.
const TESTED: (u32, u32) = (10, 11);

/// A risk to the locks on a server, with the remedy.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Finding {
    /// The kind of risk.
    pub risk: Risk,
    /// The risk and its remedy.
    pub message: String,
}

/// The kinds of risks to locks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Risk {
    /// A crash of the server loses the last grants.
    Durability,
    /// A failover may lose grants that the replicas do not have yet.
    Replication,
    /// This store is not tested with such a server.
    Untested,
    /// The clock differs much from that of this machine.
    Clock,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

/// Connects to the server that `url` names and reports the risks to locks there. It makes the tables if they are not
/// there, and changes nothing else.
///
/// # Errors
/// [`StoreError`] if the URL is wrong or the server cannot be reached.
pub async fn check(url: &str) -> Result<Vec<Finding>, StoreError> {
    let (url, _) = lease_option::take(url)?;
    let settings = Settings::parse(&url)?;
    let background = tokio::runtime::Handle::current();
    let opener = Arc::new(Opener::new(settings, background, WakeSink::new(|_| {}))?);
    let first = opener.open_first().await?;
    let connection = Connection::new(opener, Duration::from_secs(5), Some(first));
    look(&connection).await
}

/// Checks the server behind a connection.
pub(crate) async fn look(connection: &Connection) -> Result<Vec<Finding>, StoreError> {
    connection.run(|session, _| Box::pin(look_at(session))).await
}

/// The facts to look at. A user who may not see others' connections sees no replicas.
const FACTS: &str = "\
SHOW GLOBAL VARIABLES WHERE Variable_name IN ('version', 'innodb_flush_log_at_trx_commit', 'innodb_doublewrite', \
'log_bin', 'sync_binlog', 'rpl_semi_sync_master_enabled', 'rpl_semi_sync_source_enabled'); \
SELECT COUNT(*) FROM information_schema.processlist WHERE command LIKE 'Binlog Dump%'";

async fn look_at(session: Arc<Session>) -> Worked<Vec<Finding>> {
    let sets = flights::lone(&session, FACTS).await?;
    let before = SystemTime::now();
    let clock = flights::rows(&session, &format!("SELECT {CLOCK}")).await?;
    let took = before.elapsed().unwrap_or_default();
    let nothing = || Failure::keeps(trouble::corrupt("the server says nothing of itself"));
    let [variables, replicas] = &sets[..] else { return Err(nothing()) };
    let pair = |row: &Row| Some((text(row, 0).ok()??.to_ascii_lowercase(), text(row, 1).ok()??.to_owned()));
    let variables: HashMap<String, String> = variables.iter().filter_map(pair).collect();
    let variable = |name: &str| variables.get(name).map(String::as_str).unwrap_or_default();
    let count = |rows: &[Row]| rows.first().map_or(Ok(0), |row| number(row, 0)).map_err(Failure::keeps);
    let wall = before.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default() + took / 2;
    let semi_synchronous =
        is_on(variable("rpl_semi_sync_master_enabled")) || is_on(variable("rpl_semi_sync_source_enabled"));
    let setting = |name: &str| variable(name).parse().unwrap_or(0);
    let durability = Durability {
        dialect: session.facts.dialect,
        flush: setting("innodb_flush_log_at_trx_commit"),
        has_binary_log: is_on(variable("log_bin")),
        sync_binlog: setting("sync_binlog"),
    };
    let found = [
        flushes(durability),
        binary_log(durability),
        replication(count(replicas)?, semi_synchronous),
        untested(variable("version")),
        clock_off(wall, took, count(&clock)?),
    ];
    Ok(found.into_iter().flatten().map(|(risk, message)| Finding { risk, message }).collect())
}

/// A risk, and its remedy in words.
type Found = Option<(Risk, String)>;

fn flushes(settings: Durability) -> Found {
    (settings.weakness() == Some(Weakness::Flush)).then(|| {
        let message = format!(
            "innodb_flush_log_at_trx_commit is {}, so a crash of the server loses the last grants; set it to 1",
            settings.flush
        );
        (Risk::Durability, message)
    })
}

/// With a binary log, the server recovers the commits in that log.
fn binary_log(settings: Durability) -> Found {
    let sync = settings.sync_binlog;
    settings.binary_log_lags().then(|| match settings.weakness() {
        Some(_) => {
            let message = format!(
                "sync_binlog is {sync}, so a crash of the machine loses the last grants: the server takes back what its \
                 binary log lacks then, and replicas may have some of that; set it to 1"
            );
            (Risk::Durability, message)
        }
        None => {
            let message = format!(
                "sync_binlog is {sync}, so after a crash of the machine the replicas may lack the last grants; set it to 1"
            );
            (Risk::Replication, message)
        }
    })
}

fn replication(replicas: i64, semi_synchronous: bool) -> Found {
    (replicas > 0 && !semi_synchronous).then(|| {
        let message = format!(
            "it has {replicas} asynchronous replicas, and a failover may lose grants that they do not have yet; use \
             semi-synchronous replication, or fence"
        );
        (Risk::Replication, message)
    })
}

fn untested(version: &str) -> Found {
    let is_tested = version.contains("MariaDB") && numbers(version) >= TESTED;
    (!is_tested).then(|| {
        let (major, minor) = TESTED;
        let message = format!(
            "it is version {version}, and this store is tested with MariaDB {major}.{minor} and newer"
        );
        (Risk::Untested, message)
    })
}

fn clock_off(wall: Duration, took: Duration, clock: i64) -> Found {
    let clock = Duration::from_micros(clock.cast_unsigned());
    risks::clock_off(wall, took, clock).map(|message| (Risk::Clock, message))
}

/// Logs the findings.
pub(crate) fn warn(found: Result<Vec<Finding>, StoreError>) {
    for finding in found.into_iter().flatten() {
        tracing::warn!(risk = ?finding.risk, "{}", finding.message);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::Dialect;

    #[test]
    fn each_risk_is_found_and_a_good_server_has_none() {
        let settings = |flush, has_binary_log, sync_binlog| {
            let settings = Durability { dialect: Dialect::MariaDb, flush, has_binary_log, sync_binlog };
            [flushes(settings), binary_log(settings)].map(|found| found.map(|(risk, _)| risk))
        };
        for good in [settings(1, false, 0), settings(1, true, 1), settings(3, false, 0)] {
            assert_eq!(good, [None, None]);
        }
        let lost = Some(Risk::Durability);
        assert_eq!((settings(2, false, 0), settings(0, true, 1)), ([lost, None], [lost, None]));
        assert_eq!((settings(1, true, 0), settings(2, true, 0)), ([None, lost], [lost, lost]));
        assert_eq!(settings(3, true, 0), [None, Some(Risk::Replication)], "it keeps them itself");
        let lags = Durability { dialect: Dialect::MariaDb, flush: 1, has_binary_log: true, sync_binlog: 0 };
        let (_, told) = binary_log(lags).expect("a risk");
        assert!(told.contains("loses the last grants") && told.contains("set it to 1"), "{told}");
        assert_eq!((replication(0, false), replication(1, true)), (None, None));
        assert!(replication(1, false).is_some());
        assert_eq!((untested("10.11.14-MariaDB-0+deb12u2"), untested("11.4.2-MariaDB")), (None, None));
        assert!(untested("10.6.16-MariaDB").is_some() && untested("8.0.36").is_some());
        let wall = Duration::from_secs(1_000_000);
        assert!(clock_off(wall, Duration::ZERO, 1_000_003_000_000).is_some());
        assert_eq!(clock_off(wall, Duration::from_secs(2), 1_000_003_000_000), None);
    }
}
