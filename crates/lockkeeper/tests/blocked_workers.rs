//! A keeper renews on its own thread: a program whose every worker is blocked keeps its locks.

use std::{sync::Arc, sync::Barrier, thread, time::Duration};

const WORKERS: usize = 2;
const LEASE: Duration = Duration::from_secs(1);

#[test]
fn a_lock_is_still_held_after_all_workers_were_blocked_for_two_leases() {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(WORKERS)
        .enable_all()
        .build()
        .expect("threads");
    let url = "memory:blocked-workers";
    let guard = runtime.block_on(async {
        let keeper = lockkeeper::connect(url).await.expect("memory");
        keeper.mutex("name").lease(LEASE).lock().await.expect("free")
    });
    let barrier = Arc::new(Barrier::new(WORKERS + 1));
    for _ in 0..WORKERS {
        let barrier = barrier.clone();
        runtime.spawn(async move {
            barrier.wait();
            thread::sleep(2 * LEASE);
            barrier.wait();
        });
    }
    let others = lockkeeper::blocking::connect(url).expect("memory");
    let elsewhere = others.mutex("name");
    barrier.wait();
    // All workers are blocked now.
    assert!(elsewhere.try_lock().expect("memory").is_none());
    assert!(elsewhere.lock_within(2 * LEASE - LEASE / 4).is_err(), "nobody else gets it meanwhile");
    barrier.wait();
    assert!(guard.is_held());
    runtime.block_on(guard.release()).expect("held to the end");
    assert!(elsewhere.try_lock().expect("memory").is_some());
}
