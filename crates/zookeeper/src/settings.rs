//! What a URL says: which servers, which namespace, how to log in, how long a session lasts.
//!
//! `zookeeper://[USER:PASSWORD@]HOST[:PORT][,HOST[:PORT]...][/CHROOT][?OPTION=VALUE&...]`

use std::{fmt, future::Future, sync::Arc, time::Duration};

use lockkeeper_core::{StoreError, StoreErrorKind};
use tokio::task::JoinSet;
use zookeeper_client::{Acls, Client, Connector, Error, SaslOptions};

use crate::{
    layout::{Paths, unescape},
    limits::ServerLimits,
    tls::{self, Tls},
    trouble::trouble,
};

/// What a URL says.
#[derive(Clone)]
pub(crate) struct Settings {
    pub(crate) servers: String,
    pub(crate) paths: Paths,
    login: Option<Login>,
    tls: Option<Tls>,
    /// How long a session lasts without a sign of life.
    pub(crate) session: Duration,
    /// The longest tick of the servers.
    pub(crate) tick: Duration,
    /// What the servers grant.
    pub(crate) server_limits: Arc<ServerLimits>,
    /// The URL without the password.
    pub(crate) shown: String,
}

#[derive(Clone)]
struct Login {
    user: String,
    password: String,
    sasl: bool,
}

impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.shown)
    }
}

pub(crate) fn config(message: impl Into<String>) -> StoreError {
    StoreError::new(StoreErrorKind::Config, message)
}

/// Where servers listen, if nothing else is said.
const PORT: u16 = 2181;

/// A server that accepts a connection and says nothing holds the client up for a good part of a session. So another
/// attempt is begun beside one that takes longer than this, up to so many: each begins with another server, by chance.
const NEXT_ATTEMPT: Duration = Duration::from_millis(100);
const ATTEMPTS: u32 = 8;

const OPTIONS: &str = "namespace, session, tick, auth (digest or sasl), tls, ca, cert, key";

impl Settings {
    /// Reads `url`; messages never repeat what may be a password.
    pub(crate) fn parse(url: &str) -> Result<Self, StoreError> {
        let rest = url.strip_prefix("zookeeper://").ok_or_else(|| {
            config("write zookeeper://HOST:PORT,HOST:PORT/CHROOT, such as zookeeper://127.0.0.1:2181")
        })?;
        let (rest, options) = rest.split_once('?').unwrap_or((rest, ""));
        let (who_and_where, chroot) = rest.split_once('/').unwrap_or((rest, ""));
        let (user, servers) = match who_and_where.rsplit_once('@') {
            Some((user, servers)) => (Some(user), servers),
            None => (None, who_and_where),
        };
        if servers.is_empty() || servers.split(',').any(|server| !is_server(server)) {
            return Err(config("the URL names no server, or one that is not HOST or HOST:PORT"));
        }
        if chroot.contains('@') {
            return Err(config("an @ stands behind a /: write a / in user or password as %2F"));
        }
        let mut namespace = "lockkeeper".to_owned();
        let (mut session, mut tick) = (Duration::from_secs(10), Duration::from_secs(2));
        let (mut auth, mut with_tls) = ("digest".to_owned(), false);
        let [mut ca, mut cert, mut key] = [None, None, None];
        for option in options.split('&').filter(|option| !option.is_empty()) {
            let (word, value) = option.split_once('=').unwrap_or((option, ""));
            let value = unescape(value).ok_or_else(|| config(format!("the value of {word} is not UTF-8")))?;
            match word {
                "namespace" => namespace = value,
                "session" => session = span(word, &value)?,
                "tick" => tick = span(word, &value)?,
                "auth" if value == "digest" || value == "sasl" => auth = value,
                "tls" => with_tls = switch(word, &value)?,
                "ca" => ca = Some(value),
                "cert" => cert = Some(value),
                "key" => key = Some(value),
                _ => return Err(config(format!("zookeeper:// has only the options {OPTIONS}"))),
            }
        }
        if cert.is_some() != key.is_some() {
            return Err(config("cert and key belong together: give both or neither"));
        }
        if !with_tls && (ca.is_some() || cert.is_some()) {
            return Err(config("ca, cert and key need tls=true; without it nothing is encrypted"));
        }
        let tls = match ca {
            Some(ca) if with_tls => Some(Tls { ca, own: cert.zip(key) }),
            None if with_tls => {
                return Err(config("tls needs ca=FILE: who signed the servers' certificates"));
            }
            _ => None,
        };
        if tls.is_some() && addresses(servers).iter().any(|(host, _)| !tls::can_be_certified(host)) {
            return Err(config("a server has a name that no certificate can be for"));
        }
        if session < tick * 2 {
            return Err(config(
                "a session shorter than two ticks cannot be kept; raise ?session= or lower &tick=, which is the \
                 servers' tickTime",
            ));
        }
        let login = match user {
            None => None,
            Some(user) => {
                let (user, password) =
                    user.split_once(':').ok_or_else(|| config("write USER:PASSWORD before the @"))?;
                let both = unescape(user).zip(unescape(password));
                let (user, password) = both.ok_or_else(|| config("user or password is not UTF-8"))?;
                Some(Login { user, password, sasl: auth == "sasl" })
            }
        };
        let root = root(chroot, &namespace)?;
        let shown = url.strip_prefix("zookeeper://").and_then(|url| url.strip_prefix(who_and_where));
        let shown = format!("zookeeper://{servers}{}", shown.unwrap_or_default());
        let (servers, paths, server_limits) =
            (servers.to_owned(), Paths { root }, Arc::new(ServerLimits::of(servers)));
        Ok(Self { servers, paths, login, tls, session, tick, server_limits, shown })
    }

