//! Guards: their reports are true and come in time.

use std::{
    future::pending,
    time::{Duration, Instant},
};

use lockkeeper_core::{LeaseError, Lost, ReleaseError, store::Eviction};
use tokio::{
    sync::oneshot,
    time::{sleep, timeout},
};

use super::{
    Fixture, Outcome,
    fixture::{PATIENCE, soon},
    tests,
};

tests! {
    a_guard_says_what_it_holds,
    remaining_grows_with_renewals,
    lost_outlives_the_guard,
    run_ends_with_its_work,
    run_drops_its_work_when_the_lock_is_lost,
    run_does_not_start_on_a_lost_guard,
    a_fixed_lease_can_be_extended,
    extending_too_much_is_refused,
    a_lost_guard_cannot_be_extended,
    a_late_release_frees_nobody_else,
    a_renewal_revives_nothing,
    dropping_releases,
    dropping_outside_of_a_runtime_releases,
    a_panic_releases,
    a_dropped_release_still_releases,
    who_drops_and_locks_again_comes_behind_those_who_wait,
}

async fn a_guard_says_what_it_holds(fixture: &Fixture) -> Outcome {
    let (keeper, name, lease) = (fixture.keeper().await?, fixture.name("stock"), fixture.renewed_lease());
    let guard = keeper.mutex(&name).lease(lease).lock().await?;
    assert_eq!(guard.name().as_str(), name);
    assert_eq!(guard.floor(), guard.token(), "exclusive");
    assert!(guard.is_held() && guard.holds() == 1);
    assert!(guard.remaining() < lease && !guard.remaining().is_zero(), "{:?}", guard.remaining());
    assert_eq!(fixture.view(&name).await?.expect("it is held").holders[0].token, guard.token());
    assert!(format!("{guard:?}").contains(&name));
    Ok(guard.release().await?)
}

async fn remaining_grows_with_renewals(fixture: &Fixture) -> Outcome {
    let mutex = fixture.keeper().await?.mutex(&fixture.name("stock")).lease(fixture.renewed_lease());
    let guard = mutex.lock().await?;
    let (mut last, ends) = (guard.remaining(), Instant::now() + PATIENCE);
    loop {
        sleep(Duration::from_millis(5)).await;
        let now = guard.remaining();
        if now > last {
            return Ok(guard.release().await?);
        }
        assert!(Instant::now() < ends && guard.is_held(), "never renewed");
        last = now;
    }
}

async fn lost_outlives_the_guard(fixture: &Fixture) -> Outcome {
    let guard = fixture.keeper().await?.mutex(&fixture.name("stock")).lock().await?;
    let lost = tokio::spawn(guard.lost());
    guard.release().await?;
    assert_eq!(soon(lost).await??, Lost::Released);
    Ok(())
}

async fn run_ends_with_its_work(fixture: &Fixture) -> Outcome {
    let guard = fixture.keeper().await?.mutex(&fixture.name("stock")).lock().await?;
    assert_eq!(guard.run(async { 42 }).await, Ok(42));
    assert!(guard.is_held(), "the guard stays as it is");
    Ok(guard.release().await?)
}

async fn run_drops_its_work_when_the_lock_is_lost(fixture: &Fixture) -> Outcome {
    let mutex = fixture.keeper().await?.mutex(&fixture.name("stock")).expires_after(fixture.short_lease());
    let guard = mutex.lock().await?;
    let (alive, dropped) = oneshot::channel::<()>();
    let work = async move {
        pending::<()>().await;
        drop(alive);
    };
    assert_eq!(soon(guard.run(work)).await?, Err(Lost::Expired));
    assert!(soon(dropped).await?.is_err(), "the work was dropped unfinished");
    Ok(())
}

async fn run_does_not_start_on_a_lost_guard(fixture: &Fixture) -> Outcome {
    let mutex = fixture.keeper().await?.mutex(&fixture.name("stock")).expires_after(fixture.short_lease());
    let guard = mutex.lock().await?;
    assert_eq!(soon(guard.lost()).await?, Lost::Expired);
    let work = async { panic!("work was begun without the lock") };
    assert_eq!(guard.run(work).await, Err::<(), _>(Lost::Expired));
    Ok(())
}

async fn a_fixed_lease_can_be_extended(fixture: &Fixture) -> Outcome {
    let ((a, b), name) = (fixture.two_keepers().await?, fixture.name("stock"));
    let guard = a.mutex(&name).expires_after(fixture.renewed_lease()).lock().await?;
    let longer = 4 * fixture.renewed_lease();
    guard.extend(longer).await?;
    let whole = || !fixture.capability().lease_per_claim || guard.remaining() > longer / 2;
    assert!(whole(), "{:?}", guard.remaining());
    guard.extend(fixture.short_lease()).await?;
    assert!(whole(), "a lease is never shortened: {:?}", guard.remaining());
    let lost = timeout(fixture.renewed_lease() * 3 / 2, guard.lost()).await;
    assert!(lost.is_err() && guard.is_held(), "lost with its first lease: {lost:?}");
    assert!(b.mutex(&name).try_lock().await?.is_none(), "given away with its first lease");
    Ok(guard.release().await?)
}

async fn extending_too_much_is_refused(fixture: &Fixture) -> Outcome {
    let (keeper, name) = (fixture.keeper().await?, fixture.name("stock"));
    let most = Duration::from_secs(60);
    let guard = keeper.mutex(&name).max_hold(most).lock().await?;
    let past_the_store = fixture.capability().max_lease + Duration::from_secs(1);
    for length in [Duration::ZERO, past_the_store, Duration::MAX, most + Duration::from_secs(1)] {
        let error = guard.extend(length).await.expect_err("that can never work");
        assert!(matches!(&error, LeaseError::Invalid { .. }), "{length:?}: {error}");
        assert!(error.to_string().contains(&name) && error.to_string().contains("extend"), "{error}");
    }
    assert!(guard.remaining() <= Duration::from_secs(30), "nothing was changed");
    Ok(guard.release().await?)
}

