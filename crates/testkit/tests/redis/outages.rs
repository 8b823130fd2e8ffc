//! A server that is gone or hangs: waits end with the store's error, and go on when it is back.

use lockkeeper::{AcquireError, error::LatchError};
use lockkeeper_testkit::servers::RedisOptions;
use tokio::time::{sleep, timeout};

use crate::{NAME, connect, secs};

fn is_stores(error: &AcquireError) -> bool {
    matches!(error, AcquireError::Store(_)) && error.to_string().contains("gave up after")
}

/// Killed, it refuses connections; paused, it says nothing.
#[tokio::test(flavor = "multi_thread")]
async fn waits_end_with_what_they_heard_last() {
    let redis = RedisOptions::default().append_only().start().expect("started");
    let (ours, theirs) = (connect(&redis.url()).await, connect(&redis.url()).await);
    let held = theirs.mutex(NAME).lease(secs(120)).lock().await.expect("free");
    ours.latch(NAME).create(1).await.expect("new");
    for killed in [true, false] {
        if killed {
            redis.process().kill();
        } else {
            redis.process().pause();
        };
        let (mutex, fifo, latch) = (ours.mutex(NAME), ours.mutex(NAME).fifo(), ours.latch(NAME));
        let (front, behind, fifo, latch) = tokio::join!(
            mutex.lock_within(secs(5)),
            mutex.lock_within(secs(5)),
            fifo.lock_within(secs(5)),
            latch.wait_within(secs(5)),
        );
        for result in [front, behind, fifo] {
            let error = result.expect_err("no server");
            assert!(is_stores(&error), "killed: {killed}: {error}");
        }
        let error = latch.expect_err("no server");
        assert!(matches!(error, LatchError::Store(_)), "killed: {killed}: {error}");
        if killed {
            redis.start_again().expect("started");
        } else {
            redis.process().resume();
        };
        // Until the connections are back.
        while ours.inspect(NAME).await.is_err() {
            sleep(crate::millis(50)).await;
        }
        let error = ours.mutex(NAME).lock_within(secs(5)).await.expect_err("held");
        assert!(matches!(error, AcquireError::TimedOut { .. }), "killed: {killed}: {error}");
    }
    let mutex = ours.mutex(NAME);
    let waiting = tokio::spawn(async move { mutex.lock().await });
    redis.process().pause();
    sleep(secs(5)).await;
    redis.process().resume();
    held.release().await.expect("its lease is long");
    let guard = timeout(secs(20), waiting).await.expect("in time").expect("no panic").expect("granted");
    guard.release().await.expect("held");
}
