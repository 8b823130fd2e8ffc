//! Metrics for Prometheus: those of the library, those of this server, and those of the store's locks.
//!
//! Names are part of the public contract and listed in `docs/observability.md`.

use std::{
    fmt::Write,
    sync::OnceLock,
    time::{Duration, Instant, SystemTime},
};

use lockkeeper::{store::ResourceView, telemetry};
use lockkeeper_console::Alarm;
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};

use crate::{sample::Sample, tokens::Who};

/// Requests to this server that ended: `path`, `status`.
const REQUESTS: &str = "lockkeeper_http_requests_total";
/// How long they took, with their waits: `path`.
const SECONDS: &str = "lockkeeper_http_request_seconds";
/// Requests that wait for a lock or a latch at this moment.
pub(crate) const WAITING: &str = "lockkeeper_http_waiting";
/// Open connections.
pub(crate) const CONNECTIONS: &str = "lockkeeper_http_connections";
/// Lines of the log that were lost because nobody read it.
pub(crate) const LOG_LOST: &str = "lockkeeper_http_log_lost_total";
/// How long requests to the store took: `operation`.
const STORE_REQUEST: &str = "lockkeeper_store_request_seconds";
/// How long listings of the store took.
pub(crate) const LISTING: &str = "lockkeeper_store_listing_seconds";
/// Locks that are held at the store, by anybody.
const STORE_HELD: &str = "lockkeeper_store_held";
/// Contenders that wait at the store, of anybody.
const STORE_WAITING: &str = "lockkeeper_store_waiting";
/// The age of the oldest hold at the store.
const OLDEST_HOLD: &str = "lockkeeper_store_oldest_hold_seconds";
/// The age of the oldest wait at the store.
const OLDEST_WAIT: &str = "lockkeeper_store_oldest_wait_seconds";
/// The waiters of the hottest locks: `name`.
const LOCK_WAITING: &str = "lockkeeper_lock_waiting";

/// The beginning of a line of the console's gauge of alarms.
const ALARMS_OF_KIND: &str = "lockkeeper_alarms{kind=\"";

/// The buckets of `docs/observability.md`.
const WAITS: [f64; 18] = [
    0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0,
    3600.0,
];
const HOLDS: [f64; 18] = [
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 3600.0,
    86400.0,
];
const AHEAD: [f64; 11] = [0.0, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0];

/// The pause between two tidyings of the exporter.
const UPKEEP: Duration = Duration::from_secs(5);

/// The paths that requests are counted by; all others are one.
const PATHS: [&str; 27] = [
    "/v1/acquire",
    "/v1/renew",
    "/v1/release",
    "/v1/locks",
    "/v1/lock",
    "/v1/events",
    "/v1/evict",
    "/v1/latches",
    "/v1/latch/create",
    "/v1/latch/down",
    "/v1/latch/wait",
    "/v1/latch/show",
    "/v1/latch/reset",
    "/v1/latch/delete",
    "/v1/leader",
    "/v1/fence",
    "/v1/whoami",
    "/v1/store",
    "/v1/history",
    "/v1/hot",
    "/v1/alarms",
    "/v1/console",
    "/",
    "/v1/openapi.json",
    "/metrics",
    "/healthz",
    "/readyz",
];

/// Returns the label of a path. Calls of unknown paths must not make new series.
pub(crate) fn label(path: &str) -> &'static str {
    PATHS.into_iter().find(|known| *known == path).unwrap_or("other")
}

/// Counts a request that was answered.
pub(crate) fn answered(path: &'static str, status: u16, took: Duration) {
    metrics::counter!(REQUESTS, "path" => path, "status" => status_text(status)).increment(1);
    metrics::histogram!(SECONDS, "path" => path).record(took.as_secs_f64());
}

fn status_text(status: u16) -> &'static str {
    match status {
        200 => "200",
        400 => "400",
        401 => "401",
        403 => "403",
        404 => "404",
        405 => "405",
        409 => "409",
        410 => "410",
        413 => "413",
        429 => "429",
        503 => "503",
        _ => "other",
    }
}

/// Counts the time of a request to the store.
pub(crate) fn store_request(operation: &'static str, started: Instant) {
    metrics::histogram!(STORE_REQUEST, "operation" => operation).record(started.elapsed().as_secs_f64());
}

/// Renders the metrics.
#[derive(Clone)]
pub(crate) struct Exporter {
    handle: PrometheusHandle,
}

impl Exporter {
    /// Counts from now on; returns `None` if the program has an exporter of its own.
    pub(crate) fn install() -> Option<Self> {
        static INSTALLED: OnceLock<Option<PrometheusHandle>> = OnceLock::new();
        let handle = INSTALLED.get_or_init(install).clone()?;
        Some(Self { handle })
    }

    /// Tidies up for ever.
    pub(crate) async fn keep_up(self) {
        loop {
            tokio::time::sleep(UPKEEP).await;
            self.handle.run_upkeep();
        }
    }

