//! Waits at the end of the user's last handle of a keeper: their reasons and their limits (I16, I17, I18).
//!
//! In real time, inside of this process. Whole programs are in `exits.rs`.

use std::{
    sync::{Arc, mpsc},
    time::{Duration, Instant},
};

use lockkeeper_core::{
    Guard, Keeper, clock::Clock, memory::MemoryServer, store::Connector, testing::Virtual,
};
use lockkeeper_testkit::{
    counting::RequestCounter,
    faulty::{Fate, Faults, Network, faulty},
};
use tokio::runtime::{Builder, Handle, Runtime};

const NAME: &str = "stock/42";

/// The longest wait.
const WAIT: Duration = Duration::from_millis(500);

/// The longest wait for a store that did not answer before.
const WAIT_FOR_SILENCE: Duration = Duration::from_millis(150);

/// Nothing arrives.
const SILENCE: Faults = Faults { lost_request: 1000, ..Faults::NONE };

fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

fn runtime() -> Runtime {
    Builder::new_current_thread().enable_all().build().expect("a runtime")
}

/// A store and the network before it.
struct World {
    server: MemoryServer,
    network: Arc<Network>,
    requests: RequestCounter,
}

impl World {
    fn new() -> Self {
        let (server, requests) = (MemoryServer::new(Clock::boot()), RequestCounter::default());
        Self { server, network: Network::good(), requests }
    }

    fn connector(&self) -> Connector {
        self.requests.of(faulty(self.server.connector("memory:"), self.network.clone()))
    }

    /// Connects a keeper. On a busy machine a good network may be late, but not every time, so it tries again.
    async fn keeper(&self) -> Keeper {
        let mut attempts = 0;
        loop {
            attempts += 1;
            match Keeper::builder(self.connector()).request_limit(millis(100)).connect().await {
                Ok(keeper) => return keeper,
                Err(error) => assert!(attempts < 5, "{error}"),
            }
        }
    }

    /// A keeper and the way onto its own thread.
    async fn keeper_and_thread(&self) -> (Keeper, Handle) {
        let (connector, (tell, told)) = (self.connector(), mpsc::channel());
        let connector = Connector::new(move |context| {
            tell.send(context.background.clone()).expect("somebody listens");
            connector.connect(context)
        });
        let keeper = Keeper::builder(connector).connect().await.expect("a good network");
        (keeper, told.recv().expect("connected"))
    }
}

async fn lock(keeper: &Keeper) -> Guard {
    keeper.mutex(NAME).lock().await.expect("free")
}

/// How long it takes to drop something.
fn dropped<T>(what: T) -> Duration {
    let since = Instant::now();
    drop(what);
    since.elapsed()
}

#[test]
fn i16_nothing_is_held_when_the_last_handle_is_gone() {
    let world = World::new();
    runtime().block_on(async {
        let keeper = world.keeper().await;
        let guard = lock(&keeper).await;
        world.network.next(Fate::late(millis(50)));
        drop(keeper);
        let waited = dropped(guard);
        assert!(waited >= millis(50), "{waited:?}");
        assert_eq!(world.server.kept(), 0);
    });
}

/// Only the last one waits.
#[test]
fn i16_a_handle_that_is_not_the_last_waits_for_nothing() {
    let world = World::new();
    runtime().block_on(async {
        let keeper = world.keeper().await;
        let mutex = keeper.mutex(NAME);
        let guard = lock(&keeper).await;
        world.network.next(Fate::late(millis(300)));
        let waited = dropped((guard, keeper));
        assert!(waited < millis(250), "{waited:?}");
        let waited = dropped(mutex);
        assert!(waited > millis(40), "{waited:?}");
        assert_eq!(world.server.kept(), 0);
    });
}

#[test]
fn i16_a_lost_leave_is_sent_again_while_the_last_handle_waits() {
    let world = World::new();
    runtime().block_on(async {
        let keeper = world.keeper().await;
        let guard = lock(&keeper).await;
        world.network.next(Fate { arrives: false, ..Fate::GOOD });
        let waited = dropped((guard, keeper));
        assert!(waited > millis(100) && world.server.kept() == 0, "{waited:?}");
    });
}

/// A release that waits for its answer is a handle as well. When it is over, nothing is left to wait for.
#[test]
fn i16_a_release_that_was_answered_leaves_nothing_to_wait_for() {
    let world = World::new();
    runtime().block_on(async {
        let keeper = world.keeper().await;
        let guard = lock(&keeper).await;
        drop(keeper);
        let since = Instant::now();
        guard.release().await.expect("held");
        assert!(since.elapsed() < WAIT - millis(100), "{:?}", since.elapsed());
        assert_eq!(world.server.kept(), 0);
    });
}

/// All guards are waited for together.
#[test]
fn i17_many_guards_wait_no_longer_than_one() {
    let world = World::new();
    runtime().block_on(async {
        let keeper = world.keeper().await;
        let mut guards = Vec::new();
        for number in 0..500 {
            guards.push(keeper.mutex(&format!("{NAME}/{number}")).lock().await.expect("free"));
        }
        drop(keeper);
        world.network.set(SILENCE);
        let waited = dropped(guards);
        assert!(waited >= WAIT && waited < 3 * WAIT, "{waited:?}");
    });
}

#[test]
fn i17_a_store_that_did_not_answer_before_is_hardly_waited_for() {
    let world = World::new();
    runtime().block_on(async {
        let keeper = world.keeper().await;
        let guard = lock(&keeper).await;
        world.network.set(SILENCE);
        keeper.inspect(NAME).await.expect_err("no answer");
        let waited = dropped((guard, keeper));
        assert!(waited < WAIT - millis(100), "{waited:?}");
    });
}

