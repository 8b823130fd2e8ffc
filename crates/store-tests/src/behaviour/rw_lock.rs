//! Read-write lock: readers together, writers alone, nobody starved, and no upgrade that hangs.

use std::sync::{
    Arc,
    atomic::{AtomicI64, Ordering},
};

use lockkeeper_core::{AcquireError, LeaseError};
use tokio::task::{JoinSet, yield_now};

use super::{
    Fixture, Outcome,
    fixture::{BRIEFLY, soon},
    tests,
};

tests! {
    readers_share_it,
    a_writer_is_alone,
    a_waiting_writer_stops_later_readers,
    readers_in_line_enter_together,
    a_writer_becomes_a_reader_with_nobody_in_between,
    a_reentered_writer_cannot_become_a_reader,
    an_upgrade_is_refused_at_once,
    two_upgrades_do_not_wait_for_each_other,
    a_mutex_of_that_name_is_the_write_side,
    limits_of_waiting_hold_on_both_sides,
    a_dead_reader_lets_the_writer_in,
    readers_and_writers_never_mix,
}

async fn readers_share_it(fixture: &Fixture) -> Outcome {
    let ((a, b), name) = (fixture.two_keepers().await?, fixture.name("catalog"));
    let (one, two) = (a.rw_lock(&name).read().await?, soon(a.rw_lock(&name).read()).await??);
    let three = b.rw_lock(&name).try_read().await?.expect("readers share it");
    assert!(one.token() < two.token() && two.token() < three.token());
    assert_eq!(fixture.view(&name).await?.expect("it is held").holders.len(), 3);
    one.release().await?;
    assert!(b.rw_lock(&name).try_write().await?.is_none(), "two still read");
    two.release().await?;
    three.release().await?;
    Ok(b.rw_lock(&name).try_write().await?.expect("it is free").release().await?)
}

async fn a_writer_is_alone(fixture: &Fixture) -> Outcome {
    let ((a, b), name) = (fixture.two_keepers().await?, fixture.name("catalog"));
    let writer = a.rw_lock(&name).write().await?;
    for keeper in [&a, &b] {
        assert!(keeper.rw_lock(&name).try_read().await?.is_none());
        assert!(keeper.rw_lock(&name).try_write().await?.is_none());
    }
    writer.release().await?;
    Ok(b.rw_lock(&name).try_read().await?.expect("it is free").release().await?)
}

async fn a_waiting_writer_stops_later_readers(fixture: &Fixture) -> Outcome {
    let ((a, b), name) = (fixture.two_keepers().await?, fixture.name("catalog"));
    let reader = a.rw_lock(&name).read().await?;
    let (writes, reads) = (b.rw_lock(&name), a.rw_lock(&name));
    let writer = fixture.start_waiter(&name, 1, async move { writes.write().await }).await?;
    assert!(b.rw_lock(&name).try_read().await?.is_none(), "a writer waits");
    let later = fixture.start_waiter(&name, 2, async move { reads.read().await }).await?;
    reader.release().await?;
    let writer = soon(writer).await???;
    assert!(!later.is_finished(), "a reader beside the writer");
    writer.release().await?;
    Ok(soon(later).await???.release().await?)
}

async fn readers_in_line_enter_together(fixture: &Fixture) -> Outcome {
    let ((a, b), name) = (fixture.two_keepers().await?, fixture.name("catalog"));
    let writer = a.rw_lock(&name).write().await?;
    let mut readers = Vec::new();
    for (place, keeper) in [&a, &b, &a].into_iter().enumerate() {
        let lock = keeper.rw_lock(&name);
        readers.push(fixture.start_waiter(&name, place + 1, async move { lock.read().await }).await?);
    }
    writer.release().await?;
    let mut guards = Vec::new();
    for reader in readers {
        guards.push(soon(reader).await???);
    }
    assert!(guards.iter().all(|guard| guard.is_held()));
    for guard in guards {
        guard.release().await?;
    }
    Ok(())
}

async fn a_writer_becomes_a_reader_with_nobody_in_between(fixture: &Fixture) -> Outcome {
    let ((a, b), name) = (fixture.two_keepers().await?, fixture.name("catalog"));
    let writer = a.rw_lock(&name).write().await?;
    let (reads, writes) = (b.rw_lock(&name), b.rw_lock(&name));
    let reader = fixture.start_waiter(&name, 1, async move { reads.read().await }).await?;
    let next = fixture.start_waiter(&name, 2, async move { writes.write().await }).await?;
    let token = writer.token();
    let lowered = writer.downgrade().await?;
    assert!(lowered.token() == token && lowered.is_held());
    let reader = soon(reader).await???;
    assert!(lowered.is_held() && !next.is_finished());
    lowered.release().await?;
    reader.release().await?;
    let next = soon(next).await???;
    assert!(next.token() > token);
    Ok(next.release().await?)
}

