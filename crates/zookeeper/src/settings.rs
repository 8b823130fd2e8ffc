//! Parses the URL: servers, namespace, login, TLS, and how long a session lasts. Touches nothing.
//!
//! `zookeeper://[USER:PASSWORD@]HOST[:PORT][,HOST[:PORT]...][/CHROOT][?OPTION=VALUE&...]`

use std::{fmt, time::Duration};

use lockkeeper_core::{
    StoreError,
    support::{duration, percent},
};
use zookeeper_client::Acls;

use crate::{
    layout::Paths,
    tls::{self, Tls},
    trouble::config,
};

/// The settings that a URL carries.
#[derive(Clone)]
pub(crate) struct Settings {
    pub(crate) servers: String,
    pub(crate) paths: Paths,
    pub(crate) login: Option<Login>,
    pub(crate) tls: Option<Tls>,
    /// How long a session lasts without a sign of life.
    pub(crate) session: Duration,
    /// The longest tick of the servers, as far as the URL says.
    pub(crate) tick: Duration,
    /// The URL without the password.
    pub(crate) shown: String,
}

/// User and password, and how the servers are told.
#[derive(Clone)]
pub(crate) struct Login {
    pub(crate) user: String,
    pub(crate) password: String,
    pub(crate) auth: Auth,
}

/// The way in which a login is shown to the servers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Auth {
    /// ZooKeeper's own `digest` scheme.
    Digest,
    /// SASL with DIGEST-MD5.
    Sasl,
}

impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.shown)
    }
}

const SCHEME: &str = "zookeeper://";

/// The port of a server if the URL names none.
const DEFAULT_PORT: u16 = 2181;

/// All options of a URL. Each has a row in `docs/stores.md`.
pub(crate) const OPTIONS: &[&str] = &["namespace", "session", "tick", "auth", "tls", "ca", "cert", "key"];

impl Settings {
    /// Reads `url`. No message repeats a part that may be a password.
    pub(crate) fn parse(url: &str) -> Result<Self, StoreError> {
        let rest = url.strip_prefix(SCHEME).ok_or_else(|| {
            config("write zookeeper://HOST:PORT,HOST:PORT/CHROOT, such as zookeeper://127.0.0.1:2181")
        })?;
        let (address, options) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, chroot) = address.split_once('/').unwrap_or((address, ""));
        let (login, servers) = match authority.rsplit_once('@') {
            Some((login, servers)) => (Some(login), servers),
            None => (None, authority),
        };
        if servers.is_empty() || servers.split(',').any(|server| !is_server(server)) {
            return Err(config("the URL names no server, or one that is not HOST or HOST:PORT"));
        }
        if chroot.contains('@') {
            return Err(config("there is an @ behind a /: write a / in user or password as %2F"));
        }
        let options = Options::parse(options)?;
        let tls = options.tls()?;
        if tls.is_some() && addresses(servers).iter().any(|(host, _)| !tls::can_be_certified(host)) {
            return Err(config("a server has a name that no certificate can be for"));
        }
        let Options { namespace, session, tick, auth, .. } = options;
        if session < tick * 2 {
            return Err(config(
                "a session shorter than two ticks cannot be kept; raise ?session= or lower &tick=, which is the \
                 servers' tickTime",
            ));
        }
        let login = login.map(|login| Login::parse(login, auth)).transpose()?;
        let shown = format!("{SCHEME}{servers}{}", &rest[authority.len()..]);
        let paths = Paths { root: root(chroot, &namespace)? };
        Ok(Self { servers: servers.to_owned(), paths, login, tls, session, tick, shown })
    }

    /// The hosts and ports of all servers.
    pub(crate) fn addresses(&self) -> Vec<(String, u16)> {
        addresses(&self.servers)
    }

    /// The access rights of the nodes that this keeper makes: with a login only its user, without one everybody.
    pub(crate) fn acls(&self) -> Acls<'static> {
        if self.login.is_some() { Acls::creator_all() } else { Acls::anyone_all() }
    }
}

impl Login {
    fn parse(text: &str, auth: Auth) -> Result<Self, StoreError> {
        let (user, password) =
            text.split_once(':').ok_or_else(|| config("write USER:PASSWORD before the @"))?;
        let both = percent::decode(user).zip(percent::decode(password));
        let (user, password) = both.ok_or_else(|| config("user or password is not UTF-8"))?;
        Ok(Self { user, password, auth })
    }
}

