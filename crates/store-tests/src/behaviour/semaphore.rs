//! Semaphore: so many permits over all processes, several at a time, leased.

use std::sync::{
    Arc,
    atomic::{AtomicU32, Ordering},
};

use lockkeeper_core::{AcquireError, Lost};
use tokio::{
    task::{JoinSet, yield_now},
    time::timeout,
};

use super::{
    Fixture, Outcome,
    fixture::{BRIEFLY, soon},
    tests,
};

tests! {
    there_are_as_many_as_agreed,
    several_permits_at_a_time,
    a_waiter_gets_what_is_given_back,
    a_large_request_is_not_starved,
    who_fits_enters_together,
    acquire_within_gives_up_in_time,
    permits_that_expire_come_back,
    a_permit_stays_held_past_its_lease,
    a_dead_process_gives_its_permits_back,
    never_more_than_there_are,
}

async fn there_are_as_many_as_agreed(fixture: &Fixture) -> Outcome {
    let ((a, b), name) = (fixture.two_keepers().await?, fixture.name("gpu"));
    let (ours, theirs) = (a.semaphore(&name, 3), b.semaphore(&name, 3));
    let one = ours.acquire().await?;
    let two = soon(theirs.acquire()).await??;
    let three = ours.try_acquire().await?.expect("one is left");
    assert!(one.token() < two.token() && two.token() < three.token());
    assert!(ours.try_acquire().await?.is_none() && theirs.try_acquire().await?.is_none());
    two.release().await?;
    let again = ours.try_acquire().await?.expect("one came back");
    for permit in [one, three, again] {
        permit.release().await?;
    }
    Ok(())
}

async fn several_permits_at_a_time(fixture: &Fixture) -> Outcome {
    let ((a, b), name) = (fixture.two_keepers().await?, fixture.name("gpu"));
    let (ours, theirs) = (a.semaphore(&name, 100), b.semaphore(&name, 100));
    let most = ours.acquire_many(97).await?;
    assert!(theirs.try_acquire_many(4).await?.is_none(), "three are left");
    let rest = theirs.try_acquire_many(3).await?.expect("three are left");
    assert!(theirs.try_acquire().await?.is_none(), "none is left");
    most.release().await?;
    assert!(ours.try_acquire_many(98).await?.is_none(), "97 are left");
    rest.release().await?;
    Ok(ours.try_acquire_many(100).await?.expect("all came back").release().await?)
}

async fn a_waiter_gets_what_is_given_back(fixture: &Fixture) -> Outcome {
    let ((a, b), name) = (fixture.two_keepers().await?, fixture.name("gpu"));
    let all = a.semaphore(&name, 2).acquire_many(2).await?;
    let theirs = b.semaphore(&name, 2);
    let waiter = fixture.start_waiter(&name, 1, async move { theirs.acquire().await }).await?;
    drop(all);
    Ok(soon(waiter).await???.release().await?)
}

async fn a_large_request_is_not_starved(fixture: &Fixture) -> Outcome {
    let ((a, b), name) = (fixture.two_keepers().await?, fixture.name("gpu"));
    let small = a.semaphore(&name, 3).acquire().await?;
    let (large, later) = (b.semaphore(&name, 3), a.semaphore(&name, 3));
    let large = fixture.start_waiter(&name, 1, async move { large.acquire_many(3).await }).await?;
    assert!(a.semaphore(&name, 3).try_acquire().await?.is_none(), "two are free, but the large one waits");
    let later = fixture.start_waiter(&name, 2, async move { later.acquire().await }).await?;
    small.release().await?;
    let large = soon(large).await???;
    assert!(!later.is_finished(), "more permits than there are");
    large.release().await?;
    Ok(soon(later).await???.release().await?)
}

async fn who_fits_enters_together(fixture: &Fixture) -> Outcome {
    let ((a, b), name) = (fixture.two_keepers().await?, fixture.name("gpu"));
    let all = a.semaphore(&name, 4).acquire_many(4).await?;
    let mut waiters = Vec::new();
    for (place, (keeper, permits)) in [(&a, 2), (&b, 1), (&b, 2)].into_iter().enumerate() {
        let semaphore = keeper.semaphore(&name, 4);
        let waiter = async move { semaphore.acquire_many(permits).await };
        waiters.push(fixture.start_waiter(&name, place + 1, waiter).await?);
    }
    let last = waiters.pop().expect("there are three");
    all.release().await?;
    let mut inside = Vec::new();
    for waiter in waiters {
        inside.push(soon(waiter).await???);
    }
    assert!(inside.iter().all(|permit| permit.is_held()) && !last.is_finished());
    inside.swap_remove(1).release().await?;
    let last = soon(last).await???;
    assert!(inside[0].is_held());
    last.release().await?;
    Ok(inside.swap_remove(0).release().await?)
}

