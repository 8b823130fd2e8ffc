//! A log that blocks or panics delays no lost signal and no renewal.

use std::{
    sync::atomic::{AtomicBool, AtomicUsize, Ordering},
    thread,
    time::Duration,
};

use lockkeeper_core::{Keeper, Lost, clock::Clock, memory::MemoryServer, telemetry, testing::Network};
use lockkeeper_testkit::log;
use tokio::time::{Instant, sleep, timeout};
use tracing::Level;

const LEASE: Duration = Duration::from_secs(1);

/// Whether the log panics instead of blocking.
static PANICS: AtomicBool = AtomicBool::new(true);
static BLOCKED: AtomicBool = AtomicBool::new(true);
static LINES: AtomicUsize = AtomicUsize::new(0);

fn broken(row: &str) {
    if !row.contains("lock lost") {
        return;
    }
    LINES.fetch_add(1, Ordering::SeqCst);
    assert!(!PANICS.load(Ordering::SeqCst), "a broken log");
    while BLOCKED.load(Ordering::SeqCst) {
        thread::park_timeout(Duration::from_millis(10));
    }
}

/// Loses all locks of `keeper` in an outage, is told of each before its lease ends, and then keeps one again.
async fn lose_and_go_on(keeper: &Keeper, network: &Network) {
    let mut guards = Vec::new();
    for number in 0..5 {
        guards.push(keeper.mutex(&format!("stock/{number}")).lease(LEASE).lock().await.expect("free"));
    }
    let cut = Instant::now();
    network.cut();
    for guard in &guards {
        let lost = timeout(LEASE.saturating_sub(cut.elapsed()), guard.lost()).await;
        assert_eq!(lost.expect("told in time"), Lost::Expired);
    }
    drop(guards);
    network.restore();
    let kept = keeper.mutex("kept").lease(LEASE).lock().await.expect("the store is back");
    sleep(LEASE * 2).await;
    assert!(kept.is_held(), "nobody renews any more");
    kept.release().await.expect("held");
}

/// One test, because the log is that of the process.
#[tokio::test]
async fn a_broken_log_delays_no_signal_and_no_renewal() {
    log::listen(|metadata| *metadata.level() == Level::WARN, broken);
    let server = MemoryServer::new(Clock::boot());
    let network = Network::new();
    let keeper = Keeper::builder(network.wrap(server.connector("memory:"))).connect().await.expect("memory");
    lose_and_go_on(&keeper, &network).await;
    assert!(telemetry::flush(Duration::from_secs(10)), "a panic ends one event, not the writer");
    assert_eq!(LINES.swap(0, Ordering::SeqCst), 5);

    PANICS.store(false, Ordering::SeqCst);
    lose_and_go_on(&keeper, &network).await;
    assert_eq!(LINES.load(Ordering::SeqCst), 1, "it is still blocked");
    assert!(!telemetry::flush(Duration::from_millis(10)));
    BLOCKED.store(false, Ordering::SeqCst);
    assert!(telemetry::flush(Duration::from_secs(10)));
    assert_eq!(LINES.load(Ordering::SeqCst), 5, "nothing was dropped");
}
