//! Members whose numbers differ, because one of them has granted more than the others.

use std::sync::Arc;

use lockkeeper_core::{
    GrantNumber,
    store::{
        Answer, Attachment, Claim, Evict, Evicted, Eviction, ListQuery, Renew, Renewed, Request, Store,
        Verdict,
    },
    testing::{Fate, Network},
};

use super::{claim, leave};
use crate::world::{World, networks};

/// A world in which each member's numbers are far above those of the one before.
async fn uneven() -> World {
    let world = World::founded(3).await;
    for (member, store) in world.member_stores().await.into_iter().enumerate() {
        let far = Claim { at_least: 10_000_000_000_000 + 1000 * member as u64, ..claim("elsewhere") };
        store.apply(&[Request::Claim(far.clone())]).await.expect("granted");
        store.apply(&[leave(&far)]).await.expect("left");
    }
    world
}

/// Has it granted by the last two members, while the first one hears the claim and not that its number is too low. Later
/// the first one is not there.
async fn granted_unevenly(store: &Arc<dyn Store>, networks: &[Network], claim: &Claim) -> GrantNumber {
    networks[0].next(Fate::GOOD);
    networks[0].next(Fate::LOST_REQUEST);
    let answers = store.apply(&[Request::Claim(claim.clone())]).await.expect("answered").each;
    let [Answer::Claim(Verdict::Granted(grant))] = &answers[..] else { panic!("{answers:?}") };
    networks[0].cut();
    grant.number
}

#[tokio::test(start_paused = true)]
async fn a_holder_is_shown_and_evicted_by_its_token() {
    for how in [Eviction::Graceful, Eviction::Immediate] {
        let world = uneven().await;
        let (ours, theirs) = (networks(3), networks(3));
        let (store, operator) = (world.store(&ours).await, world.store(&theirs).await);
        let held = claim("stock");
        let number = granted_unevenly(&store, &ours, &held).await;
        if how == Eviction::Graceful {
            theirs[0].cut();
        }
        let view = operator.inspect(&held.name).await.expect("answered").expect("held");
        let page = operator.list(&ListQuery { limit: 10, ..ListQuery::default() }).await.expect("answered");
        for view in [&view, &page.resources[0]] {
            assert_eq!(view.holders.len(), 1, "{view:?}");
            assert_eq!(view.holders[0].token.number(), number, "the token is that of the holder");
        }
        let order = Evict { name: held.name.clone(), contender: held.contender, number, how, reason: None };
        assert_eq!(operator.evict(&order).await.expect("answered"), Evicted::Done, "{how:?}");
        let renewal = renewal(&held, false);
        let renewed = store.renew(&[renewal]).await.expect("answered").each;
        assert!(matches!(&renewed[..], [Renewed::Evicted(_) | Renewed::Gone]), "{renewed:?}");
    }
}

fn renewal(held: &Claim, detach: bool) -> Renew {
    let (name, contender, lease) = (held.name.clone(), held.contender, held.lease);
    Renew { name, contender, lease, lower_to: None, detach, at_least: 0 }
}

/// A renewal that is asked for at the same time must not take the place of a detach.
#[tokio::test(start_paused = true)]
async fn a_detach_is_not_undone_by_a_renewal() {
    let world = World::founded(3).await;
    let store = world.store(&networks(3)).await;
    for before in [true, false] {
        let held = Claim { attachment: Attachment::Detachable, ..claim("stock") };
        store.apply(&[Request::Claim(held.clone())]).await.expect("granted");
        let (detach, plain) = ([renewal(&held, true)], [renewal(&held, false)]);
        let (first, second) = if before { (&detach, &plain) } else { (&plain, &detach) };
        let (first, second) = tokio::join!(store.renew(first), store.renew(second));
        for renewed in [first, second] {
            let renewed = renewed.expect("answered").each;
            assert!(matches!(&renewed[..], [Renewed::Held(_)]), "{renewed:?}");
        }
        let view = store.inspect(&held.name).await.expect("answered").expect("held");
        assert!(view.holders[0].detached, "only its lease ends it");
        store.apply(&[leave(&held)]).await.expect("left");
    }
}
