//! What waiting costs: requests to the store are counted, in virtual time.

use std::time::Duration;

use lockkeeper_core::{Keeper, testing::Virtual};
use lockkeeper_testkit::{
    counting::Requests,
    faulty::{Faults, Line, faulty},
};
use tokio::{task::JoinHandle, time::sleep};

/// A keeper whose requests are counted.
async fn counted(world: &Virtual) -> (Keeper, Requests) {
    let requests = Requests::default();
    let store = requests.of(world.server.connector("memory:"));
    let keeper = Keeper::builder(store).virtual_time(world.clock.clock()).connect().await;
    (keeper.expect("memory"), requests)
}

fn each<F: Future<Output = ()> + Send + 'static>(
    times: usize,
    task: impl Fn(usize) -> F,
) -> Vec<JoinHandle<()>> {
    (0..times).map(|place| tokio::spawn(task(place))).collect()
}

async fn done(tasks: Vec<JoinHandle<()>>) {
    for task in tasks {
        task.await.expect("no panic");
    }
}

#[tokio::test(start_paused = true)]
async fn one_subscription_serves_all_who_care() {
    let world = Virtual::new();
    let (keeper, requests) = counted(&world).await;
    let (latch, election) = (keeper.latch("latch"), keeper.election("election"));
    latch.create(1).await.expect("new");
    let waiters = each(50, |_| {
        let latch = latch.clone();
        async move { latch.wait().await.expect("it opens") }
    });
    let observers = each(50, |_| {
        let mut observer = election.observe();
        async move {
            for _ in 0..2 {
                observer.next().await.expect("news").expect("memory");
            }
        }
    });
    sleep(Duration::from_secs(1)).await;
    assert_eq!(requests.watches(), 2, "one for the latch, one for the election");
    drop(election.campaign("leader").await.expect("free"));
    latch.count_down().await.expect("there");
    done(waiters).await;
    done(observers).await;
    assert_eq!(requests.watches(), 2);
}

#[tokio::test(start_paused = true)]
async fn waiters_of_one_process_poll_as_one_request_a_second() {
    let world = Virtual::new();
    let (keeper, requests) = counted(&world).await;
    let theirs = world.keeper().await;
    let held: Vec<_> = {
        let mut held = Vec::new();
        for place in 0..8 {
            held.push(theirs.mutex(&format!("name/{place}")).lock().await.expect("free"));
        }
        held
    };
    let waiters = each(64, |place| {
        let mutex = keeper.mutex(&format!("name/{}", place % 8)).fifo();
        async move { drop(mutex.lock().await.expect("in the end")) }
    });
    sleep(Duration::from_secs(2)).await;
    let before = requests.so_far();
    sleep(Duration::from_secs(60)).await;
    let asked = requests.so_far() - before;
    assert!((30..=61).contains(&asked), "{asked} requests in a minute");
    drop(held);
    done(waiters).await;
}

#[tokio::test(start_paused = true)]
async fn what_is_asked_meanwhile_goes_out_as_one_group() {
    let world = Virtual::new();
    let requests = Requests::default();
    let slow = Line::new(lockkeeper_testkit::dice::Dice::new(1), Faults { usual: 10, ..Faults::NONE });
    let store = faulty(requests.of(world.server.connector("memory:")), slow);
    let keeper =
        Keeper::builder(store).virtual_time(world.clock.clock()).connect().await.expect("a slow line");
    let before = requests.so_far();
    let tasks = each(64, |place| {
        let mutex = keeper.mutex(&format!("name/{place}"));
        async move {
            let guard = mutex.lock().await.expect("free");
            sleep(Duration::from_millis(100)).await;
            guard.release().await.expect("held");
        }
    });
    done(tasks).await;
    let asked = requests.so_far() - before;
    assert!(asked <= 8, "{asked} requests for 64 locks and releases");
}

#[tokio::test(start_paused = true)]
async fn a_free_lock_costs_two_requests() {
    let world = Virtual::new();
    let (keeper, requests) = counted(&world).await;
    let before = requests.so_far();
    for _ in 0..100 {
        keeper.mutex("name").lock().await.expect("free").release().await.expect("held");
    }
    assert_eq!(requests.so_far() - before, 200);
}

#[tokio::test(start_paused = true)]
async fn what_is_dropped_goes_along_with_what_is_asked_next() {
    let world = Virtual::new();
    let (keeper, requests) = counted(&world).await;
    let before = requests.so_far();
    for _ in 0..100 {
        drop(keeper.mutex("name").lock().await.expect("free"));
    }
    let mut guards = Vec::new();
    for place in 0..64 {
        guards.push(keeper.mutex(&format!("name/{place}")).lock().await.expect("free"));
    }
    assert_eq!(requests.so_far() - before, 164, "one for each claim");
    drop(guards);
    keeper.close().await;
    assert_eq!(requests.so_far() - before, 165, "one for all that nobody follows");
}
