//! Waiting: those who give up leave nothing behind, and the dead are passed.

use std::time::{Duration, Instant};

use lockkeeper_core::model::FIRST_LEASE;
use tokio::time::timeout;

use super::{Outcome, Stage, stage::soon, tests};

tests! {
    who_gives_up_leaves_the_line,
    who_gives_up_lets_the_next_one_pass,
    giving_up_at_any_moment_of_a_wait_leaves_nothing,
    giving_up_at_any_moment_of_a_grant_leaves_nothing,
    giving_up_in_a_crowd_of_one_process_leaves_nothing,
    a_waiter_keeps_what_it_was_granted,
    a_waiter_gets_a_whole_fixed_lease,
    a_dead_holder_is_passed,
    a_dead_waiter_is_passed,
    a_dead_process_in_line_costs_one_lease,
    a_dead_process_frees_nothing_of_others,
}

async fn who_gives_up_leaves_the_line(stage: &Stage) -> Outcome {
    let ((a, b), name) = (stage.two().await?, stage.name("stock"));
    let guard = a.mutex(&name).lock().await?;
    let theirs = b.mutex(&name);
    let waiter = stage.line_up(&name, 1, async move { theirs.lock().await }).await?;
    waiter.abort();
    stage.until(&name, 1, 0).await?;
    assert!(guard.is_held());
    Ok(guard.release().await?)
}

async fn who_gives_up_lets_the_next_one_pass(stage: &Stage) -> Outcome {
    let ((a, b), name) = (stage.two().await?, stage.name("stock"));
    let guard = a.mutex(&name).lock().await?;
    let (theirs, third) = (b.mutex(&name), stage.keeper().await?.mutex(&name));
    let first = stage.line_up(&name, 1, async move { theirs.lock().await }).await?;
    let second = stage.line_up(&name, 2, async move { third.lock().await }).await?;
    first.abort();
    stage.until(&name, 1, 1).await?;
    guard.release().await?;
    Ok(soon(second).await???.release().await?)
}

async fn giving_up_at_any_moment_of_a_wait_leaves_nothing(stage: &Stage) -> Outcome {
    let ((a, b), name) = (stage.two().await?, stage.name("stock"));
    let guard = a.mutex(&name).lock().await?;
    let mutex = b.mutex(&name).fifo();
    for moment in 0..40 {
        let waited = timeout(Duration::from_micros(50 * moment), mutex.lock()).await;
        assert!(waited.is_err(), "granted while another process holds it");
    }
    stage.until(&name, 1, 0).await?;
    Ok(guard.release().await?)
}

async fn giving_up_at_any_moment_of_a_grant_leaves_nothing(stage: &Stage) -> Outcome {
    let (keeper, name) = (stage.keeper().await?, stage.name("stock"));
    let (mutex, permits) = (keeper.mutex(&name), keeper.semaphore(&stage.name("gpu"), 2));
    for moment in 0..40 {
        let moment = Duration::from_micros(25 * moment);
        drop(timeout(moment, mutex.lock()).await);
        drop(timeout(moment, mutex.try_lock()).await);
        drop(timeout(moment, permits.acquire_many(2)).await);
    }
    stage.until(&name, 0, 0).await?;
    Ok(soon(mutex.lock()).await??.release().await?)
}

async fn giving_up_in_a_crowd_of_one_process_leaves_nothing(stage: &Stage) -> Outcome {
    let ((a, b), name) = (stage.two().await?, stage.name("stock"));
    let guard = a.mutex(&name).lock().await?;
    // They share one place in the store's line: when its owner gives up, the next takes over.
    let mut crowd = Vec::new();
    for _ in 0..4 {
        let mutex = b.mutex(&name);
        crowd.push(tokio::spawn(async move { mutex.lock().await }));
    }
    stage.until(&name, 1, 1).await?;
    let last = crowd.pop().expect("there are four");
    for waiter in crowd {
        waiter.abort();
    }
    stage.until(&name, 1, 1).await?;
    guard.release().await?;
    Ok(soon(last).await???.release().await?)
}

