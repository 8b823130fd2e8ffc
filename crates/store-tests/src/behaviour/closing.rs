//! Closing a keeper: everything goes back, everybody is told, and nothing starts any more.

use std::time::Instant;

use lockkeeper_core::{AcquireError, LatchError, Lost, ReleaseError};

use super::{
    Fixture, Outcome,
    fixture::{ROUNDING, soon, still_waits},
    tests,
};

tests! {
    closing_gives_everything_back if |can| can.counts_permits,
    closing_is_told_to_guards,
    closing_is_told_to_who_waits,
    closing_ends_waits_for_a_latch if |can| can.counts_permits,
    a_closed_keeper_starts_nothing if |can| can.counts_permits,
    closing_twice_is_harmless,
    closing_keeps_min_hold if |can| can.detachable,
    dropping_a_keeper_gives_everything_back,
}

async fn closing_gives_everything_back(fixture: &Fixture) -> Outcome {
    let ((a, b), held) = (fixture.two_keepers().await?, fixture.name("held"));
    let (mutex, read, gpu, waited) =
        (fixture.name("mutex"), fixture.name("read"), fixture.name("gpu"), fixture.name("waited"));
    let guards = (
        a.mutex(&mutex).lock().await?,
        a.rw_lock(&read).read().await?,
        a.semaphore(&gpu, 4).acquire_many(3).await?,
        a.election(&held).campaign("a").await?,
    );
    let theirs = b.mutex(&waited).lock().await?;
    let ours = a.mutex(&waited);
    let waiter = fixture.start_waiter(&waited, 1, async move { ours.lock().await }).await?;
    a.close().await;
    // At once, not "soon": close returns when it is done.
    for name in [&mutex, &read, &gpu, &held] {
        assert_eq!(fixture.view(name).await?, None);
    }
    assert_eq!(fixture.view(&waited).await?.expect("b holds it").waiters, []);
    assert!(soon(waiter).await??.is_err());
    drop(guards);
    Ok(theirs.release().await?)
}

async fn closing_is_told_to_guards(fixture: &Fixture) -> Outcome {
    let ((a, b), name) = (fixture.two_keepers().await?, fixture.name("stock"));
    let guard = a.mutex(&name).lock().await?;
    let (deeper, lost) = (guard.reenter()?, tokio::spawn(guard.lost()));
    a.close().await;
    assert_eq!(soon(lost).await??, Lost::Closed);
    assert!(!guard.is_held() && !deeper.is_held() && guard.remaining().is_zero());
    assert_eq!(guard.run(async {}).await, Err(Lost::Closed));
    let next = b.mutex(&name).try_lock().await?.expect("it is free");
    let error = guard.release().await.expect_err("it was released before");
    assert!(matches!(error, ReleaseError::NotHeld { why: Lost::Closed, .. }), "{error}");
    drop(deeper);
    assert_eq!(fixture.view(&name).await?.expect("b holds it").holders[0].token, next.token());
    Ok(next.release().await?)
}

async fn closing_is_told_to_who_waits(fixture: &Fixture) -> Outcome {
    let ((a, b), name) = (fixture.two_keepers().await?, fixture.name("stock"));
    let guard = b.mutex(&name).lock().await?;
    // The second waits behind the first inside its process.
    let (one, two) = (a.mutex(&name), a.mutex(&name));
    let first = fixture.start_waiter(&name, 1, async move { one.lock().await }).await?;
    let mut second = tokio::spawn(async move { two.lock().await });
    still_waits(&mut second).await?;
    a.close().await;
    for waiter in [first, second] {
        let error = soon(waiter).await??.expect_err("the keeper is closed");
        assert!(matches!(error, AcquireError::Closed { .. }), "{error}");
    }
    fixture.wait_until(&name, 1, 0).await?;
    Ok(guard.release().await?)
}

async fn closing_ends_waits_for_a_latch(fixture: &Fixture) -> Outcome {
    let ((a, b), name) = (fixture.two_keepers().await?, fixture.name("import"));
    b.latch(&name).create(1).await?;
    let latch = a.latch(&name);
    let mut waiter = tokio::spawn(async move { latch.wait().await });
    still_waits(&mut waiter).await?;
    a.close().await;
    let error = soon(waiter).await??.expect_err("the keeper is closed");
    assert!(matches!(error, LatchError::Closed { .. }), "{error}");
    Ok(b.latch(&name).delete().await?)
}

async fn a_closed_keeper_starts_nothing(fixture: &Fixture) -> Outcome {
    let (keeper, name) = (fixture.keeper().await?, fixture.name("stock"));
    let mutex = keeper.mutex(&name);
    keeper.close().await;
    let errors = [
        soon(mutex.lock()).await?.err(),
        soon(mutex.try_lock()).await?.err(),
        soon(keeper.rw_lock(&name).read()).await?.err(),
        soon(keeper.semaphore(&name, 2).acquire()).await?.err(),
        soon(keeper.election(&name).campaign("a")).await?.err(),
    ];
    for error in errors {
        let error = error.expect("the keeper is closed");
        assert!(matches!(&error, AcquireError::Closed { .. }), "{error}");
        assert!(error.to_string().contains("connect anew") && error.to_string().contains(&name), "{error}");
    }
    let error = soon(keeper.latch(&name).create(1)).await?.expect_err("the keeper is closed");
    assert!(matches!(error, LatchError::Closed { .. }), "{error}");
    fixture.wait_until(&name, 0, 0).await
}

async fn closing_twice_is_harmless(fixture: &Fixture) -> Outcome {
    let (keeper, name) = (fixture.keeper().await?, fixture.name("stock"));
    let guard = keeper.mutex(&name).lock().await?;
    let clone = keeper.clone();
    soon(async { tokio::join!(keeper.close(), clone.close()) }).await?;
    soon(keeper.close()).await?;
    assert!(!guard.is_held());
    fixture.wait_until(&name, 0, 0).await
}

/// The least time is promised to others, so the end of the process does not cut it short.
async fn closing_keeps_min_hold(fixture: &Fixture) -> Outcome {
    let ((a, b), name, least) =
        (fixture.two_keepers().await?, fixture.name("report"), fixture.renewed_lease());
    let asked = Instant::now();
    let guard = a.mutex(&name).min_hold(least).lock().await?;
    a.close().await;
    assert!(!guard.is_held());
    let next = soon(b.mutex(&name).lock()).await??;
    assert!(asked.elapsed() + ROUNDING >= least, "kept only {:?}", asked.elapsed());
    Ok(next.release().await?)
}

async fn dropping_a_keeper_gives_everything_back(fixture: &Fixture) -> Outcome {
    let name = fixture.name("stock");
    let keeper = fixture.keeper().await?;
    let guard = keeper.mutex(&name).lock().await?;
    drop(keeper);
    assert!(guard.is_held() && fixture.view(&name).await?.is_some(), "a guard keeps its keeper");
    drop(guard);
    fixture.wait_until(&name, 0, 0).await
}
