//! Members whose numbers differ, because one of them has granted more than the others.

use std::sync::Arc;

use lockkeeper_core::{
    GrantNumber, Units,
    store::{
        Answer, Attachment, Claim, Evict, Evicted, Eviction, ListQuery, Renew, Renewed, Request, Store,
        Verdict,
    },
    testing::{Fate, Network},
};
use tokio::time::sleep;

use super::{claim, leave};
use crate::world::{World, networks, secs};

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

async fn granted(store: &Arc<dyn Store>, claim: &Claim) -> GrantNumber {
    let answers = store.apply(&[Request::Claim(claim.clone())]).await.expect("answered").each;
    let [Answer::Claim(Verdict::Granted(grant))] = &answers[..] else { panic!("{answers:?}") };
    grant.number
}

/// Has it granted by the last two members, while the first one hears the claim and not that its number is too low.
async fn granted_unevenly(store: &Arc<dyn Store>, networks: &[Network], claim: &Claim) -> GrantNumber {
    networks[0].next(Fate::GOOD);
    networks[0].next(Fate::LOST_REQUEST);
    granted(store, claim).await
}

#[tokio::test(start_paused = true)]
async fn a_holder_is_shown_and_evicted_by_its_token() {
    for how in [Eviction::Graceful, Eviction::Immediate] {
        let world = uneven().await;
        let (ours, theirs) = (networks(3), networks(3));
        let (store, operator) = (world.store(&ours).await, world.store(&theirs).await);
        let held = claim("stock");
        let number = granted_unevenly(&store, &ours, &held).await;
        ours[0].cut();
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

pub(super) fn renewal(held: &Claim, detach: bool) -> Renew {
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

/// Its members are raised to the highest of their numbers, which may be above the token.
#[tokio::test(start_paused = true)]
async fn a_detached_lease_is_shown_with_its_token_or_a_higher_one_and_taken_back_by_either() {
    for how in [Eviction::Graceful, Eviction::Immediate] {
        for by_token in [true, false] {
            let world = uneven().await;
            let (store, operator) = (world.store(&networks(3)).await, world.store(&networks(3)).await);
            let held = Claim { attachment: Attachment::Detached, ..claim("stock") };
            let number = granted(&store, &held).await;
            sleep(secs(1)).await;
            let view = operator.inspect(&held.name).await.expect("answered").expect("held");
            let shown = view.holders[0].token.number();
            assert!(view.holders[0].detached && shown > number, "{view:?}");
            let number = if by_token { number } else { shown };
            let order =
                Evict { name: held.name.clone(), contender: held.contender, number, how, reason: None };
            assert_eq!(operator.evict(&order).await.expect("answered"), Evicted::Done, "{how:?}");
        }
    }
}

/// The members of a detached lease show different numbers, and one of them is not there.
#[tokio::test(start_paused = true)]
async fn another_process_goes_on_with_a_lease_without_one_member() {
    for (attachment, missing) in [Attachment::Detached, Attachment::Detachable]
        .into_iter()
        .flat_map(|one| (0..3).map(move |n| (one, n)))
    {
        let world = uneven().await;
        let (ours, theirs) = (networks(3), networks(3));
        let (store, other) = (world.store(&ours).await, world.store(&theirs).await);
        let held = Claim { attachment, ..claim("stock") };
        let number = if attachment == Attachment::Detachable {
            let number = granted_unevenly(&store, &ours, &held).await;
            store.renew(&[renewal(&held, true)]).await.expect("detached");
            number
        } else {
            granted(&store, &held).await
        };
        sleep(secs(1)).await;
        theirs[missing].cut();
        for _ in 0..3 {
            let going_on = Renew { at_least: number, ..renewal(&held, true) };
            let renewed = other.renew(&[going_on]).await.expect("answered").each;
            let is_held = matches!(&renewed[..], [Renewed::Held(grant)] if grant.number == number);
            assert!(is_held, "{renewed:?}, {attachment:?} without {missing}");
        }
        other.apply(&[leave(&held)]).await.expect("left");
        theirs[missing].restore();
        sleep(secs(5)).await;
        let next = store.apply(&[Request::Claim(claim("stock"))]).await.expect("answered").each;
        assert!(matches!(&next[..], [Answer::Claim(Verdict::Granted(grant))] if grant.number > number));
    }
}

/// Two members do not have it, or one does not and another is not there: only the first is an answer.
#[tokio::test(start_paused = true)]
async fn a_lease_is_gone_when_a_majority_says_so() {
    let world = World::founded(3).await;
    let (ours, theirs) = (networks(3), networks(3));
    let (store, other) = (world.store(&ours).await, world.store(&theirs).await);
    let held = Claim { attachment: Attachment::Detached, ..claim("stock") };
    let going_on = [Renew { at_least: granted(&store, &held).await, ..renewal(&held, true) }];
    let members = world.member_stores().await;
    members[0].apply(&[leave(&held)]).await.expect("left");
    theirs[1].cut();
    other.renew(&going_on).await.expect_err("the member that is not there may have it");
    theirs[1].restore();
    assert!(matches!(&other.renew(&going_on).await.expect("answered").each[..], [Renewed::Held(_)]));
    members[1].apply(&[leave(&held)]).await.expect("left");
    theirs[2].cut();
    assert!(matches!(&other.renew(&going_on).await.expect("answered").each[..], [Renewed::Gone]));
}

/// Too few members show the number of one lock, so it cannot be shared. Another one is renewed all the same.
#[tokio::test(start_paused = true)]
async fn a_downgrade_that_is_refused_keeps_no_other_lease_from_being_renewed() {
    let world = uneven().await;
    let ours = networks(3);
    let store = world.store(&ours).await;
    let (held, other) = (claim("stock"), claim("other"));
    granted_unevenly(&store, &ours, &held).await;
    granted(&store, &other).await;
    let lowered = Renew { lower_to: Some(Units::ONE), ..renewal(&held, false) };
    let group = [renewal(&other, false), lowered.clone(), renewal(&other, false)];
    let renewed = store.renew(&group).await.expect("two were answered").each;
    let as_expected = matches!(&renewed[..], [Renewed::Held(_), Renewed::Unknown, Renewed::Held(_)]);
    assert!(as_expected, "{renewed:?}");
    let error = store.renew(&[lowered]).await.expect_err("refused").to_string();
    assert!(error.contains("cannot be shared"), "{error}");
}
