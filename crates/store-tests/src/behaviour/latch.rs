//! Latch: counted down by anybody, waited for by anybody, gone only when deleted.

use std::{collections::BTreeSet, time::Duration};

use lockkeeper_core::{Latch, LatchError, LatchState};
use tokio::task::{JoinHandle, JoinSet};

use super::{
    Failure, Fixture, Outcome,
    fixture::{BRIEFLY, soon, still_waits},
    tests,
};

tests! {
    it_opens_at_zero,
    it_wakes_everybody_who_waits,
    it_is_open_from_the_start_with_nothing_to_count,
    it_never_counts_below_zero,
    it_counts_each_count_once,
    it_is_created_once,
    it_must_exist,
    wait_within_gives_up_in_time,
    a_reset_closes_it_again,
    a_reset_takes_no_opening_back,
    deleting_it_wakes_who_waits_with_an_error,
    deleted_and_created_anew_is_another_latch,
    it_outlives_who_created_it,
    it_shares_no_name_with_locks,
    all_are_listed_page_by_page,
}

/// A task that waits for the latch by now.
async fn waiting(latch: Latch) -> Result<JoinHandle<Result<(), LatchError>>, Failure> {
    let theirs = latch.clone();
    let mut waiter = tokio::spawn(async move { theirs.wait().await });
    still_waits(&mut waiter).await?;
    // The waiter has asked twice, and on most stores a keeper's requests are answered in order.
    for _ in 0..2 {
        latch.state().await?;
    }
    Ok(waiter)
}

async fn it_opens_at_zero(fixture: &Fixture) -> Outcome {
    let ((a, b), name) = (fixture.two_keepers().await?, fixture.name("import"));
    let latch = a.latch(&name);
    latch.create(3).await?;
    let waiter = waiting(b.latch(&name)).await?;
    assert_eq!(latch.count_down().await?, 2);
    assert_eq!(b.latch(&name).count_down().await?, 1);
    assert!(!waiter.is_finished(), "one is to go");
    assert_eq!(latch.count_down().await?, 0);
    soon(waiter).await???;
    soon(latch.wait()).await??;
    Ok(latch.delete().await?)
}

async fn it_wakes_everybody_who_waits(fixture: &Fixture) -> Outcome {
    let ((a, b), name) = (fixture.two_keepers().await?, fixture.name("import"));
    a.latch(&name).create(1).await?;
    let mut waiters = Vec::new();
    for keeper in [&a, &b, &b] {
        waiters.push(waiting(keeper.latch(&name)).await?);
    }
    a.latch(&name).count_down().await?;
    for waiter in waiters {
        soon(waiter).await???;
    }
    Ok(a.latch(&name).delete().await?)
}

async fn it_is_open_from_the_start_with_nothing_to_count(fixture: &Fixture) -> Outcome {
    let latch = fixture.keeper().await?.latch(&fixture.name("import"));
    latch.create(0).await?;
    soon(latch.wait()).await??;
    Ok(latch.delete().await?)
}

async fn it_never_counts_below_zero(fixture: &Fixture) -> Outcome {
    let latch = fixture.keeper().await?.latch(&fixture.name("import"));
    latch.create(Latch::MAX).await?;
    assert_eq!(latch.count_down_by(Latch::MAX - 2).await?, 2);
    assert_eq!(latch.count_down_by(5).await?, 0);
    assert_eq!(latch.count_down().await?, 0);
    assert_eq!(latch.state().await?, Some(LatchState { remaining: 0, initial: Latch::MAX }));
    Ok(latch.delete().await?)
}

async fn it_counts_each_count_once(fixture: &Fixture) -> Outcome {
    const COUNTS: u64 = 24;
    let ((a, b), name) = (fixture.two_keepers().await?, fixture.name("import"));
    a.latch(&name).create(COUNTS).await?;
    let mut work = JoinSet::new();
    for count in 0..COUNTS {
        let latch = if count % 2 == 0 { a.latch(&name) } else { b.latch(&name) };
        work.spawn(async move { latch.count_down().await });
    }
    let mut left = BTreeSet::new();
    while let Some(done) = soon(work.join_next()).await? {
        left.insert(done??);
    }
    assert_eq!(left, BTreeSet::from_iter(0..COUNTS), "each count has an answer of its own");
    Ok(a.latch(&name).delete().await?)
}

async fn it_is_created_once(fixture: &Fixture) -> Outcome {
    let ((a, b), name) = (fixture.two_keepers().await?, fixture.name("import"));
    a.latch(&name).create(3).await?;
    a.latch(&name).count_down().await?;
    let error = b.latch(&name).create(5).await.expect_err("it exists");
    assert!(matches!(error, LatchError::Exists { remaining: 2, initial: 3, .. }), "{error}");
    let text = error.to_string();
    assert!(text.contains(&name) && text.contains("create") && text.contains("reset or delete"), "{text}");
    assert_eq!(a.latch(&name).state().await?, Some(LatchState { remaining: 2, initial: 3 }), "unchanged");
    a.latch(&name).delete().await?;
    b.latch(&name).create(5).await?;
    Ok(b.latch(&name).delete().await?)
}

async fn it_must_exist(fixture: &Fixture) -> Outcome {
    let (keeper, name) = (fixture.keeper().await?, fixture.name("import"));
    let latch = keeper.latch(&name);
    let errors = [
        latch.count_down().await.err(),
        latch.reset().await.err(),
        latch.delete().await.err(),
        soon(latch.wait()).await?.err(),
    ];
    for error in errors {
        let error = error.expect("there is no such latch");
        assert!(matches!(&error, LatchError::Missing { .. }), "{error}");
        assert!(
            error.to_string().contains(&name) && error.to_string().contains("create it first"),
            "{error}"
        );
    }
    assert_eq!(latch.state().await?, None);
    Ok(())
}

