//! Waiters that turn from gate to gate or give way, so that they keep nobody from members that they cannot use
//! themselves.

use std::sync::Arc;

use lockkeeper_core::{
    store::{Claim, Request, Store},
    testing::Fate,
};
use tokio::time::{Instant, sleep, timeout};

use super::{claim, leave, returning::gate_of};
use crate::world::{Client, Mood, World, millis, secs};

/// Ten tasks wait in the queue of the second gate, because the first one is gone. When it is back, another client
/// claims there, and the members that are left are just a majority: the first waiter at one gate keeps the others from
/// it.
#[tokio::test(start_paused = true)]
async fn waiters_turn_back_to_a_gate_that_answers_again() {
    let world = World::founded(5).await;
    let gate = gate_of(&world, "stock").await;
    let down = |nth: usize, is_down| world.moods[(gate + nth) % 5].go_down(is_down);
    let (holder, waiting, late) = (world.client().await, world.client().await, world.client().await);
    down(0, true);
    down(4, true);
    let held = holder.keeper.mutex("stock").lock().await.expect("granted");
    let mut sections = tokio::task::JoinSet::new();
    for _ in 0..10 {
        let mutex = waiting.keeper.mutex("stock").fifo();
        sections.spawn(async move { mutex.lock().await.expect("granted").release().await });
    }
    sleep(secs(1)).await;
    down(0, false);
    down(3, true);
    sleep(millis(300)).await;
    let mutex = late.keeper.mutex("stock");
    sections.spawn(async move { mutex.lock().await.expect("granted").release().await });
    sleep(millis(300)).await;
    let begun = Instant::now();
    held.release().await.expect("released");
    let all = timeout(secs(60), sections.join_all()).await.expect("in time");
    assert!(all.iter().all(Result::is_ok));
    assert!(begun.elapsed() <= millis(500), "{:?}: one after the other gave way", begun.elapsed());
}

/// The first gate is gone, a contender is granted by the second one, and others have members that it needs. The engine
/// asks about it every second or two, and meanwhile nobody else gets that gate.
#[tokio::test(start_paused = true)]
async fn a_contender_gives_way_in_time_although_the_engine_does_not_ask() {
    for _ in 0..5 {
        let world = World::founded(5).await;
        let gate = gate_of(&world, "stock").await;
        let member = |nth: usize| (gate + nth) % 5;
        let stores = world.member_stores().await;
        let others: Vec<_> = (0..5).map(|_| claim("stock")).collect();
        for nth in 1..4 {
            let claimed = stores[member(nth)].apply(&[Request::Claim(others[nth].clone())]).await;
            claimed.expect("granted");
        }
        let client = world.client().await;
        world.moods[gate].go_down(true);
        let mutex = client.keeper.mutex("stock");
        let waiter = tokio::spawn(async move { mutex.lock().await });
        sleep(secs(3)).await;
        stores[member(1)].apply(&[leave(&others[1])]).await.expect("left");
        let holder = async || {
            let view = stores[member(1)].inspect(&"stock".parse().expect("a name")).await.expect("answered");
            view.and_then(|view| view.holders.first().map(|holder| holder.contender))
        };
        let first = holder().await;
        assert!(first.is_some(), "it has waited there");
        let begun = Instant::now();
        while holder().await == first {
            sleep(millis(10)).await;
        }
        assert!(begun.elapsed() <= millis(1100), "{:?}", begun.elapsed());
        waiter.abort();
    }
}

/// A claim at a member that does not answer would only use up the id there.
#[tokio::test(start_paused = true)]
async fn a_waiter_does_not_claim_at_a_member_that_is_suspected() {
    let world = World::founded(5).await;
    let gate = gate_of(&world, "stock").await;
    let (client, silent) = (world.client().await, &world.moods[(gate + 3) % 5]);
    silent.go_down(true);
    client.keeper.mutex("stock").lock().await.expect("granted").release().await.expect("released");
    let (other, at_gate) = (claim("stock"), world.member_stores().await.swap_remove(gate));
    at_gate.apply(&[Request::Claim(other.clone())]).await.expect("granted");
    sleep(secs(4)).await;
    let before = silent.groups();
    let mutex = client.keeper.mutex("stock");
    let waiter = tokio::spawn(async move { mutex.lock().await });
    sleep(secs(4)).await;
    assert_eq!(silent.groups(), before, "neither a claim nor a leave");
    at_gate.apply(&[leave(&other)]).await.expect("left");
    drop(waiter.await.expect("ended").expect("granted"));
}

