//! The gate: checks that every request passes before anything is done for it.

use std::{net::IpAddr, sync::Arc};

use axum::http::{HeaderMap, Method, Uri, header};

use crate::{
    app::App,
    caller::Caller,
    connections::Peer,
    problem::{Code, Problem},
    settings::Settings,
    tokens::{Role, Who},
};

/// A path's condition for its callers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Access {
    /// None: it reveals nothing, and balancers call it by address.
    Probe,
    /// A good host name: pages without any data.
    Page,
    /// A token with this role.
    Role(Role),
}

/// Returns what a path needs of its callers. Unknown paths need a token, too.
pub(crate) fn access(path: &str) -> Access {
    match path {
        "/healthz" | "/readyz" => Access::Probe,
        "/v1/acquire" | "/v1/renew" | "/v1/release" | "/v1/fence" => Access::Role(Role::Use),
        "/v1/latch/show" => Access::Role(Role::Look),
        "/v1/evict" => Access::Role(Role::Administer),
        path if path.starts_with("/v1/latch/") => Access::Role(Role::Use),
        path if path.starts_with("/v1/") || path == "/metrics" => Access::Role(Role::Look),
        _ => Access::Page,
    }
}

/// The head of a request, as the checks need it.
pub(crate) struct Head<'a> {
    pub(crate) method: &'a Method,
    pub(crate) uri: &'a Uri,
    pub(crate) headers: &'a HeaderMap,
}

/// Lets a request in, or refuses it. Returns no caller if the path needs no token.
pub(crate) fn admit(app: &App, peer: &Arc<Peer>, head: &Head<'_>) -> Result<Option<Caller>, Problem> {
    let role = match access(head.uri.path()) {
        Access::Probe => return Ok(None),
        Access::Page => {
            check_host(&app.settings, head)?;
            return Ok(None);
        }
        Access::Role(role) => role,
    };
    check_host(&app.settings, head)?;
    check_origin(&app.settings, head)?;
    let who = authenticate(app, peer, head.headers)?;
    who.rate.take().map_err(|pause| {
        let message =
            "this token makes too many requests; the server's --rate says how many a second it may make";
        Problem::new(Code::TooManyRequests, message).retry_after(pause)
    })?;
    if who.role < role {
        let message =
            format!("this needs the role {}, and your token has the role {}", role.word(), who.role.word());
        return Err(Problem::new(Code::WrongRole, message));
    }
    let from =
        from(&app.settings, peer, head.headers).map_or_else(|| "unix".into(), |ip| ip.to_string().into());
    Ok(Some(Caller::new(who, from, peer, app.connections.share())))
}

fn authenticate(app: &App, peer: &Peer, headers: &HeaderMap) -> Result<Arc<Who>, Problem> {
    let given = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    let token = given.and_then(|text| {
        let (scheme, token) = text.split_once(' ')?;
        scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
    });
    let Some(token) = token.filter(|token| !token.is_empty()) else {
        return Err(Problem::new(Code::NoToken, "this needs a token, also on loopback"));
    };
    if let Some(who) = app.tokens.find(token) {
        return Ok(who);
    }
    let address = peer.address.unwrap_or(IpAddr::from([127, 0, 0, 1]));
    app.failures.count(address).map_err(|pause| {
        let message = "too many wrong tokens came from this address";
        Problem::new(Code::TooManyRequests, message).retry_after(pause)
    })?;
    Err(Problem::new(Code::WrongToken, "this server does not know that token"))
}

/// Returns the client's address: that of the connection, or the one that the proxy in front names.
fn from(settings: &Settings, peer: &Peer, headers: &HeaderMap) -> Option<IpAddr> {
    if settings.behind_proxy {
        // The last address is the one that our own proxy saw; the client may have written those before it.
        let forwarded = headers.get_all("x-forwarded-for").iter().next_back();
        let last = forwarded.and_then(|value| value.to_str().ok()?.rsplit(',').next()?.trim().parse().ok());
        if last.is_some() {
            return last;
        }
    }
    peer.address
}

/// Refuses unknown names of hosts: a page of another site can make a browser call us by a name of its own (DNS
/// rebinding).
fn check_host(settings: &Settings, head: &Head<'_>) -> Result<(), Problem> {
    let mut hosts = head.headers.get_all(header::HOST).iter();
    let host = match (hosts.next().and_then(|host| host.to_str().ok()), hosts.next()) {
        (Some(host), None) => host,
        _ => return Err(Problem::new(Code::WrongHost, "the request needs one header Host")),
    };
    let target = head.uri.authority().map(|authority| authority.as_str());
    if is_known(settings, host) && target.is_none_or(|target| is_known(settings, target)) {
        return Ok(());
    }
    Err(Problem::new(Code::WrongHost, "this server is not called by that name"))
}

