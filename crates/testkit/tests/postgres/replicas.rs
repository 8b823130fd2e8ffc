//! What is visible and on no replica: a failover loses it, so nobody is told of it as theirs.

use std::sync::Arc;

use lockkeeper_core::store::{Claim, CountAction};
use lockkeeper_testkit::{
    replicated::{ANSWERS, claim, count, is_granted},
    servers::{PgBouncer, Postgres, PostgresOptions},
};
use tokio::{task::JoinSet, time::Instant};

use crate::{asker::Asker, millis, secs};

/// Has commits wait for this replica, or for none if it has no name.
pub(crate) fn wait_for(server: &Postgres, replica: &str) {
    server.sql(&format!("ALTER SYSTEM SET synchronous_standby_names = '{replica}'")).expect("set");
    server.sql("SELECT pg_reload_conf()").expect("loaded");
    let shown = "SELECT setting FROM pg_settings WHERE name = 'synchronous_standby_names'";
    while server.sql(shown).expect("asked") != replica {}
}

/// Starts a replica that commits wait for.
fn followed(server: &Postgres) -> Postgres {
    let replica = server.replica().expect("follows");
    let name = server.sql("SELECT application_name FROM pg_stat_replication").expect("asked");
    wait_for(server, &name);
    replica
}

/// How many commits wait for a replica.
fn waiting(server: &Postgres) -> usize {
    let waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'";
    server.sql(waiting).expect("asked").parse().expect("a number")
}

/// Returns once a commit waits for a replica.
pub(crate) async fn until_one_waits<T>(server: &Postgres, work: &tokio::task::JoinHandle<T>, what: &str) {
    while waiting(server) == 0 {
        assert!(!work.is_finished(), "{what}: it did not wait for the replica");
        tokio::time::sleep(millis(5)).await;
    }
}

/// Cancels the waits of all commits for replicas.
pub(crate) fn cancel_waits(server: &Postgres) {
    let cancel = "SELECT count(pg_cancel_backend(pid)) FROM pg_stat_activity WHERE wait_event = 'SyncRep'";
    assert_eq!(server.sql(cancel).expect("cancelled"), "1");
}

/// A commit whose wait is cancelled is visible all the same. Whoever asks again waits until the replicas have it.
#[tokio::test(flavor = "multi_thread")]
async fn what_no_replica_has_is_told_to_nobody_who_asks_again() {
    let server = Postgres::start().expect("started");
    let asker = Asker::connect(&server.url()).await;
    count(&asker, 1, CountAction::Create(1)).await.expect("made");
    for (what, first, again) in ANSWERS {
        wait_for(&server, "nobody");
        let asking = tokio::spawn(first(asker.clone()));
        until_one_waits(&server, &asking, what).await;
        cancel_waits(&server);
        let error = asking.await.expect("no panic").expect_err("not known");
        assert!(error.maybe_applied(), "{what}: {error}");
        for ask in again {
            wait_for(&server, "nobody");
            let asking = tokio::spawn(ask(asker.clone()));
            until_one_waits(&server, &asking, what).await;
            wait_for(&server, "");
            assert!(asking.await.expect("no panic").expect("answered"), "{what}: once nothing is waited for");
        }
    }
}

/// What is answered with a replica that has everything is what it has.
#[tokio::test(flavor = "multi_thread")]
async fn an_answer_to_somebody_who_asks_again_outlives_a_failover() {
    let server = Postgres::start().expect("started");
    let asker = Arc::new(Asker::connect(&server.url()).await);
    assert!(claim((*asker).clone()).await.expect("answered"));
    let replica = followed(&server);
    assert!(claim((*asker).clone()).await.expect("answered"));
    replica.promote().expect("promoted");
    let held = "SELECT count(*) FROM lockkeeper.resource WHERE name = 'a' AND holder IS NOT NULL";
    assert_eq!(replica.sql(held).expect("asked"), "1");
    wait_for(&server, "");
}

