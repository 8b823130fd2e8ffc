//! Transactions and flights as they arrive at the server: of a free lock and its release, and while many wait.

use std::time::{Duration, Instant};

use lockkeeper::Keeper;
use tokio::task::JoinSet;

use super::{Kind, Server, relay::Relay};
use crate::{
    Failure,
    judge::{Limit, Median},
    peer::Peer,
    table::Row,
    workload::{Pace, Workload},
};

/// So many times, and so many locks each: most have no sign of life in between, and the median is that of locks alone.
const ROUNDS: usize = 15;
const PAIRS: u64 = 50;

/// How soon a lock is renewed that is held before the first round.
const RENEWED: Duration = Duration::from_millis(200);

/// One to lock and one to release.
const TRANSACTIONS: Limit = Limit::AtMost(2.0);
/// Two of each: begin, lock and read; write and commit.
const FLIGHTS: Limit = Limit::AtMost(4.0);

/// The name of the waiters' requests in the table.
pub(crate) const WAITING: &str = "transactions and lone reads/s at the server while 64 wait";

/// How many tasks wait for a holder of another keeper, and how soon they must be through on MariaDB.
const WAITERS: usize = 64;
const DRAIN: Limit = Limit::AtMost(1000.0);

/// Lockkeeper, with all of its flights and transactions counted on their way to the server.
pub(crate) struct Relayed {
    server: Server,
    keeper: Keeper,
    relay: Relay,
}

/// The counts of work that arrived at the server so far.
#[derive(Clone, Copy)]
struct Arrived {
    transactions: u64,
    flights: u64,
    /// Transactions, and reads without one.
    works: u64,
}

impl Relayed {
    pub(crate) async fn connect(server: &Server) -> Result<Self, Failure> {
        let relay = Relay::start(server.address(), server.kind()).await?;
        let url = server.url().replace(&server.address().to_string(), &relay.address.to_string());
        let keeper = lockkeeper::connect(&url).await?;
        // It has the connection that it renews on when a round begins.
        let held = keeper.mutex("bench/relayed/renewed").lease(RENEWED * 3).lock().await?;
        tokio::time::sleep(RENEWED * 2).await;
        held.release().await?;
        Ok(Self { server: server.clone(), keeper, relay })
    }

    fn arrived(&self) -> Result<Arrived, Failure> {
        let flights = self.relay.flights();
        if self.server.kind() == Kind::Postgres {
            let transactions = self.relay.transactions();
            return Ok(Arrived { transactions, flights, works: transactions });
        }
        // `Com_commit` and its number, of everybody. Nobody else commits now.
        let answer = self.server.sql("SHOW GLOBAL STATUS LIKE 'Com_commit'")?;
        let transactions = answer.split_whitespace().nth(1).ok_or("no number of commits")?.parse()?;
        // A transaction is two flights, and a read without one is one.
        Ok(Arrived { transactions, flights, works: flights.saturating_sub(self.relay.transactions()) })
    }

    /// The price of a free lock of a name that was used before, and of its release.
    pub(crate) async fn w1(&self) -> Result<Vec<Row>, Failure> {
        let mutex = self.keeper.mutex("bench/requests");
        mutex.lock().await?.release().await?;
        let (mut transactions, mut flights) = (Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            let before = self.arrived()?;
            for _ in 0..PAIRS {
                mutex.lock().await?.release().await?;
            }
            let after = self.arrived()?;
            transactions.push((after.transactions - before.transactions) as f64 / PAIRS as f64);
            flights.push((after.flights - before.flights) as f64 / PAIRS as f64);
        }
        let row = |what, figures: Vec<f64>, limit: Limit| {
            let median = Median::of(figures);
            Row::median(Workload::W1, "lockkeeper", what, median).goal(limit, limit.judge(median.value))
        };
        Ok(vec![
            row("transactions at the server each", transactions, TRANSACTIONS),
            row("flights to the server each", flights, FLIGHTS),
        ])
    }
}

/// In W4 it waits in place of the usual one, so that its requests are those that arrive.
impl Peer for Relayed {
    type Lock = lockkeeper::Mutex;

    fn name(&self) -> &'static str {
        "lockkeeper"
    }

    fn lock(&self, name: &str) -> Self::Lock {
        self.keeper.mutex(&format!("bench/relayed/{name}"))
    }

    fn requests(&self) -> Option<u64> {
        self.arrived().ok().map(|arrived| arrived.works)
    }
}

/// Measures how soon 64 tasks that wait for a lock of another keeper are through once it is free.
pub(crate) async fn drain_of_another(
    keeper: &Keeper,
    pace: Pace,
    server: &Server,
) -> Result<Vec<Row>, Failure> {
    let holder = lockkeeper::connect(&server.url()).await?;
    let (mut drains, name) = (Vec::new(), "bench/another");
    for _ in 0..pace.waits {
        let held = holder.mutex(name).lock().await?;
        let mut tasks = JoinSet::new();
        for _ in 0..WAITERS {
            let mutex = keeper.mutex(name);
            tasks.spawn(async move { Ok::<_, Failure>(mutex.lock().await?.release().await?) });
        }
        tokio::time::sleep(pace.wait / 2).await;
        if tasks.try_join_next().is_some() {
            return Err("a waiter did not wait for the holder".into());
        }
        let released = Instant::now();
        held.release().await?;
        while let Some(done) = tasks.join_next().await {
            done??;
        }
        drains.push(released.elapsed().as_secs_f64() * 1e3);
    }
    holder.close().await;
    let median = Median::of(drains);
    let what = "drain of 64 waiters behind a holder of another keeper, ms";
    let row = Row::median(Workload::W4, "lockkeeper", what, median);
    Ok(vec![match server.kind() {
        Kind::Postgres => row,
        Kind::MariaDb => row.goal(DRAIN, DRAIN.judge(median.value)),
    }])
}
