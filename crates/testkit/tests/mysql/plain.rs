//! Plain connections beside the store's.

use lockkeeper_core::store::{Answer, Request, StoreTime, Verdict};
use lockkeeper_testkit::{asker::Asker, servers::MariaDb};
use mysql_async::{Conn, prelude::Queryable as _};

/// The server's clock, in microseconds.
pub(crate) const CLOCK: &str = "SELECT TIMESTAMPDIFF(MICROSECOND, '1970-01-01 00:00:00', UTC_TIMESTAMP(6))";

pub(crate) fn is_granted(verdict: &Verdict) -> bool {
    matches!(verdict, Verdict::Granted(_))
}

pub(crate) async fn session(server: &MariaDb) -> Conn {
    Conn::from_url(format!("mysql://lockkeeper@{}/lockkeeper?prefer_socket=false", server.address()))
        .await
        .expect("connected")
}

/// One number.
pub(crate) async fn number(session: &mut Conn, question: &str) -> i64 {
    session.query_first(question).await.expect("asked").expect("a row")
}

/// How many bytes the server has written to the log of its tables, once it writes nothing by itself any more.
pub(crate) async fn log_written(server: &MariaDb) -> String {
    let written = || server.sql("SHOW GLOBAL STATUS LIKE 'Innodb_os_log_written'").expect("asked");
    let mut before = written();
    loop {
        tokio::time::sleep(crate::millis(30)).await;
        let now = written();
        if now == before {
            return now;
        }
        before = now;
    }
}

/// How many statements have inserted something so far. No sweep does.
pub(crate) fn inserts(server: &MariaDb) -> u64 {
    let count =
        "SELECT variable_value FROM information_schema.global_status WHERE variable_name = 'COM_INSERT'";
    server.sql(count).expect("asked").parse().expect("a number")
}

/// Locks the rows of names, as another keeper's transaction does. They stay locked until the session ends it.
pub(crate) async fn lock_rows(session: &mut Conn, names: &[&str]) {
    session.query_drop("START TRANSACTION").await.expect("begun");
    for name in names {
        let lock = format!("SELECT 1 FROM lockkeeper_resource WHERE name = '{name}' FOR UPDATE");
        assert_eq!(session.query::<i64, _>(lock).await.expect("locked"), [1], "{name} has a row");
    }
}

pub(crate) async fn commit(session: &mut Conn) {
    session.query_drop("COMMIT").await.expect("ended");
}

/// How many transactions wait for a row just now.
pub(crate) const LOCK_WAITS: &str = "SELECT variable_value FROM information_schema.global_status \
                                     WHERE variable_name = 'INNODB_ROW_LOCK_CURRENT_WAITS'";

/// The answer to a claim that had to wait for a row.
pub(crate) struct Waited {
    pub(crate) now: StoreTime,
    pub(crate) verdict: Verdict,
    /// The server's clock before the row became free.
    pub(crate) freed: u64,
}

/// Has a claim wait for the row of its name, which another transaction has locked, and ends that transaction meanwhile.
/// `before` is done within it. A claim that waited for too long because the machine is busy is made again.
pub(crate) async fn claim_while_locked(
    server: &MariaDb,
    asker: &Asker,
    name: &str,
    seq: u64,
    before: &str,
) -> Waited {
    let (mut locks, mut monitor) = (session(server).await, session(server).await);
    loop {
        lock_rows(&mut locks, &[name]).await;
        let asking = {
            let (asker, claim) = (asker.clone(), Request::Claim(asker.claim(name, seq)));
            tokio::spawn(async move { asker.store.apply_alone(&[claim]).await.expect("answered") })
        };
        while !asking.is_finished() && number(&mut monitor, LOCK_WAITS).await == 0 {}
        if !before.is_empty() {
            locks.query_drop(before).await.expect("done");
        }
        let freed = number(&mut locks, CLOCK).await.cast_unsigned();
        commit(&mut locks).await;
        let answers = asking.await.expect("no panic");
        let [Answer::Claim(verdict)] = &answers.each[..] else { panic!("{answers:?}") };
        if !matches!(verdict, Verdict::NotNow(_)) {
            return Waited { now: answers.now, verdict: verdict.clone(), freed };
        }
    }
}

/// Whether another transaction has the row of a name locked.
pub(crate) async fn is_locked(session: &mut Conn, name: &str) -> bool {
    let lock = format!("SELECT 1 FROM lockkeeper_resource WHERE name = '{name}' FOR UPDATE NOWAIT");
    session.query_drop(lock).await.is_err()
}

/// Keeps transactions waiting that meet a trigger with `GET_LOCK('gate', 10)`, until it is opened.
pub(crate) struct Gate(Conn);

impl Gate {
    /// Closes it.
    pub(crate) async fn close(server: &MariaDb) -> Self {
        let mut session = session(server).await;
        assert_eq!(number(&mut session, "SELECT GET_LOCK('gate', 10)").await, 1);
        Self(session)
    }

    /// Waits until somebody stands before it.
    pub(crate) async fn until_met(&mut self) {
        let waits = "SELECT COUNT(*) FROM information_schema.processlist WHERE state = 'User lock'";
        let started = std::time::Instant::now();
        while number(&mut self.0, waits).await == 0 {
            assert!(started.elapsed() < crate::secs(30), "nobody met the gate");
        }
    }

    /// Opens it.
    pub(crate) async fn open(mut self) {
        assert_eq!(number(&mut self.0, "SELECT RELEASE_LOCK('gate')").await, 1);
    }
}
