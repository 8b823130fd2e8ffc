//! The settings in a URL: the addresses of the servers, the login, and the options. Its `Debug` shows no secret.

use std::{fmt, path::PathBuf, sync::Arc, time::Duration};

use lockkeeper_core::{
    StoreError,
    support::url_parts::{decode, flag, host_and_port, needs, time},
};

use crate::{
    address::{Address, Shape},
    trouble::config,
};

/// Text that must not be shown.
#[derive(Clone)]
pub(crate) struct Secret(pub(crate) String);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

/// User and password.
#[derive(Clone, Debug, Default)]
pub(crate) struct Login {
    pub(crate) user: Option<String>,
    pub(crate) password: Option<Secret>,
}

/// Files for TLS, if a URL asks for it.
#[derive(Clone, Debug, Default)]
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
    /// How many replicas must have a grant before it counts.
    pub(crate) wait: u32,
    pub(crate) wait_limit: Duration,
    /// Whether servers on which locks are at risk are refused.
    pub(crate) strict: bool,
}

const FORMS: &str = "redis://HOST:PORT/DB, rediss://… for TLS, redis+unix:///PATH, redis+sentinel://HOST,HOST/MASTER \
                     or redis+cluster://HOST,HOST";

/// All options of a URL. Each has a row in `docs/stores.md`.
pub(crate) const OPTIONS: &[&str] = &[
    "namespace",
    "db",
    "wait",
    "wait_limit",
    "strict",
    "request_limit",
    "connect_limit",
    "protocol",
    "nodelay",
    "ca",
    "cert",
    "key",
    "sentinel_user",
    "sentinel_password",
];

/// The parts of a URL, as they were written.
struct Parts<'a> {
    scheme: &'a str,
    login: Option<&'a str>,
    hosts: &'a str,
    path: &'a str,
    query: &'a str,
}

impl<'a> Parts<'a> {
    fn of(url: &'a str) -> Result<Self, StoreError> {
        let (scheme, rest) = url.split_once("://").ok_or_else(not_a_url)?;
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, path) = match rest.find('/') {
            Some(slash) => rest.split_at(slash),
            None => (rest, ""),
        };
        let (login, hosts) = match authority.rsplit_once('@') {
            Some((login, hosts)) => (Some(login), hosts),
            None => (None, authority),
        };
        Ok(Self { scheme, login, hosts, path, query })
    }
}

impl Settings {
    /// Reads a URL. Messages never repeat it, because a password may be anywhere in a wrong one.
    pub(crate) fn parse(url: &str) -> Result<Self, StoreError> {
        let parts = Parts::of(url)?;
        let (base, form) = parts.scheme.split_once('+').unwrap_or((parts.scheme, ""));
        let tls = match base {
            "redis" => None,
            "rediss" => Some(TlsFiles::default()),
            _ => return Err(not_a_url()),
        };
        let login = parts.login.map(login).transpose()?.unwrap_or_default();
        let path = decode(parts.path)?;
        let (shape, database) = shape(form, parts.hosts, &path)?;
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
            settings.set("db", number)?;
        }
        let shown_options = settings.set_all(parts.query)?;
        if matches!(settings.shape, Shape::Cluster(_)) && settings.database != 0 {
            return Err(config("a cluster has database 0 only; use namespace= to keep users apart"));
        }
        let user = settings.login.user.as_ref().map_or_else(String::new, |user| format!("{user}@"));
        settings.shown = format!("{}://{user}{}{path}{shown_options}", parts.scheme, parts.hosts).into();
        Ok(settings)
    }

    /// Sets all options of a query; returns the query without passwords.
    fn set_all(&mut self, query: &str) -> Result<String, StoreError> {
        let mut shown = Vec::new();
        for option in query.split('&').filter(|option| !option.is_empty()) {
            let (key, value) = option.split_once('=').unwrap_or((option, ""));
            self.set(key, &decode(value)?)?;
            if !key.ends_with("password") {
                shown.push(option);
            }
        }
        Ok(if shown.is_empty() { String::new() } else { format!("?{}", shown.join("&")) })
    }

    fn set(&mut self, key: &str, value: &str) -> Result<(), StoreError> {
        // So that no option can be added without being listed.
        match OPTIONS.iter().find(|known| **known == key).copied().unwrap_or_default() {
            "db" => {
                let database = value.parse().ok().filter(|database| *database >= 0);
                self.database = database.ok_or_else(|| needs(key, "a number"))?;
            }
            "namespace" => self.namespace = namespace(value)?,
            "protocol" => {
                self.resp3 = match value {
                    "resp3" => true,
                    "resp2" => false,
                    _ => return Err(needs(key, "resp2 or resp3")),
                }
            }
            "nodelay" => self.nodelay = flag(key, value)?,
            "strict" => self.strict = flag(key, value)?,
            "connect_limit" => self.connect_limit = time(key, value)?,
            "request_limit" => self.request_limit = Some(time(key, value)?),
            "wait" => self.wait = value.parse().map_err(|_| needs(key, "a number of replicas"))?,
            "wait_limit" => self.wait_limit = time(key, value)?,
            "ca" => self.tls_files(key)?.ca = Some(value.into()),
            "cert" => self.tls_files(key)?.cert = Some(value.into()),
            "key" => self.tls_files(key)?.key = Some(value.into()),
            "sentinel_user" => self.sentinel_login.user = Some(value.to_owned()),
            "sentinel_password" => self.sentinel_login.password = Some(Secret(value.to_owned())),
            _ => {
                return Err(config(format!(
                    "the URL has an option that the Redis store does not know; it knows lease, {}",
                    OPTIONS.join(", ")
                )));
            }
        }
        Ok(())
    }

    fn tls_files(&mut self, key: &str) -> Result<&mut TlsFiles, StoreError> {
        let message = || config(format!("the option {key} is for TLS; write rediss:// in the URL"));
        self.tls.as_mut().ok_or_else(message)
    }
}