    fn connector(&self, timeout: Duration) -> Result<Connector, StoreError> {
        // A silent server is given up as soon as by the keeper's own session, however long this one is to last: whoever
        // waits in it holds up everybody behind.
        let silent = self.session.min(timeout) * 2 / 5;
        let mut connector = Client::connector().with_session_timeout(timeout).with_connection_timeout(silent);
        match &self.login {
            Some(Login { user, password, sasl: false }) => {
                connector = connector.with_auth("digest", format!("{user}:{password}").as_bytes());
            }
            Some(Login { user, password, sasl: true }) => {
                connector = connector.with_sasl(SaslOptions::digest_md5(user.clone(), password.clone()));
            }
            None => {}
        }
        if let Some(tls) = &self.tls {
            connector = connector.with_tls(tls.options()?);
        }
        Ok(connector)
    }

    /// Opens a session that ends without a sign of life for `timeout`, as far as the server allows it. If
    /// `detached`, it outlives this connection.
    pub(crate) async fn open(&self, timeout: Duration, detached: bool) -> Result<Client, StoreError> {
        let mut attempts = JoinSet::new();
        let most = if self.servers.contains(',') { ATTEMPTS } else { 1 };
        for attempt in 1..=most {
            attempts.spawn(self.attempt(&self.servers, timeout, detached)?);
            let next = tokio::time::sleep(if attempt < most { NEXT_ATTEMPT } else { Duration::MAX });
            tokio::pin!(next);
            loop {
                let attempted = tokio::select! {
                    biased;
                    Some(attempted) = attempts.join_next() => attempted,
                    () = next.as_mut() => break,
                };
                match attempted.unwrap_or(Err(Error::ClientClosed)) {
                    Ok(client) => return Ok(client),
                    Err(error) if attempts.is_empty() => return Err(trouble(error)),
                    // Another may have met a better server.
                    Err(_) => {}
                }
            }
        }
        Err(trouble(Error::Timeout))
    }

    /// One attempt to open a session. The client begins with any of the servers.
    pub(crate) fn attempt(
        &self,
        servers: &str,
        timeout: Duration,
        detached: bool,
    ) -> Result<impl Future<Output = Result<Client, Error>> + Send + use<>, StoreError> {
        let mut connector = self.connector(timeout)?.with_fail_eagerly();
        if detached {
            connector = connector.with_detached();
        }
        let (servers, secure) = (servers.to_owned(), self.tls.is_some());
        Ok(async move {
            if secure { connector.secure_connect(&servers).await } else { connector.connect(&servers).await }
        })
    }

    /// What stands behind `error`, which nobody could be reached with, as far as more can be said.
    pub(crate) async fn explain(&self, error: StoreError) -> StoreError {
        match &self.tls {
            Some(tls) if error.kind() == StoreErrorKind::Unreachable => {
                tls.clone().explain(&addresses(&self.servers)).await.unwrap_or(error)
            }
            _ => error,
        }
    }

    /// Who may touch what we make: with a login its owner, else everybody.
    pub(crate) fn acls(&self) -> Acls<'static> {
        if self.login.is_some() { Acls::creator_all() } else { Acls::anyone_all() }
    }
}

/// Hosts and ports of good servers.
fn addresses(servers: &str) -> Vec<(String, u16)> {
    let split = |server: &str| {
        let (host, port) = match server.rsplit_once(':') {
            Some((host, port)) if !port.ends_with(']') => (host, port.parse().unwrap_or(PORT)),
            _ => (server, PORT),
        };
        (host.trim_matches(['[', ']']).to_owned(), port)
    };
    servers.split(',').map(split).collect()
}

fn is_server(server: &str) -> bool {
    let (host, port) = match server.rsplit_once(':') {
        Some((host, port)) if !port.ends_with(']') => (host, Some(port)),
        _ => (server, None),
    };
    let plain = |c: char| c.is_ascii_alphanumeric() || ".-_[]:".contains(c);
    !host.is_empty()
        && host.chars().all(plain)
        && port.is_none_or(|port| port.parse::<u16>().is_ok_and(|port| port > 0))
}

