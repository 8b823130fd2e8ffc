//! Outages: a store that does not answer never looks like a busy lock, and logs stay short however many locks there are.

use std::{
    cell::RefCell,
    fmt::Write as _,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use lockkeeper_core::{
    AcquireError, Keeper, LatchError, StoreErrorKind, all,
    store::Renewed,
    testing::{self, Fate, Virtual},
};
use lockkeeper_testkit::{
    faulty::{Faults, Network, faulty},
    overrides::Overrides,
};
use tokio::{
    task::JoinHandle,
    time::{Instant, sleep},
};
use tracing::{Event, Level, Metadata, Subscriber, field, span};

const NAME: &str = "stock/42";

fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

thread_local! {
    /// What was logged at WARN on this thread, one row for each event.
    static LOGGED: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
}

/// Keeps what is logged. It is there for all tests from the first event on: with one for each test, `tracing` may miss
/// events that another test has been the first to send.
struct Log;

struct Row<'a>(&'a mut String);

impl field::Visit for Row<'_> {
    fn record_debug(&mut self, field: &field::Field, value: &dyn std::fmt::Debug) {
        write!(self.0, " {field}={value:?}").expect("a string takes everything");
    }
}

impl Subscriber for Log {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() == Level::WARN && metadata.target().starts_with("lockkeeper")
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn event(&self, event: &Event<'_>) {
        let mut row = String::new();
        event.record(&mut Row(&mut row));
        LOGGED.with_borrow_mut(|logged| logged.push(row));
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}
    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}
    fn enter(&self, _: &span::Id) {}
    fn exit(&self, _: &span::Id) {}
}

impl Log {
    /// Forgets what was logged before.
    fn listen() -> Self {
        static ONCE: OnceLock<()> = OnceLock::new();
        ONCE.get_or_init(|| tracing::subscriber::set_global_default(Self).expect("the first"));
        LOGGED.take();
        Self
    }

    /// The rows with these words, in order.
    fn with(&self, words: &str) -> Vec<String> {
        LOGGED.with_borrow(|logged| logged.iter().filter(|row| row.contains(words)).cloned().collect())
    }

    fn all(&self) -> Vec<String> {
        self.with("")
    }
}

const DEAD: Faults = Faults { lost_request: 1000, usual: 0, ..Faults::NONE };
const WELL: Faults = Faults { usual: 0, ..Faults::NONE };

/// A keeper behind a network that a test breaks and mends.
async fn behind(world: &Virtual, network: &Arc<Network>) -> Keeper {
    let store = faulty(world.server.connector("memory:"), network.clone());
    Keeper::builder(store).virtual_time(world.clock.clock()).connect().await.expect("a good network")
}

fn is_outage(error: &AcquireError) -> bool {
    matches!(error, AcquireError::Store(error) if error.kind() == StoreErrorKind::Unreachable)
        && error.to_string().contains("gave up after")
        && error.to_string().contains(NAME)
}

async fn ended<T>(tasks: Vec<JoinHandle<T>>) -> Vec<T> {
    let mut results = Vec::new();
    for task in tasks {
        results.push(task.await.expect("no panic"));
    }
    results
}

#[tokio::test(start_paused = true)]
async fn a_wait_that_hears_nothing_or_failures_ends_with_the_stores_error() {
    Log::listen();
    let world = Virtual::new();
    let network = Network::good();
    let (ours, theirs) = (behind(&world, &network).await, world.keeper().await);
    let held = theirs.mutex(NAME).lock().await.expect("free");
    let busy = ours.mutex(NAME).lock_within(secs(5)).await.expect_err("held");
    assert!(matches!(busy, AcquireError::TimedOut { ahead: Some(0), .. }), "{busy}");

    network.set(DEAD);
    // Less than a request takes to fail, so nothing is heard; and long enough to hear of failures.
    for limit in [millis(100), secs(5)] {
        for mutex in [ours.mutex(NAME), ours.mutex(NAME).fifo()] {
            let start = Instant::now();
            let error = mutex.lock_within(limit).await.expect_err("no store");
            assert!(is_outage(&error), "{error}");
            assert!(!error.to_string().contains("who holds it"), "{error}");
            assert!(start.elapsed() <= limit + millis(10));
        }
        for result in [
            ours.rw_lock(NAME).read_within(limit).await.map(drop),
            ours.semaphore(NAME, 3).acquire_within(limit).await.map(drop),
            ours.election(NAME).campaign_within("me", limit).await.map(drop),
        ] {
            let error = result.expect_err("no store");
            assert!(is_outage(&error), "{error}");
        }
    }
    drop(held);
}

