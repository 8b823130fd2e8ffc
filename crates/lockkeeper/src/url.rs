//! The choice of a store by the scheme of a URL. A new store adds one row here.

use std::{
    env,
    ffi::OsString,
    fs, io,
    net::Ipv6Addr,
    path::{Path, PathBuf},
};

use lockkeeper_core::{StoreError, StoreErrorKind, memory, store::Connector, support::lease_option};

/// The schemes of URLs, the feature that each needs, and whether this build has it.
const SCHEMES: [(&str, Option<&str>, bool); 15] = [
    ("memory", None, true),
    ("mysql", Some("mysql"), cfg!(feature = "mysql")),
    ("mariadb", Some("mysql"), cfg!(feature = "mysql")),
    ("postgres", Some("postgres"), cfg!(feature = "postgres")),
    ("postgresql", Some("postgres"), cfg!(feature = "postgres")),
    ("quorum", Some("quorum"), cfg!(feature = "quorum")),
    ("redis", Some("redis"), cfg!(feature = "redis")),
    ("rediss", Some("redis-tls"), cfg!(feature = "redis-tls")),
    ("redis+unix", Some("redis"), cfg!(feature = "redis")),
    ("redis+sentinel", Some("redis"), cfg!(feature = "redis")),
    ("rediss+sentinel", Some("redis-tls"), cfg!(feature = "redis-tls")),
    ("redis+cluster", Some("redis"), cfg!(feature = "redis")),
    ("rediss+cluster", Some("redis-tls"), cfg!(feature = "redis-tls")),
    ("sqlite", Some("sqlite"), cfg!(feature = "sqlite")),
    ("zookeeper", Some("zookeeper"), cfg!(feature = "zookeeper")),
];

/// The schemes of this build, for messages.
fn schemes() -> String {
    let there = SCHEMES.iter().filter(|(_, _, there)| *there);
    there.map(|(scheme, _, _)| format!("{scheme}:")).collect::<Vec<_>>().join(" ")
}

/// The feature of this crate that URLs like `url` need and that this build is without.
///
/// ```
/// assert_eq!(lockkeeper::url::missing_feature("memory:"), None);
/// assert_eq!(lockkeeper::url::missing_feature("nonsense"), None);
/// ```
#[must_use]
pub fn missing_feature(url: &str) -> Option<&'static str> {
    let (scheme, _) = url.split_once(':')?;
    let (_, feature, there) = SCHEMES.iter().find(|(known, _, _)| *known == scheme)?;
    feature.filter(|_| !there)
}

/// The URL of the store that a program without other orders uses: a SQLite file of this user,
/// `$XDG_STATE_HOME/lockkeeper/locks.db`, where `XDG_STATE_HOME` is `$HOME/.local/state` by
/// default. Without `HOME`, the user database says where home is. The folder is made if it is not there, for its owner
/// only.
///
/// # Errors
/// [`StoreErrorKind::Config`] if nobody says where home is, or if the folder cannot be made.
pub fn default_store() -> Result<String, StoreError> {
    let config = |why: String| StoreError::new(StoreErrorKind::Config, why);
    let file =
        default_file(env::var_os("XDG_STATE_HOME"), env::home_dir()).map_err(|why| config(why.into()))?;
    let folder = Path::new(&file).parent().unwrap_or(Path::new("/"));
    make_private(folder).map_err(|error| {
        let folder = folder.display();
        config(format!(
            "could not make the folder {folder} of the default store: {error}; make it, or name a store by its URL"
        ))
    })?;
    Ok(format!("sqlite:{file}"))
}

fn make_private(folder: &Path) -> io::Result<()> {
    let mut builder = fs::DirBuilder::new();
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.recursive(true).create(folder)
}

fn default_file(state: Option<OsString>, home: Option<PathBuf>) -> Result<String, &'static str> {
    // Variables with relative paths mean nothing, says the XDG specification.
    let absolute = |path: PathBuf| path.is_absolute().then_some(path);
    let state = state.map(PathBuf::from).and_then(absolute);
    let state = state.or_else(|| Some(home.and_then(absolute)?.join(".local/state")));
    let state =
        state.ok_or("there is no home folder for the default store; set HOME, or name a store by its URL")?;
    let file = state.join("lockkeeper").join("locks.db").into_os_string().into_string();
    file.map_err(|_| "the path of the home folder is not UTF-8; name a store by its URL")
}

