//! Checks the servers for settings that put locks at risk: when a keeper connects, and on demand.

use std::{
    collections::HashMap,
    fmt,
    sync::Arc,
    time::{Duration, SystemTime},
};

use lockkeeper_core::{
    StoreError, StoreErrorKind,
    store::StoreTime,
    support::{risks, server_state::ServerState},
};
use redis::Value;

use crate::{
    opener::Opener,
    servers::{Priority, Server, Servers},
    settings::Settings,
    trouble,
};

/// The oldest version that this store is tested with.
const OLDEST: (u32, u32) = (7, 0);

/// A risk to the locks of one server, with the remedy.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Finding {
    /// The address of the server.
    pub server: String,
    /// The kind of risk.
    pub risk: Risk,
    /// The risk and its remedy.
    pub message: String,
}

/// The kinds of risks to locks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Risk {
    /// A node of the cluster does not answer.
    Silent,
    /// Locks may be thrown out when memory runs short.
    Eviction,
    /// A restart loses all locks.
    NoPersistence,
    /// A failover may lose locks that the replicas do not have yet.
    Replication,
    /// A master that is cut off from its replicas goes on granting.
    CutOff,
    /// The server is older than the versions that this store is tested with.
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

/// The servers, and the risks to locks there.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Examination {
    /// The servers: each master, and behind it its replicas.
    pub servers: Vec<ServerState>,
    /// The risks to locks.
    pub findings: Vec<Finding>,
}

/// Connects to the servers that `url` names and reports their states and the risks to locks there; changes nothing.
///
/// # Errors
/// [`StoreError`] if the URL is wrong or no server can be reached.
pub async fn examine(url: &str) -> Result<Examination, StoreError> {
    let opener = Arc::new(Opener::new(Settings::parse(url)?)?);
    let servers = Servers::find(opener, tokio::runtime::Handle::current(), Duration::from_secs(2)).await?;
    let found = look(&servers).await;
    servers.close();
    found
}

/// The findings of [`examine`].
///
/// # Errors
/// As [`examine`].
pub async fn check(url: &str) -> Result<Vec<Finding>, StoreError> {
    examine(url).await.map(|found| found.findings)
}

/// Checks all servers. It fails if none of them answers.
pub(crate) async fn look(servers: &Servers) -> Result<Examination, StoreError> {
    let (mut found, mut failed) = (Examination::default(), None);
    let in_use = servers.map().in_use();
    for server in &in_use {
        match look_at(servers, server, &mut found.servers).await {
            Ok(mut findings) => found.findings.append(&mut findings),
            Err(error) => {
                let address = server.address.to_string();
                let message =
                    "it does not answer, so nobody gets its locks; start it, or wait for the failover";
                found.servers.push(ServerState::silent(address.clone()));
                found.findings.push(Finding { server: address, risk: Risk::Silent, message: message.into() });
                failed = Some(error);
            }
        }
    }
    let silent = found.servers.iter().all(|server| !server.answers);
    match failed {
        Some(error) if silent => Err(error),
        _ => Ok(found),
    }
}

/// Checks one server, and adds it and its replicas to `states`.
async fn look_at(
    servers: &Servers,
    server: &Server,
    states: &mut Vec<ServerState>,
) -> Result<Vec<Finding>, StoreError> {
    let clock = clock(servers, server).await?;
    let facts = match facts(servers, server).await {
        // A server that has gone meanwhile is none that forbids it.
        Err(error) if error.kind() == StoreErrorKind::Unreachable => return Err(error),
        facts => facts.ok(),
    };
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
    states.extend(described(&peer, facts.as_ref()));
    let finding = |(risk, message)| Finding { server: peer.clone(), risk, message };
    Ok(found.into_iter().flatten().map(finding).collect())
}

/// A server, and the replicas that it knows of.
fn described(server: &str, facts: Option<&Facts>) -> Vec<ServerState> {
    let fact = |name| facts.map_or("", |facts| facts.get(name));
    let role = if fact("role") == "slave" { "replica" } else { fact("role") };
    let (role, version) = (role.to_owned(), fact("redis_version").to_owned());
    let own = ServerState { server: server.to_owned(), answers: true, role, version };
    let replicas = (0..).map_while(|number| facts?.0.get(&format!("slave{number}")));
    let replica = |line: &String| {
        let part = |name: &str| line.split(',').find_map(|part| part.strip_prefix(name)).unwrap_or_default();
        ServerState {
            server: format!("{}:{}", part("ip="), part("port=")),
            answers: part("state=") == "online",
            role: format!("replica of {server}"),
            version: String::new(),
        }
    };
    std::iter::once(own).chain(replicas.map(replica)).collect()
}

/// A risk, and its remedy in words.
type Found = Option<(Risk, String)>;

async fn clock(servers: &Servers, server: &Server) -> Result<Found, StoreError> {
    let before = SystemTime::now();
    let now = time(servers, server).await?;
    let took = before.elapsed().unwrap_or_default();
    let wall = before.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default() + took / 2;
    let off = risks::clock_off(wall, took, Duration::from_micros(now.0));
    Ok(off.map(|message| (Risk::Clock, message)))
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

/// The facts that a server tells about itself.
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

/// Logs the findings.
pub(crate) fn warn(found: Result<Examination, StoreError>) {
    for finding in found.into_iter().flat_map(|found| found.findings) {
        tracing::warn!(server = %finding.server, risk = ?finding.risk, "{}", finding.message);
    }
}