async fn wait_within_gives_up_in_time(fixture: &Fixture) -> Outcome {
    let latch = fixture.keeper().await?.latch(&fixture.name("import"));
    latch.create(2).await?;
    let error = latch.wait_within(BRIEFLY).await.expect_err("two are to go");
    let LatchError::TimedOut { waited, remaining: 2, .. } = &error else { return Err(error.into()) };
    assert!(*waited >= BRIEFLY, "{error}");
    latch.count_down_by(2).await?;
    latch.wait_within(Duration::from_secs(30)).await?;
    Ok(latch.delete().await?)
}

async fn a_reset_closes_it_again(fixture: &Fixture) -> Outcome {
    let ((a, b), name) = (fixture.two_keepers().await?, fixture.name("import"));
    a.latch(&name).create(2).await?;
    a.latch(&name).count_down_by(2).await?;
    soon(b.latch(&name).wait()).await??;
    b.latch(&name).reset().await?;
    assert_eq!(a.latch(&name).state().await?, Some(LatchState { remaining: 2, initial: 2 }));
    let waiter = waiting(a.latch(&name)).await?;
    b.latch(&name).count_down_by(2).await?;
    soon(waiter).await???;
    Ok(a.latch(&name).delete().await?)
}

/// A waiter that slept through opening and closing has still seen it open.
async fn a_reset_takes_no_opening_back(fixture: &Fixture) -> Outcome {
    let ((a, b), name) = (fixture.two_keepers().await?, fixture.name("import"));
    a.latch(&name).create(1).await?;
    let waiter = waiting(b.latch(&name)).await?;
    a.latch(&name).count_down().await?;
    a.latch(&name).reset().await?;
    soon(waiter).await???;
    Ok(a.latch(&name).delete().await?)
}

async fn deleting_it_wakes_who_waits_with_an_error(fixture: &Fixture) -> Outcome {
    let ((a, b), name) = (fixture.two_keepers().await?, fixture.name("import"));
    a.latch(&name).create(1).await?;
    let waiters = [waiting(a.latch(&name)).await?, waiting(b.latch(&name)).await?];
    b.latch(&name).delete().await?;
    for waiter in waiters {
        let error = soon(waiter).await??.expect_err("it is gone");
        assert!(matches!(&error, LatchError::Deleted { .. }), "{error}");
        assert!(error.to_string().contains(&name) && error.to_string().contains("deleted"), "{error}");
    }
    Ok(())
}

async fn deleted_and_created_anew_is_another_latch(fixture: &Fixture) -> Outcome {
    let ((a, b), name) = (fixture.two_keepers().await?, fixture.name("import"));
    a.latch(&name).create(1).await?;
    let waiter = waiting(b.latch(&name)).await?;
    a.latch(&name).delete().await?;
    a.latch(&name).create(1).await?;
    let error = soon(waiter).await??.expect_err("what it waited for is gone");
    assert!(matches!(error, LatchError::Deleted { .. }), "{error}");
    Ok(a.latch(&name).delete().await?)
}

async fn it_outlives_who_created_it(fixture: &Fixture) -> Outcome {
    let ((a, b), name) = (fixture.two_keepers().await?, fixture.name("import"));
    a.latch(&name).create(2).await?;
    a.latch(&name).count_down().await?;
    a.close().await;
    assert_eq!(b.latch(&name).state().await?, Some(LatchState { remaining: 1, initial: 2 }));
    Ok(b.latch(&name).delete().await?)
}

async fn it_shares_no_name_with_locks(fixture: &Fixture) -> Outcome {
    let (keeper, name) = (fixture.keeper().await?, fixture.name("import"));
    let (latch, mutex) = (keeper.latch(&name), keeper.mutex(&name));
    latch.create(1).await?;
    let guard = mutex.try_lock().await?.expect("a latch holds no lock");
    latch.count_down().await?;
    assert!(guard.is_held() && mutex.try_lock().await?.is_none());
    guard.release().await?;
    assert_eq!(latch.state().await?, Some(LatchState { remaining: 0, initial: 1 }));
    Ok(latch.delete().await?)
}

async fn all_are_listed_page_by_page(fixture: &Fixture) -> Outcome {
    let keeper = fixture.keeper().await?;
    // Stores may have their own use for these signs, but a name is a name.
    let names: Vec<_> = ["a", "a%", "a*", "aü", "b}:latch", "{c"].map(|what| fixture.name(what)).into();
    for (count, name) in names.iter().enumerate() {
        keeper.latch(name).create(count as u64 + 1).await?;
    }
    keeper.latch(&names[1]).count_down().await?;
    let lock = keeper.mutex(&fixture.name("a lock is no latch")).lock().await?;
    let mut expected: Vec<_> = names.iter().cloned().zip([1, 1, 3, 4, 5, 6]).collect();
    expected.sort_unstable();
    for limit in [1, 4, 100] {
        let (mut listed, mut after) = (Vec::new(), None);
        loop {
            let page = keeper.latches(fixture.prefix(), after.as_ref(), limit).await?;
            assert!(page.latches.len() <= limit, "{page:?}");
            listed.extend(page.latches.iter().map(|(name, state)| (name.to_string(), state.remaining)));
            after = page.next;
            if after.is_none() {
                break;
            }
        }
        assert_eq!(listed, expected, "pages of {limit}");
    }
    assert_eq!(keeper.latches(&names[4], None, 100).await?.latches.len(), 1);
    assert!(keeper.latches(&fixture.name("none"), None, 100).await?.latches.is_empty());
    for name in &names {
        keeper.latch(name).delete().await?;
    }
    assert!(keeper.latches(fixture.prefix(), None, 100).await?.latches.is_empty());
    Ok(lock.release().await?)
}
