//! Renewals that travel together.

use lockkeeper_core::{
    Capacity, Units,
    store::{Claim, Renewed, Request},
};
use tokio::time::Instant;

use super::{claim, numbers::renewal};
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
