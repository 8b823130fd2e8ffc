//! Each trouble is an error that says what to do, and afterwards the store works on.

use lockkeeper_core::{
    StoreError, StoreErrorKind,
    store::{Renewed, Verdict, Wake, WakeSink},
};
use lockkeeper_testkit::{
    proxy::{Fault, Proxy},
    servers::{Postgres, PostgresEnd, PostgresOptions},
};
use tokio::sync::mpsc;

use crate::{
    asker::{Asker, session},
    millis, secs,
};

async fn refused(url: &str) -> StoreError {
    let connected = Asker::connect_with(url, WakeSink::new(|_| {})).await;
    connected.err().expect("refused")
}

/// Asks until it is granted: the first requests after a trouble may fail, but never with an unknown grant left behind.
async fn granted_in_time(asker: &Asker, name: &str, seq: u64) {
    let started = std::time::Instant::now();
    loop {
        let answers = asker.claims(&[(name, seq)]).await;
        if answers.is_ok_and(|answers| {
            matches!(answers.each[..], [lockkeeper_core::store::Answer::Claim(Verdict::Granted(_))])
        }) {
            return;
        }
        assert!(started.elapsed() < secs(20), "not granted");
        tokio::time::sleep(millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn logins_databases_and_ports_that_are_wrong() {
    let server = PostgresOptions::default().password("canary").start().expect("started");
    let wrong = refused(&server.url_as("lockkeeper", Some("wrong"))).await;
    assert_eq!(wrong.kind(), StoreErrorKind::Denied, "{wrong}");
    let missing = refused(&format!("postgres://lockkeeper:canary@{}/nowhere", server.address())).await;
    assert_eq!(missing.kind(), StoreErrorKind::Config, "{missing}");
    assert!(missing.to_string().contains("createdb"), "{missing}");
    let closed = refused("postgres://lockkeeper:canary@127.0.0.1:1/lockkeeper").await;
    assert_eq!(closed.kind(), StoreErrorKind::Unreachable, "{closed}");
    for error in [wrong, missing, closed] {
        assert!(!error.maybe_applied() && !format!("{error} {error:?}").contains("canary"), "{error}");
    }
    Asker::connect(&server.url()).await;
    Asker::connect(&server.socket_url()).await;
}

/// A user without the right to make tables is told the SQL, which somebody else runs.
#[tokio::test(flavor = "multi_thread")]
async fn a_user_without_rights_is_told_what_to_run() {
    let server = Postgres::start().expect("started");
    server.sql("CREATE ROLE \"a b\" LOGIN").expect("made");
    let url = server.url_as("a%20b", None);
    let error = refused(&url).await;
    assert_eq!(error.kind(), StoreErrorKind::Denied, "{error}");
    let text = error.to_string();
    let (_, sql) = text.split_once("URL:\n").expect("the SQL");
    let sql = sql.rsplit_once(";\n").expect("its end").0;
    server.sql(sql).expect("it is good SQL");
    let asker = Asker::connect(&url).await;
    assert!(matches!(asker.ask("a", 1).await, Verdict::Granted(_)));
    asker.store.renew(&[asker.renewal("a", 1)]).await.expect("allowed");
    asker.give_back("a", 1).await.expect("allowed");
}

/// Many keepers make the tables at once, and none of them fails.
#[tokio::test(flavor = "multi_thread")]
async fn many_make_the_tables_at_once() {
    let server = Postgres::start().expect("started");
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
    let other = Asker::connect(&format!("{url}?schema=other")).await;
    assert_ne!(other.store.id(), ids[0], "another schema is another store");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_newer_layout_and_changed_tables_are_refused() {
    let server = Postgres::start().expect("started");
    let asker = Asker::connect(&server.url()).await;
    assert!(matches!(asker.ask("a", 1).await, Verdict::Granted(_)));
    server.sql("UPDATE lockkeeper.store SET layout = 99").expect("changed");
    let newer = refused(&server.url()).await;
    assert!(newer.kind() == StoreErrorKind::Corrupt && newer.to_string().contains("99"), "{newer}");
    server.sql("UPDATE lockkeeper.store SET layout = 1").expect("changed");
    server.sql("UPDATE lockkeeper.resource SET holder = 'nonsense'").expect("changed");
    let error = asker.claims(&[("a", 2)]).await.expect_err("refused");
    assert!(error.kind() == StoreErrorKind::Corrupt && !error.maybe_applied(), "{error}");
    assert!(matches!(asker.ask("b", 2).await, Verdict::Granted(_)), "others go on");
    server.sql("ALTER TABLE lockkeeper.entry RENAME TO gone").expect("changed");
    let error = asker.claims(&[("b", 3)]).await.expect_err("refused");
    assert!(error.kind() == StoreErrorKind::Corrupt && !error.maybe_applied(), "{error}");
    server.sql("ALTER TABLE lockkeeper.gone RENAME TO entry").expect("changed");
    assert!(matches!(asker.ask("b", 3).await, Verdict::Busy { .. }), "it goes on");
}

/// Names are compared byte for byte.
#[tokio::test(flavor = "multi_thread")]
async fn names_are_bytes() {
    let server = Postgres::start().expect("started");
    let asker = Asker::connect(&server.url()).await;
    for (seq, name) in ["Job-A", "job-a", "job-a ", "jöb", "jo\u{308}b", "a'b\\c%_"].into_iter().enumerate()
    {
        assert!(matches!(asker.ask(name, seq as u64 + 1).await, Verdict::Granted(_)), "{name}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_server_says_so() {
    let server = PostgresOptions::default()
        .setting("max_connections = 8")
        .setting("superuser_reserved_connections = 3")
        .start()
        .expect("started");
    server.sql("CREATE ROLE app LOGIN; GRANT CREATE ON DATABASE lockkeeper TO app").expect("made");
    let url = server.url_as("app", None);
    let mut askers = Vec::new();
    let error = loop {
        match Asker::connect_with(&url, WakeSink::new(|_| {})).await {
            Ok(asker) => askers.push(asker),
            Err(error) => break error,
        }
        assert!(askers.len() < 10);
    };
    assert!(error.is_passing() && error.to_string().contains("max_connections"), "{error}");
}

/// A replica is refused, and so is a server that takes no writes.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_takes_no_writes_is_refused() {
    let server = Postgres::start().expect("started");
    let asker = Asker::connect(&server.url()).await;
    assert!(matches!(asker.ask("a", 1).await, Verdict::Granted(_)));
    // As a server is while it is a replica: it does not let a transaction write.
    server.stop(PostgresEnd::Fast);
    std::fs::write(server.folder().join("data/standby.signal"), "").expect("written");
    server.start_again().expect("started");
    let error = refused(&server.url()).await;
    assert!(error.is_passing() && error.to_string().contains("replica"), "{error}");
    let error = loop {
        let error = asker.claims(&[("a", 2)]).await.expect_err("refused");
        if error.to_string().contains("replica") {
            break error;
        }
    };
    assert!(!error.maybe_applied(), "{error}");
    server.sql("SELECT pg_promote()").expect("promoted");
    let started = std::time::Instant::now();
    while !matches!(asker.claims(&[("a", 2)]).await.map(|answers| answers.each).as_deref(), Ok([_])) {
        assert!(started.elapsed() < secs(20), "it does not come back");
    }
    assert_eq!(asker.holders("a").await, [1], "nothing was lost");
}

/// A lost connection is replaced, what is held stays held, and all holds are renewed when the server was restarted.
#[tokio::test(flavor = "multi_thread")]
async fn restarts_and_killed_backends_lose_nothing() {
    let server = Postgres::start().expect("started");
    let (sender, mut told) = mpsc::unbounded_channel();
    let wakes = WakeSink::new(move |wake| {
        if matches!(wake, Wake::Reconfirm) {
            let _ = sender.send(());
        }
    });
    let asker = Asker::connect_with(&server.url(), wakes).await.expect("connected");
    granted_in_time(&asker, "a", 1).await;
    for how in [PostgresEnd::Fast, PostgresEnd::Immediate] {
        server.restart(how).expect("restarted");
        granted_in_time(&asker, "a", 1).await;
        tokio::time::timeout(secs(10), told.recv()).await.expect("told to renew everything");
    }
    let kill =
        "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE application_name = 'lockkeeper'";
    server.sql(kill).expect("killed");
    granted_in_time(&asker, "a", 1).await;
    let renewed = asker.store.renew(&[asker.renewal("a", 1)]).await.expect("answered").each;
    assert!(matches!(renewed[..], [Renewed::Held(_)]), "{renewed:?}");
    assert!(told.try_recv().is_err(), "the server is the same");
}

/// Replies that are swallowed leave an unknown outcome: asking again tells what became of it.
#[tokio::test(flavor = "multi_thread")]
async fn swallowed_replies_are_unknown_and_cleared_up() {
    let server = Postgres::start().expect("started");
    let proxy = Proxy::start(server.address()).expect("started");
    let url = format!("postgres://lockkeeper@{}/lockkeeper?request_limit=1s", proxy.address());
    let asker = Asker::connect(&url).await;
    let plain = session(&server).await;
    let mut unknown = 0;
    for seq in 1..=crate::times(40, 1000) as u64 {
        let name = format!("lost/{}", seq % 3);
        // Somewhere in the answers of the two flights.
        let fault = Fault { after: seq * 37 % 700, ..Fault::LOST_REPLY };
        proxy.now(fault);
        let first = asker.claims(&[(&name, seq)]).await;
        let held = asker.claims(&[(&name, seq)]).await.or(asker.claims(&[(&name, seq)]).await);
        let held = held.expect("a new connection").each;
        let [lockkeeper_core::store::Answer::Claim(Verdict::Granted(grant))] = &held[..] else {
            panic!("{held:?} after {first:?}")
        };
        if let Err(error) = &first {
            unknown += usize::from(error.maybe_applied());
        }
        // A failed one that says that nothing was done left nothing: the number is then younger than the failure.
        assert!(grant.number > 0);
        let left = asker.give_back(&name, seq).await;
        if left.is_err() {
            asker.give_back(&name, seq).await.expect("a new connection");
        }
    }
    println!("{unknown} unknown outcomes");
    let open = "SELECT count(*) FROM lockkeeper.resource WHERE holder IS NOT NULL";
    assert_eq!(plain.query_one(open, &[]).await.expect("asked").get::<_, i64>(0), 0);
}
