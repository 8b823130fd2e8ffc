//! Risks to the locks of a store, with advice: the checks of every store, in one shape.

use lockkeeper_core::{StoreError, support::lease_option};

pub use lockkeeper_core::support::server_state::ServerState;

/// A risk to the locks of a store, with advice.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Finding {
    /// The server or file, if the store has several or knows its name.
    pub server: Option<String>,
    /// The kind of risk, as one word.
    pub risk: String,
    /// A sentence for people: the risk and the advice.
    pub message: String,
}

impl Finding {
    /// A finding about the store as a whole.
    pub fn of_store(risk: &str, message: &str) -> Self {
        Self { server: None, risk: risk.to_owned(), message: message.to_owned() }
    }

    #[cfg(any(
        feature = "sqlite",
        feature = "mysql",
        feature = "postgres",
        feature = "redis",
        feature = "zookeeper"
    ))]
    fn new(server: Option<String>, risk: impl std::fmt::Debug, message: String) -> Self {
        Self { server, risk: format!("{risk:?}"), message }
    }
}

impl std::fmt::Display for Finding {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.server {
            Some(server) => write!(f, "{server}: {}", self.message),
            None => f.write_str(&self.message),
        }
    }
}

/// A store as the doctor sees it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Examination {
    /// Its servers, where the store has several or may have: Redis and ZooKeeper.
    pub servers: Vec<ServerState>,
    /// The risks to locks; empty if there are none.
    pub findings: Vec<Finding>,
}

impl Examination {
    #[cfg(any(
        feature = "sqlite",
        feature = "mysql",
        feature = "postgres",
        feature = "redis",
        feature = "zookeeper"
    ))]
    fn new(servers: Vec<ServerState>, findings: impl IntoIterator<Item = Finding>) -> Self {
        Self { servers, findings: findings.into_iter().collect() }
    }
}

/// Whether there are checks for such a store. Without them, [`check`] finds nothing.
///
/// ```
/// assert!(!lockkeeper::doctor::has_checks("memory:"));
/// ```
#[must_use]
pub fn has_checks(url: &str) -> bool {
    match url.split(':').next().unwrap_or_default() {
        "memory" => false,
        "sqlite" => cfg!(target_os = "linux"),
        _ => true,
    }
}

/// Looks for risks to the locks of the store at `url`, and returns the findings of [`examine`]. It changes nothing, but
/// a store on PostgreSQL or MariaDB makes its tables if they are not there.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), lockkeeper::Error> {
/// assert_eq!(lockkeeper::doctor::check("memory:").await?, []);
/// # Ok(()) }
/// ```
///
/// # When the store is unreachable
/// Fails after a few seconds.
///
/// # Errors
/// [`StoreError`] if the URL is wrong or the store cannot be asked.
pub async fn check(url: &str) -> Result<Vec<Finding>, StoreError> {
    examine(url).await.map(|found| found.findings)
}

/// Looks at the servers of the store at `url`, and for risks to locks there. It changes nothing, but a store on MariaDB
/// or PostgreSQL makes its tables if they are not there.
///
/// # When the store is unreachable
/// Fails after a few seconds.
///
/// # Errors
/// [`StoreError`] if the URL is wrong or the store cannot be asked.
pub async fn examine(url: &str) -> Result<Examination, StoreError> {
    // The errors for wrong URLs and for stores that were left out are those of connect.
    crate::url::connector(url)?;
    let (url, _) = lease_option::take(url)?;
    Ok(match url.split(':').next().unwrap_or_default() {
        #[cfg(feature = "mysql")]
        "mysql" | "mariadb" => {
            let found = lockkeeper_mysql::check(&url).await?;
            let found = found.into_iter().map(|it| Finding::new(None, it.risk, it.message));
            Examination::new(Vec::new(), found)
        }
        #[cfg(feature = "postgres")]
        "postgres" | "postgresql" => {
            let found = lockkeeper_postgres::check(&url).await?;
            let found = found.into_iter().map(|it| Finding::new(None, it.risk, it.message));
            Examination::new(Vec::new(), found)
        }
        #[cfg(feature = "quorum")]
        "quorum" => Box::pin(examine_members(&url)).await?,
        #[cfg(feature = "redis")]
        scheme if scheme.starts_with("redis") => {
            let lockkeeper_redis::Examination { servers, findings, .. } =
                lockkeeper_redis::examine(&url).await?;
            let found = findings.into_iter().map(|it| Finding::new(Some(it.server), it.risk, it.message));
            Examination::new(servers, found)
        }
        #[cfg(all(feature = "sqlite", target_os = "linux"))]
        "sqlite" => {
            let found = lockkeeper_sqlite::check(&url)?;
            let path = |path: std::path::PathBuf| Some(path.display().to_string());
            let found = found.into_iter().map(|it| Finding::new(path(it.path), it.risk, it.message));
            Examination::new(Vec::new(), found)
        }
        #[cfg(feature = "zookeeper")]
        "zookeeper" => {
            let lockkeeper_zookeeper::Examination { servers, findings, .. } =
                lockkeeper_zookeeper::examine(&url).await?;
            let found = findings.into_iter().map(|it| Finding::new(Some(it.server), it.risk, it.message));
            Examination::new(servers, found)
        }
        _ => Examination::default(),
    })
}