/// The last thing that was heard decides, not the first.
#[tokio::test(start_paused = true)]
async fn an_outage_that_begins_during_a_wait_or_ends_before_it_counts_as_it_is_at_the_end() {
    Log::listen();
    let world = Virtual::new();
    let network = Network::good();
    let (ours, theirs) = (behind(&world, &network).await, world.keeper().await);
    let held = theirs.mutex(NAME).lock().await.expect("free");
    for mutex in [ours.mutex(NAME), ours.mutex(NAME).fifo()] {
        let waiting = tokio::spawn({
            let mutex = mutex.clone();
            async move { mutex.lock_within(secs(20)).await }
        });
        sleep(secs(5)).await;
        network.set(DEAD);
        let error = waiting.await.expect("no panic").expect_err("held");
        assert!(is_outage(&error) && error.maybe_applied(), "{error}");
        let waiting = tokio::spawn(async move { mutex.lock_within(secs(20)).await });
        sleep(secs(10)).await;
        network.set(WELL);
        let error = waiting.await.expect("no panic").expect_err("held");
        assert!(matches!(error, AcquireError::TimedOut { ahead: Some(0), .. }), "{error}");
    }
    drop(held);
}

/// All limits pass at the same moment, so each task becomes the front for no time at all.
#[tokio::test(start_paused = true)]
async fn tasks_behind_another_of_their_process_end_as_the_first_does() {
    Log::listen();
    let world = Virtual::new();
    let network = Network::good();
    let (ours, theirs) = (behind(&world, &network).await, world.keeper().await);
    let held = theirs.mutex(NAME).lock().await.expect("free");
    let crowd = |limit: Duration| -> Vec<_> {
        (0..20)
            .map(|place| {
                let mutex = ours.mutex(NAME);
                // Some with the front's limit, some earlier.
                let limit = limit - millis(place % 3);
                tokio::spawn(async move { mutex.lock_within(limit).await })
            })
            .collect()
    };
    for result in ended(crowd(secs(5))).await {
        let error = result.expect_err("held");
        assert!(matches!(error, AcquireError::TimedOut { .. }), "{error}");
    }
    network.set(DEAD);
    for limit in [millis(100), secs(5)] {
        for result in ended(crowd(limit)).await {
            let error = result.expect_err("no store");
            assert!(is_outage(&error), "{error}");
        }
    }
    drop(held);
}

/// The front is dropped by its caller in the middle of an outage.
#[tokio::test(start_paused = true)]
async fn a_task_that_moves_up_goes_on_with_what_was_heard_before_it() {
    Log::listen();
    let world = Virtual::new();
    let network = Network::good();
    let (ours, theirs) = (behind(&world, &network).await, world.keeper().await);
    let held = theirs.mutex(NAME).lock().await.expect("free");
    for (faults, outage) in [(WELL, false), (DEAD, true)] {
        network.set(faults);
        let (front, next) = (ours.mutex(NAME), ours.mutex(NAME));
        let front = tokio::spawn(async move { front.lock().await });
        tokio::task::yield_now().await;
        let next = tokio::spawn(async move { next.lock_within(secs(5)).await });
        sleep(secs(5) - millis(1)).await;
        // From here on, nothing is answered in time.
        network.set(DEAD);
        front.abort();
        let error = next.await.expect("no panic").expect_err("held");
        assert_eq!(is_outage(&error), outage, "{error}");
    }
    drop(held);
}

/// Another call of the same owner is acquiring it.
#[tokio::test(start_paused = true)]
async fn calls_behind_another_of_their_owner_end_as_the_first_does() {
    Log::listen();
    let world = Virtual::new();
    let network = Network::good();
    let (ours, theirs) = (behind(&world, &network).await, world.keeper().await);
    let held = theirs.rw_lock(NAME).write().await.expect("free");
    let (lock, owner) = (ours.rw_lock(NAME), ours.owner());
    for (faults, outage) in [(WELL, false), (DEAD, true)] {
        network.set(faults);
        let (first, second) =
            tokio::join!(lock.read_as_within(&owner, secs(5)), lock.read_as_within(&owner, secs(4)));
        for result in [first, second] {
            let error = result.expect_err("held");
            assert_eq!(is_outage(&error), outage, "{error}");
            assert_eq!(matches!(error, AcquireError::TimedOut { .. }), !outage, "{error}");
        }
    }
    drop(held);
}

