//! What a URL says: where the servers are, who asks, and the options. Its `Debug` shows no secret.

use std::{fmt, path::PathBuf, sync::Arc, time::Duration};

use lockkeeper_core::StoreError;

use crate::{layout, trouble::config};

/// Where a server listens.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Address {
    Tcp(Arc<str>, u16),
    Unix(PathBuf),
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(host, port) if host.contains(':') => write!(f, "[{host}]:{port}"),
            Self::Tcp(host, port) => write!(f, "{host}:{port}"),
            Self::Unix(path) => write!(f, "{}", path.display()),
        }
    }
}

/// How the servers belong together.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Shape {
    /// One server.
    Single(Address),
    /// Sentinels know which server is the master of this name.
    Sentinel(Vec<Address>, String),
    /// Any of these nodes knows all others.
    Cluster(Vec<Address>),
}

/// Text that must not be seen.
#[derive(Clone)]
pub(crate) struct Secret(pub(crate) String);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

/// Who asks.
#[derive(Clone, Debug, Default)]
pub(crate) struct Login {
    pub(crate) user: Option<String>,
    pub(crate) password: Option<Secret>,
}

/// Files for TLS, if a URL asks for it.
#[derive(Clone, Debug, Default)]
#[cfg_attr(not(feature = "tls"), expect(dead_code, reason = "URLs are read alike in every build"))]
pub(crate) struct TlsFiles {
    pub(crate) ca: Option<PathBuf>,
    pub(crate) cert: Option<PathBuf>,
    pub(crate) key: Option<PathBuf>,
}

/// Everything that a URL says.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    /// The URL without secrets.
    pub(crate) shown: Arc<str>,
    pub(crate) shape: Shape,
    pub(crate) tls: Option<TlsFiles>,
    pub(crate) login: Login,
    pub(crate) sentinel_login: Login,
    pub(crate) database: i64,
    pub(crate) namespace: String,
    pub(crate) resp3: bool,
    pub(crate) nodelay: bool,
    pub(crate) connect_limit: Duration,
    pub(crate) request_limit: Option<Duration>,
    /// So many replicas must have a grant before it counts.
    pub(crate) wait: u32,
    pub(crate) wait_limit: Duration,
    /// Whether what is only risky is refused.
    pub(crate) strict: bool,
}

const FORMS: &str = "redis://HOST:PORT/DB, rediss://… for TLS, redis+unix:///PATH, redis+sentinel://HOST,HOST/MASTER \
                     or redis+cluster://HOST,HOST";

