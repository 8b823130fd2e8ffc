//! The server's wall clock jumps, or all its data is gone. Leases end too early or too late then; tokens still grow, and the
//! fence refuses what is old.

use lockkeeper::{Keeper, Token, error::FenceError};
use lockkeeper_core::{StoreErrorKind, store::WakeSink};
use lockkeeper_testkit::servers::Postgres;

use crate::{asker::Asker, secs};

const NAME: &str = "stock";

/// A clock that can be moved, which sessions find before the server's own. The server itself keeps the right one: its timers
/// look at the clock in signal handlers, where libfaketime is not safe. With that, sessions broke now and then.
const MOVABLE: &str = "
CREATE SCHEMA moved;
CREATE TABLE moved.clock AS SELECT 0::bigint AS seconds;
CREATE FUNCTION moved.clock_timestamp() RETURNS timestamptz LANGUAGE sql VOLATILE AS
    'SELECT pg_catalog.clock_timestamp() + (SELECT seconds FROM moved.clock) * interval ''1 second''';
ALTER ROLE lockkeeper SET search_path = moved, pg_catalog, public";

async fn connect(url: &str) -> Keeper {
    lockkeeper::connect(url).await.expect("connected")
}

/// Locks it, writes with the fence, and leaves.
async fn section(keeper: &Keeper) -> Token {
    let locked = tokio::time::timeout(secs(20), keeper.mutex(NAME).lock()).await;
    let guard = locked.expect("in time").expect("locked");
    let token = guard.token();
    keeper.fence(NAME).admit(token).await.expect("the last one");
    guard.release().await.expect("released");
    token
}

/// A write that comes late.
async fn is_refused(keeper: &Keeper, token: Token) {
    let late = keeper.fence(NAME).admit(token).await;
    assert!(matches!(late, Err(FenceError::Stale { .. })), "{late:?}");
}

/// An hour forward, the lease of a holder is over at the server while the holder still counts on it. An hour back, the
/// clock is behind all numbers.
#[tokio::test(flavor = "multi_thread")]
async fn an_hour_forward_and_back_never_takes_a_token_back() {
    let server = Postgres::start().expect("started");
    server.sql(MOVABLE).expect("made");
    let (ours, theirs) = (connect(&server.url()).await, connect(&server.url()).await);
    let (mut last, mut before) = (section(&ours).await, 0);
    for shift in [3600, -3600, 0, 7200, 0] {
        let old = ours.mutex(NAME).lease(secs(60)).lock().await.expect("free");
        let token = old.token();
        assert!(token > last, "{token} after {last}");
        server.sql(&format!("UPDATE moved.clock SET seconds = {shift}")).expect("moved");
        let clock = "SELECT extract(epoch FROM clock_timestamp())::bigint";
        let now = server.sql(clock).expect("asked").parse::<i64>().expect("seconds");
        assert!((now - seconds() - shift).abs() < 30, "the server's clock is moved");
        // Only a clock that goes forward ends the lease.
        let still_held =
            if shift > before { Some(old) } else { old.release().await.map(|()| None).expect("released") };
        let next = section(&theirs).await;
        drop(still_held);
        before = shift;
        assert!(next > token, "{next} after {token}, {shift} s off");
        is_refused(&ours, token).await;
        is_refused(&ours, last).await;
        last = section(&ours).await;
        assert!(last > next, "{last} after {next}, {shift} s off");
    }
}

fn seconds() -> i64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("after 1970");
    now.as_secs().cast_signed()
}

/// Without its data the server is another store, which a keeper of the earlier one does not take for its own. Tokens go on
/// by the clock.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_lost_its_data_goes_on_with_larger_tokens() {
    let server = Postgres::start().expect("started");
    let old = connect(&server.url()).await;
    let resource = lockkeeper::Fence::new();
    let mut last = section(&old).await;
    let asker = Asker::connect(&server.url()).await;
    for _ in 0..2 {
        let held = old.mutex(NAME).lock().await.map(|guard| guard.token()).unwrap_or(last);
        server.restart_empty().expect("restarted");
        let error = loop {
            match asker.claims(&[(NAME, 1)]).await {
                // The connection is lost first.
                Err(error) if error.is_passing() => {}
                answer => break answer.expect_err("another store"),
            }
        };
        assert_eq!(error.kind(), StoreErrorKind::Corrupt, "{error}");
        assert!(error.to_string().contains("connect again"), "{error}");
        Asker::connect_with(&server.url(), WakeSink::new(|_| {})).await.expect("a new store");
        let new = connect(&server.url()).await;
        let token = section(&new).await;
        assert!(token > last && token > held, "{token} after {last} and {held}");
        resource.admit(token).expect("the last one");
        assert!(resource.admit(held).is_err(), "a late write of before");
        is_refused(&new, held).await;
        last = token;
    }
}
