//! The cost of repeated claims for the server, and the order of requests in a group.

use std::{sync::Arc, time::Duration};

use lockkeeper_core::{
    Capacity, ContenderId, KeeperId, Name, Units,
    clock::Clock,
    store::{
        Answer, Claim, Context, Count, CountAction, Counted, Leave, Left, Renew, Renewed, Request, Store,
        StoreTime, Verdict, Wake, WakeSink,
    },
    testing,
};
use lockkeeper_testkit::servers::{Redis, RedisCluster, RedisOptions};
use tokio::time::timeout;

use crate::{NAME, location, neighbour, secs};

/// A client that uses a store directly.
struct Asker {
    store: Arc<dyn Store>,
    keeper: KeeperId,
}

impl Asker {
    async fn connect(url: &str) -> Self {
        Self::connect_with(url, WakeSink::new(|_| {})).await
    }

    async fn connect_with(url: &str, wakes: WakeSink) -> Self {
        let keeper = KeeperId::random();
        let context = Context {
            keeper,
            wakes,
            background: tokio::runtime::Handle::current(),
            clock: Clock::boot(),
            request_limit: secs(60),
        };
        let connector = lockkeeper::url::connector(url).expect("a good URL");
        Self { store: connector.connect(context).await.expect("connected"), keeper }
    }

    fn claim(&self, seq: u64, units: Units, queue: bool) -> Claim {
        Claim {
            units,
            lease: secs(120),
            queue,
            ..testing::claim(&Name::new(NAME).expect("a name"), ContenderId { keeper: self.keeper, seq })
        }
    }

    async fn ask(&self, claim: &Claim) -> Verdict {
        let answers = self.store.apply(&[Request::Claim(claim.clone())]).await.expect("answered");
        let [Answer::Claim(verdict)] = &answers.each[..] else { panic!("{answers:?}") };
        verdict.clone()
    }

    fn leave_of(&self, seq: u64) -> Leave {
        let (name, contender) = (Name::new(NAME).expect("a name"), ContenderId { keeper: self.keeper, seq });
        Leave { name, contender, tombstone_until: None, hold_at_least: Duration::ZERO }
    }