impl Settings {
    /// Reads a URL. Messages never repeat it, because a password may be anywhere in a wrong one.
    pub(crate) fn parse(url: &str) -> Result<Self, StoreError> {
        let bad = || config(format!("this is not a URL of the Redis store; write {FORMS}"));
        let (scheme, rest) = url.split_once("://").ok_or_else(bad)?;
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, path) = match rest.find('/') {
            Some(at) => rest.split_at(at),
            None => (rest, ""),
        };
        let (login, hosts) = match authority.rsplit_once('@') {
            Some((login, hosts)) => (login_of(login)?, hosts),
            None => (Login::default(), authority),
        };
        let (base, shape) = scheme.split_once('+').unwrap_or((scheme, ""));
        let tls = match base {
            "redis" => None,
            "rediss" => Some(TlsFiles::default()),
            _ => return Err(bad()),
        };
        let path = decode(path)?;
        let mut parts = path.trim_start_matches('/').split('/');
        let mut first = || parts.next().filter(|part| !part.is_empty()).map(str::to_owned);
        let mut database = None;
        let shape = match shape {
            "" => {
                database = first();
                let [address] = &addresses(hosts, 6379)?[..] else {
                    return Err(config(
                        "redis:// has one host; for several use redis+sentinel:// or redis+cluster://",
                    ));
                };
                Shape::Single(address.clone())
            }
            "unix" if !hosts.is_empty() || path.len() < 2 => {
                return Err(config(
                    "write redis+unix:///PATH, with three slashes; the database is the option db=",
                ));
            }
            "unix" => Shape::Single(Address::Unix(path.clone().into())),
            "sentinel" => {
                let master = first().ok_or_else(|| {
                    config(
                        "the URL names no master; write redis+sentinel://HOST,HOST/MASTER, such as /mymaster",
                    )
                })?;
                database = first();
                Shape::Sentinel(addresses(hosts, 26379)?, master)
            }
            "cluster" => Shape::Cluster(addresses(hosts, 6379)?),
            _ => return Err(bad()),
        };
        let mut settings = Self {
            shown: Arc::from(""),
            tls,
            login,
            sentinel_login: Login::default(),
            database: 0,
            namespace: "lockkeeper".into(),
            resp3: true,
            nodelay: true,
            connect_limit: Duration::from_secs(1),
            request_limit: None,
            wait: 0,
            wait_limit: Duration::from_millis(500),
            strict: false,
            shape,
        };
        if let Some(number) = database {
            settings.set("db", &number)?;
        }
        let mut options = Vec::new();
        for option in query.split('&').filter(|option| !option.is_empty()) {
            let (key, value) = option.split_once('=').unwrap_or((option, ""));
            settings.set(key, &decode(value)?)?;
            if !key.ends_with("password") {
                options.push(option);
            }
        }
        if matches!(settings.shape, Shape::Cluster(_)) && settings.database != 0 {
            return Err(config("a cluster has database 0 only; use namespace= to keep users apart"));
        }
        let user = settings.login.user.as_ref().map_or_else(String::new, |user| format!("{user}@"));
        let query = if options.is_empty() { String::new() } else { format!("?{}", options.join("&")) };
        settings.shown = format!("{scheme}://{user}{hosts}{path}{query}").into();
        Ok(settings)
    }

    fn set(&mut self, key: &str, value: &str) -> Result<(), StoreError> {
        let wrong = |what: &str| config(format!("the option {key} needs {what}"));
        let flag = || match value {
            "true" | "1" => Ok(true),
            "false" | "0" => Ok(false),
            _ => Err(wrong("true or false")),
        };
        let time = || span(value).ok_or_else(|| wrong("a time such as 500ms or 2s"));
        let files = |tls: &mut Option<TlsFiles>| {
            tls.take()
                .ok_or_else(|| config(format!("the option {key} is for TLS; write rediss:// in the URL")))
        };
        match key {
            "db" => {
                self.database = value.parse().ok().filter(|db| *db >= 0).ok_or_else(|| wrong("a number"))?;
            }
            "namespace" => {
                let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_-.:/".contains(&byte);
                if value.is_empty() || value.len() > 100 || !value.bytes().all(plain) {
                    return Err(wrong("1 to 100 letters, digits or _ - . : /"));
                }
                value.clone_into(&mut self.namespace);
            }
            "protocol" => {
                self.resp3 = match value {
                    "resp3" => true,
                    "resp2" => false,
                    _ => return Err(wrong("resp2 or resp3")),
                }
            }
            "nodelay" => self.nodelay = flag()?,
            "strict" => self.strict = flag()?,
            "connect_limit" => self.connect_limit = time()?,
            "request_limit" => self.request_limit = Some(time()?),
            "wait" => self.wait = value.parse().map_err(|_| wrong("a number of replicas"))?,
            "wait_limit" => self.wait_limit = time()?,
            "ca" => self.tls = Some(TlsFiles { ca: Some(value.into()), ..files(&mut self.tls)? }),
            "cert" => self.tls = Some(TlsFiles { cert: Some(value.into()), ..files(&mut self.tls)? }),
            "key" => self.tls = Some(TlsFiles { key: Some(value.into()), ..files(&mut self.tls)? }),
            "sentinel_user" => self.sentinel_login.user = Some(value.to_owned()),
            "sentinel_password" => self.sentinel_login.password = Some(Secret(value.to_owned())),
            _ => {
                return Err(config(
                    "the URL has an option that the Redis store does not know; it knows db, namespace, protocol, \
                     nodelay, strict, connect_limit, request_limit, wait, wait_limit, ca, cert, key, sentinel_user \
                     and sentinel_password",
                ));
            }
        }
        Ok(())
    }
}

fn login_of(text: &str) -> Result<Login, StoreError> {
    let (user, password) = match text.split_once(':') {
        Some((user, password)) => (user, Some(Secret(decode(password)?))),
        None => (text, None),
    };
    let user = decode(user)?;
    Ok(Login { user: (!user.is_empty()).then_some(user), password })
}

