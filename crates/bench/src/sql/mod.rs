//! The part of PostgreSQL and MariaDB: a server of its own, at its default durability, its work, the peers on it, and
//! Lockkeeper's goals.

mod held;
mod peers;
mod processes;
mod relay;
mod requests;
mod session;
mod token;

use std::{fs, net::SocketAddr, sync::Arc, time::Duration};

use lockkeeper_testkit::servers;

pub(crate) use self::{
    held::renew_all,
    processes::{keeper, table, w3p},
    requests::{Relayed, WAITING, drain_of_another},
    token::token,
};
use self::{
    peers::{SqlPeer, Style},
    session::Pool,
};
use crate::{
    Failure,
    judge::Limit,
    metered::Metered,
    processes::cpu_of,
    rounds::{Contestant, Served},
};

/// 64 connections for each of two peers, and sixteen processes with a keeper.
const CONNECTIONS: &str = "max_connections = 400";

/// The tables of the peers.
const TABLES: &str = "CREATE TABLE bench_lock (name VARCHAR(100) PRIMARY KEY, owner BIGINT NOT NULL);
CREATE TABLE bench_token (id INT PRIMARY KEY, n BIGINT NOT NULL);
INSERT INTO bench_token VALUES (1, 0), (2, 0)";

/// How many locks are held on a server that writes every renewal to disk.
pub(crate) const HELD: usize = 10_000;

/// The kind of database.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    Postgres,
    MariaDb,
}

impl Kind {
    /// Tells the kind by the URL of a store.
    pub(crate) fn of(url: &str) -> Option<Self> {
        match url.split(':').next()? {
            "postgres" => Some(Self::Postgres),
            "mysql" => Some(Self::MariaDb),
            _ => None,
        }
    }
}

/// A server that was started for this run; clones are the same.
#[derive(Clone)]
pub(crate) struct Server(Arc<Own>);

enum Own {
    Postgres(servers::Postgres),
    MariaDb(servers::MariaDb),
}

impl Server {
    /// Starts a server if `url` asks for one: `postgres:` or `mysql:`.
    pub(crate) fn for_url(url: &str) -> Result<Option<Self>, Failure> {
        let own = match url {
            "postgres:" => {
                let server = servers::PostgresOptions::default().setting(CONNECTIONS).start()?;
                server.sql(TABLES)?;
                Own::Postgres(server)
            }
            "mysql:" => {
                let server = servers::MariaDbOptions::default().setting(CONNECTIONS).start()?;
                server.sql(TABLES)?;
                Own::MariaDb(server)
            }
            _ => return Ok(None),
        };
        Ok(Some(Self(Arc::new(own))))
    }

    pub(crate) fn kind(&self) -> Kind {
        match &*self.0 {
            Own::Postgres(_) => Kind::Postgres,
            Own::MariaDb(_) => Kind::MariaDb,
        }
    }

    pub(crate) fn url(&self) -> String {
        match &*self.0 {
            Own::Postgres(server) => server.url(),
            Own::MariaDb(server) => server.url(),
        }
    }

    fn address(&self) -> SocketAddr {
        match &*self.0 {
            Own::Postgres(server) => server.address(),
            Own::MariaDb(server) => server.address(),
        }
    }

    fn sql(&self, text: &str) -> Result<String, Failure> {
        Ok(match &*self.0 {
            Own::Postgres(server) => server.sql(text)?,
            Own::MariaDb(server) => server.sql(text)?,
        })
    }

    /// CPU time of all its processes so far, to a hundredth of a second each.
    pub(crate) fn cpu(&self) -> Result<Duration, Failure> {
        let first = match &*self.0 {
            Own::Postgres(server) => server.id(),
            Own::MariaDb(server) => server.process().id(),
        };
        let first = first.ok_or("the server does not run")?;
        // Those of ended sessions are in the time of the first process.
        let mut all = cpu_of(first)?;
        for child in fs::read_to_string(format!("/proc/{first}/task/{first}/children"))?.split_whitespace() {
            // It may end just now.
            all += cpu_of(child.parse()?).unwrap_or_default();
        }
        Ok(all)
    }

    /// The same contestant, with the CPU time of the server in each round.
    pub(crate) fn metered(&self, inner: Box<dyn Contestant>) -> Box<dyn Contestant> {
        let server = self.clone();
        let served = Box::new(move || Ok(Served { commands: None, busy: server.cpu()? }));
        Box::new(Metered { inner, served })
    }

    /// The peers that Lockkeeper is compared with.
    pub(crate) fn peers(&self) -> Vec<Box<dyn Contestant>> {
        let pool = || Arc::new(Pool::new(self.url()));
        [Style::Table, Style::Advisory]
            .map(|style| self.metered(Box::new(SqlPeer { style, kind: self.kind(), pool: pool() })))
            .into()
    }

    /// The goals of waiting and draining.
    pub(crate) fn waiting_goals(&self) -> [(&'static str, Limit); 3] {
        let requests = match self.kind() {
            Kind::Postgres => Limit::AtMost(1.0),
            Kind::MariaDb => Limit::AtMost(5.0),
        };
        [
            ("client CPU while 64 wait, % of a core", Limit::Below(1.0)),
            (requests::WAITING, requests),
            ("drain of 64 waiters, ms", Limit::AtMost(50.0)),
        ]
    }
}
