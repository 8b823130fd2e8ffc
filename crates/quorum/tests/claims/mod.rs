//! The times and the answers of claims, while members are slow, silent or in trouble.

mod ends;
mod errors;
mod gates;
mod late;
mod memory;
mod numbers;
mod renewals;
mod returning;

use std::time::Duration;

use lockkeeper_core::{
    ContenderId, KeeperId, StoreErrorKind,
    store::{Answer, Claim, Leave, Left, Request, Verdict},
    testing::{self, Fate, Network},
};
use tokio::time::{Instant, sleep, timeout};

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

/// Trouble with one name of a group is told of that name alone.
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

/// A try that failed leaves nothing behind, also beside others in its group.
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

/// One member never answers. It costs its time limit once, not each try of a lock that others hold.
#[tokio::test(start_paused = true)]
async fn a_member_that_hangs_delays_tries_once() {
    for hung in 0..3 {
        let world = World::founded(3).await;
        let (holder, client) = (world.client().await, world.client().await);
        let names: Vec<String> = (0..4).map(|nth| format!("held/{nth}")).collect();
        let mut guards = Vec::new();
        for name in &names {
            guards.push(holder.keeper.mutex(name).lock().await.expect("granted"));
        }
        client.networks[hung].cut();
        let mut late = Vec::new();
        for nth in 0..40 {
            let (held, free) =
                (client.keeper.mutex(&names[nth % 4]), client.keeper.mutex(&format!("free/{nth}")));
            let begun = Instant::now();
            let (tried, locked) = tokio::join!(async { (held.try_lock().await, begun.elapsed()) }, async {
                (free.lock().await, begun.elapsed())
            },);
            assert!(tried.0.expect("answered").is_none(), "it is held");
            locked.0.expect("granted").release().await.expect("released");
            late.extend([tried.1, locked.1, begun.elapsed()].into_iter().filter(|took| *took > millis(50)));
        }
        // The first try, and the requests beside it.
        assert!(late.len() <= 3 && late.iter().all(|took| *took <= millis(600)), "{late:?} without {hung}");
    }
}

/// A row that stays locked is asked about less and less often.
#[tokio::test(start_paused = true)]
async fn a_leave_that_can_not_be_done_for_now_is_not_sent_all_the_time() {
    let world = World::founded(3).await;
    let store = world.store(&networks(3)).await;
    let held = claim("locked");
    store.apply(&[Request::Claim(held.clone())]).await.expect("granted");
    world.moods[0].set("locked", Some(Mood::NotNow));
    store.apply(&[leave(&held)]).await.expect("released by two");
    sleep(secs(30)).await;
    assert!(world.moods[0].leaves() <= 50, "{} leaves in 30 s", world.moods[0].leaves());
    world.moods[0].set("locked", None);
    sleep(secs(5)).await;
    let sent = world.moods[0].leaves();
    sleep(secs(30)).await;
    assert_eq!(world.moods[0].leaves(), sent, "it was done");
}

/// A claim is sent again because its member could do nothing, and its contender has left meanwhile.
#[tokio::test(start_paused = true)]
async fn a_claim_is_not_sent_after_its_leave() {
    let world = World::founded(3).await;
    let (ours, other) = (networks(3), world.client().await);
    let store = world.store(&ours).await;
    world.moods.iter().for_each(|moods| moods.set("stock", Some(Mood::NotNow)));
    let waits = claim("stock");
    let group = [Request::Claim(waits.clone())];
    let claiming = timeout(millis(5), store.apply(&group)).await;
    assert!(claiming.is_err(), "members can do nothing");
    world.moods.iter().for_each(|moods| moods.set("stock", None));
    store.apply(&[leave(&waits)]).await.expect("left");
    // It would arrive after the tombstone has ended, and before it is too late itself.
    ours.iter().for_each(|network| network.next(Fate::late(millis(4995))));
    sleep(secs(6)).await;
    ours.iter().for_each(Network::restore);
    assert!(other.keeper.mutex("stock").try_lock().await.expect("answered").is_some(), "nobody holds it");
}

/// A claim of a contended name asks its gate first.
#[tokio::test(start_paused = true)]
async fn a_contended_name_that_members_refuse_fails_at_once() {
    let world = World::founded(3).await;
    let (one, two) = (world.client().await, world.client().await);
    let guard = one.keeper.mutex("stock").lock().await.expect("granted");
    let mutex = two.keeper.mutex("stock");
    let waits = tokio::spawn(async move { mutex.lock().await });
    sleep(millis(50)).await;
    guard.release().await.expect("released");
    waits.await.expect("ended").expect("granted").release().await.expect("released");
    world.moods.iter().for_each(|moods| moods.set("stock", Some(Mood::Refuses)));
    let tried = timeout(secs(1), two.keeper.mutex("stock").lock()).await.expect("at once");
    let error = tried.map(drop).expect_err("refused").to_string();
    assert!(error.contains("no right to this name"), "{error}");
}

