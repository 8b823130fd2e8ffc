//! Several locks at once, all or nothing; and one lock in segments.

use std::{collections::BTreeSet, time::Duration};

use lockkeeper_core::{AcquireError, Keeper, Lost, ReleaseError, all, testing};
use tokio::task::JoinSet;

use super::{
    Fixture, Outcome,
    fixture::{PATIENCE, TIME_TO_QUEUE, soon},
    tests,
};

tests! {
    all_are_held_with_a_token_each,
    all_or_nothing_when_trying,
    all_or_nothing_within_a_limit,
    giving_up_gives_all_back,
    a_failure_gives_all_back,
    what_was_never_begun_keeps_no_minimum if |can| can.detachable,
    opposite_orders_do_not_block_each_other,
    the_first_loss_is_told_for_all,
    work_ends_with_the_first_loss,
    stores_can_be_mixed,
    none_and_twice_are_refused,
    a_key_has_one_segment_everywhere,
    segments_do_not_wait_for_each_other,
    a_segment_that_is_not_there_is_refused,
}

async fn all_are_held_with_a_token_each(fixture: &Fixture) -> Outcome {
    let ((a, b), one, two) = (fixture.two_keepers().await?, fixture.name("one"), fixture.name("two"));
    // Not in the order in which they are taken.
    let both = soon(all([&a.mutex(&two), &a.mutex(&one)]).lock()).await??;
    assert!(both.is_held() && !both.remaining().is_zero());
    let names: Vec<&str> = both.guards().iter().map(|guard| guard.name().as_str()).collect();
    assert_eq!(names, [&*two, &*one], "in the order in which they were named");
    assert_eq!(both.tokens(), [both.guards()[0].token(), both.guards()[1].token()]);
    for name in [&one, &two] {
        assert!(b.mutex(name).try_lock().await?.is_none());
    }
    both.release().await?;
    let both = all([&b.mutex(&one), &b.mutex(&two)]).try_lock().await?.expect("both are free");
    Ok(both.release().await?)
}

async fn all_or_nothing_when_trying(fixture: &Fixture) -> Outcome {
    let ((a, b), one, two) = (fixture.two_keepers().await?, fixture.name("one"), fixture.name("two"));
    let taken = b.mutex(&two).lock().await?;
    assert!(all([&a.mutex(&one), &a.mutex(&two)]).try_lock().await?.is_none());
    fixture.wait_until(&one, 0, 0).await?;
    Ok(taken.release().await?)
}

async fn all_or_nothing_within_a_limit(fixture: &Fixture) -> Outcome {
    let ((a, b), one, two) = (fixture.two_keepers().await?, fixture.name("one"), fixture.name("two"));
    let taken = b.mutex(&two).lock().await?;
    let error =
        all([&a.mutex(&one), &a.mutex(&two)]).lock_within(2 * TIME_TO_QUEUE).await.expect_err("two is taken");
    assert!(matches!(&error, AcquireError::TimedOut { .. }), "{error}");
    assert!(error.to_string().contains(&two), "it says which: {error}");
    fixture.wait_until(&one, 0, 0).await?;
    fixture.wait_until(&two, 1, 0).await?;
    Ok(taken.release().await?)
}

async fn giving_up_gives_all_back(fixture: &Fixture) -> Outcome {
    let ((a, b), one, two) = (fixture.two_keepers().await?, fixture.name("one"), fixture.name("two"));
    let taken = b.mutex(&two).lock().await?;
    let both = all([&a.mutex(&one), &a.mutex(&two)]);
    let waiter = fixture.start_waiter(&two, 1, async move { both.lock().await }).await?;
    fixture.wait_until(&one, 1, 0).await?;
    waiter.abort();
    fixture.wait_until(&one, 0, 0).await?;
    fixture.wait_until(&two, 1, 0).await?;
    Ok(taken.release().await?)
}

async fn a_failure_gives_all_back(fixture: &Fixture) -> Outcome {
    let ((a, b), one, two) = (fixture.two_keepers().await?, fixture.name("one"), fixture.name("two"));
    b.close().await;
    let error = all([&a.mutex(&one), &b.mutex(&two)]).lock().await.expect_err("a keeper is closed");
    assert!(matches!(&error, AcquireError::Closed { .. }), "{error}");
    fixture.wait_until(&one, 0, 0).await?;
    Ok(())
}

/// Nobody has begun anything while one was missing, so nobody is kept away either.
async fn what_was_never_begun_keeps_no_minimum(fixture: &Fixture) -> Outcome {
    let ((a, b), one, two) = (fixture.two_keepers().await?, fixture.name("one"), fixture.name("two"));
    // So long nobody waits for anything here; and a session of ZooKeeper may last for so long.
    let least = PATIENCE + Duration::from_secs(5);
    let (job, other) = (a.mutex(&one).min_hold(least), a.mutex(&two));
    let taken = b.mutex(&two).lock().await?;
    assert!(all([&job, &other]).try_lock().await?.is_none());
    fixture.wait_until(&one, 0, 0).await?;
    all([&job, &other]).lock_within(TIME_TO_QUEUE).await.expect_err("two is taken");
    fixture.wait_until(&one, 0, 0).await?;
    let both = all([&job, &other]);
    let waiter = fixture.start_waiter(&two, 1, async move { both.lock().await }).await?;
    waiter.abort();
    fixture.wait_until(&one, 0, 0).await?;
    taken.release().await?;
    b.close().await;
    all([&job, &b.mutex(&two)]).lock().await.expect_err("a keeper is closed");
    fixture.wait_until(&one, 0, 0).await?;
    Ok(())
}

