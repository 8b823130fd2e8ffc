//! A transaction pooler between: with `pooler=true` everything works by polls; without it, it is refused.

use lockkeeper_core::{
    StoreErrorKind,
    store::{Answer, Left, Verdict, WakeSink},
};
use lockkeeper_testkit::servers::{PgBouncer, PgBouncerOptions, Postgres};

use crate::asker::Asker;

/// A pooler that nothing was said of may run a stranger's statements. It is refused whether it refuses the settings of a
/// session or drops them, and so is one whose pool is warm.
#[tokio::test(flavor = "multi_thread")]
async fn a_pooler_that_nothing_was_said_of_is_refused() {
    let server = Postgres::start().expect("started");
    let honest = PgBouncer::before(&server).expect("started");
    let silent = PgBouncerOptions::default().setting("ignore_startup_parameters = options");
    let silent = silent.start_before(&server).expect("started");
    for pooler in [&honest, &silent] {
        for round in 0..3 {
            let refused = Asker::connect_with(&pooler.url(), WakeSink::new(|_| {})).await;
            let error = refused.expect_err("refused");
            assert_eq!(error.kind(), StoreErrorKind::Config, "{error}");
            assert!(error.to_string().contains("pooler=true") && !error.maybe_applied(), "{error}");
            let asker = Asker::connect(&format!("{}?pooler=true", pooler.url())).await;
            assert!(matches!(asker.ask_once("a", round + 1).await, Verdict::Granted(_)));
            let left = asker.give_back_once("a", round + 1).await.expect("answered").each;
            assert!(matches!(left[..], [Answer::Leave(Left::Released)]), "{left:?}");
        }
    }
}

/// Each read says from which store it is: tables that somebody made anew are another store, over any connection.
#[tokio::test(flavor = "multi_thread")]
async fn tables_that_were_made_anew_are_another_store() {
    let server = Postgres::start().expect("started");
    let asker = Asker::connect(&server.url()).await;
    assert!(matches!(asker.ask_once("a", 1).await, Verdict::Granted(_)));
    server.sql("UPDATE lockkeeper.store SET id = md5('another')").expect("changed");
    for name in ["a", "b"] {
        let error = asker.claims(&[(name, 2)]).await.expect_err("another store");
        assert_eq!(error.kind(), StoreErrorKind::Corrupt, "{error}");
        assert!(error.to_string().contains("another store") && !error.maybe_applied(), "{error}");
    }
}

/// While the server restarts behind it, a pooler says itself that it has none. That passes, so a leave is not forgotten.
#[tokio::test(flavor = "multi_thread")]
async fn a_pooler_without_its_server_is_asked_again() {
    let server = Postgres::start().expect("started");
    let pooler = PgBouncer::before(&server).expect("started");
    let asker = Asker::connect(&format!("{}?pooler=true&request_limit=1s", pooler.url())).await;
    assert!(matches!(asker.ask_once("a", 1).await, Verdict::Granted(_)));
    server.kill();
    let mut failures = 0;
    for _ in 0..3 {
        if let Err(error) = asker.claims(&[("a", 1)]).await {
            assert!(error.is_passing(), "{error}");
            failures += 1;
        }
    }
    assert!(failures > 0, "not a test of anything");
    server.start_again().expect("started");
    let started = std::time::Instant::now();
    let left = loop {
        match asker.give_back_once("a", 1).await {
            Ok(answers) => break answers.each,
            Err(error) => assert!(error.is_passing(), "{error}"),
        }
        assert!(started.elapsed().as_secs() < 30, "never answered");
    };
    assert!(matches!(left[..], [Answer::Leave(Left::Released)]), "{left:?}");
}
