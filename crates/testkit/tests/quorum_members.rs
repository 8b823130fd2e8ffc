//! Members of a quorum that are real servers: the fate of one that restarts without its data.

use std::time::Duration;

use lockkeeper::{Keeper, error::StoreErrorKind};
use lockkeeper_testkit::servers::{MariaDb, Postgres, Redis, RedisOptions};
use tokio::time::{sleep, timeout};

const SOON: Duration = Duration::from_secs(40);

fn url(servers: &[Redis]) -> String {
    let members: Vec<String> = servers.iter().map(Redis::url).collect();
    format!("quorum:max_lease=2s,lease=2s,{}", members.join(","))
}

async fn locks(keeper: &Keeper, name: &str) -> bool {
    match keeper.mutex(name).try_lock().await {
        Ok(Some(guard)) => guard.release().await.is_ok(),
        _ => false,
    }
}

/// One restarts empty, so that it has another id. A client that starts afterwards is not refused, and has it vote again.
#[tokio::test(flavor = "multi_thread")]
async fn a_redis_member_that_restarted_empty_votes_again_for_new_clients() {
    let servers: Vec<Redis> = (0..3).map(|_| Redis::start().expect("started")).collect();
    lockkeeper::quorum::found_fresh(&url(&servers)).await.expect("founded");
    let before = lockkeeper::connect(&url(&servers)).await.expect("connected");
    assert!(locks(&before, "stock").await);
    before.close().await;
    servers[1].restart_empty().expect("restarted");
    let after = lockkeeper::connect(&url(&servers)).await.expect("a new client is not refused");
    assert!(locks(&after, "stock").await, "two vote");
    // The two others are needed until it votes.
    let is_done = async {
        while !lockkeeper::quorum::show(&url(&servers))
            .await
            .expect("shown")
            .iter()
            .all(|member| member.votes)
        {
            sleep(Duration::from_millis(50)).await;
        }
    };
    timeout(SOON, is_done).await.expect("it votes again");
    servers[0].process().kill();
    let late = lockkeeper::connect(&url(&servers)).await.expect("two are there");
    for keeper in [&after, &late] {
        timeout(SOON, async { while !locks(keeper, "stock").await {} }).await.expect("members 2 and 3 vote");
    }
}

/// A server is replaced that is dead, or that is about to go and still answers.
#[tokio::test(flavor = "multi_thread")]
async fn a_member_is_replaced() {
    for is_dead in [true, false] {
        let mut servers: Vec<Redis> = (0..4).map(|_| Redis::start().expect("started")).collect();
        let new = servers.pop().expect("four");
        let old_url = url(&servers);
        lockkeeper::quorum::found_fresh(&old_url).await.expect("founded");
        let before = lockkeeper::connect(&old_url).await.expect("connected");
        let guard = before.mutex("stock").lock().await.expect("granted");
        let token = guard.token();
        let (mut told, old) = (Vec::new(), servers[1].url());
        if is_dead {
            servers[1].process().kill();
            let shown = lockkeeper::quorum::show(&old_url).await.expect("shown");
            assert!(!shown[1].answers && shown[1].trouble.is_some(), "{shown:?}");
        }
        let tell = |what: &str| told.push(what.to_owned());
        lockkeeper::quorum::replace(&old_url, &old, &new.url(), tell).await.expect("replaced");
        assert!(told.iter().any(|what| what.contains("does not vote")), "{told:?}");
        assert!(guard.is_held(), "the two others have it all the while");
        let with_old = lockkeeper::connect(&old_url).await;
        match is_dead {
            // Nobody is there who could tell.
            true => drop(with_old.expect("two others are there")),
            false => {
                let error = with_old.map(drop).expect_err("an old URL").to_string();
                assert!(
                    error.contains("member 2 of the quorum is") && error.contains("name that one"),
                    "{error}"
                );
            }
        }
        // Once more does nothing.
        lockkeeper::quorum::replace(&old_url, &old, &new.url(), |_| {}).await.expect("it is done");
        servers[1] = new;
        let shown = lockkeeper::quorum::show(&url(&servers)).await.expect("shown");
        assert!(shown.iter().all(|member| member.votes), "{shown:?}");
        let after = lockkeeper::connect(&url(&servers)).await.expect("connected");
        assert!(!locks(&after, "stock").await, "it is held");
        guard.release().await.expect("released");
        servers[0].process().kill();
        let guard =
            timeout(SOON, after.mutex("stock").lock()).await.expect("in time").expect("members 2 and 3 vote");
        assert!(guard.token() > token);
        // Without member 1, nobody else can be replaced.
        let error =
            lockkeeper::quorum::replace(&url(&servers), "3", &old, |_| {}).await.expect_err("one is down");
        assert!(error.to_string().contains("could be reached"), "{error}");
    }
}

/// One member denies a name. It goes on renewing everything else, so the other names survive the loss of another member.
#[tokio::test(flavor = "multi_thread")]
async fn a_member_that_denies_one_name_keeps_all_others() {
    let rules = |names: &str| format!("~lockkeeper:[^{{]* ~lockkeeper:{{{names} &* +@all");
    let servers = ["ours/*", "*", "*"]
        .map(|names| RedisOptions::default().user("app", "pass", &rules(names)).start().expect("started"));
    let members: Vec<String> = servers.iter().map(|server| server.url_as("app", "pass")).collect();
    let url = format!("quorum:max_lease=3s,lease=3s,{}", members.join(","));
    lockkeeper::quorum::found_fresh(&url).await.expect("founded");
    let keeper = lockkeeper::connect(&url).await.expect("connected");
    let names = ["ours/1", "theirs", "ours/2"].map(|name| keeper.mutex(name));
    let guards = tokio::join!(names[0].lock(), names[1].lock(), names[2].lock());
    let (ours, theirs) = ([guards.0, guards.2].map(|it| it.expect("granted")), guards.1.expect("granted"));
    // All are renewed a few times, side by side.
    sleep(Duration::from_secs(4)).await;
    assert!(ours.iter().all(|guard| guard.is_held()) && theirs.is_held());
    servers[2].process().kill();
    timeout(SOON, theirs.lost()).await.expect("one member has it");
    sleep(Duration::from_secs(2)).await;
    assert!(ours.iter().all(|guard| guard.is_held()), "two members have them");
}

/// Two namespaces, schemas or sets of tables of one server are no two members, whichever way leads there.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_is_no_two_members() {
    let (redis, other) = (Redis::start().expect("started"), Redis::start().expect("started"));
    let (postgres, mariadb) = (Postgres::start().expect("started"), MariaDb::start().expect("started"));
    for (url, option) in [(redis.url(), "namespace"), (postgres.url(), "schema"), (mariadb.url(), "prefix")] {
        let two = ["one", "two"].map(|value| {
            let separator = if url.contains('?') { '&' } else { '?' };
            format!("{url}{separator}{option}={value}")
        });
        let all = format!("quorum:{},{},{}", two[0], other.url(), two[1]);
        for error in [
            lockkeeper::quorum::found_fresh(&all).await.expect_err("one server"),
            lockkeeper::connect(&all).await.map(drop).expect_err("one server"),
        ] {
            let text = error.to_string();
            assert_eq!(error.kind(), StoreErrorKind::Config, "{text}");
            assert!(text.contains("members 1 and 3") && text.contains("are one server"), "{text}");
            assert!(text.contains("=one") && text.contains("=two"), "it names both: {text}");
        }
    }
}
