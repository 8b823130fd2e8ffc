//! Checks the servers for settings that put locks at risk: when a keeper connects, and on demand.

use std::{
    collections::HashMap,
    fmt,
    sync::Arc,
    time::{Duration, SystemTime},
};

use lockkeeper_core::{StoreError, store::StoreTime};
use redis::Value;

use crate::{
    opener::Opener,
    servers::{Priority, Server, Servers},
    settings::Settings,
    trouble,
};

/// A clock that differs by more than this is reported. Only grant numbers after a loss of data depend on it.
const CLOCK_TOLERANCE: Duration = Duration::from_secs(2);
/// The oldest version that this store is tested with.
const OLDEST: (u32, u32) = (7, 0);

/// Something about a server that puts locks at risk, and what to do.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Finding {
    /// The address of the server.
    pub server: String,
    /// The kind of risk.
    pub risk: Risk,
    /// What the risk is and what to do.
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
    /// The clock differs much from that of this machine.
    Clock,
    /// This user may not see the settings.
    Unknown,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.server, self.message)
    }
}

/// Connects to the servers that `url` names and reports what puts locks at risk there; changes nothing.
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

/// Checks all servers.
pub(crate) async fn look(servers: &Servers) -> Result<Vec<Finding>, StoreError> {
    let mut findings = Vec::new();
    for server in &servers.map().in_use() {
        findings.append(&mut look_at(servers, server).await?);
    }
    Ok(findings)
}

async fn look_at(servers: &Servers, server: &Server) -> Result<Vec<Finding>, StoreError> {
    let clock = clock(servers, server).await?;
    let facts = facts(servers, server).await.ok();
    let found = match &facts {
        Some(facts) => [
            clock,
            eviction(facts),
            no_persistence(servers, server, facts).await,
            replication(servers, facts),
            cut_off(servers, server, facts).await,
            old_version(facts),
        ],
        None => {
            let message = "INFO is not allowed, so its settings are not known; allow +info to this user";
            [clock, Some((Risk::Unknown, message.into())), None, None, None, None]
        }
    };
    let peer = server.connection(Priority::Normal).peer().map_or_else(String::new, |peer| peer.to_string());
    let finding = |(risk, message)| Finding { server: peer.clone(), risk, message };
    Ok(found.into_iter().flatten().map(finding).collect())
}

/// A risk, and what to do.
type Found = Option<(Risk, String)>;

async fn clock(servers: &Servers, server: &Server) -> Result<Found, StoreError> {
    let before = SystemTime::now();
    let now = time(servers, server).await?;
    let took = before.elapsed().unwrap_or_default();
    let wall = before.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default() + took / 2;
    let difference = wall.abs_diff(Duration::from_micros(now.0));
    let message = || {
        format!(
            "the server's clock and that of this machine differ by {difference:?}; let both follow a time server"
        )
    };
    Ok((difference > CLOCK_TOLERANCE + took).then(|| (Risk::Clock, message())))
}

fn eviction(facts: &Facts) -> Found {
    let policy = facts.get("maxmemory_policy");
    let message = || {
        format!(
            "maxmemory-policy is {policy}, so locks are thrown out when memory is short; set it to noeviction"
        )
    };
    (policy != "noeviction" && facts.get("maxmemory") != "0").then(|| (Risk::Eviction, message()))
}

async fn no_persistence(servers: &Servers, server: &Server, facts: &Facts) -> Found {
    let nothing = facts.get("aof_enabled") == "0"
        && setting(servers, server, "save").await.is_some_and(|save| save.is_empty());
    let message = "nothing is saved, so a restart loses all locks and fences; set appendonly yes";
    nothing.then(|| (Risk::NoPersistence, message.into()))
}

fn replication(servers: &Servers, facts: &Facts) -> Found {
    let replicas = facts.get("connected_slaves");
    let message = || {
        format!(
            "it has {replicas} replicas, and a failover may lose grants that they do not have yet; add wait=1"
        )
    };
    (facts.has_replicas() && servers.settings().wait == 0).then(|| (Risk::Replication, message()))
}

async fn cut_off(servers: &Servers, server: &Server, facts: &Facts) -> Found {
    // A node of a cluster that is cut off from most others stops by itself.
    let goes_on = facts.has_replicas()
        && !servers.is_cluster()
        && setting(servers, server, "min-replicas-to-write").await.is_some_and(|least| least == "0");
    let message = "min-replicas-to-write is 0, so a master that is cut off from its replicas goes on granting beside the \
                   new one; set it to 1 or more";
    goes_on.then(|| (Risk::CutOff, message.into()))
}

fn old_version(facts: &Facts) -> Found {
    let version = facts.get("redis_version");
    let mut parts = version.split('.').map(|part| part.parse().unwrap_or(0));
    let is_old = (parts.next().unwrap_or(0), parts.next().unwrap_or(0)) < OLDEST;
    let message = || format!("it is version {version}; use {}.{} or newer", OLDEST.0, OLDEST.1);
    is_old.then(|| (Risk::OldVersion, message()))
}

/// What a server says about itself.
struct Facts(HashMap<String, String>);

impl Facts {
    /// One fact; empty if the server does not tell it.
    fn get(&self, name: &str) -> &str {
        self.0.get(name).map_or("", String::as_str)
    }

    fn has_replicas(&self) -> bool {
        !matches!(self.get("connected_slaves"), "" | "0")
    }
}

async fn facts(servers: &Servers, server: &Server) -> Result<Facts, StoreError> {
    let text = match servers.ask(Priority::Normal, server, redis::cmd("INFO")).await? {
        Value::BulkString(text) => String::from_utf8_lossy(&text).into_owned(),
        Value::VerbatimString { text, .. } => text,
        _ => return Err(trouble::nonsense("INFO")),
    };
    let fact =
        |line: &str| line.trim().split_once(':').map(|(name, value)| (name.to_owned(), value.to_owned()));
    Ok(Facts(text.lines().filter_map(fact).collect()))
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

/// Logs what was found.
pub(crate) fn warn(found: Result<Vec<Finding>, StoreError>) {
    for finding in found.into_iter().flatten() {
        tracing::warn!(server = %finding.server, risk = ?finding.risk, "{}", finding.message);
    }
}

/// Fails if anything was found: for `strict=true`.
pub(crate) fn refuse(found: &[Finding]) -> Result<(), StoreError> {
    if found.is_empty() {
        return Ok(());
    }
    let all: Vec<String> = found.iter().map(Finding::to_string).collect();
    Err(trouble::config(format!("strict=true refuses these servers: {}", all.join("; "))))
}