/// A barrier is a latch that opens again and again. Once a replica has its openings, they are told without another commit: a
/// replica that is away stops neither those who look nor the other requests of their keeper.
#[tokio::test(flavor = "multi_thread")]
async fn an_opening_that_a_replica_has_is_told_while_it_is_away() {
    let server = Postgres::start().expect("started");
    let asker = Asker::connect(&format!("{}?request_limit=2s", server.url())).await;
    for (seq, action) in [(1, CountAction::Create(1)), (2, CountAction::Down(1)), (3, CountAction::Reset)] {
        count(&asker, seq, action).await.expect("counted");
    }
    assert!(is_granted(&asker, asker.claim("a", 10)).await.expect("answered"));
    let again = Claim { again: true, ..asker.claim("a", 11) };
    assert!(!is_granted(&asker, again.clone()).await.expect("answered"));
    let replica = followed(&server);
    assert!(!count(&asker, 4, CountAction::Read).await.expect("answered"), "it was reset");
    wait_for(&server, "nobody");
    for seq in 5..10 {
        let looked = count(&asker, seq, CountAction::Read);
        let (looked, polled) = tokio::join!(looked, is_granted(&asker, again.clone()));
        assert!(!looked.expect("answered without a replica"), "it was reset");
        assert!(!polled.expect("answered behind it"));
    }
    // It opens again, and no replica has that. Nobody is told, and others are served meanwhile.
    count(&asker, 11, CountAction::Down(1)).await.expect_err("no replica has it");
    while server.sql("SELECT remaining FROM lockkeeper.latch").expect("asked") != "0" {}
    let look = |seq| {
        let asker = asker.clone();
        async move { count(&asker, seq, CountAction::Read).await }
    };
    let looking = tokio::spawn(look(12));
    until_one_waits(&server, &looking, "latch").await;
    assert!(!is_granted(&asker, again).await.expect("answered beside it"));
    looking.await.expect("no panic").expect_err("no replica has it");
    wait_for(&server, "");
    assert!(look(13).await.expect("answered"), "it is open");
    drop(replica);
}

/// However many tasks wait for a latch, its opening is confirmed once.
#[tokio::test(flavor = "multi_thread")]
async fn many_looks_at_an_open_latch_share_a_commit() {
    let server = Postgres::start().expect("started");
    let first = Asker::connect(&server.url()).await;
    count(&first, 1, CountAction::Create(1)).await.expect("made");
    count(&first, 2, CountAction::Down(1)).await.expect("opened");
    let replica = followed(&server);
    let asker = Asker::connect(&server.url()).await;
    // Transactions that changed or locked something have a number.
    let transactions = || {
        let next = server.sql("SELECT pg_snapshot_xmax(pg_current_snapshot())").expect("asked");
        next.parse::<u64>().expect("a number")
    };
    let (before, mut looking) = (transactions(), JoinSet::new());
    for seq in 1..=300 {
        let asker = asker.clone();
        looking.spawn(async move { count(&asker, seq, CountAction::Read).await });
    }
    for looked in looking.join_all().await {
        assert!(looked.expect("answered"), "it is open");
    }
    let taken = transactions() - before;
    // One, and those of the keepers' own upkeep.
    assert!((1..=10).contains(&taken), "{taken} transactions");
    drop(replica);
}

/// Claims names until the outcomes of ten are unknown. A commit that waits for a replica does not notice that its client has
/// gone, so it has to be told.
async fn abandons_ten(server: &Postgres, url: &str, most: usize) {
    let asker = Asker::connect(url).await;
    assert!(is_granted(&asker, asker.claim("warm", 1)).await.expect("answered"));
    wait_for(server, "nobody");
    let (mut seq, mut unknown) = (1, Vec::new());
    while unknown.len() < 10 {
        seq += 1;
        let name = format!("abandoned/{seq}");
        let error = asker.claims(&[(&name, seq)]).await.expect_err("no replica has it");
        // A new session may take longer than a request.
        if error.maybe_applied() {
            unknown.push((name, seq));
        }
        let started = Instant::now();
        while waiting(server) > most {
            assert!(started.elapsed() < secs(20), "{} commits wait after {}", waiting(server), unknown.len());
            tokio::time::sleep(millis(5)).await;
        }
    }
    wait_for(server, "");
    for (name, seq) in unknown {
        crate::trouble::granted_in_time(&asker, &name, seq).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn commits_that_nobody_waits_for_keep_no_server_process() {
    let server = Postgres::start().expect("started");
    abandons_ten(&server, &format!("{}?request_limit=500ms", server.url()), 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn commits_that_nobody_waits_for_keep_no_server_process_over_tls() {
    let server = PostgresOptions::default().tls().start().expect("started");
    abandons_ten(&server, &format!("{}&request_limit=500ms", server.url()), 0).await;
}

/// Behind a pooler, each is cancelled by the session that comes next.
#[tokio::test(flavor = "multi_thread")]
async fn commits_that_nobody_waits_for_keep_no_server_process_behind_a_pooler() {
    let server = Postgres::start().expect("started");
    let pooler = PgBouncer::before(&server).expect("started");
    let url = format!("{}?pooler=true&request_limit=500ms", pooler.url());
    abandons_ten(&server, &url, 1).await;
}
