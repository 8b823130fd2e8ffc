//! Re-entrancy: by guard or by explicit owner, counted in the process, never by thread or task.

use std::time::Duration;

use lockkeeper_core::{AcquireError, Guard, Lost};

use super::{Fixture, Outcome, fixture::soon, tests};

tests! {
    a_guard_is_entered_ten_levels_deep,
    an_owner_enters_ten_levels_deep,
    an_owner_enters_from_two_tasks_at_once,
    owners_exclude_each_other,
    an_owner_excludes_plain_locking,
    an_owner_reads_inside_its_own_write,
    a_lost_guard_cannot_be_entered,
    an_owner_that_lost_it_acquires_anew,
    an_owner_tries_and_waits_with_a_limit,
    an_owner_that_tries_does_not_wait_for_itself,
}

/// How deep the tests go.
const LEVELS: usize = 10;

/// Gives the guards back one by one, half of them by dropping: it is free after the last.
async fn free_after_the_last(fixture: &Fixture, name: &str, mut guards: Vec<Guard>) -> Outcome {
    let other = fixture.keeper().await?.mutex(name);
    while let Some(guard) = guards.pop() {
        assert!(other.try_lock().await?.is_none(), "free with {} guards left", guards.len() + 1);
        assert_eq!(guard.holds(), guards.len() + 1);
        if guards.len() % 2 == 0 { guard.release().await? } else { drop(guard) }
    }
    Ok(other.try_lock().await?.expect("free at count zero").release().await?)
}

async fn a_guard_is_entered_ten_levels_deep(fixture: &Fixture) -> Outcome {
    let name = fixture.name("stock");
    let mut guards = vec![fixture.keeper().await?.mutex(&name).lock().await?];
    for level in 0..LEVELS {
        let deeper = guards[level].reenter()?;
        assert_eq!(deeper.token(), guards[0].token());
        guards.push(deeper);
    }
    assert_eq!(fixture.view(&name).await?.expect("it is held").holders.len(), 1, "counted in the process");
    free_after_the_last(fixture, &name, guards).await
}

async fn an_owner_enters_ten_levels_deep(fixture: &Fixture) -> Outcome {
    let (keeper, name) = (fixture.keeper().await?, fixture.name("stock"));
    let owner = keeper.owner();
    let mut guards = Vec::new();
    for _ in 0..LEVELS {
        guards.push(soon(keeper.mutex(&name).lock_as(&owner)).await??);
        assert_eq!(guards.last().map(Guard::token), guards.first().map(Guard::token));
    }
    free_after_the_last(fixture, &name, guards).await
}

async fn an_owner_enters_from_two_tasks_at_once(fixture: &Fixture) -> Outcome {
    let keeper = fixture.keeper().await?;
    let (mutex, owner) = (keeper.mutex(&fixture.name("stock")), keeper.owner());
    let (one, two) = soon(async { tokio::join!(mutex.lock_as(&owner), mutex.lock_as(&owner)) }).await?;
    let (one, two) = (one?, two?);
    assert_eq!(one.token(), two.token());
    one.release().await?;
    assert!(two.is_held() && mutex.try_lock().await?.is_none());
    Ok(two.release().await?)
}

async fn owners_exclude_each_other(fixture: &Fixture) -> Outcome {
    let (keeper, name) = (fixture.keeper().await?, fixture.name("stock"));
    let (mutex, ours, theirs) = (keeper.mutex(&name).fifo(), keeper.owner(), keeper.owner());
    let guard = mutex.lock_as(&ours).await?;
    let again = mutex.clone();
    let waiter = fixture.start_waiter(&name, 1, async move { again.lock_as(&theirs).await }).await?;
    let token = guard.token();
    guard.release().await?;
    let guard = soon(waiter).await???;
    assert!(guard.token() > token);
    Ok(guard.release().await?)
}

async fn an_owner_excludes_plain_locking(fixture: &Fixture) -> Outcome {
    let keeper = fixture.keeper().await?;
    let mutex = keeper.mutex(&fixture.name("stock"));
    let guard = mutex.lock_as(&keeper.owner()).await?;
    assert!(mutex.try_lock().await?.is_none(), "the same task, but not the owner");
    Ok(guard.release().await?)
}

