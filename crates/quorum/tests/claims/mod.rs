//! How soon claims are answered, and what they are told, while members are slow, silent or in trouble.

use std::time::Duration;

use lockkeeper_core::{
    ContenderId, KeeperId,
    store::{Answer, Claim, Leave, Left, Request, Verdict},
    testing::{self, Fate},
};
use tokio::time::{Instant, sleep};

use crate::world::{Mood, World, millis, networks, secs};

/// A claim of a contender of its own.
fn claim(name: &str) -> Claim {
    let contender = ContenderId { keeper: KeeperId::random(), seq: 1 };
    testing::claim(&name.parse().expect("a name"), contender)
}

fn leave(claim: &Claim) -> Request {
    let (name, contender) = (claim.name.clone(), claim.contender);
    Request::Leave(Leave { name, contender, tombstone_until: None, hold_at_least: Duration::ZERO })
}

/// The gate grants between the moment when it answers *busy* and the moment when that answer arrives.
#[tokio::test(start_paused = true)]
async fn a_push_that_overtakes_an_answer_is_used_at_once() {
    let world = World::founded(3).await;
    let (holder, waiter) = (world.client().await, world.client().await);
    for name in ["stock/0", "stock/1", "stock/2", "stock/3"] {
        let guard = holder.keeper.mutex(name).lock().await.expect("granted");
        for network in &waiter.networks {
            network.next(Fate { after: millis(100), ..Fate::GOOD });
        }
        let (mutex, begun) = (waiter.keeper.mutex(name), Instant::now());
        let waits = tokio::spawn(async move { mutex.lock().await });
        sleep(millis(50)).await;
        guard.release().await.expect("released");
        let guard = waits.await.expect("ended").expect("granted");
        assert!(begun.elapsed() < millis(200), "{name} after {:?}", begun.elapsed());
        guard.release().await.expect("released");
    }
}

/// What goes wrong with one name of a group is told of that name alone.
#[tokio::test(start_paused = true)]
async fn entries_of_a_group_fail_by_themselves() {
    let world = World::founded(3).await;
    let store = world.store(&networks(3)).await;
    let held = claim("held");
    store.apply(&[Request::Claim(held.clone())]).await.expect("granted");
    world.moods[..2].iter().for_each(|moods| moods.set("locked", Some(Mood::NotNow)));
    let (free, tried, waits) = (claim("free"), claim("locked"), claim("locked"));
    let tried = Claim { queue: false, ..tried };
    let group = [Request::Claim(free), Request::Claim(tried), Request::Claim(waits), leave(&held)];
    let answers = store.apply(&group).await.expect("some were answered").each;
    assert!(matches!(&answers[0], Answer::Claim(Verdict::Granted(_))), "{answers:?}");
    assert!(
        matches!(&answers[1], Answer::Claim(Verdict::Refused(error)) if error.is_passing()),
        "{answers:?}"
    );
    assert!(matches!(&answers[2], Answer::Claim(Verdict::NotNow(_))), "{answers:?}");
    assert!(matches!(&answers[3], Answer::Leave(Left::Released)), "{answers:?}");
}

/// A try that failed leaves nothing behind, whatever else was in its group.
#[tokio::test(start_paused = true)]
async fn a_try_that_failed_beside_a_grant_blocks_nobody() {
    let world = World::founded(3).await;
    let (store, other) = (world.store(&networks(3)).await, world.client().await);
    world.moods[..2].iter().for_each(|moods| moods.set("locked", Some(Mood::NotNow)));
    let group = [claim("free"), Claim { queue: false, ..claim("locked") }].map(Request::Claim);
    store.apply(&group).await.expect("one was answered");
    world.moods.iter().for_each(|moods| moods.set("locked", None));
    sleep(secs(1)).await;
    assert!(other.keeper.mutex("locked").try_lock().await.expect("answered").is_some());
}

/// A leave that could not be done for now is asked for again, when members have done it meanwhile.
#[tokio::test(start_paused = true)]
async fn a_leave_that_is_asked_for_again_says_what_the_first_one_did() {
    let world = World::founded(3).await;
    let store = world.store(&networks(3)).await;
    let held = claim("locked");
    store.apply(&[Request::Claim(held.clone())]).await.expect("granted");
    world.moods[..2].iter().for_each(|moods| moods.set("locked", Some(Mood::NotNow)));
    let group = [Request::Claim(claim("free")), leave(&held)];
    let answers = store.apply(&group).await.expect("one was answered").each;
    assert!(matches!(&answers[1], Answer::Leave(Left::NotNow)), "{answers:?}");
    world.moods.iter().for_each(|moods| moods.set("locked", None));
    sleep(secs(5)).await;
    let answers = store.apply(&[leave(&held)]).await.expect("answered").each;
    assert!(matches!(&answers[..], [Answer::Leave(Left::Released)]), "{answers:?}");
    let answers = store.apply(&[leave(&held)]).await.expect("answered").each;
    assert!(matches!(&answers[..], [Answer::Leave(Left::NotThere)]), "{answers:?}");
}

/// Replies to leaves are lost, and the copies find nothing. That says nothing about the first ones.
#[tokio::test(start_paused = true)]
async fn a_leave_whose_replies_were_lost_was_done_all_the_same() {
    let world = World::founded(3).await;
    let ours = networks(3);
    let store = world.store(&ours).await;
    let held = claim("stock");
    store.apply(&[Request::Claim(held.clone())]).await.expect("granted");
    ours.iter().for_each(|network| network.next(Fate::LOST_REPLY));
    store.apply(&[leave(&held)]).await.expect_err("nobody answered");
    sleep(secs(5)).await;
    let answers = store.apply(&[leave(&held)]).await.expect("answered").each;
    assert!(matches!(&answers[..], [Answer::Leave(Left::Released)]), "{answers:?}");
}
