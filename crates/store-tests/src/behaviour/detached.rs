//! Detached leases: handed from one process to another, belonging to none in between.

use std::time::{Duration, Instant};

use lockkeeper_core::{
    AcquireError, Capacity, Error, Lease, LeaseClaim, LeaseError, Lost, ReleaseError, Units,
    store::{Kind, ProcessInfo},
};
use tokio::time::timeout;

use super::{
    Fixture, Outcome,
    fixture::{self, soon},
    tests,
};

tests! {
    a_lease_passes_to_another_process if |can| can.detachable,
    a_lease_outlives_its_keeper if |can| can.detachable,
    a_lease_outlives_its_process if |can| can.detachable,
    an_adopted_lease_is_renewed if |can| can.detachable,
    a_fixed_lease_stays_fixed if |can| can.detachable,
    a_lease_that_nobody_adopts_ends if |can| can.detachable,
    a_lease_is_released_without_being_adopted if |can| can.detachable,
    a_lease_is_renewed_without_being_adopted if |can| can.detachable,
    a_lease_can_be_acquired_for_somebody_else if |can| can.detachable,
    a_claim_for_somebody_else_waits_no_longer_than_its_keeper if |can| can.detachable,
    a_lease_for_somebody_else_is_renewed_by_another_keeper if |can| can.detachable,
    a_released_lease_keeps_its_minimum_from_its_grant_on if |can| can.detachable,
    permits_can_be_handed_over if |can| can.detachable && can.counts_permits,
    only_what_is_detachable_is_detached,
    a_reentered_guard_is_not_detached if |can| can.detachable,
    a_store_that_cannot_says_so if |can| !can.detachable,
    nonsense_is_not_adopted,
}

async fn a_lease_passes_to_another_process(fixture: &Fixture) -> Outcome {
    let ((a, b), name) = (fixture.two_keepers().await?, fixture.name("deploy"));
    let guard = a.mutex(&name).detachable().lock().await?;
    let token = guard.token();
    let lease = guard.into_lease().await?;
    assert_eq!((lease.name().as_str(), lease.token()), (&*name, token));
    let text = lease.to_string();
    assert!(!text.contains(char::is_whitespace), "{text:?} is one word");
    assert_eq!(text.parse::<Lease>()?, lease);
    assert!(fixture.view(&name).await?.expect("it is held").holders[0].detached);
    let guard = b.adopt(&text.parse()?).await?;
    assert!(guard.token() == token && guard.is_held() && guard.name().as_str() == name);
    assert!(a.mutex(&name).try_lock().await?.is_none());
    guard.release().await?;
    Ok(a.mutex(&name).try_lock().await?.expect("it is free").release().await?)
}

async fn a_lease_outlives_its_keeper(fixture: &Fixture) -> Outcome {
    let ((a, b), name) = (fixture.two_keepers().await?, fixture.name("deploy"));
    let lease = a.mutex(&name).detachable().lock().await?.into_lease().await?;
    a.close().await;
    assert!(b.mutex(&name).try_lock().await?.is_none(), "it went with its keeper");
    Ok(b.adopt(&lease).await?.release().await?)
}

async fn a_lease_outlives_its_process(fixture: &Fixture) -> Outcome {
    let (keeper, name) = (fixture.keeper().await?, fixture.name("deploy"));
    let process = fixture.killable_keeper().await?;
    let mutex = process.keeper.mutex(&name).detachable();
    let lease = soon(process.run(async move { Ok::<_, Error>(mutex.lock().await?.into_lease().await?) }));
    let lease = lease.await???;
    process.kill().await?;
    let guard = keeper.adopt(&lease).await?;
    assert!(guard.token() == lease.token() && keeper.mutex(&name).try_lock().await?.is_none());
    Ok(guard.release().await?)
}

async fn an_adopted_lease_is_renewed(fixture: &Fixture) -> Outcome {
    let ((a, b), name, length) =
        (fixture.two_keepers().await?, fixture.name("deploy"), fixture.renewed_lease());
    let lease = a.mutex(&name).lease(length).detachable().lock().await?.into_lease().await?;
    let guard = b.adopt(&lease).await?;
    let lost = timeout(2 * length, guard.lost()).await;
    assert!(lost.is_err() && guard.is_held(), "lost although it was adopted: {lost:?}");
    assert!(a.mutex(&name).try_lock().await?.is_none());
    Ok(guard.release().await?)
}

