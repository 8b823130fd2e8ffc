//! What operators see: the metrics that a run of everything brings forth are those of
//! `docs/observability.md`, no more, no fewer, and none carries a resource name.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex},
    time::Duration,
};

use lockkeeper_core::{Keeper, store::Eviction, support, testing::Virtual};
use lockkeeper_testkit::faulty::{Fate, Network, faulty};
use metrics::{
    Counter, CounterFn, Gauge, Histogram, HistogramFn, Key, KeyName, Metadata, Recorder, SharedString, Unit,
};
use tokio::time::{sleep, timeout};

const DOCUMENT: &str = include_str!("../../../docs/observability.md");
/// Part of every name used here, so that it can be looked for.
const SECRET: &str = "stock-of-warehouse-7";

/// Name and labels of a metric, and what was counted or recorded.
type Seen = Arc<Mutex<BTreeMap<String, Vec<f64>>>>;

#[derive(Default)]
struct Memory(Seen);

struct Sink {
    seen: Seen,
    key: String,
}

impl Sink {
    fn add(&self, value: f64) {
        let mut seen = support::lock(&self.seen);
        seen.entry(self.key.clone()).or_default().push(value);
    }
}

impl CounterFn for Sink {
    fn increment(&self, by: u64) {
        self.add(by as f64);
    }

    fn absolute(&self, _: u64) {
        panic!("counters are only ever incremented");
    }
}

impl HistogramFn for Sink {
    fn record(&self, value: f64) {
        self.add(value);
    }
}

impl Memory {
    fn sink(&self, key: &Key) -> Arc<Sink> {
        let labels: Vec<_> = key.labels().map(|label| format!("{}={}", label.key(), label.value())).collect();
        Arc::new(Sink { seen: self.0.clone(), key: format!("{}{{{}}}", key.name(), labels.join(",")) })
    }
}

impl Recorder for Memory {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        Counter::from_arc(self.sink(key))
    }

    fn register_gauge(&self, _: &Key, _: &Metadata<'_>) -> Gauge {
        panic!("there are no gauges")
    }

    fn register_histogram(&self, key: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::from_arc(self.sink(key))
    }
}

/// Everything that is counted happens at least once.
async fn live() {
    let world = Virtual::new();
    let network = Network::good();
    let store = faulty(world.server.connector("memory:"), network.clone());
    let ours =
        Keeper::builder(store).virtual_time(world.clock.clock()).connect().await.expect("a good network");
    let theirs = world.keeper().await;
    let name = SECRET;

    // Granted, busy, timed out, refused, queued, handed on.
    let guard = ours.mutex(name).lock().await.expect("free");
    let mutex = ours.mutex(name);
    let next = tokio::spawn(async move { drop(mutex.lock().await.expect("handed on")) });
    sleep(Duration::from_millis(1)).await;
    assert!(theirs.mutex(name).try_lock().await.expect("memory").is_none());
    theirs.mutex(name).lock_within(Duration::from_millis(2)).await.expect_err("held");
    theirs.semaphore(name, 3).acquire().await.expect_err("in use as a mutex");
    drop(guard);
    next.await.expect("no panic");
    drop(ours.rw_lock(&format!("{name}/rw")).read().await.expect("free"));
    drop(ours.semaphore(&format!("{name}/permits"), 3).acquire().await.expect("free"));
    drop(ours.election(&format!("{name}/leader")).campaign("me").await.expect("free"));

    // Renewed, renewed late, renewal failed.
    let guard = ours.mutex(name).lease(Duration::from_secs(3)).lock().await.expect("free");
    sleep(Duration::from_millis(1500)).await;
    network.next(Fate::late(Duration::from_millis(1900)));
    sleep(Duration::from_secs(3)).await;
    assert!(guard.is_held(), "late, but in time");
    network.next(Fate::LOST_REPLY);
    sleep(Duration::from_secs(4)).await;

    // Lost for every reason.
    let token = guard.token();
    network.cut();
    guard.lost().await;
    ours.mutex(name).lock_within(Duration::from_secs(60)).await.expect_err("no store");
    let guard = theirs.mutex(name).lease(Duration::from_secs(3)).lock().await.expect("free in the end");
    theirs.fence(name).admit(guard.token()).await.expect("the newest");
    theirs.fence(name).admit(token).await.expect_err("an old one");
    let holder = theirs.inspect(name).await.expect("memory").expect("held").holders.remove(0);
    theirs.evict(name, holder.contender, holder.token, Eviction::Graceful).await.expect("memory");
    guard.lost().await;
    drop(guard);
    let mutex = theirs.mutex(name).lease(Duration::from_secs(3));
    let guard = mutex.lock().await.expect("free");
    world.server.lose_data();
    guard.lost().await;
    drop(guard);
    let guard = mutex.clone().max_hold(Duration::from_secs(5)).lock().await.expect("free");
    guard.lost().await;
    drop(guard);
    let guard = mutex.lock().await.expect("free");
    theirs.close().await;
    guard.lost().await;
    // What is cut off gives up in time.
    timeout(Duration::from_secs(600), ours.close()).await.expect("the leases are long over");
}

fn seen() -> BTreeMap<String, Vec<f64>> {
    let memory = Memory::default();
    metrics::with_local_recorder(&memory, || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
        runtime.expect("a runtime").block_on(live());
    });
    let seen = support::lock(&memory.0);
    seen.clone()
}

#[test]
fn metrics_are_those_of_the_document() {
    let seen = seen();
    let names: BTreeSet<&str> = seen.keys().filter_map(|key| key.split('{').next()).collect();
    let documented: BTreeSet<&str> = DOCUMENT
        .split('`')
        .filter(|word| word.starts_with("lockkeeper_") && !word.contains([':', '{']))
        .collect();
    let documented: BTreeSet<&str> =
        documented.into_iter().filter(|name| *name != "lockkeeper_core").collect();
    assert_eq!(names, documented);
    for key in seen.keys() {
        assert!(!key.contains(SECRET), "{key} carries a resource name");
        for label in key.split(['{', '}', ',']).filter(|part| part.contains('=')) {
            let (label, value) = label.split_once('=').expect("looked for");
            assert!(["kind", "outcome", "reason"].contains(&label), "{key}");
            assert!(DOCUMENT.contains(&format!("`{value}`")), "{value} of {label} is not in the document");
        }
    }
}

#[test]
fn every_documented_word_occurs() {
    let seen = seen();
    let has = |metric: &str, label: &str, word: &str| {
        let wanted = format!("{label}={word}");
        seen.keys()
            .any(|key| key.starts_with(metric) && key.split(['{', '}', ',']).any(|part| part == wanted))
    };
    for kind in ["mutex", "rw_lock", "semaphore", "election"] {
        assert!(has("lockkeeper_acquired_total", "kind", kind), "{kind}");
        assert!(has("lockkeeper_hold_seconds", "kind", kind), "{kind}");
    }
    for outcome in ["granted", "busy", "timed_out", "refused", "store_error"] {
        assert!(has("lockkeeper_acquired_total", "outcome", outcome), "{outcome}");
    }
    for reason in ["expired", "gone", "evicted", "max_hold", "closed"] {
        assert!(has("lockkeeper_lost_total", "reason", reason), "{reason}: {:?}", seen.keys());
    }
}
