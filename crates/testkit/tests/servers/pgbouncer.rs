//! The transaction pooler before PostgreSQL.

use std::{
    io::{BufRead as _, BufReader, Write as _},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use lockkeeper_testkit::servers::{PgBouncer, PgBouncerOptions, Postgres, PostgresEnd, PostgresOptions};

use crate::{gone_in_time, kill, postgres::psql, remove, runs, started_by_another_process, told};

/// One question in a session that goes on.
fn ask(session: &mut Child, question: &str) -> String {
    writeln!(session.stdin.as_mut().expect("piped"), "{question};").expect("it reads");
    let mut answer = String::new();
    // Nothing is lost with the buffer: there is no more than one line.
    BufReader::new(session.stdout.as_mut().expect("piped")).read_line(&mut answer).expect("it answers");
    answer.trim().to_owned()
}

#[test]
fn pgbouncer_pools_transactions() {
    let server = Postgres::start().expect("started");
    let pooler = PgBouncerOptions::default().setting("default_pool_size = 1").start_before(&server);
    let pooler = pooler.expect("started");
    // A session that is open elsewhere would keep the only connection, if it were not for transactions.
    let mut idle = Command::new("psql");
    idle.arg(pooler.url()).arg("-XqAt").stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut idle = idle.spawn().expect("started");
    let first = ask(&mut idle, "SELECT pg_backend_pid()");
    assert_ne!(first, "");
    assert_eq!(psql(&pooler.url(), "SELECT pg_backend_pid()").as_ref(), Ok(&first));
    assert_eq!(ask(&mut idle, "SELECT pg_backend_pid()"), first);
    drop(idle.stdin.take());
    idle.wait().expect("it ended");
    let url = pooler.url();
    let console = url.strip_suffix("lockkeeper").expect("the database").to_owned() + "pgbouncer";
    let pools = psql(&console, "SHOW POOLS").expect("the owner may");
    assert!(
        pools.lines().any(|row| row.starts_with("lockkeeper|") && row.ends_with("|transaction")),
        "{pools}"
    );
}

#[test]
fn pgbouncer_asks_for_passwords_as_its_server_does() {
    let server = PostgresOptions::default().password("canary").tls().start().expect("started");
    server.sql("CREATE ROLE other LOGIN PASSWORD 'else'").expect("allowed");
    let pooler = PgBouncer::before(&server).expect("started");
    let url = pooler.url();
    assert_eq!(psql(&url, "SELECT current_user"), Ok("lockkeeper".into()));
    psql(&url.replace("canary", "wrong"), "SELECT 1").expect_err("refused");
    let other = url.replace("lockkeeper:canary", "other:else");
    assert_eq!(psql(&other, "SELECT current_user"), Ok("other".into()));
    psql(&other.replace("else", "wrong"), "SELECT 1").expect_err("refused");
}

#[test]
fn pgbouncer_outlives_its_server_and_itself() {
    let server = Postgres::start().expect("started");
    let pooler = PgBouncer::before(&server).expect("started");
    for end in [PostgresEnd::Fast, PostgresEnd::Immediate] {
        psql(&pooler.url(), "SELECT 1").expect("served");
        server.restart(end).expect("restarted");
        // The first may get a connection of which the pooler has not heard yet that it is dead.
        let asked = psql(&pooler.url(), "SELECT 1").or_else(|_| psql(&pooler.url(), "SELECT 1"));
        assert_eq!(asked, Ok("1".into()));
    }
    pooler.restart().expect("restarted");
    assert_eq!(psql(&pooler.url(), "SELECT 1"), Ok("1".into()));
    let id = pooler.process().id().expect("it runs");
    drop(pooler);
    assert!(!runs(id));
    server.sql("SELECT 1").expect("the server does not mind");
}

#[test]
fn a_killed_test_takes_its_pgbouncer_along() {
    let (test, url) = started_by_another_process("pgbouncer");
    let data = psql(&url, "SHOW data_directory").expect("asked");
    let ids = told(Command::new("pgrep").args(["-P", &test.id().to_string()])).expect("it has children");
    let ids: Vec<u32> = ids.lines().map(|id| id.parse().expect("a number")).collect();
    let last_word = |id: &u32| {
        let words = std::fs::read_to_string(format!("/proc/{id}/cmdline")).expect("it runs");
        PathBuf::from(words.trim_end_matches('\0').rsplit('\0').next().unwrap_or_default())
    };
    let file = ids.iter().map(last_word).find(|word| word.ends_with("pgbouncer.ini")).expect("it runs");
    kill(test);
    assert!(ids.iter().all(|id| gone_in_time(*id)), "{url}");
    remove(file.parent().expect("a folder"));
    remove(Path::new(&data).parent().expect("a folder"));
}
