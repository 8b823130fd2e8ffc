//! Invariant I5: every public future dropped at every poll leaves nothing behind, neither at the
//! store nor in the keeper. Virtual time; a network on which every request takes a while, so that
//! there are polls to be dropped at.

use std::{
    any::Any,
    future::poll_fn,
    pin::pin,
    task::Poll::{Pending, Ready},
    time::Duration,
};

use lockkeeper_core::{Keeper, Lease, Stats, all, store::BoxFuture, store::Eviction, testing::Virtual};
use lockkeeper_testkit::{
    dice::Dice,
    faulty::{Faults, Network, faulty},
};
use tokio::time::sleep;

/// Everything must be gone after this long: sooner than the lease of a waiter (15 s) or a lease (30 s)
/// would end by itself.
const SOON: Duration = Duration::from_secs(13);

/// Longer than any of the futures needs, shorter than any lease.
const A_WHILE: Duration = Duration::from_secs(2);

/// Two processes on one store.
struct Scene {
    ours: Keeper,
    theirs: Keeper,
}

/// A future to be dropped, and a second one that tidies up the holds that the first was not to touch.
struct Action {
    future: BoxFuture<'static, ()>,
    afterwards: BoxFuture<'static, ()>,
}

impl Action {
    fn new<T>(future: impl Future<Output = T> + Send + 'static) -> Self {
        let future = Box::pin(async move { drop(future.await) });
        Self { future, afterwards: Box::pin(async {}) }
    }

    fn then<T>(self, afterwards: impl Future<Output = T> + Send + 'static) -> Self {
        Self { afterwards: Box::pin(async move { drop(afterwards.await) }), ..self }
    }
}

/// Drops `thing` after a while.
fn in_a_while(thing: impl Any + Send) {
    tokio::spawn(async move {
        sleep(A_WHILE).await;
        drop(thing);
    });
}

/// The point at which a future is dropped.
#[derive(Clone, Copy, Debug)]
struct Cut {
    polls: usize,
    /// Only when it is woken once more, just before it would see why.
    woken: bool,
}

/// Polls `future` as often as `cut` says and drops it; true if it was done before.
async fn cut_off(future: BoxFuture<'static, ()>, cut: Cut) -> bool {
    let mut future = pin!(future);
    let mut polls = 0;
    poll_fn(|context| {
        if polls == cut.polls {
            return Ready(false);
        }
        polls += 1;
        match future.as_mut().poll(context) {
            Ready(()) => Ready(true),
            Pending if polls == cut.polls && !cut.woken => Ready(false),
            Pending => Pending,
        }
    })
    .await
}

/// Runs `prepare` and its future again and again, dropped one poll later each time, until the
/// future gets to its end. Returns at how many polls it was dropped.
fn drop_at_every_poll<F: Future<Output = Action>>(what: &str, prepare: impl Fn(Scene) -> F) -> usize {
    let mut cuts = 0;
    for woken in [false, true] {
        for polls in 0.. {
            let runtime =
                tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
            let cut = Cut { polls, woken };
            let done = runtime.expect("a runtime").block_on(drop_once(what, &prepare, cut));
            if done {
                break;
            }
            cuts += 1;
            assert!(polls < 500, "{what} never ends");
        }
    }
    cuts
}

async fn drop_once<F: Future<Output = Action>>(what: &str, prepare: &impl Fn(Scene) -> F, cut: Cut) -> bool {
    let world = Virtual::new();
    let slow = Faults { usual: 40, ..Faults::NONE };
    let network = Network::new(Dice::new(cut.polls as u64), slow);
    let store = faulty(world.server.connector("memory:"), network);
    let ours =
        Keeper::builder(store).virtual_time(world.clock.clock()).connect().await.expect("a slow network");
    let theirs = world.keeper().await;
    let act = prepare(Scene { ours: ours.clone(), theirs: theirs.clone() }).await;
    let done = cut_off(act.future, cut).await;
    sleep(A_WHILE).await;
    act.afterwards.await;
    sleep(SOON).await;
    let page = theirs.list("", None, 10).await.expect("a good network");
    assert!(page.resources.is_empty(), "{what}, dropped at {cut:?}, left {:?}", page.resources);
    assert_eq!(world.server.kept(), 0, "{what}, dropped at {cut:?}, left something at the store");
    for keeper in [&ours, &theirs] {
        assert_eq!(keeper.stats(), Stats::default(), "{what}, dropped at {cut:?}, left something behind");
    }
    done
}

