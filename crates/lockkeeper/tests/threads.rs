//! A keeper's thread ends with its keeper, on every way to that end. This is a test program of its own, since it
//! counts the threads of its process.
#![cfg(target_os = "linux")]

use std::{
    fs,
    future::pending,
    time::{Duration, Instant},
};

use lockkeeper::{Keeper, memory, store::Connector};
use tokio::time::timeout;

fn keepers_threads() -> usize {
    let tasks = fs::read_dir("/proc/self/task").expect("Linux");
    let names = tasks.filter_map(|task| fs::read_to_string(task.ok()?.path().join("comm")).ok());
    names.filter(|name| name.trim() == "lockkeeper").count()
}

#[tokio::test]
async fn no_thread_is_left_behind() {
    let connect = || Keeper::builder(memory::connector("memory:")).connect();

    let dropped = connect().await.expect("memory");
    assert_eq!(keepers_threads(), 1, "not a test of anything");
    let guard = dropped.mutex("name").lock().await.expect("free");
    drop(dropped);
    drop(guard);

    let closed = connect().await.expect("memory");
    closed.close().await;

    let half_closed = connect().await.expect("memory");
    drop(timeout(Duration::ZERO, half_closed.close()).await);
    drop(half_closed);

    for _ in 0..3 {
        let never = Connector::new(|_| pending());
        drop(timeout(Duration::from_millis(1), Keeper::builder(never).connect()).await);
    }

    let until = Instant::now() + Duration::from_secs(20);
    while keepers_threads() > 0 {
        assert!(Instant::now() < until, "{} threads are left", keepers_threads());
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