    fn renewal_of(&self, seq: u64) -> Renew {
        let Leave { name, contender, .. } = self.leave_of(seq);
        Renew { name, contender, lease: secs(120), lower_to: None, detach: false, at_least: 0 }
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

/// Waiters ask again and again and get the same answer. None of that is written, so none is replicated or appended to a
/// file, and none needs memory.
#[tokio::test(flavor = "multi_thread")]
async fn asking_again_writes_nothing() {
    let redis = RedisOptions::default().start().expect("started");
    let asker = Asker::connect(&redis.url()).await;
    // A mutex; a mutex that a waiter was granted; and readers, behind which a writer and a reader wait.
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

/// The holder leaves with a tombstone, and its waiter leaves as well, which holds by then.
#[tokio::test(flavor = "multi_thread")]
async fn i15_leaves_of_one_group_are_done_in_their_order() {
    let redis = RedisOptions::default().start().expect("started");
    let asker = Asker::connect(&redis.url()).await;
    for seq in [1, 2] {
        asker.ask(&asker.claim(seq, Units::All, true)).await;
    }
    let marked = Leave { tombstone_until: Some(StoreTime(u64::MAX >> 12)), ..asker.leave_of(1) };
    let group = [Request::Leave(marked), Request::Leave(asker.leave_of(2))];
    let answers = asker.store.apply(&group).await.expect("answered").each;
    let both = [Answer::Leave(Left::Released), Answer::Leave(Left::Released)];
    assert_eq!(format!("{answers:?}"), format!("{both:?}"));
    asker.store.close().await;
}

/// One entry of a group needs memory that the server does not have. The others need none, and are done.
#[tokio::test(flavor = "multi_thread")]
async fn a_claim_without_memory_fails_no_other_of_its_group() {
    let redis = RedisOptions::default().start().expect("started");
    let asker = Asker::connect(&redis.url()).await;
    let free = Claim { name: Name::new("free").expect("a name"), ..asker.claim(9, Units::All, true) };
    let free = Request::Claim(free);
    let again = |seq| Request::Claim(Claim { again: true, ..asker.claim(seq, Units::All, true) });
    let marked = Leave { tombstone_until: Some(StoreTime(u64::MAX >> 12)), ..asker.leave_of(1) };
    for seq in [1, 2, 3] {
        asker.ask(&asker.claim(seq, Units::All, true)).await;
    }
    redis.command(["CONFIG", "SET", "maxmemory", "1"]).expect("set");
    let both = async |first: Request, second: Request| {
        let answers = asker.store.apply(&[first, second]).await.expect("answered");
        <[Answer; 2]>::try_from(answers.each).expect("two")
    };
    // The waiter asks again; the holder leaves with a tombstone; the next holder confirms its grant.
    let [_, polled] = both(free.clone(), again(3)).await;
    assert!(matches!(polled, Answer::Claim(Verdict::Busy { ahead: 1, .. })), "{polled:?}");
    let [left, _] = both(Request::Leave(marked), free.clone()).await;
    assert!(matches!(left, Answer::Leave(Left::Released)), "{left:?}");
    let [_, confirmed] = both(free.clone(), again(2)).await;
    assert!(matches!(confirmed, Answer::Claim(Verdict::Granted(_))), "{confirmed:?}");
    let other = Claim { name: Name::new("other").expect("a name"), ..asker.claim(10, Units::All, true) };
    let alone = asker.store.apply(&[Request::Claim(other)]).await;
    let error = alone.expect_err("no memory for what is new");
    assert!(error.to_string().contains("memory"), "{error}");
    asker.store.close().await;
}

/// Scripts go through all waiters once every few seconds, not with every claim: the time of the oldest is written down.
#[tokio::test(flavor = "multi_thread")]
async fn all_waiters_are_read_once_in_a_while() {
    let redis = RedisOptions::default().start().expect("started");
    let asker = Asker::connect(&redis.url()).await;
    let key = format!("lockkeeper:{{{NAME}}}");
    for seq in 0..4 {
        asker.ask(&asker.claim(seq, Units::All, true)).await;
    }
    let head = || redis.command(["LINDEX", &key, "0"]).expect("asked");
    let oldest = || head()[17..33].parse::<u64>().expect("a time");
    for (memory, leaves) in [("0", false), ("1", false), ("1", true)] {
        redis.command(["CONFIG", "SET", "maxmemory", "0"]).expect("set");
        let stale = format!("{:016}", oldest() - 16_000_000);
        let with_stale = format!("{}{stale}{}", &head()[..17], &head()[33..]);
        redis.command(["LSET", &key, "0", &with_stale]).expect("set");
        redis.command(["CONFIG", "SET", "maxmemory", memory]).expect("set");
        if leaves {
            asker.leave(2).await;
        } else {
            let again = Claim { again: true, ..asker.claim(3, Units::All, true) };
            let polled = asker.ask(&again).await;
            assert!(matches!(polled, Verdict::Busy { ahead: 2, .. }), "{polled:?}");
        }
        assert!(oldest() > stale.parse::<u64>().expect("a time") + 15_000_000, "{} {stale}", head());
    }
    asker.store.close().await;
}

/// A tombstone that lasts longer than any time of the layout.
#[tokio::test(flavor = "multi_thread")]
async fn a_tombstone_for_ever_leaves_a_resource_that_others_can_use() {
    let redis = RedisOptions::default().start().expect("started");
    let asker = Asker::connect(&redis.url()).await;
    asker.ask(&asker.claim(1, Units::All, true)).await;
    let marked = Leave { tombstone_until: Some(StoreTime(u64::MAX)), ..asker.leave_of(1) };
    asker.store.apply(&[Request::Leave(marked)]).await.expect("answered");
    let late = asker.ask(&asker.claim(1, Units::All, true)).await;
    assert!(matches!(late, Verdict::Stale), "{late:?}");
    let next = asker.ask(&asker.claim(2, Units::All, true)).await;
    assert!(matches!(next, Verdict::Granted(_)), "{next:?}");
    asker.store.close().await;
}

/// An operation on a latch that is valid for longer than any time of the layout counts once, however often it arrives.
#[tokio::test(flavor = "multi_thread")]
async fn i13_a_count_without_an_end_counts_once() {
    let redis = RedisOptions::default().start().expect("started");
    let asker = Asker::connect(&redis.url()).await;
    let count = |seq, action| Count {
        name: Name::new(NAME).expect("a name"),
        op: ContenderId { keeper: asker.keeper, seq },
        not_after: StoreTime(u64::MAX),
        action,
    };
    asker.store.count(&count(1, CountAction::Create(5))).await.expect("created");
    for arrival in 1..=2 {
        let answers = asker.store.count(&count(2, CountAction::Down(1))).await.expect("counted");
        let [Counted::State(state)] = &answers.each[..] else { panic!("{answers:?}") };
        assert_eq!(state.remaining, 4, "arrival {arrival}");
    }
    // Scripts compute with doubles, so times in microseconds must stay below 2^53.
    let key = format!("lockkeeper:{{{NAME}}}:op:{}", count(2, CountAction::Read).op);
    let ends = redis.command(["PEXPIRETIME", &key]).expect("asked").parse::<i64>().expect("a time");
    assert!(ends > 0 && ends / 1000 * 1_000_000 < 1 << 53, "the answer is kept until {ends} ms");
    asker.store.close().await;
}

/// Another program has overwritten the high-water mark. That is as if it had been lost: numbers begin at the time.
#[tokio::test(flavor = "multi_thread")]
async fn a_high_water_mark_that_is_no_number_breaks_nothing() {
    let redis = RedisOptions::default().start().expect("started");
    let asker = Asker::connect(&redis.url()).await;
    let spoil = |command: &str| {
        redis.command(["DEL", "lockkeeper:mark"]).expect("removed");
        redis.command([command, "lockkeeper:mark", "nonsense"]).expect("spoilt");
    };
    let mut last = 0;
    let mut grows = |verdict: Verdict| {
        let Verdict::Granted(grant) = verdict else { panic!("{verdict:?}") };
        assert!(grant.number > last, "{grant:?} after {last}");
        last = grant.number;
    };
    for (round, command) in ["RPUSH", "SET", "SADD"].into_iter().enumerate() {
        let first = 10 * round as u64;
        spoil(command);
        grows(asker.ask(&asker.claim(first, Units::All, true)).await);
        for seq in [first + 1, first + 2] {
            asker.ask(&asker.claim(seq, Units::All, true)).await;
        }
        // Granted by contended.lua, and by resource.lua.
        spoil(command);
        asker.leave(first).await;
        grows(asker.ask(&Claim { again: true, ..asker.claim(first + 1, Units::All, true) }).await);
        spoil(command);
        let marked = Leave { tombstone_until: Some(StoreTime(u64::MAX >> 12)), ..asker.leave_of(first + 1) };
        asker.store.apply(&[Request::Leave(marked)]).await.expect("answered");
        grows(asker.ask(&Claim { again: true, ..asker.claim(first + 2, Units::All, true) }).await);
        asker.leave(first + 2).await;
    }
    asker.store.close().await;
}

/// A try, and a leave of a lock that another contender holds, cause no error that the server counts.
#[tokio::test(flavor = "multi_thread")]
async fn being_busy_is_no_error_of_the_server() {
    let redis = RedisOptions::default().start().expect("started");
    let asker = Asker::connect(&redis.url()).await;
    asker.ask(&asker.claim(1, Units::All, true)).await;
    let tried = asker.ask(&asker.claim(2, Units::All, false)).await;
    assert!(matches!(tried, Verdict::Busy { .. }), "{tried:?}");
    asker.leave(3).await;
    let errors = redis.command(["INFO", "errorstats"]).expect("asked");
    assert!(!errors.contains("errorstat_WRONGTYPE"), "{errors}");
    asker.store.close().await;
}

/// Many holders are read once for all entries of a group, not once for each.
#[tokio::test(flavor = "multi_thread")]
async fn many_holders_are_read_once_for_a_group() {
    let redis = RedisOptions::default().start().expect("started");
    let asker = Asker::connect(&redis.url()).await;
    let group: Vec<_> = (0..100).map(|seq| Request::Claim(asker.claim(seq, Units::ONE, true))).collect();
    asker.store.apply(&group).await.expect("answered");
    let reads = || {
        let stats = redis.info("commandstats", "cmdstat_lrange").unwrap_or_default();
        let calls = stats.strip_prefix("calls=").and_then(|rest| rest.split(',').next());
        calls.map_or(0, |calls| calls.parse::<u64>().expect("a number"))
    };
    let before = reads();
    let renew = |seq| Renew { lease: secs(200), ..asker.renewal_of(seq) };
    let renewed = asker.store.renew(&(0..100).map(renew).collect::<Vec<_>>()).await.expect("answered").each;
    let whole = |renewed: &Renewed| matches!(renewed, Renewed::Held(grant) if grant.remaining == secs(200));
    assert!(renewed.iter().all(whole), "{renewed:?}");
    let leaves: Vec<_> = (0..99).map(|seq| Request::Leave(asker.leave_of(seq))).collect();
    let left = asker.store.apply(&leaves).await.expect("answered").each;
    assert!(left.iter().all(|left| matches!(left, Answer::Leave(Left::Released))), "{left:?}");
    assert!(reads() - before < 10, "read {} times", reads() - before);
    let view = asker.store.inspect(&asker.leave_of(0).name).await.expect("asked").expect("held");
    assert_eq!(view.holders.iter().map(|holder| holder.contender.seq).collect::<Vec<_>>(), [99]);
    asker.store.close().await;
}

/// Two requests of one contender in a group are done in their order.
#[tokio::test(flavor = "multi_thread")]
async fn i11_one_contender_twice_in_a_group_is_answered_in_order() {
    let redis = RedisOptions::default().start().expect("started");
    let asker = Asker::connect(&redis.url()).await;
    let group = [Request::Leave(asker.leave_of(1)), Request::Claim(asker.claim(1, Units::All, true))];
    let answers = asker.store.apply(&group).await.expect("answered").each;
    assert!(
        matches!(answers[..], [Answer::Leave(Left::NotThere), Answer::Claim(Verdict::Granted(_))]),
        "{answers:?}"
    );
    let view = || async { asker.store.inspect(&asker.leave_of(1).name).await.expect("asked") };
    assert!(view().await.is_some(), "it is held");
    let lease = |lease, detach| Renew { lease, detach, ..asker.renewal_of(1) };
    for first in [lease(secs(900), false), lease(secs(900), true)] {
        asker.store.renew(&[first, lease(secs(300), false)]).await.expect("answered");
        let remaining = view().await.expect("held").holders[0].remaining;
        assert!(remaining > Some(secs(800)), "a lease was shortened to {remaining:?}");
    }
    asker.store.close().await;
}

/// A waiter that asks and is granted gets no message besides its answer. The message could come after it has released
/// the lock, and would look like a grant that nobody waits for.
#[tokio::test(flavor = "multi_thread")]
async fn a_grant_in_an_answer_is_not_published() {
    let redis = RedisOptions::default().start().expect("started");
    let (sender, mut told) = tokio::sync::mpsc::unbounded_channel();
    let wakes = WakeSink::new(move |wake| {
        if let Wake::Granted(_, notice) = wake {
            let _ = sender.send(notice.contender.seq);
        }
    });
    let asker = Asker::connect_with(&redis.url(), wakes).await;
    asker.ask(&Claim { lease: Duration::from_millis(100), ..asker.claim(1, Units::All, true) }).await;
    // This one waits until the lease of the first has ended.
    while !matches!(asker.ask(&asker.claim(2, Units::All, true)).await, Verdict::Granted(_)) {}
    assert!(matches!(asker.ask(&asker.claim(3, Units::All, true)).await, Verdict::Busy { .. }));
    asker.leave(2).await;
    let first = tokio::time::timeout(secs(20), told.recv()).await.expect("in time");
    assert_eq!(first, Some(3), "the releaser's message is the only one");
    asker.store.close().await;
}

/// A slot that moves is no business of the others that travel with one of its names.
#[tokio::test(flavor = "multi_thread")]
async fn a_slot_that_moves_neither_delays_nor_fails_the_rest_of_a_group() {
    let cluster = RedisCluster::start().expect("started");
    let (slot, node) = location(&cluster, NAME);
    let other = neighbour(&cluster, NAME);
    let to = (node + 1) % 3;
    let asker = Asker::connect(&cluster.url()).await;
    let held = asker.ask(&asker.claim(1, Units::All, true)).await;
    assert!(matches!(held, Verdict::Granted(_)), "{held:?}");
    cluster.begin_move(slot, to).expect("begun");
    // One of the two keys of the lock goes ahead: until the move is over, no node has both.
    assert_eq!(cluster.move_keys(slot, to, 1).expect("moved"), 1);
    let elsewhere = Claim { name: Name::new(&other).expect("a name"), ..asker.claim(3, Units::All, true) };
    let group = [
        Request::Leave(asker.leave_of(1)),
        Request::Claim(asker.claim(2, Units::All, true)),
        Request::Claim(elsewhere),
    ];
    // The request limit is a minute.
    let answers = timeout(secs(20), asker.store.apply(&group)).await.expect("not delayed").expect("answered");
    let [Answer::Leave(left), Answer::Claim(moving), Answer::Claim(staying)] = &answers.each[..] else {
        panic!("{answers:?}")
    };
    assert_eq!(*left, Left::NotNow);
    assert!(matches!(moving, Verdict::NotNow(error) if !error.maybe_applied()), "{moving:?}");
    assert!(matches!(staying, Verdict::Granted(_)), "{staying:?}");
    while cluster.move_keys(slot, to, 10).expect("moved") > 0 {}
    cluster.end_move(slot, to).expect("ended");
    asker.leave(1).await;
    let entered = asker.ask(&asker.claim(2, Units::All, true)).await;
    assert!(matches!(entered, Verdict::Granted(_)), "{entered:?}");
    asker.store.close().await;
}