async fn a_lost_guard_cannot_be_extended(fixture: &Fixture) -> Outcome {
    let mutex = fixture.keeper().await?.mutex(&fixture.name("stock")).expires_after(fixture.short_lease());
    let guard = mutex.lock().await?;
    assert_eq!(soon(guard.lost()).await?, Lost::Expired);
    let error = guard.extend(fixture.renewed_lease()).await.expect_err("it is lost");
    assert!(matches!(error, LeaseError::NotHeld { why: Lost::Expired, .. }), "{error}");
    assert!(!guard.is_held(), "once lost, always lost");
    Ok(())
}

async fn a_late_release_frees_nobody_else(fixture: &Fixture) -> Outcome {
    let ((a, b), name) = (fixture.two_keepers().await?, fixture.name("stock"));
    let lost = a.mutex(&name).expires_after(fixture.short_lease()).lock().await?;
    let guard = soon(b.mutex(&name).lock()).await??;
    let error = lost.release().await.expect_err("it was lost");
    assert!(matches!(&error, ReleaseError::NotHeld { why: Lost::Expired, .. }), "{error}");
    let text = error.to_string();
    assert!(text.contains(&name) && text.contains("release") && text.contains(a.url()), "{text}");
    // Its leave travels in the background: one of the same keeper comes behind it.
    drop(a.mutex(&fixture.name("behind")).lock().await?);
    let view = fixture.view(&name).await?.expect("it is held");
    assert_eq!(view.holders[0].token, guard.token(), "the late release freed somebody else's lock");
    guard.extend(fixture.renewed_lease()).await?;
    Ok(guard.release().await?)
}

async fn a_renewal_revives_nothing(fixture: &Fixture) -> Outcome {
    let ((a, b), name) = (fixture.two_keepers().await?, fixture.name("stock"));
    let guard = a.mutex(&name).lock().await?;
    let holder = fixture.view(&name).await?.expect("it is held").holders.remove(0);
    assert!(b.evict(&name, holder.contender, holder.token, Eviction::Immediate).await?);
    let error = guard.extend(fixture.renewed_lease()).await.expect_err("the store gave it away");
    assert!(matches!(error, LeaseError::NotHeld { .. }), "{error}");
    assert!(!guard.is_held());
    fixture.wait_until(&name, 0, 0).await
}

async fn dropping_releases(fixture: &Fixture) -> Outcome {
    let ((a, b), name) = (fixture.two_keepers().await?, fixture.name("stock"));
    let guard = a.mutex(&name).lock().await?;
    let theirs = b.mutex(&name);
    let waiter = fixture.start_waiter(&name, 1, async move { theirs.lock().await }).await?;
    drop(guard);
    Ok(soon(waiter).await???.release().await?)
}

async fn dropping_outside_of_a_runtime_releases(fixture: &Fixture) -> Outcome {
    let (keeper, name) = (fixture.keeper().await?, fixture.name("stock"));
    let guard = keeper.mutex(&name).lock().await?;
    std::thread::spawn(move || drop(guard)).join().expect("dropping a guard never panics");
    fixture.wait_until(&name, 0, 0).await
}

async fn who_drops_and_locks_again_comes_behind_those_who_wait(fixture: &Fixture) -> Outcome {
    let ((a, b), name) = (fixture.two_keepers().await?, fixture.name("stock"));
    let mutex = a.mutex(&name).fifo();
    let mut guard = mutex.lock().await?;
    for _ in 0..5 {
        let theirs = b.mutex(&name).fifo();
        let waiter = fixture.start_waiter(&name, 1, async move { theirs.lock().await }).await?;
        let (token, mine) = (guard.token(), mutex.clone());
        // At once, so that both may go out together.
        let again = tokio::spawn(async move {
            drop(guard);
            mine.lock().await
        });
        let theirs = soon(waiter).await???;
        fixture.wait_until(&name, 1, 1).await?;
        assert!(!again.is_finished(), "two hold it");
        assert!(theirs.token() > token);
        let token = theirs.token();
        theirs.release().await?;
        guard = soon(again).await???;
        assert!(guard.token() > token, "it waited behind the other");
    }
    Ok(guard.release().await?)
}

async fn a_panic_releases(fixture: &Fixture) -> Outcome {
    let (keeper, name) = (fixture.keeper().await?, fixture.name("stock"));
    let guard = keeper.mutex(&name).lock().await?;
    // Without the panic hook's message, which would look like a failure of the suite.
    let work = tokio::spawn(async move {
        let _guard = guard;
        std::panic::resume_unwind(Box::new("in the critical section"))
    });
    let ended: Result<(), _> = soon(work).await?;
    assert!(ended.is_err_and(|error| error.is_panic()));
    Ok(soon(keeper.mutex(&name).lock()).await??.release().await?)
}

async fn a_dropped_release_still_releases(fixture: &Fixture) -> Outcome {
    let (keeper, name) = (fixture.keeper().await?, fixture.name("stock"));
    for moment in 0..20 {
        let guard = soon(keeper.mutex(&name).lock()).await??;
        drop(timeout(Duration::from_micros(20 * moment), guard.release()).await);
    }
    fixture.wait_until(&name, 0, 0).await
}
