//! Plain sessions beside the store's: the work of another program, or of an administrator, on the server.

use lockkeeper_testkit::servers::Postgres;
use tokio_postgres::{Client, NoTls};

use crate::secs;

/// A session of its own beside the store's.
pub(crate) async fn session(server: &Postgres) -> Client {
    let (client, connection) = tokio_postgres::connect(&server.url(), NoTls).await.expect("connected");
    tokio::spawn(connection);
    client
}

/// Ends the transaction of `locks` as soon as another one waits for it, and returns the server's clock before that. Made
/// before, so that there is little time between.
pub(crate) struct Freeing {
    monitor: Client,
}

impl Freeing {
    pub(crate) async fn of(server: &Postgres) -> Self {
        Self { monitor: session(server).await }
    }

    pub(crate) async fn once_awaited(&self, locks: &Client) -> i64 {
        let waits = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'";
        let started = std::time::Instant::now();
        while self.monitor.query_one(waits, &[]).await.expect("asked").get::<_, i64>(0) == 0 {
            assert!(started.elapsed() < secs(20), "nobody waits");
        }
        let freed = locks.query_one(CLOCK, &[]).await.expect("asked").get(0);
        locks.batch_execute("COMMIT").await.expect("ended");
        freed
    }
}

/// The server processes that a user has, without those of plain sessions.
pub(crate) fn backends(server: &Postgres) -> Vec<String> {
    let all = "SELECT pid FROM pg_stat_activity WHERE application_name = 'lockkeeper' ORDER BY pid";
    server.sql(all).expect("asked").lines().map(str::to_owned).collect()
}

/// The server's clock, in microseconds.
pub(crate) const CLOCK: &str = "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint";

/// Locks the row of a name, as another keeper's transaction does. It stays locked until the session ends it.
pub(crate) async fn lock_row(session: &Client, name: &str) {
    session.batch_execute("BEGIN").await.expect("begun");
    let lock = "SELECT 1 FROM lockkeeper.resource WHERE name = $1 FOR UPDATE";
    assert_eq!(session.query(lock, &[&name.as_bytes()]).await.expect("locked").len(), 1, "{name} has a row");
}