/// The path of the namespace: parts of a path as ZooKeeper has them.
fn root(chroot: &str, namespace: &str) -> Result<String, StoreError> {
    let parts = chroot.split('/').filter(|part| !part.is_empty()).chain([namespace]);
    let mut root = String::new();
    for part in parts {
        let plain = part.chars().all(|c| c.is_ascii_graphic() && c != '/');
        if !plain || part.is_empty() || part == "." || part == ".." {
            return Err(config("chroot and namespace are plain names, with no blanks and no . or .."));
        }
        root.push('/');
        root.push_str(part);
    }
    if root.starts_with("/zookeeper/") {
        return Err(config("/zookeeper belongs to ZooKeeper itself; choose another chroot"));
    }
    Ok(root)
}

/// `250ms`, `10s` or `2m`.
fn span(word: &str, text: &str) -> Result<Duration, StoreError> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let number = digits.parse::<u64>().ok();
    let span = number.and_then(|number| match &text[digits.len()..] {
        "ms" => Some(Duration::from_millis(number)),
        "s" => Some(Duration::from_secs(number)),
        "m" => Some(Duration::from_secs(number.checked_mul(60)?)),
        _ => None,
    });
    let sane = Duration::from_millis(1)..=Duration::from_secs(24 * 3600);
    span.filter(|span| sane.contains(span))
        .ok_or_else(|| config(format!("{word} is a time such as 250ms, 10s or 2m, at most a day")))
}

fn switch(word: &str, text: &str) -> Result<bool, StoreError> {
    match text {
        "" | "true" | "yes" | "1" => Ok(true),
        "false" | "no" | "0" => Ok(false),
        _ => Err(config(format!("{word} is true or false"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_says_where_and_how_long() {
        let settings =
            Settings::parse("zookeeper://a:1,[::1]:2,c/app/prod?namespace=locks&session=4s&tick=250ms");
        let settings = settings.expect("a good URL");
        assert_eq!(
            (settings.servers.as_str(), settings.paths.root.as_str()),
            ("a:1,[::1]:2,c", "/app/prod/locks")
        );
        assert_eq!((settings.session, settings.tick), (Duration::from_secs(4), Duration::from_millis(250)));
        let plain = Settings::parse("zookeeper://localhost").expect("a good URL");
        assert_eq!(plain.paths.root, "/lockkeeper");
    }

    #[test]
    fn no_message_shows_a_password() {
        let settings = Settings::parse("zookeeper://me:se%40cret@h:1/x").expect("a good URL");
        assert_eq!(settings.login.as_ref().map(|login| login.password.as_str()), Some("se@cret"));
        assert_eq!(format!("{settings:?}"), "zookeeper://h:1/x");
        for url in ["zookeeper://me:secret@", "zookeeper://me:secret@h:0", "zookeeper://me:secret@h?auth=x"] {
            let error = Settings::parse(url).expect_err("no good URL");
            assert!(!format!("{error:?} {error}").contains("secret"), "{error}");
        }
    }

    #[test]
    fn the_shown_url_is_whole_and_has_no_password() {
        let shown = |url: &str| Settings::parse(url).expect(url).shown;
        let plain = "zookeeper://h:1,i/x?namespace=a@b&session=4s";
        assert_eq!(shown(plain), plain);
        assert_eq!(shown("zookeeper://me:secret@h:1,i/x?namespace=a@b&session=4s"), plain);
        assert_eq!(shown("zookeeper://me:se@cret@h?namespace=a@b"), "zookeeper://h?namespace=a@b");
        // A password with a slash that is not escaped looks like a server, a port and a chroot.
        let error = Settings::parse("zookeeper://me:12/secret@h").expect_err("no good URL");
        assert!(
            error.to_string().contains("%2F") && !format!("{error:?} {error}").contains("secret"),
            "{error}"
        );
    }

    #[test]
    fn what_cannot_be_meant_is_refused() {
        for url in [
            "zookeeper:",
            "zookeeper://",
            "zookeeper:///x",
            "zookeeper://a,,b",
            "zookeeper://a:b",
            "zookeeper://a/..",
            "zookeeper://a?session=5",
            "zookeeper://a?session=1s",
            "zookeeper://a?colour=red",
            "zookeeper://a?namespace=",
            "zookeeper://a?namespace=x/y",
            "zookeeper://a?tls=maybe",
            "zookeeper://a?tls&cert=x",
            "zookeeper://a?tls",
            "zookeeper://a?ca=x",
            "zookeeper://a?cert=x&key=y",
            "zookeeper://a..b?tls&ca=x",
            "zookeeper://user@a",
            "zookeeper://a/zookeeper",
        ] {
            let error = Settings::parse(url).expect_err(url);
            assert_eq!(error.kind(), StoreErrorKind::Config, "{url}");
        }
    }
}
