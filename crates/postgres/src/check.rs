//! Checks the server for settings that put locks at risk: when a keeper connects, and on demand.

use std::{
    fmt,
    sync::Arc,
    time::{Duration, SystemTime},
};

use lockkeeper_core::{
    StoreError,
    store::WakeSink,
    support::{lease_option, risks},
};
use tokio_postgres::Row;

use crate::{
    codec::get,
    connection::{Connection, Failure, Opener, Worked},
    flights::unread,
    session::Session,
    settings::{Settings, Statements},
    trouble,
};

/// A transaction that is older than this keeps the server from cleaning up.
const OLD_SNAPSHOT: Duration = Duration::from_secs(600);
/// The oldest version that this store is tested with.
const OLDEST: i32 = 150_000;

/// A risk to locks that comes from the server, with advice.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Finding {
    /// The kind of risk.
    pub risk: Risk,
    /// A sentence for people: the risk and the advice.
    pub message: String,
}

/// The kinds of risk to locks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Risk {
    /// A crash of the server loses the last grants.
    Durability,
    /// A failover may lose grants that the replicas do not have yet.
    Replication,
    /// The server cannot clean up, so the tables grow and requests get slow.
    OldSnapshot,
    /// The server is older than the oldest version that this store is tested with.
    OldVersion,
    /// The clock differs much from that of this machine.
    Clock,
    /// A pooler is between, or `pooler=true` says so and there is none.
    Pooler,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

/// Connects to the server that `url` names and reports risks to locks there. It makes the tables if they are not there,
/// and changes nothing else.
///
/// # Errors
/// [`StoreError`] if the URL is wrong or the server cannot be reached.
pub async fn check(url: &str) -> Result<Vec<Finding>, StoreError> {
    let (url, _) = lease_option::take(url)?;
    let settings = Settings::parse(&url)?;
    let is_declared = settings.statements == Statements::Unnamed;
    // A session that was told of a pooler would not notice one.
    let directly = look_with(Settings { statements: Statements::Prepared, ..settings.clone() }).await;
    let (found, message) = match (directly, is_declared) {
        (Err(error), true) if trouble::is_pooler(&error) => (look_with(settings).await?, BETWEEN),
        (Err(error), false) if trouble::is_pooler(&error) => {
            (look_with(Settings { statements: Statements::Unnamed, ..settings }).await?, trouble::POOLER)
        }
        (directly, true) => (directly?, NOT_BETWEEN),
        (directly, false) => return directly,
    };
    let pooler = Finding { risk: Risk::Pooler, message: message.to_owned() };
    Ok(found.into_iter().chain([pooler]).collect())
}

const BETWEEN: &str =
    "a pooler is between, so waiters are not told but poll; connect to the server itself where that matters";
const NOT_BETWEEN: &str =
    "pooler=true is in the URL, and no pooler is between; remove it, so that waiters need not poll";

/// Connects with these settings and checks the server.
async fn look_with(settings: Settings) -> Result<Vec<Finding>, StoreError> {
    let background = tokio::runtime::Handle::current();
    let opener = Arc::new(Opener::new(settings, background, WakeSink::new(|_| {})));
    look(&Connection::new(opener, Duration::from_secs(5), None)).await
}

/// Checks the server behind a connection.
pub(crate) async fn look(connection: &Connection) -> Result<Vec<Finding>, StoreError> {
    connection.run(|session, _| Box::pin(look_at(session))).await
}

/// A user who may not see others' transactions or replicas sees none of them.
const FACTS: &str = "
SELECT current_setting('fsync'), current_setting('synchronous_commit'),
    current_setting('server_version_num')::integer, current_setting('server_version'),
    (SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'async'),
    (SELECT count(*) FROM pg_stat_replication WHERE sync_state <> 'async'),
    (SELECT extract(epoch FROM max(clock_timestamp() - xact_start))::bigint FROM pg_stat_activity
        WHERE backend_xmin IS NOT NULL OR backend_xid IS NOT NULL),
    (extract(epoch FROM clock_timestamp()) * 1000000)::bigint";

