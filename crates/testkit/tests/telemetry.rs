//! Telemetry for operators: the metrics of a run of everything are those of `docs/observability.md`, no more, no fewer,
//! and none carries a resource name.

use std::{
    collections::{BTreeMap, BTreeSet},
    process::Command,
    sync::{Arc, Mutex},
    time::Duration,
};

use lockkeeper_core::{Keeper, store::Eviction, support, testing::Virtual};
use lockkeeper_testkit::faulty::{Fate, Faults, Network, faulty};
use metrics::{
    Counter, CounterFn, Gauge, GaugeFn, Histogram, HistogramFn, Key, KeyName, Metadata, Recorder,
    SharedString, Unit,
};
use tokio::time::{sleep, timeout};

const DOCUMENT: &str = include_str!("../../../docs/observability.md");
/// Part of every name used here, so that it can be looked for.
const SECRET: &str = "stock-of-warehouse-7";

/// Name and labels of a metric, and the values that were counted, recorded or set.
type Seen = Arc<Mutex<BTreeMap<String, Vec<f64>>>>;

#[derive(Default)]
struct Memory {
    seen: Seen,
    /// Help texts by type and name.
    help: Mutex<BTreeMap<String, (&'static str, String)>>,
}

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

impl GaugeFn for Sink {
    fn increment(&self, _: f64) {
        panic!("gauges are only ever set, so an exporter may come late");
    }

    fn decrement(&self, _: f64) {
        panic!("gauges are only ever set, so an exporter may come late");
    }

    fn set(&self, value: f64) {
        self.add(value);
    }
}

impl Memory {
    fn sink(&self, key: &Key) -> Arc<Sink> {
        let labels: Vec<_> = key.labels().map(|label| format!("{}={}", label.key(), label.value())).collect();
        let key = format!("{}{{{}}}", key.name(), labels.join(","));
        support::lock(&self.seen).entry(key.clone()).or_default();
        Arc::new(Sink { seen: self.seen.clone(), key })
    }

    fn described(&self, kind: &'static str, name: &KeyName, help: SharedString) {
        support::lock(&self.help).insert(name.as_str().to_owned(), (kind, help.into_owned()));
    }

    /// The last value of a metric.
    fn last(&self, key: &str) -> Option<f64> {
        support::lock(&self.seen).get(key)?.last().copied()
    }
}

impl Recorder for Memory {
    fn describe_counter(&self, name: KeyName, _: Option<Unit>, help: SharedString) {
        self.described("counter", &name, help);
    }

    fn describe_gauge(&self, name: KeyName, _: Option<Unit>, help: SharedString) {
        self.described("gauge", &name, help);
    }

    fn describe_histogram(&self, name: KeyName, _: Option<Unit>, help: SharedString) {
        self.described("histogram", &name, help);
    }

    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        Counter::from_arc(self.sink(key))
    }

    fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::from_arc(self.sink(key))
    }

    fn register_histogram(&self, key: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::from_arc(self.sink(key))
    }
}

/// Makes everything that is counted happen at least once.
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
    // A keeper that is cut off gives up in time.
    timeout(Duration::from_secs(600), ours.close()).await.expect("the leases are long over");
}

/// Runs `work` in virtual time and returns the metrics that it brought forth.
fn recorded(work: impl AsyncFnOnce(&Memory)) -> Memory {
    let memory = Memory::default();
    metrics::with_local_recorder(&memory, || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
        runtime.expect("a runtime").block_on(work(&memory));
    });
    memory
}

/// The metrics that have values, without those that were only registered.
fn seen() -> BTreeMap<String, Vec<f64>> {
    let memory = recorded(async |_| live().await);
    let mut seen = support::lock(&memory.seen).clone();
    seen.retain(|_, values| !values.is_empty());
    seen
}

/// The names in tables of metrics, each with its type.
fn tables(document: &'static str) -> BTreeMap<&'static str, &'static str> {
    let rows = document.lines().filter(|row| row.starts_with("| `lockkeeper_"));
    let cells = rows.filter_map(|row| {
        let mut cells = row.split('|').map(|cell| cell.trim().trim_matches('`')).skip(1);
        Some((cells.next()?, cells.next()?))
    });
    cells.filter(|(_, kind)| ["counter", "histogram", "gauge"].contains(kind)).collect()
}

/// The library's own metrics. Those of `serve` are in a table behind them.
fn table() -> BTreeMap<&'static str, &'static str> {
    let (library, _) = DOCUMENT.split_once("<a id=\"metrics-of-the-server\">").expect("a second table");
    tables(library)
}

