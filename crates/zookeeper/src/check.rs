//! Checks the servers for risks to locks, on demand: their versions, their quorum, and how long they keep sessions.

use std::{collections::BTreeSet, fmt, sync::Arc, time::Duration};

use lockkeeper_core::{
    StoreError,
    support::{lease_option, server_state::ServerState},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use crate::{
    limits::{Limits, ServerLimits},
    settings::Settings,
};

/// How long a server may take to answer with its version and mode.
const ANSWER_LIMIT: Duration = Duration::from_secs(2);
/// The longest answer that is read.
const LONGEST_ANSWER: u64 = 16 * 1024;
/// The oldest version that this store works with.
const OLDEST: (u32, u32) = (3, 6);
/// The default lease: detached leases of this length should be possible.
const USUAL_LEASE: Duration = Duration::from_secs(30);

/// A risk to locks that comes from the servers, with advice.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Finding {
    /// The address of the server, or of all of them.
    pub server: String,
    /// The kind of risk.
    pub risk: Risk,
    /// A sentence for people: the risk and the advice.
    pub message: String,
}

/// The kinds of risk to locks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Risk {
    /// A server does not answer.
    Silent,
    /// There is one server, whose end stops everything.
    Standalone,
    /// A server is older than the oldest version that this store works with.
    OldVersion,
    /// The servers have different versions.
    Versions,
    /// Servers keep sessions for less than the URL says.
    ShortSessions,
    /// Ticks are longer than the URL says.
    LongTicks,
    /// Leases that outlive their process cannot be as long as usual.
    ShortLeases,
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
    /// The servers that the URL names; none with TLS, where they do not tell their versions and modes.
    pub servers: Vec<ServerState>,
    /// The risks to locks; empty if there are none.
    pub findings: Vec<Finding>,
}

/// Asks the servers that `url` names for their versions, their modes and how long they keep sessions, and reports risks
/// to locks there. It opens sessions and closes them, and changes nothing.
///
/// # Errors
/// [`StoreError`] if the URL is wrong.
pub async fn examine(url: &str) -> Result<Examination, StoreError> {
    let (url, _) = lease_option::take(url)?;
    let settings = Arc::new(Settings::parse(&url)?);
    let Examination { servers: mut states, mut findings } = Examination::default();
    // On a port with TLS a server does not answer this.
    if settings.tls.is_none() {
        let mut told = Vec::new();
        for (host, port) in settings.addresses() {
            told.push((format!("{host}:{port}"), ask(&host, port).await));
        }
        findings.extend(servers(&told));
        states.extend(told.into_iter().map(|(server, told)| match told {
            Some(Told { version, mode }) => ServerState { server, answers: true, role: mode, version },
            None => ServerState::silent(server),
        }));
    }
    let limits = ServerLimits::new(settings.clone());
    limits.learn(None).await;
    findings.extend(sessions(&settings, limits.known()));
    Ok(Examination { servers: states, findings })
}

/// Returns the findings of [`examine`].
///
/// # Errors
/// As [`examine`].
pub async fn check(url: &str) -> Result<Vec<Finding>, StoreError> {
    examine(url).await.map(|found| found.findings)
}

/// A server's answer about itself.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Told {
    version: String,
    mode: String,
}

async fn ask(host: &str, port: u16) -> Option<Told> {
    let asked = async {
        let mut stream = TcpStream::connect((host, port)).await.ok()?;
        stream.write_all(b"srvr").await.ok()?;
        let mut text = String::new();
        stream.take(LONGEST_ANSWER).read_to_string(&mut text).await.ok()?;
        Some(read(&text))
    };
    tokio::time::timeout(ANSWER_LIMIT, asked).await.ok().flatten()
}

fn read(text: &str) -> Told {
    let field = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default().trim();
    let version = field("Zookeeper version:").split(['-', ',']).next().unwrap_or_default();
    Told { version: version.to_owned(), mode: field("Mode:").to_owned() }
}

