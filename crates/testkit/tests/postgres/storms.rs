//! Crews of processes while the server is in trouble, judged by the history checker and a fenced counter.

use std::{io, thread};

use lockkeeper_testkit::servers::{Postgres, PostgresEnd};

use crate::{WORKER, load::Load, millis, times};

pub(crate) fn kill(server: &Postgres, function: &str) -> io::Result<()> {
    let all = format!(
        "SELECT count({function}(pid)) FROM pg_stat_activity WHERE application_name = 'lockkeeper' AND random() < 0.5"
    );
    server.sql(&all).map(drop)
}

/// Statements that are cancelled and backends that are killed in the middle of anything.
#[test]
fn cancelled_statements_and_killed_backends_break_nothing() {
    let server = Postgres::start().expect("started");
    let mut load = Load::on(WORKER, &server.url());
    for _ in 0..times(3, 30) {
        for function in ["pg_cancel_backend", "pg_terminate_backend"] {
            load.through(|| {
                for _ in 0..20 {
                    kill(&server, function)?;
                    thread::sleep(millis(7));
                }
                Ok(())
            });
        }
    }
    load.must_be_safe();
}

/// Servers that are restarted, in order and as after a crash.
#[test]
fn restarts_break_nothing() {
    let server = Postgres::start().expect("started");
    let mut load = Load::on(WORKER, &server.url());
    for _ in 0..times(1, 20) {
        for how in [PostgresEnd::Fast, PostgresEnd::Immediate] {
            load.through(|| server.restart(how));
        }
    }
    load.must_be_safe();
}
