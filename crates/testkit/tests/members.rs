//! The part of a store that serves a quorum, on every store that may be a member: the record, its change by
//! compare-and-set, and that it comes with every answer.
#![cfg(target_os = "linux")]

use std::sync::Arc;

use lockkeeper::{
    memory::MemoryServer,
    store::{
        Answer, Claim, Enrolment, Grant, Leave, Member, MemberState, Membership, Renewed, Request, Verdict,
    },
};
use lockkeeper_testkit::{
    asker::Asker,
    servers::{MariaDb, Postgres, Redis},
};

const RECORD: &str = "lkq1 60000 a,b,c 5 it's \"me\"";

fn member(asker: &Asker) -> &dyn Member {
    asker.store.member().expect("it may be a member")
}

async fn state(asker: &Asker) -> MemberState {
    member(asker).state().await.expect("answered")
}

async fn enrol(asker: &Asker, expected: &Membership, record: &str, high_water: u64) -> bool {
    let enrolment = Enrolment { expected: expected.clone(), record: record.into(), high_water };
    member(asker).enrol(&enrolment).await.expect("answered")
}

/// Claims as a member does, and gives the membership that came along.
async fn claim(asker: &Asker, seq: u64, at_least: u64) -> (Grant, Membership) {
    let request = Request::Claim(Claim { at_least, ..asker.claim("stock", seq) });
    loop {
        let answered = member(asker).apply(std::slice::from_ref(&request)).await.expect("answered");
        match &answered.answers.each[..] {
            [Answer::Claim(Verdict::Granted(grant))] => return (*grant, answered.membership),
            [Answer::Claim(Verdict::NotNow(_))] => {}
            other => panic!("{other:?}"),
        }
    }
}

async fn leave(asker: &Asker, seq: u64) {
    let leave = Leave { ..asker.leave("stock", seq) };
    member(asker).apply(&[Request::Leave(leave)]).await.expect("answered");
}

async fn keeps_a_record(url: &str) {
    let (first, second) = (Asker::connect(url).await, Asker::connect(url).await);
    let new = state(&first).await;
    assert_eq!(new.membership.record, None);
    assert!(new.wall > 1_600_000_000_000_000, "microseconds since 1970: {}", new.wall);
    let (grant, membership) = claim(&first, 1, 0).await;
    assert_eq!(membership, new.membership, "answers tell the same as the state");
    assert_eq!(state(&second).await.high_water, grant.number);

    // Grants have numbers above the mark that the record would have.
    assert!(!enrol(&first, &new.membership, RECORD, grant.number - 1).await);
    assert_eq!(state(&first).await.membership, new.membership);
    let mark = grant.number + 1_000_000_000;
    assert!(enrol(&first, &new.membership, RECORD, mark).await);
    let after = state(&second).await;
    assert_eq!((after.membership.record.as_deref(), after.high_water), (Some(RECORD), mark));
    assert_eq!(after.membership.incarnation, new.membership.incarnation);
    assert_eq!(after.server, new.server, "two connections to one server");

    // It is not as the second one expects any more.
    assert!(!enrol(&second, &new.membership, "other", mark + 1).await);
    let other = Membership { incarnation: "another".into(), ..after.membership.clone() };
    assert!(!enrol(&second, &other, "other", mark + 1).await);
    assert_eq!(state(&first).await.membership, after.membership);

    let renewal = [first.renewal("stock", 1)];
    let renewed = member(&first).renew(&renewal).await.expect("answered");
    assert!(matches!(renewed.answers.each[..], [Renewed::Held(held)] if held.number == grant.number));
    assert_eq!(renewed.membership, after.membership);
    leave(&first, 1).await;
    let (next, membership) = claim(&second, 1, grant.number + 1).await;
    assert_eq!((next.number, membership), (mark + 1, after.membership.clone()), "above the mark");
    leave(&second, 1).await;
    let empty = member(&first).apply(&[]).await.expect("answered");
    assert_eq!(empty.membership, after.membership);

    // Of many that change it at the same time, one does.
    let racers = (0..8).map(|racer| {
        let (asker, expected) = (first.clone(), after.membership.clone());
        tokio::spawn(async move {
            let record: Arc<str> = format!("racer {racer}").into();
            let enrolment = Enrolment { expected, record, high_water: mark + 10 };
            // A server may be too busy with the others.
            member(&asker).enrol(&enrolment).await.unwrap_or(false)
        })
    });
    let mut won = 0;
    for racer in racers.collect::<Vec<_>>() {
        won += u32::from(racer.await.expect("ended"));
    }
    assert_eq!(won, 1);

    // A keeper that knows one record is told of the next, also if that was there before.
    for record in ["one", "two", "one"] {
        let (_, known) = claim(&first, 2, 0).await;
        let now = state(&second).await;
        assert_eq!(known, now.membership);
        assert!(enrol(&second, &known, record, now.high_water).await);
        assert_eq!(claim(&first, 2, 0).await.1.record.as_deref(), Some(record), "a claim that is sent again");
        let renewed = member(&first).renew(&[first.renewal("stock", 2)]).await.expect("answered");
        assert_eq!(renewed.membership.record.as_deref(), Some(record));
        let left = member(&first).apply(&[Request::Leave(first.leave("stock", 2))]).await.expect("answered");
        assert_eq!(left.membership.record.as_deref(), Some(record));
    }
    first.store.close().await;
    second.store.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn memory() {
    let server = MemoryServer::named("members");
    keeps_a_record("memory:members").await;
    let asker = Asker::connect("memory:members").await;
    let before = state(&asker).await.membership;
    server.lose_data();
    let after = state(&asker).await.membership;
    assert!(after.record.is_none() && after.incarnation != before.incarnation, "{after:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn sqlite() {
    let folder = tempfile::tempdir().expect("a folder");
    let url = format!("sqlite:{}", folder.path().join("locks.db").display());
    keeps_a_record(&url).await;
    let before = state(&Asker::connect(&url).await).await.membership;
    // A copy of the file may be older.
    let (old, copy) = (folder.path().join("locks.db"), folder.path().join("copy.db"));
    std::fs::copy(&old, &copy).expect("copied");
    let after = state(&Asker::connect(&format!("sqlite:{}", copy.display())).await).await.membership;
    assert!(after.incarnation != before.incarnation, "{after:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn redis() {
    let server = Redis::start().expect("started");
    keeps_a_record(&server.url()).await;
    let asker = Asker::connect(&server.url()).await;
    let (_, before) = claim(&asker, 1, 0).await;
    server.command(["FLUSHALL"]).expect("emptied");
    let (_, flushed) = claim(&asker, 2, 0).await;
    assert_eq!((flushed.record, &flushed.incarnation), (None, &before.incarnation));
    server.restart_empty().expect("restarted");
    let after = loop {
        if let Ok(state) = member(&asker).state().await {
            break state.membership;
        }
    };
    assert!(after.record.is_none() && after.incarnation != before.incarnation, "{after:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn postgres() {
    let server = Postgres::start().expect("started");
    keeps_a_record(&server.url()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn mariadb() {
    let server = MariaDb::start().expect("started");
    keeps_a_record(&server.url()).await;
    server.sql("SET GLOBAL innodb_flush_log_at_trx_commit = 2").expect("set");
    let asker = Asker::connect(&server.url()).await;
    let error = member(&asker).state().await.expect_err("it may lose commits");
    assert!(error.to_string().contains("innodb_flush_log_at_trx_commit"), "{error}");
}