macro_rules! scenes {
    ($($name:ident: $least:literal polls, |$scene:ident| $prepare:block)+) => {
        $(#[test]
        fn $name() {
            let cuts = drop_at_every_poll(stringify!($name), |$scene: Scene| async move { $prepare });
            assert!(cuts >= $least, "only {cuts} places to be dropped at: too few to prove anything");
        })+
    };
}

scenes! {
    lock_of_a_free_mutex: 2 polls, |scene| {
        let mutex = scene.ours.mutex("m");
        Action::new(async move { mutex.lock().await })
    }

    lock_and_release: 3 polls, |scene| {
        let mutex = scene.ours.mutex("m");
        Action::new(async move { mutex.lock().await.expect("free").release().await })
    }

    lock_of_a_mutex_held_elsewhere: 3 polls, |scene| {
        in_a_while(scene.theirs.mutex("m").lock().await.expect("free"));
        let mutex = scene.ours.mutex("m");
        Action::new(async move { mutex.lock().await })
    }

    lock_behind_a_task_of_the_same_process: 2 polls, |scene| {
        in_a_while(scene.ours.mutex("m").lock().await.expect("free"));
        let mutex = scene.ours.mutex("m");
        Action::new(async move { mutex.lock().await })
    }

    lock_handed_on: 1 polls, |scene| {
        // Released within the time in which a grant is handed on to the next task.
        let first = scene.ours.mutex("m").lock().await.expect("free");
        tokio::spawn(async move {
            sleep(Duration::from_millis(1)).await;
            drop(first);
        });
        let mutex = scene.ours.mutex("m");
        Action::new(async move { mutex.lock().await })
    }

    fifo_lock_held_elsewhere: 3 polls, |scene| {
        in_a_while(scene.theirs.mutex("m").fifo().lock().await.expect("free"));
        let mutex = scene.ours.mutex("m").fifo();
        Action::new(async move { mutex.lock().await })
    }

    try_lock: 2 polls, |scene| {
        let mutex = scene.ours.mutex("m");
        Action::new(async move { mutex.try_lock().await })
    }

    try_lock_of_a_held_one: 2 polls, |scene| {
        in_a_while(scene.theirs.mutex("m").lock().await.expect("free"));
        let mutex = scene.ours.mutex("m");
        Action::new(async move { mutex.try_lock().await })
    }

    lock_within: 3 polls, |scene| {
        in_a_while(scene.theirs.mutex("m").lock().await.expect("free"));
        let mutex = scene.ours.mutex("m");
        Action::new(async move { mutex.lock_within(Duration::from_millis(500)).await })
    }

    lock_as_an_owner: 3 polls, |scene| {
        let (mutex, owner) = (scene.ours.mutex("m"), scene.ours.owner());
        Action::new(async move {
            let outer = mutex.lock_as(&owner).await;
            let inner = mutex.lock_as(&owner).await;
            drop((inner, outer));
        })
    }

    lock_with_a_detachable_lease: 2 polls, |scene| {
        let mutex = scene.ours.mutex("m").detachable();
        Action::new(async move { mutex.lock().await })
    }

    read_then_write: 5 polls, |scene| {
        in_a_while(scene.theirs.rw_lock("rw").write().await.expect("free"));
        let lock = scene.ours.rw_lock("rw");
        Action::new(async move {
            drop(lock.read().await);
            drop(lock.write().await);
        })
    }

    downgrade: 4 polls, |scene| {
        let lock = scene.ours.rw_lock("rw");
        Action::new(async move { lock.write().await.expect("free").downgrade().await })
    }

    permits: 4 polls, |scene| {
        in_a_while(scene.theirs.semaphore("s", 3).acquire_many(2).await.expect("free"));
        let semaphore = scene.ours.semaphore("s", 3);
        Action::new(async move {
            let one = semaphore.acquire().await;
            let two = semaphore.acquire_many(2).await;
            drop((one, two));
        })
    }

    several_at_once: 8 polls, |scene| {
        in_a_while(scene.theirs.mutex("b").lock().await.expect("free"));
        let (a, b, c) = (scene.ours.mutex("a"), scene.theirs.mutex("b"), scene.ours.mutex("c"));
        Action::new(async move { all([&c, &b, &a]).lock().await })
    }

    several_released: 8 polls, |scene| {
        let (a, b) = (scene.ours.mutex("a"), scene.ours.mutex("b"));
        Action::new(async move { all([&b, &a]).lock().await.expect("free").release().await })
    }

    segment: 2 polls, |scene| {
        let segmented = scene.ours.segmented("s", 8);
        Action::new(async move { segmented.for_key("key").lock().await })
    }

    campaign: 3 polls, |scene| {
        in_a_while(scene.theirs.election("e").campaign("theirs").await.expect("free"));
        let election = scene.ours.election("e");
        Action::new(async move { election.campaign("ours").await.expect("free in the end").resign().await })
    }

    leader_and_observer: 4 polls, |scene| {
        in_a_while(scene.theirs.election("e").campaign("theirs").await.expect("free"));
        let election = scene.ours.election("e");
        Action::new(async move {
            drop(election.leader().await);
            let mut observer = election.observe();
            for _ in 0..2 {
                drop(observer.next().await);
            }
        })
    }

    latch: 6 polls, |scene| {
        let (latch, theirs) = (scene.ours.latch("l"), scene.theirs.clone());
        Action::new(async move {
            drop(latch.create(2).await);
            drop(latch.count_down().await);
            drop(latch.state().await);
            drop(latch.count_down().await);
            drop(latch.wait().await);
            drop(latch.reset().await);
            drop(latch.wait_within(Duration::from_millis(100)).await);
            drop(latch.delete().await);
        })
        .then(async move { theirs.latch("l").delete().await })
    }

    extend: 2 polls, |scene| {
        let guard = scene.ours.mutex("m").lock().await.expect("free");
        Action::new(async move { guard.extend(Duration::from_secs(20)).await })
    }

    run: 2 polls, |scene| {
        let guard = scene.ours.mutex("m").lock().await.expect("free");
        Action::new(async move { guard.run(sleep(Duration::from_millis(50))).await })
    }

    lost: 1 polls, |scene| {
        let guard = scene.ours.mutex("m").expires_after(Duration::from_secs(1)).lock().await.expect("free");
        Action::new(async move { guard.lost().await })
    }

    into_lease: 2 polls, |scene| {
        let guard = scene.ours.mutex("m").detachable().lock().await.expect("free");
        let theirs = scene.theirs.clone();
        Action::new(async move {
            let lease: Lease = guard.into_lease().await.expect("held");
            theirs.adopt(&lease).await.expect("a live lease").release().await
        })
    }

    adopt: 2 polls, |scene| {
        let guard = scene.theirs.mutex("m").detachable().lock().await.expect("free");
        let lease = guard.into_lease().await.expect("held");
        let (ours, theirs, same) = (scene.ours.clone(), scene.theirs.clone(), lease.clone());
        Action::new(async move { ours.adopt(&same).await })
            .then(async move { drop(theirs.adopt(&lease).await) })
    }

    fence: 2 polls, |scene| {
        let (keeper, guard) = (scene.ours.clone(), scene.ours.mutex("m").lock().await.expect("free"));
        Action::new(async move { keeper.fence("m").admit_shared(guard.token(), guard.floor()).await })
    }

    operators: 6 polls, |scene| {
        let (keeper, guard) = (scene.ours.clone(), scene.theirs.mutex("m").lock().await.expect("free"));
        Action::new(async move {
            let view = keeper.inspect("m").await.expect("a good network").expect("held");
            drop(keeper.list("", None, 10).await);
            let holder = &view.holders[0];
            drop(keeper.evict("m", holder.contender, guard.token(), Eviction::Immediate).await);
        })
    }

    close: 2 polls, |scene| {
        let (keeper, guard) = (scene.ours.clone(), scene.ours.mutex("m").lock().await.expect("free"));
        let again = keeper.clone();
        Action::new(async move {
            keeper.close().await;
            drop(guard);
        })
        .then(async move { again.close().await })
    }
}
