//! Each trouble is an error that says what to do, and afterwards the store works on.

use lockkeeper_core::{
    StoreError, StoreErrorKind,
    store::{Answer, Left, Renewed, Request, Topic, Verdict, Wake, WakeSink},
};
use lockkeeper_testkit::{
    proxy::{Fault, Proxy},
    servers::{Postgres, PostgresEnd, PostgresOptions},
};
use tokio::sync::mpsc;

use crate::{
    asker::Asker,
    millis,
    plain::{CLOCK, lock_row, session},
    secs,
};

async fn refused(url: &str) -> StoreError {
    let connected = Asker::connect_with(url, WakeSink::new(|_| {})).await;
    connected.expect_err("refused")
}

/// Asks until it is granted: the first requests after a trouble may fail, but never with an unknown grant left behind.
pub(crate) async fn granted_in_time(asker: &Asker, name: &str, seq: u64) {
    let started = std::time::Instant::now();
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

/// The server's certificate is checked, and one that the server asks for is told by its option.
#[tokio::test(flavor = "multi_thread")]
async fn tls_is_checked() {
    let server = PostgresOptions::default().tls().start().expect("started");
    let other = PostgresOptions::default().tls().start().expect("started");
    let [made, foreign] = [&server, &other].map(|server| server.certificates().expect("asked for"));
    let plain = format!("postgres://lockkeeper@{}/lockkeeper", server.address());
    let ca = made.authority().display().to_string();
    let unknown = refused(&format!("{plain}?sslrootcert={}", foreign.authority().display())).await;
    assert!(unknown.to_string().contains("sslrootcert"), "{unknown}");
    let anonymous = refused(&format!("{plain}?sslrootcert={ca}")).await;
    assert!(anonymous.to_string().contains("sslcert"), "{anonymous}");
    let (cert, key) = foreign.client();
    let stranger = format!("{plain}?sslrootcert={ca}&sslcert={}&sslkey={}", cert.display(), key.display());
    // The connection may be reset before the server's reason is read.
    let mut tries = 0;
    let stranger = loop {
        tries += 1;
        match refused(&stranger).await {
            error if error.kind() == StoreErrorKind::Unreachable && tries < 20 => {}
            error => break error,
        }
    };
    assert!(stranger.to_string().contains("sslcert"), "{stranger}");
    let without = refused(&plain).await;
    assert!(without.to_string().contains("sslmode"), "{without}");
    for error in [unknown, anonymous, stranger, without] {
        assert_eq!(error.kind(), StoreErrorKind::Denied, "{error}");
        assert!(!error.maybe_applied(), "{error}");
    }
    let (_, key) = made.client();
    let half = refused(&format!("{plain}?sslrootcert={ca}&sslkey={}", key.display())).await;
    assert!(half.kind() == StoreErrorKind::Config && half.to_string().contains("sslcert="), "{half}");
    let missing = refused(&format!("{plain}?sslrootcert=/nowhere.pem")).await;
    assert!(missing.to_string().contains("/nowhere.pem"), "{missing}");
    let asker = Asker::connect(&server.url()).await;
    assert!(matches!(asker.ask_once("a", 1).await, Verdict::Granted(_)));
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
    assert!(matches!(asker.ask_once("a", 1).await, Verdict::Granted(_)));
    asker.store.renew(&[asker.renewal("a", 1)]).await.expect("allowed");
    asker.give_back_once("a", 1).await.expect("allowed");
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
    assert!(matches!(asker.ask_once("a", 1).await, Verdict::Granted(_)));
    server.sql("UPDATE lockkeeper.store SET layout = 99").expect("changed");
    let newer = refused(&server.url()).await;
    assert!(newer.kind() == StoreErrorKind::Corrupt && newer.to_string().contains("99"), "{newer}");
    server.sql("UPDATE lockkeeper.store SET layout = 1").expect("changed");
    server.sql("UPDATE lockkeeper.resource SET holder = 'nonsense'").expect("changed");
    let error = asker.claims(&[("a", 2)]).await.expect_err("refused");
    assert!(error.kind() == StoreErrorKind::Corrupt && !error.maybe_applied(), "{error}");
    assert!(matches!(asker.ask_once("b", 2).await, Verdict::Granted(_)), "others go on");
    server.sql("ALTER TABLE lockkeeper.entry RENAME TO gone").expect("changed");
    let error = asker.claims(&[("b", 3)]).await.expect_err("refused");
    assert!(error.kind() == StoreErrorKind::Corrupt && !error.maybe_applied(), "{error}");
    server.sql("ALTER TABLE lockkeeper.gone RENAME TO entry").expect("changed");
    assert!(matches!(asker.ask_once("b", 3).await, Verdict::Busy { .. }), "it goes on");
}

/// One row that somebody changed concerns the requests about its name, and no others of their group. Renewals of the others
/// go on.
#[tokio::test(flavor = "multi_thread")]
async fn a_changed_row_fails_no_other_name() {
    let server = Postgres::start().expect("started");
    let asker = Asker::connect(&server.url()).await;
    for (name, seq) in [("bad", 1), ("good", 2), ("odd", 3)] {
        assert!(matches!(asker.ask_once(name, seq).await, Verdict::Granted(_)));
    }
    // One that cannot be read, and one that can be, but makes no sense.
    server.sql("UPDATE lockkeeper.resource SET holder = 'nonsense' WHERE name = 'bad'").expect("changed");
    server.sql("UPDATE lockkeeper.resource SET capacity = -7 WHERE name = 'odd'").expect("changed");
    for bad in ["bad", "odd"] {
        let answers = asker.claims(&[(bad, 4), ("good", 5), ("new", 6)]).await.expect("answered").each;
        let [Answer::Claim(refused), Answer::Claim(busy), Answer::Claim(granted)] = &answers[..] else {
            panic!("{answers:?}")
        };
        let Verdict::Refused(error) = refused else { panic!("{answers:?}") };
        assert!(error.kind() == StoreErrorKind::Corrupt && error.to_string().contains(bad), "{error}");
        assert!(
            matches!(busy, Verdict::Busy { .. }) && matches!(granted, Verdict::Granted(_)),
            "{answers:?}"
        );
        let leaves = [Request::Leave(asker.leave(bad, 1)), Request::Leave(asker.leave("new", 6))];
        let left = asker.store.apply(&leaves).await.expect("answered").each;
        assert!(matches!(left[..], [Answer::Leave(Left::NotNow), Answer::Leave(Left::Released)]), "{left:?}");
        let error = asker.store.apply_alone(&leaves[..1]).await.expect_err("it is told why");
        assert!(error.kind() == StoreErrorKind::Corrupt && !error.maybe_applied(), "{error}");
        let leases = [asker.renewal(bad, 1), asker.renewal("good", 2)];
        let renewed = asker.store.renew(&leases).await.expect("answered").each;
        assert!(matches!(renewed[..], [Renewed::Unknown, Renewed::Held(_)]), "{renewed:?}");
        let error = asker.store.renew(&leases[..1]).await.expect_err("it is told why");
        assert_eq!(error.kind(), StoreErrorKind::Corrupt, "{error}");
    }
    // Nor does it stop the sweep, which settles names that have ended and removes rows that are old.
    server.sql("UPDATE lockkeeper.resource SET ends = 1, used = 1").expect("aged");
    server.sql("INSERT INTO lockkeeper.resource (name, used) VALUES ('old', 1)").expect("made");
    lockkeeper_postgres::sweep(&server.url()).await.expect("swept");
    let left = "SELECT string_agg(convert_from(name, 'UTF8'), ' ' ORDER BY name) FROM lockkeeper.resource";
    assert_eq!(server.sql(left).expect("asked"), "bad good odd", "{left}");
}

/// However many names were used once, one sweep removes them, those with watchers excepted.
#[tokio::test(flavor = "multi_thread")]
async fn one_sweep_removes_all_that_is_old() {
    let server = Postgres::start().expect("started");
    let asker = Asker::connect(&server.url()).await;
    assert!(matches!(asker.ask_once("kept", 1).await, Verdict::Granted(_)));
    let old = "INSERT INTO lockkeeper.resource (name, used, high_water)
                   SELECT convert_to('old/' || n, 'UTF8'), 1, n FROM generate_series(1, 5000) AS n;
               INSERT INTO lockkeeper.watcher (name, topic, keeper, until)
                   SELECT name, 'holders', 'x', 9e18::bigint FROM lockkeeper.resource WHERE used = 1 ORDER BY name LIMIT 600;
               INSERT INTO lockkeeper.latch (name, used, high_water)
                   SELECT convert_to('latch/' || n, 'UTF8'), 1, n FROM generate_series(1, 1200) AS n;
               INSERT INTO lockkeeper.tombstone SELECT 'c' || n, 1 FROM generate_series(1, 11000) AS n;
               INSERT INTO lockkeeper.entry SELECT 'slots', n, 0, NULL FROM generate_series(1, 9) AS n;
               INSERT INTO lockkeeper.resource (name, used) VALUES ('slots', 1)";
    server.sql(old).expect("made");
    lockkeeper_postgres::sweep(&server.url()).await.expect("swept");
    let count = |table: &str| server.sql(&format!("SELECT count(*) FROM lockkeeper.{table}")).expect("asked");
    assert_eq!(count("resource"), "601", "those with watchers, and the one that is held");
    assert_eq!([count("latch"), count("tombstone"), count("entry")], ["0", "0", "0"]);
    assert_eq!(server.sql("SELECT floor FROM lockkeeper.store").expect("asked"), "5000");
    assert_eq!(asker.holders("kept").await, [1]);
}

/// A process that stops while it makes the tables is ended: the next one makes them. Others with another schema do not wait
/// at all.
#[tokio::test(flavor = "multi_thread")]
async fn a_process_that_stops_while_it_makes_the_tables_stops_no_other() {
    let server = Postgres::start().expect("started");
    let proxy = Proxy::start(server.address()).expect("started");
    let slow = format!("postgres://lockkeeper@{}/lockkeeper?connect_limit=60s", proxy.address());
    proxy.delay(millis(30));
    let stops =
        tokio::spawn(async move { Asker::connect_with(&slow, WakeSink::new(|_| {})).await.map(drop) });
    let making = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND granted";
    while server.sql(making).expect("asked") == "0" {
        assert!(!stops.is_finished(), "it was not seen");
    }
    proxy.pause(true);
    let started = std::time::Instant::now();
    let other = Asker::connect(&format!("{}?schema=other", server.url())).await;
    assert!(matches!(other.ask_once("a", 1).await, Verdict::Granted(_)));
    assert!(started.elapsed() < millis(900), "it waited for {:?}", started.elapsed());
    let next = Asker::connect(&server.url()).await;
    assert!(matches!(next.ask_once("a", 1).await, Verdict::Granted(_)));
    stops.abort();
}

/// A user who has no rights on tables that are there is told which ones to ask for.
#[tokio::test(flavor = "multi_thread")]
async fn a_user_without_rights_on_the_tables_is_told_what_to_run() {
    let server = Postgres::start().expect("started");
    Asker::connect(&server.url()).await;
    server.sql("CREATE ROLE \"few rights\" LOGIN").expect("made");
    let url = server.url_as("few%20rights", None);
    for given in [
        "",
        "GRANT USAGE ON SCHEMA lockkeeper TO \"few rights\"",
        "GRANT SELECT ON ALL TABLES IN SCHEMA lockkeeper TO \"few rights\"",
    ] {
        server.sql(given).expect("given");
        let error = refused(&url).await;
        assert_eq!(error.kind(), StoreErrorKind::Denied, "{error}");
        assert!(error.to_string().contains("GRANT SELECT, INSERT"), "{error}");
    }
    let text = refused(&url).await.to_string();
    let (_, sql) = text.split_once("URL:\n").expect("the SQL");
    server.sql(sql.rsplit_once(";\n").expect("its end").0).expect("it is good SQL");
    assert!(matches!(Asker::connect(&url).await.ask_once("a", 1).await, Verdict::Granted(_)));
}

/// A database with an encoding that does not know all names: messages about them arrive all the same.
#[tokio::test(flavor = "multi_thread")]
async fn messages_arrive_whatever_encoding_the_database_has() {
    let server = Postgres::start().expect("started");
    server.sql("CREATE DATABASE latin ENCODING 'LATIN1' LOCALE 'C' TEMPLATE template0").expect("made");
    let url = format!("postgres://lockkeeper@{}/latin", server.address());
    let (sender, mut told) = mpsc::unbounded_channel();
    let wakes = WakeSink::new(move |wake| {
        if let Wake::Granted(name, notice) = wake {
            let _ = sender.send((name.as_str().to_owned(), notice.contender.seq));
        }
    });
    let holder = Asker::connect(&url).await;
    let waiter = Asker::connect_with(&url, wakes).await.expect("connected");
    assert!(matches!(holder.ask_once("日本%", 1).await, Verdict::Granted(_)));
    let name = holder.claim("日本%", 1).name;
    let _watch = waiter.store.watch(&Topic::Grants(name)).await.expect("subscribed");
    assert!(matches!(waiter.ask_once("日本%", 2).await, Verdict::Busy { .. }));
    holder.give_back_once("日本%", 1).await.expect("answered");
    let told = tokio::time::timeout(secs(10), told.recv()).await.expect("in time");
    assert_eq!(told, Some(("日本%".to_owned(), 2)));
}

/// A database whose transactions are read-only by default: the error says so, and nothing is half-done.
#[tokio::test(flavor = "multi_thread")]
async fn a_database_that_is_read_only_by_default_says_so() {
    let server = Postgres::start().expect("started");
    Asker::connect(&server.url()).await;
    server.sql("ALTER DATABASE lockkeeper SET default_transaction_read_only = on").expect("set");
    let asker = Asker::connect(&server.url()).await;
    let error = asker.claims(&[("a", 1)]).await.expect_err("refused");
    assert!(error.is_passing() && !error.maybe_applied(), "{error}");
    assert!(error.to_string().contains("default_transaction_read_only"), "{error}");
    let reset = "BEGIN READ WRITE; ALTER DATABASE lockkeeper RESET default_transaction_read_only; COMMIT";
    server.sql(reset).expect("reset");
    let asker = Asker::connect(&server.url()).await;
    assert!(matches!(asker.ask_once("a", 1).await, Verdict::Granted(_)));
}

/// A statement that an administrator cancels did nothing, and is asked again.
#[tokio::test(flavor = "multi_thread")]
async fn a_cancelled_statement_did_nothing() {
    let server = Postgres::start().expect("started");
    let asker = Asker::connect(&server.url()).await;
    for seq in [1, 2] {
        assert!(matches!(asker.ask_alone("a", seq).await.each[..], [Answer::Claim(Verdict::Granted(_))]));
        asker.give_back_once("a", seq).await.expect("answered");
    }
    let (other, monitor) = (session(&server).await, session(&server).await);
    lock_row(&other, "a").await;
    let cancelled = async {
        let cancel =
            "SELECT count(pg_cancel_backend(pid)) FROM pg_stat_activity WHERE wait_event_type = 'Lock'";
        while monitor.query_one(cancel, &[]).await.expect("asked").get::<_, i64>(0) == 0 {}
    };
    let claim = [Request::Claim(asker.claim("a", 3))];
    let (answers, ()) = tokio::join!(asker.store.apply_alone(&claim), cancelled);
    let answers = answers.expect("answered").each;
    let [Answer::Claim(Verdict::NotNow(error))] = &answers[..] else { panic!("{answers:?}") };
    assert!(error.is_passing() && !error.maybe_applied(), "{error}");
    assert!(error.to_string().contains("cancelled"), "{error}");
    other.batch_execute("COMMIT").await.expect("ended");
    assert_eq!(asker.holders("a").await, [] as [u64; 0]);
    assert!(matches!(asker.ask_alone("a", 3).await.each[..], [Answer::Claim(Verdict::Granted(_))]));
}

/// A server without disk space or memory for a write says so, and nothing of the group is written. A trigger says it here.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_without_space_says_so() {
    let server = Postgres::start().expect("started");
    let asker = Asker::connect(&server.url()).await;
    assert!(matches!(asker.ask_once("held", 1).await, Verdict::Granted(_)));
    for code in ["53100", "53200"] {
        let fails = format!(
            "CREATE OR REPLACE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
                 IF NEW.name = 'b' THEN RAISE 'no space left' USING ERRCODE = '{code}'; END IF; RETURN NEW;
             END $$;
             CREATE OR REPLACE TRIGGER fail BEFORE UPDATE ON lockkeeper.resource FOR EACH ROW EXECUTE FUNCTION fail()"
        );
        server.sql(&fails).expect("made");
        let error = asker.claims(&[("a", 2), ("b", 3)]).await.expect_err("no space");
        assert!(error.is_passing() && !error.maybe_applied(), "{code}: {error}");
        assert!(error.to_string().contains("no disk space or memory"), "{code}: {error}");
        assert_eq!(asker.holders("a").await, [] as [u64; 0], "{code}");
        assert_eq!(asker.holders("held").await, [1], "{code}");
    }
    server.sql("DROP TRIGGER fail ON lockkeeper.resource").expect("dropped");
    let answers = asker.claims(&[("a", 2), ("b", 3)]).await.expect("answered").each;
    assert!(answers.iter().all(|answer| matches!(answer, Answer::Claim(Verdict::Granted(_)))), "{answers:?}");
}