async fn acquire_within_gives_up_in_time(fixture: &Fixture) -> Outcome {
    let ((a, b), name) = (fixture.two_keepers().await?, fixture.name("gpu"));
    let one = a.semaphore(&name, 2).acquire().await?;
    let error = b.semaphore(&name, 2).acquire_many_within(2, BRIEFLY).await.expect_err("one is taken");
    assert!(matches!(error, AcquireError::TimedOut { .. }), "{error}");
    fixture.wait_until(&name, 1, 0).await?;
    let two = b.semaphore(&name, 2).acquire_within(fixture.renewed_lease()).await?;
    one.release().await?;
    Ok(two.release().await?)
}

async fn permits_that_expire_come_back(fixture: &Fixture) -> Outcome {
    let ((a, b), name) = (fixture.two_keepers().await?, fixture.name("gpu"));
    let brief = a.semaphore(&name, 3).expires_after(fixture.short_lease()).acquire_many(2).await?;
    let lasting = a.semaphore(&name, 3).acquire().await?;
    let again = soon(b.semaphore(&name, 3).acquire_many(2)).await??;
    assert!(!brief.is_held() && lasting.is_held());
    assert_eq!(soon(brief.lost()).await?, Lost::Expired);
    assert!(brief.release().await.is_err(), "it was lost");
    assert!(a.semaphore(&name, 3).try_acquire().await?.is_none(), "a lost permit gave back somebody else's");
    lasting.release().await?;
    Ok(again.release().await?)
}

async fn a_permit_stays_held_past_its_lease(fixture: &Fixture) -> Outcome {
    let ((a, b), name, lease) = (fixture.two_keepers().await?, fixture.name("gpu"), fixture.renewed_lease());
    let permit = a.semaphore(&name, 2).lease(lease).acquire_many(2).await?;
    let lost = timeout(2 * lease, permit.lost()).await;
    assert!(lost.is_err() && permit.is_held(), "lost although the keeper renews it: {lost:?}");
    assert!(b.semaphore(&name, 2).try_acquire().await?.is_none());
    Ok(permit.release().await?)
}

async fn a_dead_process_gives_its_permits_back(fixture: &Fixture) -> Outcome {
    let (keeper, name) = (fixture.keeper().await?, fixture.name("gpu"));
    let process = fixture.killable_keeper().await?;
    let permits = process.keeper.semaphore(&name, 4).lease(fixture.renewed_lease()).acquire_many(3).await?;
    let semaphore = keeper.semaphore(&name, 4);
    let waiter = fixture.start_waiter(&name, 1, async move { semaphore.acquire_many(4).await }).await?;
    process.kill().await?;
    let all = soon(waiter).await???;
    assert!(!permits.is_held());
    Ok(all.release().await?)
}

async fn never_more_than_there_are(fixture: &Fixture) -> Outcome {
    const PERMITS: u32 = 3;
    let name = fixture.name("gpu");
    let inside = Arc::new(AtomicU32::new(0));
    let mut work = JoinSet::new();
    for _ in 0..2 {
        let keeper = fixture.keeper().await?;
        for task in 0..fixture.repeats(6, 3) {
            let (semaphore, inside) = (keeper.semaphore(&name, PERMITS), inside.clone());
            let (permits, rounds) = (1 + task % PERMITS, fixture.repeats(5, 2));
            work.spawn(async move {
                for _ in 0..rounds {
                    let permit = semaphore.acquire_many(permits).await?;
                    let now = permits + inside.fetch_add(permits, Ordering::SeqCst);
                    assert!(now <= PERMITS, "{now} of {PERMITS} permits are held");
                    yield_now().await;
                    inside.fetch_sub(permits, Ordering::SeqCst);
                    permit.release().await?;
                }
                Ok::<_, lockkeeper_core::Error>(())
            });
        }
    }
    while let Some(done) = work.join_next().await {
        done??;
    }
    Ok(())
}
