//! A crew of processes in every kind of trouble, judged by the history checker and a fenced counter.
//! `LOCKKEEPER_SECTIONS` sets how many sections there are, and `LOCKKEEPER_SEED` which troubles come when.

use std::{fs, time::Instant};

use lockkeeper_testkit::{
    databases::{Stage, break_connections, every_trouble},
    dice::Dice,
    processes::WorkerFault,
    proxy::Proxy,
    servers::{Postgres, PostgresEnd},
};

use crate::{
    WORKER,
    load::{Load, Rest},
    millis, secs,
    storms::kill,
    times,
};

#[derive(Clone, Copy, Debug)]
enum Trouble {
    /// Of a process.
    Worker(WorkerFault),
    /// A process is stopped after the server has locked rows for it.
    StopBetweenFlights,
    /// Connections break or go silent.
    BadConnections,
    /// The server ends sessions, or their statements.
    Kill(&'static str),
    Restart(PostgresEnd),
    /// A replica takes over.
    Promotion,
}

/// Kills are the most frequent: they cost the least time.
const TROUBLES: [Trouble; 18] = [
    Trouble::Worker(WorkerFault::Kill),
    Trouble::Worker(WorkerFault::Kill),
    Trouble::Worker(WorkerFault::Kill),
    Trouble::Worker(WorkerFault::Kill),
    Trouble::Worker(WorkerFault::Kill),
    Trouble::Worker(WorkerFault::Kill),
    Trouble::Worker(WorkerFault::Stop),
    Trouble::StopBetweenFlights,
    Trouble::StopBetweenFlights,
    Trouble::BadConnections,
    Trouble::BadConnections,
    Trouble::BadConnections,
    Trouble::Kill("pg_terminate_backend"),
    Trouble::Kill("pg_terminate_backend"),
    Trouble::Kill("pg_cancel_backend"),
    Trouble::Restart(PostgresEnd::Fast),
    Trouble::Restart(PostgresEnd::Immediate),
    Trouble::Promotion,
];

/// The server of a crew, which connects through a proxy.
struct Database {
    server: Postgres,
    proxy: Proxy,
    /// Sessions of servers that were replaced, which they had ended because their client stopped in a transaction.
    ended: usize,
}

impl Database {
    fn new() -> Self {
        let server = Postgres::start().expect("started");
        let proxy = Proxy::start(server.address()).expect("started");
        Self { server, proxy, ended: 0 }
    }

    /// A replica takes over while its primary dies, or lives on until nobody is connected to it.
    fn promote(&mut self, load: &mut Load, dice: &mut Dice) {
        let replica = self.server.replica().expect("follows");
        let dies = dice.chance(500);
        load.losing(Rest::OldCopy, || {
            if dies {
                self.server.stop(PostgresEnd::Immediate);
            }
            replica.promote()?;
            self.proxy.lead_to(replica.address());
            self.proxy.cut_all();
            Ok(())
        });
        self.ended += ended_in_transactions(&self.server);
        self.server = replica;
    }
}

impl Stage for Database {
    type Trouble = Trouble;

    fn url(&self) -> String {
        format!("postgres://lockkeeper@{}/lockkeeper?request_limit=1s", self.proxy.address())
    }

    fn proxy(&self) -> &Proxy {
        &self.proxy
    }

    fn strike(&mut self, load: &mut Load, trouble: Trouble, dice: &mut Dice) {
        match trouble {
            Trouble::Worker(fault) => load.inject(fault),
            Trouble::StopBetweenFlights => {
                let server = &self.server;
                load.stop_at(|| is_between_flights(server));
            }
            Trouble::BadConnections => break_connections(&self.proxy, load, dice),
            Trouble::Kill(function) => load.through(|| kill(&self.server, function)),
            Trouble::Restart(how) => load.through(|| self.server.restart(how)),
            Trouble::Promotion => self.promote(load, dice),
        }
    }
}

/// Whether some client has let the server wait in the middle of a transaction.
fn is_between_flights(server: &Postgres) -> bool {
    let waits = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'lockkeeper' \
                 AND state = 'idle in transaction' AND clock_timestamp() - state_change > '20 ms'";
    server.sql(waits).is_ok_and(|count| count != "0")
}

/// How many sessions a server has ended because their client stopped in a transaction.
fn ended_in_transactions(server: &Postgres) -> usize {
    let log = fs::read_to_string(server.folder().join("log")).expect("read");
    log.matches("terminating connection due to idle-in-transaction timeout").count()
}

#[test]
fn many_processes_in_every_kind_of_trouble() {
    let mut stage = Database::new();
    every_trouble(WORKER, &mut stage, &TROUBLES);
    let ended = stage.ended + ended_in_transactions(&stage.server);
    println!("{ended} transactions ended by the server, whose client was stopped");
    assert!(ended > 0, "no process was stopped between the flights");
    nothing_is_left(&stage.server);
}

/// Commits wait for a replica, so nothing is lost when it takes over: at no time do two hold the same.
#[test]
fn promotions_of_synchronous_replicas_lose_nothing() {
    let mut stage = Database::new();
    let mut load = Load::on(WORKER, &stage.url());
    for round in 0..times(2, 20) {
        let replica = stage.server.replica().expect("follows");
        stage.server.sql("ALTER SYSTEM SET synchronous_standby_names = '*'").expect("set");
        stage.server.sql("SELECT pg_reload_conf()").expect("loaded");
        while stage.server.sql("SELECT sync_state FROM pg_stat_replication").expect("asked") != "sync" {
            load.listen(millis(10));
        }
        load.go_on(50);
        // Commits before the server knew of that were not waited for.
        stage.server.until_followed_by(&replica).expect("in step");
        load.through(|| {
            stage.server.stop(if round % 2 == 0 { PostgresEnd::Immediate } else { PostgresEnd::Fast });
            replica.promote()?;
            stage.proxy.lead_to(replica.address());
            stage.proxy.cut_all();
            Ok(())
        });
        stage.server = replica;
    }
    load.must_be_safe();
    nothing_is_left(&stage.server);
}

/// A keeper that is gone holds nothing once its lease has ended and the store was swept, and nobody waits. Rows that
/// keep the numbers of names, and tombstones, go when they are old.
pub(crate) fn nothing_is_left(server: &Postgres) {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let until_none = |question: &str| {
        let started = Instant::now();
        loop {
            runtime.block_on(lockkeeper_postgres::sweep(&server.url())).expect("swept");
            let left = server.sql(question).expect("asked");
            if left.is_empty() {
                return;
            }
            assert!(started.elapsed() < secs(30), "{left}");
            std::thread::sleep(millis(200));
        }
    };
    until_none(
        "SELECT encode(name, 'escape'), holder FROM lockkeeper.resource WHERE holder IS NOT NULL \
         UNION ALL SELECT encode(name, 'escape'), entry FROM lockkeeper.entry WHERE entry IS NOT NULL \
         UNION ALL SELECT encode(name, 'escape'), keeper FROM lockkeeper.watcher \
         UNION ALL SELECT encode(name, 'escape'), 'latch' FROM lockkeeper.latch \
         UNION ALL SELECT op, 'counted' FROM lockkeeper.counted",
    );
    server
        .sql("UPDATE lockkeeper.resource SET used = 1; UPDATE lockkeeper.tombstone SET until = 1")
        .expect("changed");
    until_none(
        "SELECT encode(name, 'escape') FROM lockkeeper.resource \
         UNION ALL SELECT encode(name, 'escape') FROM lockkeeper.entry \
         UNION ALL SELECT contender FROM lockkeeper.tombstone",
    );
}