fn servers(told: &[(String, Option<Told>)]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (server, told) in told {
        let mut add =
            |risk, message: String| findings.push(Finding { server: server.clone(), risk, message });
        let Some(told) = told else {
            let message =
                "it does not answer, so the others have less in reserve; start it, or take it out of the URL";
            add(Risk::Silent, message.into());
            continue;
        };
        if told.mode == "standalone" {
            let message =
                "it is a single server, so its end stops all locks; run an ensemble of three or more";
            add(Risk::Standalone, message.into());
        }
        // A server that does not allow srvr tells nothing of itself.
        if parts(&told.version).is_some_and(|version| version < OLDEST) {
            let (major, minor) = OLDEST;
            add(Risk::OldVersion, format!("it is version {}; use {major}.{minor} or newer", told.version));
        }
    }
    let known = told.iter().filter_map(|(_, told)| told.as_ref().map(|told| told.version.as_str()));
    let versions: BTreeSet<&str> = known.filter(|version| !version.is_empty()).collect();
    if versions.len() > 1 {
        let all: Vec<&str> = versions.into_iter().collect();
        let message = format!("they have the versions {}; bring them to one", all.join(", "));
        let server = told.iter().map(|(server, _)| server.as_str()).collect::<Vec<_>>().join(",");
        findings.push(Finding { server, risk: Risk::Versions, message });
    }
    findings
}

fn parts(version: &str) -> Option<(u32, u32)> {
    let mut parts = version.split('.').map(|part| part.parse().ok());
    Some((parts.next()??, parts.next()??))
}

fn sessions(settings: &Settings, Limits { longest, tick }: Limits) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut add =
        |risk, message: String| findings.push(Finding { server: settings.servers.clone(), risk, message });
    if longest < settings.session {
        let asked = settings.session;
        let message =
            format!("sessions last {longest:?} and not {asked:?}; lower session= or raise maxSessionTimeout");
        add(Risk::ShortSessions, message);
    } else if longest < USUAL_LEASE {
        let message = format!(
            "leases that outlive their process are {longest:?} at most; raise maxSessionTimeout to 30 s or more"
        );
        add(Risk::ShortLeases, message);
    }
    if tick > settings.tick {
        add(
            Risk::LongTicks,
            format!("ticks last {tick:?}, longer than tick= says; set it to the servers' tickTime"),
        );
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(version: &str, mode: &str) -> Option<Told> {
        Some(read(&format!("Zookeeper version: {version}, built on 2022\nLatency: 0\nMode: {mode}\n")))
    }

    #[test]
    fn each_risk_is_found_and_a_good_ensemble_has_none() {
        let risks = |told: &[Option<Told>]| -> Vec<Risk> {
            let told: Vec<_> = told.iter().map(|told| ("a:1".to_owned(), told.clone())).collect();
            servers(&told).iter().map(|finding| finding.risk).collect()
        };
        let good = told("3.8.0-5a02a05eddb59aee6ac762f7ea82e92a68eb9c0f", "follower");
        assert_eq!(good.as_ref().map(|told| told.version.as_str()), Some("3.8.0"));
        assert_eq!(risks(&[good.clone(), good.clone(), told("3.8.0-x", "leader")]), []);
        assert_eq!(risks(&[good.clone(), None]), [Risk::Silent]);
        assert_eq!(risks(&[told("3.8.0-x", "standalone")]), [Risk::Standalone]);
        assert_eq!(risks(&[told("3.4.13-x", "leader"), good]), [Risk::OldVersion, Risk::Versions]);
        // srvr is not allowed there.
        assert_eq!(risks(&[Some(read("srvr is not executed because it is not in the whitelist."))]), []);
        let settings = Settings::parse("zookeeper://a:1?session=10s&tick=2s").expect("good");
        let seconds = Duration::from_secs;
        let risks = |longest, tick| -> Vec<Risk> {
            let limits = Limits { longest: seconds(longest), tick: seconds(tick) };
            sessions(&settings, limits).iter().map(|finding| finding.risk).collect()
        };
        assert_eq!(risks(40, 2), []);
        assert_eq!(risks(20, 2), [Risk::ShortLeases]);
        assert_eq!(risks(5, 3), [Risk::ShortSessions, Risk::LongTicks]);
    }
}
