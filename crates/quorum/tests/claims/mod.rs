//! How soon claims are answered, and what they are told, while members are slow, silent or in trouble.

use lockkeeper_core::testing::Fate;
use tokio::time::{Instant, sleep};

use crate::world::{World, millis};

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
