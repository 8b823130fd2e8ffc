//! Laws 2 and 9: a busy name delays no other one, and a lost race is "nothing was done".

use std::time::{Duration, Instant};

use lockkeeper_core::store::{Answer, Left, Renewed, Request, Verdict};
use lockkeeper_testkit::{
    proxy::{Fault, Proxy},
    servers::Postgres,
};
use tokio::time::timeout;

use crate::{
    asker::Asker,
    millis,
    plain::{Freeing, backends, lock_row, session},
    secs,
};

use super::is_granted;

/// Laws 2 and 9. Of several names, those that somebody has locked are left out, and the others are served at once. A lone
/// name is waited for, but not for long. Nothing was done for those that are told so.
#[tokio::test(flavor = "multi_thread")]
async fn law_2_a_busy_name_delays_no_other() {
    let server = Postgres::start().expect("started");
    let asker = Asker::connect(&server.url()).await;
    for (name, seq) in [("a", 1), ("b", 2), ("c", 3)] {
        assert!(is_granted(&asker.ask_once(name, seq).await));
    }
    asker.give_back_once("b", 2).await.expect("answered");
    let other = session(&server).await;
    lock_row(&other, "a").await;
    lock_row_too(&other, "b").await;
    let started = Instant::now();
    let group = [
        Request::Leave(asker.leave("a", 1)),
        Request::Claim(asker.claim("b", 4)),
        Request::Leave(asker.leave("c", 3)),
    ];
    let answers = asker.store.apply(&group).await.expect("answered").each;
    let [Answer::Leave(Left::NotNow), Answer::Claim(Verdict::NotNow(error)), Answer::Leave(Left::Released)] =
        &answers[..]
    else {
        panic!("{answers:?}")
    };
    assert!(!error.maybe_applied() && error.is_passing(), "{error}");
    assert!(started.elapsed() < millis(200), "it waited for {:?}", started.elapsed());
    // Alone it waits, is told the same, and the session goes on.
    let answers = asker.claims(&[("b", 4)]).await.expect("answered").each;
    assert!(matches!(answers[..], [Answer::Claim(Verdict::NotNow(_))]), "{answers:?}");
    let freeing = Freeing::of(&server).await;
    let answers = asker.ask_alone("b", 4).await.each;
    assert!(matches!(answers[..], [Answer::Claim(Verdict::NotNow(_))]), "{answers:?}");
    let (answers, _) = tokio::join!(asker.ask_alone("b", 4), freeing.once_awaited(&other));
    let answers = answers.each;
    assert!(matches!(answers[..], [Answer::Claim(Verdict::Granted(_))]), "{answers:?}");
    assert_eq!(asker.holders("a").await, [1], "nothing was done before");
}

/// Law 2. A name that is busy for long stops neither claims of other names nor operations that have to wait themselves.
#[tokio::test(flavor = "multi_thread")]
async fn law_2_a_busy_name_occupies_no_connection_that_others_need() {
    let server = Postgres::start().expect("started");
    let asker = Asker::connect(&server.url()).await;
    for (name, seq) in [("a", 1), ("b", 2)] {
        assert!(is_granted(&asker.ask_once(name, seq).await));
        asker.give_back_once(name, seq).await.expect("answered");
        asker.ask_alone(name, seq).await;
        asker.give_back_once(name, seq).await.expect("answered");
    }
    let other = session(&server).await;
    lock_row(&other, "a").await;
    // The quickest of several rounds: a busy machine delays some of them, a wait for the row all.
    let mut quickest = Duration::MAX;
    for round in 0..5 {
        let started = Instant::now();
        let served = async {
            assert!(is_granted(&asker.ask_once("b", 10 + round).await));
            let took = started.elapsed();
            asker.give_back_once("b", 10 + round).await.expect("answered");
            took
        };
        let (alone, lone, took) =
            tokio::join!(biased; asker.ask_alone("a", 3), asker.claims(&[("a", 4)]), served);
        assert!(matches!(alone.each[..], [Answer::Claim(Verdict::NotNow(_))]), "{alone:?}");
        let lone = lone.expect("answered").each;
        assert!(matches!(lone[..], [Answer::Claim(Verdict::NotNow(_))]), "{lone:?}");
        quickest = quickest.min(took);
    }
    assert!(quickest < millis(100), "it waited for {quickest:?}");
    assert!(backends(&server).len() <= 3, "three connections at most");
}

