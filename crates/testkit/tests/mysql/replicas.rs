//! Commits that wait for a replica: what is visible and on no replica is told to nobody as theirs, because a failover would
//! lose it.

use lockkeeper_core::store::CountAction;
use lockkeeper_testkit::{
    asker::Asker,
    replicated::{ANSWERS, count, is_granted},
    servers::{MariaDb, MariaDbOptions},
};
use tokio::task::JoinHandle;

use crate::millis;

/// Has commits wait for a replica, of which there is none.
fn wait_for_nobody(server: &MariaDb, point: &str) {
    server
        .sql(&format!(
            "SET GLOBAL rpl_semi_sync_master_wait_point = {point}, rpl_semi_sync_master_timeout = 3600000; \
             SET GLOBAL rpl_semi_sync_master_enabled = 1"
        ))
        .expect("set");
}

/// Lets commits wait no more, also those that do.
fn wait_no_more(server: &MariaDb) {
    server.sql("SET GLOBAL rpl_semi_sync_master_enabled = 0").expect("set");
}

/// The connections whose commit waits.
fn waiting(server: &MariaDb) -> String {
    let ids = "SELECT id FROM information_schema.processlist WHERE user = 'lockkeeper' \
               AND state LIKE 'Waiting for semi-sync ACK%'";
    server.sql(ids).expect("asked")
}

/// Returns the connection of a commit that waits, once there is one.
async fn until_one_waits<T>(server: &MariaDb, work: &JoinHandle<T>, what: &str) -> String {
    loop {
        let ids = waiting(server);
        if !ids.is_empty() {
            return ids;
        }
        assert!(!work.is_finished(), "{what}: it did not wait for a replica");
        tokio::time::sleep(millis(5)).await;
    }
}

/// A commit whose connection is killed is visible all the same. Whoever asks again waits until a replica has it.
#[tokio::test(flavor = "multi_thread")]
async fn what_no_replica_has_is_told_to_nobody_who_asks_again() {
    for point in ["AFTER_SYNC", "AFTER_COMMIT"] {
        let server = MariaDbOptions::default().binary_log().start().expect("started");
        let asker = Asker::connect(&server.url()).await;
        count(&asker, 1, CountAction::Create(1)).await.expect("made");
        // The rows are there, so a claim and a fence have one commit each, and no sweep comes in between.
        assert!(is_granted(&asker, asker.claim("a", 9)).await.expect("answered"));
        asker.give_back("a", 9).await.expect("answered");
        server
            .sql(
                "INSERT INTO lockkeeper_fence (name) VALUES ('fence'); \
                 UPDATE lockkeeper_store SET swept = UNIX_TIMESTAMP() * 1000000",
            )
            .expect("made");
        for (what, first, again) in ANSWERS {
            let what = format!("{what}, {point}");
            wait_for_nobody(&server, point);
            let asking = tokio::spawn(first(asker.clone()));
            let id = until_one_waits(&server, &asking, &what).await;
            server.sql(&format!("KILL CONNECTION {id}")).expect("killed");
            let error = asking.await.expect("no panic").expect_err("not known");
            assert!(error.maybe_applied(), "{what}: {error}");
            while !waiting(&server).is_empty() {}
            // However long ago that was.
            wait_no_more(&server);
            server.sql("UPDATE lockkeeper_fence SET used = 1").expect("changed");
            for ask in again {
                wait_for_nobody(&server, point);
                let asking = tokio::spawn(ask(asker.clone()));
                until_one_waits(&server, &asking, &what).await;
                wait_no_more(&server);
                assert!(asking.await.expect("no panic").expect("answered"), "{what}: nothing is waited for");
            }
        }
    }
}
