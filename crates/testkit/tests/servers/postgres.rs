//! PostgreSQL, alone and with a replica.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use lockkeeper_testkit::servers::{Postgres, PostgresEnd, PostgresOptions};

use crate::{gone_in_time, kill, remove, runs, started_by_another_process, told};

#[test]
fn postgres_restarts_with_its_data() {
    let server = Postgres::start().expect("started");
    server.sql("CREATE TABLE kept (a int); INSERT INTO kept VALUES (7)").expect("allowed");
    for how in [PostgresEnd::Fast, PostgresEnd::Immediate] {
        server.restart(how).expect("restarted");
        assert_eq!(server.sql("SELECT a FROM kept").expect("asked"), "7");
    }
    server.kill();
    server.sql("SELECT 1").expect_err("killed");
    server.start_again().expect("started");
    assert_eq!(server.sql("SELECT a FROM kept").expect("asked"), "7");
    assert_eq!(server.sql("SHOW fsync").expect("asked"), "on");
    assert_ne!(server.sql("SELECT pg_backend_pid()").expect("asked"), "");
}

#[test]
fn postgres_with_a_password() {
    let server = PostgresOptions::default().password("canary").start().expect("started");
    let ask = |password: &str| {
        let mut command = Command::new("psql");
        let url = format!("postgres://lockkeeper@{}/lockkeeper", server.address());
        command.arg(url).args(["-Atc", "SELECT 1"]).env("PGPASSWORD", password).output().expect("asked")
    };
    assert_eq!(String::from_utf8_lossy(&ask("canary").stdout).trim(), "1");
    assert!(String::from_utf8_lossy(&ask("wrong").stderr).contains("password authentication failed"));
}

#[test]
fn postgres_stops_and_goes_on() {
    let server = Postgres::start().expect("started");
    let url = server.url();
    let ask = |seconds: &str| {
        told(Command::new("timeout").args([seconds, "psql", &url, "-XAtc", "SELECT 1"])).is_ok()
    };
    assert!(ask("30"));
    server.pause();
    assert!(!ask("0.5"), "a stopped server does not answer");
    server.resume();
    assert_eq!(server.sql("SELECT 1").expect("it goes on"), "1");
}

/// Asks with a URL that the test kit gives, as a client would.
pub(crate) fn psql(url: &str, question: &str) -> Result<String, String> {
    told(Command::new("psql").args([url, "-XAtc", question]))
}

#[test]
fn postgres_with_tls_refuses_all_else() {
    const ENCRYPTED: &str = "SELECT current_user, ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()";
    let plain = Postgres::start().expect("started");
    assert_eq!(psql(&plain.url(), ENCRYPTED), Ok("lockkeeper|f".into()));
    for options in [PostgresOptions::default(), PostgresOptions::default().password("canary")] {
        let server = options.tls().start().expect("started");
        let url = server.url();
        assert_eq!(psql(&url, ENCRYPTED), Ok("lockkeeper|t".into()));
        let (bare, _) = url.split_once('?').expect("it has options");
        psql(&format!("{bare}?sslmode=disable"), ENCRYPTED).expect_err("without TLS");
        psql(&format!("{bare}?sslmode=require"), ENCRYPTED).expect_err("without a certificate of its own");
        if url.contains("canary") {
            psql(&url.replace("canary", "wrong"), ENCRYPTED).expect_err("with a wrong password");
        }
    }
}

#[test]
fn a_postgres_replica_follows_and_takes_over() {
    let primary = PostgresOptions::default().tls().password("canary").start().expect("started");
    primary.sql("CREATE TABLE kept AS SELECT 1 AS a").expect("made");
    let replica = primary.replica().expect("it follows");
    assert!(replica.is_replica().expect("asked") && !primary.is_replica().expect("asked"));
    primary.restart(PostgresEnd::Fast).expect("restarted");
    primary.sql("INSERT INTO kept VALUES (2)").expect("written");
    primary.until_followed_by(&replica).expect("it follows");
    assert_eq!(psql(&replica.url(), "SELECT sum(a) FROM kept"), Ok("3".into()));
    replica.sql("INSERT INTO kept VALUES (3)").expect_err("a replica is only read");
    primary.kill();
    replica.promote().expect("promoted");
    assert!(!replica.is_replica().expect("asked"));
    replica.sql("INSERT INTO kept VALUES (4)").expect("written");
    // Its certificates are its own.
    drop(primary);
    assert_eq!(psql(&replica.url(), "SELECT sum(a) FROM kept"), Ok("7".into()));
    replica.promote().expect_err("it is no replica");
}

/// The id of the shared memory of a running server with this data.
fn shared_memory(data: &Path) -> String {
    let facts = std::fs::read_to_string(data.join("postmaster.pid")).expect("it runs");
    let ids = facts.lines().nth(6).expect("the seventh row is of its shared memory");
    ids.split_whitespace().nth(1).expect("a key and an id").to_owned()
}

fn is_there(memory: &str) -> bool {
    let all = std::fs::read_to_string("/proc/sysvipc/shm").expect("read");
    all.lines().any(|row| row.split_whitespace().nth(1) == Some(memory))
}

#[test]
fn postgres_leaves_nothing_behind() {
    for end in [|_: &Postgres| {}, |server: &Postgres| server.pause(), |server: &Postgres| server.kill()] {
        let server = Postgres::start().expect("started");
        let (id, folder) = (server.id().expect("it runs"), server.folder().to_owned());
        let memory = shared_memory(&folder.join("data"));
        assert!(runs(id) && folder.exists() && is_there(&memory));
        end(&server);
        drop(server);
        assert!(!runs(id) && !folder.exists() && !is_there(&memory));
    }
}

#[test]
fn a_killed_test_takes_its_postgres_along() {
    let (test, url) = started_by_another_process("postgres");
    let data = PathBuf::from(psql(&url, "SHOW data_directory").expect("asked"));
    let first = std::fs::read_to_string(data.join("postmaster.pid")).expect("it runs");
    let id = first.lines().next().expect("an id").parse().expect("a number");
    let memory = shared_memory(&data);
    assert!(runs(id) && is_there(&memory));
    kill(test);
    assert!(gone_in_time(id), "{url}");
    assert!(!is_there(&memory));
    remove(data.parent().expect("a folder"));
}