fn not_a_url() -> StoreError {
    config(format!("this is not a URL of the Redis store; write {FORMS}"))
}

/// How the servers belong together, and the number of the database if the path has one.
fn shape<'a>(form: &str, hosts: &str, path: &'a str) -> Result<(Shape, Option<&'a str>), StoreError> {
    let mut parts =
        path.trim_start_matches('/').split('/').map(|part| Some(part).filter(|part| !part.is_empty()));
    let mut next = || parts.next().flatten();
    match form {
        "" => {
            let [address] = &addresses(hosts, 6379)?[..] else {
                let message = "redis:// has one host; for several use redis+sentinel:// or redis+cluster://";
                return Err(config(message));
            };
            Ok((Shape::Single(address.clone()), next()))
        }
        "unix" if !hosts.is_empty() || path.len() < 2 => {
            Err(config("write redis+unix:///PATH, with three slashes; the database is the option db="))
        }
        "unix" => Ok((Shape::Single(Address::Unix(path.into())), None)),
        "sentinel" => {
            let message =
                "the URL names no master; write redis+sentinel://HOST,HOST/MASTER, such as /mymaster";
            let master = next().ok_or_else(|| config(message))?;
            Ok((Shape::Sentinel(addresses(hosts, 26379)?, master.to_owned()), next()))
        }
        "cluster" => Ok((Shape::Cluster(addresses(hosts, 6379)?), None)),
        _ => Err(not_a_url()),
    }
}

fn login(text: &str) -> Result<Login, StoreError> {
    let (user, password) = match text.split_once(':') {
        Some((user, password)) => (user, Some(Secret(decode(password)?))),
        None => (text, None),
    };
    let user = decode(user)?;
    Ok(Login { user: (!user.is_empty()).then_some(user), password })
}

fn addresses(hosts: &str, default_port: u16) -> Result<Vec<Address>, StoreError> {
    hosts.split(',').map(|host| address(host, default_port)).collect()
}

fn address(host: &str, default_port: u16) -> Result<Address, StoreError> {
    let (name, port) = host_and_port(host)?;
    if name.is_empty() {
        return Err(config(format!("the URL names no host; write {FORMS}")));
    }
    Ok(Address::Tcp(name.into(), port.unwrap_or(default_port)))
}

fn namespace(value: &str) -> Result<String, StoreError> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_-.:/".contains(&byte);
    if value.is_empty() || value.len() > 100 || !value.bytes().all(plain) {
        return Err(needs("namespace", "1 to 100 letters, digits or _ - . : /"));
    }
    Ok(value.to_owned())
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
    fn times_are_read_within_bounds() {
        let limit = |time: &str| Settings::parse(&format!("redis://host?request_limit={time}"));
        for (time, millis) in
            [("1ms", 1), ("500ms", 500), ("2s", 2000), ("1m30s", 90_000), ("3600000s", 3_600_000_000)]
        {
            let settings = limit(time).expect(time);
            assert_eq!(settings.request_limit, Some(Duration::from_millis(millis)), "{time}");
        }
        for time in ["0ms", "0", "1001h", "", "2x"] {
            let error = limit(time).expect_err(time);
            assert!(error.to_string().contains("request_limit"), "{error}");
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