/// Whether a request calls the server by a name of loopback, or by none.
pub(crate) fn is_called_local(head: &Head<'_>) -> bool {
    let host = head.headers.get(header::HOST).and_then(|host| host.to_str().ok());
    host.is_none_or(|host| is_local(without_port(host)))
}

fn is_local(name: &str) -> bool {
    let address = name.strip_prefix('[').and_then(|name| name.strip_suffix(']')).unwrap_or(name);
    name.eq_ignore_ascii_case("localhost") || address.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

fn is_known(settings: &Settings, host: &str) -> bool {
    let name = without_port(host);
    if is_local(name) {
        return true;
    }
    settings.hosts.iter().any(|known| known.eq_ignore_ascii_case(name) || known.eq_ignore_ascii_case(host))
}

fn without_port(host: &str) -> &str {
    match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) && !name.ends_with(':') => {
            // An IPv6 address without brackets has no port.
            if name.contains(':') && !name.starts_with('[') { host } else { name }
        }
        _ => host,
    }
}

/// Refuses calls that a page of another site makes a browser send, even though that page does not know the token.
fn check_origin(settings: &Settings, head: &Head<'_>) -> Result<(), Problem> {
    let text = |name: &str| head.headers.get(name).map(|value| value.to_str().unwrap_or("?"));
    let foreign = || Problem::new(Code::WrongOrigin, "the request comes from a page of another site");
    if text("sec-fetch-site").is_some_and(|site| !matches!(site, "same-origin" | "none")) {
        return Err(foreign());
    }
    if matches!(*head.method, Method::GET | Method::HEAD) {
        return Ok(());
    }
    let Some(origin) = text("origin") else { return Ok(()) };
    let host = text("host").unwrap_or_default();
    let ours = match origin.split_once("://") {
        Some(("https", name)) => (settings.tls.is_some() || settings.behind_proxy) && name == host,
        Some(("http", name)) => settings.tls.is_none() && name == host,
        _ => false,
    };
    if ours { Ok(()) } else { Err(foreign()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings() -> Settings {
        let mut settings = Settings::new("memory:");
        settings.hosts = vec!["locks.example".into(), "other.example:8443".into()];
        settings
    }

    #[test]
    fn hosts_are_loopback_or_named() {
        for good in [
            "localhost",
            "LOCALHOST:7171",
            "127.0.0.1",
            "127.0.0.1:80",
            "127.8.9.1:80",
            "[::1]",
            "[::1]:7171",
            "locks.example",
            "Locks.Example:443",
            "other.example:8443",
        ] {
            assert!(is_known(&settings(), good), "{good}");
        }
        for bad in [
            "",
            "evil.example",
            "localhost.evil.example",
            "127.0.0.1.evil.example",
            "evil.example:80",
            "localhost@evil.example",
            "other.example",
            "10.0.0.1",
            "[::2]:80",
            "0.0.0.0",
            "localhost:80:80",
        ] {
            assert!(!is_known(&settings(), bad), "{bad}");
        }
    }

    #[test]
    fn changes_come_from_our_own_pages_or_from_programs() {
        let check = |method: Method, pairs: &[(&'static str, &'static str)]| {
            let mut headers = HeaderMap::new();
            for (name, value) in pairs {
                headers.insert(*name, value.parse().expect("a value"));
            }
            let uri = Uri::from_static("/v1/acquire");
            check_origin(&settings(), &Head { method: &method, uri: &uri, headers: &headers }).is_ok()
        };
        let host = ("host", "localhost:7171");
        assert!(check(Method::POST, &[host]));
        assert!(check(Method::POST, &[host, ("origin", "http://localhost:7171")]));
        assert!(check(Method::GET, &[host, ("sec-fetch-site", "same-origin")]));
        for bad in [
            "http://evil.example",
            "null",
            "https://localhost:7171",
            "http://localhost",
            "http://localhost:7171.e",
        ] {
            let mut headers = HeaderMap::new();
            headers.insert("host", host.1.parse().expect("a value"));
            headers.insert("origin", bad.parse().expect("a value"));
            let uri = Uri::from_static("/v1/acquire");
            let head = Head { method: &Method::POST, uri: &uri, headers: &headers };
            assert!(check_origin(&settings(), &head).is_err(), "{bad}");
        }
        for site in [("sec-fetch-site", "cross-site"), ("sec-fetch-site", "same-site")] {
            assert!(!check(Method::GET, &[host, site]) && !check(Method::POST, &[host, site]));
        }
    }
}