async fn a_reentered_writer_cannot_become_a_reader(fixture: &Fixture) -> Outcome {
    let (keeper, name) = (fixture.keeper().await?, fixture.name("catalog"));
    let writer = keeper.rw_lock(&name).write().await?;
    let deeper = writer.reenter()?;
    let error = writer.downgrade().await.expect_err("the other guard would still write");
    assert!(matches!(error.error(), LeaseError::Invalid { .. }), "{error}");
    assert!(error.to_string().contains("release the re-entered guards first"), "{error}");
    assert!(deeper.is_held() && keeper.rw_lock(&name).try_read().await?.is_none());
    Ok(deeper.release().await?)
}

async fn an_upgrade_is_refused_at_once(fixture: &Fixture) -> Outcome {
    let (keeper, name) = (fixture.keeper().await?, fixture.name("catalog"));
    let (lock, owner) = (keeper.rw_lock(&name), keeper.owner());
    let reader = lock.read_as(&owner).await?;
    let error = soon(lock.write_as(&owner)).await?.expect_err("it would wait for itself");
    assert!(matches!(&error, AcquireError::UpgradeRefused { .. }), "{error}");
    let text = error.to_string();
    assert!(text.contains(&name) && text.contains("release that guard first"), "{text}");
    fixture.wait_until(&name, 1, 0).await?;
    assert!(reader.is_held());
    reader.release().await?;
    Ok(soon(lock.write_as(&owner)).await??.release().await?)
}

async fn two_upgrades_do_not_wait_for_each_other(fixture: &Fixture) -> Outcome {
    let ((a, b), name) = (fixture.two_keepers().await?, fixture.name("catalog"));
    let (ours, theirs) = (a.owner(), b.owner());
    let readers = (a.rw_lock(&name).read_as(&ours).await?, b.rw_lock(&name).read_as(&theirs).await?);
    for (keeper, owner) in [(&a, &ours), (&b, &theirs)] {
        let error = soon(keeper.rw_lock(&name).write_as(owner)).await?.expect_err("refused");
        assert!(matches!(&error, AcquireError::UpgradeRefused { .. }), "{error}");
    }
    readers.0.release().await?;
    Ok(readers.1.release().await?)
}

async fn a_mutex_of_that_name_is_the_write_side(fixture: &Fixture) -> Outcome {
    let ((a, b), name) = (fixture.two_keepers().await?, fixture.name("catalog"));
    let reader = a.rw_lock(&name).read().await?;
    assert!(b.mutex(&name).try_lock().await?.is_none());
    reader.release().await?;
    let guard = b.mutex(&name).try_lock().await?.expect("it is free");
    assert!(a.rw_lock(&name).try_read().await?.is_none());
    Ok(guard.release().await?)
}

async fn limits_of_waiting_hold_on_both_sides(fixture: &Fixture) -> Outcome {
    let ((a, b), name) = (fixture.two_keepers().await?, fixture.name("catalog"));
    let writer = a.rw_lock(&name).write().await?;
    let error = b.rw_lock(&name).read_within(BRIEFLY).await.expect_err("it is written");
    assert!(matches!(error, AcquireError::TimedOut { .. }), "{error}");
    let error = b.rw_lock(&name).write_within(BRIEFLY).await.expect_err("it is written");
    assert!(matches!(error, AcquireError::TimedOut { .. }), "{error}");
    fixture.wait_until(&name, 1, 0).await?;
    Ok(writer.release().await?)
}

async fn a_dead_reader_lets_the_writer_in(fixture: &Fixture) -> Outcome {
    let (keeper, name) = (fixture.keeper().await?, fixture.name("catalog"));
    let process = fixture.killable_keeper().await?;
    let reader = process.keeper.rw_lock(&name).lease(fixture.renewed_lease()).read().await?;
    let lock = keeper.rw_lock(&name);
    let writer = fixture.start_waiter(&name, 1, async move { lock.write().await }).await?;
    process.kill().await?;
    let writer = soon(writer).await???;
    assert!(!reader.is_held(), "a reader beside the writer");
    Ok(writer.release().await?)
}

async fn readers_and_writers_never_mix(fixture: &Fixture) -> Outcome {
    const WRITING: i64 = -1;
    let name = fixture.name("catalog");
    // How many read, or that one writes.
    let inside = Arc::new(AtomicI64::new(0));
    let mut work = JoinSet::new();
    for _ in 0..2 {
        let keeper = fixture.keeper().await?;
        for task in 0..fixture.repeats(6, 3) {
            let (lock, inside, rounds) = (keeper.rw_lock(&name), inside.clone(), fixture.repeats(5, 2));
            work.spawn(async move {
                for _ in 0..rounds {
                    if task % 3 == 0 {
                        let guard = lock.write().await?;
                        assert_eq!(inside.swap(WRITING, Ordering::SeqCst), 0, "a writer is alone");
                        yield_now().await;
                        assert_eq!(inside.swap(0, Ordering::SeqCst), WRITING, "a writer is alone");
                        guard.release().await?;
                    } else {
                        let guard = lock.read().await?;
                        assert!(inside.fetch_add(1, Ordering::SeqCst) >= 0, "a reader beside a writer");
                        yield_now().await;
                        assert!(inside.fetch_sub(1, Ordering::SeqCst) >= 1, "a reader beside a writer");
                        guard.release().await?;
                    }
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
