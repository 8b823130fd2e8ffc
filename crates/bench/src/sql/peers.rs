//! Peers on a database: a table with a row per lock, and the locks that the server itself offers. Each task has a
//! connection of its own.

use std::{sync::Arc, time::Duration};

use tokio::sync::Mutex;

use super::{
    Kind,
    session::{Pool, Session},
};
use crate::{
    Failure,
    judge::Limit,
    peer::{Lock, Peer},
    workload::Workload,
};

/// The name of the lock table in the output.
pub(super) const TABLE: &str = "lock table";

/// How often a waiter of the lock table looks.
pub(super) const POLL: Duration = Duration::from_millis(10);

/// The kind of peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Style {
    /// An insert and a delete per lock, each a transaction that is on disk when it is answered. Nothing ends a lock whose
    /// process is gone, and there is no queue and no token.
    Table,
    /// `pg_advisory_lock` and `GET_LOCK`: the server keeps them in memory, and they end with their connection.
    Advisory,
}

/// A peer with its connections.
pub(super) struct SqlPeer {
    pub(super) style: Style,
    pub(super) kind: Kind,
    pub(super) pool: Arc<Pool>,
}

/// Each clone takes a connection when it is first used.
pub(super) struct SqlLock {
    style: Style,
    pool: Arc<Pool>,
    name: String,
    session: Mutex<Option<Session>>,
}

impl Clone for SqlLock {
    fn clone(&self) -> Self {
        Self {
            style: self.style,
            pool: self.pool.clone(),
            name: self.name.clone(),
            session: Mutex::default(),
        }
    }
}

impl Drop for SqlLock {
    fn drop(&mut self) {
        if let Some(session) = self.session.get_mut().take() {
            self.pool.put(session);
        }
    }
}

impl Peer for SqlPeer {
    type Lock = SqlLock;

    fn name(&self) -> &'static str {
        match (self.style, self.kind) {
            (Style::Table, _) => TABLE,
            (Style::Advisory, Kind::Postgres) => "pg_advisory_lock",
            (Style::Advisory, Kind::MariaDb) => "GET_LOCK",
        }
    }

    fn lock(&self, name: &str) -> SqlLock {
        SqlLock {
            style: self.style,
            pool: self.pool.clone(),
            name: name.to_owned(),
            session: Mutex::default(),
        }
    }

    /// Requests that travel in groups share a sync and a transaction. A lock that is handed on inside of a process asks
    /// nobody.
    fn goal(&self, workload: Workload) -> Option<Limit> {
        match (workload, self.style, self.kind) {
            (Workload::W2, Style::Table, Kind::Postgres) => Some(Limit::AtLeast(4.0)),
            (Workload::W2, Style::Table, Kind::MariaDb) => Some(Limit::AtLeast(2.5)),
            (Workload::W3, ..) => Some(Limit::AtLeast(25.0)),
            _ => None,
        }
    }
}

/// A lock that is held on the connection of its clone.
pub(super) struct SqlHeld<'a>(&'a SqlLock);

impl Lock for SqlLock {
    type Held<'a> = SqlHeld<'a>;

    async fn acquire(&self) -> Result<SqlHeld<'_>, Failure> {
        let mut own = self.session.lock().await;
        let session = match &mut *own {
            Some(session) => session,
            none => none.insert(self.pool.take().await?),
        };
        match self.style {
            Style::Advisory => session.lock(&self.name).await?,
            Style::Table => {
                while !session.insert(&self.name).await? {
                    tokio::time::sleep(POLL).await;
                }
            }
        }
        Ok(SqlHeld(self))
    }

    async fn release(SqlHeld(lock): Self::Held<'_>) -> Result<(), Failure> {
        let mut own = lock.session.lock().await;
        let session = own.as_mut().ok_or("a lock without a connection is held")?;
        match lock.style {
            Style::Advisory => session.unlock(&lock.name).await,
            Style::Table => session.delete(&lock.name).await,
        }
    }
}