/// Members that refuse for good are not waited for, and their reason is told.
#[tokio::test(start_paused = true)]
async fn what_members_refuse_fails_at_once_with_their_reason() {
    let world = World::founded(3).await;
    let client = world.client().await;
    let guard = client.keeper.mutex("held").lock().await.expect("granted");
    world.moods[..2].iter().for_each(|moods| moods.set("stock", Some(Mood::Refuses)));
    let begun = Instant::now();
    let error = client.keeper.mutex("stock").lock().await.map(drop).expect_err("refused").to_string();
    assert!(error.contains("no right to this name") && begun.elapsed() < millis(100), "{error}");
    let error = client.keeper.mutex("stock").try_lock().await.map(drop).expect_err("refused").to_string();
    assert!(error.contains("no right to this name") && begun.elapsed() < millis(100), "{error}");
    for kind in [StoreErrorKind::Denied, StoreErrorKind::Config] {
        world.moods[1..].iter().for_each(|moods| moods.deny(Some(kind)));
        let begun = Instant::now();
        let error = client.keeper.mutex("other").lock().await.map(drop).expect_err("refused").to_string();
        assert!(error.contains("the password is wrong") && begun.elapsed() < millis(100), "{error}");
    }
    let error = guard.release().await.expect_err("too few were told").to_string();
    assert!(error.contains("the password is wrong") && begun.elapsed() < millis(100), "{error}");
    world.moods.iter().for_each(|moods| moods.deny(None));
    world.moods.iter().for_each(|moods| moods.set("stock", None));
    sleep(secs(5)).await;
    for name in ["stock", "other", "held"] {
        let tried = client.keeper.mutex(name).try_lock().await.expect("answered");
        assert!(tried.is_some(), "{name} is free");
    }
}

/// A free lock costs one command at each member, and so does its release.
#[tokio::test(start_paused = true)]
async fn a_free_lock_costs_one_command_per_member() {
    let world = World::founded(3).await;
    let client = world.client().await;
    for nth in 1..=20 {
        let guard = client.keeper.mutex("stock").lock().await.expect("granted");
        guard.release().await.expect("released");
        let groups: Vec<u64> = world.moods.iter().map(|moods| moods.groups()).collect();
        assert_eq!(groups, [2 * nth; 3]);
    }
}

/// A connection comes back, and hundreds of contenders ask again: no member gets more at once than it takes.
#[tokio::test(start_paused = true)]
async fn groups_are_not_larger_than_members_take_them() {
    let world = World::founded(3).await;
    let ours = networks(3);
    let (holder, store) = (world.client().await, world.store(&ours).await);
    let mut guards = Vec::new();
    let limit = store.capability().group_limit;
    for nth in 0..3 * limit {
        let name = format!("stock/{nth}");
        guards.push(holder.keeper.mutex(&name).lock().await.expect("granted"));
        store.apply(&[Request::Claim(claim(&name))]).await.expect("in the queue");
    }
    ours.iter().for_each(Network::restore);
    sleep(millis(100)).await;
    let largest: Vec<usize> = world.moods.iter().map(|moods| moods.largest()).collect();
    assert!(largest.iter().all(|largest| (1..=limit).contains(largest)), "{largest:?}");
    assert!(largest.contains(&limit), "{largest:?}: all ask at once");
}

/// A contender that waited left the members that had granted. These answers say nothing about its release.
#[tokio::test(start_paused = true)]
async fn answers_to_earlier_leaves_are_no_release() {
    for blocked in 0..3 {
        let world = World::founded(3).await;
        let (waiter, member) = (world.client().await, world.member_stores().await.swap_remove(blocked));
        // One member is busy. If it is the gate, the other two grant and are left again.
        let first = claim("stock");
        member.apply(&[Request::Claim(first.clone())]).await.expect("granted");
        let mutex = waiter.keeper.mutex("stock");
        let waits = tokio::spawn(async move { mutex.lock().await });
        sleep(secs(1)).await;
        member.apply(&[leave(&first)]).await.expect("left");
        let guard = waits.await.expect("ended").expect("granted");
        waiter.networks.iter().for_each(Network::cut);
        let error = guard.release().await.expect_err("nobody was told");
        assert!(error.to_string().contains("fewer than 2 members"), "{error}");
    }
}

/// A position in a queue lasts longer than the longest lease here, so its leave is sent for longer, too: otherwise
/// those behind it would wait for a contender that is not there any more.
#[tokio::test(start_paused = true)]
async fn a_position_is_left_also_at_a_member_that_was_away_for_longer_than_any_lease() {
    let mut world = World::new(3);
    world.url = world.url.replace("quorum:", "quorum:max_lease=2s,");
    lockkeeper_quorum::found_fresh(&world.url, world.member(&networks(3))).await.expect("founded");
    let (holder, other) = (world.client().await, world.client().await);
    let _guard = holder.keeper.mutex("stock").lease(secs(1)).lock().await.expect("granted");
    let mutex = other.keeper.mutex("stock").lease(secs(1));
    let waiter = tokio::spawn(async move { mutex.lock().await });
    let waiting = async || {
        let mut waiting = 0;
        for member in world.member_stores().await {
            let view = member.inspect(&"stock".parse().expect("a name")).await.expect("answered");
            waiting += view.map_or(0, |view| view.waiters.len());
        }
        waiting
    };
    while waiting().await == 0 {
        sleep(millis(1)).await;
    }
    other.networks.iter().for_each(Network::cut);
    waiter.abort();
    sleep(secs(4)).await;
    assert_eq!(waiting().await, 1, "its position is still there");
    other.networks.iter().for_each(Network::restore);
    sleep(secs(3)).await;
    assert_eq!(waiting().await, 0, "and it has left");
}
