//! `doctor`: checks whether the store is fit for locks, and advises if it is not.

use std::time::{Duration, Instant, SystemTime};

use lockkeeper::{
    Keeper,
    doctor::{Finding, ServerState},
    support::duration,
};
use serde_json::{Value, json};

use crate::{
    args::{DoctorArgs, StoreArgs},
    exit::{self, Failure},
    store, text,
};

/// The exit code when there are findings.
const WARNINGS: u8 = 1;
/// A clock that differs by more than this is reported. Only grant numbers after a loss of data depend on it.
const CLOCK_TOLERANCE: Duration = Duration::from_secs(2);

/// The results of an examination.
struct Report {
    store: String,
    kind: &'static str,
    connect: Duration,
    acquire: Duration,
    release: Duration,
    clock: Option<Clock>,
    servers: Vec<ServerState>,
    findings: Vec<Finding>,
}

/// The difference between the store's clock and that of this machine.
struct Clock {
    offset: Duration,
    ahead: bool,
    /// How far the offset may be off, because the answer took a while.
    unsure: Duration,
}

/// Runs `lockkeeper doctor`.
pub(crate) async fn doctor(store: &StoreArgs, args: &DoctorArgs) -> Result<u8, Failure> {
    match examine(store).await {
        Ok(report) => {
            let text = if args.json { format!("{}\n", text::json(&report.json())) } else { report.text() };
            text::print(&text)?;
            Ok(if report.findings.is_empty() { 0 } else { WARNINGS })
        }
        Err(failure) => {
            if args.json && failure.code == exit::UNREACHABLE {
                let out = json!({ "ok": false, "error": failure.message });
                text::print(&format!("{}\n", text::json(&out)))?;
            }
            Err(failure)
        }
    }
}

async fn examine(args: &StoreArgs) -> Result<Report, Failure> {
    let started = Instant::now();
    let connected = store::connect(args).await?;
    let connect = started.elapsed();
    let result = of_store(&connected.keeper, &connected.url, connect).await;
    store::close(&connected.keeper).await;
    result
}

async fn of_store(keeper: &Keeper, url: &str, connect: Duration) -> Result<Report, Failure> {
    // A name of its own: two doctors at a time do not wait for each other.
    let name = format!("lockkeeper/doctor/{}", keeper.id());
    let mutex = keeper.mutex(&name);
    let started = Instant::now();
    let before = SystemTime::now();
    let guard = mutex.lock().await?;
    let acquire = started.elapsed();
    let view = keeper.inspect(&name).await?;
    let clock = view.and_then(|view| Some(clock(before, acquire, view.holders.first()?.since)));
    let started = Instant::now();
    guard.release().await?;
    let release = started.elapsed();
    let lockkeeper::doctor::Examination { servers, mut findings, .. } =
        lockkeeper::doctor::examine(url).await?;
    let told = |findings: &[Finding]| findings.iter().any(|finding| finding.risk == "Clock");
    let off = clock.as_ref().filter(|clock| clock.offset > CLOCK_TOLERANCE + clock.unsure);
    if let (Some(clock), false) = (off, told(&findings)) {
        let offset = duration::show(clock.offset);
        let message =
            format!("its clock and that of this machine differ by {offset}; let both follow a time server");
        findings.push(Finding::of_store("Clock", &message));
    }
    let (store, kind) = (keeper.url().to_owned(), keeper.capability().store);
    Ok(Report { store, kind, connect, acquire, release, clock, servers, findings })
}

/// Compares the clocks. The store made the grant after `before` and within `took`.
fn clock(before: SystemTime, took: Duration, granted: SystemTime) -> Clock {
    let middle = before + took / 2;
    match granted.duration_since(middle) {
        Ok(offset) => Clock { offset, ahead: true, unsure: took / 2 },
        Err(error) => Clock { offset: error.duration(), ahead: false, unsure: took / 2 },
    }
}

fn exact(length: Duration) -> String {
    format!("{:.1} ms", length.as_secs_f64() * 1000.0)
}

fn milliseconds(length: Duration) -> Value {
    json!((length.as_secs_f64() * 1_000_000.0).round() / 1000.0)
}

impl Report {
    fn text(&self) -> String {
        let mut rows = vec![
            vec!["store".to_owned(), text::plain(&format!("{} ({})", self.store, self.kind))],
            vec!["connected".to_owned(), format!("in {}", exact(self.connect))],
            vec!["acquired".to_owned(), format!("a lock in {}", exact(self.acquire))],
            vec!["released".to_owned(), format!("it in {}", exact(self.release))],
        ];
        if let Some(clock) = &self.clock {
            let side = if clock.ahead { "ahead of" } else { "behind" };
            let (offset, unsure) = (exact(clock.offset), exact(clock.unsure));
            rows.push(vec![
                "clock".to_owned(),
                format!("{offset} {side} that of this machine, or {unsure} less or more"),
            ]);
        }
        for server in &self.servers {
            let told = format!("{}: {}", server.server, server.words());
            rows.push(vec!["server".to_owned(), text::plain(&told)]);
        }
        for finding in &self.findings {
            rows.push(vec!["warning".to_owned(), text::plain(&finding.to_string())]);
        }
        if self.findings.is_empty() {
            rows.push(vec!["warnings".to_owned(), "none".to_owned()]);
        }
        text::table(&rows)
    }

    fn json(&self) -> Value {
        let finding = |finding: &Finding| json!({ "server": finding.server, "risk": finding.risk, "message": finding.message });
        let server = |it: &ServerState| json!({ "server": it.server, "answers": it.answers, "role": it.role, "version": it.version });
        let offset = |clock: &Clock| {
            let sign = if clock.ahead { 1.0 } else { -1.0 };
            (clock.offset.as_secs_f64() * 1_000_000.0).round() / 1000.0 * sign
        };
        json!({
            "ok": self.findings.is_empty(),
            "store": self.store,
            "kind": self.kind,
            "connect_ms": milliseconds(self.connect),
            "acquire_ms": milliseconds(self.acquire),
            "release_ms": milliseconds(self.release),
            "clock_offset_ms": self.clock.as_ref().map(offset),
            "servers": self.servers.iter().map(server).collect::<Vec<_>>(),
            "findings": self.findings.iter().map(finding).collect::<Vec<_>>(),
        })
    }
}