/// A task of this process holds it, and the store has nothing to do with that.
#[tokio::test(start_paused = true)]
async fn a_lock_that_this_process_holds_is_busy() {
    Log::listen();
    let world = Virtual::new();
    let network = Network::good();
    let keeper = behind(&world, &network).await;
    let held = keeper.mutex(NAME).lock().await.expect("free");
    let error = keeper.mutex(NAME).lock_within(millis(5)).await.expect_err("held");
    assert!(matches!(error, AcquireError::TimedOut { .. }), "{error}");
    drop(held);
}

/// Claims of one name go to the store one by one, so the limit of some passes before they are sent.
#[tokio::test(start_paused = true)]
async fn a_lock_that_is_too_busy_to_be_asked_for_is_busy() {
    Log::listen();
    let world = Virtual::new();
    let network = Network::good();
    let (ours, theirs) = (behind(&world, &network).await, world.keeper().await);
    let held = theirs.semaphore(NAME, 1).acquire().await.expect("free");
    let crowd = || -> Vec<_> {
        (0..200)
            .map(|_| {
                let semaphore = ours.semaphore(NAME, 1);
                tokio::spawn(async move { semaphore.acquire_within(millis(500)).await.map(drop) })
            })
            .collect()
    };
    network.set(Faults { usual: 10, ..WELL });
    let mut never_sent = 0;
    for result in ended(crowd()).await {
        let error = result.expect_err("held");
        assert!(matches!(error, AcquireError::TimedOut { .. }), "{error}");
        never_sent += usize::from(!error.maybe_applied());
    }
    assert!(never_sent > 50, "{never_sent}");
    // The last answers of before are there.
    sleep(secs(1)).await;
    network.set(DEAD);
    for result in ended(crowd()).await {
        let error = result.expect_err("no store");
        assert!(is_outage(&error), "{error}");
    }
    drop(held);
}

/// The last lock is asked for when less time is left than an answer takes.
#[tokio::test(start_paused = true)]
async fn locks_that_are_too_busy_together_are_busy() {
    Log::listen();
    let world = Virtual::new();
    let network = testing::Network::new();
    let (ours, theirs) = (world.keeper_behind(&network).await, world.keeper().await);
    let held = theirs.mutex("a").lock().await.expect("free");
    let waiting = tokio::spawn(async move {
        let both = all(&[ours.mutex("a"), ours.mutex("b")]);
        (both.lock_within(secs(5)).await.map(drop), ours)
    });
    sleep(secs(5) - millis(30)).await;
    // The grant of the first is pushed, so the next request is the claim of the second.
    network.next(Fate::late(millis(100)));
    held.release().await.expect("held");
    let (result, ours) = waiting.await.expect("no panic");
    let error = result.expect_err("too late");
    assert!(matches!(error, AcquireError::TimedOut { .. }), "{error}");
    assert!(error.to_string().contains("\"b\"") && error.maybe_applied(), "{error}");
    drop(ours);
}

#[tokio::test(start_paused = true)]
async fn a_latch_that_nothing_is_heard_of_is_not_closed() {
    Log::listen();
    let world = Virtual::new();
    let network = Network::good();
    let keeper = behind(&world, &network).await;
    let latch = keeper.latch(NAME);
    latch.create(2).await.expect("new");
    let waiting = tokio::spawn({
        let latch = latch.clone();
        async move { latch.wait_within(secs(20)).await }
    });
    sleep(secs(5)).await;
    network.set(DEAD);
    let error = waiting.await.expect("no panic").expect_err("no store");
    assert!(
        matches!(&error, LatchError::Store(error) if error.kind() == StoreErrorKind::Unreachable),
        "{error}"
    );
    let waiting = tokio::spawn(async move { latch.wait_within(secs(20)).await });
    sleep(secs(10)).await;
    network.set(WELL);
    let error = waiting.await.expect("no panic").expect_err("closed");
    assert!(matches!(error, LatchError::TimedOut { remaining: 2, .. }), "{error}");
}

