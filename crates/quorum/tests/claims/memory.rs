//! The contenders and leases that a client remembers, and forgets in time.

use lockkeeper_core::{
    store::{Answer, Attachment, Claim, ListQuery, Renew, Renewed, Request, Verdict},
    testing::Network,
};
use tokio::time::sleep;

use super::claim;
use crate::world::{World, networks, secs};

fn going_on(held: &Claim, at_least: u64) -> Renew {
    let (name, contender, lease) = (held.name.clone(), held.contender, held.lease);
    Renew { name, contender, lease, lower_to: None, detach: true, at_least }
}

/// The client that was granted a lease forgets it when others have gone on with it, and must not give it back.
#[tokio::test(start_paused = true)]
async fn a_lease_that_another_process_renews_is_not_given_back() {
    let world = World::founded(3).await;
    let (store, other) = (world.store(&networks(3)).await, world.store(&networks(3)).await);
    let held = Claim { attachment: Attachment::Detached, ..claim("stock") };
    let answers = store.apply(&[Request::Claim(held.clone())]).await.expect("answered").each;
    let [Answer::Claim(Verdict::Granted(grant))] = &answers[..] else { panic!("{answers:?}") };
    for _ in 0..60 {
        sleep(secs(10)).await;
        let renewed = other.renew(&[going_on(&held, grant.number)]).await.expect("answered").each;
        assert!(matches!(&renewed[..], [Renewed::Held(now)] if now.number == grant.number), "{renewed:?}");
    }
    assert!(format!("{store:?}").contains("contests: 0"), "{store:?}");
    sleep(secs(600)).await;
    assert!(format!("{other:?}").contains("contests: 0"), "{other:?}");
}

/// Contenders that nobody asks about any more are forgotten in any state, and hold nothing.
#[tokio::test(start_paused = true)]
async fn contenders_without_an_owner_are_forgotten() {
    let world = World::founded(3).await;
    let ours = networks(3);
    let (store, holder) = (world.store(&ours).await, world.client().await);
    let guard = holder.keeper.mutex("stock").lock().await.expect("granted");
    for nth in 0..10 {
        // One waits, one goes on with a lease that is not there, and one is cut off from the start.
        store.apply(&[Request::Claim(claim("stock"))]).await.expect("answered");
        store.renew(&[going_on(&claim(&format!("none/{nth}")), 7)]).await.expect("answered");
        ours.iter().for_each(Network::cut);
        store.apply(&[Request::Claim(claim(&format!("cut/{nth}")))]).await.expect_err("nobody is there");
        ours.iter().for_each(Network::restore);
    }
    sleep(secs(600)).await;
    assert!(format!("{store:?}").contains("contests: 0"), "{store:?}");
    guard.release().await.expect("released");
    for member in world.member_stores().await {
        let left = member.list(&ListQuery { limit: 100, ..ListQuery::default() }).await.expect("answered");
        assert!(left.resources.is_empty(), "{left:?}");
    }
}
