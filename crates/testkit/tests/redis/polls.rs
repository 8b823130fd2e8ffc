//! What asking costs the server when the answer is the same as before, and the order of what is asked together.

use std::{sync::Arc, time::Duration};

use lockkeeper_core::{
    Capacity, ContenderId, KeeperId, Name, Units,
    runtime::clock::Clock,
    store::{
        Answer, Card, Claim, Context, Facts, Kind, Leave, Left, Request, Store, StoreTime, Verdict, WakeSink,
    },
};
use lockkeeper_testkit::servers::{Redis, RedisOptions};

use crate::{NAME, secs};

/// Somebody who asks a store directly.
struct Asker {
    store: Arc<dyn Store>,
    keeper: KeeperId,
}

impl Asker {
    async fn connect(redis: &Redis) -> Self {
        let keeper = KeeperId::random();
        let context = Context {
            keeper,
            wakes: WakeSink::new(|_| {}),
            background: tokio::runtime::Handle::current(),
            clock: Clock::boot(),
            request_limit: secs(60),
        };
        let connector = lockkeeper::url::connector(&redis.url()).expect("a good URL");
        Self { store: connector.connect(context).await.expect("connected"), keeper }
    }

    fn claim(&self, seq: u64, units: Units, queue: bool) -> Claim {
        let facts = Arc::new(Facts { host: "here".into(), pid: 1, program: "test".into() });
        Claim {
            name: Name::new(NAME).expect("a name"),
            contender: ContenderId { keeper: self.keeper, seq },
            units,
            capacity: Capacity::All,
            lease: secs(120),
            queue,
            detachable: false,
            min_hold: Duration::ZERO,
            not_after: StoreTime(u64::MAX),
            stamp: 0,
            again: false,
            card: Card { kind: Kind::RwLock, facts, label: None, value: None },
        }
    }

    async fn ask(&self, claim: &Claim) -> Verdict {
        let answers = self.store.apply(&[Request::Claim(claim.clone())]).await.expect("answered");
        let [Answer::Claim(verdict)] = &answers.each[..] else { panic!("{answers:?}") };
        verdict.clone()
    }

    fn leave_of(&self, seq: u64) -> Leave {
        let (name, contender) = (Name::new(NAME).expect("a name"), ContenderId { keeper: self.keeper, seq });
        Leave { name, contender, bury_until: None, hold_at_least: Duration::ZERO }
    }

    async fn leave(&self, seq: u64) {
        self.store.apply(&[Request::Leave(self.leave_of(seq))]).await.expect("answered");
    }
}

/// How much the server has changed so far.
fn changes(redis: &Redis) -> u64 {
    let changes = redis.info("persistence", "rdb_changes_since_last_save").expect("asked");
    changes.parse().expect("a number")
}

/// Those who wait ask again and again, and each answer is the same: none of that is written, so none is replicated or
/// appended to a file, and none needs memory.
#[tokio::test(flavor = "multi_thread")]
async fn asking_again_writes_nothing() {
    let redis = RedisOptions::default().start().expect("started");
    let asker = Asker::connect(&redis).await;
    // A mutex; a mutex that was handed over; and readers, behind whom a writer and a reader wait.
    for (units, held, waiting) in [
        (Units::All, vec![0], vec![1, 2, 3]),
        (Units::All, vec![1], vec![2, 3]),
        (Units::ONE, vec![11, 12], vec![13, 14]),
    ] {
        for seq in held.iter().chain(&waiting) {
            let units = if *seq == 13 { Units::All } else { units };
            let entered = asker.ask(&asker.claim(*seq, units, true)).await;
            assert_eq!(matches!(entered, Verdict::Granted(_)), held.contains(seq), "{seq}: {entered:?}");
        }
        redis.command(["CONFIG", "SET", "maxmemory", "1"]).expect("set");
        let before = changes(&redis);
        for _ in 0..3 {
            for (ahead, seq) in waiting.iter().enumerate() {
                let units = if *seq == 13 { Units::All } else { units };
                let again =
                    asker.ask(&Claim { again: true, stamp: 7, ..asker.claim(*seq, units, true) }).await;
                assert!(
                    matches!(again, Verdict::Busy { ahead: told, .. } if told as usize == ahead),
                    "{again:?}"
                );
            }
            for seq in &held {
                let again = asker.ask(&Claim { again: true, ..asker.claim(*seq, units, true) }).await;
                assert!(matches!(again, Verdict::Granted(_)), "{again:?}");
            }
            let late = asker
                .ask(&Claim { again: true, not_after: StoreTime(1), ..asker.claim(99, units, true) })
                .await;
            assert!(matches!(late, Verdict::Stale), "{late:?}");
            let other = Capacity::count(3).expect("a number");
            let other =
                asker.ask(&Claim { again: true, capacity: other, ..asker.claim(99, units, true) }).await;
            assert!(matches!(other, Verdict::Mismatch { .. }), "{other:?}");
            let only_tries = asker.ask(&Claim { again: true, ..asker.claim(99, Units::All, false) }).await;
            assert!(matches!(only_tries, Verdict::Busy { .. }), "{only_tries:?}");
        }
        assert_eq!(changes(&redis), before, "held by {held:?}");
        redis.command(["CONFIG", "SET", "maxmemory", "0"]).expect("set");
        if held == [0] {
            asker.leave(0).await;
            continue;
        }
        for seq in held.iter().chain(&waiting) {
            asker.leave(*seq).await;
        }
    }
    asker.store.close().await;
}

/// The holder leaves with a mark against late copies, and who waited for it leaves as well: it holds by then.
#[tokio::test(flavor = "multi_thread")]
async fn i15_leaves_of_one_group_are_done_in_their_order() {
    let redis = RedisOptions::default().start().expect("started");
    let asker = Asker::connect(&redis).await;
    for seq in [1, 2] {
        asker.ask(&asker.claim(seq, Units::All, true)).await;
    }
    let marked = Leave { bury_until: Some(StoreTime(u64::MAX >> 12)), ..asker.leave_of(1) };
    let group = [Request::Leave(marked), Request::Leave(asker.leave_of(2))];
    let answers = asker.store.apply(&group).await.expect("answered").each;
    let both = [Answer::Leave(Left::Released), Answer::Leave(Left::Released)];
    assert_eq!(format!("{answers:?}"), format!("{both:?}"));
    asker.store.close().await;
}