/// A look changes nothing, so a wait for a latch is bounded by the keeper's limit alone.
#[tokio::test(start_paused = true)]
async fn waits_outlast_an_outage_that_is_shorter_than_the_limit() {
    Log::listen();
    let world = Virtual::new();
    let network = Network::good();
    let store = faulty(world.server.connector("memory:"), network.clone());
    let builder = Keeper::builder(store).virtual_time(world.clock.clock()).outage_limit(Duration::MAX);
    let (ours, theirs) = (builder.connect().await.expect("a good network"), world.keeper().await);
    let held = theirs.mutex(NAME).lock().await.expect("free");
    theirs.latch(NAME).create(1).await.expect("new");
    let (mutex, latch) = (ours.mutex(NAME), ours.latch(NAME));
    let locking = tokio::spawn(async move { mutex.lock().await.map(drop) });
    let opening = tokio::spawn(async move { latch.wait().await });
    sleep(secs(1)).await;
    network.set(DEAD);
    sleep(secs(3600)).await;
    assert!(!locking.is_finished() && !opening.is_finished(), "they wait for ever");
    network.set(WELL);
    drop(held);
    theirs.latch(NAME).count_down().await.expect("there");
    locking.await.expect("no panic").expect("granted in the end");
    opening.await.expect("no panic").expect("open");
}

#[tokio::test(start_paused = true)]
async fn a_thousand_waits_say_once_that_they_go_on_and_once_that_it_is_over() {
    let log = Log::listen();
    let world = Virtual::new();
    let network = Network::good();
    let (ours, theirs) = (behind(&world, &network).await, world.keeper().await);
    let mut held = Vec::new();
    for place in 0..100 {
        held.push(theirs.mutex(&format!("{NAME}/{place}")).lock().await.expect("free"));
    }
    let waiting: Vec<_> = (0..1000)
        .map(|place| {
            let mutex = ours.mutex(&format!("{NAME}/{}", place % 100)).fifo();
            tokio::spawn(async move { mutex.lock().await.map(drop) })
        })
        .collect();
    let latch = ours.latch(NAME);
    latch.create(1).await.expect("new");
    let waiting_for_latch = tokio::spawn({
        let latch = latch.clone();
        async move { latch.wait().await }
    });
    sleep(secs(3)).await;
    assert_eq!(log.all(), Vec::<String>::new());
    network.set(DEAD);
    sleep(secs(25)).await;
    let said = log.with("waiting goes on");
    assert_eq!(said.len(), 1, "{:#?}", log.all());
    assert!(said[0].contains("waiting=100") && said[0].contains("no answer within"), "{said:?}");
    network.set(WELL);
    sleep(secs(5)).await;
    assert_eq!(log.with("answers again").len(), 1, "{:#?}", log.all());
    drop(held);
    latch.count_down().await.expect("there");
    for result in ended(waiting).await {
        result.expect("granted in the end");
    }
    waiting_for_latch.await.expect("no panic").expect("open");
    assert_eq!(log.all().len(), 2, "{:#?}", log.all());
}

/// A server that fails every other request must not fill the log.
#[tokio::test(start_paused = true)]
async fn a_store_that_fails_now_and_then_says_so_now_and_then() {
    let log = Log::listen();
    let world = Virtual::new();
    let network = Network::good();
    let (ours, theirs) = (behind(&world, &network).await, world.keeper().await);
    let held = theirs.mutex(NAME).lock().await.expect("free");
    let mutex = ours.mutex(NAME);
    let waiting = tokio::spawn(async move { mutex.lock().await.map(drop) });
    network.set(Faults { lost_request: 500, ..WELL });
    sleep(secs(600)).await;
    let said = log.all().len();
    assert!((2..=124).contains(&said), "{said} in ten minutes: {:#?}", log.all());
    network.set(WELL);
    sleep(secs(20)).await;
    let begun = log.with("waiting goes on").len();
    assert_eq!(log.with("answers again").len(), begun, "each beginning has an end: {:#?}", log.all());
    drop(held);
    waiting.await.expect("no panic").expect("granted");
}

