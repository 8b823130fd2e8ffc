//! The server as a member of a quorum: what it may promise.

use lockkeeper_core::{
    StoreError, StoreErrorKind,
    store::{Enrolment, Member},
};
use lockkeeper_testkit::{asker::Asker, servers::MariaDbOptions};

fn member(asker: &Asker) -> &dyn Member {
    asker.store.member().expect("it may be a member")
}

async fn refused(asker: &Asker) -> StoreError {
    let error = member(asker).state().await.expect_err("it may lose commits");
    assert_eq!(error.kind(), StoreErrorKind::Config, "{error}");
    error
}

/// With a binary log that is not synced, the server leaves out its own last sync, too. After a power cut it takes back what
/// that log lacks.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_whose_commits_a_crash_loses_is_no_member() {
    let server = MariaDbOptions::default().setting("log_bin").setting("server_id = 7");
    let server = server.start().expect("started");
    let asker = Asker::connect(&server.url()).await;
    let lags = refused(&asker).await.to_string();
    assert!(lags.contains("set sync_binlog = 1"), "{lags}");
    server.sql("SET GLOBAL sync_binlog = 1").expect("set");
    let found = member(&asker).state().await.expect("a member");
    server.sql("SET GLOBAL sync_binlog = 1000").expect("set");
    refused(&asker).await;
    // Nor does it become one.
    let record = Enrolment { expected: found.membership, record: "one".into(), high_water: found.high_water };
    member(&asker).enrol(&record).await.expect_err("it may lose commits");
    // It syncs at the commit, too, so it does not need that log.
    server.sql("SET GLOBAL innodb_flush_log_at_trx_commit = 3").expect("set");
    let found = member(&asker).state().await.expect("a member");
    assert_eq!(found.membership.record, None, "nothing was written");
    server.sql("SET GLOBAL innodb_flush_log_at_trx_commit = 2, GLOBAL sync_binlog = 1").expect("set");
    let flush = refused(&asker).await.to_string();
    assert!(flush.contains("set innodb_flush_log_at_trx_commit = 1"), "{flush}");
}
