//! Fences: the resource rejects a write that comes too late, and no other.

use lockkeeper_core::{FenceError, Lost, Token};

use super::{Failure, Fixture, Outcome, fixture::soon, tests};

tests! {
    an_older_token_is_rejected_everywhere,
    a_holder_that_lost_its_lock_is_rejected,
    readers_do_not_reject_each_other,
    permits_do_not_reject_each_other if |can| can.counts_permits,
    a_writer_that_became_a_reader_shares,
    fences_are_apart_from_each_other_and_from_locks,
}

/// The highest floor that a rejection names.
fn stale(rejected: Result<(), FenceError>, name: &str) -> Result<Token, Failure> {
    let error = rejected.expect_err("a later holder has been here");
    assert!(error.to_string().contains(name) && error.to_string().contains("stale"), "{error}");
    match error {
        FenceError::Stale { highest, .. } => Ok(highest),
        other => Err(other.into()),
    }
}

async fn an_older_token_is_rejected_everywhere(fixture: &Fixture) -> Outcome {
    let ((a, b), name) = (fixture.two_keepers().await?, fixture.name("stock"));
    let older = a.mutex(&name).lock().await?;
    let old = older.token();
    a.fence(&name).admit(old).await?;
    older.release().await?;
    let newer = b.mutex(&name).lock().await?;
    a.fence(&name).admit(old).await?;
    b.fence(&name).admit(newer.token()).await?;
    assert_eq!(stale(a.fence(&name).admit(old).await, &name)?, newer.token());
    assert_eq!(stale(b.fence(&name).admit(old).await, &name)?, newer.token());
    b.fence(&name).admit(newer.token()).await?;
    Ok(newer.release().await?)
}

/// A holder that was paused past its lease writes again. The fence rejects it, which a lock alone cannot do.
async fn a_holder_that_lost_its_lock_is_rejected(fixture: &Fixture) -> Outcome {
    let ((a, b), name) = (fixture.two_keepers().await?, fixture.name("stock"));
    let paused = a.mutex(&name).expires_after(fixture.short_lease()).lock().await?;
    a.fence(&name).admit(paused.token()).await?;
    let guard = soon(b.mutex(&name).lock()).await??;
    b.fence(&name).admit(guard.token()).await?;
    stale(a.fence(&name).admit(paused.token()).await, &name)?;
    assert_eq!(soon(paused.lost()).await?, Lost::Expired);
    Ok(guard.release().await?)
}

async fn readers_do_not_reject_each_other(fixture: &Fixture) -> Outcome {
    let ((a, b), name) = (fixture.two_keepers().await?, fixture.name("catalog"));
    let (one, two) = (a.rw_lock(&name).read().await?, b.rw_lock(&name).read().await?);
    assert_eq!((one.floor(), two.floor()), (one.token(), one.token()));
    let fence = a.fence(&name);
    fence.admit_shared(two.token(), two.floor()).await?;
    fence.admit_shared(one.token(), one.floor()).await?;
    fence.admit_shared(two.token(), two.floor()).await?;
    let (late, floor) = (one.token(), one.floor());
    one.release().await?;
    two.release().await?;
    let writer = b.rw_lock(&name).write().await?;
    assert_eq!(writer.floor(), writer.token(), "exclusive");
    fence.admit(writer.token()).await?;
    assert_eq!(stale(fence.admit_shared(late, floor).await, &name)?, writer.token());
    Ok(writer.release().await?)
}

async fn permits_do_not_reject_each_other(fixture: &Fixture) -> Outcome {
    let ((a, b), name) = (fixture.two_keepers().await?, fixture.name("gpu"));
    let (ours, theirs) = (a.semaphore(&name, 2), b.semaphore(&name, 2));
    let (one, two) = (ours.acquire().await?, theirs.acquire().await?);
    let fence = a.fence(&name);
    fence.admit_shared(two.token(), two.floor()).await?;
    fence.admit_shared(one.token(), one.floor()).await?;
    let gone = one.token();
    one.release().await?;
    let three = ours.acquire().await?;
    assert_eq!(three.floor(), two.token(), "the smallest token that still holds");
    fence.admit_shared(three.token(), three.floor()).await?;
    fence.admit_shared(two.token(), two.floor()).await?;
    assert_eq!(stale(fence.admit_shared(gone, gone).await, &name)?, two.token());
    two.release().await?;
    Ok(three.release().await?)
}

async fn a_writer_that_became_a_reader_shares(fixture: &Fixture) -> Outcome {
    let ((a, b), name) = (fixture.two_keepers().await?, fixture.name("catalog"));
    let writer = a.rw_lock(&name).write().await?;
    let fence = a.fence(&name);
    fence.admit(writer.token()).await?;
    let lowered = writer.downgrade().await?;
    let reader = b.rw_lock(&name).read().await?;
    fence.admit_shared(reader.token(), reader.floor()).await?;
    fence.admit_shared(lowered.token(), lowered.floor()).await?;
    lowered.release().await?;
    Ok(reader.release().await?)
}

async fn fences_are_apart_from_each_other_and_from_locks(fixture: &Fixture) -> Outcome {
    let (keeper, name, other) = (fixture.keeper().await?, fixture.name("stock"), fixture.name("Stock"));
    let old = keeper.mutex(&name).lock().await?;
    let token = old.token();
    old.release().await?;
    let guard = keeper.mutex(&name).lock().await?;
    keeper.fence(&name).admit(guard.token()).await?;
    keeper.fence(&other).admit(token).await?;
    assert!(guard.is_held());
    guard.release().await?;
    stale(keeper.fence(&name).admit(token).await, &name).map(drop)
}
