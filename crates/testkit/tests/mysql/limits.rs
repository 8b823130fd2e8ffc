//! Calls that nobody repeats: they survive lost races, idle connections and a crowd that waits; and rows that somebody changed
//! concern their own names only.

use lockkeeper_core::{
    StoreErrorKind, Token,
    store::{Answer, ListQuery, Request, Verdict},
};
use lockkeeper_testkit::{
    asker::Asker,
    servers::{MariaDb, MariaDbOptions},
};
use mysql_async::prelude::Queryable as _;

use crate::{
    millis,
    plain::{commit, is_granted, lock_rows, session},
    secs,
};

/// A fence that others have locked for longer than one try waits is waited for.
#[tokio::test(flavor = "multi_thread")]
async fn a_busy_fence_is_asked_again() {
    let server = MariaDb::start().expect("started");
    let keeper = lockkeeper::connect(&server.url()).await.expect("connected");
    let token = keeper.mutex("a").lock().await.expect("locked").token();
    keeper.fence("a").admit(token).await.expect("admitted");
    let mut other = session(&server).await;
    other.query_drop("START TRANSACTION").await.expect("begun");
    other.query_drop("SELECT 1 FROM lockkeeper_fence FOR UPDATE").await.expect("locked");
    let fence = keeper.fence("a");
    let (admitted, ()) = tokio::join!(fence.admit(token), async {
        tokio::time::sleep(millis(700)).await;
        commit(&mut other).await;
    });
    admitted.expect("nothing was wrong with it");
    keeper.close().await;
}

/// Many that show their tokens to one fence all come to their turn.
#[tokio::test(flavor = "multi_thread")]
async fn a_crowd_at_one_fence_is_admitted() {
    let server = MariaDb::start().expect("started");
    let token = Token::try_from(1 << 20).expect("a token");
    let crowd = (0..16).map(|_| {
        let url = server.url();
        tokio::spawn(async move {
            let keeper = lockkeeper::connect(&url).await.expect("connected");
            for _ in 0..10 {
                keeper.fence("hot").admit(token).await.expect("admitted");
            }
            keeper.close().await;
        })
    });
    for one in crowd.collect::<Vec<_>>() {
        one.await.expect("all were admitted");
    }
}

/// Names that are busy for long do not use up the time of a call that has nothing to do with them.
#[tokio::test(flavor = "multi_thread")]
async fn busy_names_use_up_no_time_of_others() {
    let server = MariaDb::start().expect("started");
    let asker = Asker::connect(&format!("{}?request_limit=1800ms", server.url())).await;
    let names: Vec<String> = (0..12).map(|n| format!("n{n:02}")).collect();
    for (seq, name) in (1..).zip(&names) {
        assert!(is_granted(&asker.ask(name, seq).await));
    }
    let mut other = session(&server).await;
    let locked: Vec<&str> = names.iter().map(String::as_str).collect();
    lock_rows(&mut other, &locked).await;
    let busy: Vec<_> = (1..)
        .zip(&names)
        .map(|(seq, name)| {
            let (asker, leave) = (asker.clone(), Request::Leave(asker.leave(name, seq)));
            tokio::spawn(async move { asker.store.apply_alone(&[leave]).await.map(drop) })
        })
        .collect();
    tokio::time::sleep(millis(50)).await;
    let admit = lockkeeper_core::store::Admit {
        name: asker.claim("free", 1).name,
        token: Token::try_from(1 << 20).expect("a token"),
        floor: Token::try_from(1 << 20).expect("a token"),
    };
    asker.store.fence(&admit).await.expect("it has nothing to do with them");
    commit(&mut other).await;
    for one in busy {
        one.await.expect("no panic").ok();
    }
}

/// The server ends connections that idle, or was restarted meanwhile: no call fails for that.
#[tokio::test(flavor = "multi_thread")]
async fn connections_that_the_server_ended_fail_no_call() {
    let server = MariaDbOptions::default().setting("wait_timeout = 2").start().expect("started");
    let keeper = lockkeeper::connect(&server.url()).await.expect("connected");
    let guard = keeper.mutex("a").lock().await.expect("locked");
    let fence = keeper.fence("a");
    fence.admit(guard.token()).await.expect("admitted");
    tokio::time::sleep(secs(4)).await;
    fence.admit(guard.token()).await.expect("after a pause");
    drop(keeper.mutex("b").try_lock().await.expect("after a pause").expect("it is free"));
    let kill = |server: &MariaDb| {
        let ids = server.sql("SELECT id FROM information_schema.processlist WHERE user = 'lockkeeper'");
        for id in ids.expect("asked").lines() {
            // Some end by themselves meanwhile.
            server.sql(&format!("KILL {id}")).ok();
        }
    };
    tokio::time::sleep(millis(1200)).await;
    kill(&server);
    fence.admit(guard.token()).await.expect("after its connection was killed");
    tokio::time::sleep(secs(1)).await;
    server.restart().expect("restarted");
    tokio::time::sleep(secs(2)).await;
    fence.admit(guard.token()).await.expect("after a restart");
    keeper.close().await;
}

