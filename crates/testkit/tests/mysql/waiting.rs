//! Waiting by polls: how soon a release is heard of, and how much waiting costs.

use std::time::{Duration, Instant};

use lockkeeper_testkit::servers::MariaDb;
use mysql_async::prelude::Queryable as _;

use crate::{
    millis,
    plain::{number, session},
    secs,
};

/// Keepers that take turns: none of them shares a process's local queue.
#[tokio::test(flavor = "multi_thread")]
async fn a_release_is_soon_heard_of_by_other_keepers() {
    let server = MariaDb::start().expect("started");
    let mut tasks = Vec::new();
    for _ in 0..8 {
        let url = server.url();
        tasks.push(tokio::spawn(async move {
            let keeper = lockkeeper::connect(&url).await.expect("connected");
            let (mutex, mut waits) = (keeper.mutex("turns"), Vec::new());
            for _ in 0..30 {
                let guard = mutex.lock().await.expect("locked");
                waits.push(Instant::now());
                guard.release().await.expect("released");
                waits.push(Instant::now());
            }
            keeper.close().await;
            waits
        }));
    }
    let mut moments: Vec<(Instant, bool)> = Vec::new();
    for task in tasks {
        let pairs = task.await.expect("no panic");
        moments.extend(pairs.chunks(2).flat_map(|pair| [(pair[0], true), (pair[1], false)]));
    }
    moments.sort();
    // From the end of a release to the next grant. A waiter may see the release before the releaser is answered.
    let mut gaps: Vec<Duration> =
        moments.windows(2).filter(|pair| !pair[0].1 && pair[1].1).map(|pair| pair[1].0 - pair[0].0).collect();
    gaps.sort();
    let (median, longest) = (gaps[gaps.len() / 2], gaps[gaps.len() - 1]);
    println!("{} hand-offs: median {median:?}, longest {longest:?}", gaps.len());
    assert!(median < millis(100), "{median:?}");
}

/// Tasks of one process that wait cost the server few requests, and all of them are served soon after the holder of
/// another process has left.
#[tokio::test(flavor = "multi_thread")]
async fn waiting_is_cheap_and_ends_soon() {
    let server = MariaDb::start().expect("started");
    let holder = lockkeeper::connect(&server.url()).await.expect("connected");
    let waiter = lockkeeper::connect(&server.url()).await.expect("connected");
    let guard = holder.mutex("stock").lock().await.expect("free");
    let waiting: Vec<_> = (0..64)
        .map(|_| {
            let mutex = waiter.mutex("stock");
            tokio::spawn(
                async move { mutex.lock().await.expect("locked").release().await.expect("released") },
            )
        })
        .collect();
    while waiter.stats().waiting == 0 {
        tokio::time::sleep(millis(5)).await;
    }
    let mut monitor = session(&server).await;
    // The queue rests for long.
    monitor.query_drop("UPDATE lockkeeper_resource SET moved = moved - 60000000").await.expect("changed");
    tokio::time::sleep(secs(2)).await;
    let count =
        "SELECT variable_value FROM information_schema.global_status WHERE variable_name = 'COM_SELECT'";
    let before = number(&mut monitor, count).await;
    tokio::time::sleep(secs(6)).await;
    let asked = number(&mut monitor, count).await - before - 1;
    println!("{asked} reads in 6 seconds, renewals of the holder included");
    assert!(asked <= 30, "{asked} reads in 6 seconds");
    let started = Instant::now();
    guard.release().await.expect("released");
    for task in waiting {
        task.await.expect("no panic");
    }
    println!("drained within {:?}", started.elapsed());
    assert!(started.elapsed() < secs(5), "{:?}", started.elapsed());
    holder.close().await;
    waiter.close().await;
}
