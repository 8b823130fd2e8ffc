//! The nodes themselves: strangers among them, and who may be told apart.

use std::time::Duration;

use lockkeeper::StoreErrorKind;
use zookeeper_client::{Acls, CreateMode};

use crate::stage::{Stage, nodes, soon, until_nodes};

const SESSION: Duration = Duration::from_secs(4);

/// Foreign, malformed and non-ASCII children neither hold nor block nor break anything, and stay.
#[tokio::test(flavor = "multi_thread")]
async fn strangers_are_left_alone() {
    let stage = Stage::single(SESSION);
    let (a, b, client) = (stage.keeper().await, stage.keeper().await, stage.client().await);
    let plain = CreateMode::Persistent.with_acls(Acls::anyone_all());
    a.mutex("stock").lock().await.expect("locked").release().await.expect("released");
    let strangers =
        ["0", "_c_1-lock-0000000000", "ü-lock-0000000001", "c-x-all-all-0000000000", "d--", "c-é"];
    for stranger in strangers {
        client.create(&format!("/lockkeeper/locks/stock/{stranger}"), b"\xff", &plain).await.expect("made");
    }
    client.create("/lockkeeper/locks/%zz", b"", &plain).await.expect("made");
    let guard = soon(a.mutex("stock").lock()).await.expect("locked");
    let waiter = tokio::spawn(async move { b.mutex("stock").lock().await.expect("locked").release().await });
    crate::stage::until_nodes(&client, "stock", strangers.len() + 2).await;
    let view = a.inspect("stock").await.expect("asked").expect("held");
    assert_eq!((view.holders.len(), view.waiters.len()), (1, 1));
    assert_eq!(a.list("", None, 10).await.expect("listed").resources.len(), 1);
    guard.release().await.expect("released");
    soon(waiter).await.expect("no panic").expect("released");
    let mut left = nodes(&client, "stock").await;
    left.sort();
    let mut expected = strangers.map(str::to_owned);
    expected.sort();
    assert_eq!(left, expected);
    a.close().await;
}

/// A namespace that belongs to something else, or to a later version, is not touched.
#[tokio::test(flavor = "multi_thread")]
async fn other_layouts_are_refused() {
    let stage = Stage::single(SESSION);
    let client = stage.client().await;
    let plain = CreateMode::Persistent.with_acls(Acls::anyone_all());
    for (namespace, data) in [("app", "settings"), ("later", "lockkeeper 2 x")] {
        client.create(&format!("/{namespace}"), data.as_bytes(), &plain).await.expect("made");
        let url = format!("{}&namespace={namespace}", stage.url());
        let error = lockkeeper::connect(&url).await.expect_err("not ours");
        assert_eq!(error.kind(), StoreErrorKind::Corrupt, "{error}");
        assert_eq!(
            client.list_children(&format!("/{namespace}")).await.expect("listed"),
            Vec::<String>::new()
        );
    }
}

/// With a login, what is made belongs to it alone.
#[tokio::test(flavor = "multi_thread")]
async fn a_login_keeps_others_out() {
    let stage = Stage::single(SESSION);
    let with = |login: &str| stage.url().replace("zookeeper://", &format!("zookeeper://{login}"));
    let keeper = lockkeeper::connect(&with("me:secret@")).await.expect("connected");
    let guard = keeper.mutex("stock").lock().await.expect("locked");
    let client = stage.client().await;
    assert_eq!(client.list_children("/lockkeeper/locks").await, Err(zookeeper_client::Error::NoAuth));
    for url in [stage.url(), with("me:wrong@")] {
        let error = lockkeeper::connect(&url).await.expect_err("not allowed");
        assert_eq!(error.kind(), StoreErrorKind::Denied, "{error}");
        assert!(!error.to_string().contains("wrong"), "{error}");
    }
    guard.release().await.expect("released");
    keeper.close().await;
}

/// Who is next in line holds as soon as the node before it has gone. A lease that is adopted gets another node of
/// the same name, and that is no such moment.
#[tokio::test(flavor = "multi_thread")]
async fn who_is_next_waits_for_a_lease_that_is_adopted() {
    let stage = Stage::single(SESSION);
    let (first, second, third) = (stage.keeper().await, stage.keeper().await, stage.keeper().await);
    let client = stage.client().await;
    let lease = first.mutex("stock").detachable().lock().await.expect("locked");
    let lease = lease.into_lease().await.expect("detached").to_string();
    let waiter = tokio::spawn({
        let mutex = third.mutex("stock");
        async move { mutex.lock().await }
    });
    until_nodes(&client, "stock", 2).await;
    let adopted = second.adopt(&lease).await.expect("adopted");
    // Served at once if at all: what it watched has changed before this answer.
    let served = tokio::time::timeout(Duration::from_millis(500), async {
        while !waiter.is_finished() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    });
    assert!(served.await.is_err(), "two hold at once");
    adopted.release().await.expect("released");
    soon(waiter).await.expect("no panic").expect("served").release().await.expect("released");
    for keeper in [first, second, third] {
        keeper.close().await;
    }
}

/// A node that somebody removes by hand is not counted on: who waited with it comes again.
#[tokio::test(flavor = "multi_thread")]
async fn who_lost_its_place_by_hand_does_not_hold_without_one() {
    let stage = Stage::single(SESSION);
    let (holder, keeper, client) = (stage.keeper().await, stage.keeper().await, stage.client().await);
    let guard = holder.mutex("stock").lock().await.expect("locked");
    let held = client.list_children("/lockkeeper/locks/stock").await.expect("listed");
    let waiter = tokio::spawn({
        let mutex = keeper.mutex("stock");
        async move { mutex.lock().await }
    });
    until_nodes(&client, "stock", 2).await;
    let nodes = client.list_children("/lockkeeper/locks/stock").await.expect("listed");
    for node in nodes.iter().filter(|node| !held.contains(node)) {
        client.delete(&format!("/lockkeeper/locks/stock/{node}"), None).await.expect("removed");
    }
    // What it saw of the line counts for a second.
    tokio::time::sleep(Duration::from_millis(1500)).await;
    guard.release().await.expect("released");
    let guard = soon(waiter).await.expect("no panic").expect("served");
    until_nodes(&client, "stock", 1).await;
    guard.release().await.expect("released");
    keeper.close().await;
    holder.close().await;
}
