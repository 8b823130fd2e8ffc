//! Evictions: an order is not lost if the holder changes the same node meanwhile.

use std::time::Duration;

use lockkeeper::{Keeper, Token};
use lockkeeper_core::store::Eviction;
use zookeeper_client::Client;

use crate::stage::{Stage, nodes, soon, until_nodes};

const SESSION: Duration = Duration::from_secs(20);

/// How long each message travels. A change of a node is sent three times as long after the read that it is based on.
const FAR: Duration = Duration::from_millis(15);

/// Orders the holder of `stock` to leave.
async fn evict(operator: &Keeper, token: Token) {
    let view = operator.inspect("stock").await.expect("asked").expect("held");
    let holder = view.holders.first().expect("one");
    assert!(
        operator.evict("stock", holder.contender, token, Eviction::Graceful).await.expect("asked"),
        "held until now"
    );
}

/// Whether the node is still marked as evicted, or the lock was released since.
async fn is_heeded(client: &Client) -> bool {
    let claim = nodes(client, "stock").await.into_iter().find(|node| node.starts_with("c-"));
    let Some(node) = claim else { return true };
    let data = client.get_data(&format!("/lockkeeper/locks/stock/{node}")).await;
    data.map_or(true, |(data, _)| String::from_utf8_lossy(&data).lines().any(|line| line == "evicted"))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_downgrade_does_not_undo_an_eviction() {
    let stage = Stage::single(SESSION);
    let (proxy, keeper) = stage.patiently_proxied().await;
    let (operator, client) = (stage.patient().await, stage.client().await);
    proxy.delay(FAR);
    for step in 0..16 {
        let guard = soon(keeper.rw_lock("stock").write()).await.expect("locked");
        let token = guard.token();
        let change = tokio::spawn(async move { guard.downgrade().await });
        tokio::time::sleep(FAR * step / 2).await;
        evict(&operator, token).await;
        let changed = soon(change).await.expect("no panic");
        assert!(is_heeded(&client).await, "undone by a downgrade that began {step} steps before");
        drop(changed);
        until_nodes(&client, "stock", 0).await;
    }
    keeper.close().await;
    operator.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_detached_lease_does_not_undo_an_eviction() {
    let stage = Stage::single(SESSION);
    let (proxy, keeper) = stage.patiently_proxied().await;
    let (operator, client) = (stage.patient().await, stage.client().await);
    let mutex = keeper.mutex("stock").lease(Duration::from_secs(40)).detachable();
    proxy.delay(FAR);
    for step in 0..16 {
        let guard = soon(mutex.lock()).await.expect("locked");
        let token = guard.token();
        let change = tokio::spawn(async move { guard.into_lease().await });
        tokio::time::sleep(FAR * step / 2).await;
        evict(&operator, token).await;
        let changed = soon(change).await.expect("no panic");
        assert!(is_heeded(&client).await, "undone by a detachment that began {step} steps before");
        drop(changed);
        for node in nodes(&client, "stock").await {
            // A guard that was lost leaves by itself.
            drop(client.delete(&format!("/lockkeeper/locks/stock/{node}"), None).await);
        }
        until_nodes(&client, "stock", 0).await;
    }
    keeper.close().await;
    operator.close().await;
}

/// A hold that is left before its minimum and evicted in the same moment does not go on.
#[tokio::test(flavor = "multi_thread")]
async fn a_minimum_hold_does_not_undo_an_eviction() {
    let stage = Stage::single(SESSION);
    let (proxy, keeper) = stage.patiently_proxied().await;
    let (operator, client) = (stage.patient().await, stage.client().await);
    // Longer than this test waits.
    let mutex = keeper.mutex("stock").lease(Duration::from_secs(50)).min_hold(Duration::from_secs(45));
    for step in 0..12 {
        proxy.delay(Duration::ZERO);
        let guard = soon(mutex.lock()).await.expect("locked");
        let token = guard.token();
        proxy.delay(FAR);
        let change = tokio::spawn(async move { guard.release().await });
        tokio::time::sleep(FAR * step / 4).await;
        evict(&operator, token).await;
        drop(soon(change).await.expect("no panic"));
        until_nodes(&client, "stock", 0).await;
    }
    keeper.close().await;
    operator.close().await;
}
