//! Counts how many entries of its lists the engine and the owners of locks look at, for tests: they judge the work that a crowd makes, and must
//! not judge it by the time taken.

/// An entry of a list that the engine keeps was looked at.
#[cfg(not(test))]
pub(crate) fn look() {}

#[cfg(test)]
pub(crate) use counted::look;

#[cfg(test)]
mod counted {
    use std::cell::Cell;

    thread_local! {
        static LOOKS: Cell<usize> = const { Cell::new(0) };
    }

    pub(crate) fn look() {
        LOOKS.set(LOOKS.get() + 1);
    }

    /// How many looks this thread has made so far.
    pub(super) fn so_far() -> usize {
        LOOKS.get()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::sleep;

    use super::counted::so_far;
    use crate::{
        keeper::Keeper,
        lock::Mutex,
        name::Name,
        store::{Connector, Context, Topic, Wake, WakeSink},
        testing::Virtual,
    };

    const CROWD: usize = 2000;

    /// Each of a crowd may look at so many entries on its way in and out.
    const LOOKS_EACH: usize = 10;

    /// How many looks it takes that a crowd waits and gives up.
    async fn gives_up(mutex: impl Fn(usize) -> Mutex) -> usize {
        let before = so_far();
        let tasks: Vec<_> = (0..CROWD)
            .map(|place| {
                let mutex = mutex(place);
                tokio::spawn(async move {
                    let limit = Duration::from_millis(200 + place as u64 % 500);
                    mutex.lock_within(limit).await.expect_err("held");
                })
            })
            .collect();
        for task in tasks {
            task.await.expect("no panic");
        }
        sleep(Duration::from_secs(5)).await;
        so_far() - before
    }

    #[tokio::test(start_paused = true)]
    async fn a_crowd_that_gives_up_looks_at_each_entry_a_few_times() {
        let world = Virtual::new();
        let (ours, theirs) = (world.keeper().await, world.keeper().await);
        let _held = theirs.mutex("name").lock().await.expect("free");
        let behind_one = gives_up(|_| ours.mutex("name")).await;
        assert!(behind_one < CROWD * LOOKS_EACH, "{behind_one} looks behind one entry at the store");
        let in_queue = gives_up(|_| ours.mutex("name").fifo()).await;
        assert!(in_queue < CROWD * LOOKS_EACH, "{in_queue} looks in the store's queue");
    }

    #[tokio::test(start_paused = true)]
    async fn an_owner_of_many_names_looks_at_each_a_few_times() {
        let keeper = Virtual::new().keeper().await;
        let (owner, before) = (keeper.owner(), so_far());
        let mut guards = Vec::new();
        for number in 0..CROWD {
            let mutex = keeper.mutex(&format!("name/{number}"));
            guards.push(mutex.lock_as(&owner).await.expect("free"));
        }
        let looks = so_far() - before;
        assert!(looks < CROWD * LOOKS_EACH, "{looks} looks at {CROWD} names");
    }

    /// A keeper and the sink that its store tells it by.
    async fn keeper_with_sink(world: &Virtual) -> (Keeper, WakeSink) {
        let (sender, mut sink) = tokio::sync::mpsc::channel(1);
        let store = world.server.connector("memory:");
        let store = Connector::new(move |context: Context| {
            sender.try_send(context.wakes.clone()).expect("room for one");
            store.connect(context)
        });
        let keeper = Keeper::builder(store).virtual_time(world.clock.clock()).connect().await;
        (keeper.expect("memory"), sink.recv().await.expect("connected"))
    }

    #[tokio::test(start_paused = true)]
    async fn a_hint_looks_only_at_those_whom_it_is_for() {
        let world = Virtual::new();
        let (ours, sink) = keeper_with_sink(&world).await;
        let theirs = world.keeper().await;
        let mut held = Vec::new();
        for place in 0..CROWD {
            held.push(theirs.mutex(&format!("name/{place}")).lock().await.expect("free"));
        }
        let waiting: Vec<_> = (0..CROWD)
            .map(|place| {
                let mutex = ours.mutex(&format!("name/{place}"));
                tokio::spawn(async move { mutex.lock().await })
            })
            .collect();
        sleep(Duration::from_millis(10)).await;
        assert_eq!(ours.stats().waiting, CROWD);
        let before = so_far();
        let topic = |name| Topic::Grants(Name::new(name).expect("a good name"));
        sink.wake(Wake::Changed(topic("name/7")));
        sink.wake(Wake::Changed(topic("nobody waits for this")));
        let looks = so_far() - before;
        assert!(looks <= 3, "{looks} of {CROWD} were looked at");
        ours.close().await;
        drop(waiting);
    }
}