/// Names are compared byte for byte.
#[tokio::test(flavor = "multi_thread")]
async fn names_are_bytes() {
    let server = Postgres::start().expect("started");
    let asker = Asker::connect(&server.url()).await;
    for (seq, name) in ["Job-A", "job-a", "job-a ", "jöb", "jo\u{308}b", "a'b\\c%_"].into_iter().enumerate()
    {
        assert!(matches!(asker.ask_once(name, seq as u64 + 1).await, Verdict::Granted(_)), "{name}");
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
    assert!(matches!(asker.ask_once("a", 1).await, Verdict::Granted(_)));
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

/// A lost connection is replaced, held locks stay held, and all holds are renewed when the server was restarted.
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

/// Replies that are swallowed leave an unknown outcome: asking again clears it up.
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
        let failed: i64 = match &first {
            Err(error) if !error.maybe_applied() => plain.query_one(CLOCK, &[]).await.expect("asked").get(0),
            _ => 0,
        };
        // The server may not have noticed yet that the old connection is gone, and keep the row locked for it.
        let claim = || asker.lone(Request::Claim(asker.claim(&name, seq)));
        let mut held = claim().await;
        if held.is_err() {
            held = claim().await;
        }
        let held = held.expect("a new connection").each;
        let [Answer::Claim(Verdict::Granted(grant))] = &held[..] else { panic!("{held:?} after {first:?}") };
        if let Err(error) = &first {
            unknown += usize::from(error.maybe_applied());
        }
        // A failed one that says that nothing was done left nothing: the number is then younger than the failure.
        assert!(grant.number > failed.cast_unsigned(), "{first:?}");
        let left = asker.give_back(&name, seq).await;
        if left.is_err() {
            asker.give_back(&name, seq).await.expect("a new connection");
        }
    }
    println!("{unknown} unknown outcomes");
    let open = "SELECT count(*) FROM lockkeeper.resource WHERE holder IS NOT NULL";
    assert_eq!(plain.query_one(open, &[]).await.expect("asked").get::<_, i64>(0), 0);
}