async fn look_at(session: Arc<Session>) -> Worked<Vec<Finding>> {
    let before = SystemTime::now();
    let rows = session.rows(FACTS).await.map_err(unread)?;
    let took = before.elapsed().unwrap_or_default();
    let row =
        rows.first().ok_or_else(|| Failure::keeps(trouble::corrupt("the server says nothing of itself")))?;
    let wall = before.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default() + took / 2;
    let found = findings(row, wall, took).map_err(Failure::keeps)?;
    let finding = |(risk, message)| Finding { risk, message };
    Ok(found.into_iter().flatten().map(finding).collect())
}

/// A risk and the advice about it, if the risk is there.
type Found = Option<(Risk, String)>;

fn findings(row: &Row, wall: Duration, took: Duration) -> Result<Vec<Found>, StoreError> {
    let (fsync, commit): (&str, &str) = (get(row, 0)?, get(row, 1)?);
    let (version, named): (i32, &str) = (get(row, 2)?, get(row, 3)?);
    let (behind, in_step): (i64, i64) = (get(row, 4)?, get(row, 5)?);
    let (oldest, clock): (Option<i64>, i64) = (get(row, 6)?, get(row, 7)?);
    Ok(vec![
        durability(fsync, commit),
        replication(behind, in_step),
        old_snapshot(oldest),
        old_version(version, named),
        clock_off(wall, took, clock),
    ])
}

fn durability(fsync: &str, commit: &str) -> Found {
    let message = if fsync != "on" {
        "fsync is off, so a crash of the machine may lose or damage everything; set it to on"
    } else if commit == "off" {
        "synchronous_commit is off, so a crash of the server loses the last grants; set it to on"
    } else {
        return None;
    };
    Some((Risk::Durability, message.to_owned()))
}

fn replication(behind: i64, in_step: i64) -> Found {
    (behind > 0 && in_step == 0).then(|| {
        let message = format!(
            "it has {behind} asynchronous replicas, and a failover may lose grants that they do not have yet; set \
             synchronous_standby_names, or fence"
        );
        (Risk::Replication, message)
    })
}

fn old_snapshot(oldest: Option<i64>) -> Found {
    let age = Duration::from_secs(u64::try_from(oldest?).ok()?);
    (age > OLD_SNAPSHOT).then(|| {
        let message = format!(
            "a transaction is open since {} minutes, so the tables cannot be cleaned up and grow; end it",
            age.as_secs() / 60
        );
        (Risk::OldSnapshot, message)
    })
}

fn old_version(version: i32, named: &str) -> Found {
    let message =
        || format!("it is version {named}, and this store is tested with {} and newer", OLDEST / 10_000);
    (version < OLDEST).then(|| (Risk::OldVersion, message()))
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

    #[test]
    fn each_risk_is_found_and_a_good_server_has_none() {
        assert_eq!(durability("on", "on"), None);
        assert_eq!(durability("on", "remote_apply"), None);
        assert!(durability("off", "on").is_some() && durability("on", "off").is_some());
        assert_eq!((replication(0, 0), replication(1, 1)), (None, None));
        assert!(replication(1, 0).is_some());
        assert_eq!((old_snapshot(None), old_snapshot(Some(-1)), old_snapshot(Some(60))), (None, None, None));
        assert!(old_snapshot(Some(6000)).is_some());
        assert!(old_version(130_011, "13.11").is_some() && old_version(150_000, "15.0").is_none());
        let wall = Duration::from_secs(1_000_000);
        assert!(clock_off(wall, Duration::ZERO, 1_000_003_000_000).is_some());
        assert_eq!(clock_off(wall, Duration::from_secs(2), 1_000_003_000_000), None);
    }
}
