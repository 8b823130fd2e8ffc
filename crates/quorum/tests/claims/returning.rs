//! Members that answer late, are gone when a lock is released, or come back.

use lockkeeper_core::{StoreErrorKind, store::Request, testing::Fate};
use tokio::time::{Instant, sleep, timeout};

use super::{claim, leave};
use crate::world::{World, millis, secs};

/// The members that answer last are asked to leave when they have answered, so that the leave needs no tombstone. A
/// member that takes too long is asked before, with a tombstone.
#[tokio::test(start_paused = true)]
async fn a_leave_waits_briefly_for_the_answer_to_its_claim() {
    for (slow, tombstones) in [(millis(20), 0), (millis(400), 2)] {
        let world = World::founded(5).await;
        let client = world.client().await;
        // The gate is not among them: a lock is not granted without it.
        let gate = gate_of(&world, "stock").await;
        let late: Vec<usize> = (0..5).filter(|member| *member != gate).take(2).collect();
        for member in &late {
            client.networks[*member].next(Fate { after: slow, ..Fate::GOOD });
        }
        let begun = Instant::now();
        let guard = client.keeper.mutex("stock").lock().await.expect("granted");
        assert_eq!(begun.elapsed(), millis(0), "three members are enough");
        guard.release().await.expect("released");
        assert_eq!(begun.elapsed(), millis(0), "three members are enough, and the gate is among them");
        assert_eq!(client.keeper.inspect("stock").await.expect("answered"), None, "nobody holds or waits");
        sleep(secs(1)).await;
        let sent: u64 = world.moods.iter().map(|moods| moods.tombstones()).sum();
        assert_eq!(sent, tombstones, "answers after {slow:?}");
        assert!(client.keeper.mutex("stock").try_lock().await.expect("answered").is_some());
    }
}

/// The member whose hold keeps everybody else from this name.
pub(super) async fn gate_of(world: &World, name: &str) -> usize {
    let client = world.client().await;
    for (member, store) in world.member_stores().await.into_iter().enumerate() {
        let other = claim(name);
        store.apply(&[Request::Claim(other.clone())]).await.expect("granted");
        let tried = client.keeper.mutex(name).try_lock().await.expect("answered");
        store.apply(&[leave(&other)]).await.expect("left");
        match tried {
            Some(guard) => drop(guard.release().await),
            None => return member,
        }
    }
    unreachable!("one of them is the gate")
}

/// A claim that goes on to the same name while a leave is held back stays behind it.
#[tokio::test(start_paused = true)]
async fn a_lock_that_is_taken_again_at_once_stays_behind_its_own_leave() {
    let world = World::founded(5).await;
    let client = world.client().await;
    for round in 0..20 {
        for network in &client.networks[..2] {
            network.next(Fate { after: millis(5), ..Fate::GOOD });
        }
        let begun = Instant::now();
        // Dropped, so its leave travels beside the next claim.
        drop(client.keeper.mutex("stock").lock().await.expect("granted"));
        let guard = client.keeper.mutex("stock").lock().await.expect("granted");
        assert!(begun.elapsed() <= millis(30), "round {round}: {:?}", begun.elapsed());
        guard.release().await.expect("released");
    }
    sleep(secs(1)).await;
    assert!(client.keeper.inspect("stock").await.expect("answered").is_none());
    assert_eq!(world.moods.iter().map(|moods| moods.tombstones()).sum::<u64>(), 0);
}

/// Three of five have granted, and one of these is gone when the lock is released. A contender that has it at one
/// member at most does not hold it.
#[tokio::test(start_paused = true)]
async fn a_release_does_not_wait_for_a_member_that_is_gone() {
    for gone in 0..3 {
        let world = World::founded(5).await;
        let client = world.client().await;
        // Nothing reaches the other two, which is known at once.
        world.moods[3..].iter().for_each(|moods| moods.deny(Some(StoreErrorKind::Unreachable)));
        let guard = client.keeper.mutex("stock").lock().await.expect("granted");
        client.networks[gone].cut();
        let begun = Instant::now();
        guard.release().await.expect("released");
        assert!(begun.elapsed() <= millis(500), "member {gone}: {:?}", begun.elapsed());
    }
}

/// Nothing reached a member while contenders left it. As soon as it is back, it gets the leaves that it missed.
#[tokio::test(start_paused = true)]
async fn a_member_that_is_back_gets_the_leaves_that_it_missed_at_once() {
    for gone in 0..3 {
        let world = World::founded(3).await;
        let (client, member) = (world.client().await, world.member_stores().await.swap_remove(gone));
        let guard = client.keeper.mutex("stock").lock().await.expect("granted");
        world.moods[gone].deny(Some(StoreErrorKind::Unreachable));
        guard.release().await.expect("released");
        let name = "stock".parse().expect("a name");
        // Pauses between copies of the leave have become long.
        sleep(secs(9)).await;
        assert!(member.inspect(&name).await.expect("answered").is_some(), "it still has the lock");
        world.moods[gone].deny(None);
        let freed = async {
            while member.inspect(&name).await.expect("answered").is_some() {
                sleep(millis(1)).await;
            }
        };
        let begun = Instant::now();
        timeout(secs(5), freed).await.expect("it has left");
        assert!(begun.elapsed() <= millis(60), "member {gone}: {:?}", begun.elapsed());
    }
}

/// The gate is busy and the others have granted, so a try leaves them again.
#[tokio::test(start_paused = true)]
async fn a_try_that_only_the_gate_refuses_is_over_at_once() {
    let world = World::founded(3).await;
    let gate = gate_of(&world, "stock").await;
    let (client, member) = (world.client().await, world.member_stores().await.swap_remove(gate));
    let other = claim("stock");
    member.apply(&[Request::Claim(other.clone())]).await.expect("granted");
    for _ in 0..5 {
        let begun = Instant::now();
        assert!(client.keeper.mutex("stock").try_lock().await.expect("answered").is_none());
        assert!(begun.elapsed() <= millis(10), "{:?}", begun.elapsed());
    }
    member.apply(&[leave(&other)]).await.expect("left");
    assert!(client.keeper.mutex("stock").try_lock().await.expect("answered").is_some());
}