    /// Returns all metrics, with gauges of the store's locks that `who` may see. Without a sample these gauges are left
    /// out; `lockkeeper_store_up` says why.
    pub(crate) fn render(&self, store: &str, hottest: usize, sample: Option<&Sample>, who: &Who) -> String {
        let mut text = self.handle.render();
        if let Some(sample) = sample {
            store_gauges(&mut text, store, sample, who);
            hottest_locks(&mut text, hottest, sample, who);
        }
        text
    }
}

fn install() -> Option<PrometheusHandle> {
    let full = |name: &str| Matcher::Full(name.to_owned());
    let recorder = PrometheusBuilder::new()
        .set_buckets_for_metric(full(telemetry::WAIT), &WAITS)
        .and_then(|builder| builder.set_buckets_for_metric(full(telemetry::HOLD), &HOLDS))
        .and_then(|builder| builder.set_buckets_for_metric(full(telemetry::QUEUE), &AHEAD))
        .and_then(|builder| builder.set_buckets_for_metric(full(SECONDS), &WAITS))
        .and_then(|builder| builder.set_buckets_for_metric(full(STORE_REQUEST), &WAITS))
        .and_then(|builder| builder.set_buckets_for_metric(full(LISTING), &WAITS))
        .ok()?
        .build_recorder();
    let handle = recorder.handle();
    metrics::set_global_recorder(recorder).ok()?;
    describe();
    telemetry::register();
    Some(handle)
}

fn describe() {
    metrics::describe_counter!(REQUESTS, "Requests that this server answered, by path and status");
    metrics::describe_histogram!(SECONDS, "How long requests to this server took, with their waits");
    metrics::describe_gauge!(WAITING, "Requests that wait for a lock or a latch at this moment");
    metrics::describe_gauge!(CONNECTIONS, "Open connections");
    metrics::describe_counter!(LOG_LOST, "Lines of the log that were lost because nobody read it");
    metrics::describe_histogram!(STORE_REQUEST, "How long requests to the store took, by operation");
    metrics::describe_histogram!(LISTING, "How long listings of the store took");
    metrics::counter!(LOG_LOST).increment(0);
    metrics::gauge!(WAITING).set(0.0);
}

/// Replaces the gauge of alarms in `text` by counts of `active`: the alarms that a caller with prefixes may see.
pub(crate) fn with_own_alarms(text: &str, active: &[Alarm]) -> String {
    let kind =
        |line: &str| line.strip_prefix(ALARMS_OF_KIND)?.split_once('"').map(|(kind, _)| kind.to_owned());
    let mut own = String::with_capacity(text.len());
    for line in text.lines() {
        match kind(line) {
            Some(kind) => {
                let count = active.iter().filter(|alarm| alarm.kind.word() == kind).count();
                let _ = writeln!(own, "{ALARMS_OF_KIND}{kind}\"}} {count}");
            }
            None => {
                own.push_str(line);
                own.push('\n');
            }
        }
    }
    own
}

/// Writes the gauges of all holds and waits at the store, of the names that the caller may see.
fn store_gauges(text: &mut String, store: &str, sample: &Sample, who: &Who) {
    let may_see = |view: &&ResourceView| who.may_use(view.name.as_str());
    let views = || sample.locks.values().map(|entry| &*entry.view).filter(may_see);
    let held: usize = views().map(|view| view.holders.len()).sum();
    let waiting: usize = views().map(|view| view.waiters.len()).sum();
    let age = |since: SystemTime| SystemTime::now().duration_since(since).unwrap_or_default().as_secs_f64();
    let oldest_hold = views().flat_map(|view| view.holders.iter().map(|holder| holder.since)).min();
    let oldest_wait = views().flat_map(|view| view.waiters.iter().map(|waiter| waiter.since)).min();
    let gauges = [
        (STORE_HELD, "Holds at the store, of anybody", held as f64),
        (STORE_WAITING, "Contenders that wait at the store, of anybody", waiting as f64),
        (OLDEST_HOLD, "The age of the oldest hold at the store", oldest_hold.map_or(0.0, age)),
        (OLDEST_WAIT, "The age of the oldest wait at the store", oldest_wait.map_or(0.0, age)),
    ];
    for (name, help, value) in gauges {
        head(text, name, help);
        // Writing to text does not fail.
        let _ = writeln!(text, "{name}{{store=\"{}\"}} {value}", escaped(store));
    }
}

/// Writes a gauge for each of the locks with the most waiters, of the names that the caller may see.
fn hottest_locks(text: &mut String, most: usize, sample: &Sample, who: &Who) {
    if most == 0 {
        return;
    }
    let mut names: Vec<_> = sample
        .locks
        .values()
        .map(|entry| (entry.view.waiters.len(), entry.view.name.as_str()))
        .filter(|(_, name)| who.may_use(name))
        .collect();
    names.sort_unstable_by(|(a, x), (b, y)| b.cmp(a).then(x.cmp(y)));
    head(text, LOCK_WAITING, "Waiters of the locks that have the most");
    for (waiters, name) in names.into_iter().take(most) {
        let _ = writeln!(text, "{LOCK_WAITING}{{name=\"{}\"}} {waiters}", escaped(name));
    }
}

fn head(text: &mut String, name: &str, help: &str) {
    let _ = writeln!(text, "\n# HELP {name} {help}\n# TYPE {name} gauge");
}

fn escaped(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}
