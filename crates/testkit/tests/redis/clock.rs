//! The server's wall clock jumps. Leases end too early or too late then; the fence and the tokens still hold.

use std::time::SystemTime;

use lockkeeper::Lost;
use lockkeeper_testkit::servers::RedisOptions;
use tokio::{
    task::JoinSet,
    time::{Instant, sleep, timeout},
};

use crate::{
    NAME, WORKER, connect,
    load::{Load, Rest},
    millis, secs, times,
};

#[test]
fn an_hour_forward_and_back_never_takes_a_token_back() {
    let redis = RedisOptions::default().movable_clock().start().expect("started");
    let mut load = Load::on(WORKER, &redis.url());
    for _ in 0..times(1, 10) {
        for shift in [3600, 0, -3600, 0] {
            load.losing(Rest::Own, || redis.shift_clock(shift));
        }
    }
    load.must_be_fenced();
}

/// While the clock is an hour behind, the server says that an hour is left of every lease. No client relies on
/// it: when the clock goes forward and another contender gets the lock, the holder hears of it with its next renewal.
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

/// Inspects the key of a resource: returns its type, or a row that would outlast it.
const OUTLASTED: &str = "
local kind, rows = redis.call('TYPE', KEYS[1]).ok, {}
if kind == 'string' then rows = {redis.call('GET', KEYS[1])} end
if kind == 'list' then rows = redis.call('LRANGE', KEYS[1], 0, -1) end
local time, lasts = redis.call('TIME'), redis.call('PTTL', KEYS[1])
local others = rows[1] and tonumber(string.sub(rows[1], 35, 40))
for nth, row in ipairs(rows) do
  -- The head says how long the key lasts. A holder ends at the third time of its row, a tombstone at the only one.
  local ends = nth == 1 and string.sub(row, 1, 16) or 0
  local time_of_row = string.match(row, 'h %d+ %d+ (%d+)') or string.match(row, 'x %S+ (%d+)')
  if nth <= others + 1 then ends = math.max(ends, time_of_row) end
  -- Then come two elements for each who waits, of which the second begins with when it asked.
  if nth > others + 1 and (nth - others) % 2 == 1 then ends = string.sub(row, 1, 16) + 15000000 end
  if (ends - time[1] * 1000000 - time[2]) / 1000 > lasts then return 'lasts ' .. lasts .. ' ms: ' .. row end
end
return kind";

/// Scripts extend the time to live of a key once in a while. The key lasts as long as its holder and waiters, also when
/// the minute ends by which it outlasts a lease or a wait.
#[tokio::test(flavor = "multi_thread")]
async fn i8_a_key_lasts_as_long_as_what_it_holds() {
    let redis = RedisOptions::default().movable_clock().start().expect("started");
    let key = format!("lockkeeper:{{{NAME}}}");
    for (second, lease) in [(43, secs(30)), (43, secs(2)), (55, secs(2)), (28, secs(30)), (58, secs(1))] {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("after 1970").as_secs();
        redis.shift_clock(second - (now % 60) as i64).expect("shifted");
        let until = Instant::now() + secs(4);
        let mut tasks = JoinSet::new();
        for _ in 0..3 {
            let mutex = connect(&redis.url()).await.mutex(NAME).lease(lease);
            tasks.spawn(async move {
                while Instant::now() < until {
                    mutex.lock().await.expect("waited for").release().await.expect("held");
                }
            });
        }
        let mut lists = 0;
        while Instant::now() < until {
            let outcome = redis.command(["EVAL", OUTLASTED, "1", &key]).expect("asked");
            assert!(!outcome.contains("lasts"), "{outcome}");
            lists += usize::from(outcome.contains("list"));
            // The tasks need the server, too.
            sleep(millis(1)).await;
        }
        assert!(lists > 10, "seen with waiters {lists} times");
        tasks.join_all().await;
    }
}

/// After a grant to the only waiter the key still ends by itself, since that waiter may crash.
#[tokio::test(flavor = "multi_thread")]
async fn i12_a_key_that_goes_to_the_only_waiter_still_ends() {
    let redis = RedisOptions::default().start().expect("started");
    let (one, other) = (connect(&redis.url()).await, connect(&redis.url()).await);
    let mut held = one.mutex(NAME).lock().await.expect("free");
    for turn in 0..4 {
        let next = if turn % 2 == 0 { &other } else { &one }.mutex(NAME);
        let waiting = tokio::spawn(async move { next.lock().await });
        while one.inspect(NAME).await.expect("asked").is_none_or(|view| view.waiters.is_empty()) {
            sleep(millis(2)).await;
        }
        held.release().await.expect("held");
        held = waiting.await.expect("no panic").expect("granted");
        let lasts = redis.command(["PTTL", &format!("lockkeeper:{{{NAME}}}")]).expect("asked");
        assert!(lasts.parse::<i64>().expect("a number") > 0, "{lasts}");
    }
}