/// Law 2. A name that is skipped is asked again alone, and waits for its turn: a keeper that works on many names can
/// release one that others lock back to back.
#[tokio::test(flavor = "multi_thread")]
async fn law_2_a_name_that_is_always_busy_is_released_all_the_same() {
    let server = Postgres::start().expect("started");
    let keeper = lockkeeper::connect(&server.url()).await.expect("connected");
    let hot = keeper.mutex("hot").lease(secs(60)).lock().await.expect("free");
    let mut tasks = tokio::task::JoinSet::new();
    for task in 0..16 {
        let mutex = keeper.mutex(&format!("other/{task}"));
        tasks.spawn(async move {
            loop {
                mutex.lock().await.expect("free").release().await.expect("held");
            }
        });
    }
    for _ in 0..8 {
        let session = session(&server).await;
        tasks.spawn(async move {
            let lock = "BEGIN; SELECT 1 FROM lockkeeper.resource WHERE name = 'hot' FOR UPDATE; SELECT pg_sleep(0.001)";
            loop {
                session.batch_execute(lock).await.expect("locked");
                session.batch_execute("COMMIT").await.expect("ended");
            }
        });
    }
    tokio::time::sleep(millis(200)).await;
    let started = Instant::now();
    hot.release().await.expect("held");
    let took = started.elapsed();
    // And a claim is answered, too.
    let again = keeper.mutex("hot").try_lock().await.expect("answered").expect("free");
    println!("released after {took:?}, claimed after {:?}", started.elapsed());
    assert!(took < millis(500), "released after {took:?}");
    tasks.shutdown().await;
    again.release().await.expect("held");
    keeper.close().await;
}

/// Law 2. Renewals have a connection of their own, and a busy name is renewed as soon as it is free.
#[tokio::test(flavor = "multi_thread")]
async fn law_2_a_busy_name_starves_no_renewal() {
    let server = Postgres::start().expect("started");
    let asker = Asker::connect(&server.url()).await;
    for (name, seq) in [("a", 1), ("b", 2), ("c", 3)] {
        assert!(is_granted(&asker.ask_once(name, seq).await));
    }
    let other = session(&server).await;
    lock_row(&other, "b").await;
    let leases = [("a", 1), ("b", 2), ("c", 3)].map(|(name, seq)| asker.renewal(name, seq));
    let answers = asker.store.renew(&leases).await.expect("answered").each;
    assert!(matches!(answers[..], [Renewed::Held(_), Renewed::Unknown, Renewed::Held(_)]), "{answers:?}");
    let freeing = Freeing::of(&server).await;
    let (answers, _) = tokio::join!(asker.store.renew(&leases), freeing.once_awaited(&other));
    let answers = answers.expect("answered").each;
    assert!(answers.iter().all(|answer| matches!(answer, Renewed::Held(_))), "{answers:?}");
}

/// Law 2. However many names are busy, the others are renewed, and their answers come in time.
#[tokio::test(flavor = "multi_thread")]
async fn law_2_many_busy_names_starve_no_renewal() {
    let server = Postgres::start().expect("started");
    let asker = Asker::connect(&format!("{}?request_limit=2s", server.url())).await;
    let names: Vec<String> = (0..12).map(|number| format!("name/{number:02}")).collect();
    let mut leases = Vec::new();
    for (name, seq) in names.iter().zip(1..) {
        assert!(is_granted(&asker.ask_once(name, seq).await));
        leases.push(asker.renewal(name, seq));
    }
    let other = session(&server).await;
    lock_row(&other, &names[0]).await;
    for name in &names[1..10] {
        lock_row_too(&other, name).await;
    }
    for _ in 0..3 {
        let answers = asker.store.renew(&leases).await.expect("answered").each;
        let held = |answer: &&Renewed| matches!(answer, Renewed::Held(_));
        assert_eq!(answers.iter().filter(held).count(), 2, "{answers:?}");
        assert!(answers[10..].iter().all(|answer| held(&answer)), "{answers:?}");
    }
    // Many renewals at once: those behind one that meets busy names have their turn.
    let before = backends(&server);
    let mut renewing = tokio::task::JoinSet::new();
    for _ in 0..40 {
        let (store, leases) = (asker.store.clone(), leases.clone());
        renewing.spawn(async move { store.renew(&leases).await });
    }
    for answers in renewing.join_all().await {
        let answers = answers.expect("answered").each;
        assert!(answers[10..].iter().all(|answer| matches!(answer, Renewed::Held(_))), "{answers:?}");
    }
    assert_eq!(backends(&server), before, "no session was lost");
    other.batch_execute("COMMIT").await.expect("ended");
    let answers = asker.store.renew(&leases).await.expect("answered").each;
    assert!(answers.iter().all(|answer| matches!(answer, Renewed::Held(_))), "{answers:?}");
}

/// Law 2. Renewals have a connection of their own: one that hangs with a claim does not concern them.
#[tokio::test(flavor = "multi_thread")]
async fn law_2_renewals_do_not_wait_for_claims() {
    let server = Postgres::start().expect("started");
    let proxy = Proxy::start(server.address()).expect("started");
    let url = format!("postgres://lockkeeper@{}/lockkeeper?request_limit=30s", proxy.address());
    let asker = Asker::connect(&url).await;
    assert!(is_granted(&asker.ask_once("a", 1).await));
    proxy.now(Fault::SILENCE);
    let claim = asker.claims(&[("b", 2)]);
    let leases = [asker.renewal("a", 1)];
    let renewed = timeout(secs(10), asker.store.renew(&leases));
    tokio::select! {
        biased;
        claimed = claim => panic!("{claimed:?}"),
        renewed = renewed => {
            let renewed = renewed.expect("in time").expect("answered").each;
            assert!(matches!(renewed[..], [Renewed::Held(_)]), "{renewed:?}");
        }
    }
}

