//! The server as a member of a quorum: what it may promise, and that its record is on disk when it is told.

use lockkeeper_core::{
    StoreError, StoreErrorKind,
    store::{Enrolment, Member},
};
use lockkeeper_testkit::{
    asker::Asker,
    servers::{MariaDb, MariaDbOptions},
};

use crate::plain::{inserts, log_written};

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

/// Law 4. Others see a record before it is on disk, and count it as written.
#[tokio::test(flavor = "multi_thread")]
async fn law_4_a_record_is_told_once_it_is_on_disk() {
    let server = MariaDb::start().expect("started");
    let (writer, reader) = (Asker::connect(&server.url()).await, Asker::connect(&server.url()).await);
    for record in ["one", "two"] {
        let found = member(&writer).state().await.expect("a member");
        let order =
            Enrolment { expected: found.membership, record: record.into(), high_water: found.high_water };
        assert!(member(&writer).enrol(&order).await.expect("answered"));
        for _ in 0..2 {
            let before = log_written(&server).await;
            let found = member(&reader).state().await.expect("a member");
            assert_eq!(found.membership.record.as_deref(), Some(record));
            assert_ne!(log_written(&server).await, before, "it was told from a plain read");
        }
    }
    // Answers to requests bring it along, and write nothing for it.
    let before = inserts(&server);
    for _ in 0..3 {
        let answers = member(&reader).apply(&[]).await.expect("answered");
        assert_eq!(answers.membership.record.as_deref(), Some("two"));
    }
    assert_eq!(inserts(&server), before);
}
