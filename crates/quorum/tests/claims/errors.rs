//! What errors and reports say of each member.

use lockkeeper_core::{StoreErrorKind, store::Request, support::duration};
use lockkeeper_quorum::MemberReport;
use tokio::time::sleep;

use super::{claim, returning::gate_of};
use crate::world::{Client, Mood, World, networks, secs};

/// What an error says of this member: the text behind its URL.
fn of_member(error: &str, member: usize) -> &str {
    let (_, told) = error.split_once("granted and voted; ").unwrap_or_else(|| panic!("{error}"));
    let url = format!("memory:{member}: ");
    let (_, rest) = told.split_once(&url).unwrap_or_else(|| panic!("{error}"));
    rest.split("; memory:").next().expect("the first")
}

async fn refused(client: &Client, name: &str) -> String {
    client.keeper.mutex(name).try_lock().await.map(drop).expect_err("too few votes").to_string()
}

#[tokio::test(start_paused = true)]
async fn an_error_says_what_each_member_did() {
    let world = World::founded(5).await;
    let gate = gate_of(&world, "stock").await;
    let member = |nth: usize| (gate + nth) % 5;
    let client = world.client().await;
    let busy = &world.member_stores().await[member(1)];
    busy.apply(&[Request::Claim(claim("stock"))]).await.expect("granted");
    client.networks[member(2)].delay(secs(60));
    world.moods[member(3)].set("stock", Some(Mood::NotNow));
    world.moods[member(4)].deny(Some(StoreErrorKind::Denied));
    let error = refused(&client, "stock").await;
    assert!(error.contains("fewer than 3 members granted and voted"), "{error}");
    for (nth, said) in [
        (0, "granted"),
        (1, "is busy"),
        (2, "is too slow"),
        (3, "has not answered"),
        (4, "the password is wrong"),
    ] {
        let told = of_member(&error, member(nth));
        // What a member did itself is told word by word, and a failure with its reason.
        assert!(if nth < 4 { told == said } else { told.contains(said) }, "member {nth}: {error}");
    }
}

/// The time until a member votes runs down while a client stays, in errors and in reports.
#[tokio::test(start_paused = true)]
async fn a_member_that_does_not_vote_is_told_with_the_time_that_is_left() {
    let world = World::founded(5).await;
    let gate = gate_of(&world, "stock").await;
    let member = |nth: usize| (gate + nth) % 5;
    let client = world.client().await;
    for nth in [3, 4] {
        let busy = &world.member_stores().await[member(nth)];
        busy.apply(&[Request::Claim(claim("stock"))]).await.expect("granted");
    }
    for nth in [1, 2] {
        world.servers[member(nth)].lose_data();
    }
    drop(client.keeper.mutex("other").try_lock().await);
    sleep(secs(5)).await;
    let mut left = Vec::new();
    for _ in 0..2 {
        let error = refused(&client, "stock").await;
        assert_eq!(of_member(&error, member(0)), "granted", "{error}");
        assert_eq!(of_member(&error, member(3)), "is busy", "{error}");
        for nth in [1, 2] {
            let told = of_member(&error, member(nth));
            let rest = told.strip_prefix("granted, but does not vote, and will in ");
            let (time, advice) =
                rest.and_then(|rest| rest.split_once(' ')).unwrap_or_else(|| panic!("{error}"));
            assert!(advice.contains("if a client stays") && advice.contains("quorum rejoin"), "{error}");
            left.push(duration::parse(time).expect("a time"));
        }
        sleep(secs(20)).await;
    }
    assert!(left[..2].iter().all(|left| (secs(50)..secs(61)).contains(left)), "{left:?}");
    let passed = |nth: usize| left[nth].saturating_sub(left[nth + 2]);
    assert!([0, 1].iter().all(|nth| (secs(18)..=secs(22)).contains(&passed(*nth))), "{left:?}");
}

/// Reports on all members, without reaching one of them.
async fn shown(world: &World, silent: Option<usize>) -> Vec<MemberReport> {
    let networks = networks(world.servers.len());
    silent.into_iter().for_each(|member| networks[member].cut());
    lockkeeper_quorum::show(&world.url, world.member(&networks)).await.expect("shown")
}

#[tokio::test(start_paused = true)]
async fn a_report_says_how_each_member_is() {
    let new = World::new(3);
    for report in shown(&new, None).await {
        let trouble = report.trouble.expect("a reason");
        assert!(report.answers && !report.votes && trouble.contains("nobody has founded"), "{trouble}");
        assert!(report.votes_in.expect("a time") > secs(60));
    }
    let world = World::founded(3).await;
    world.servers[1].lose_data();
    let reports = shown(&world, Some(2)).await;
    assert_eq!(reports.iter().map(|report| report.number).collect::<Vec<_>>(), [1, 2, 3]);
    let flags = |report: &MemberReport| (report.answers, report.votes);
    assert_eq!(reports.iter().map(flags).collect::<Vec<_>>(), [(true, true), (true, false), (false, false)]);
    let said = |report: &MemberReport| report.trouble.clone().unwrap_or_default();
    assert_eq!((&*reports[0].url, said(&reports[0])), ("memory:0", String::new()));
    assert!(said(&reports[1]).contains("may have lost its data"), "{reports:?}");
    assert!(reports[1].votes_in.expect("a time") > secs(60));
    assert!(said(&reports[2]).contains("too slow") && reports[2].votes_in.is_none(), "{reports:?}");
    assert!(reports[0].clock_offset.is_some() && reports[2].clock_offset.is_none());
    // A client watches it.
    let _client = world.client().await;
    sleep(secs(30)).await;
    let watched = shown(&world, None).await;
    let left = watched[1].votes_in.expect("a time");
    assert!((secs(25)..secs(36)).contains(&left) && said(&watched[1]).is_empty(), "{watched:?}");
    sleep(secs(60)).await;
    assert!(shown(&world, None).await.iter().all(|report| report.votes && report.votes_in.is_none()));
}