#[test]
fn metrics_are_those_of_the_document() {
    let seen = seen();
    let names: BTreeSet<&str> = seen.keys().filter_map(|key| key.split('{').next()).collect();
    assert_eq!(names, table().into_keys().collect());
    for key in seen.keys() {
        assert!(!key.contains(SECRET), "{key} carries a resource name");
        for label in key.split(['{', '}', ',']).filter(|part| part.contains('=')) {
            let (label, value) = label.split_once('=').expect("looked for");
            assert!(["kind", "outcome", "reason", "store"].contains(&label), "{key}");
            assert!(
                label == "store" || DOCUMENT.contains(&format!("`{value}`")),
                "{value} of {label} is not in the document"
            );
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

/// An alert on a counter works from the first scrape on, and `HELP` explains each metric.
#[test]
fn a_keeper_that_has_done_nothing_shows_every_counter_and_gauge() {
    let memory = recorded(async |_| drop(Virtual::new().keeper().await));
    let help = support::lock(&memory.help).clone();
    let described: BTreeMap<&str, &str> =
        help.iter().map(|(name, (kind, _))| (name.as_str(), *kind)).collect();
    assert_eq!(described, table());
    assert!(help.values().all(|(_, help)| !help.is_empty()));
    let seen = support::lock(&memory.seen);
    for (name, kind) in table().iter().filter(|(_, kind)| **kind != "histogram") {
        let registered: Vec<_> = seen.iter().filter(|(key, _)| key.split('{').next() == Some(name)).collect();
        assert!(!registered.is_empty(), "{name}");
        if *kind == "counter" {
            assert!(registered.iter().all(|(_, values)| values.is_empty()), "{name} is not zero");
        }
    }
    for (metric, label) in [("acquired_total{kind=mutex,", "outcome"), ("lost_total{", "reason")] {
        let (_, rest) = DOCUMENT.split_once(&format!("\n- `{label}`: ")).expect("listed");
        let words = rest.split("\n-").next().expect("the rest of its item");
        let words: Vec<_> = words.split('`').skip(1).step_by(2).collect();
        assert!(words.len() >= 5, "{words:?}");
        for word in words {
            let key = format!("lockkeeper_{metric}{label}={word}}}");
            assert!(seen.contains_key(&key), "{key}: {:?}", seen.keys());
        }
    }
}

/// A keeper on a store with this URL.
async fn keeper_at(world: &Virtual, url: &str, network: &Arc<Network>) -> Keeper {
    let store = faulty(world.server.connector(url), network.clone());
    Keeper::builder(store).virtual_time(world.clock.clock()).connect().await.expect("a good network")
}

#[test]
fn gauges_show_what_the_keepers_of_a_store_have_in_hand() {
    let url = "memory:in-hand";
    let gauge = |name: &str| format!("lockkeeper_{name}{{store={url}}}");
    let memory = recorded(async |memory| {
        let world = Virtual::new();
        let network = Network::good();
        let (one, other) = (keeper_at(&world, url, &network).await, keeper_at(&world, url, &network).await);
        let shown = || ["held", "waiting", "store_up"].map(|name| memory.last(&gauge(name)));
        assert_eq!(shown(), [Some(0.0), Some(0.0), Some(1.0)]);
        let guards = [
            one.mutex("a").lock().await.expect("free"),
            one.mutex("b").lock().await.expect("free"),
            other.mutex("c").lock().await.expect("free"),
        ];
        let mutex = other.mutex("a");
        let waiting = tokio::spawn(async move { mutex.lock().await.map(drop) });
        sleep(Duration::from_secs(10)).await;
        assert_eq!(shown(), [Some(3.0), Some(1.0), Some(1.0)]);
        drop(guards);
        waiting.await.expect("no panic").expect("granted");
        sleep(Duration::from_secs(10)).await;
        assert_eq!(shown(), [Some(0.0), Some(0.0), Some(1.0)]);
        let guard = one.mutex("a").lock().await.expect("free");
        sleep(Duration::from_secs(10)).await;
        assert_eq!(shown()[0], Some(1.0));
        one.close().await;
        sleep(Duration::from_secs(10)).await;
        assert_eq!(shown()[0], Some(0.0), "it is closed");
        drop(guard);
    });
    assert_eq!(memory.last(&gauge("held")), Some(0.0));
}

#[test]
fn a_gauge_shows_whether_the_store_answers() {
    let url = "memory:up-and-down";
    let key = format!("lockkeeper_store_up{{store={url}}}");
    recorded(async |memory| {
        let world = Virtual::new();
        let network = Network::good();
        let (keeper, idle) = (keeper_at(&world, url, &network).await, keeper_at(&world, url, &network).await);
        let up = || memory.last(&key) == Some(1.0);
        let dead = Faults { lost_request: 1000, usual: 0, ..Faults::NONE };
        let guard = keeper.mutex("a").lock().await.expect("free");
        assert!(up());
        network.set(dead);
        sleep(Duration::from_secs(15)).await;
        assert!(!up(), "renewals fail");
        network.set(Faults { usual: 0, ..Faults::NONE });
        sleep(Duration::from_secs(5)).await;
        assert!(up() && guard.is_held());
        network.set(dead);
        idle.mutex("b").try_lock().await.expect_err("no store");
        assert!(!up(), "a claim fails");
        drop(guard);
        sleep(Duration::from_secs(600)).await;
        assert!(up(), "nobody asks any more, so nobody knows");
        idle.mutex("b").try_lock().await.expect_err("no store");
        assert!(!up());
        drop(idle);
        sleep(Duration::from_secs(600)).await;
        assert!(up(), "who knew is gone");
    });
}

/// Calls of one owner that wait for each other end outside of the engine.
#[test]
fn calls_of_one_owner_are_all_counted() {
    let memory = recorded(async |memory| {
        let world = Virtual::new();
        let (ours, theirs) = (world.keeper().await, world.keeper().await);
        let held = theirs.mutex(SECRET).lock().await.expect("free");
        let (mutex, owner) = (ours.mutex(SECRET), ours.owner());
        let (first, second, third) = tokio::join!(
            mutex.lock_as_within(&owner, Duration::from_secs(5)),
            mutex.lock_as_within(&owner, Duration::from_secs(4)),
            mutex.try_lock_as(&owner),
        );
        assert!(first.is_err() && second.is_err() && third.expect("memory").is_none());
        let counted = |outcome: &str| {
            let key = format!("lockkeeper_acquired_total{{kind=mutex,outcome={outcome}}}");
            support::lock(&memory.seen).get(&key).map_or(0, Vec::len)
        };
        assert_eq!((counted("timed_out"), counted("busy")), (2, 1));
        drop(held);
    });
    drop(memory);
}

/// The alert rules of the document.
fn alert_rules() -> &'static str {
    DOCUMENT.split("```yaml\n").nth(1).and_then(|rest| rest.split("```").next()).expect("rules")
}

/// Prometheus takes the rules, and each of them fires when it should.
#[test]
fn alerts_fire() {
    let folder = tempfile::tempdir().expect("a folder");
    let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).expect("written");
    write("rules.yml", alert_rules());
    write("alerts.yml", include_str!("alerts.yml"));
    for arguments in [["check", "rules", "rules.yml"], ["test", "rules", "alerts.yml"]] {
        let told = Command::new("promtool").args(arguments).current_dir(folder.path()).output();
        let told = told.unwrap_or_else(|error| panic!("promtool: {error}; ./test tools installs it"));
        assert!(told.status.success(), "{arguments:?}: {told:?}");
    }
}

/// The rules are complete, and each metric and label that they use exists.
#[test]
fn alert_rules_use_metrics_that_exist() {
    let rules = alert_rules();
    let mut alerts = 0;
    let mut open = BTreeSet::new();
    for row in rules.lines().filter(|row| !row.trim().is_empty()) {
        let field = row.trim_start().trim_start_matches("- ");
        if let Some(name) = field.strip_prefix("alert: ") {
            assert!(open.is_empty(), "{open:?} is missing before {name}");
            assert!(name.starts_with("Lockkeeper") && name.chars().all(char::is_alphanumeric), "{name}");
            open = BTreeSet::from(["expr", "for", "severity", "summary"]);
            alerts += 1;
        } else if let Some((field, value)) = field.split_once(':') {
            open.remove(field);
            assert!(field == "expr" || !value.contains("lockkeeper_"), "{row}");
        }
        for used in row.split("lockkeeper_").skip(1) {
            let end = used.find(|c: char| !c.is_ascii_lowercase() && c != '_').unwrap_or(used.len());
            let name = format!("lockkeeper_{}", &used[..end]);
            let metric = ["_bucket", "_sum", "_count"].iter().find_map(|part| name.strip_suffix(part));
            let kind = tables(DOCUMENT).get(metric.unwrap_or(&name)).copied();
            assert_eq!(kind.map(|kind| kind == "histogram"), Some(metric.is_some()), "{name} in {row}");
        }
        assert_eq!(row.matches('(').count(), row.matches(')').count(), "{row}");
        assert_eq!(row.matches('{').count(), row.matches('}').count(), "{row}");
    }
    assert!(open.is_empty() && alerts >= 5, "{open:?}");
}
