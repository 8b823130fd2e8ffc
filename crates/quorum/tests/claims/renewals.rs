//! Renewals that travel together.

use lockkeeper_core::{
    Capacity, Units,
    store::{Claim, Renewed, Request},
};
use tokio::time::{Instant, sleep};

use super::{claim, numbers::renewal, returning::gate_of};
use crate::world::{Mood, World, millis, networks, secs};

/// A reader's hold at a majority and no more cannot be confirmed while one of its members stands still. Others of its
/// group are told that they are renewed before their leases end.
#[tokio::test(start_paused = true)]
async fn i3_a_hold_that_cannot_be_confirmed_costs_no_other_hold_its_lease() {
    let world = World::founded(5).await;
    let networks = networks(5);
    let store = world.store(&networks).await;
    let lease = secs(1);
    let shared = Claim { units: Units::ONE, capacity: Capacity::All, lease, ..claim("shared") };
    let stock = Claim { lease, ..claim("stock") };
    world.moods[3..].iter().for_each(|moods| moods.set("shared", Some(Mood::Refuses)));
    store.apply(&[shared.clone(), stock.clone()].map(Request::Claim)).await.expect("granted");
    networks[2].delay(secs(60));
    let asked = Instant::now();
    let renewed = store
        .renew(&[renewal(&shared, false), renewal(&stock, false)])
        .await
        .expect("one was confirmed")
        .each;
    assert!(matches!(&renewed[..], [Renewed::Unknown, Renewed::Held(_)]), "{renewed:?}");
    // A third of the lease passes before a renewal is sent.
    assert!(asked.elapsed() < lease * 2 / 3 - millis(50), "{:?}", asked.elapsed());
}

/// A member refuses one name. It is not asked to renew what it never had, and it goes on with everything else.
#[tokio::test(start_paused = true)]
async fn a_name_that_one_member_refuses_is_not_renewed_there() {
    let world = World::founded(3).await;
    let (client, gate) = (world.client().await, gate_of(&world, "ours").await);
    let (denies, dies) = ((gate + 1) % 3, (gate + 2) % 3);
    world.moods[denies].set("theirs", Some(Mood::Refuses));
    let mutex = |name: &str| client.keeper.mutex(name).lease(secs(3));
    let (ours, theirs) = (mutex("ours"), mutex("theirs"));
    let (ours, theirs) = tokio::join!(ours.lock(), theirs.lock());
    let (ours, theirs) = (ours.expect("granted"), theirs.expect("two are enough"));
    sleep(secs(10)).await;
    assert!(ours.is_held() && theirs.is_held());
    let renewals = |name: &str| -> Vec<usize> { world.moods.iter().map(|it| it.renewals_of(name)).collect() };
    assert_eq!(renewals("theirs")[denies], 0);
    assert!(renewals("theirs")[dies] >= 5 && renewals("ours").iter().all(|count| *count >= 5));
    world.moods[dies].go_down(true);
    sleep(secs(5)).await;
    assert!(ours.is_held(), "two members serve it");
    assert!(!theirs.is_held(), "one does");
    world.moods[dies].go_down(false);
    // The member serves the name again, and whoever holds from now on is renewed there.
    world.moods[denies].set("theirs", None);
    drop(theirs);
    let guard = mutex("theirs").lock().await.expect("granted");
    drop(guard.release().await);
    let guard = mutex("theirs").lock().await.expect("granted");
    sleep(secs(4)).await;
    assert!(guard.is_held() && renewals("theirs")[denies] >= 2);
}
