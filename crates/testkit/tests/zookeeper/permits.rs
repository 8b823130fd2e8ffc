//! Semaphores: which waiter waits for which claim, and that no waiter sleeps beside a free permit.

use std::time::Duration;

use lockkeeper_testkit::proxy::{Action, Direction, Fault};
use zookeeper_client::{Acls, CreateMode};

use crate::stage::{Stage, nodes, soon, until_nodes};

const SESSION: Duration = Duration::from_secs(20);

/// A rolling deployment changes the size of a semaphore. A claim of the new size whose answer was lost is still in the
/// queue. Claims of the old size behind it wait for it, since it may be the first when it lists the queue.
#[tokio::test(flavor = "multi_thread")]
async fn i2_a_claim_behind_another_capacity_waits_for_it() {
    let stage = Stage::single(SESSION);
    let (a, b, client) = (stage.patient().await, stage.patient().await, stage.client().await);
    let held = a.semaphore("stock", 4).acquire().await.expect("acquired");
    let options = CreateMode::EphemeralSequential.with_acls(Acls::anyone_all());
    let other = format!("/lockkeeper/locks/stock/c-{:032x}-1-1-5-", 7);
    let (_, sequence) = client.create(&other, b"", &options).await.expect("made");
    let waiting = tokio::spawn(async move { b.semaphore("stock", 4).acquire().await });
    until_nodes(&client, "stock", 3).await;
    assert_eq!(a.inspect("stock").await.expect("asked").expect("held").holders.len(), 1);
    held.release().await.expect("released");
    until_nodes(&client, "stock", 2).await;
    let view = a.inspect("stock").await.expect("asked").expect("held");
    assert_eq!((view.holders.len(), view.waiters.len()), (1, 1), "{view:?}");
    assert!(!waiting.is_finished());
    client.delete(&format!("{other}{sequence}"), None).await.expect("removed");
    soon(waiting).await.expect("no panic").expect("acquired").release().await.expect("released");
    a.close().await;
}

/// Two claims wait for permits. The first learns from its own listing that it is admitted, because the answer to its claim
/// was lost. The second hears of that.
#[tokio::test(flavor = "multi_thread")]
async fn a_waiter_behind_an_unheard_claim_is_let_in_with_it() {
    let stage = Stage::single(SESSION);
    let (proxy, first) = stage.proxied().await;
    let (holder, second, client) = (stage.patient().await, stage.patient().await, stage.client().await);
    let held = holder.semaphore("stock", 2).acquire_many(2).await.expect("acquired");
    // A sign of life may meet the fault before the claim does; then it is tried again.
    let unheard = loop {
        while first.inspect("stock").await.is_err() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        let struck = proxy.struck();
        proxy.refuse(true);
        proxy.now(Fault::LOST_REPLY);
        let semaphore = first.semaphore("stock", 2);
        let asking = tokio::spawn(async move { semaphore.acquire().await.expect("acquired") });
        soon(proxy.until_struck(struck + 1)).await;
        if nodes(&client, "stock").await.len() == 2 {
            break asking;
        }
        asking.abort();
        proxy.refuse(false);
        until_nodes(&client, "stock", 1).await;
    };
    let semaphore = second.semaphore("stock", 2);
    let waiting = tokio::spawn(async move { semaphore.acquire().await.expect("acquired") });
    until_nodes(&client, "stock", 3).await;
    // It watches the one before it.
    let before = nodes(&client, "stock").await;
    let watched = || stage.servers.nodes()[0].ask("wchp").expect("asked");
    soon(async {
        while !before.iter().any(|node| watched().contains(&format!("/stock/{node}"))) {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    })
    .await;
    held.release().await.expect("released");
    proxy.refuse(false);
    let unheard = soon(unheard).await.expect("no panic");
    let waiting = soon(waiting).await.expect("no panic");
    assert!(unheard.is_held() && waiting.is_held());
    for guard in [unheard, waiting] {
        guard.release().await.expect("released");
    }
    for keeper in [first, second, holder] {
        keeper.close().await;
    }
}

/// Two claims wait for permits. The process of the first stands still when its turn comes, so it never marks its node. The
/// second fits beside it, and does not wait for the end of its session.
#[tokio::test(flavor = "multi_thread")]
async fn a_waiter_behind_a_stopped_process_is_let_in() {
    let stage = Stage::single(SESSION);
    let (proxy, still) = stage.patiently_proxied().await;
    let (holder, second, client) = (stage.patient().await, stage.patient().await, stage.client().await);
    let held = holder.semaphore("stock", 2).acquire_many(2).await.expect("acquired");
    let before = nodes(&client, "stock").await;
    let first = {
        let still = still.clone();
        tokio::spawn(async move { still.semaphore("stock", 2).acquire().await })
    };
    until_nodes(&client, "stock", 2).await;
    let node = nodes(&client, "stock").await.into_iter().find(|node| !before.contains(node)).expect("made");
    let waiting = tokio::spawn(async move { second.semaphore("stock", 2).acquire().await });
    // It watches the one before it.
    let watched = || stage.servers.nodes()[0].ask("wchp").expect("asked");
    soon(async {
        while !watched().contains(&format!("/stock/{node}")) {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    })
    .await;
    proxy.pause(true);
    proxy.refuse(true);
    held.release().await.expect("released");
    let waiting = tokio::time::timeout(SESSION / 2, waiting).await.expect("before that session ends");
    waiting.expect("no panic").expect("acquired").release().await.expect("released");
    first.abort();
    proxy.pause(false);
    proxy.refuse(false);
    still.close().await;
    holder.close().await;
}

/// A permit that waited is marked when it is granted, so operators see since when it is held, and not when it came. The
/// mark is written however often its connection is cut.
#[tokio::test(flavor = "multi_thread")]
async fn operators_see_when_a_permit_that_waited_was_granted() {
    let stage = Stage::single(SESSION);
    let ((proxy, waiter), holder) = (stage.patiently_proxied().await, stage.patient().await);
    // The requests after the release have about 500 bytes: the listing of the queue, and the mark.
    for after in (0..600).step_by(60) {
        let held = holder.semaphore("stock", 1).acquire().await.expect("acquired");
        let waiting = {
            let semaphore = waiter.semaphore("stock", 1);
            tokio::spawn(async move { semaphore.acquire().await.expect("acquired") })
        };
        let view = async || holder.inspect("stock").await.expect("asked").expect("held");
        let came = soon(async {
            loop {
                if let Some(first) = view().await.waiters.first() {
                    return first.since;
                }
            }
        })
        .await;
        // The server's clock counts milliseconds.
        tokio::time::sleep(Duration::from_millis(20)).await;
        let struck = proxy.struck();
        proxy.now(Fault { direction: Direction::ToServer, after, action: Action::Cut });
        held.release().await.expect("released");
        let guard = soon(waiting).await.expect("no panic");
        soon(async {
            while view().await.holders[0].since <= came {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        })
        .await;
        assert!(guard.is_held(), "cut after {after}");
        // A fault that came after the mark must not meet the release, nor the next round.
        soon(async {
            while proxy.struck() == struck || waiter.inspect("stock").await.is_err() {
                drop(waiter.inspect("stock").await);
            }
        })
        .await;
        guard.release().await.expect("released");
    }
    waiter.close().await;
    holder.close().await;
}