async fn a_fixed_lease_stays_fixed(fixture: &Fixture) -> Outcome {
    let ((a, b), name, length) =
        (fixture.two_keepers().await?, fixture.name("deploy"), fixture.renewed_lease());
    let asked = Instant::now();
    let lease = a.mutex(&name).expires_after(length).detachable().lock().await?.into_lease().await?;
    let guard = b.adopt(&lease).await?;
    assert_eq!(soon(guard.lost()).await?, Lost::Expired);
    assert!(asked.elapsed() < 2 * length, "handing it over prolonged it");
    assert!(guard.release().await.is_err());
    Ok(())
}

async fn a_lease_that_nobody_adopts_ends(fixture: &Fixture) -> Outcome {
    let ((a, b), name) = (fixture.two_keepers().await?, fixture.name("deploy"));
    let mutex = a.mutex(&name).lease(fixture.renewed_lease()).detachable();
    let lease = mutex.lock().await?.into_lease().await?;
    let next = soon(b.mutex(&name).lock()).await??;
    let error = b.adopt(&lease).await.expect_err("it is over");
    assert!(matches!(&error, LeaseError::NotHeld { why: Lost::Gone, .. }), "{error}");
    assert!(error.to_string().contains(&name) && error.to_string().contains("adopt"), "{error}");
    assert!(next.is_held() && next.token() > lease.token());
    Ok(next.release().await?)
}

async fn a_lease_is_released_without_being_adopted(fixture: &Fixture) -> Outcome {
    let ((a, b), name) = (fixture.two_keepers().await?, fixture.name("deploy"));
    let lease = a.mutex(&name).detachable().lock().await?.into_lease().await?;
    let theirs = a.mutex(&name);
    let waiter = fixture.start_waiter(&name, 1, async move { theirs.lock().await }).await?;
    b.release_lease(&lease).await?;
    let next = soon(waiter).await???;
    assert!(next.token() > lease.token());
    let error = b.release_lease(&lease).await.expect_err("it is over");
    assert!(matches!(&error, ReleaseError::NotHeld { why: Lost::Gone, .. }), "{error}");
    assert!(next.is_held() && a.mutex(&name).try_lock().await?.is_none(), "it is another's");
    Ok(next.release().await?)
}

async fn a_lease_is_renewed_without_being_adopted(fixture: &Fixture) -> Outcome {
    let ((a, b), name, length) =
        (fixture.two_keepers().await?, fixture.name("deploy"), fixture.renewed_lease());
    let lease = a.mutex(&name).lease(length).detachable().lock().await?.into_lease().await?;
    let started = Instant::now();
    while started.elapsed() < 2 * length {
        let left = b.renew_lease(&lease).await?;
        assert!(left > length / 2 && left <= length, "{left:?}");
        tokio::time::sleep(length / 3).await;
    }
    assert!(a.mutex(&name).try_lock().await?.is_none());
    b.release_lease(&lease).await?;
    let error = b.renew_lease(&lease).await.expect_err("it is over");
    assert!(matches!(&error, LeaseError::NotHeld { why: Lost::Gone, .. }), "{error}");
    Ok(())
}