/// One request failed, as after a connection broke. On a busy machine the answer may be too late for the wait, but the
/// wait is never left out.
#[test]
fn i16_a_single_failure_before_leaves_nothing_held() {
    let world = World::new();
    runtime().block_on(async {
        let keeper = world.keeper().await;
        let guard = lock(&keeper).await;
        world.network.next(Fate::LOST_REQUEST);
        keeper.inspect(NAME).await.expect_err("no answer");
        world.network.next(Fate::late(millis(30)));
        let waited = dropped((guard, keeper));
        assert!(waited >= WAIT_FOR_SILENCE || waited >= millis(30) && world.server.kept() == 0, "{waited:?}");
    });
}

/// An answer came meanwhile, so the store is back, and is waited for as if it had never been away.
#[test]
fn i17_a_store_that_answers_again_is_waited_for() {
    let world = World::new();
    runtime().block_on(async {
        let keeper = world.keeper().await;
        let (first, second) = (lock(&keeper).await, keeper.mutex("other").lock().await.expect("free"));
        world.network.next(Fate::LOST_REQUEST);
        keeper.inspect(NAME).await.expect_err("no answer");
        // The first leave is known to be lost after 100 ms, and its second copy is late. The other one is answered.
        for fate in [Fate::LOST_REQUEST, Fate::GOOD, Fate::late(millis(80))] {
            world.network.next(fate);
        }
        let before = world.requests.so_far();
        drop(first);
        while world.requests.so_far() == before {
            tokio::task::yield_now().await;
        }
        let waited = dropped((second, keeper));
        assert!(waited >= WAIT || world.server.kept() == 0, "{waited:?}");
    });
}

/// The leave of a guard that was dropped long before the end pauses after many failures.
#[test]
fn i16_the_last_handle_ends_the_pause_of_a_leave() {
    let world = World::new();
    runtime().block_on(async {
        let keeper = world.keeper().await;
        let (mutex, guard) = (keeper.mutex(NAME), lock(&keeper).await);
        world.network.set(SILENCE);
        let before = world.requests.so_far();
        drop(guard);
        // Pauses of 50, 100, 200 and 400 ms are over, and the fifth copy fails after 100 ms: 800 ms follow.
        while world.requests.so_far() < before + 5 {
            tokio::time::sleep(millis(1)).await;
        }
        tokio::time::sleep(millis(150)).await;
        world.network.set(Faults { usual: 0, ..Faults::NONE });
        // The store is back.
        while keeper.inspect(NAME).await.is_err() {}
        let waited = dropped((mutex, keeper));
        assert!(waited < WAIT && world.server.kept() == 0, "{waited:?}");
    });
}

/// The leaves need that thread.
#[test]
fn i17_a_keepers_own_thread_does_not_wait() {
    let world = World::new();
    runtime().block_on(async {
        let (keeper, thread) = world.keeper_and_thread().await;
        let guard = lock(&keeper).await;
        let waited = thread.spawn(async { dropped((guard, keeper)) }).await.expect("no panic");
        assert!(waited < WAIT - millis(100), "{waited:?}");
        while world.server.kept() > 0 {
            tokio::time::sleep(millis(1)).await;
        }
    });
}

/// Other locks are renewed there.
#[test]
fn i17_another_keepers_thread_does_not_wait() {
    let world = World::new();
    runtime().block_on(async {
        let (other, thread) = world.keeper_and_thread().await;
        let keeper = world.keeper().await;
        let guard = lock(&keeper).await;
        world.network.set(SILENCE);
        let waited = thread.spawn(async { dropped((guard, keeper)) }).await.expect("no panic");
        assert!(waited < WAIT - millis(100), "{waited:?}");
        drop(other);
    });
}

#[tokio::test(start_paused = true)]
async fn i17_nobody_waits_in_virtual_time() {
    let world = Virtual::new();
    let keeper = world.keeper().await;
    let guard = lock(&keeper).await;
    let waited = dropped((guard, keeper));
    assert!(waited < WAIT - millis(100), "{waited:?}");
    tokio::time::sleep(millis(1)).await;
    assert_eq!(world.server.kept(), 0);
}

/// The observer's task waits for an answer at the moment.
#[test]
fn i18_a_task_of_the_keeper_is_not_the_last_handle() {
    let world = World::new();
    runtime().block_on(async {
        let keeper = world.keeper().await;
        let election = keeper.election(NAME);
        let leadership = election.campaign("me").await.expect("free");
        world.network.next(Fate::late(millis(90)));
        let asked = || world.requests.so_far() - world.requests.watches();
        let before = asked();
        let observer = election.observe();
        while asked() == before {
            tokio::time::sleep(millis(1)).await;
        }
        drop((keeper, election, leadership));
        assert_eq!(world.server.kept(), 0);
        drop(observer);
    });
}

/// The observer's task asks the store at that moment, and has no answer. The keeper's end is not an error of the store.
#[test]
fn an_observer_that_outlives_the_handles_ends_without_an_error() {
    let world = World::new();
    runtime().block_on(async {
        // The look fails only after the handles are gone, and before the keeper's thread ends.
        let keeper = Keeper::builder(world.connector()).request_limit(Duration::from_secs(3));
        let keeper = keeper.connect().await.expect("a good network");
        let election = keeper.election(NAME);
        // Its leave keeps the keeper's thread.
        let guard = keeper.mutex("other").lock().await.expect("free");
        world.network.set(SILENCE);
        let asked = || world.requests.so_far() - world.requests.watches();
        let before = asked();
        let mut observer = election.observe();
        while asked() == before {
            tokio::time::sleep(millis(1)).await;
        }
        drop((keeper, election, guard));
        assert!(observer.next().await.is_none());
    });
}
