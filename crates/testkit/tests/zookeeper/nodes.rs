//! The nodes themselves: foreign ones among them, their folders, their access rights.

use std::time::Duration;

use lockkeeper::error::StoreErrorKind;
use lockkeeper_testkit::servers::ZooKeeperOptions;
use zookeeper_client::{Acls, CreateMode};

use crate::stage::{Stage, nodes, soon};

const SESSION: Duration = Duration::from_secs(4);

/// Foreign, malformed and non-ASCII children neither hold nor block nor break anything, and stay.
#[tokio::test(flavor = "multi_thread")]
async fn foreign_nodes_are_left_alone() {
    let stage = Stage::single(SESSION);
    let (a, b, client) = (stage.keeper().await, stage.keeper().await, stage.client().await);
    let plain = CreateMode::Persistent.with_acls(Acls::anyone_all());
    a.mutex("stock").lock().await.expect("locked").release().await.expect("released");
    let foreign = ["0", "_c_1-lock-0000000000", "ü-lock-0000000001", "c-x-all-all-0000000000", "d--", "c-é"];
    for node in foreign {
        client.create(&format!("/lockkeeper/locks/stock/{node}"), b"\xff", &plain).await.expect("made");
    }
    client.create("/lockkeeper/locks/%zz", b"", &plain).await.expect("made");
    let guard = soon(a.mutex("stock").lock()).await.expect("locked");
    let waiter = tokio::spawn(async move { b.mutex("stock").lock().await.expect("locked").release().await });
    crate::stage::until_nodes(&client, "stock", foreign.len() + 2).await;
    let view = a.inspect("stock").await.expect("asked").expect("held");
    assert_eq!((view.holders.len(), view.waiters.len()), (1, 1));
    assert_eq!(a.list("", None, 10).await.expect("listed").resources.len(), 1);
    guard.release().await.expect("released");
    soon(waiter).await.expect("no panic").expect("released");
    let mut left = nodes(&client, "stock").await;
    left.sort();
    let mut expected = foreign.map(str::to_owned);
    expected.sort();
    assert_eq!(left, expected);
    a.close().await;
}

/// A waiter whose node is removed, by an operator say, claims again at once, and not only when its turn would have come.
#[tokio::test(flavor = "multi_thread")]
async fn a_waiter_whose_node_is_removed_claims_again() {
    let stage = Stage::single(SESSION);
    let (a, b, client) = (stage.keeper().await, stage.keeper().await, stage.client().await);
    let guard = a.mutex("stock").lock().await.expect("locked");
    let held = nodes(&client, "stock").await;
    let waiter = tokio::spawn(async move { b.mutex("stock").lock().await.expect("locked").release().await });
    let server = &stage.servers.nodes()[0];
    let mut removed = Vec::new();
    for once_watched in [false, true, true] {
        let path = soon(async {
            loop {
                let now = nodes(&client, "stock").await;
                let new = now.into_iter().find(|node| !held.contains(node) && !removed.contains(node));
                let path = new.map(|node| format!("/lockkeeper/locks/stock/{node}"));
                let is_watched = |path: &String| server.ask("wchp").expect("asked").contains(path);
                match path.filter(|path| !once_watched || is_watched(path)) {
                    Some(path) => return path,
                    None => tokio::time::sleep(Duration::from_millis(5)).await,
                }
            }
        });
        let path = path.await;
        client.delete(&path, None).await.expect("removed");
        removed.extend(path.rsplit('/').next().map(str::to_owned));
    }
    assert!(guard.is_held());
    guard.release().await.expect("released");
    soon(waiter).await.expect("no panic").expect("released");
    a.close().await;
}

/// A resource that nobody uses leaves no folder behind: the servers remove it.
#[tokio::test(flavor = "multi_thread")]
async fn an_unused_folder_is_removed() {
    let options = ZooKeeperOptions::default().check_containers(Duration::from_millis(200));
    let stage = Stage::with(&options, SESSION);
    let (keeper, client) = (stage.keeper().await, stage.client().await);
    let permits = keeper.semaphore("permits", 3);
    let held = keeper.mutex("held").lock().await.expect("locked");
    for _ in 0..20 {
        keeper.mutex("stock").lock().await.expect("locked").release().await.expect("released");
        permits.acquire_many(2).await.expect("acquired").release().await.expect("released");
    }
    assert!(keeper.mutex("held").try_lock().await.expect("asked").is_none());
    assert!(keeper.mutex("tried").try_lock().await.expect("asked").is_some());
    soon(async {
        while client.list_children("/lockkeeper/locks").await.expect("listed") != ["held"] {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
    // The folder may be removed in the very moment of a claim, which then makes it again.
    for _ in 0..40 {
        let guard = soon(keeper.mutex("stock").lock()).await.expect("locked");
        guard.release().await.expect("released");
        tokio::time::sleep(Duration::from_millis(45)).await;
    }
    held.release().await.expect("released");
    keeper.close().await;
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

/// With a login, the nodes belong to its user alone.
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

/// A writer that became a reader leaves. Until its node is gone, everybody sees a reader.
#[tokio::test(flavor = "multi_thread")]
async fn a_downgraded_writer_leaves_as_a_reader() {
    let stage = Stage::single(SESSION);
    let (proxy, keeper) = stage.proxied().await;
    let client = stage.client().await;
    let guard = keeper.rw_lock("stock").write().await.expect("locked");
    let guard = guard.downgrade().await.expect("lowered");
    assert_eq!(nodes(&client, "stock").await.len(), 2);
    // Makes each request slow enough to be seen.
    proxy.delay(Duration::from_millis(50));
    let leaving = tokio::spawn(guard.release());
    loop {
        let now = nodes(&client, "stock").await;
        if !now.iter().any(|node| node.starts_with("c-")) {
            break;
        }
        assert!(now.iter().any(|node| node.starts_with("d-")), "a writer again: {now:?}");
    }
    soon(leaving).await.expect("no panic").expect("released");
    crate::stage::until_nodes(&client, "stock", 0).await;
    keeper.close().await;
}