/// The connector for `url`.
///
/// ```
/// assert!(lockkeeper::url::connector("memory:").is_ok());
/// let error = lockkeeper::url::connector("ftp://user:secret@host").unwrap_err();
/// assert!(error.to_string().contains("memory:") && !error.to_string().contains("secret"));
/// ```
///
/// # Errors
/// [`StoreErrorKind::Config`] if no store of this build has such URLs; the message never repeats the text after the
/// scheme, where passwords are.
pub fn connector(url: &str) -> Result<Connector, StoreError> {
    let config = |message: String| StoreError::new(StoreErrorKind::Config, message);
    if let Some(meant) = with_scheme(url) {
        return Err(config(format!("the store's URL has no scheme; {meant}")));
    }
    let Some((scheme, _)) = url.split_once(':') else {
        return Err(config(format!("the store's URL has no scheme; it starts with one of {}", schemes())));
    };
    if let Some(feature) = missing_feature(url) {
        return Err(config(format!(
            "{scheme}: URLs need the feature `{feature}` of the crate lockkeeper, which this build is without; add the \
             feature `{feature}` to it in Cargo.toml, such as by: cargo add lockkeeper --features {feature}"
        )));
    }
    match scheme {
        "memory" => {
            let (url, lease) = lease_option::take(url)?;
            if url.contains('?') {
                return Err(config("memory: has only the option lease; remove the others".into()));
            }
            Ok(memory::connector(&url).with_lease(lease))
        }
        #[cfg(feature = "mysql")]
        "mysql" | "mariadb" => lockkeeper_mysql::connector(url),
        #[cfg(feature = "postgres")]
        "postgres" | "postgresql" => lockkeeper_postgres::connector(url),
        #[cfg(feature = "quorum")]
        "quorum" => lockkeeper_quorum::connector(url, connector),
        #[cfg(feature = "redis")]
        "redis" | "rediss" | "redis+unix" | "redis+sentinel" | "rediss+sentinel" | "redis+cluster"
        | "rediss+cluster" => lockkeeper_redis::connector(url),
        #[cfg(feature = "sqlite")]
        "sqlite" => lockkeeper_sqlite::connector(url),
        #[cfg(feature = "zookeeper")]
        "zookeeper" => lockkeeper_zookeeper::connector(url),
        _ => {
            // Only a plain word is shown: a URL without "//" may have its password here.
            let plain = scheme.len() <= 20 && scheme.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'+');
            let scheme = if plain { scheme } else { "that" };
            Err(config(format!("no store of this build has {scheme}: URLs; it has {}", schemes())))
        }
    }
}

/// Guesses the URL that was meant by the addresses of servers, or by the path of a file. Shows nothing but these: other
/// text may have a password in it.
fn with_scheme(url: &str) -> Option<String> {
    if let Some(port) = port_of_all(url.trim_end_matches('/')) {
        let servers = url.trim_end_matches('/');
        return Some(match port {
            2181 => format!("write zookeeper://{servers}"),
            3306 => format!("write mysql://USER:PASSWORD@{servers}/DATABASE"),
            5432 => format!("write postgres://USER:PASSWORD@{servers}/DATABASE"),
            6379 => format!("write redis://{servers}"),
            26379 => format!("write redis+sentinel://{servers}/MASTER"),
            _ => format!(
                "write the kind of the server before {servers}: postgres://, mysql://, redis://, redis+sentinel://, \
                 redis+cluster:// or zookeeper://"
            ),
        });
    }
    let is_file = url.starts_with('/') || url.starts_with("./") || url.ends_with(".db");
    let path = url.split('/').all(|part| part.is_empty() || is_plain(part));
    (is_file && path).then(|| format!("write sqlite:{url}"))
}

/// The port of the first of `servers`, if all of them are nothing but a host and a port.
fn port_of_all(servers: &str) -> Option<u16> {
    // A name of a store that is a number.
    if servers.starts_with("memory:") || servers.starts_with("sqlite:") {
        return None;
    }
    let port = |server: &str| {
        let (host, port) = server.rsplit_once(':')?;
        let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
        let is_host = bare.map_or_else(|| is_plain(host), |host| host.parse::<Ipv6Addr>().is_ok());
        port.parse().ok().filter(|_| is_host)
    };
    let ports: Option<Vec<u16>> = servers.split(',').map(port).collect();
    ports?.first().copied()
}

