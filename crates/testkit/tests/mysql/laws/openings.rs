//! Law 4 for latches: an opening is on disk before anybody is told of it, and that costs one commit per keeper.

use lockkeeper_core::{
    ContenderId, Name,
    store::{Count, CountAction, CountState, Counted, StoreTime},
};
use lockkeeper_testkit::{asker::Asker, servers::MariaDb};

use crate::{
    millis,
    plain::{inserts, log_written},
    secs,
};

async fn count(asker: &Asker, seq: u64, action: CountAction) -> CountState {
    let (name, op) = (Name::new("gate").expect("a name"), ContenderId { keeper: asker.keeper, seq });
    let count = Count { name, op, not_after: StoreTime(u64::MAX / 4), action };
    match asker.store.count(&count).await.expect("answered").each[..] {
        [Counted::State(state)] => state,
        ref other => panic!("{other:?}"),
    }
}

/// Looks at it several times, and says how many of these looks wrote something.
async fn writing_looks(server: &MariaDb, asker: &Asker, opened: u64) -> u64 {
    let before = inserts(server);
    for _ in 0..5 {
        assert_eq!(count(asker, 1000, CountAction::Read).await.opened, opened);
    }
    inserts(server) - before
}

/// Law 4. The opening that a look finds may not be on disk yet.
#[tokio::test(flavor = "multi_thread")]
async fn law_4_an_opening_is_told_once_it_is_on_disk() {
    let server = MariaDb::start().expect("started");
    let (opener, looker) = (Asker::connect(&server.url()).await, Asker::connect(&server.url()).await);
    count(&opener, 1, CountAction::Create(1)).await;
    assert_eq!(writing_looks(&server, &looker, 0).await, 0, "nobody acts on a latch that is closed");
    assert_eq!(count(&opener, 2, CountAction::Down(1)).await.remaining, 0);
    let before = log_written(&server).await;
    assert_eq!(count(&looker, 1000, CountAction::Read).await.remaining, 0);
    assert_ne!(log_written(&server).await, before, "it was told from a plain read");
    assert_eq!(writing_looks(&server, &looker, 1).await, 0, "once is enough");
    assert_eq!(writing_looks(&server, &opener, 1).await, 0, "it wrote that itself");
    count(&opener, 3, CountAction::Reset).await;
    assert_eq!(writing_looks(&server, &looker, 1).await, 0, "the opening is the same");
    let fresh = Asker::connect(&server.url()).await;
    assert_eq!(writing_looks(&server, &fresh, 1).await, 1, "the latch has opened once");
    count(&opener, 4, CountAction::Down(1)).await;
    let before = log_written(&server).await;
    assert_eq!(count(&looker, 1000, CountAction::Read).await.opened, 2);
    assert_ne!(log_written(&server).await, before, "it is another opening");
    assert_eq!(writing_looks(&server, &fresh, 2).await, 1);
}

/// The same server after a crash may have lost what a keeper knows to be on disk, by its settings.
#[tokio::test(flavor = "multi_thread")]
async fn law_4_a_server_that_was_restarted_proves_an_opening_anew() {
    let server = MariaDb::start().expect("started");
    let (opener, looker) = (Asker::connect(&server.url()).await, Asker::connect(&server.url()).await);
    count(&opener, 1, CountAction::Create(1)).await;
    count(&opener, 2, CountAction::Down(1)).await;
    assert_eq!(writing_looks(&server, &looker, 1).await, 1);
    // A start is told apart by its time, in seconds.
    tokio::time::sleep(secs(3)).await;
    server.process().kill();
    server.start_again().expect("started");
    // An idle connection is tried before it is used.
    tokio::time::sleep(millis(1200)).await;
    assert_eq!(writing_looks(&server, &looker, 1).await, 1);
}

/// Who waits for a latch that opened once looks at it every second, and whenever it is counted down.
#[tokio::test(flavor = "multi_thread")]
async fn waiting_for_a_latch_that_was_reset_writes_once() {
    const STEPS: u64 = 20;
    let server = MariaDb::start().expect("started");
    let (counter, waiter) = (connect(&server).await, connect(&server).await);
    let gate = counter.latch("gate");
    gate.create(STEPS).await.expect("made");
    gate.count_down_by(STEPS).await.expect("counted");
    gate.reset().await.expect("reset");
    let before = inserts(&server);
    let waiting = tokio::spawn({
        let waiter = waiter.clone();
        async move { waiter.latch("gate").wait().await }
    });
    for _ in 1..STEPS {
        tokio::time::sleep(millis(150)).await;
        gate.count_down().await.expect("counted");
    }
    let looks = inserts(&server) - before - (STEPS - 1);
    assert!(looks <= 1, "{looks} looks wrote something");
    gate.count_down().await.expect("counted");
    waiting.await.expect("no panic").expect("it opened");
    counter.close().await;
    waiter.close().await;
}

async fn connect(server: &MariaDb) -> lockkeeper::Keeper {
    lockkeeper::connect(&server.url()).await.expect("connected")
}
