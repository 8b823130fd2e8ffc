//! Each trouble is an error that says what to do, and afterwards the store works on.

use std::time::Instant;

use lockkeeper_core::{
    StoreError, StoreErrorKind,
    store::{Answer, Renewed, Request, Verdict, Wake, WakeSink},
};
use lockkeeper_testkit::{
    asker::Asker,
    proxy::{Fault, Proxy},
    servers::{MariaDb, MariaDbOptions},
};
use mysql_async::prelude::Queryable as _;
use tokio::sync::mpsc;

use crate::{
    millis,
    plain::{CLOCK, is_granted, number, session},
    secs,
};

async fn refused(url: &str) -> StoreError {
    Asker::connect_with(url, WakeSink::new(|_| {})).await.expect_err("refused")
}

/// Asks until it is granted: the first requests after a trouble may fail.
async fn granted_in_time(asker: &Asker, name: &str, seq: u64) {
    let started = Instant::now();
    loop {
        let answers = asker.claims(&[(name, seq)]).await;
        if answers.is_ok_and(|answers| matches!(answers.each[..], [Answer::Claim(Verdict::Granted(_))])) {
            return;
        }
        assert!(started.elapsed() < secs(20), "not granted");
        tokio::time::sleep(millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn logins_databases_and_ports_that_are_wrong() {
    let server = MariaDbOptions::default().password("canary").start().expect("started");
    let wrong = refused(&server.url_as("lockkeeper", Some("wrong"))).await;
    assert_eq!(wrong.kind(), StoreErrorKind::Denied, "{wrong}");
    assert!(wrong.to_string().contains("password"), "{wrong}");
    let missing = refused(&format!("mysql://lockkeeper:canary@{}/nowhere", server.address())).await;
    assert_eq!(missing.kind(), StoreErrorKind::Config, "{missing}");
    assert!(missing.to_string().contains("CREATE DATABASE"), "{missing}");
    let closed = refused("mysql://lockkeeper:canary@127.0.0.1:1/lockkeeper").await;
    assert_eq!(closed.kind(), StoreErrorKind::Unreachable, "{closed}");
    let socket = refused("mysql://lockkeeper:canary@/lockkeeper?socket=/nowhere/socket").await;
    assert_eq!(socket.kind(), StoreErrorKind::Unreachable, "{socket}");
    let no_tls = refused(&format!("{}?ssl-mode=required", server.url())).await;
    assert!(no_tls.to_string().contains("TLS"), "{no_tls}");
    for error in [wrong, missing, closed, socket, no_tls] {
        assert!(!error.maybe_applied() && !format!("{error} {error:?}").contains("canary"), "{error}");
    }
    Asker::connect(&server.url()).await;
    let socket = server.socket().display().to_string();
    Asker::connect(&format!("mysql://lockkeeper:canary@/lockkeeper?socket={socket}")).await;
}

/// A certificate that nobody vouches for, or that is for another name, is refused; so is a client without its own.
#[tokio::test(flavor = "multi_thread")]
async fn tls_is_checked() {
    let server = MariaDbOptions::default().tls().start().expect("started");
    let other = MariaDbOptions::default().tls().start().expect("started");
    let made = server.certificates().expect("asked for");
    let plain = format!("mysql://lockkeeper@{}/lockkeeper", server.address());
    let ca = made.authority().display().to_string();
    let wrong = other.certificates().expect("asked for").authority().display().to_string();
    let unknown = refused(&format!("{plain}?ssl-ca={wrong}")).await;
    assert!(unknown.kind() == StoreErrorKind::Denied && unknown.to_string().contains("ssl-ca"), "{unknown}");
    let anonymous = refused(&format!("{plain}?ssl-ca={ca}")).await;
    assert_eq!(anonymous.kind(), StoreErrorKind::Denied, "{anonymous}");
    let without = refused(&plain).await;
    assert!(matches!(without.kind(), StoreErrorKind::Denied | StoreErrorKind::Config), "{without}");
    let missing = refused(&format!("{plain}?ssl-ca=/nowhere.pem")).await;
    assert!(missing.to_string().contains("/nowhere.pem"), "{missing}");
    let asker = Asker::connect(&server.url()).await;
    assert!(is_granted(&asker.ask("a", 1).await));
}

/// A user without the right to make tables is told the SQL, which somebody else runs.
#[tokio::test(flavor = "multi_thread")]
async fn a_user_without_rights_is_told_what_to_run() {
    let server = MariaDb::start().expect("started");
    server.sql("CREATE USER 'a b'@'%'; GRANT SELECT ON lockkeeper.* TO 'a b'@'%'").expect("made");
    let url = server.url_as("a%20b", None);
    let error = refused(&url).await;
    assert_eq!(error.kind(), StoreErrorKind::Denied, "{error}");
    let text = error.to_string();
    let (_, sql) = text.split_once("URL:\n").expect("the SQL");
    let sql = sql.rsplit_once(";\n").expect("its end").0;
    server.sql(sql).expect("it is good SQL");
    let asker = Asker::connect(&url).await;
    assert!(is_granted(&asker.ask("a", 1).await));
    asker.store.renew(&[asker.renewal("a", 1)]).await.expect("allowed");
    asker.give_back("a", 1).await.expect("allowed");
}

/// Many keepers make the tables at once, and none of them fails.
#[tokio::test(flavor = "multi_thread")]
async fn many_make_the_tables_at_once() {
    let server = MariaDb::start().expect("started");
    let url = server.url();
    let connecting: Vec<_> = (0..20)
        .map(|_| {
            let url = url.clone();
            tokio::spawn(async move { Asker::connect(&url).await })
        })
        .collect();
    let mut ids = Vec::new();
    for connected in connecting {
        ids.push(connected.await.expect("no panic").store.id().to_owned());
    }
    ids.dedup();
    assert_eq!(ids.len(), 1, "{ids:?}");
    let other = Asker::connect(&format!("{url}?prefix=other_")).await;
    assert_ne!(other.store.id(), ids[0], "another prefix is another store");
}

/// A row that somebody changed is refused to claims of its name, and to nobody else.
#[tokio::test(flavor = "multi_thread")]
async fn a_newer_layout_and_changed_tables_are_refused() {
    let server = MariaDb::start().expect("started");
    let asker = Asker::connect(&server.url()).await;
    assert!(is_granted(&asker.ask("a", 1).await) && is_granted(&asker.ask("b", 2).await));
    server.sql("UPDATE lockkeeper_store SET layout = 99").expect("changed");
    let newer = refused(&server.url()).await;
    assert!(newer.kind() == StoreErrorKind::Corrupt && newer.to_string().contains("99"), "{newer}");
    server.sql("UPDATE lockkeeper_store SET layout = 1").expect("changed");
    // Nothing can be locked there.
    server.sql("ALTER TABLE lockkeeper_resource ENGINE = Aria").expect("changed");
    let other = refused(&server.url()).await;
    assert!(other.kind() == StoreErrorKind::Corrupt && other.to_string().contains("InnoDB"), "{other}");
    server.sql("ALTER TABLE lockkeeper_resource ENGINE = InnoDB").expect("changed");
    for nonsense in ["'nonsense'", "REPLACE(holder, ' 0 ', ' -7 ')"] {
        server
            .sql(&format!("UPDATE lockkeeper_resource SET holder = {nonsense} WHERE name = 'a'"))
            .expect("changed");
        let answers = asker.claims(&[("a", 3), ("b", 2), ("c", 4)]).await.expect("answered").each;
        let [Answer::Claim(Verdict::Refused(error)), Answer::Claim(b), Answer::Claim(c)] = &answers[..]
        else {
            panic!("{answers:?}")
        };
        assert!(error.kind() == StoreErrorKind::Corrupt && !error.maybe_applied(), "{error}");
        assert!(is_granted(b) && is_granted(c), "{answers:?}");
        let renewed = asker.store.renew(&[asker.renewal("a", 1), asker.renewal("b", 2)]).await;
        let renewed = renewed.expect("answered").each;
        assert!(matches!(renewed[..], [Renewed::Unknown, Renewed::Held(_)]), "{renewed:?}");
    }
    server.sql("RENAME TABLE lockkeeper_entry TO gone").expect("changed");
    let error = asker.claims(&[("b", 3)]).await.expect_err("refused");
    assert!(error.kind() == StoreErrorKind::Corrupt && !error.maybe_applied(), "{error}");
    server.sql("RENAME TABLE gone TO lockkeeper_entry").expect("changed");
    assert!(matches!(asker.ask("b", 3).await, Verdict::Busy { .. }), "it goes on");
    // Tables that were made anew are another store.
    server.sql("UPDATE lockkeeper_store SET id = 'another'").expect("changed");
    let error = asker.claims(&[("b", 3)]).await.expect_err("refused");
    assert_eq!(error.kind(), StoreErrorKind::Corrupt, "{error}");
}

/// Names are compared byte for byte.
#[tokio::test(flavor = "multi_thread")]
async fn names_are_bytes() {
    let server = MariaDb::start().expect("started");
    let asker = Asker::connect(&server.url()).await;
    let longest = "é".repeat(256);
    let names = ["Job-A", "job-a", "job-a ", "jöb", "jo\u{308}b", "a'b\\c%_", "0", "00", &longest];
    for (seq, name) in names.into_iter().enumerate() {
        assert!(is_granted(&asker.ask(name, seq as u64 + 1).await), "{name}");
    }
    for (seq, name) in names.into_iter().enumerate() {
        assert_eq!(asker.holders(name).await, [seq as u64 + 1], "{name}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_server_says_so() {
    let server = MariaDbOptions::default().setting("max_connections = 10").start().expect("started");
    server.sql("CREATE USER app; GRANT ALL ON lockkeeper.* TO app").expect("made");
    let url = server.url_as("app", None);
    let mut askers = Vec::new();
    let error = loop {
        match Asker::connect_with(&url, WakeSink::new(|_| {})).await {
            Ok(asker) => askers.push(asker),
            Err(error) => break error,
        }
        assert!(askers.len() < 20);
    };
    assert!(error.is_passing() && error.to_string().contains("max_connections"), "{error}");
    assert!(is_granted(&askers[0].ask("a", 1).await), "the others go on");
}

/// A replica is refused when a keeper connects and from then on, although its user might write there.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_takes_no_writes_is_refused() {
    let server = MariaDb::start().expect("started");
    let asker = Asker::connect(&server.url()).await;
    assert!(is_granted(&asker.ask("a", 1).await));
    server.sql("SET GLOBAL read_only = ON").expect("changed");
    let error = refused(&server.url()).await;
    assert!(error.is_passing() && error.to_string().contains("replica"), "{error}");
    let error = asker.claims(&[("a", 2)]).await.expect_err("refused");
    assert!(!error.maybe_applied() && error.to_string().contains("replica"), "{error}");
    server.sql("SET GLOBAL read_only = OFF").expect("changed");
    assert!(matches!(asker.ask("a", 2).await, Verdict::Busy { .. }));
    assert_eq!(asker.holders("a").await, [1], "nothing was lost");
}

/// A lost connection is replaced, held locks stay held, and all holds are renewed when the server was restarted.
#[tokio::test(flavor = "multi_thread")]
async fn restarts_and_killed_connections_lose_nothing() {
    let server = MariaDb::start().expect("started");
    let (sender, mut told) = mpsc::unbounded_channel();
    let wakes = WakeSink::new(move |wake| {
        if matches!(wake, Wake::Reconfirm) {
            let _ = sender.send(());
        }
    });
    let asker = Asker::connect_with(&server.url(), wakes).await.expect("connected");
    granted_in_time(&asker, "a", 1).await;
    for crash in [false, true] {
        // A start is told apart by its time, in seconds.
        tokio::time::sleep(secs(3)).await;
        if crash {
            server.process().kill();
            server.start_again().expect("started");
        } else {
            server.restart().expect("restarted");
        }
        granted_in_time(&asker, "a", 1).await;
        tokio::time::timeout(secs(10), told.recv()).await.expect("told to renew everything");
    }
    let ids =
        server.sql("SELECT id FROM information_schema.processlist WHERE user = 'lockkeeper'").expect("asked");
    for id in ids.lines() {
        server.sql(&format!("KILL {id}")).expect("killed");
    }
    granted_in_time(&asker, "a", 1).await;
    let renewed = asker.store.renew(&[asker.renewal("a", 1)]).await.expect("answered").each;
    assert!(matches!(renewed[..], [Renewed::Held(_)]), "{renewed:?}");
    assert!(told.try_recv().is_err(), "the server is the same");
}

/// Replies that are swallowed leave an unknown outcome: asking again clears it up. A failure that says that nothing was
/// done has left nothing.
#[tokio::test(flavor = "multi_thread")]
async fn swallowed_replies_are_unknown_and_cleared_up() {
    let server = MariaDb::start().expect("started");
    let proxy = Proxy::start(server.address()).expect("started");
    let url = format!("mysql://lockkeeper@{}/lockkeeper?request_limit=1s", proxy.address());
    let asker = Asker::connect(&url).await;
    let mut plain = session(&server).await;
    let mut unknown = 0;
    for seq in 1..=crate::times(40, 1000) as u64 {
        let name = format!("lost/{}", seq % 3);
        // Somewhere in the answers of the two flights.
        proxy.now(Fault { after: seq * 37 % 1100, ..Fault::LOST_REPLY });
        let first = asker.claims(&[(&name, seq)]).await;
        let clock = number(&mut plain, CLOCK).await.cast_unsigned();
        let claim = || asker.lone(Request::Claim(asker.claim(&name, seq)));
        let mut held = claim().await;
        if held.is_err() {
            held = claim().await;
        }
        let held = held.expect("a new connection").each;
        let [Answer::Claim(Verdict::Granted(grant))] = &held[..] else { panic!("{held:?} after {first:?}") };
        if let Err(error) = &first {
            unknown += usize::from(error.maybe_applied());
            assert!(error.maybe_applied() || grant.number > clock, "it was granted although {error}");
        }
        let left = asker.give_back(&name, seq).await;
        if left.is_err() {
            asker.give_back(&name, seq).await.expect("a new connection");
        }
    }
    assert!(unknown > 0, "no reply to a commit was swallowed");
    let open = "SELECT COUNT(*) FROM lockkeeper_resource WHERE holder IS NOT NULL";
    assert_eq!(number(&mut plain, open).await, 0);
}

/// A statement that an administrator cancels has done nothing, and the store goes on.
#[tokio::test(flavor = "multi_thread")]
async fn what_an_administrator_cancels_is_asked_again() {
    let server = MariaDb::start().expect("started");
    let asker = Asker::connect(&server.url()).await;
    assert!(is_granted(&asker.ask("a", 1).await));
    asker.give_back("a", 1).await.expect("answered");
    let mut other = session(&server).await;
    other.query_drop("LOCK TABLES lockkeeper_resource WRITE").await.expect("locked");
    let asking = {
        let asker = asker.clone();
        tokio::spawn(async move { asker.claims(&[("a", 2)]).await })
    };
    let waits = "SELECT COALESCE(MAX(id), 0) FROM information_schema.processlist \
                 WHERE state LIKE 'Waiting for table metadata lock%'";
    let mut monitor = session(&server).await;
    let id = loop {
        match number(&mut monitor, waits).await {
            0 => {}
            id => break id,
        }
    };
    monitor.query_drop(format!("KILL QUERY {id}")).await.expect("cancelled");
    match asking.await.expect("no panic") {
        Err(error) => assert!(error.is_passing() && !error.maybe_applied(), "{error}"),
        Ok(answers) => {
            assert!(matches!(answers.each[..], [Answer::Claim(Verdict::NotNow(_))]), "{answers:?}");
        }
    }
    other.query_drop("UNLOCK TABLES").await.expect("unlocked");
    granted_in_time(&asker, "a", 3).await;
}

/// The operator's check finds risks to locks, and `strict=true` refuses such a server.
#[tokio::test(flavor = "multi_thread")]
async fn risky_settings_are_found() {
    let good = MariaDb::start().expect("started");
    assert_eq!(lockkeeper_mysql::check(&good.url()).await.expect("checked"), []);
    Asker::connect(&format!("{}?strict=true", good.url())).await;
    let risky = MariaDbOptions::default()
        .setting("innodb_flush_log_at_trx_commit = 2")
        .setting("log_bin")
        .setting("server_id = 7");
    let risky = risky.start().expect("started");
    let found = lockkeeper_mysql::check(&risky.url()).await.expect("checked");
    let messages: Vec<String> = found.iter().map(ToString::to_string).collect();
    let names = |word: &str| messages.iter().any(|message| message.contains(word));
    assert!(names("innodb_flush_log_at_trx_commit") && names("sync_binlog"), "{messages:?}");
    let told = lockkeeper::doctor::check(&risky.url()).await.expect("checked");
    assert_eq!(told.iter().map(ToString::to_string).collect::<Vec<_>>(), messages, "the doctor asks it");
    let error = refused(&format!("{}?strict=true", risky.url())).await;
    assert!(error.kind() == StoreErrorKind::Config && error.to_string().contains("sync_binlog"), "{error}");
}
