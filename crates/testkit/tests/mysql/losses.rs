//! The server's wall clock jumps, or its data is lost. Leases end too early or too late then; the fence and the tokens
//! still hold.

use lockkeeper::Lost;
use lockkeeper_testkit::{
    load::{Load, Rest},
    servers::{MariaDb, MariaDbOptions},
};
use tokio::time::timeout;

use crate::{WORKER, millis, secs, times};

async fn connect(server: &MariaDb) -> lockkeeper::Keeper {
    lockkeeper::connect(&server.url()).await.expect("connected")
}

#[test]
fn an_hour_forward_and_back_never_takes_a_token_back() {
    let server = MariaDbOptions::default().movable_clock().start().expect("started");
    let mut load = Load::on(WORKER, &server.url());
    for _ in 0..times(1, 10) {
        for shift in [3600, 0, -3600, 0] {
            load.losing(Rest::Own, || server.shift_clock(shift));
        }
    }
    load.must_be_fenced();
}

/// A holder whose lease the server's clock has jumped over is told, and the fence has seen a larger token by then. The clock
/// goes back, and tokens go on above those from the future.
#[tokio::test(flavor = "multi_thread")]
async fn a_holder_that_a_clock_jump_ended_is_told_and_fenced_off() {
    let server = MariaDbOptions::default().movable_clock().start().expect("started");
    let (ours, theirs) = (connect(&server).await, connect(&server).await);
    let fence = theirs.fence("stock");
    let old = ours.mutex("stock").lease(secs(3)).lock().await.expect("free");
    fence.admit(old.token()).await.expect("the first");
    server.shift_clock(3600).expect("shifted");
    let new = timeout(secs(10), theirs.mutex("stock").lock()).await.expect("in time").expect("ended");
    assert!(new.token() > old.token(), "{} after {}", new.token(), old.token());
    fence.admit(new.token()).await.expect("larger");
    fence.admit(old.token()).await.expect_err("a write of the first holder comes too late");
    assert_eq!(timeout(secs(10), old.lost()).await.expect("told by a renewal"), Lost::Gone);
    server.shift_clock(-3600).expect("shifted");
    let mut last = new.token();
    new.release().await.expect("held");
    for _ in 0..3 {
        let next = timeout(secs(10), ours.mutex("stock").lock()).await.expect("in time").expect("free");
        assert!(next.token() > last, "{} after {last}", next.token());
        fence.admit(next.token()).await.expect("larger");
        last = next.token();
        next.release().await.expect("held");
    }
    ours.close().await;
    theirs.close().await;
}

/// The server comes back without its data. Whoever was connected is told that it is another store, and holds nothing once
/// its lease is over. Tokens still grow, so a fence that is kept elsewhere rejects late writes.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_without_its_data_gives_larger_tokens() {
    let server = MariaDb::start().expect("started");
    let fence = lockkeeper::Fence::new();
    let mut last = None;
    for _ in 0..times(1, 5) {
        let ours = connect(&server).await;
        let old = ours.mutex("stock").lease(secs(3)).lock().await.expect("free");
        assert!(Some(old.token()) > last, "{} after {last:?}", old.token());
        fence.admit(old.token()).expect("the first");
        server.restart_empty().expect("started");
        let theirs = connect(&server).await;
        let new = theirs.mutex("stock").lock().await.expect("nothing is known of the first");
        assert!(new.token() > old.token(), "{} after {}", new.token(), old.token());
        fence.admit(new.token()).expect("larger");
        fence.admit(old.token()).expect_err("a write of the first holder comes too late");
        timeout(secs(10), old.lost()).await.expect("its lease is over");
        let told = loop {
            match ours.mutex("other").try_lock().await {
                Err(error) if error.to_string().contains("another store") => break error.to_string(),
                Err(_) => tokio::time::sleep(millis(20)).await,
                Ok(_) => panic!("it is served by a store that has forgotten its holds"),
            }
        };
        assert!(told.contains("connect again"), "{told}");
        last = Some(new.token());
        new.release().await.expect("held");
        theirs.close().await;
    }
}
