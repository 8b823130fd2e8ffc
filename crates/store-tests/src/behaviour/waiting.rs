//! Waiting: a waiter that gives up leaves nothing behind, and the queue passes over crashed waiters.

use std::time::{Duration, Instant};

use lockkeeper_core::model::FIRST_LEASE;
use tokio::time::timeout;

use super::{Fixture, Outcome, fixture::soon, tests};

tests! {
    who_gives_up_leaves_the_line,
    who_gives_up_lets_the_next_one_pass,
    giving_up_at_any_moment_of_a_wait_leaves_nothing,
    giving_up_at_any_moment_of_a_grant_leaves_nothing if |can| can.counts_permits,
    giving_up_in_a_crowd_of_one_process_leaves_nothing,
    a_waiter_keeps_what_it_was_granted,
    a_waiter_gets_a_whole_fixed_lease,
    a_dead_holder_is_passed,
    a_dead_waiter_is_passed,
    a_dead_process_in_line_costs_one_lease,
    a_dead_process_frees_nothing_of_others if |can| can.counts_permits,
}

async fn who_gives_up_leaves_the_line(fixture: &Fixture) -> Outcome {
    let ((a, b), name) = (fixture.two_keepers().await?, fixture.name("stock"));
    let guard = a.mutex(&name).lock().await?;
    let theirs = b.mutex(&name);
    let waiter = fixture.start_waiter(&name, 1, async move { theirs.lock().await }).await?;
    waiter.abort();
    fixture.wait_until(&name, 1, 0).await?;
    assert!(guard.is_held());
    Ok(guard.release().await?)
}

async fn who_gives_up_lets_the_next_one_pass(fixture: &Fixture) -> Outcome {
    let ((a, b), name) = (fixture.two_keepers().await?, fixture.name("stock"));
    let guard = a.mutex(&name).lock().await?;
    let (theirs, third) = (b.mutex(&name), fixture.keeper().await?.mutex(&name));
    let first = fixture.start_waiter(&name, 1, async move { theirs.lock().await }).await?;
    let second = fixture.start_waiter(&name, 2, async move { third.lock().await }).await?;
    first.abort();
    fixture.wait_until(&name, 1, 1).await?;
    guard.release().await?;
    Ok(soon(second).await???.release().await?)
}

async fn giving_up_at_any_moment_of_a_wait_leaves_nothing(fixture: &Fixture) -> Outcome {
    let ((a, b), name) = (fixture.two_keepers().await?, fixture.name("stock"));
    let guard = a.mutex(&name).lock().await?;
    let mutex = b.mutex(&name).fifo();
    for moment in 0..40 {
        let waited = timeout(Duration::from_micros(50 * moment), mutex.lock()).await;
        assert!(waited.is_err(), "granted while another process holds it");
    }
    fixture.wait_until(&name, 1, 0).await?;
    Ok(guard.release().await?)
}

async fn giving_up_at_any_moment_of_a_grant_leaves_nothing(fixture: &Fixture) -> Outcome {
    let (keeper, name) = (fixture.keeper().await?, fixture.name("stock"));
    let (mutex, permits) = (keeper.mutex(&name), keeper.semaphore(&fixture.name("gpu"), 2));
    for moment in 0..40 {
        let moment = Duration::from_micros(25 * moment);
        drop(timeout(moment, mutex.lock()).await);
        drop(timeout(moment, mutex.try_lock()).await);
        drop(timeout(moment, permits.acquire_many(2)).await);
    }
    fixture.wait_until(&name, 0, 0).await?;
    Ok(soon(mutex.lock()).await??.release().await?)
}

async fn giving_up_in_a_crowd_of_one_process_leaves_nothing(fixture: &Fixture) -> Outcome {
    let ((a, b), name) = (fixture.two_keepers().await?, fixture.name("stock"));
    let guard = a.mutex(&name).lock().await?;
    // They share one place in the store's line: when its owner gives up, the next takes over.
    let mut crowd = Vec::new();
    for _ in 0..4 {
        let mutex = b.mutex(&name);
        crowd.push(tokio::spawn(async move { mutex.lock().await }));
    }
    fixture.wait_until(&name, 1, 1).await?;
    let last = crowd.pop().expect("there are four");
    for waiter in crowd {
        waiter.abort();
    }
    fixture.wait_until(&name, 1, 1).await?;
    guard.release().await?;
    Ok(soon(last).await???.release().await?)
}

