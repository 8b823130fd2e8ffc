//! The server as a member of a quorum: what it may promise, and what is known after a record was written halfway.

use std::sync::Arc;

use lockkeeper_core::{
    StoreErrorKind,
    store::{Enrolment, Member, MemberState},
};
use lockkeeper_testkit::servers::Postgres;

use crate::{
    asker::Asker,
    plain::session,
    replicas::{until_one_waits, wait_for},
};

fn member(asker: &Asker) -> &dyn Member {
    asker.store.member().expect("it may be a member")
}

fn enrolment(found: MemberState, record: &str) -> Enrolment {
    Enrolment { expected: found.membership, record: record.into(), high_water: found.high_water }
}

/// A crash of one server process takes such commits back while the server's start, the timeline and all else stay.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_whose_commits_a_crash_loses_is_no_member() {
    let server = Postgres::start().expect("started");
    let asker = Asker::connect(&server.url()).await;
    member(&asker).state().await.expect("a member");
    server.sql("ALTER SYSTEM SET synchronous_commit = 'off'").expect("set");
    server.sql("SELECT pg_reload_conf()").expect("loaded");
    let shown = "SELECT setting FROM pg_settings WHERE name = 'synchronous_commit'";
    while server.sql(shown).expect("asked") != "off" {}
    let error = loop {
        // Its sessions hear of the setting a moment later.
        match member(&asker).state().await {
            Ok(_) => {}
            Err(error) => break error,
        }
    };
    assert_eq!(error.kind(), StoreErrorKind::Config, "{error}");
    assert!(error.to_string().contains("set synchronous_commit = on"), "{error}");
}

/// The commit of a record waits for a replica until the time for the request is over: it may be there or not.
#[tokio::test(flavor = "multi_thread")]
async fn a_record_whose_commit_was_not_answered_may_be_written() {
    let server = Postgres::start().expect("started");
    let asker = Arc::new(Asker::connect(&format!("{}?request_limit=1s", server.url())).await);
    let found = member(&asker).state().await.expect("a member");
    wait_for(&server, "nobody");
    let order = enrolment(found, "one");
    let enrolling = tokio::spawn({
        let (asker, order) = (asker.clone(), order.clone());
        async move { member(&asker).enrol(&order).await }
    });
    until_one_waits(&server, &enrolling, "enrol").await;
    let error = enrolling.await.expect("no panic").expect_err("not known");
    assert!(error.maybe_applied(), "{error}");
    wait_for(&server, "");
    let after = member(&asker).state().await.expect("a member");
    assert_eq!(after.membership.record.as_deref(), Some("one"));
}

/// A table that others have locked for long leaves nothing behind on the session.
#[tokio::test(flavor = "multi_thread")]
async fn a_record_that_could_not_be_written_leaves_the_session_good() {
    let server = Postgres::start().expect("started");
    let asker = Asker::connect(&server.url()).await;
    let found = member(&asker).state().await.expect("a member");
    let order = enrolment(found.clone(), "one");
    let other = session(&server).await;
    other.batch_execute("BEGIN; LOCK TABLE lockkeeper.member IN EXCLUSIVE MODE").await.expect("locked");
    let error = member(&asker).enrol(&order).await.expect_err("locked");
    assert!(error.is_passing() && !error.maybe_applied(), "{error}");
    let now = member(&asker).state().await.expect("the session is good");
    assert_eq!(now.membership, found.membership);
    other.batch_execute("COMMIT").await.expect("ended");
    assert!(member(&asker).enrol(&order).await.expect("answered"));
}