#[tokio::test(start_paused = true)]
async fn a_thousand_renewals_that_fail_say_so_once_a_second_and_once_that_it_is_over() {
    let log = Log::listen();
    let world = Virtual::new();
    let network = Network::good();
    let keeper = behind(&world, &network).await;
    let mut guards = Vec::new();
    for place in 0..1000 {
        let mutex = keeper.mutex(&format!("{NAME}/{place}")).lease(secs(60));
        guards.push(mutex.lock().await.expect("free"));
        // They are not renewed all at the same moment.
        sleep(millis(10)).await;
    }
    sleep(secs(30)).await;
    assert_eq!(log.all(), Vec::<String>::new());
    network.set(DEAD);
    sleep(secs(35)).await;
    let said = log.with("renewal failed");
    assert!((2..=36).contains(&said.len()), "{} in 35 s: {:#?}", said.len(), log.all());
    assert_eq!(said.len(), log.all().len(), "{:#?}", log.all());
    assert!(said[0].contains("leases=") && said[0].contains("no answer within"), "{said:?}");
    network.set(WELL);
    sleep(secs(5)).await;
    assert_eq!(log.with("answers again").len(), 1, "{:#?}", log.all());
    assert!(guards.iter().all(lockkeeper_core::Guard::is_held), "in time");
    let late = log.with("came late").len();
    assert!(late <= 4, "{late} events about late renewals: {:#?}", log.all());
    assert_eq!(log.all().len(), log.with("renewal failed").len() + 1 + late, "{:#?}", log.all());
    assert!(guards[0].renewal_error().is_none(), "it is over");
    sleep(secs(600)).await;
    assert_eq!(log.with("answers again").len(), 1, "{:#?}", log.all());
    drop(guards);
}

/// All leases end in an outage, so no renewal is ever answered again. A claim that is answered ends it.
#[tokio::test(start_paused = true)]
async fn an_outage_that_outlasts_all_leases_is_over_with_the_next_answer() {
    let log = Log::listen();
    let world = Virtual::new();
    let network = Network::good();
    let keeper = behind(&world, &network).await;
    let mut guards = Vec::new();
    for place in 0..100 {
        guards.push(keeper.mutex(&format!("{NAME}/{place}")).lock().await.expect("free"));
    }
    network.set(DEAD);
    sleep(secs(600)).await;
    let lost = log.with("lock lost");
    assert_eq!(lost.len(), 100);
    for row in &lost {
        assert!(
            row.contains("expired") && row.contains("no answer within"),
            "the last renewal's error: {row}"
        );
    }
    let error = guards[0].renewal_error().expect("it failed");
    assert_eq!(error.kind(), StoreErrorKind::Unreachable);
    assert!(error.to_string().contains("no answer within"), "{error}");
    let failed = log.with("renewal failed").len();
    assert!((2..=31).contains(&failed), "{failed}: {:#?}", log.with("renewal failed"));
    network.set(WELL);
    drop(guards);
    sleep(secs(5)).await;
    keeper.mutex(NAME).lock().await.expect("free").release().await.expect("held");
    assert_eq!(log.with("answers again").len(), 1, "{:#?}", log.with("store"));
}

/// The lease is shorter than a request may take, so it ends before the renewal has failed.
#[tokio::test(start_paused = true)]
async fn a_loss_names_a_renewal_that_is_not_answered_yet() {
    let log = Log::listen();
    let world = Virtual::new();
    let network = Network::good();
    let keeper = behind(&world, &network).await;
    let guard = keeper.mutex(NAME).lease(secs(1)).lock().await.expect("free");
    assert!(guard.renewal_error().is_none());
    network.set(DEAD);
    guard.lost().await;
    let lost = log.with("lock lost");
    assert!(lost.len() == 1 && lost[0].contains("has not been answered"), "{lost:?}");
    let error = guard.renewal_error().expect("not answered");
    assert!(error.to_string().contains(NAME), "{error}");
    drop(guard);
    // A fixed lease is not renewed, so no error of a renewal ended it.
    network.set(WELL);
    sleep(secs(10)).await;
    let fixed = keeper.mutex(NAME).expires_after(secs(5)).lock().await.expect("free in the end");
    fixed.lost().await;
    assert!(fixed.renewal_error().is_none());
    assert!(!log.with("lock lost")[1].contains("error"), "{:?}", log.with("lock lost"));
}