/// Looks for risks to the members of a quorum, for members that do not answer or vote, and for several members that one
/// failure takes together.
#[cfg(feature = "quorum")]
async fn examine_members(url: &str) -> Result<Examination, StoreError> {
    let members = lockkeeper_quorum::members(url)?;
    let mut all = Examination::default();
    for report in crate::quorum::show(url).await? {
        let member = &members[report.number - 1];
        let named = |server: Option<String>| {
            let number = format!("member {}", report.number);
            Some(server.map_or_else(|| number.clone(), |server| format!("{number}, {server}")))
        };
        all.findings.extend(of_vote(&report).map(|it| Finding { server: named(it.server), ..it }));
        if report.answers {
            match examine(member).await {
                Ok(found) => {
                    all.servers.extend(found.servers);
                    let found = found.findings.into_iter();
                    all.findings.extend(found.map(|it| Finding { server: named(it.server), ..it }));
                }
                Err(error) => {
                    let message = format!("it cannot be checked: {error}");
                    all.findings
                        .push(Finding { server: named(None), ..Finding::of_store("Unchecked", &message) });
                }
            }
        }
        let before = &members[..report.number - 1];
        if let Some(other) = before.iter().position(|other| host(other) == host(member)) {
            let message = format!(
                "members {} and {} are on one host, whose failure takes both; a quorum needs servers that fail independently",
                other + 1,
                report.number
            );
            all.findings.push(Finding::of_store("SharedHost", &message));
        }
    }
    Ok(all)
}

/// Tells why a member does not vote, if so.
#[cfg(feature = "quorum")]
fn of_vote(report: &crate::quorum::MemberReport) -> Option<Finding> {
    let trouble = report.trouble.as_deref().unwrap_or("it waits to be watched");
    let (risk, message) = match (report.answers, report.votes, report.votes_in) {
        (_, true, _) => return None,
        (false, ..) => ("Unreachable", format!("it cannot be reached ({trouble}); start it, or replace it")),
        (true, false, None) => ("NoVote", format!("it does not vote: {trouble}")),
        (true, false, Some(time)) => {
            let time = lockkeeper_core::support::duration::show(time);
            let message = format!(
                "it does not vote, and will in {time} if a client stays for that long ({trouble}); `lockkeeper quorum rejoin` \
                 does"
            );
            ("NoVote", message)
        }
    };
    Some(Finding { server: Some(report.url.clone()), ..Finding::of_store(risk, &message) })
}

/// Returns the host that a URL names. A URL of something on this host names none.
#[cfg(feature = "quorum")]
fn host(url: &str) -> Option<&str> {
    let (scheme, rest) = url.split_once("://")?;
    let authority = rest.split(['/', '?']).next().filter(|_| !scheme.ends_with("+unix"))?;
    let address = authority.rsplit_once('@').map_or(authority, |(_, address)| address);
    // The brackets of IPv6 have colons in them.
    let host = match address.rsplit_once(':') {
        Some((host, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => host,
        _ => address,
    };
    Some(host).filter(|host| !host.is_empty())
}

#[cfg(all(test, feature = "quorum"))]
mod tests {
    use super::*;

    #[test]
    fn hosts_are_found_in_urls() {
        for (url, expected) in [
            ("redis://ada:c%40t@a.example:6380/2?namespace=x", Some("a.example")),
            ("redis://[::1]:6379", Some("[::1]")),
            ("postgres://b.example/shop", Some("b.example")),
            ("redis+unix:///run/redis.sock", None),
            ("sqlite:/var/locks.db", None),
        ] {
            assert_eq!(host(url), expected, "{url}");
        }
    }

    #[tokio::test]
    async fn members_that_share_a_host_are_found() {
        let servers = ["one", "two", "three"].map(crate::memory::MemoryServer::named);
        let url = "quorum:memory:one,memory:two,memory:three";
        let risks = |found: Vec<Finding>| found.into_iter().map(|finding| finding.risk).collect::<Vec<_>>();
        let new = risks(check(url).await.expect("checked"));
        assert_eq!(new, ["NoVote", "NoVote", "SharedHost", "NoVote", "SharedHost"]);
        crate::quorum::found_fresh(url).await.expect("founded");
        assert_eq!(risks(check(url).await.expect("checked")), ["SharedHost", "SharedHost"]);
        servers[1].lose_data();
        let found = check(url).await.expect("checked");
        let lost = found.iter().find(|finding| finding.risk == "NoVote").expect("it does not vote");
        let server = lost.server.as_deref();
        assert_eq!(server, Some("member 2, memory:two"));
        assert!(lost.message.contains("quorum rejoin"), "{lost:?}");
    }
}
