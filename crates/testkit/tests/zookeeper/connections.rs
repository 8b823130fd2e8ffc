//! Bad connections: cut at every point, silent, delayed, with lost answers; and futures that are dropped meanwhile.

use std::time::{Duration, Instant};

use lockkeeper_testkit::proxy::{Action, Direction, Fault};

use crate::stage::{LONG, Stage, nodes, soon, until_nodes};

const SESSION: Duration = Duration::from_secs(4);

/// Waits until there is a connection that can be cut.
async fn connected_again(keeper: &lockkeeper::Keeper) {
    let started = Instant::now();
    while let Err(error) = keeper.inspect("stock").await {
        assert!(started.elapsed() < LONG, "{error}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// The connection is cut after each number of bytes of a lock and a release, in each direction. Each time there is one
/// node, it is removed, and nothing is left.
#[tokio::test(flavor = "multi_thread")]
async fn a_cut_at_every_point_leaves_nothing() {
    let stage = Stage::single(SESSION);
    let (proxy, keeper) = stage.proxied().await;
    let (client, other) = (stage.client().await, stage.keeper().await);
    let mut last = None;
    for way in [Direction::ToServer, Direction::ToClient] {
        // A lock and a release are about 600 bytes there and 300 back; later ones hit the signs of life.
        for after in (0..700).step_by(41) {
            connected_again(&keeper).await;
            let struck = proxy.struck();
            proxy.now(Fault { direction: way, after, action: Action::Cut });
            let guard = soon(keeper.mutex("stock").lock()).await.expect("locked");
            assert!(Some(guard.token()) > last, "tokens grow: {:?} after {last:?}", guard.token());
            last = Some(guard.token());
            assert_eq!(nodes(&client, "stock").await.len(), 1, "one node, cut {way:?} after {after}");
            assert!(other.mutex("stock").try_lock().await.expect("asked").is_none());
            // The answer to the release may be lost; the release is not.
            drop(guard.release().await);
            until_nodes(&client, "stock", 0).await;
            soon(proxy.until_struck(struck + 1)).await;
        }
    }
    keeper.close().await;
    other.close().await;
}

/// As above for a reader beside another: the answer to its claim takes one more request, which reads the first holder.
#[tokio::test(flavor = "multi_thread")]
async fn a_reader_cut_at_every_point_leaves_nothing() {
    let stage = Stage::single(SESSION);
    let (proxy, keeper) = stage.proxied().await;
    let (client, other) = (stage.client().await, stage.keeper().await);
    let first = other.rw_lock("stock").read().await.expect("locked");
    for way in [Direction::ToServer, Direction::ToClient] {
        for after in (0..620).step_by(41) {
            connected_again(&keeper).await;
            let struck = proxy.struck();
            proxy.now(Fault { direction: way, after, action: Action::Cut });
            let guard = soon(keeper.rw_lock("stock").read()).await.expect("locked");
            assert_eq!(nodes(&client, "stock").await.len(), 2, "one node, cut {way:?} after {after}");
            assert_eq!(guard.floor(), first.floor());
            drop(guard.release().await);
            until_nodes(&client, "stock", 1).await;
            soon(proxy.until_struck(struck + 1)).await;
        }
    }
    keeper.close().await;
    other.close().await;
}

/// The node was made and the answer was lost: the repeated claim finds it instead of making another.
#[tokio::test(flavor = "multi_thread")]
async fn a_lost_reply_to_the_claim_enters_once() {
    let stage = Stage::single(SESSION);
    let (proxy, keeper) = stage.proxied().await;
    let client = stage.client().await;
    soon(keeper.mutex("stock").lock()).await.expect("locked").release().await.expect("released");
    for _ in 0..10 {
        connected_again(&keeper).await;
        let started = proxy.struck();
        proxy.now(Fault::LOST_REPLY);
        let guard = soon(keeper.mutex("stock").lock()).await.expect("locked");
        assert!(proxy.struck() > started, "the reply was lost");
        assert_eq!(nodes(&client, "stock").await.len(), 1);
        soon(guard.release()).await.expect("released");
        assert_eq!(nodes(&client, "stock").await.len(), 0);
    }
    keeper.close().await;
}

/// A future dropped at any moment of a slow exchange leaves no node behind.
#[tokio::test(flavor = "multi_thread")]
async fn a_dropped_future_leaves_nothing() {
    let stage = Stage::single(SESSION);
    let (proxy, keeper) = stage.proxied().await;
    let (client, other) = (stage.client().await, stage.keeper().await);
    proxy.delay(Duration::from_millis(4));
    for step in 0..40 {
        let patience = Duration::from_millis(step);
        let held =
            if step % 2 == 0 { Some(other.mutex("stock").lock().await.expect("locked")) } else { None };
        let mutex = keeper.mutex("stock").fifo();
        drop(tokio::time::timeout(patience, mutex.lock()).await);
        let left = usize::from(held.is_some());
        until_nodes(&client, "stock", left).await;
        if let Some(held) = held {
            held.release().await.expect("released");
        }
    }
    keeper.close().await;
    other.close().await;
}

/// The connection is silent, and nobody says so: the holder is told before the next one is let in.
#[tokio::test(flavor = "multi_thread")]
async fn a_holder_on_a_silent_connection_is_told_before_the_next_one_enters() {
    let stage = Stage::single(Duration::from_secs(2));
    let (proxy, keeper) = stage.proxied().await;
    let other = stage.keeper().await;
    let guard = keeper.mutex("stock").lease(Duration::from_secs(30)).lock().await.expect("locked");
    let next = {
        let other = other.clone();
        tokio::spawn(async move { (other.mutex("stock").lock().await.expect("locked"), Instant::now()) })
    };
    proxy.refuse(true);
    proxy.now(Fault { direction: Direction::ToServer, after: 0, action: Action::Swallow });
    proxy.now(Fault::SILENCE);
    soon(guard.lost()).await;
    let lost = Instant::now();
    let (next, entered) = soon(next).await.expect("no panic");
    assert!(lost < entered, "the next one entered {:?} before", lost - entered);
    assert!(next.token() > guard.token());
    next.release().await.expect("released");
    other.close().await;
}
