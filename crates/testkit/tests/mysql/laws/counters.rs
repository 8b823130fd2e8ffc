//! Law 1 for latches and fences: they have rows of their own, which are locked before they are read.

use lockkeeper_core::{
    ContenderId, Name, Token,
    store::{Admit, Admitted, Count, CountAction, CountState, Counted, StoreTime},
};
use lockkeeper_testkit::{asker::Asker, servers::MariaDb};
use mysql_async::{Conn, prelude::Queryable as _};

use crate::plain::{LOCK_WAITS, commit, number, session};

/// Has another transaction change a row while `work` waits for it. If `work` did not get its turn in time, because the
/// machine is busy, the other one begins anew; so `change` must have the same effect each time.
async fn meanwhile<T, E: std::fmt::Debug>(
    server: &MariaDb,
    other: &mut Conn,
    change: &str,
    work: impl AsyncFn() -> Result<T, E>,
) -> T {
    let mut monitor = session(server).await;
    loop {
        other.query_drop(format!("START TRANSACTION; {change}")).await.expect("changed");
        let (done, ()) = tokio::join!(work(), async {
            // The work may have given up already.
            for _ in 0..1000 {
                if number(&mut monitor, LOCK_WAITS).await > 0 {
                    break;
                }
            }
            commit(other).await;
        });
        if let Ok(done) = done {
            return done;
        }
    }
}

/// Law 1. A latch counts down from the state that others have left, not from the state before it waited for them.
#[tokio::test(flavor = "multi_thread")]
async fn law_1_a_latch_is_locked_before_it_is_read() {
    let server = MariaDb::start().expect("started");
    let (asker, mut other) = (Asker::connect(&server.url()).await, session(&server).await);
    let count = async |seq: u64, action| {
        let (name, op) = (Name::new("a").expect("a name"), ContenderId { keeper: asker.keeper, seq });
        let not_after = StoreTime(u64::MAX / 4);
        asker.store.count(&Count { name, op, not_after, action }).await.map(|answers| answers.each[0])
    };
    count(1, CountAction::Create(9)).await.expect("made");
    let change = "UPDATE lockkeeper_latch SET remaining = 5";
    let counted = meanwhile(&server, &mut other, change, async || count(2, CountAction::Down(1)).await).await;
    assert!(matches!(counted, Counted::State(CountState { remaining: 4, .. })), "{counted:?}");
}

/// Law 1. A fence compares with the tokens that others have shown it, not with its state before it waited for them.
#[tokio::test(flavor = "multi_thread")]
async fn law_1_a_fence_is_locked_before_it_is_read() {
    let server = MariaDb::start().expect("started");
    let (asker, mut other) = (Asker::connect(&server.url()).await, session(&server).await);
    let admit = async |number: u64| {
        let (name, token) = (Name::new("a").expect("a name"), Token::new(number, 0));
        asker.store.fence(&Admit { name, token, floor: token }).await
    };
    assert_eq!(admit(1000).await.expect("answered"), Admitted::Yes);
    let change = "UPDATE lockkeeper_fence SET highest = 3000 * 1024";
    let admitted = meanwhile(&server, &mut other, change, async || admit(2000).await).await;
    assert!(matches!(admitted, Admitted::Stale { .. }), "{admitted:?}");
}
