//! The cost of waiting: requests to the store are counted, in virtual time.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Waker},
    time::Duration,
};

use lockkeeper_core::{
    AcquireError, Keeper, LatchError, StoreError, StoreErrorKind,
    store::{BoxFuture, Connector, Topic, Verdict, Wake, Watch},
    support,
    testing::Virtual,
};
use lockkeeper_testkit::{
    counting::RequestCounter,
    faulty::{Fate, Faults, Network, faulty},
    overrides::Overrides,
    wakers::{left_with, panicking},
};
use tokio::{
    sync::Notify,
    task::JoinHandle,
    time::{Instant, sleep},
};

/// A keeper whose requests are counted.
async fn counted(world: &Virtual) -> (Keeper, RequestCounter) {
    let requests = RequestCounter::default();
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
    let requests = RequestCounter::default();
    let slow = Network::new(lockkeeper_testkit::dice::Dice::new(1), Faults { usual: 10, ..Faults::NONE });
    let store = faulty(requests.of(world.server.connector("memory:")), slow);
    let keeper =
        Keeper::builder(store).virtual_time(world.clock.clock()).connect().await.expect("a slow network");
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

/// The tasks that a group's answers have woken ask again at about the same time. If the first of them were sent alone, all
/// others would go behind it, and so on: two requests for each lock of all.
#[tokio::test(start_paused = true)]
async fn tasks_that_were_answered_together_ask_together() {
    const LOCKS: u64 = 20;
    let world = Virtual::new();
    let requests = RequestCounter::default();
    let slow = Network::new(lockkeeper_testkit::dice::Dice::new(1), Faults { usual: 10, ..Faults::NONE });
    let store = faulty(requests.of(world.server.connector("memory:")), slow);
    let keeper =
        Keeper::builder(store).virtual_time(world.clock.clock()).connect().await.expect("a slow network");
    let before = requests.so_far();
    let tasks = each(64, |place| {
        let mutex = keeper.mutex(&format!("name/{place}"));
        async move {
            for _ in 0..LOCKS {
                drop(mutex.lock().await.expect("free"));
            }
        }
    });
    done(tasks).await;
    let asked = requests.so_far() - before;
    assert!(asked <= LOCKS + 4, "{asked} requests for {LOCKS} locks of each of 64 tasks");
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

fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

async fn on(world: &Virtual, store: Connector) -> Keeper {
    Keeper::builder(store).virtual_time(world.clock.clock()).connect().await.expect("memory")
}

/// The answer that is under way was given before the hint was: it does not cover the change that the hint is about.
#[tokio::test(start_paused = true)]
async fn a_hint_that_comes_while_a_claim_is_under_way_is_not_forgotten() {
    let world = Virtual::new();
    let (network, answered) = (Network::good(), Arc::new(Notify::new()));
    let overrides = {
        let answered = answered.clone();
        Overrides::new()
            .capability(|capability| capability.requests_at_once = 3)
            .wakes(|wake| match wake {
                Wake::Granted(name, _) => Some(Wake::Changed(Topic::Grants(name))),
                wake => Some(wake),
            })
            .verdicts(move |claim, verdict| {
                if claim.again {
                    answered.notify_one();
                }
                verdict
            })
    };
    let ours = on(&world, faulty(overrides.of(world.server.connector("memory:")), network.clone())).await;
    let held = world.keeper().await.mutex("name").lease(Duration::from_secs(600)).lock().await.expect("free");
    network.next(Fate::GOOD);
    // Asked again and answered at once, but the answer takes its time.
    network.next(Fate { after: millis(900), ..Fate::GOOD });
    let mutex = ours.mutex("name");
    let waiting = tokio::spawn(async move { mutex.lock().await });
    answered.notified().await;
    let released = Instant::now();
    held.release().await.expect("held");
    drop(waiting.await.expect("no panic").expect("granted"));
    let took = released.elapsed();
    assert!(took < millis(1000), "asked {took:?} after the hint, though the answer came after 900 ms");
}

/// All of them claimed before there was a subscription, so each may have missed its grant.
#[tokio::test(start_paused = true)]
async fn all_who_wait_for_a_subscription_ask_once_more_when_it_is_there() {
    let world = Virtual::new();
    let subscribed = Arc::new(AtomicBool::new(false));
    let overrides = {
        let (made, hears) = (subscribed.clone(), subscribed.clone());
        Overrides::new().wakes(move |wake| hears.load(Ordering::Relaxed).then_some(wake)).watches(
            move |_, _| {
                let made = made.clone();
                Box::pin(async move {
                    sleep(millis(100)).await;
                    made.store(true, Ordering::Relaxed);
                    Ok(Some(Watch::new(())))
                })
            },
        )
    };
    let ours = on(&world, overrides.of(world.server.connector("memory:"))).await;
    let theirs = world.keeper().await;
    let held = theirs.semaphore("name", 3).acquire_many(3).await.expect("free");
    let asked = Instant::now();
    let waiters = each(3, |_| {
        let semaphore = ours.semaphore("name", 3);
        async move { std::mem::forget(semaphore.acquire().await.expect("free in the end")) }
    });
    sleep(millis(50)).await;
    held.release().await.expect("held");
    done(waiters).await;
    assert!(asked.elapsed() < millis(200), "{:?}", asked.elapsed());
}

/// Does something when it is dropped.
struct OnDrop<F: FnMut()>(F);

impl<F: FnMut()> Drop for OnDrop<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}

/// Somebody subscribes while the old subscription, which nobody had used for long, is just being ended.
#[tokio::test(start_paused = true)]
async fn a_subscription_made_while_the_old_one_ends_is_kept() {
    type Waiting = Arc<Mutex<Option<BoxFuture<'static, Result<(), LatchError>>>>>;
    let world = Virtual::new();
    let (waiting, ended) = (Waiting::default(), Arc::new(Notify::new()));
    let overrides = {
        let (waiting, ended) = (waiting.clone(), ended.clone());
        Overrides::new().watches(move |_, watch| {
            let (waiting, ended) = (waiting.clone(), ended.clone());
            let meanwhile = OnDrop(move || {
                let mut waiting = support::lock(&waiting);
                if let Some(waiting) = &mut *waiting {
                    let early = waiting.as_mut().poll(&mut Context::from_waker(Waker::noop()));
                    assert!(early.is_pending(), "it has not opened");
                    ended.notify_one();
                }
            });
            // The one is dropped before the other, and that ends the subscription.
            Box::pin(async move { Ok(watch.await?.map(|watch| Watch::new((meanwhile, watch)))) })
        })
    };
    let ours = on(&world, overrides.of(world.server.connector("memory:"))).await;
    let theirs = world.keeper().await;
    let latch = ours.latch("name");
    latch.create(1).await.expect("new");
    latch.wait_within(millis(100)).await.expect_err("it has not opened");
    *support::lock(&waiting) = Some(Box::pin(async move { latch.wait().await }));
    ended.notified().await;
    let opens = support::lock(&waiting).take().expect("it waits");
    let opens = tokio::spawn(opens);
    sleep(millis(10)).await;
    let opened = Instant::now();
    theirs.latch("name").count_down().await.expect("there");
    opens.await.expect("no panic").expect("open");
    assert!(opened.elapsed() < millis(100), "woken only by a poll, after {:?}", opened.elapsed());
    theirs.latch("name").delete().await.expect("there");
}

/// A request that the store cannot do now is asked again with nothing but its name, and beside the groups: however long
/// the store waits for that name, others are served.
#[tokio::test(start_paused = true)]
async fn what_a_store_cannot_do_now_goes_alone_and_delays_nobody() {
    let world = Virtual::new();
    let (alone, free) = (Arc::new(Mutex::new(Vec::new())), Arc::new(tokio::sync::Semaphore::new(0)));
    let refused = Mutex::new(std::collections::BTreeSet::new());
    let overrides = {
        let (alone, free) = (alone.clone(), free.clone());
        Overrides::new()
            .verdicts(move |claim, verdict| {
                // Nothing was done: the first copy of each claim is one that the store has not seen.
                let is_busy = claim.name.as_str().starts_with("busy");
                if is_busy && support::lock(&refused).insert(claim.contender) {
                    return Verdict::NotNow(StoreError::new(StoreErrorKind::Conflict, "busy").not_applied());
                }
                verdict
            })
            .before_alone(move |group| {
                let names: Vec<String> = group.iter().map(|request| request.name().to_string()).collect();
                support::lock(&alone).push(names);
                let free = free.clone();
                Box::pin(async move { free.acquire().await.expect("open").forget() })
            })
    };
    let keeper = on(&world, overrides.of(world.server.connector("memory:"))).await;
    let waiters = each(3, |number| {
        let semaphore = keeper.semaphore(if number < 2 { "busy/1" } else { "busy/2" }, 3);
        async move { std::mem::forget(semaphore.acquire().await.expect("free in the end")) }
    });
    for round in 0..5 {
        let started = Instant::now();
        keeper.mutex(&format!("other/{round}")).lock().await.expect("free").release().await.expect("held");
        assert!(started.elapsed() < millis(10), "it waited for {:?}", started.elapsed());
    }
    free.add_permits(9);
    done(waiters).await;
    let alone = support::lock(&alone).clone();
    assert!(alone.iter().all(|names| names.windows(2).all(|pair| pair[0] == pair[1])), "{alone:?}");
    assert_eq!(alone.iter().flatten().filter(|name| *name == "busy/1").count(), 2, "{alone:?}");
    assert_eq!(alone.iter().flatten().filter(|name| *name == "busy/2").count(), 1, "{alone:?}");
}

/// A keeper on a network that a test slows down, with one request at a time.
async fn one_at_a_time(world: &Virtual) -> (Keeper, Arc<Network>) {
    let network = Network::good();
    let store = Overrides::new()
        .capability(|capability| capability.requests_at_once = 1)
        .of(faulty(world.server.connector("memory:"), network.clone()));
    let keeper = Keeper::builder(store).virtual_time(world.clock.clock()).connect().await;
    (keeper.expect("a good network"), network)
}

#[tokio::test(start_paused = true)]
async fn a_panic_of_one_costs_the_others_of_its_group_nothing() {
    let world = Virtual::new();
    let (keeper, network) = one_at_a_time(&world).await;
    network.next(Fate::late(Duration::from_millis(10)));
    let first = keeper.mutex("a");
    let first = tokio::spawn(async move { first.lock().await.map(drop) });
    tokio::task::yield_now().await;
    let second = keeper.mutex("b");
    let second = left_with(&panicking(), second.lock());
    let third = keeper.mutex("c");
    let third = tokio::spawn(async move { third.lock().await.map(drop) });
    first.await.expect("no panic").expect("free");
    let third = tokio::time::timeout(Duration::from_secs(60), third).await.expect("it has an outcome");
    third.expect("no panic").expect("free");
    drop(second);
    tokio::time::timeout(Duration::from_secs(60), keeper.close()).await.expect("nothing is left to wait for");
}

#[tokio::test(start_paused = true)]
async fn a_panic_of_one_who_releases_keeps_no_keeper_open() {
    let world = Virtual::new();
    let (keeper, network) = one_at_a_time(&world).await;
    let guard = keeper.mutex("b").lock().await.expect("free");
    network.next(Fate::late(Duration::from_millis(10)));
    let first = keeper.mutex("a");
    let first = tokio::spawn(async move { first.lock().await.map(drop) });
    tokio::task::yield_now().await;
    let release = left_with(&panicking(), guard.release());
    first.await.expect("no panic").expect("free");
    tokio::time::timeout(Duration::from_secs(60), keeper.close()).await.expect("nothing is left to wait for");
    drop(release);
}

/// Four tasks wait in the store's own queue, of which the third gives up while the second is under way.
#[tokio::test(start_paused = true)]
async fn one_who_gives_up_before_its_claim_is_sent_does_not_take_the_next_along() {
    let world = Virtual::new();
    let (keeper, network) = one_at_a_time(&world).await;
    network.set(Faults { usual: 20, ..Faults::NONE });
    for patience in 1..60 {
        let mutex = keeper.mutex("name").fifo();
        let lock = |mutex: lockkeeper_core::Mutex| {
            tokio::spawn(async move {
                let _held = mutex.lock().await.expect("free some day");
            })
        };
        let first = [lock(mutex.clone()), lock(mutex.clone())];
        tokio::task::yield_now().await;
        let impatient = mutex.clone();
        let gives_up = tokio::spawn(async move {
            drop(impatient.lock_within(Duration::from_millis(patience)).await);
        });
        tokio::task::yield_now().await;
        let last = lock(mutex.clone());
        tokio::time::timeout(Duration::from_secs(60), last).await.expect("served").expect("no panic");
        gives_up.await.expect("no panic");
        for task in first {
            task.await.expect("no panic");
        }
    }
}

/// A message that comes twice must not give the lock back a second time, in front of its owner.
#[tokio::test(start_paused = true)]
async fn a_doubled_message_does_not_overtake_the_release_under_way() {
    let world = Virtual::new();
    let network = Network::good();
    let (last, told) = (Arc::new(Mutex::new(None)), Arc::new(Mutex::new(None)));
    let store = faulty(world.server.connector("memory:"), network.clone());
    let heard = last.clone();
    let store = Overrides::new()
        .capability(|capability| capability.requests_at_once = 3)
        .wakes(move |wake| {
            *support::lock(&heard) = Some(wake.clone());
            Some(wake)
        })
        .of(store);
    let sink = told.clone();
    let store = Connector::new(move |context: lockkeeper_core::store::Context| {
        *support::lock(&sink) = Some(context.wakes.clone());
        store.connect(context)
    });
    let ours = Keeper::builder(store).virtual_time(world.clock.clock()).connect().await.expect("memory");
    let theirs = world.keeper().await;
    let held = theirs.mutex("name").lock().await.expect("free");
    let mutex = ours.mutex("name");
    let waiting = tokio::spawn(async move { mutex.lock().await });
    sleep(Duration::from_millis(100)).await;
    held.release().await.expect("held");
    let guard = waiting.await.expect("no panic").expect("granted by the releaser");
    let wake = support::lock(&last).take().expect("told by a message");
    let sink = support::lock(&told).take().expect("connected");
    network.next(Fate::late(Duration::from_millis(200)));
    let release = tokio::spawn(guard.release());
    sleep(Duration::from_millis(50)).await;
    sink.wake(wake);
    release.await.expect("no panic").expect("it was held until then");
}

/// A claim that gave way is made again with another id, after a pause, for as long as its caller waits.
#[tokio::test(start_paused = true)]
async fn a_claim_that_gave_way_comes_again_with_another_id() {
    let world = Virtual::new();
    let (asked, gives_way) = (Arc::<Mutex<Vec<_>>>::default(), Arc::new(AtomicBool::new(false)));
    let overrides = {
        let (asked, gives_way) = (asked.clone(), gives_way.clone());
        Overrides::new().verdicts(move |claim, verdict| {
            let mut asked = support::lock(&asked);
            asked.push(claim.contender);
            let again = gives_way.load(Ordering::Relaxed) || asked.len() < 4;
            if again && matches!(verdict, Verdict::Busy { .. }) { Verdict::Again } else { verdict }
        })
    };
    let ours = on(&world, overrides.of(world.server.connector("memory:"))).await;
    let held = world.keeper().await.mutex("name").lease(Duration::from_secs(600)).lock().await.expect("free");
    let mutex = ours.mutex("name");
    let waiting = tokio::spawn(async move { mutex.lock().await });
    sleep(millis(500)).await;
    let ids = support::lock(&asked).clone();
    assert!(
        ids.len() >= 4 && ids[..4].iter().collect::<std::collections::BTreeSet<_>>().len() == 4,
        "{ids:?}"
    );
    held.release().await.expect("held");
    let held = waiting.await.expect("no panic").expect("granted");
    gives_way.store(true, Ordering::Relaxed);
    let theirs = world.keeper().await;
    drop(held);
    let held = theirs.mutex("name").lock().await.expect("free");
    let begun = Instant::now();
    let error =
        ours.mutex("name").lock_within(millis(700)).await.map(drop).expect_err("it gives way for ever");
    assert!(matches!(error, AcquireError::TimedOut { .. }) && begun.elapsed() < millis(800), "{error}");
    assert!(ours.mutex("name").try_lock().await.expect("answered").is_none());
    drop(held);
}
