//! Rows that somebody else changed or is about to make: they concern their own names, are told of, and hide no others.

use lockkeeper_core::{
    StoreErrorKind,
    store::{Answer, Left, ListQuery, Renewed, Request, Verdict},
};
use lockkeeper_testkit::servers::Postgres;

use crate::{asker::Asker, millis, plain::session, secs, trouble::granted_in_time};

/// One row that somebody changed blinds no operator, and holders of its name are warned of, however they are renewed.
#[tokio::test(flavor = "multi_thread")]
async fn changed_rows_are_told_of_and_hide_no_others() {
    crate::log::listen();
    let server = Postgres::start().expect("started");
    let asker = Asker::connect(&server.url()).await;
    for (name, seq) in [("a", 1), ("hurt/row", 2), ("z", 3)] {
        assert!(matches!(asker.ask_once(name, seq).await, Verdict::Granted(_)));
    }
    server
        .sql("UPDATE lockkeeper.resource SET holder = 'nonsense' WHERE name = 'hurt/row'")
        .expect("changed");
    server.sql("INSERT INTO lockkeeper.resource (name, holder) VALUES ('\\xff', 'nonsense')").expect("made");
    let page = asker.store.list(&ListQuery { prefix: String::new(), after: None, limit: 10 }).await;
    let names: Vec<String> =
        page.expect("listed").resources.iter().map(|view| view.name.as_str().to_owned()).collect();
    assert_eq!(names, ["a", "z"]);
    let hurt = asker.claim("hurt/row", 2).name;
    assert_eq!(asker.store.inspect(&hurt).await.expect_err("told").kind(), StoreErrorKind::Corrupt);
    let renewed = asker.store.renew(&[asker.renewal("hurt/row", 2), asker.renewal("z", 3)]).await;
    assert!(matches!(renewed.expect("answered").each[..], [Renewed::Unknown, Renewed::Held(_)]));
    let warned = std::time::Instant::now();
    while !crate::log::has("hurt/row") {
        assert!(warned.elapsed() < secs(10), "no warning");
        tokio::time::sleep(millis(10)).await;
    }
}

/// Half a latch is no latch that is missing, and a number that was never granted raises no floor.
#[tokio::test(flavor = "multi_thread")]
async fn rows_of_latches_and_numbers_that_nobody_wrote_are_refused() {
    let server = Postgres::start().expect("started");
    let keeper = lockkeeper::connect(&server.url()).await.expect("connected");
    keeper.latch("gate").create(2).await.expect("made");
    server.sql("UPDATE lockkeeper.latch SET born = NULL").expect("changed");
    let error = keeper.latch("gate").create(5).await.expect_err("refused").to_string();
    assert!(error.contains("does not write"), "{error}");
    let limit = lockkeeper_core::Token::NUMBER_LIMIT;
    let made =
        format!("INSERT INTO lockkeeper.resource (name, high_water) VALUES ('high', {limit}), ('old', 7)");
    server.sql(&made).expect("made");
    let asker = Asker::connect(&server.url()).await;
    let answers = asker.claims(&[("high", 1), ("b", 2)]).await.expect("answered").each;
    let [Answer::Claim(Verdict::Refused(error)), Answer::Claim(Verdict::Granted(_))] = &answers[..] else {
        panic!("{answers:?}")
    };
    assert_eq!(error.kind(), StoreErrorKind::Corrupt, "{error}");
    lockkeeper_postgres::sweep(&server.url()).await.expect("swept");
    assert_eq!(server.sql("SELECT floor FROM lockkeeper.store").expect("asked"), "7");
    keeper.close().await;
}

/// Entries without a row of their name, beside a row that makes no sense: they are nobody's, and fail nobody.
#[tokio::test(flavor = "multi_thread")]
async fn entries_without_a_row_fail_nobody() {
    let server = Postgres::start().expect("started");
    let asker = Asker::connect(&server.url()).await;
    assert!(matches!(asker.ask_once("a", 1).await, Verdict::Granted(_)));
    assert!(matches!(asker.ask_once("a", 2).await, Verdict::Busy { .. }));
    assert!(matches!(asker.ask_once("odd", 3).await, Verdict::Granted(_)));
    server.sql("DELETE FROM lockkeeper.resource WHERE name = 'a'").expect("removed");
    server.sql("UPDATE lockkeeper.resource SET capacity = -7 WHERE name = 'odd'").expect("changed");
    let leaves =
        [("a", 2), ("good", 9), ("odd", 3)].map(|(name, seq)| Request::Leave(asker.leave(name, seq)));
    let left = asker.store.apply(&leaves).await.expect("answered").each;
    assert!(
        matches!(
            left[..],
            [Answer::Leave(Left::NotThere), Answer::Leave(Left::NotThere), Answer::Leave(Left::NotNow)]
        ),
        "{left:?}"
    );
}

/// A row that another transaction is making delays the claims of other names not at all.
#[tokio::test(flavor = "multi_thread")]
async fn a_row_that_others_make_delays_no_other_name() {
    let server = Postgres::start().expect("started");
    let asker = Asker::connect(&server.url()).await;
    assert!(matches!(asker.ask_once("a", 1).await, Verdict::Granted(_)));
    let other = session(&server).await;
    other.batch_execute("BEGIN; INSERT INTO lockkeeper.resource (name) VALUES ('made')").await.expect("made");
    let answers = asker.claims(&[("a", 1), ("made", 2), ("new", 3)]).await.expect("answered").each;
    let [Answer::Claim(held), Answer::Claim(made), Answer::Claim(new)] = &answers[..] else {
        panic!("{answers:?}")
    };
    assert!(matches!(held, Verdict::Granted(_)), "{answers:?}");
    assert!(matches!(made, Verdict::NotNow(_)) && matches!(new, Verdict::NotNow(_)), "{answers:?}");
    other.batch_execute("ROLLBACK").await.expect("undone");
    granted_in_time(&asker, "made", 2).await;
    granted_in_time(&asker, "new", 3).await;
}