async fn opposite_orders_do_not_block_each_other(fixture: &Fixture) -> Outcome {
    let ((a, b), one, two) = (fixture.two_keepers().await?, fixture.name("one"), fixture.name("two"));
    let (there, back) = (all([&a.mutex(&one), &a.mutex(&two)]), all([&b.mutex(&two), &b.mutex(&one)]));
    let rounds = fixture.repeats(15, 3);
    let mut work = JoinSet::new();
    for both in [there, back] {
        work.spawn(async move {
            for _ in 0..rounds {
                both.lock().await?.release().await?;
            }
            Ok::<_, lockkeeper_core::Error>(())
        });
    }
    while let Some(done) = soon(work.join_next()).await? {
        done??;
    }
    Ok(())
}

async fn the_first_loss_is_told_for_all(fixture: &Fixture) -> Outcome {
    let ((a, b), one, two) = (fixture.two_keepers().await?, fixture.name("one"), fixture.name("two"));
    let both = all([&a.mutex(&one), &a.mutex(&two).expires_after(fixture.short_lease())]).lock().await?;
    assert_eq!(soon(both.lost()).await?, Lost::Expired);
    assert!(!both.is_held() && both.remaining().is_zero(), "held only as long as each is");
    assert!(b.mutex(&one).try_lock().await?.is_none(), "the other is still there to be released");
    let error = both.release().await.expect_err("one was lost");
    assert!(matches!(&error, ReleaseError::NotHeld { why: Lost::Expired, .. }), "{error}");
    assert!(error.to_string().contains(&two), "it says which: {error}");
    fixture.wait_until(&one, 0, 0).await
}

async fn work_ends_with_the_first_loss(fixture: &Fixture) -> Outcome {
    let keeper = fixture.keeper().await?;
    let lasting = keeper.mutex(&fixture.name("one"));
    let brief = keeper.mutex(&fixture.name("two")).expires_after(fixture.short_lease());
    let both = all([&lasting, &brief]).lock().await?;
    assert_eq!(both.run(async { 42 }).await, Ok(42));
    assert_eq!(soon(both.run(std::future::pending::<()>())).await?, Err(Lost::Expired));
    Ok(())
}

async fn stores_can_be_mixed(fixture: &Fixture) -> Outcome {
    let (ours, other, name) = (fixture.keeper().await?, testing::keeper().await, fixture.name("stock"));
    // The same name twice, but in two stores.
    let both = soon(all([&ours.mutex(&name), &other.mutex(&name)]).lock()).await??;
    for keeper in [&ours, &other] {
        assert!(keeper.mutex(&name).try_lock().await?.is_none());
    }
    both.release().await?;
    Ok(ours.mutex(&name).try_lock().await?.expect("it is free").release().await?)
}

async fn none_and_twice_are_refused(fixture: &Fixture) -> Outcome {
    let ((a, b), name) = (fixture.two_keepers().await?, fixture.name("stock"));
    let error = all([]).lock().await.expect_err("none was named");
    assert!(error.to_string().contains("name at least one"), "{error}");
    // Two connections, one store.
    for again in [&a, &b] {
        let error = soon(all([&a.mutex(&name), &again.mutex(&name)]).lock()).await?;
        let error = error.expect_err("the second would wait for the first");
        assert!(error.to_string().contains("named twice") && error.to_string().contains(&name), "{error}");
    }
    fixture.wait_until(&name, 0, 0).await
}

async fn a_key_has_one_segment_everywhere(fixture: &Fixture) -> Outcome {
    let ((a, b), name) = (fixture.two_keepers().await?, fixture.name("stock"));
    let segment = |keeper: &Keeper, key: &str| keeper.segmented(&name, 100).for_key(key);
    let guard = segment(&a, "user-17").lock().await?;
    assert!(segment(&b, "user-17").try_lock().await?.is_none());
    let number = a.segmented(&name, 100).segment_of("user-17");
    assert_eq!(guard.name().as_str(), format!("{name}#{number}"), "as the specification says");
    let keys = (0..200).map(|key| a.segmented(&name, 100).segment_of(format!("user-{key}")));
    let spread = BTreeSet::from_iter(keys);
    assert!(spread.len() > 50 && spread.last().is_some_and(|last| *last < 100), "{spread:?}");
    Ok(guard.release().await?)
}

async fn segments_do_not_wait_for_each_other(fixture: &Fixture) -> Outcome {
    let stock = fixture.keeper().await?.segmented(&fixture.name("stock"), 10);
    assert_eq!(stock.segments(), 10);
    let mut guards = Vec::new();
    for segment in 0..10 {
        guards.push(stock.segment(segment).try_lock().await?.expect("each is a lock of its own"));
    }
    for guard in guards {
        guard.release().await?;
    }
    Ok(())
}

async fn a_segment_that_is_not_there_is_refused(fixture: &Fixture) -> Outcome {
    let (keeper, name) = (fixture.keeper().await?, fixture.name("stock"));
    for mutex in [keeper.segmented(&name, 0).for_key("user-17"), keeper.segmented(&name, 10).segment(10)] {
        let error = mutex.lock().await.expect_err("there is no such segment");
        assert!(matches!(&error, AcquireError::Invalid { .. }), "{error}");
        assert!(error.to_string().contains("segment") && error.to_string().contains(&name), "{error}");
    }
    Ok(())
}
