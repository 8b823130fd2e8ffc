//! Crews of processes while the server is in trouble, judged by the history checker and a fenced counter.

use std::{io, thread};

use lockkeeper_testkit::servers::MariaDb;

use crate::{WORKER, load::Load, millis, times};

/// Ends about half of the connections of the crew, or their statements.
pub(crate) fn kill(server: &MariaDb, what: &str) -> io::Result<()> {
    let ids = server
        .sql("SELECT id FROM information_schema.processlist WHERE user = 'lockkeeper' AND RAND() < 0.5")?;
    for id in ids.lines() {
        // It may have ended by itself.
        drop(server.sql(&format!("KILL {what} {id}")));
    }
    Ok(())
}

/// Statements that are cancelled and connections that are killed in the middle of anything.
#[test]
fn cancelled_statements_and_killed_connections_break_nothing() {
    let server = MariaDb::start().expect("started");
    let mut load = Load::on(WORKER, &server.url());
    for _ in 0..times(2, 30) {
        for what in ["QUERY", "CONNECTION"] {
            load.through(|| {
                for _ in 0..10 {
                    kill(&server, what)?;
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
    let server = MariaDb::start().expect("started");
    let mut load = Load::on(WORKER, &server.url());
    for _ in 0..times(1, 20) {
        load.through(|| server.restart());
        load.through(|| {
            server.process().kill();
            server.start_again()
        });
    }
    load.must_be_safe();
}

/// A server that stops for a while, as if it was swapped out, and goes on.
#[test]
fn pauses_break_nothing() {
    let server = MariaDb::start().expect("started");
    let mut load = Load::on(WORKER, &server.url());
    for _ in 0..times(2, 20) {
        load.through(|| {
            server.process().pause();
            thread::sleep(millis(700));
            server.process().resume();
            Ok(())
        });
    }
    load.must_be_safe();
}
