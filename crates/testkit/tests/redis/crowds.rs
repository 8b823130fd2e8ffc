//! Many clients, and clients that crash.

use std::time::{Duration, Instant};

use lockkeeper_core::{
    ContenderId, KeeperId, Name, Units,
    clock::Clock,
    store::{Answer, Claim, Context, Leave, Left, Request, Verdict, WakeSink},
    testing,
};
use lockkeeper_testkit::{history, kills::Kills, processes::Task, servers::Redis};
use tokio::time::timeout;

use crate::{
    WORKER, connect,
    load::{crew, task},
    millis, percent, secs, times,
};

/// A holder that is killed inside of its section blocks the others for the rest of its lease, and no longer.
#[test]
fn i8_a_killed_holder_is_passed_when_its_lease_ends() {
    let redis = Redis::start().expect("started");
    let folder = tempfile::tempdir().expect("a folder");
    let task = Task { lease: millis(500), ..task(&redis.url(), &folder) };
    // The short form runs beside many other tests.
    let slack = if percent().is_some() { millis(250) } else { secs(1) };
    let kills = Kills::of_holders(WORKER, &task, 1, times(5, 200));
    println!("lease {:?}, {kills}", task.lease);
    assert!(kills.passed(100) <= task.lease + slack, "{kills:?}");
}

/// Each process has waiters on two names, which share one position in the queue or have one each. Then a fifth of the
/// processes is killed.
#[test]
fn a_crowd_outlives_a_fifth_of_it() {
    let (hands, tasks) = if percent().is_some() { (20, 100) } else { (5, 40) };
    let redis = Redis::start().expect("started");
    let folder = tempfile::tempdir().expect("a folder");
    let mut crew = crew(WORKER, Task { resources: 2, tasks, ..task(&redis.url(), &folder) }, hands);
    let all_wait = crew.listen(secs(120), |crew| crew.sections() > 0 && crew.waiting() == hands as usize);
    assert!(all_wait, "{} processes wait", crew.waiting());
    for number in 0..hands / 5 {
        crew.kill(number);
    }
    let (more, started) = (crew.sections() + 20 * tasks as usize, Instant::now());
    assert!(crew.listen(secs(120), |crew| crew.sections() >= more), "{} of {more} sections", crew.sections());
    println!("{} sections after the kill in {:?}", 20 * tasks, started.elapsed());
    let ended = crew.finish(secs(120));
    let (history, rules) = crew.into_evidence();
    let report = lockkeeper_testkit::history::check(&history, &rules);
    println!("{report}");
    assert!(ended, "some workers did not end\n{report}");
    assert_eq!(report.verdict, history::Verdict::Safe, "{report}");
}

/// More readers than one call from a script can take enter together, and keep writers out.
#[tokio::test(flavor = "multi_thread")]
async fn thousands_of_readers_enter_together() {
    const READERS: u64 = 4200;
    let redis = Redis::start().expect("started");
    let keeper = KeeperId::random();
    let context = Context {
        keeper,
        wakes: WakeSink::new(|_| {}),
        background: tokio::runtime::Handle::current(),
        clock: Clock::boot(),
        request_limit: secs(60),
    };
    let connector = lockkeeper::url::connector(&redis.url()).expect("a good URL");
    let store = connector.connect(context).await.expect("connected");
    let name = Name::new("many").expect("a name");
    let claim = |seq: u64, units: Units| {
        Request::Claim(Claim {
            units,
            lease: secs(120),
            ..testing::claim(&name, ContenderId { keeper, seq })
        })
    };
    let apply = async |group: Vec<Request>| store.apply(&group).await.expect("answered").each;
    assert!(matches!(apply(vec![claim(0, Units::All)]).await[..], [Answer::Claim(Verdict::Granted(_))]));
    for first in (1..=READERS).step_by(100) {
        let some = (first..first + 100).map(|seq| claim(seq, Units::ONE)).collect();
        let answers = apply(some).await;
        assert!(answers.iter().all(|answer| matches!(answer, Answer::Claim(Verdict::Busy { .. }))));
    }
    let contender = ContenderId { keeper, seq: 0 };
    let leave = Leave { name: name.clone(), contender, tombstone_until: None, hold_at_least: Duration::ZERO };
    let left = apply(vec![Request::Leave(leave)]).await;
    assert!(matches!(left[..], [Answer::Leave(Left::Released)]), "{left:?}");
    let view = store.inspect(&name).await.expect("asked").expect("held");
    assert_eq!((view.holders.len() as u64, view.waiters.len()), (READERS, 0));
    let writer = apply(vec![claim(READERS + 1, Units::All)]).await;
    assert!(matches!(writer[..], [Answer::Claim(Verdict::Busy { .. })]), "{writer:?}");
    store.close().await;
}

/// The server tells an observer of an election by a message, and the observer's requests for that disturb no renewal.
#[tokio::test(flavor = "multi_thread")]
async fn an_observer_is_told_by_a_message() {
    let redis = Redis::start().expect("started");
    let (keeper, other) = (connect(&redis.url()).await, connect(&redis.url()).await);
    let mut leaders = keeper.election("boss").observe();
    assert!(leaders.next().await.expect("goes on").expect("asked").is_none(), "nobody leads");
    let channel = "lockkeeper:{boss}:changed";
    timeout(secs(10), async {
        while redis.command(["PUBSUB", "NUMSUB", channel]).expect("asked").ends_with('0') {
            tokio::time::sleep(millis(5)).await;
        }
    })
    .await
    .expect("it listens");
    let connections = || {
        let received = redis.info("stats", "total_connections_received").expect("asked");
        received.parse::<u32>().expect("a number")
    };
    let before = connections();
    for _ in 0..3 {
        let led = other.election("boss").campaign("me").await.expect("elected");
        assert!(leaders.next().await.expect("goes on").expect("asked").is_some());
        led.release().await.expect("held");
        assert!(leaders.next().await.expect("goes on").expect("asked").is_none());
    }
    let since = connections() - before;
    assert!(since <= 2, "{since} connections were made, of which one asks for this");
}