/// A contender waits in a queue, and its id is used up at a member that the others cannot replace. It comes back with
/// another id before it is its turn.
#[tokio::test(start_paused = true)]
async fn a_waiter_whose_id_is_used_up_does_not_wait_for_its_turn_in_vain() {
    let world = World::founded(5).await;
    let gate = gate_of(&world, "stock").await;
    let member = |nth: usize| (gate + nth) % 5;
    let (client, at_gate) = (world.client().await, world.member_stores().await.swap_remove(gate));
    let other = claim("stock");
    at_gate.apply(&[Request::Claim(other.clone())]).await.expect("granted");
    // Its claim and its leave are lost.
    client.networks[member(3)].cut();
    let mutex = client.keeper.mutex("stock");
    let waiter = tokio::spawn(async move { mutex.lock().await });
    sleep(secs(4)).await;
    client.networks[member(3)].restore();
    sleep(secs(4)).await;
    for nth in [2, 4] {
        world.moods[member(nth)].go_down(true);
    }
    // A claim at all members notices.
    client.keeper.mutex("other").lock().await.expect("granted").release().await.expect("released");
    sleep(secs(6)).await;
    assert!(!waiter.is_finished());
    let begun = Instant::now();
    at_gate.apply(&[leave(&other)]).await.expect("left");
    drop(waiter.await.expect("ended").expect("granted"));
    assert!(begun.elapsed() <= millis(20), "{:?}", begun.elapsed());
}

/// A leave that overtook its claim has left a tombstone at the gate. The waiter that turns back there comes with
/// another id.
#[tokio::test(start_paused = true)]
async fn a_waiter_that_meets_its_tombstone_comes_back_with_another_id() {
    let world = World::founded(5).await;
    let gate = gate_of(&world, "stock").await;
    let (client, at_gate) = (world.client().await, world.member_stores().await.swap_remove(gate));
    let other = claim("stock");
    at_gate.apply(&[Request::Claim(other.clone())]).await.expect("granted");
    let mutex = client.keeper.mutex("stock");
    let waiter = tokio::spawn(async move { mutex.lock().await });
    sleep(millis(100)).await;
    // When it asks again, in two seconds and a half at most, and when the member is asked whether it answers.
    client.networks[gate].next(Fate::late(millis(1500)));
    client.networks[gate].next(Fate::late(millis(1500)));
    sleep(millis(4500)).await;
    assert!(!waiter.is_finished());
    let begun = Instant::now();
    at_gate.apply(&[leave(&other)]).await.expect("left");
    drop(waiter.await.expect("ended").expect("granted"));
    assert!(begun.elapsed() <= millis(100), "{:?}", begun.elapsed());
}

/// Tasks of two clients get the lock one after the other, though a member serves none of them.
async fn served_in_turn(world: &World) {
    let (first, second) = (world.client().await, world.client().await);
    let begun = Instant::now();
    let mut sections = tokio::task::JoinSet::new();
    for client in [&first, &second] {
        for _ in 0..4 {
            let mutex = client.keeper.mutex("stock");
            sections.spawn(async move {
                let guard = mutex.lock().await.expect("granted");
                sleep(millis(10)).await;
                guard.release().await.expect("released");
            });
        }
    }
    timeout(secs(60), sections.join_all()).await.expect("nobody waits for ever");
    assert!(begun.elapsed() <= secs(2), "{:?}", begun.elapsed());
    // From now on nobody loses time there.
    for client in [&first, &second] {
        let begun = Instant::now();
        let tried = client.keeper.mutex("stock").try_lock().await.expect("answered").expect("granted");
        tried.release().await.expect("released");
        assert!(begun.elapsed() <= millis(20), "{:?}", begun.elapsed());
    }
}

/// The user has no right to this name at the first gate, and has it at all others.
#[tokio::test(start_paused = true)]
async fn a_gate_that_refuses_a_name_does_not_starve_it() {
    let world = World::founded(5).await;
    let gate = gate_of(&world, "stock").await;
    world.moods[gate].set("stock", Some(Mood::Refuses));
    served_in_turn(&world).await;
    // It is the gate again once it serves the name, as it does where no other member can be.
    world.moods[gate].set("stock", None);
    served_in_turn(&world).await;
}

/// The moods of a member that serves nobody for now, though it answers.
const FOR_NOW: [Mood; 2] = [Mood::NotNow, Mood::Fails];