/// A grant made by the releaser has a short first lease until its owner is heard of.
async fn a_waiter_keeps_what_it_was_granted(stage: &Stage) -> Outcome {
    let ((a, b), name) = (stage.two().await?, stage.name("stock"));
    let guard = a.mutex(&name).lock().await?;
    let theirs = b.mutex(&name);
    let waiter = stage.line_up(&name, 1, async move { theirs.lock().await }).await?;
    guard.release().await?;
    let guard = soon(waiter).await???;
    let lost = timeout(FIRST_LEASE * 3 / 2, guard.lost()).await;
    assert!(lost.is_err() && guard.is_held(), "lost although it is in use: {lost:?}");
    assert!(a.mutex(&name).try_lock().await?.is_none(), "given away although it is in use");
    Ok(guard.release().await?)
}

/// Nobody renews a fixed lease, but the first, short one is still made whole.
async fn a_waiter_gets_a_whole_fixed_lease(stage: &Stage) -> Outcome {
    let ((a, b), name) = (stage.two().await?, stage.name("stock"));
    let guard = a.mutex(&name).lock().await?;
    let theirs = b.mutex(&name).expires_after(FIRST_LEASE * 3);
    let waiter = stage.line_up(&name, 1, async move { theirs.lock().await }).await?;
    guard.release().await?;
    let guard = soon(waiter).await???;
    let lost = timeout(FIRST_LEASE * 3 / 2, guard.lost()).await;
    assert!(lost.is_err() && guard.is_held(), "lost before its lease was over: {lost:?}");
    assert!(a.mutex(&name).try_lock().await?.is_none(), "given away before its lease was over");
    Ok(guard.release().await?)
}

async fn a_dead_holder_is_passed(stage: &Stage) -> Outcome {
    let (keeper, name) = (stage.keeper().await?, stage.name("stock"));
    let process = stage.process().await?;
    let guard = process.keeper.mutex(&name).lease(stage.renewed()).lock().await?;
    let token = guard.token();
    let mutex = keeper.mutex(&name);
    let waiter = stage.line_up(&name, 1, async move { mutex.lock().await }).await?;
    process.kill().await?;
    let next = soon(waiter).await???;
    assert!(next.token() > token);
    assert!(!guard.is_held(), "two believe that they hold it");
    Ok(next.release().await?)
}

async fn a_dead_waiter_is_passed(stage: &Stage) -> Outcome {
    let ((a, b), name) = (stage.two().await?, stage.name("stock"));
    let guard = a.mutex(&name).lock().await?;
    let process = stage.process().await?;
    let doomed = process.keeper.mutex(&name).lease(stage.renewed());
    drop(process.run(async move { doomed.lock().await.map(drop) }));
    stage.until(&name, 1, 1).await?;
    let theirs = b.mutex(&name);
    let waiter = stage.line_up(&name, 2, async move { theirs.lock().await }).await?;
    process.kill().await?;
    guard.release().await?;
    Ok(soon(waiter).await???.release().await?)
}

async fn a_dead_process_in_line_costs_one_lease(stage: &Stage) -> Outcome {
    const PLACES: u32 = 4;
    let ((a, b), name) = (stage.two().await?, stage.name("stock"));
    let guard = a.mutex(&name).lock().await?;
    let process = stage.process().await?;
    for place in 1..=PLACES {
        let doomed = process.keeper.mutex(&name).fifo();
        drop(process.run(async move { doomed.lock().await.map(drop) }));
        stage.until(&name, 1, place as usize).await?;
    }
    let theirs = b.mutex(&name);
    let waiter = stage.line_up(&name, PLACES as usize + 1, async move { theirs.lock().await }).await?;
    process.kill().await?;
    let released = Instant::now();
    guard.release().await?;
    let next = soon(waiter).await???;
    let each = FIRST_LEASE.max(stage.can().min_lease);
    assert!(released.elapsed() < PLACES * each, "each place of the dead cost a lease");
    Ok(next.release().await?)
}

async fn a_dead_process_frees_nothing_of_others(stage: &Stage) -> Outcome {
    let (keeper, name) = (stage.keeper().await?, stage.name("gpu"));
    let process = stage.process().await?;
    let theirs = process.keeper.semaphore(&name, 2).lease(stage.renewed()).acquire().await?;
    let ours = keeper.semaphore(&name, 2).acquire().await?;
    process.kill().await?;
    stage.until(&name, 1, 0).await?;
    assert!(ours.is_held() && !theirs.is_held());
    let view = stage.view(&name).await?.expect("one is held");
    assert_eq!(view.holders[0].token, ours.token());
    Ok(ours.release().await?)
}
