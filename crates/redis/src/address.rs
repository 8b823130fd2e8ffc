//! The addresses of servers, and how they belong together. Plain values: nothing here opens a connection.

use std::{fmt, path::PathBuf, sync::Arc};

use lockkeeper_core::support::url_parts;

/// The address of a server.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Address {
    Tcp(Arc<str>, u16),
    Unix(PathBuf),
}

impl Address {
    /// The address of a node that the node at `self` names. A node without a host is on the host of the node that was
    /// asked.
    pub(crate) fn of_node(&self, host: &str, port: u16) -> Option<Self> {
        match (host, self) {
            // Redirections have an empty host, lists of nodes a question mark.
            ("" | "?", Self::Tcp(host, _)) => Some(Self::Tcp(host.clone(), port)),
            ("" | "?", Self::Unix(_)) => None,
            (host, _) => Some(Self::Tcp(host.into(), port)),
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(host, port) => f.write_str(&url_parts::address(host, *port)),
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
    /// Each of these nodes knows all others.
    Cluster(Vec<Address>),
}