/// A process that locks rarely: nobody asks again after the outage.
#[tokio::test(start_paused = true)]
async fn an_outage_is_over_with_the_first_answer_if_nobody_waits_any_more() {
    let log = Log::listen();
    let world = Virtual::new();
    let network = Network::good();
    let (ours, theirs) = (behind(&world, &network).await, world.keeper().await);
    let held = theirs.mutex(NAME).lock().await.expect("free");
    for _ in 0..2 {
        LOGGED.take();
        network.set(DEAD);
        let error = ours.mutex(NAME).lock_within(secs(5)).await.expect_err("no store");
        assert!(is_outage(&error), "{error}");
        sleep(millis(1500)).await;
        assert_eq!(log.with("waiting goes on").len(), 1, "{:#?}", log.all());
        network.set(WELL);
        // What the wait left behind at the store is taken back.
        sleep(secs(3600)).await;
        let over = log.with("answers again");
        assert_eq!(over.len(), 1, "{:#?}", log.all());
        let lasted = over[0].split("failed_for_ms=").nth(1).and_then(|text| text.trim().parse().ok());
        assert!((4000..12_000).contains(&lasted.unwrap_or(0)), "{over:?}");
        assert_eq!(log.all().len(), 2, "{:#?}", log.all());
    }
    drop(held);
}

/// Its claim fails after the caller has the error.
#[tokio::test(start_paused = true)]
async fn a_wait_that_is_over_does_not_go_on() {
    let log = Log::listen();
    let world = Virtual::new();
    let network = Network::good();
    let keeper = behind(&world, &network).await;
    network.set(DEAD);
    let error = keeper.mutex(NAME).lock_within(secs(1)).await.expect_err("no store");
    assert!(is_outage(&error), "{error}");
    sleep(secs(60)).await;
    assert_eq!(log.all(), Vec::<String>::new());
}

/// The server that failed is never asked again, because another one keeps its names now.
#[tokio::test(start_paused = true)]
async fn an_outage_is_over_when_another_server_takes_over() {
    let log = Log::listen();
    let world = Virtual::new();
    let network = Network::good();
    let master = Arc::new(AtomicUsize::new(0));
    let store = Overrides::new()
        .servers({
            let master = master.clone();
            move |_, _| master.load(Ordering::Relaxed)
        })
        .of(faulty(world.server.connector("memory:"), network.clone()));
    let ours =
        Keeper::builder(store).virtual_time(world.clock.clock()).connect().await.expect("a good network");
    let theirs = world.keeper().await;
    let held = theirs.mutex(NAME).lock().await.expect("free");
    let renewed = ours.mutex("other").lock().await.expect("free");
    let mutex = ours.mutex(NAME);
    let waiting = tokio::spawn(async move { mutex.lock().await.map(drop) });
    sleep(secs(1)).await;
    network.set(DEAD);
    sleep(secs(20)).await;
    assert_eq!(log.with("waiting goes on").len(), 1, "{:#?}", log.all());
    assert!(!log.with("renewal failed").is_empty(), "{:#?}", log.all());
    master.store(1, Ordering::Relaxed);
    network.set(WELL);
    sleep(secs(5)).await;
    assert_eq!(log.with("work=\"waits\"").len(), 1, "{:#?}", log.all());
    assert_eq!(log.with("work=\"renewals\"").len(), 1, "{:#?}", log.all());
    sleep(secs(60)).await;
    assert_eq!(log.with("answers again").len(), 2, "{:#?}", log.all());
    drop((held, renewed));
    waiting.await.expect("no panic").expect("granted in the end");
}

/// The store answers, but does not know whether the lease is renewed: too few replicas have it.
#[tokio::test(start_paused = true)]
async fn renewals_of_unknown_outcome_fail() {
    let log = Log::listen();
    let world = Virtual::new();
    let doubtful = Arc::new(AtomicBool::new(false));
    let store = Overrides::new()
        .renewals({
            let doubtful = doubtful.clone();
            move |_, renewed| if doubtful.load(Ordering::Relaxed) { Renewed::Unknown } else { renewed }
        })
        .of(world.server.connector("memory:"));
    let keeper = Keeper::builder(store).virtual_time(world.clock.clock()).connect().await.expect("memory");
    let guard = keeper.mutex(NAME).lock().await.expect("free");
    doubtful.store(true, Ordering::Relaxed);
    sleep(secs(20)).await;
    let said = log.with("renewal failed");
    assert!(!said.is_empty() && said[0].contains("replicas"), "{:#?}", log.all());
    assert_eq!(said.len(), log.all().len(), "{:#?}", log.all());
    assert!(guard.renewal_error().is_some());
    doubtful.store(false, Ordering::Relaxed);
    sleep(secs(9)).await;
    assert!(guard.is_held() && guard.renewal_error().is_none(), "in time");
    assert_eq!(log.with("answers again").len(), 1, "{:#?}", log.all());
}