/// The options of a URL.
struct Options {
    namespace: String,
    session: Duration,
    tick: Duration,
    auth: Auth,
    with_tls: bool,
    ca: Option<String>,
    cert: Option<String>,
    key: Option<String>,
}

impl Options {
    fn parse(text: &str) -> Result<Self, StoreError> {
        let mut options = Self {
            namespace: "lockkeeper".to_owned(),
            session: Duration::from_secs(10),
            tick: Duration::from_secs(2),
            auth: Auth::Digest,
            with_tls: false,
            ca: None,
            cert: None,
            key: None,
        };
        for option in text.split('&').filter(|option| !option.is_empty()) {
            let (word, value) = option.split_once('=').unwrap_or((option, ""));
            let value =
                percent::decode(value).ok_or_else(|| config(format!("the value of {word} is not UTF-8")))?;
            // So that no option can be added without being listed.
            let word = OPTIONS.iter().find(|known| **known == word).copied().unwrap_or_default();
            match (word, value.as_str()) {
                ("namespace", _) => options.namespace = value,
                ("session", _) => options.session = time(word, &value)?,
                ("tick", _) => options.tick = time(word, &value)?,
                ("auth", "digest") => options.auth = Auth::Digest,
                ("auth", "sasl") => options.auth = Auth::Sasl,
                ("tls", _) => options.with_tls = switch(word, &value)?,
                ("ca", _) => options.ca = Some(value),
                ("cert", _) => options.cert = Some(value),
                ("key", _) => options.key = Some(value),
                ("auth", _) => return Err(config("auth is digest or sasl")),
                _ => {
                    let all = OPTIONS.join(", ");
                    return Err(config(format!("zookeeper:// has only the options lease, {all}")));
                }
            }
        }
        Ok(options)
    }

    fn tls(&self) -> Result<Option<Tls>, StoreError> {
        if self.cert.is_some() != self.key.is_some() {
            return Err(config("cert and key belong together: give both or neither"));
        }
        match &self.ca {
            Some(ca) if self.with_tls => {
                Ok(Some(Tls { ca: ca.clone(), own: self.cert.clone().zip(self.key.clone()) }))
            }
            None if self.with_tls => {
                Err(config("tls needs ca=FILE: the certificate that signed those of the servers"))
            }
            None if self.cert.is_none() => Ok(None),
            _ => Err(config("ca, cert and key need tls=true; without it nothing is encrypted")),
        }
    }
}

/// Host and port as written, with the port still to be read.
fn split_port(server: &str) -> (&str, Option<&str>) {
    match server.rsplit_once(':') {
        Some((host, port)) if !port.ends_with(']') => (host, Some(port)),
        _ => (server, None),
    }
}

/// The hosts and ports of servers that [`is_server`] accepts.
fn addresses(servers: &str) -> Vec<(String, u16)> {
    let split = |server: &str| {
        let (host, port) = split_port(server);
        let port = port.and_then(|port| port.parse().ok()).unwrap_or(DEFAULT_PORT);
        (host.trim_matches(['[', ']']).to_owned(), port)
    };
    servers.split(',').map(split).collect()
}

fn is_server(server: &str) -> bool {
    let (host, port) = split_port(server);
    let plain = |c: char| c.is_ascii_alphanumeric() || ".-_[]:".contains(c);
    !host.is_empty()
        && host.chars().all(plain)
        && port.is_none_or(|port| port.parse::<u16>().is_ok_and(|port| port > 0))
}

/// The path of the namespace.
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

fn time(word: &str, text: &str) -> Result<Duration, StoreError> {
    let allowed = Duration::from_millis(1)..=Duration::from_secs(24 * 3600);
    // A bare number could be meant as ticks or milliseconds, as ZooKeeper's own settings are.
    let has_unit = text.ends_with(|c: char| c.is_ascii_alphabetic());
    let time = duration::parse(text).ok().filter(|time| has_unit && allowed.contains(time));
    time.ok_or_else(|| config(format!("{word} is a time such as 250ms, 10s or 2m, at most a day")))
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
    use lockkeeper_core::StoreErrorKind;

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