/// Law 9. A transaction that loses against another one did nothing, is answered so, and its session is used on.
#[tokio::test(flavor = "multi_thread")]
async fn law_9_a_lost_race_is_not_now() {
    let server = Postgres::start().expect("started");
    let asker = Asker::connect(&server.url()).await;
    assert!(is_granted(&asker.ask_once("a", 1).await));
    asker.give_back_once("a", 1).await.expect("answered");
    let before = backends(&server);
    for (seq, code) in (2..).zip(["40P01", "40001", "55P03"]) {
        let loses = format!(
            "CREATE OR REPLACE FUNCTION lose() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
                 IF NEW.name = 'a' THEN RAISE 'lost' USING ERRCODE = '{code}'; END IF; RETURN NEW;
             END $$;
             CREATE OR REPLACE TRIGGER lose BEFORE UPDATE ON lockkeeper.resource FOR EACH ROW EXECUTE FUNCTION lose()"
        );
        server.sql(&loses).expect("made");
        for _ in 0..2 {
            let Verdict::NotNow(error) = asker.ask_once("a", seq).await else { panic!("{code}") };
            assert!(error.is_passing() && !error.maybe_applied(), "{code}: {error}");
        }
        assert_eq!(backends(&server), before, "{code}: the session is used on");
        server.sql("DROP TRIGGER lose ON lockkeeper.resource").expect("dropped");
        assert!(is_granted(&asker.ask_once("a", seq).await), "{code}");
        asker.give_back_once("a", seq).await.expect("answered");
    }
}

async fn lock_row_too(session: &tokio_postgres::Client, name: &str) {
    let lock = "SELECT 1 FROM lockkeeper.resource WHERE name = $1 FOR UPDATE";
    assert_eq!(session.query(lock, &[&name.as_bytes()]).await.expect("locked").len(), 1, "{name} has a row");
}

/// A name that others update all the time: a lone claim of it does not wait from one of them to the next, and so does not keep
/// other names of its keeper waiting. `lock_timeout` alone would count each wait by itself.
#[tokio::test(flavor = "multi_thread")]
async fn law_2_a_hot_name_is_not_waited_for_again_and_again() {
    let server = Postgres::start().expect("started");
    let asker = Asker::connect(&server.url()).await;
    assert!(is_granted(&asker.ask_once("hot", 1).await));
    let mut lockers = Vec::new();
    for _ in 0..16 {
        let other = session(&server).await;
        lockers.push(tokio::spawn(async move {
            let update = "BEGIN; UPDATE lockkeeper.resource SET used = used WHERE name = 'hot'; SELECT pg_sleep(0.03); COMMIT";
            while other.batch_execute(update).await.is_ok() {}
        }));
    }
    let waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'";
    while server.sql(waiting).expect("asked").parse::<u32>().expect("a number") < 10 {}
    let started = Instant::now();
    for seq in 2..22 {
        asker.claims(&[("hot", seq)]).await.expect("answered");
    }
    // Twenty waits of 60 ms at most. Without a limit, each would last for some of the sixteen transactions of 30 ms.
    assert!(started.elapsed() < millis(2500), "{:?}", started.elapsed());
    lockers.iter().for_each(tokio::task::JoinHandle::abort);
}

/// Two groups that meet on many names: those that were locked go together once more, and not one by one.
#[tokio::test(flavor = "multi_thread")]
async fn many_names_that_were_busy_go_together_again() {
    let server = Postgres::start().expect("started");
    let asker = Asker::connect(&server.url()).await;
    let names: Vec<String> = (0..32).map(|n| format!("n{n:02}")).collect();
    let claims: Vec<(&str, u64)> = names.iter().map(String::as_str).zip(1..).collect();
    asker.claims(&claims).await.expect("answered");
    let proxy = Proxy::start(server.address()).expect("started");
    let slow = Asker::connect(&format!("postgres://lockkeeper@{}/lockkeeper", proxy.address())).await;
    slow.claims(&claims).await.expect("prepared");
    let other = session(&server).await;
    other.batch_execute("BEGIN; SELECT 1 FROM lockkeeper.resource FOR UPDATE").await.expect("locked");
    // The rows are free again while the answer that they are not is on its way.
    proxy.delay(millis(50));
    let (answers, ()) = tokio::join!(slow.claims(&claims), async {
        tokio::time::sleep(millis(130)).await;
        other.batch_execute("COMMIT").await.expect("ended");
    });
    let answers = answers.expect("answered").each;
    let busy = answers.iter().filter(|it| matches!(it, Answer::Claim(Verdict::Busy { .. }))).count();
    assert_eq!(busy, names.len(), "{answers:?}");
}