/// A free name whose row makes no sense fails the claims of that name only.
#[tokio::test(flavor = "multi_thread")]
async fn a_foreign_capacity_fails_no_other_name() {
    let server = MariaDb::start().expect("started");
    let asker = Asker::connect(&server.url()).await;
    assert!(is_granted(&asker.ask("z", 1).await));
    let limit = Token::NUMBER_LIMIT;
    let rows = format!(
        "INSERT INTO lockkeeper_resource (name, capacity, used) VALUES ('x', -1, {limit}); \
         INSERT INTO lockkeeper_resource (name, high_water, used) VALUES ('high', {limit}, {limit})"
    );
    server.sql(&rows).expect("made");
    for bad in ["x", "high"] {
        let group = [
            Request::Claim(asker.claim(bad, 2)),
            Request::Claim(asker.claim("y", 3)),
            Request::Leave(asker.leave("z", 1)),
        ];
        let answers = asker.store.apply(&group).await.expect("answered").each;
        let [Answer::Claim(Verdict::Refused(error)), Answer::Claim(granted), Answer::Leave(_)] = &answers[..]
        else {
            panic!("{answers:?}")
        };
        assert!(error.kind() == StoreErrorKind::Corrupt && is_granted(granted), "{answers:?}");
    }
    server.sql("UPDATE lockkeeper_resource SET holder = 'nonsense' WHERE name = 'x'").expect("changed");
    let page = asker.store.list(&ListQuery { prefix: String::new(), after: None, limit: 10 }).await;
    let names: Vec<String> =
        page.expect("listed").resources.iter().map(|view| view.name.as_str().to_owned()).collect();
    assert_eq!(names, ["y"], "one bad row hides no others");
}

/// A name that is no text, a row that cannot be read and a number that was never granted: everything else is swept.
#[tokio::test(flavor = "multi_thread")]
async fn foreign_rows_stop_no_sweep() {
    let server = MariaDb::start().expect("started");
    Asker::connect(&server.url()).await;
    let limit = Token::NUMBER_LIMIT;
    let rows = format!(
        "INSERT INTO lockkeeper_resource (name, used, high_water) VALUES ('old', 1, 7), ('high', 1, {limit}), (x'ff', 1, 0); \
         INSERT INTO lockkeeper_latch (name, used, high_water) VALUES ('old', 1, 9), ('high', 1, {limit}), (x'ff', 1, 0); \
         INSERT INTO lockkeeper_tombstone VALUES ('someone', 1); UPDATE lockkeeper_store SET swept = 0"
    );
    server.sql(&rows).expect("made");
    let _sweeps = Asker::connect(&server.url()).await;
    let started = std::time::Instant::now();
    let left = "SELECT (SELECT COUNT(*) FROM lockkeeper_tombstone) + (SELECT COUNT(*) FROM lockkeeper_resource) \
                + (SELECT COUNT(*) FROM lockkeeper_latch)";
    while server.sql(left).expect("asked") != "4" {
        assert!(started.elapsed() < secs(30), "{:?}", server.sql(left));
        tokio::time::sleep(millis(20)).await;
    }
    assert_eq!(server.sql("SELECT floor FROM lockkeeper_store").expect("asked"), "9");
}

/// A row that another transaction is making delays the claims of other names, but does not fail them.
#[tokio::test(flavor = "multi_thread")]
async fn a_row_that_others_make_fails_no_other_name() {
    let server = MariaDb::start().expect("started");
    let asker = Asker::connect(&server.url()).await;
    assert!(is_granted(&asker.ask("a", 1).await));
    let mut other = session(&server).await;
    other.query_drop("START TRANSACTION").await.expect("begun");
    other.query_drop("INSERT INTO lockkeeper_resource (name) VALUES ('made')").await.expect("made");
    let answers = asker.claims(&[("a", 1), ("made", 2)]).await.expect("answered").each;
    let [Answer::Claim(held), Answer::Claim(Verdict::NotNow(_))] = &answers[..] else {
        panic!("{answers:?}")
    };
    assert!(is_granted(held), "{answers:?}");
    commit(&mut other).await;
    assert!(is_granted(&asker.ask("made", 2).await));
}

/// A limit on statements that an administrator set for all, and a clock that stands still, are not this store's.
#[tokio::test(flavor = "multi_thread")]
async fn limits_for_all_statements_do_not_concern_the_store() {
    let server =
        MariaDbOptions::default().setting("init_connect = 'SET timestamp = 1000'").start().expect("started");
    server.sql("CREATE USER app; GRANT ALL ON lockkeeper.* TO app").expect("made");
    let mut other = session(&server).await;
    other.query_drop("SET GLOBAL max_statement_time = 0.05").await.expect("set");
    let asker = Asker::connect(&server.url_as("app", None)).await;
    assert!(is_granted(&asker.ask("a", 1).await));
    let number = crate::plain::number(&mut other, "SELECT high_water FROM lockkeeper_resource").await;
    assert!(number > 1_600_000_000_000_000, "{number} is not of this century");
    other.query_drop("LOCK TABLES lockkeeper_store WRITE").await.expect("locked");
    let (holders, ()) = tokio::join!(asker.holders("a"), async {
        tokio::time::sleep(millis(300)).await;
        other.query_drop("UNLOCK TABLES").await.expect("unlocked");
    });
    assert_eq!(holders, [1], "it was waited for");
}

/// Latches, fences and polls notice that the tables were made anew, too.
#[tokio::test(flavor = "multi_thread")]
async fn another_store_is_noticed_by_latches_and_fences() {
    let server = MariaDb::start().expect("started");
    let keeper = lockkeeper::connect(&server.url()).await.expect("connected");
    let token = keeper.mutex("a").lock().await.expect("locked").token();
    keeper.fence("a").admit(token).await.expect("admitted");
    keeper.latch("gate").create(2).await.expect("made");
    server.sql("UPDATE lockkeeper_latch SET born = NULL").expect("changed");
    let half = keeper.latch("gate").create(2).await.expect_err("half a latch").to_string();
    assert!(half.contains("does not write"), "{half}");
    server.sql("UPDATE lockkeeper_store SET id = 'another'").expect("changed");
    for error in [
        keeper.fence("a").admit(token).await.expect_err("another store").to_string(),
        keeper.latch("other").create(2).await.expect_err("another store").to_string(),
    ] {
        assert!(error.contains("another store"), "{error}");
    }
}
