//! A store asked directly, and plain sessions beside it.

use std::{sync::Arc, time::Duration};

use lockkeeper_core::{
    ContenderId, KeeperId, Name, StoreError,
    clock::Clock,
    store::{Answer, Answers, Claim, Context, Leave, Renew, Request, Store, Verdict, WakeSink},
    testing,
};
use lockkeeper_testkit::servers::Postgres;
use tokio_postgres::{Client, NoTls};

use crate::secs;

/// A store, and the keeper that asks it.
pub(crate) struct Asker {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) keeper: KeeperId,
}

impl Asker {
    pub(crate) async fn connect(url: &str) -> Self {
        Self::connect_with(url, WakeSink::new(|_| {})).await.expect("connected")
    }

    pub(crate) async fn connect_with(url: &str, wakes: WakeSink) -> Result<Self, StoreError> {
        let keeper = KeeperId::random();
        let context = Context {
            keeper,
            wakes,
            background: tokio::runtime::Handle::current(),
            clock: Clock::boot(),
            request_limit: secs(60),
        };
        let connector = lockkeeper::url::connector(url)?;
        Ok(Self { store: connector.connect(context).await?, keeper })
    }

    pub(crate) fn claim(&self, name: &str, seq: u64) -> Claim {
        Claim {
            lease: secs(120),
            ..testing::claim(&Name::new(name).expect("a name"), ContenderId { keeper: self.keeper, seq })
        }
    }

    pub(crate) fn leave(&self, name: &str, seq: u64) -> Leave {
        let Claim { name, contender, .. } = self.claim(name, seq);
        Leave { name, contender, tombstone_until: None, hold_at_least: Duration::ZERO }
    }

    pub(crate) fn renewal(&self, name: &str, seq: u64) -> Renew {
        let Claim { name, contender, .. } = self.claim(name, seq);
        Renew { name, contender, lease: secs(120), lower_to: None, detach: false, at_least: 0 }
    }

    /// Claims as one group.
    pub(crate) async fn claims(&self, claims: &[(&str, u64)]) -> Result<Answers<Answer>, StoreError> {
        let group: Vec<_> = claims.iter().map(|(name, seq)| Request::Claim(self.claim(name, *seq))).collect();
        self.store.apply(&group).await
    }

    /// A lone claim.
    pub(crate) async fn ask(&self, name: &str, seq: u64) -> Verdict {
        let answers = self.claims(&[(name, seq)]).await.expect("answered");
        let [Answer::Claim(verdict)] = &answers.each[..] else { panic!("{answers:?}") };
        verdict.clone()
    }

    /// A lone claim that waits for its row.
    pub(crate) async fn ask_alone(&self, name: &str, seq: u64) -> Answers<Answer> {
        let group = [Request::Claim(self.claim(name, seq))];
        self.store.apply_alone(&group).await.expect("answered")
    }

    /// A lone leave.
    pub(crate) async fn give_back(&self, name: &str, seq: u64) -> Result<Answers<Answer>, StoreError> {
        self.store.apply(&[Request::Leave(self.leave(name, seq))]).await
    }

    /// The numbers of those who hold a name.
    pub(crate) async fn holders(&self, name: &str) -> Vec<u64> {
        let view = self.store.inspect(&Name::new(name).expect("a name")).await.expect("asked");
        view.iter().flat_map(|view| &view.holders).map(|holder| holder.contender.seq).collect()
    }
}

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