/// A crash of the server takes back no release of a lock that would then stay held for long.
#[tokio::test(flavor = "multi_thread")]
async fn a_crash_takes_back_no_release_of_a_long_lease() {
    let server = PostgresOptions::default().setting("wal_writer_delay = 10s").start().expect("started");
    let asker = Asker::connect(&server.url()).await;
    // Its lease is two minutes.
    assert!(matches!(asker.ask_once("a", 1).await, Verdict::Granted(_)));
    asker.give_back_once("a", 1).await.expect("answered");
    server.restart(PostgresEnd::Immediate).expect("restarted");
    granted_in_time(&asker, "a", 2).await;
}

/// A fence, a latch or a hold that others have locked for longer than one try waits is waited for.
#[tokio::test(flavor = "multi_thread")]
async fn a_busy_fence_is_asked_again() {
    let server = Postgres::start().expect("started");
    let keeper = lockkeeper::connect(&server.url()).await.expect("connected");
    let token = keeper.mutex("a").lock().await.expect("locked").token();
    keeper.fence("a").admit(token).await.expect("admitted");
    keeper.latch("a").create(2).await.expect("made");
    let other = session(&server).await;
    for (what, table) in [("fence", "fence"), ("latch", "latch")] {
        let lock = format!("BEGIN; SELECT 1 FROM lockkeeper.{table} FOR UPDATE");
        other.batch_execute(&lock).await.expect("locked");
        let asked = async {
            match what {
                "fence" => keeper.fence("a").admit(token).await.map_err(|error| error.to_string()),
                _ => keeper.latch("a").count_down().await.map(drop).map_err(|error| error.to_string()),
            }
        };
        let (asked, ()) = tokio::join!(asked, async {
            tokio::time::sleep(millis(700)).await;
            other.batch_execute("COMMIT").await.expect("ended");
        });
        asked.expect("nothing was wrong with it");
    }
    keeper.close().await;
}
