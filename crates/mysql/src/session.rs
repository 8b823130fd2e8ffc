//! One open connection to the server: sends packets of statements and tells the answers. It never repeats anything.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
};

use lockkeeper_core::StoreError;
use mysql_async::{Conn, Error, Opts, Row, prelude::Queryable};
use tokio::sync::Mutex;

use crate::{
    codec::{number, text},
    server::{ServerFacts, VARIABLES},
    settings::address,
    statements::{CLOCK, Statements},
    trouble::{corrupt, explain, not_connected},
};

/// The settings that each connection needs, regardless of the server's defaults. Times are in seconds. A user without
/// any rights may set all of these. The comments are for one kind of server each.
///
/// MariaDB has a limit for clients that stop in a transaction. There are two more for transactions that only read or
/// have written, which come first if they are set. The other kind of server is told the limit in each transaction.
const SETUP: &str = "SET autocommit = 1, completion_type = 0, \
                     sql_mode = 'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION', sql_safe_updates = 0, \
                     sql_select_limit = 18446744073709551615, innodb_lock_wait_timeout = 1, lock_wait_timeout = 2, \
                     net_write_timeout = 2, net_read_timeout = 2, timestamp = DEFAULT \
                     /*M! , max_statement_time = 0, idle_transaction_timeout = 1, \
                     idle_readonly_transaction_timeout = 1, idle_write_transaction_timeout = 1, \
                     wait_timeout = GREATEST(@@global.wait_timeout, 28800) */ /*!80000 , max_execution_time = 0 */; \
                     SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED; \
                     SET SESSION TRANSACTION READ WRITE";

/// An open connection.
pub(crate) struct Session {
    /// Nobody else uses it meanwhile: work is done one by one.
    connection: Mutex<Option<Conn>>,
    pub(crate) statements: Statements,
    pub(crate) facts: ServerFacts,
    is_cut: AtomicBool,
}

/// The failure of a packet. The server stops at the first statement that fails, and leaves a transaction open.
#[derive(Debug)]
pub(crate) struct Failed {
    /// How many statements had succeeded, if none of these has rows.
    pub(crate) done: usize,
    pub(crate) error: Error,
}

impl Session {
    /// Connects. Servers that cannot keep locks are refused.
    pub(crate) async fn open(options: Opts, prefix: &Arc<str>) -> Result<Self, StoreError> {
        let address = address(&options);
        let connection = Conn::new(options).await.map_err(|error| not_connected(&address, error))?;
        let mut connection = Some(connection);
        let facts = match greet(&mut connection).await {
            Ok(facts) => facts,
            Err(error) => {
                close(connection);
                return Err(error);
            }
        };
        let statements = Statements::new(prefix.clone(), facts.dialect, facts.wait_timeout);
        Ok(Self { connection: Mutex::new(connection), statements, facts, is_cut: AtomicBool::new(false) })
    }

    /// Whether the connection has ended.
    pub(crate) fn is_closed(&self) -> bool {
        self.is_cut.load(Ordering::Acquire)
    }

    /// Sends nothing on it any more.
    pub(crate) fn cut(&self) {
        self.is_cut.store(true, Ordering::Release);
    }

    /// Tells the server that nothing more comes. It would log an error otherwise.
    pub(crate) async fn quit(&self) {
        let connection = self.connection.lock().await.take();
        if let Some(connection) = connection.filter(|_| !self.is_closed())
            && let Err(error) = connection.disconnect().await
        {
            tracing::debug!(%error, "a connection ended before it was closed");
        }
    }

    /// Sends a packet of statements, and returns the rows of each statement that has rows.
    pub(crate) async fn run(&self, packet: &str) -> Result<Vec<Vec<Row>>, Failed> {
        let mut connection = self.connection.lock().await;
        match connection.as_mut().filter(|_| !self.is_closed()) {
            Some(connection) => run(connection, packet).await,
            None => Err(Failed { done: 0, error: mysql_async::DriverError::ConnectionClosed.into() }),
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        close(self.connection.get_mut().take());
    }
}

/// Closes a connection at once. Inside a runtime the driver would ask the server first, and wait for the packet under
/// way, maybe for ever.
fn close(connection: Option<Conn>) {
    let Some(connection) = connection else { return };
    let closing = thread::Builder::new().name("lockkeeper-close".into()).spawn(move || drop(connection));
    if let Err(error) = closing {
        tracing::debug!(%error, "there was no thread to close a connection");
    }
}

async fn run(connection: &mut Conn, packet: &str) -> Result<Vec<Vec<Row>>, Failed> {
    let mut result = connection.query_iter(packet).await.map_err(|error| Failed { done: 0, error })?;
    let (mut sets, mut done) = (Vec::new(), 1);
    loop {
        let has_rows = !result.columns_ref().is_empty();
        // Reads on to the answer of the next statement.
        let rows = result.collect::<Row>().await.map_err(|error| Failed { done, error })?;
        if has_rows {
            sets.push(rows);
        }
        if result.columns().is_none() {
            // That was the last one, or the next one failed, which only the next read tells.
            result.collect::<Row>().await.map_err(|error| Failed { done, error })?;
            return Ok(sets);
        }
        done += 1;
    }
}

/// Sets the connection up, and asks the server for its facts.
async fn greet(connection: &mut Option<Conn>) -> Result<ServerFacts, StoreError> {
    let Some(connection) = connection else { return Err(crate::trouble::closed()) };
    let names = VARIABLES.iter().map(|name| format!("'{name}'")).collect::<Vec<_>>().join(", ");
    let packet = format!(
        "{SETUP}; SHOW GLOBAL VARIABLES WHERE Variable_name IN ({names}); SHOW GLOBAL STATUS LIKE 'Uptime'; SELECT {CLOCK}"
    );
    let sets = run(connection, &packet).await.map_err(|failed| explain(failed.error).not_applied())?;
    let [variables, uptime, clock] = &sets[..] else {
        return Err(corrupt("the server does not say what it is"));
    };
    let pair = |row: &Row| Some((text(row, 0).ok()??.to_ascii_lowercase(), text(row, 1).ok()??.to_owned()));
    let variables: HashMap<String, String> = variables.iter().filter_map(pair).collect();
    let uptime = uptime.first().map_or(Ok(0), |row| number(row, 1))?;
    let clock = clock.first().map_or(Ok(0), |row| number(row, 0))?;
    ServerFacts::new(&variables, (clock / 1_000_000 - uptime).cast_unsigned())
}
