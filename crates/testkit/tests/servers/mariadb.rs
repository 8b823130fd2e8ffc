//! MariaDB.

use std::{path::PathBuf, process::Command};

use lockkeeper_testkit::servers::{MariaDb, MariaDbOptions};

use crate::{gone_in_time, kill, remove, runs, seconds, started_by_another_process, told};

/// Asks over TCP, as the owner.
fn ask(port: u16, password: &str, options: &[String], question: &str) -> Result<String, String> {
    let mut command = Command::new("mariadb");
    command.args(["--no-defaults", "--protocol=tcp", "--host=127.0.0.1", "--user=lockkeeper", "-BN"]);
    command.arg(format!("--port={port}")).env("MYSQL_PWD", password).args(options);
    told(command.args(["--execute", question, "lockkeeper"]))
}

#[test]
fn mariadb_keeps_what_was_committed_however_it_ends() {
    let server = MariaDb::start().expect("started");
    server.sql("CREATE TABLE kept (a int); INSERT INTO kept VALUES (7)").expect("allowed");
    server.restart().expect("restarted");
    assert_eq!(server.sql("SELECT a, a + 1 FROM kept").expect("asked"), "7\t8");
    server.sql("INSERT INTO kept VALUES (8)").expect("allowed");
    server.process().kill();
    server.sql("SELECT 1").expect_err("killed");
    server.start_again().expect("started");
    assert_eq!(server.sql("SELECT a FROM kept").expect("asked"), "7\n8");
    server.stop();
    server.sql("SELECT 1").expect_err("stopped");
    server.start_again().expect("started");
    assert_eq!(server.sql("SELECT count(*) FROM kept").expect("asked"), "2");
    let durability =
        "SELECT @@innodb_flush_log_at_trx_commit, @@innodb_flush_method, @@innodb_log_file_size >> 20";
    assert_eq!(server.sql(durability).expect("asked"), "1\tO_DIRECT\t96");
    let error = server.sql("SELECT nothing").expect_err("there is no such column").to_string();
    assert!(error.contains("ERROR 1054"), "{error}");
}

#[test]
fn mariadb_restarts_without_its_data() {
    let server = MariaDb::start().expect("started");
    server.sql("CREATE TABLE kept (a int)").expect("allowed");
    server.restart_empty().expect("restarted");
    let port = server.address().port();
    assert_eq!(ask(port, "", &[], "SHOW TABLES"), Ok(String::new()), "the owner may ask as before");
}

#[test]
fn mariadb_with_a_clock_that_moves() {
    let server = MariaDbOptions::default().movable_clock().start().expect("started");
    let off = || {
        let time = server.sql("SELECT UNIX_TIMESTAMP()").expect("asked");
        time.parse::<i64>().expect("seconds") - seconds()
    };
    for shift in [0, 3600, -3600, 0] {
        server.shift_clock(shift).expect("moved");
        assert!((off() - shift).abs() <= 5, "{} instead of {shift}", off());
    }
}

#[test]
fn mariadb_with_a_password_and_a_setting() {
    let server = MariaDbOptions::default().password("can'ary").setting("max_connections = 17").start();
    let server = server.expect("started");
    let port = server.address().port();
    let asked = ask(port, "can'ary", &[], "SELECT current_user(), @@max_connections");
    assert_eq!(asked, Ok("lockkeeper@%\t17".into()));
    assert!(ask(port, "wrong", &[], "SELECT 1").expect_err("refused").contains("ERROR 1045"));
    assert!(ask(port, "", &["--user=root".into()], "SELECT 1").expect_err("refused").contains("ERROR 1045"));
    ask(port, "can'ary", &[], "CREATE TABLE a (a int); CREATE USER b IDENTIFIED BY 'c'")
        .expect("the owner may");
    ask(port, "c", &["--user=b".into()], "SELECT 1").expect_err("it has no right to the database");
    assert_eq!(server.url(), format!("mysql://lockkeeper:can'ary@127.0.0.1:{port}/lockkeeper"));
}

#[test]
fn mariadb_with_tls_refuses_all_else() {
    const ENCRYPTED: &str = "SHOW STATUS LIKE 'Ssl_version'";
    let plain = MariaDb::start().expect("started");
    assert_eq!(ask(plain.address().port(), "", &[], ENCRYPTED), Ok("Ssl_version".into()));
    let server = MariaDbOptions::default().tls().start().expect("started");
    let port = server.address().port();
    let made = server.certificates().expect("asked for");
    let (certificate, key) = made.client();
    let trust = [format!("--ssl-ca={}", made.authority().display()), "--ssl-verify-server-cert".into()];
    let own = [format!("--ssl-cert={}", certificate.display()), format!("--ssl-key={}", key.display())];
    let version = ask(port, "", &[trust.clone(), own].concat(), ENCRYPTED).expect("allowed");
    assert!(version.starts_with("Ssl_version\tTLSv1."), "{version}");
    ask(port, "", &trust, ENCRYPTED).expect_err("without a certificate of its own");
    ask(port, "", &[], ENCRYPTED).expect_err("without TLS");
    assert_eq!(server.sql("SELECT 1").expect("by the socket"), "1");
}

