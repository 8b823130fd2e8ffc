//! Looks at the servers for settings under which locks are at risk: on connecting, and for whoever wants to know.

use std::{
    collections::HashMap,
    fmt,
    sync::Arc,
    time::{Duration, SystemTime},
};

use lockkeeper_core::{StoreError, store::StoreTime};
use redis::Value;

use crate::{
    connect::Opener,
    servers::{Priority, Server, Servers},
    settings::Settings,
    trouble,
};

/// A clock that is off by more than this is told of. Nothing depends on it but grant numbers after a loss of data.
const CLOCK_TOLERANCE: Duration = Duration::from_secs(2);
/// The oldest version that all is tested to work with.
const OLDEST: (u32, u32) = (7, 0);

/// Something about a server that puts locks at risk, and what to do.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Finding {
    /// Which server.
    pub server: String,
    /// What about it.
    pub risk: Risk,
    /// In words, with the remedy.
    pub message: String,
}

/// What puts locks at risk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Risk {
    /// Locks may be thrown out when memory runs short.
    Eviction,
    /// A restart loses all locks.
    NoPersistence,
    /// A failover may lose locks that the replicas do not have yet.
    Replication,
    /// A master that is cut off from its replicas goes on granting.
    CutOff,
    /// The server is older than what this store is tested with.
    OldVersion,
    /// The clock is far from that of this machine.
    Clock,
    /// The server does not let this user look.
    Unknown,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.server, self.message)
    }
}

/// Connects to the servers that `url` names, and tells what puts locks at risk there; nothing is changed.
///
/// # Errors
/// [`StoreError`] if the URL is wrong or no server can be reached.
pub async fn check(url: &str) -> Result<Vec<Finding>, StoreError> {
    let opener = Arc::new(Opener::new(Settings::parse(url)?)?);
    let servers = Servers::find(opener, tokio::runtime::Handle::current(), Duration::from_secs(2)).await?;
    let findings = look(&servers).await;
    servers.close();
    findings
}

/// Looks at all servers.
pub(crate) async fn look(servers: &Servers) -> Result<Vec<Finding>, StoreError> {
    let mut findings = Vec::new();
    for server in &servers.map().in_use() {
        findings.append(&mut look_at(servers, server).await?);
    }
    Ok(findings)
}

async fn look_at(servers: &Servers, server: &Server) -> Result<Vec<Finding>, StoreError> {
    let before = SystemTime::now();
    let now = time(servers, server).await?;
    let took = before.elapsed().unwrap_or_default();
    let place =
        server.connection(Priority::Normal).place().map_or_else(String::new, |place| place.to_string());
    let mut findings = Vec::new();
    let mut find = |risk, message: String| findings.push(Finding { server: place.clone(), risk, message });

    let wall = before.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default() + took / 2;
    let off = wall.abs_diff(Duration::from_micros(now.0));
    if off > CLOCK_TOLERANCE + took {
        find(
            Risk::Clock,
            format!(
                "the server's clock and that of this machine differ by {off:?}; let both follow a time server"
            ),
        );
    }
    let Ok(facts) = facts(servers, server).await else {
        find(
            Risk::Unknown,
            "INFO is not allowed, so its settings are not known; allow +info to this user".into(),
        );
        return Ok(findings);
    };
    let fact = |name: &str| facts.get(name).map_or("", String::as_str);
    if fact("maxmemory_policy") != "noeviction" && fact("maxmemory") != "0" {
        let policy = fact("maxmemory_policy");
        find(
            Risk::Eviction,
            format!(
                "maxmemory-policy is {policy}, so locks are thrown out when memory is short; set it to noeviction"
            ),
        );
    }
    if fact("aof_enabled") == "0" && setting(servers, server, "save").await == Some(String::new()) {
        find(
            Risk::NoPersistence,
            "nothing is saved, so a restart loses all locks and fences; set appendonly yes".into(),
        );
    }
    let replicas = fact("connected_slaves");
    if !matches!(replicas, "" | "0") && servers.opener.settings().wait == 0 {
        find(
            Risk::Replication,
            format!(
                "it has {replicas} replicas, and a failover may lose grants that they do not have yet; add wait=1"
            ),
        );
    }
    // A node of a cluster that is cut off from most others stops by itself.
    if !matches!(replicas, "" | "0")
        && !servers.is_cluster()
        && setting(servers, server, "min-replicas-to-write").await == Some("0".into())
    {
        find(
            Risk::CutOff,
            "min-replicas-to-write is 0, so a master that is cut off from its replicas goes on granting beside the new one; \
             set it to 1 or more"
                .into(),
        );
    }
    let version = fact("redis_version");
    let mut parts = version.split('.').map(|part| part.parse().unwrap_or(0));
    if (parts.next().unwrap_or(0), parts.next().unwrap_or(0)) < OLDEST {
        find(Risk::OldVersion, format!("it is version {version}; use {}.{} or newer", OLDEST.0, OLDEST.1));
    }
    Ok(findings)
}

/// What the server says about itself.
async fn facts(servers: &Servers, server: &Server) -> Result<HashMap<String, String>, StoreError> {
    let text = match servers.ask(Priority::Normal, server, redis::cmd("INFO")).await? {
        Value::BulkString(text) => String::from_utf8_lossy(&text).into_owned(),
        Value::VerbatimString { text, .. } => text,
        _ => return Err(trouble::nonsense("INFO")),
    };
    let fact =
        |line: &str| line.trim().split_once(':').map(|(name, value)| (name.to_owned(), value.to_owned()));
    Ok(text.lines().filter_map(fact).collect())
}

/// A setting of the server, if this user may see it.
async fn setting(servers: &Servers, server: &Server, name: &str) -> Option<String> {
    let mut get = redis::cmd("CONFIG");
    get.arg("GET").arg(name);
    let answer = servers.ask(Priority::Normal, server, get).await.ok()?;
    redis::from_redis_value::<HashMap<String, String>>(answer).ok()?.remove(name)
}

/// The server's time.
pub(crate) async fn time(servers: &Servers, server: &Server) -> Result<StoreTime, StoreError> {
    let answer = servers.ask(Priority::Normal, server, redis::cmd("TIME")).await?;
    let (seconds, micros): (u64, u64) =
        redis::from_redis_value(answer).map_err(|_| trouble::nonsense("a time"))?;
    Ok(StoreTime(seconds * 1_000_000 + micros))
}

/// Tells of what was found, for those who go on all the same.
pub(crate) fn warn(found: Result<Vec<Finding>, StoreError>) {
    for finding in found.into_iter().flatten() {
        tracing::warn!(server = %finding.server, risk = ?finding.risk, "{}", finding.message);
    }
}

/// Refuses to go on if anything was found, for those who asked for that with `strict=true`.
pub(crate) fn refuse(found: &[Finding]) -> Result<(), StoreError> {
    if found.is_empty() {
        return Ok(());
    }
    let all: Vec<String> = found.iter().map(Finding::to_string).collect();
    Err(trouble::config(format!("strict=true refuses these servers: {}", all.join("; "))))
}
