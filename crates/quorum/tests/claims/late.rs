//! Leaves, claims and answers that are late or lost, while contenders turn from gate to gate.

use lockkeeper_core::{
    StoreErrorKind,
    clock::BootTime,
    store::{Answer, Claim, Request, Verdict},
    testing::Fate,
};
use lockkeeper_quorum::{Attempt, Majority, Said, Sharing};
use tokio::time::{Instant, sleep, timeout};

use super::{claim, leave, returning::gate_of};
use crate::world::{World, millis, networks, secs};

/// The answer to a second leave says nothing about the first one, which may still arrive.
#[test]
fn an_id_is_not_used_again_where_a_leave_may_arrive() {
    let now = BootTime(1_000_000_000_000);
    let mut waiter = Attempt::new(Majority::of(3).expect("odd"), Sharing::Exclusive, 0);
    for ask in waiter.begin(1) {
        waiter.hear(ask.member, ask.stamp, now, &Said::Busy { in_queue: ask.member == 0 });
    }
    let first = waiter.change_gate(1);
    for ask in waiter.next(now) {
        waiter.hear(ask.member, ask.stamp, now, &Said::Busy { in_queue: true });
    }
    for ask in waiter.change_gate(0) {
        waiter.hear(ask.member, ask.stamp, now, &Said::Left);
    }
    waiter.silent(0, first[0].stamp);
    assert!(waiter.is_spent(0, now));
    for ask in waiter.change_gate(2) {
        waiter.hear(ask.member, ask.stamp, now, &Said::Left);
    }
    assert!(!waiter.is_usable(0, now));
}

fn is_granted(answers: &[Answer]) -> bool {
    matches!(answers, [Answer::Claim(Verdict::Granted(_))])
}

/// A waiter turns from the gate to another one, back, and away again, while its first leave is under way. When that
/// leave arrives, it ends the waiter's hold there.
#[tokio::test(start_paused = true)]
async fn a_leave_that_arrives_late_makes_no_second_holder() {
    let world = World::founded(3).await;
    let gate = gate_of(&world, "stock").await;
    let (second, third) = ((gate + 1) % 3, (gate + 2) % 3);
    let (ours, theirs) = (networks(3), networks(3));
    let holder = world.store(&networks(3)).await;
    let (waiter, other) = (world.store(&ours).await, world.store(&theirs).await);
    let [held, waits, wants] = [claim("stock"), claim("stock"), claim("stock")];
    assert!(is_granted(&holder.apply(&[Request::Claim(held.clone())]).await.expect("answered").each));
    let poll = async || {
        let told = waiter.apply(&[Request::Claim(waits.clone())]).await;
        told.is_ok_and(|told| is_granted(&told.each))
    };
    let lose = |name: &str, member: usize| {
        ours[member].next(Fate::LOST_REQUEST);
        let (store, lost) = (waiter.clone(), Request::Claim(Claim { queue: false, ..claim(name) }));
        tokio::spawn(async move { drop(store.apply(&[lost]).await) })
    };
    let begun = Instant::now();
    assert!(!poll().await);
    sleep(millis(100)).await;
    let lost = lose("first", gate);
    // It is asked whether it is there, and answers; the leave after that is late.
    ours[gate].next(Fate::GOOD);
    ours[gate].next(Fate::late(secs(12)));
    sleep(millis(600)).await;
    let lost_too = lose("second", second);
    sleep(millis(600)).await;
    poll().await;
    sleep(secs(2)).await;
    poll().await;
    sleep(millis(100)).await;
    ours[third].cut();
    holder.apply(&[leave(&held)]).await.expect("left");
    drop((lost.await, lost_too.await));
    // It may be served with this id, or is to come back with another one. Nobody else holds beside it.
    for _ in 0..10 {
        poll().await;
        sleep(millis(300)).await;
    }
    theirs[second].cut();
    while begun.elapsed() < secs(20) {
        let told = other.apply(&[Request::Claim(wants.clone())]).await;
        let others = told.is_ok_and(|told| is_granted(&told.each));
        assert!(!(poll().await && others), "two hold after {:?}", begun.elapsed());
        sleep(millis(200)).await;
    }
}