#[test]
fn mariadb_stops_and_goes_on() {
    let server = MariaDb::start().expect("started");
    server.process().pause();
    let socket = format!("--socket={}", server.socket().display());
    let words = ["0.5", "mariadb", "--no-defaults", "--user=root", &socket, "--execute", "SELECT 1"];
    told(Command::new("timeout").args(words)).expect_err("a stopped server does not answer");
    server.process().resume();
    assert_eq!(server.sql("SELECT 1").expect("it goes on"), "1");
}

/// Asks as a user without any right to write on a replica.
fn ask_plainly(server: &MariaDb, question: &str) -> Result<String, String> {
    let made = server.certificates().expect("asked for");
    let trust = format!("--ssl-ca={}", made.authority().display());
    ask(server.address().port(), "", &["--user=plain".into(), trust], question)
}

#[test]
fn a_mariadb_replica_follows_and_takes_over() {
    MariaDb::start().expect("started").replica().expect_err("it keeps no log for replicas");
    let options = MariaDbOptions::default().tls().password("can'ary").binary_log();
    let primary = options.start().expect("started");
    primary
        .sql(
            "CREATE TABLE kept AS SELECT 1 AS a, x'00ff27' AS bytes; CREATE USER plain; GRANT ALL ON lockkeeper.* TO plain",
        )
        .expect("made");
    let replica = primary.replica().expect("it follows");
    assert!(replica.is_replica().expect("asked") && !primary.is_replica().expect("asked"));
    primary.restart().expect("restarted");
    primary.sql("INSERT INTO kept VALUES (2, x'')").expect("written");
    primary.until_followed_by(&replica).expect("it follows");
    let sum = "SELECT sum(a), min(hex(bytes)), max(hex(bytes)) FROM kept";
    assert_eq!(ask_plainly(&replica, sum), Ok("3\t\t00FF27".into()));
    let insert = "INSERT INTO kept VALUES (4, x'')";
    assert!(ask_plainly(&replica, insert).expect_err("a replica is only read").contains("ERROR 1290"));
    // What a replica has received is not lost, although it was not done yet.
    replica.sql("STOP SLAVE; CHANGE MASTER TO MASTER_DELAY = 1; START SLAVE").expect("changed");
    primary.wait_for_replicas().expect("it has one");
    primary.sql("INSERT INTO kept VALUES (3, x'')").expect("written");
    primary.process().kill();
    replica.promote().expect("promoted");
    assert!(!replica.is_replica().expect("asked"));
    ask_plainly(&replica, insert).expect("written");
    // Its certificates are its own.
    drop(primary);
    assert_eq!(ask_plainly(&replica, "SELECT sum(a) FROM kept"), Ok("10".into()));
    replica.promote().expect_err("it is no replica");
    let next = replica.replica().expect("it follows in turn");
    assert_eq!(ask_plainly(&next, "SELECT sum(a) FROM kept"), Ok("10".into()));
}

/// A commit that no replica has is seen by nobody.
#[test]
fn mariadb_waits_for_its_replica() {
    let primary = MariaDbOptions::default().binary_log().start().expect("started");
    primary.sql("CREATE TABLE kept (a int)").expect("made");
    let replica = primary.replica().expect("it follows");
    primary.wait_for_replicas().expect("it has one");
    replica.sql("STOP SLAVE IO_THREAD").expect("stopped");
    let count = || primary.sql("SELECT count(*) FROM kept").expect("asked");
    std::thread::scope(|scope| {
        let written = scope.spawn(|| primary.sql("INSERT INTO kept VALUES (1)"));
        let waiting =
            "SELECT count(*) FROM information_schema.processlist WHERE state LIKE 'Waiting for semi-sync%'";
        while primary.sql(waiting).expect("asked") == "0" {
            assert!(!written.is_finished(), "it did not wait");
        }
        assert!(count() == "0" && !written.is_finished());
        replica.sql("START SLAVE IO_THREAD").expect("started");
        written.join().expect("no panic").expect("written");
    });
    assert_eq!(count(), "1");
}

#[test]
fn mariadb_leaves_nothing_behind() {
    for end in [|_: &MariaDb| {}, |server: &MariaDb| server.process().pause(), MariaDb::stop] {
        let server = MariaDb::start().expect("started");
        let (id, folder) = (server.process().id().expect("it runs"), server.folder().to_owned());
        assert!(runs(id) && folder.exists());
        end(&server);
        drop(server);
        assert!(!runs(id) && !folder.exists());
    }
}

#[test]
fn a_killed_test_takes_its_mariadb_along() {
    let (test, url) = started_by_another_process("mariadb");
    let address =
        url.strip_prefix("mysql://lockkeeper@127.0.0.1:").and_then(|rest| rest.strip_suffix("/lockkeeper"));
    let port = address.expect("a mysql URL").parse().expect("a port");
    let file = PathBuf::from(ask(port, "", &[], "SELECT @@pid_file").expect("asked"));
    let id = std::fs::read_to_string(&file).expect("it runs").trim().parse().expect("a number");
    assert!(runs(id));
    kill(test);
    assert!(gone_in_time(id), "{url}");
    remove(file.parent().expect("a folder"));
}