/// A grant made by the releaser has a short first lease until its owner is heard of.
async fn a_waiter_keeps_what_it_was_granted(fixture: &Fixture) -> Outcome {
    let ((a, b), name) = (fixture.two_keepers().await?, fixture.name("stock"));
    let guard = a.mutex(&name).lock().await?;
    let theirs = b.mutex(&name);
    let waiter = fixture.start_waiter(&name, 1, async move { theirs.lock().await }).await?;
    guard.release().await?;
    let guard = soon(waiter).await???;
    let lost = timeout(FIRST_LEASE * 3 / 2, guard.lost()).await;
    assert!(lost.is_err() && guard.is_held(), "lost although it is in use: {lost:?}");
    assert!(a.mutex(&name).try_lock().await?.is_none(), "given away although it is in use");
    Ok(guard.release().await?)
}

/// Nobody renews a fixed lease, but the first, short one is still made whole.
async fn a_waiter_gets_a_whole_fixed_lease(fixture: &Fixture) -> Outcome {
    let ((a, b), name) = (fixture.two_keepers().await?, fixture.name("stock"));
    let guard = a.mutex(&name).lock().await?;
    let theirs = b.mutex(&name).expires_after((FIRST_LEASE * 3).max(fixture.capability().min_lease));
    let waiter = fixture.start_waiter(&name, 1, async move { theirs.lock().await }).await?;
    guard.release().await?;
    let guard = soon(waiter).await???;
    let lost = timeout(FIRST_LEASE * 3 / 2, guard.lost()).await;
    assert!(lost.is_err() && guard.is_held(), "lost before its lease was over: {lost:?}");
    assert!(a.mutex(&name).try_lock().await?.is_none(), "given away before its lease was over");
    Ok(guard.release().await?)
}

async fn a_dead_holder_is_passed(fixture: &Fixture) -> Outcome {
    let (keeper, name) = (fixture.keeper().await?, fixture.name("stock"));
    let process = fixture.killable_keeper().await?;
    let guard = process.keeper.mutex(&name).lease(fixture.renewed_lease()).lock().await?;
    let token = guard.token();
    let mutex = keeper.mutex(&name);
    let waiter = fixture.start_waiter(&name, 1, async move { mutex.lock().await }).await?;
    process.kill().await?;
    let next = soon(waiter).await???;
    assert!(next.token() > token);
    assert!(!guard.is_held(), "two believe that they hold it");
    Ok(next.release().await?)
}

async fn a_dead_waiter_is_passed(fixture: &Fixture) -> Outcome {
    let ((a, b), name) = (fixture.two_keepers().await?, fixture.name("stock"));
    let guard = a.mutex(&name).lock().await?;
    let process = fixture.killable_keeper().await?;
    let doomed = process.keeper.mutex(&name).lease(fixture.renewed_lease());
    drop(process.run(async move { doomed.lock().await.map(drop) }));
    fixture.wait_until(&name, 1, 1).await?;
    let theirs = b.mutex(&name);
    let waiter = fixture.start_waiter(&name, 2, async move { theirs.lock().await }).await?;
    process.kill().await?;
    guard.release().await?;
    Ok(soon(waiter).await???.release().await?)
}

async fn a_dead_process_in_line_costs_one_lease(fixture: &Fixture) -> Outcome {
    const CRASHED: u32 = 4;
    let ((a, b), name) = (fixture.two_keepers().await?, fixture.name("stock"));
    let guard = a.mutex(&name).lock().await?;
    let process = fixture.killable_keeper().await?;
    for position in 1..=CRASHED {
        let doomed = process.keeper.mutex(&name).fifo();
        drop(process.run(async move { doomed.lock().await.map(drop) }));
        fixture.wait_until(&name, 1, position as usize).await?;
    }
    let theirs = b.mutex(&name);
    let waiter =
        fixture.start_waiter(&name, CRASHED as usize + 1, async move { theirs.lock().await }).await?;
    process.kill().await?;
    let released = Instant::now();
    guard.release().await?;
    let next = soon(waiter).await???;
    let each = FIRST_LEASE.max(fixture.capability().min_lease);
    assert!(released.elapsed() < CRASHED * each, "each crashed waiter cost a lease");
    Ok(next.release().await?)
}

async fn a_dead_process_frees_nothing_of_others(fixture: &Fixture) -> Outcome {
    let (keeper, name) = (fixture.keeper().await?, fixture.name("gpu"));
    let process = fixture.killable_keeper().await?;
    let theirs = process.keeper.semaphore(&name, 2).lease(fixture.renewed_lease()).acquire().await?;
    let ours = keeper.semaphore(&name, 2).acquire().await?;
    process.kill().await?;
    fixture.wait_until(&name, 1, 0).await?;
    assert!(ours.is_held() && !theirs.is_held());
    let view = fixture.view(&name).await?.expect("one is held");
    assert_eq!(view.holders[0].token, ours.token());
    Ok(ours.release().await?)
}
