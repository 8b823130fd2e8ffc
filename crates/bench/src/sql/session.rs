//! One connection of a peer to a database, and those that wait to be used again.

use std::{
    hash::{DefaultHasher, Hash as _, Hasher as _},
    sync::Mutex,
};

use lockkeeper::support;
use mysql_async::{Conn, Opts, OptsBuilder, Params, prelude::Queryable as _};
use tokio_postgres::{Client, NoTls, Statement};

use super::Kind;
use crate::Failure;

/// The error of MariaDB for a transaction that lost against another one.
const DEADLOCK: u16 = 1213;

/// Connections that are not used now. Each task of a round takes one, so that a round makes none.
pub(super) struct Pool {
    url: String,
    idle: Mutex<Vec<Session>>,
}

impl Pool {
    pub(super) fn new(url: String) -> Self {
        Self { url, idle: Mutex::default() }
    }

    pub(super) async fn take(&self) -> Result<Session, Failure> {
        let idle = support::lock(&self.idle).pop();
        match idle {
            Some(session) => Ok(session),
            None => Session::connect(&self.url).await,
        }
    }

    pub(super) fn put(&self, session: Session) {
        support::lock(&self.idle).push(session);
    }
}

/// A connection with its prepared statements.
pub(super) enum Session {
    Postgres(Box<Postgres>),
    MariaDb(Conn),
}

pub(super) struct Postgres {
    client: Client,
    insert: Statement,
    delete: Statement,
    lock: Statement,
    unlock: Statement,
}

impl Session {
    pub(super) async fn connect(url: &str) -> Result<Self, Failure> {
        if Kind::of(url) == Some(Kind::MariaDb) {
            // Over TCP, as Lockkeeper: the driver would look for a socket of the same machine.
            let options = OptsBuilder::from_opts(Opts::from_url(url)?).prefer_socket(false);
            return Ok(Self::MariaDb(Conn::new(options).await?));
        }
        let (client, connection) = tokio_postgres::connect(url, NoTls).await?;
        tokio::spawn(connection);
        let insert = "INSERT INTO bench_lock (name, owner) VALUES ($1, 1) ON CONFLICT DO NOTHING";
        Ok(Self::Postgres(Box::new(Postgres {
            insert: client.prepare(insert).await?,
            delete: client.prepare("DELETE FROM bench_lock WHERE name = $1").await?,
            lock: client.prepare("SELECT pg_advisory_lock($1)").await?,
            unlock: client.prepare("SELECT pg_advisory_unlock($1)").await?,
            client,
        })))
    }

    /// Takes the lock's row, unless it is there.
    pub(super) async fn insert(&mut self, name: &str) -> Result<bool, Failure> {
        match self {
            Self::Postgres(it) => Ok(it.client.execute(&it.insert, &[&name]).await? == 1),
            Self::MariaDb(it) => {
                let insert = "INSERT IGNORE INTO bench_lock (name, owner) VALUES (?, 1)";
                Ok(execute(it, insert, (name,)).await? == Some(1))
            }
        }
    }

    /// Removes the lock's row.
    pub(super) async fn delete(&mut self, name: &str) -> Result<(), Failure> {
        let removed = match self {
            Self::Postgres(it) => it.client.execute(&it.delete, &[&name]).await?,
            Self::MariaDb(it) => loop {
                if let Some(removed) = execute(it, "DELETE FROM bench_lock WHERE name = ?", (name,)).await? {
                    break removed;
                }
            },
        };
        if removed == 1 { Ok(()) } else { Err("what was held was not there".into()) }
    }

    /// Waits for the server's own lock, which ends with the connection and is kept nowhere.
    pub(super) async fn lock(&mut self, name: &str) -> Result<(), Failure> {
        match self {
            Self::Postgres(it) => drop(it.client.query_one(&it.lock, &[&key(name)]).await?),
            Self::MariaDb(it) => {
                let got: Option<Option<i64>> = it.exec_first("SELECT GET_LOCK(?, 600)", (name,)).await?;
                if got.flatten() != Some(1) {
                    return Err("GET_LOCK did not get it".into());
                }
            }
        }
        Ok(())
    }

    pub(super) async fn unlock(&mut self, name: &str) -> Result<(), Failure> {
        let done = match self {
            Self::Postgres(it) => it.client.query_one(&it.unlock, &[&key(name)]).await?.try_get(0)?,
            Self::MariaDb(it) => {
                let freed: Option<Option<i64>> = it.exec_first("SELECT RELEASE_LOCK(?)", (name,)).await?;
                freed.flatten() == Some(1)
            }
        };
        if done { Ok(()) } else { Err("what was held was not there".into()) }
    }
}

/// How many rows a statement changed; `None` if it lost against another one and did nothing.
async fn execute(
    connection: &mut Conn,
    statement: &str,
    parameters: impl Into<Params> + Send,
) -> Result<Option<u64>, Failure> {
    match connection.exec_drop(statement, parameters.into()).await {
        Ok(()) => Ok(Some(connection.affected_rows())),
        Err(mysql_async::Error::Server(error)) if error.code == DEADLOCK => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Returns the number of a name, since PostgreSQL's advisory locks have numbers.
fn key(name: &str) -> i64 {
    let mut hasher = DefaultHasher::new();
    name.hash(&mut hasher);
    hasher.finish().cast_signed()
}