/// Whether others get this name while its gate is held.
async fn does_without(client: &Client, at_gate: &Arc<dyn Store>) -> bool {
    let other = claim("stock");
    at_gate.apply(&[Request::Claim(other.clone())]).await.expect("granted");
    let tried = client.keeper.mutex("stock").try_lock().await.expect("answered");
    at_gate.apply(&[leave(&other)]).await.expect("left");
    tried.is_some()
}

/// Somebody has locked the row of this name at the first gate, or that one waits for a replica that is away.
#[tokio::test(start_paused = true)]
async fn a_gate_that_serves_a_name_later_does_not_starve_it() {
    for (mood, members) in FOR_NOW.into_iter().flat_map(|mood| [(mood, 3), (mood, 5)]) {
        let world = World::founded(members).await;
        let gate = gate_of(&world, "stock").await;
        world.moods[gate].set("stock", Some(mood));
        served_in_turn(&world).await;
        world.moods[gate].set("stock", None);
        served_in_turn(&world).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_gate_that_serves_a_name_again_is_its_gate_again() {
    for mood in FOR_NOW {
        let world = World::founded(3).await;
        let gate = gate_of(&world, "stock").await;
        let (client, at_gate) = (world.client().await, world.member_stores().await.swap_remove(gate));
        world.moods[gate].set("stock", Some(mood));
        let tried = client.keeper.mutex("stock").try_lock().await.expect("answered");
        tried.expect("two members have granted").release().await.expect("released");
        world.moods[gate].set("stock", None);
        assert!(does_without(&client, &at_gate).await, "{mood:?}: its first answer is yet to come");
        sleep(secs(3)).await;
        assert!(!does_without(&client, &at_gate).await, "{mood:?}");
    }
}

/// The waiter hears of two members that somebody else holds, and nothing of the gate.
#[tokio::test(start_paused = true)]
async fn a_waiter_does_not_sleep_at_a_gate_that_serves_its_name_later() {
    for mood in FOR_NOW {
        let world = World::founded(3).await;
        let gate = gate_of(&world, "stock").await;
        let (client, stores) = (world.client().await, world.member_stores().await);
        let others = [1, 2].map(|nth| (&stores[(gate + nth) % 3], claim("stock")));
        for (store, other) in &others {
            store.apply(&[Request::Claim(other.clone())]).await.expect("granted");
        }
        world.moods[gate].set("stock", Some(mood));
        let mutex = client.keeper.mutex("stock");
        let waiter = tokio::spawn(async move { mutex.lock().await });
        sleep(secs(5)).await;
        for (store, other) in &others {
            store.apply(&[leave(other)]).await.expect("left");
        }
        let granted = timeout(millis(100), waiter).await.expect("it waits at a gate that serves it");
        drop(granted.expect("ended").expect("granted"));
    }
}

/// The row of its name is locked after the waiter came into the queue.
#[tokio::test(start_paused = true)]
async fn a_waiter_leaves_the_queue_of_a_gate_that_serves_its_name_later() {
    for mood in FOR_NOW {
        let world = World::founded(3).await;
        let gate = gate_of(&world, "stock").await;
        let (client, stores) = (world.client().await, world.member_stores().await);
        let others = [0, 1, 2].map(|nth| (&stores[(gate + nth) % 3], claim("stock")));
        for (store, other) in &others {
            store.apply(&[Request::Claim(other.clone())]).await.expect("granted");
        }
        let mutex = client.keeper.mutex("stock");
        let waiter = tokio::spawn(async move { mutex.lock().await });
        sleep(secs(1)).await;
        world.moods[gate].set("stock", Some(mood));
        for (store, other) in &others[1..] {
            store.apply(&[leave(other)]).await.expect("left");
        }
        let granted = timeout(secs(4), waiter).await.expect("two members are free");
        drop(granted.expect("ended").expect("granted"));
    }
}

/// So many gates serve nobody that the others are no majority, and then the last one of them serves the name.
#[tokio::test(start_paused = true)]
async fn a_waiter_asks_all_gates_that_served_nobody() {
    let worlds = FOR_NOW.into_iter().flat_map(|mood| [(mood, 3, false), (mood, 3, true), (mood, 5, true)]);
    for (mood, members, others_come) in worlds {
        let world = World::founded(members).await;
        let gate = gate_of(&world, "stock").await;
        let (first, second) = (world.client().await, world.client().await);
        let gates: Vec<_> = (0..=members / 2).map(|nth| &world.moods[(gate + nth) % members]).collect();
        gates.iter().for_each(|moods| moods.set("stock", Some(mood)));
        let mut sections = tokio::task::JoinSet::new();
        let mut section = |client: &Client| {
            let mutex = client.keeper.mutex("stock");
            sections.spawn(async move { mutex.lock().await.expect("granted").release().await });
        };
        section(&first);
        sleep(secs(3)).await;
        gates[members / 2].set("stock", None);
        if others_come {
            section(&second);
        }
        let all = timeout(secs(5), sections.join_all()).await;
        let all = all.unwrap_or_else(|_| panic!("{mood:?}: a majority of {members} serves the name"));
        assert!(all.iter().all(Result::is_ok), "{all:?}");
    }
}

/// No wait lasts until the gate has said often enough that it can do nothing.
#[tokio::test(start_paused = true)]
async fn short_waits_learn_together_that_a_gate_serves_nobody() {
    let world = World::founded(3).await;
    let gate = gate_of(&world, "stock").await;
    let client = world.client().await;
    world.moods[gate].set("stock", Some(Mood::NotNow));
    let mutex = client.keeper.mutex("stock");
    for nth in 0..10 {
        if let Ok(guard) = mutex.lock_within(millis(200)).await {
            guard.release().await.expect("released");
            assert!(nth > 0, "one wait is too short");
            return;
        }
    }
    panic!("two members serve the name");
}

/// A row is locked for a moment whenever somebody else uses it.
#[tokio::test(start_paused = true)]
async fn a_gate_that_can_do_nothing_for_a_moment_keeps_its_waiters() {
    let world = World::founded(3).await;
    let gate = gate_of(&world, "stock").await;
    let (client, stores) = (world.client().await, world.member_stores().await);
    for store in &stores {
        store.apply(&[Request::Claim(claim("stock"))]).await.expect("granted");
    }
    world.moods[gate].set("stock", Some(Mood::NotNow));
    let mutex = client.keeper.mutex("stock");
    let waiter = tokio::spawn(async move { mutex.lock().await });
    sleep(millis(200)).await;
    world.moods[gate].set("stock", None);
    sleep(secs(1)).await;
    for (nth, store) in stores.iter().enumerate() {
        let view = store.inspect(&"stock".parse().expect("a name")).await.expect("answered");
        let waiters = view.expect("held").waiters.len();
        assert_eq!(waiters, usize::from(nth == gate), "member {nth}, the gate is {gate}");
    }
    waiter.abort();
}

/// Two members hold the lock, because its gate could do nothing. Then the gate can, and the next renewal brings the
/// hold there, so that another member may fail.
#[tokio::test(start_paused = true)]
async fn a_hold_comes_to_a_gate_that_serves_its_name_again() {
    for mood in FOR_NOW {
        let world = World::founded(3).await;
        let gate = gate_of(&world, "stock").await;
        let (client, at_gate) = (world.client().await, world.member_stores().await.swap_remove(gate));
        world.moods[gate].set("stock", Some(mood));
        let guard = client.keeper.mutex("stock").lock().await.expect("granted by two");
        sleep(secs(60)).await;
        world.moods[gate].set("stock", None);
        sleep(secs(30)).await;
        let view = at_gate.inspect(&"stock".parse().expect("a name")).await.expect("answered");
        assert_eq!(view.map(|view| view.holders.len()), Some(1), "{mood:?}");
        assert!(guard.is_held());
    }
}

/// The holder crashed, its leases are over at all members but the first gate, whose clock went back. That one shows a
/// lease which no client of this quorum asks for.
#[tokio::test(start_paused = true)]
async fn a_gate_whose_clock_went_back_does_not_keep_a_crashed_holder() {
    let world = World::founded(5).await;
    let gate = gate_of(&world, "stock").await;
    let at_gate = world.member_stores().await.swap_remove(gate);
    let dead = Claim { lease: secs(3600), ..claim("stock") };
    at_gate.apply(&[Request::Claim(dead)]).await.expect("granted");
    served_in_turn(&world).await;
}

/// Two members show leases that no client asks for, as after their clocks went back, and the gate that is left dies.
/// Then the waiter turns to a gate that serves nobody, since that one may serve somebody again.
#[tokio::test(start_paused = true)]
async fn a_waiter_leaves_a_dead_gate_also_for_one_that_serves_nobody() {
    let world = World::founded(3).await;
    let gate = gate_of(&world, "stock").await;
    let member = |nth: usize| (gate + nth) % 3;
    let (client, stores) = (world.client().await, world.member_stores().await);
    let long = || Claim { lease: secs(3600), ..claim("stock") };
    let others = [long(), claim("stock"), long()];
    for (nth, other) in others.iter().enumerate() {
        stores[member(nth)].apply(&[Request::Claim(other.clone())]).await.expect("granted");
    }
    let mutex = client.keeper.mutex("stock");
    let waiter = tokio::spawn(async move { mutex.lock().await });
    sleep(secs(3)).await;
    let view = stores[member(1)].inspect(&"stock".parse().expect("a name")).await.expect("answered");
    assert_eq!(view.expect("held").waiters.len(), 1, "it waits at the only gate that is not passed over");
    world.moods[member(1)].go_down(true);
    sleep(secs(3)).await;
    for nth in [0, 2] {
        stores[member(nth)].apply(&[leave(&others[nth])]).await.expect("left");
    }
    let granted = timeout(secs(5), waiter).await.expect("it does not wait at the dead gate");
    drop(granted.expect("ended").expect("granted"));
}

/// A waiter is told only that somebody holds, and its id is used up at the only gate that serves its name.
#[tokio::test(start_paused = true)]
async fn a_waiter_without_a_position_comes_back_with_an_id_that_its_gate_takes() {
    let world = World::founded(3).await;
    let gate = gate_of(&world, "stock").await;
    let member = |nth: usize| (gate + nth) % 3;
    let (client, stores) = (world.client().await, world.member_stores().await);
    let others = [1, 2].map(|nth| (&stores[member(nth)], claim("stock")));
    for (store, other) in &others {
        store.apply(&[Request::Claim(other.clone())]).await.expect("granted");
    }
    world.moods[gate].set("stock", Some(Mood::Refuses));
    let mutex = client.keeper.mutex("stock");
    let waiter = tokio::spawn(async move { mutex.lock().await });
    sleep(secs(1)).await;
    client.networks[member(2)].cut();
    // A claim at all members notices.
    client.keeper.mutex("other").lock().await.expect("granted").release().await.expect("released");
    client.networks[member(1)].cut();
    // It turns to the gate that refuses it, and its leave gets no answer.
    sleep(secs(6)).await;
    for nth in [1, 2] {
        world.moods[member(nth)].go_down(true);
        client.networks[member(nth)].restore();
    }
    sleep(secs(3)).await;
    assert!(!waiter.is_finished());
    // Both are asked every 50 ms, so they are back in the same moment.
    for (nth, (store, other)) in [1, 2].into_iter().zip(&others) {
        store.apply(&[leave(other)]).await.expect("left");
        world.moods[member(nth)].go_down(false);
    }
    let granted = timeout(secs(5), waiter).await.expect("two members are free");
    drop(granted.expect("ended").expect("granted"));
}

/// A waiter stands in the queue of a gate that serves nobody any more. It was granted by the next one, where somebody
/// has locked the row since then, so it cannot leave there.
#[tokio::test(start_paused = true)]
async fn a_waiter_that_cannot_leave_the_next_gate_comes_back_with_an_id_that_others_take() {
    for mood in [Mood::Fails, Mood::Refuses] {
        let world = World::founded(5).await;
        let gate = gate_of(&world, "stock").await;
        let (client, at_gate) = (world.client().await, world.member_stores().await.swap_remove(gate));
        at_gate.apply(&[Request::Claim(claim("stock"))]).await.expect("granted");
        client.networks[gate].next(Fate::late(millis(100)));
        let mutex = client.keeper.mutex("stock");
        let waiter = tokio::spawn(async move { mutex.lock().await });
        sleep(millis(50)).await;
        world.moods[(gate + 1) % 5].set("stock", Some(Mood::NotNow));
        sleep(secs(1)).await;
        let view = at_gate.inspect(&"stock".parse().expect("a name")).await.expect("answered");
        assert_eq!(view.expect("held").waiters.len(), 1, "it waits at its gate");
        world.moods[gate].set("stock", Some(mood));
        let granted = timeout(secs(8), waiter).await;
        let granted = granted.unwrap_or_else(|_| panic!("{mood:?}: three members are free"));
        drop(granted.expect("ended").expect("granted"));
    }
}

/// A member refuses more names than are remembered.
#[tokio::test(start_paused = true)]
async fn however_many_names_a_gate_refuses_none_of_them_starves() {
    let world = World::founded(3).await;
    let client = world.client().await;
    for nth in 0..4200 {
        let name = format!("stock/{nth}");
        world.moods[0].set(&name, Some(Mood::Refuses));
        drop(client.keeper.mutex(&name).try_lock().await);
    }
    for nth in 4190..4200 {
        let lock = async { client.keeper.mutex(&format!("stock/{nth}")).lock().await.map(drop) };
        timeout(secs(5), lock).await.expect("nobody waits for ever").expect("two members serve it");
    }
}
