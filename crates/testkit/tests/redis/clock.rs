//! The server's wall clock jumps. What it says of leases is wrong then; the fence and the tokens still hold.

use lockkeeper_testkit::servers::RedisOptions;

use crate::{load::Load, times};

#[test]
fn an_hour_forward_and_back_never_takes_a_token_back() {
    let redis = RedisOptions::default().movable_clock().start().expect("started");
    let mut load = Load::on(&redis.url());
    for _ in 0..times(1, 10) {
        for shift in [3600, 0, -3600, 0] {
            load.through(|| redis.shift_clock(shift));
        }
    }
    load.must_be_fenced();
}