async fn a_lease_can_be_acquired_for_somebody_else(fixture: &Fixture) -> Outcome {
    let ((a, b), name) = (fixture.two_keepers().await?, fixture.name("deploy"));
    let mut claim = LeaseClaim::new(Kind::RwLock, Units::All, Capacity::All);
    claim.process = Some(ProcessInfo { host: "their host".into(), pid: 7, program: "curl".into() });
    claim.label = Some("for them".into());
    let first = a.acquire_lease(&name, &claim, None).await?.expect("it waits");
    assert!(!first.remaining.is_zero() && first.lease.floor() == first.lease.token());
    let shown = fixture.view(&name).await?.expect("it is held").holders.remove(0);
    assert!(shown.detached && !shown.renewed, "{shown:?}");
    assert_eq!(
        (&*shown.details.process, shown.details.kind),
        (claim.process.as_ref().expect("given"), Kind::RwLock)
    );
    assert_eq!(shown.details.label.as_deref(), Some("for them"));
    assert!(b.acquire_lease(&name, &claim, Some(Duration::ZERO)).await?.is_none(), "it only tries");
    // Long enough for the store to answer.
    let error = b.acquire_lease(&name, &claim, Some(Duration::from_secs(1))).await.expect_err("in use");
    assert!(matches!(error, AcquireError::TimedOut { .. }), "{error}");
    let (theirs, asked, of) = (b.clone(), claim.clone(), name.clone());
    let waiter =
        fixture.start_waiter(&name, 1, async move { theirs.acquire_lease(&of, &asked, None).await }).await?;
    a.release_lease(&first.lease).await?;
    let second = soon(waiter).await???.expect("it waits");
    assert!(second.lease.token() > first.lease.token());
    b.close().await;
    let shown = fixture.view(&name).await?.expect("it belongs to no keeper").holders.remove(0);
    // A quorum raises the members of a detached lease to the highest of their numbers.
    let exact = fixture.capability().counts_permits;
    assert!(shown.token == second.lease.token() || !exact && shown.token > second.lease.token(), "{shown:?}");
    assert!(shown.detached, "{shown:?}");
    assert!(a.renew_lease(&second.lease).await? > claim.lease / 2, "it was granted for its whole lease");
    Ok(a.release_lease(&second.lease).await?)
}

async fn a_claim_for_somebody_else_waits_no_longer_than_its_keeper(fixture: &Fixture) -> Outcome {
    let ((a, b), name) = (fixture.two_keepers().await?, fixture.name("deploy"));
    let held = b.mutex(&name).lock().await?;
    let claim = LeaseClaim::new(Kind::Mutex, Units::All, Capacity::All);
    let (ours, of) = (a.clone(), name.clone());
    let waiter =
        fixture.start_waiter(&name, 1, async move { ours.acquire_lease(&of, &claim, None).await }).await?;
    a.close().await;
    let error = soon(waiter).await??.expect_err("its keeper has closed");
    assert!(matches!(error, AcquireError::Closed { .. }), "{error}");
    fixture.wait_until(&name, 1, 0).await?;
    held.release().await?;
    Ok(b.mutex(&name).try_lock().await?.expect("nobody waited any more").release().await?)
}

async fn a_lease_for_somebody_else_is_renewed_by_another_keeper(fixture: &Fixture) -> Outcome {
    let ((a, b), name, length) =
        (fixture.two_keepers().await?, fixture.name("deploy"), fixture.renewed_lease());
    let mut claim = LeaseClaim::new(Kind::Mutex, Units::All, Capacity::All);
    claim.lease = length;
    let acquired = a.acquire_lease(&name, &claim, None).await?.expect("it waits");
    let started = Instant::now();
    while started.elapsed() < 2 * length {
        let left = b.renew_lease(&acquired.lease).await?;
        assert!(left > length / 2 && left <= length, "{left:?}");
        tokio::time::sleep(length / 3).await;
        assert!(a.mutex(&name).try_lock().await?.is_none(), "its first keeper ended it");
    }
    b.release_lease(&acquired.lease).await?;
    Ok(a.mutex(&name).try_lock().await?.expect("released").release().await?)
}

async fn a_released_lease_keeps_its_minimum_from_its_grant_on(fixture: &Fixture) -> Outcome {
    let ((a, b), name) = (fixture.two_keepers().await?, fixture.name("deploy"));
    let least = Duration::from_secs(3);
    // Given back by its own keeper, by another one, by another one that held it in between, and after its keeper closed.
    for way in 0..4 {
        let keeper = if way == 3 { fixture.keeper().await? } else { a.clone() };
        let asked = Instant::now();
        let guard = keeper.mutex(&name).min_hold(least).detachable().lock().await?;
        let granted = Instant::now();
        let lease = guard.into_lease().await?;
        tokio::time::sleep(least / 3).await;
        match way {
            0 => a.release_lease(&lease).await?,
            1 => b.release_lease(&lease).await?,
            2 => b.adopt(&lease).await?.release().await?,
            _ => {
                keeper.close().await;
                b.release_lease(&lease).await?;
            }
        }
        assert!(asked.elapsed() < least, "this machine is too slow for this test");
        assert!(b.mutex(&name).try_lock().await?.is_none(), "way {way} forgot it");
        let error = b.release_lease(&lease).await.expect_err("it has no owner any more");
        assert!(matches!(&error, ReleaseError::NotHeld { .. }), "{error}");
        let next = soon(b.mutex(&name).lock()).await??;
        assert!(asked.elapsed() + fixture::ROUNDING >= least, "way {way} kept it only {:?}", asked.elapsed());
        let late = granted.elapsed().saturating_sub(least);
        // A session that keeps it ends a little later.
        let most = fixture.capability().min_lease + Duration::from_secs(2);
        assert!(late < most, "way {way} kept it {late:?} too long");
        next.release().await?;
    }
    Ok(())
}

