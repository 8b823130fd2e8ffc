//! A crew of processes in every kind of trouble, judged by the history checker and a fenced counter.
//! `LOCKKEEPER_SECTIONS` sets how many sections there are, and `LOCKKEEPER_SEED` the order of the troubles.

use std::{fs, thread, time::Instant};

use lockkeeper_testkit::{
    databases::{Stage, break_connections, every_trouble},
    dice::Dice,
    load::{Load, Rest},
    processes::WorkerFault,
    proxy::Proxy,
    servers::{MariaDb, MariaDbOptions},
};

use crate::{WORKER, failover::Handover, millis, secs, storms::kill, times};

#[derive(Clone, Copy, Debug)]
enum Trouble {
    /// Of a process.
    Worker(WorkerFault),
    /// A process is stopped after the server has locked rows for it.
    StopBetweenFlights,
    /// Connections break or go silent.
    BadConnections,
    /// The server ends connections, or their statements.
    Kill(&'static str),
    /// In an orderly way.
    Restart,
    Crash,
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
    Trouble::Kill("CONNECTION"),
    Trouble::Kill("CONNECTION"),
    Trouble::Kill("QUERY"),
    Trouble::Restart,
    Trouble::Crash,
    Trouble::Promotion,
];

/// The server of a crew, which connects through a proxy.
struct Database {
    server: MariaDb,
    proxy: Proxy,
    user: &'static str,
    /// Connections of servers that were replaced, which they had ended because their client stopped in a transaction.
    ended: usize,
}

impl Database {
    /// Replicas may follow it.
    fn new(user: &'static str) -> Self {
        let server = MariaDbOptions::default().binary_log().start().expect("started");
        let proxy = Proxy::start(server.address()).expect("started");
        Self { server, proxy, user, ended: 0 }
    }

    /// Clients lose their connections to the server, and find this one instead.
    fn lead_to(&self, server: &MariaDb) {
        self.proxy.lead_to(server.address());
        self.proxy.cut_all();
    }

    fn replace(&mut self, server: MariaDb) {
        self.ended += ended_in_transactions(&self.server);
        self.server = server;
    }

    /// A replica takes over while its primary dies, or lives on until nobody is connected to it.
    fn promote(&mut self, load: &mut Load, dice: &mut Dice) {
        let replica = self.server.replica().expect("follows");
        let dies = dice.chance(500);
        load.losing(Rest::OldCopy, || {
            if dies {
                self.server.process().kill();
            }
            replica.promote()?;
            self.lead_to(&replica);
            Ok(())
        });
        self.replace(replica);
    }
}

impl Stage for Database {
    type Trouble = Trouble;

    fn url(&self) -> String {
        format!("mysql://{}@{}/lockkeeper?request_limit=1s", self.user, self.proxy.address())
    }

    fn proxy(&self) -> &Proxy {
        &self.proxy
    }

    fn strike(&mut self, load: &mut Load, trouble: Trouble, dice: &mut Dice) {
        let server = &self.server;
        match trouble {
            Trouble::Promotion => self.promote(load, dice),
            Trouble::Worker(fault) => load.inject(fault),
            Trouble::StopBetweenFlights => {
                // With a binary log, most of the time of a transaction is that of its commit.
                let found = (0..4).any(|_| load.stop_at(|| is_between_flights(server)));
                println!("stopped between the flights: {found}");
            }
            Trouble::BadConnections => break_connections(&self.proxy, load, dice),
            Trouble::Kill(what) => load.through(|| kill(server, what)),
            Trouble::Restart => load.through(|| server.restart()),
            Trouble::Crash => load.through(|| {
                server.process().kill();
                server.start_again()
            }),
        }
    }
}

/// Whether some client lets the server wait in the middle of a transaction, for longer than one that runs. A stopped one still
/// does when it is looked for again.
fn is_between_flights(server: &MariaDb) -> bool {
    [20, 60].into_iter().all(|time| {
        thread::sleep(millis(time));
        let waits = format!(
            "SELECT COUNT(*) FROM information_schema.innodb_trx AS t JOIN information_schema.processlist AS p \
             ON p.id = t.trx_mysql_thread_id WHERE p.user = 'lockkeeper' AND p.command = 'Sleep' AND p.time_ms > {time}"
        );
        server.sql(&waits).is_ok_and(|count| count != "0")
    })
}

/// How many connections the server has ended because their client stopped in a transaction: at other times a client may
/// be silent for hours.
fn ended_in_transactions(server: &MariaDb) -> usize {
    let log = fs::read_to_string(server.folder().join("log")).expect("read");
    let ended = |line: &&str| {
        line.contains("user: 'lockkeeper'") && line.contains("Got timeout reading communication packets")
    };
    log.lines().filter(ended).count()
}

#[test]
fn many_processes_in_every_kind_of_trouble() {
    let mut stage = Database::new("lockkeeper");
    every_trouble(WORKER, &mut stage, &TROUBLES);
    let ended = stage.ended + ended_in_transactions(&stage.server);
    println!("{ended} transactions ended by the server, whose client was stopped");
    assert!(ended > 0, "no process was stopped between the flights");
    nothing_is_left(&stage.server);
}

/// At no time do two hold the same. The user of the crew may not write on a read-only server, because a handover relies on it.
#[test]
fn handovers_lose_nothing() {
    let mut stage = Database::new("plain");
    stage.server.sql("CREATE USER plain; GRANT ALL ON lockkeeper.* TO plain").expect("made");
    let mut load = Load::on(WORKER, &stage.url());
    for _ in 0..times(1, 20) {
        for how in Handover::ALL {
            let replica = stage.server.replica().expect("follows");
            how.prepare(&stage.server, &replica).expect("in step");
            load.go_on(50);
            load.through(|| {
                how.hand_over(&stage.server, &replica)?;
                stage.lead_to(&replica);
                Ok(())
            });
            stage.replace(replica);
        }
    }
    load.must_be_safe();
    nothing_is_left(&stage.server);
}

/// A keeper that is gone holds nothing once its lease has ended and the store was swept, and nobody waits. Rows that
/// keep the numbers of names, and tombstones, go when they are old.
pub(crate) fn nothing_is_left(server: &MariaDb) {
    let until_none = |prepare: &str, question: &str| {
        let started = Instant::now();
        loop {
            server.sql(&format!("{prepare}UPDATE lockkeeper_store SET swept = 0")).expect("changed");
            let left = server.sql(question).expect("asked");
            if left.is_empty() {
                return;
            }
            assert!(started.elapsed() < secs(30), "{left}");
            // It sweeps soon after it has connected.
            let keeper = lockkeeper::blocking::connect(&server.url()).expect("connected");
            thread::sleep(millis(2500));
            keeper.close();
        }
    };
    until_none(
        "",
        "SELECT name, holder FROM lockkeeper_resource WHERE holder IS NOT NULL \
         UNION ALL SELECT name, entry FROM lockkeeper_entry WHERE entry IS NOT NULL \
         UNION ALL SELECT name, 'latch' FROM lockkeeper_latch UNION ALL SELECT op, 'counted' FROM lockkeeper_counted",
    );
    until_none(
        "UPDATE lockkeeper_resource SET used = 1; UPDATE lockkeeper_tombstone SET until = 1; ",
        "SELECT name FROM lockkeeper_resource UNION ALL SELECT name FROM lockkeeper_entry \
         UNION ALL SELECT contender FROM lockkeeper_tombstone",
    );
}