fn is_plain(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._".contains(&byte))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// Holds for every set of features. The error for a scheme that was left out names the feature that it needs.
    #[test]
    fn a_known_scheme_is_there_or_names_its_feature() {
        for (scheme, feature, there) in SCHEMES {
            let url = format!("{scheme}://ada:canary@localhost/m");
            let found = connector(&url).map(drop).map_err(|error| format!("{error} {error:?}"));
            match feature.filter(|_| !there) {
                None => assert_eq!(missing_feature(&url), None),
                Some(feature) => {
                    let error = found.expect_err("this build is without it");
                    assert!(error.contains(&format!("add the feature `{feature}`")), "{error}");
                    assert!(
                        !error.contains("canary") && !schemes().contains(&format!("{scheme}:")),
                        "{error}"
                    );
                }
            }
        }
    }

    /// A store that forgets the option would give its locks 30 s.
    #[test]
    fn every_store_takes_the_lease_of_its_url() {
        let url = |scheme: &str, lease: &str| {
            let option = if lease.is_empty() { String::new() } else { format!("?lease={lease}") };
            match scheme {
                "memory" | "sqlite" => format!("{scheme}:m{option}"),
                "quorum" if lease.is_empty() => "quorum:memory:a,memory:b,memory:c".to_owned(),
                "quorum" => format!("quorum:lease={lease},memory:a,memory:b,memory:c"),
                "redis+unix" => format!("{scheme}:///m{option}"),
                "redis" | "rediss" | "redis+cluster" | "rediss+cluster" => {
                    format!("{scheme}://localhost{option}")
                }
                _ => format!("{scheme}://localhost/m{option}"),
            }
        };
        for (text, lease) in [("", None), ("7s", Some(Duration::from_secs(7)))] {
            let of = |scheme| {
                let url = url(scheme, text);
                connector(&url).unwrap_or_else(|error| panic!("{url}: {error}")).lease()
            };
            let schemes = SCHEMES.iter().filter(|(_, _, there)| *there).map(|(scheme, ..)| *scheme);
            let wrong: Vec<&str> = schemes.filter(|scheme| of(scheme) != lease).collect();
            assert_eq!(wrong, [""; 0], "with lease={text}");
        }
    }

    #[test]
    fn an_address_or_a_path_gets_the_url_that_was_meant() {
        for (given, meant) in [
            ("127.0.0.1:6379", "write redis://127.0.0.1:6379"),
            ("localhost:6379/", "write redis://localhost:6379"),
            ("redis.example:7000", "before redis.example:7000: postgres://, mysql://, redis://"),
            ("zk1:2181", "write zookeeper://zk1:2181"),
            ("zk1:2181,zk2:2181,zk3:2181", "write zookeeper://zk1:2181,zk2:2181,zk3:2181"),
            ("127.0.0.1:5432", "write postgres://USER:PASSWORD@127.0.0.1:5432/DATABASE"),
            ("[::1]:3306", "write mysql://USER:PASSWORD@[::1]:3306/DATABASE"),
            ("sentinel:26379", "write redis+sentinel://sentinel:26379/MASTER"),
            ("ada:canary@host:5432", "no store of this build"),
            ("canary@host:5432", "no store of this build"),
            ("/var/lib/app/locks.db", "write sqlite:/var/lib/app/locks.db"),
            ("locks.db", "write sqlite:locks.db"),
            ("nonsense", "starts with one of"),
            ("ada:canary@host", "no store of this build"),
        ] {
            let error = connector(given).map(drop).expect_err("no URL").to_string();
            assert!(error.contains(meant) && !error.contains("canary"), "{given}: {error}");
        }
        assert!(connector("memory:7").is_ok());
    }

    #[test]
    fn the_default_store_is_where_state_belongs() {
        let file = |state: Option<&str>, home: Option<&str>| {
            default_file(state.map(OsString::from), home.map(PathBuf::from)).ok()
        };
        let of_home = Some("/home/a/.local/state/lockkeeper/locks.db".to_owned());
        assert_eq!(file(Some("/state"), None).as_deref(), Some("/state/lockkeeper/locks.db"));
        assert_eq!(file(None, Some("/home/a")), of_home);
        assert_eq!(file(Some(""), Some("/home/a")), of_home);
        assert_eq!(file(Some("relative"), Some("/home/a")), of_home);
        assert_eq!(file(None, Some("")), None);
        assert_eq!(file(None, None), None);
    }
}