fn decode(text: &str) -> Result<String, StoreError> {
    layout::unescape(text).ok_or_else(|| {
        config("the URL has a % that two hexadecimal digits do not follow; write %25 for a % sign")
    })
}

fn addresses(hosts: &str, usual_port: u16) -> Result<Vec<Address>, StoreError> {
    hosts.split(',').map(|host| address(host, usual_port)).collect()
}

fn address(host: &str, usual_port: u16) -> Result<Address, StoreError> {
    let (name, port) = match host.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((name, port)) => (name, port.strip_prefix(':')),
        None => match host.split_once(':') {
            Some((name, port)) => (name, Some(port)),
            None => (host, None),
        },
    };
    let port = match port {
        Some(port) => port.parse().map_err(|_| config("a port of the URL is not a number"))?,
        None => usual_port,
    };
    if name.is_empty() {
        return Err(config(format!("the URL names no host; write {FORMS}")));
    }
    Ok(Address::Tcp(name.into(), port))
}

/// A length of time: `500ms` or `2s`.
fn span(text: &str) -> Option<Duration> {
    let (number, unit) = text.split_at(text.find(|letter: char| !letter.is_ascii_digit())?);
    let number: u64 = number.parse().ok().filter(|number| (1..=3_600_000).contains(number))?;
    match unit {
        "ms" => Some(Duration::from_millis(number)),
        "s" => Some(Duration::from_secs(number)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tcp(host: &str, port: u16) -> Address {
        Address::Tcp(host.into(), port)
    }

    #[test]
    fn the_forms_are_read() {
        let read = |url| Settings::parse(url).expect(url);
        let single =
            read("rediss://ada:s%40fe@redis.example:7000/3?namespace=app&wait=2&wait_limit=90ms&ca=/ca.pem");
        assert_eq!(single.shape, Shape::Single(tcp("redis.example", 7000)));
        assert_eq!((single.database, single.namespace.as_str(), single.wait), (3, "app", 2));
        assert_eq!(single.wait_limit, Duration::from_millis(90));
        assert_eq!(single.login.password.as_ref().map(|secret| secret.0.as_str()), Some("s@fe"));
        assert_eq!(single.tls.and_then(|tls| tls.ca), Some("/ca.pem".into()));
        assert_eq!(read("redis://[::1]").shape, Shape::Single(tcp("::1", 6379)));
        assert_eq!(
            read("redis+unix:///run/redis.sock?db=2").shape,
            Shape::Single(Address::Unix("/run/redis.sock".into()))
        );
        let sentinel = read("redis+sentinel://a,b:99/mymaster/1");
        assert_eq!(sentinel.shape, Shape::Sentinel(vec![tcp("a", 26379), tcp("b", 99)], "mymaster".into()));
        assert_eq!(sentinel.database, 1);
        assert_eq!(read("redis+cluster://a,b").shape, Shape::Cluster(vec![tcp("a", 6379), tcp("b", 6379)]));
    }

    #[test]
    fn wrong_urls_are_refused_without_repeating_them() {
        for url in [
            "redis:canary",
            "redis://:canary@",
            "redis://:canary@a,b",
            "redis://:canary@host:port",
            "redis://:canary@host/x",
            "redis://:canary@host?canary=1",
            "redis://:canary@host?namespace=a{b}",
            "redis://:canary@host?ca=/x",
            "redis://:canary%@host",
            "redis+sentinel://:canary@host",
            "redis+cluster://:canary@host?db=1",
            "redis+unix://:canary@host/path",
            "redis://host?request_limit=canary",
        ] {
            let error = Settings::parse(url).expect_err(url);
            assert!(!format!("{error} {error:?}").contains("canary"), "{error}");
        }
    }

    #[test]
    fn secrets_are_not_shown() {
        let settings = Settings::parse("redis+sentinel://ada:canary@a/m?sentinel_password=canary&db=1")
            .expect("a good URL");
        assert!(!format!("{settings:?}").contains("canary"));
        assert_eq!(&*settings.shown, "redis+sentinel://ada@a/m?db=1");
    }
}