/// A contender waits in the queue of its gate. Another member has granted to it, and that answer was lost. The
/// contender before it in the queue needs that member.
#[tokio::test(start_paused = true)]
async fn a_claim_whose_answer_was_lost_is_left_while_its_contender_waits() {
    let world = World::founded(3).await;
    let gate = gate_of(&world, "stock").await;
    let (second, third) = ((gate + 1) % 3, (gate + 2) % 3);
    let [holder, next, last] = [world.client().await, world.client().await, world.client().await];
    holder.networks[third].cut();
    let guard = holder.keeper.mutex("stock").lock().await.expect("granted");
    let mutex = next.keeper.mutex("stock");
    let next = tokio::spawn(async move { mutex.lock().await });
    sleep(millis(50)).await;
    last.networks[third].next(Fate::LOST_REPLY);
    let mutex = last.keeper.mutex("stock");
    let _last = tokio::spawn(async move { mutex.lock().await });
    sleep(secs(3)).await;
    world.moods[second].deny(Some(StoreErrorKind::Unreachable));
    let begun = Instant::now();
    drop(guard.release().await);
    let served = timeout(secs(5), next).await.expect("served in time").expect("ended");
    drop(served.expect("granted"));
    assert!(begun.elapsed() < secs(5), "{:?}", begun.elapsed());
}

/// A server that waits for a lost standby answers requests that need no write.
#[tokio::test(start_paused = true)]
async fn a_member_that_can_only_read_delays_two_locks_at_most() {
    let world = World::founded(3).await;
    let client = world.client().await;
    client.keeper.mutex("stock").lock().await.expect("granted").release().await.expect("released");
    world.moods[0].hang(true);
    let mut late = Vec::new();
    for nth in 0..10 {
        let begun = Instant::now();
        let guard = client.keeper.mutex(&format!("stock/{nth}")).lock().await.expect("granted");
        guard.release().await.expect("released");
        late.extend(Some(begun.elapsed()).filter(|taken| *taken > millis(50)));
        sleep(millis(200)).await;
    }
    // Once until it is suspected, and once more until it is known to answer empty requests only.
    assert!(late.len() <= 2, "{late:?}");
    world.moods[0].hang(false);
    sleep(secs(5)).await;
    let begun = Instant::now();
    client.keeper.mutex("stock").lock().await.expect("granted").release().await.expect("released");
    assert!(begun.elapsed() <= millis(50), "{:?}", begun.elapsed());
}

/// Too few members are left for a majority as soon as the second one has answered.
#[tokio::test(start_paused = true)]
async fn a_release_is_answered_as_soon_as_it_is_decided() {
    let world = World::founded(3).await;
    let client = world.client().await;
    let gate = gate_of(&world, "stock").await;
    let guard = client.keeper.mutex("stock").lock().await.expect("granted");
    sleep(millis(10)).await;
    client.networks[(gate + 1) % 3].next(Fate::late(millis(700)));
    client.networks[(gate + 2) % 3].next(Fate::late(millis(1900)));
    let begun = Instant::now();
    guard.release().await.expect("released");
    assert!(begun.elapsed() <= millis(710), "{:?}", begun.elapsed());
}

/// A request of another name was lost, and the gate answers everything else. The waiter does not ask meanwhile.
#[tokio::test(start_paused = true)]
async fn one_lost_request_costs_no_waiter_its_position() {
    for phase in 0..12 {
        let world = World::founded(3).await;
        let gate = gate_of(&world, "stock").await;
        let ours = networks(3);
        let (holder, waiter) = (world.client().await, world.store(&ours).await);
        let _guard = holder.keeper.mutex("stock").lock().await.expect("granted");
        waiter.apply(&[Request::Claim(claim("stock"))]).await.expect("in the queue");
        sleep(millis(100 + phase * 200)).await;
        let member = world.member_stores().await.swap_remove(gate);
        let name = "stock".parse().expect("a name");
        let waiting =
            async || member.inspect(&name).await.expect("answered").map_or(0, |it| it.waiters.len());
        assert_eq!(waiting().await, 1);
        ours[gate].next(Fate::LOST_REQUEST);
        let other = waiter.clone();
        tokio::spawn(async move { drop(other.apply(&[Request::Claim(claim("other"))]).await) });
        for _ in 0..30 {
            sleep(millis(100)).await;
            assert_eq!(waiting().await, 1, "phase {phase}");
        }
    }
}
