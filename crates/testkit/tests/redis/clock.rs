//! The server's wall clock jumps. What it says of leases is wrong then; the fence and the tokens still hold.

use lockkeeper::Lost;
use lockkeeper_testkit::servers::RedisOptions;
use tokio::time::{Instant, sleep, timeout};

use crate::{
    NAME, connect,
    load::{Load, Rest},
    millis, secs, times,
};

#[test]
fn an_hour_forward_and_back_never_takes_a_token_back() {
    let redis = RedisOptions::default().movable_clock().start().expect("started");
    let mut load = Load::on(&redis.url());
    for _ in 0..times(1, 10) {
        for shift in [3600, 0, -3600, 0] {
            load.losing(Rest::Own, || redis.shift_clock(shift));
        }
    }
    load.must_be_fenced();
}

/// While the clock is an hour behind, the server says that an hour is left of every lease. Nobody relies on it: when
/// the clock goes forward and somebody else gets the lock, its holder hears of it with its next renewal.
#[tokio::test(flavor = "multi_thread")]
async fn a_clock_that_comes_forward_again_is_noticed_within_a_renewal() {
    let redis = RedisOptions::default().movable_clock().start().expect("started");
    let (ours, theirs) = (connect(&redis.url()).await, connect(&redis.url()).await);
    let lease = secs(3);
    for _ in 0..times(1, 10) {
        let old = ours.mutex(NAME).lease(lease).lock().await.expect("free");
        redis.shift_clock(-3600).expect("shifted");
        let renewed = timeout(secs(10), async {
            while old.remaining() < secs(60) {
                sleep(millis(5)).await;
            }
        });
        renewed.await.expect("the server says that an hour is left");
        // Past the end of the lease, as it was before.
        redis.shift_clock(60).expect("shifted");
        let forward = Instant::now();
        let new = timeout(secs(10), theirs.mutex(NAME).lock()).await.expect("in time").expect("ended");
        assert!(new.token() > old.token(), "{} after {}", new.token(), old.token());
        let lost = timeout(lease, old.lost()).await.expect("within one renewal");
        println!("told {:?} after the clock went forward", forward.elapsed());
        assert_eq!(lost, Lost::Gone);
        new.release().await.expect("held");
        redis.shift_clock(0).expect("shifted");
    }
}
