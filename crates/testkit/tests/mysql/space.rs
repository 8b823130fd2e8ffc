//! A server without disk space: an error that says what to do, and nothing half-written.

use std::time::Instant;

use lockkeeper_core::{
    StoreError,
    store::{Answer, Answers, Renewed},
};
use lockkeeper_testkit::{
    asker::Asker,
    servers::{MariaDb, MariaDbOptions},
};
use mysql_async::prelude::Queryable as _;

use crate::{
    plain::{is_granted, session},
    secs,
};

/// Nothing was done, and it passes.
fn says_so(error: &StoreError) {
    assert!(error.is_passing() && !error.maybe_applied(), "{error}");
    let told = error.to_string();
    assert!(told.contains("no disk space or memory") && told.contains("see its log"), "{told}");
}

fn granted(answers: &[Answer]) -> bool {
    answers.iter().all(|answer| matches!(answer, Answer::Claim(verdict) if is_granted(verdict)))
}

/// Claims names that need many new pages, as one group.
async fn claim_many(asker: &Asker, round: u64) -> Result<Answers<Answer>, StoreError> {
    let name = |number: u64| format!("{round}/{number:0>490}");
    let names: Vec<(String, u64)> = (0..250).map(|number| (name(number), 1000 * round + number)).collect();
    let claims: Vec<(&str, u64)> = names.iter().map(|(name, seq)| (name.as_str(), *seq)).collect();
    asker.claims(&claims).await
}

/// Each error that the server has for it, in the middle of a group.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_without_space_says_so() {
    let server = MariaDb::start().expect("started");
    let (asker, mut plain) = (Asker::connect(&server.url()).await, session(&server).await);
    assert!(is_granted(&asker.ask("held", 1).await));
    for code in [1021, 1026, 1030, 1041, 1114] {
        let fails = format!(
            "CREATE OR REPLACE TRIGGER fail BEFORE UPDATE ON lockkeeper_resource FOR EACH ROW \
             IF NEW.name = 'b' THEN SIGNAL SQLSTATE 'HY000' SET MYSQL_ERRNO = {code}, MESSAGE_TEXT = 'full'; END IF"
        );
        plain.query_drop(fails).await.expect("made");
        says_so(&asker.claims(&[("a", 2), ("b", 3)]).await.expect_err("no space"));
        assert_eq!(asker.holders("a").await, [] as [u64; 0], "{code}");
        assert_eq!(asker.holders("held").await, [1], "{code}");
    }
    plain.query_drop("DROP TRIGGER fail").await.expect("dropped");
    let answers = asker.claims(&[("a", 2), ("b", 3)]).await.expect("answered").each;
    assert!(granted(&answers), "{answers:?}");
}

/// A tablespace that really has no room for more rows.
#[tokio::test(flavor = "multi_thread")]
async fn a_full_tablespace_keeps_what_is_held() {
    // What undoes a transaction is elsewhere: without room for that, the server can remove nothing.
    let server = MariaDbOptions::default()
        .setting("innodb_file_per_table = OFF")
        .setting("innodb_undo_tablespaces = 2")
        .setting("innodb_data_file_path = ibdata1:12M:autoextend:max:16M");
    let server = server.start().expect("started");
    let asker = Asker::connect(&server.url()).await;
    assert!(is_granted(&asker.ask("held", 1).await));
    server.sql("CREATE TABLE filler (a VARBINARY(4000)) ENGINE = InnoDB").expect("made");
    let started = Instant::now();
    let mut round = 0;
    let error = loop {
        round += 1;
        for rows in [300, 10, 1] {
            let fill = format!("INSERT INTO filler SELECT REPEAT('x', 4000) FROM seq_1_to_{rows}");
            while server.sql(&fill).is_ok() {}
        }
        // The server may find some room again when it tidies up.
        match claim_many(&asker, round).await {
            Ok(answers) => assert!(granted(&answers.each), "{answers:?}"),
            Err(error) => break error,
        }
        assert!(started.elapsed() < secs(60), "it is never full");
    };
    says_so(&error);
    let of_that_group = format!("SELECT COUNT(*) FROM lockkeeper_resource WHERE name LIKE '{round}/%'");
    assert_eq!(server.sql(&of_that_group).expect("asked"), "0", "half of a group was written");
    assert_eq!(asker.holders("held").await, [1]);
    server.sql("DROP TABLE filler").expect("dropped");
    // The server tidies up a moment later.
    let answers = loop {
        match claim_many(&asker, round).await {
            Ok(answers) => break answers.each,
            Err(error) => says_so(&error),
        }
        assert!(started.elapsed() < secs(120), "there is no room again");
    };
    assert!(granted(&answers), "{answers:?}");
    let renewed = asker.store.renew(&[asker.renewal("held", 1)]).await.expect("answered").each;
    assert!(matches!(renewed[..], [Renewed::Held(_)]), "{renewed:?}");
}