async fn permits_can_be_handed_over(fixture: &Fixture) -> Outcome {
    let ((a, b), name) = (fixture.two_keepers().await?, fixture.name("gpu"));
    let lease = a.semaphore(&name, 3).detachable().acquire_many(2).await?.into_lease().await?;
    let guard = b.adopt(&lease).await?;
    assert!(a.semaphore(&name, 3).try_acquire_many(2).await?.is_none(), "one is left");
    guard.release().await?;
    Ok(a.semaphore(&name, 3).try_acquire_many(3).await?.expect("all came back").release().await?)
}

async fn only_what_is_detachable_is_detached(fixture: &Fixture) -> Outcome {
    let (keeper, name) = (fixture.keeper().await?, fixture.name("deploy"));
    let guard = keeper.mutex(&name).lock().await?;
    let error = guard.into_lease().await.expect_err("it was not made for that");
    assert!(matches!(error.error(), LeaseError::Invalid { .. }), "{error}");
    assert!(error.to_string().contains(".detachable()") && error.to_string().contains(&name), "{error}");
    let guard = error.into_guard();
    assert!(guard.is_held() && fixture.keeper().await?.mutex(&name).try_lock().await?.is_none());
    guard.release().await?;
    fixture.wait_until(&name, 0, 0).await
}

async fn a_reentered_guard_is_not_detached(fixture: &Fixture) -> Outcome {
    let (keeper, name) = (fixture.keeper().await?, fixture.name("deploy"));
    let guard = keeper.mutex(&name).detachable().lock().await?;
    let deeper = guard.reenter()?;
    let error = guard.into_lease().await.expect_err("somebody else is inside");
    assert!(error.to_string().contains("release the re-entered guards first"), "{error}");
    assert!(deeper.is_held(), "nothing was changed");
    deeper.release().await?;
    let lease = error.into_guard().into_lease().await?;
    Ok(fixture.keeper().await?.adopt(&lease).await?.release().await?)
}

async fn a_store_that_cannot_says_so(fixture: &Fixture) -> Outcome {
    let (keeper, name) = (fixture.keeper().await?, fixture.name("deploy"));
    let error = keeper.mutex(&name).detachable().lock().await.expect_err("it cannot");
    assert!(error.to_string().contains("outlive") && error.to_string().contains(&name), "{error}");
    fixture.wait_until(&name, 0, 0).await
}

async fn nonsense_is_not_adopted(fixture: &Fixture) -> Outcome {
    let (keeper, name) = (fixture.keeper().await?, fixture.name("deploy"));
    let wrong = format!("lk1:{}:", "0".repeat(32));
    for text in ["", " ", "nonsense", "lk1:", "lk2:1:2:3", &wrong, &name] {
        let error = text.parse::<Lease>().expect_err("that is no lease");
        assert!(error.to_string().contains("not a lease"), "{text:?}: {error}");
    }
    // Well formed, but of nobody.
    let nobody = format!("lk1:{}-7:9.0:9:all/all:mutex:30000:renewed:nobody", "0".repeat(32));
    let error = keeper.adopt(&nobody.parse()?).await.expect_err("nobody holds that");
    assert!(matches!(&error, LeaseError::NotHeld { why: Lost::Gone, .. }), "{error}");
    let endless = format!("lk1:{}-7:9.0:9:all/all:mutex:{}:renewed:nobody", "0".repeat(32), u64::MAX);
    assert!(timeout(Duration::from_secs(20), keeper.adopt(&endless.parse()?)).await?.is_err());
    Ok(())
}
