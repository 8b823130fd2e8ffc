//! Election: one leader at a time, and everybody can see who.

use lockkeeper_core::{AcquireError, Leader, Lost, Observer};

use super::{
    Failure, Fixture, Outcome,
    fixture::{BRIEFLY, soon},
    tests,
};

tests! {
    one_leads_and_everybody_sees_who,
    the_next_in_line_leads_after_a_resignation,
    a_campaign_can_be_limited,
    a_dead_leader_is_replaced,
    a_leader_that_lost_is_told,
    an_observer_sees_every_leader_come_and_go,
    an_observer_ends_with_its_keeper,
    a_leader_keeps_a_mutex_of_that_name_out,
}

/// Waits until the observer sees this value, or nobody.
async fn sees(observer: &mut Observer, value: Option<&str>) -> Result<Option<Leader>, Failure> {
    loop {
        let change = soon(observer.next()).await?.expect("the keeper is open")?;
        if change.as_ref().map(|leader| leader.value.as_str()) == value {
            return Ok(change);
        }
    }
}

async fn one_leads_and_everybody_sees_who(fixture: &Fixture) -> Outcome {
    let ((a, b), name) = (fixture.two_keepers().await?, fixture.name("scheduler"));
    assert_eq!(b.election(&name).leader().await?, None, "nobody leads yet");
    let leads = a.election(&name).campaign("10.0.0.7:80").await?;
    assert_eq!(leads.value(), "10.0.0.7:80");
    assert!(b.election(&name).try_campaign("10.0.0.8:80").await?.is_none());
    let leader = fixture.leader(&name).await?.expect("somebody leads");
    assert_eq!((leader.value.as_str(), leader.token), ("10.0.0.7:80", leads.token()));
    assert_eq!(leader.process.pid, std::process::id());
    leads.resign().await?;
    assert_eq!(fixture.leader(&name).await?, None);
    Ok(())
}

async fn the_next_in_line_leads_after_a_resignation(fixture: &Fixture) -> Outcome {
    let ((a, b), name) = (fixture.two_keepers().await?, fixture.name("scheduler"));
    let first = a.election(&name).campaign("first").await?;
    let (theirs, ours) = (b.election(&name), a.election(&name));
    let second = fixture.start_waiter(&name, 1, async move { theirs.campaign("second").await }).await?;
    let third = fixture.start_waiter(&name, 2, async move { ours.campaign("third").await }).await?;
    let token = first.token();
    first.resign().await?;
    let second = soon(second).await???;
    let leader = fixture.leader(&name).await?.expect("somebody leads");
    assert_eq!((leader.value.as_str(), leader.token), ("second", second.token()));
    assert!(second.token() > token);
    second.resign().await?;
    Ok(soon(third).await???.resign().await?)
}

async fn a_campaign_can_be_limited(fixture: &Fixture) -> Outcome {
    let ((a, b), name) = (fixture.two_keepers().await?, fixture.name("scheduler"));
    let leads = a.election(&name).campaign("a").await?;
    let error = b.election(&name).campaign_within("b", BRIEFLY).await.expect_err("a leads");
    assert!(matches!(&error, AcquireError::TimedOut { .. }), "{error}");
    assert!(error.to_string().contains("campaign"), "{error}");
    fixture.wait_until(&name, 1, 0).await?;
    Ok(leads.resign().await?)
}

async fn a_dead_leader_is_replaced(fixture: &Fixture) -> Outcome {
    let (keeper, name) = (fixture.keeper().await?, fixture.name("scheduler"));
    let process = fixture.killable_keeper().await?;
    let dead = process.keeper.election(&name).lease(fixture.renewed_lease()).campaign("dead").await?;
    let election = keeper.election(&name);
    let next = fixture.start_waiter(&name, 1, async move { election.campaign("alive").await }).await?;
    process.kill().await?;
    let next = soon(next).await???;
    assert!(!dead.is_held(), "two leaders");
    assert_eq!(fixture.leader(&name).await?.expect("somebody leads").value, "alive");
    Ok(next.resign().await?)
}

async fn a_leader_that_lost_is_told(fixture: &Fixture) -> Outcome {
    let ((a, b), name) = (fixture.two_keepers().await?, fixture.name("scheduler"));
    let first = a.election(&name).expires_after(fixture.short_lease()).campaign("a").await?;
    let second = soon(b.election(&name).campaign("b")).await??;
    assert!(!first.is_held(), "two leaders");
    assert_eq!(soon(first.lost()).await?, Lost::Expired);
    assert!(first.resign().await.is_err(), "it did not lead any more");
    assert_eq!(fixture.leader(&name).await?.expect("somebody leads").value, "b");
    Ok(second.resign().await?)
}

async fn an_observer_sees_every_leader_come_and_go(fixture: &Fixture) -> Outcome {
    let ((a, b), name) = (fixture.two_keepers().await?, fixture.name("scheduler"));
    let mut observer = b.election(&name).observe();
    let first = soon(observer.next()).await?.expect("the state when asked")?;
    assert_eq!(first, None, "nobody leads yet");
    let leads = a.election(&name).campaign("one").await?;
    let seen = sees(&mut observer, Some("one")).await?;
    assert_eq!(seen.map(|leader| leader.token), Some(leads.token()));
    leads.resign().await?;
    sees(&mut observer, None).await?;
    let leads = a.election(&name).campaign("two").await?;
    sees(&mut observer, Some("two")).await?;
    Ok(leads.resign().await?)
}

async fn an_observer_ends_with_its_keeper(fixture: &Fixture) -> Outcome {
    let (keeper, name) = (fixture.keeper().await?, fixture.name("scheduler"));
    let mut observer = keeper.election(&name).observe();
    assert!(matches!(soon(observer.next()).await?, Some(Ok(None))));
    keeper.close().await;
    assert!(soon(observer.next()).await?.is_none());
    Ok(())
}

async fn a_leader_keeps_a_mutex_of_that_name_out(fixture: &Fixture) -> Outcome {
    let ((a, b), name) = (fixture.two_keepers().await?, fixture.name("scheduler"));
    let leads = a.election(&name).campaign("a").await?;
    assert!(b.mutex(&name).try_lock().await?.is_none(), "one name space for all but latches and fences");
    Ok(leads.resign().await?)
}