async fn an_owner_reads_inside_its_own_write(fixture: &Fixture) -> Outcome {
    let keeper = fixture.keeper().await?;
    let (lock, owner) = (keeper.rw_lock(&fixture.name("catalog")), keeper.owner());
    let write = lock.write_as(&owner).await?;
    let read = soon(lock.read_as(&owner)).await??;
    let deeper = soon(lock.write_as(&owner)).await??;
    assert!(write.token() == read.token() && read.token() == deeper.token());
    write.release().await?;
    deeper.release().await?;
    assert!(lock.try_read().await?.is_none(), "still written, by the count");
    Ok(read.release().await?)
}

async fn a_lost_guard_cannot_be_entered(fixture: &Fixture) -> Outcome {
    let mutex = fixture.keeper().await?.mutex(&fixture.name("stock")).expires_after(fixture.short_lease());
    let guard = mutex.lock().await?;
    let deeper = guard.reenter()?;
    assert_eq!(soon(guard.lost()).await?, Lost::Expired);
    assert_eq!(guard.reenter().err(), Some(Lost::Expired));
    assert_eq!(deeper.reenter().err(), Some(Lost::Expired));
    assert!(guard.release().await.is_err() && deeper.release().await.is_err(), "both must hear of it");
    Ok(())
}

async fn an_owner_that_lost_it_acquires_anew(fixture: &Fixture) -> Outcome {
    let keeper = fixture.keeper().await?;
    let (mutex, owner) = (keeper.mutex(&fixture.name("stock")), keeper.owner());
    let lost = mutex.clone().expires_after(fixture.short_lease()).lock_as(&owner).await?;
    assert_eq!(soon(lost.lost()).await?, Lost::Expired);
    let anew = soon(mutex.lock_as(&owner)).await??;
    assert!(anew.token() > lost.token());
    assert!(lost.release().await.is_err());
    assert!(anew.is_held(), "the end of the lost guard is not the end of this one");
    Ok(anew.release().await?)
}

/// A limit that passes only after the store has answered: else the error tells of an outage.
const ANSWERED: Duration = Duration::from_secs(1);

async fn an_owner_tries_and_waits_with_a_limit(fixture: &Fixture) -> Outcome {
    let keeper = fixture.keeper().await?;
    let (mutex, ours, theirs) = (keeper.mutex(&fixture.name("stock")), keeper.owner(), keeper.owner());
    let guard = mutex.try_lock_as(&ours).await?.expect("free");
    let deeper = mutex.try_lock_as(&ours).await?.expect("entered again");
    assert_eq!(mutex.lock_as_within(&ours, Duration::ZERO).await?.token(), guard.token());
    assert!(mutex.try_lock_as(&theirs).await?.is_none());
    let late = soon(mutex.lock_as_within(&theirs, ANSWERED)).await?;
    assert!(matches!(late, Err(AcquireError::TimedOut { .. })), "{late:?}");
    guard.release().await?;
    assert!(mutex.try_lock_as(&theirs).await?.is_none(), "one guard is left");
    deeper.release().await?;
    let lock = keeper.rw_lock(&fixture.name("catalog"));
    let read = lock.try_read_as(&ours).await?.expect("free");
    assert!(lock.try_write_as(&theirs).await?.is_none());
    let late = soon(lock.write_as_within(&theirs, ANSWERED)).await?;
    assert!(matches!(late, Err(AcquireError::TimedOut { .. })), "{late:?}");
    let upgrade = lock.try_write_as(&ours).await;
    assert!(matches!(upgrade, Err(AcquireError::UpgradeRefused { .. })), "{upgrade:?}");
    drop(soon(lock.read_as_within(&theirs, fixture.renewed_lease())).await??);
    Ok(read.release().await?)
}

/// The owner's first call waits at the store; a second one that only tries, or has a limit, does not wait behind it.
async fn an_owner_that_tries_does_not_wait_for_itself(fixture: &Fixture) -> Outcome {
    let (keeper, name) = (fixture.keeper().await?, fixture.name("stock"));
    let (mutex, owner) = (keeper.mutex(&name), keeper.owner());
    let held = fixture.keeper().await?.mutex(&name).lock().await?;
    let (waits, as_owner) = (mutex.clone(), owner.clone());
    let waiter = fixture.start_waiter(&name, 1, async move { waits.lock_as(&as_owner).await }).await?;
    assert!(soon(mutex.try_lock_as(&owner)).await??.is_none());
    let late = soon(mutex.lock_as_within(&owner, ANSWERED)).await?;
    assert!(matches!(late, Err(AcquireError::TimedOut { .. })), "{late:?}");
    held.release().await?;
    Ok(soon(waiter).await???.release().await?)
}
