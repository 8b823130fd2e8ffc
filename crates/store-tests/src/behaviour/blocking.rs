//! The same primitives from threads, also from threads that belong to a runtime.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::Duration,
};

use lockkeeper_core::{AcquireError, LatchState, Lost, blocking::Keeper, store::Eviction};
use tokio::{runtime::Builder, task::spawn_blocking};

use super::{
    Failure, Fixture, Outcome,
    fixture::{BRIEFLY, soon},
    tests,
};

tests! {
    threads_exclude_each_other,
    a_thread_waits_in_line,
    every_lock_works_from_a_thread if |can| can.counts_permits,
    latches_elections_and_fences_work_from_a_thread if |can| can.counts_permits && can.fences,
    operators_work_from_a_thread,
    a_lease_passes_between_threads if |can| can.detachable,
    it_works_inside_of_a_runtime,
    it_works_inside_of_a_runtime_of_one_thread,
    a_loss_is_told_to_a_thread,
}

/// A keeper for threads; connecting waits, so it is done on one.
async fn keeper(fixture: &Fixture) -> Result<Keeper, Failure> {
    let builder = fixture.builder();
    Ok(spawn_blocking(move || Keeper::build(builder)).await??)
}

/// Runs `work` on a thread outside of any runtime.
async fn on_a_thread(work: impl FnOnce() -> Outcome + Send + 'static) -> Outcome {
    let (sender, done) = tokio::sync::oneshot::channel();
    thread::spawn(move || sender.send(work()).ok());
    soon(done).await?.expect("the thread panicked; its message is above")
}

async fn threads_exclude_each_other(fixture: &Fixture) -> Outcome {
    let name = fixture.name("counter");
    let (threads, rounds) = (fixture.repeats(4, 2), fixture.repeats(10, 3));
    let counter = Arc::new(AtomicU64::new(0));
    let mut work = Vec::new();
    for _ in 0..2 {
        let keeper = keeper(fixture).await?;
        for _ in 0..threads {
            let (mutex, counter) = (keeper.mutex(&name), counter.clone());
            work.push(spawn_blocking(move || {
                for _ in 0..rounds {
                    let guard = mutex.lock()?;
                    let seen = counter.load(Ordering::Relaxed);
                    thread::yield_now();
                    counter.store(seen + 1, Ordering::Relaxed);
                    guard.release()?;
                }
                Ok::<_, lockkeeper_core::Error>(())
            }));
        }
    }
    for work in work {
        work.await??;
    }
    assert_eq!(counter.load(Ordering::Relaxed), u64::from(2 * threads * rounds));
    Ok(())
}

async fn a_thread_waits_in_line(fixture: &Fixture) -> Outcome {
    let (ours, theirs, name) = (fixture.keeper().await?, keeper(fixture).await?, fixture.name("stock"));
    let guard = ours.mutex(&name).lock().await?;
    let mutex = theirs.mutex(&name);
    let waiter = spawn_blocking(move || mutex.lock());
    fixture.wait_until(&name, 1, 1).await?;
    guard.release().await?;
    let guard = soon(waiter).await???;
    assert!(guard.is_held() && guard.name().as_str() == name);
    // Dropped in a runtime, without waiting.
    drop(guard);
    fixture.wait_until(&name, 0, 0).await
}

async fn every_lock_works_from_a_thread(fixture: &Fixture) -> Outcome {
    let (ours, theirs) = (keeper(fixture).await?, keeper(fixture).await?);
    let [stock, catalog, gpu, sharded] =
        ["stock", "catalog", "gpu", "sharded"].map(|what| fixture.name(what));
    on_a_thread(move || {
        let mutex = ours.mutex(&stock).with(|mutex| mutex.lease(Duration::from_secs(20)).fifo());
        let owner = ours.owner();
        let guard = mutex.lock_as(&owner)?;
        let again = mutex.lock_as(&owner)?;
        assert_eq!(guard.token(), again.token());
        assert!(theirs.mutex(&stock).try_lock()?.is_none());
        let error = theirs.mutex(&stock).lock_within(BRIEFLY).expect_err("it is held");
        assert!(matches!(error, AcquireError::TimedOut { .. }), "{error}");
        guard.extend(Duration::from_secs(25))?;
        let deeper = guard.reenter()?;
        for guard in [guard, again, deeper] {
            guard.release()?;
        }
        theirs.mutex(&stock).try_lock()?.expect("it is free").release()?;

        let write = ours.rw_lock(&catalog).write()?;
        assert!(theirs.rw_lock(&catalog).try_read()?.is_none());
        let read = write.downgrade()?;
        theirs.rw_lock(&catalog).read()?.release()?;
        assert!(theirs.rw_lock(&catalog).try_write()?.is_none());
        read.release()?;

        let permits = ours.semaphore(&gpu, 3).acquire_many(2)?;
        assert!(theirs.semaphore(&gpu, 3).try_acquire_many(2)?.is_none());
        theirs.semaphore(&gpu, 3).acquire()?.release()?;
        permits.release()?;

        let (one, two) = (ours.segment(&sharded, 8, "a"), ours.mutex(&stock));
        let both = ours.all([&one, &two]).lock()?;
        assert!(both.is_held() && both.tokens().len() == 2);
        assert!(theirs.all([&theirs.mutex(&stock)]).try_lock()?.is_none());
        Ok(both.release()?)
    })
    .await
}

async fn latches_elections_and_fences_work_from_a_thread(fixture: &Fixture) -> Outcome {
    let (ours, theirs) = (keeper(fixture).await?, keeper(fixture).await?);
    let [import, scheduler] = ["import", "scheduler"].map(|what| fixture.name(what));
    on_a_thread(move || {
        let latch = ours.latch(&import);
        latch.create(2)?;
        assert!(latch.wait_within(BRIEFLY).is_err());
        let other = theirs.latch(&import);
        let waiter = thread::spawn(move || other.wait());
        assert_eq!(latch.count_down()?, 1);
        assert_eq!(latch.count_down()?, 0);
        waiter.join().expect("a wait never panics")?;
        latch.reset()?;
        assert_eq!(latch.state()?, Some(LatchState { remaining: 2, initial: 2 }));
        latch.delete()?;

        let mut changes = theirs.election(&scheduler).observe();
        assert_eq!(changes.next().expect("the state when asked")?, None);
        let leads = ours.election(&scheduler).campaign("ours")?;
        assert!(theirs.election(&scheduler).try_campaign("theirs")?.is_none());
        let seen = changes.next().expect("a change")?.expect("somebody leads");
        assert_eq!((seen.value.as_str(), seen.token), ("ours", leads.token()));
        let old = leads.token();
        leads.release()?;
        let leads = theirs.election(&scheduler).campaign("theirs")?;
        ours.fence(&scheduler).admit(leads.token())?;
        assert!(ours.fence(&scheduler).admit(old).is_err());
        Ok(leads.release()?)
    })
    .await
}

async fn operators_work_from_a_thread(fixture: &Fixture) -> Outcome {
    let (ours, theirs, name) = (keeper(fixture).await?, keeper(fixture).await?, fixture.name("report"));
    on_a_thread(move || {
        let guard = ours.mutex(&name).lock()?;
        let view = theirs.inspect(&name)?.expect("it is held");
        let page = theirs.list(&name, None, 10)?;
        assert_eq!((page.resources.len(), &page.resources[0].name), (1, &view.name));
        let holder = &view.holders[0];
        assert!(theirs.evict(&name, holder.contender, holder.token, Eviction::Immediate)?);
        assert!(guard.extend(Duration::from_secs(20)).is_err(), "it was taken back");
        assert!(!guard.is_held());
        let guard = theirs.mutex(&name).lock()?;
        theirs.close();
        assert_eq!(guard.lost_within(Duration::from_secs(20)), Some(Lost::Closed));
        assert_eq!(ours.inspect(&name)?, None);
        assert!(ours.capability().group_limit >= 1);
        Ok(())
    })
    .await
}

async fn a_lease_passes_between_threads(fixture: &Fixture) -> Outcome {
    let (ours, theirs, name) = (keeper(fixture).await?, keeper(fixture).await?, fixture.name("deploy"));
    on_a_thread(move || {
        let guard = ours.mutex(&name).with(|mutex| mutex.detachable()).lock()?;
        let lease = guard.into_lease()?;
        ours.close();
        let guard = theirs.adopt(&lease)?;
        assert_eq!(guard.token(), lease.token());
        Ok(guard.release()?)
    })
    .await
}

/// It blocks the worker while it waits, but it does not panic as a nested runtime would.
async fn it_works_inside_of_a_runtime(fixture: &Fixture) -> Outcome {
    let name = fixture.name("stock");
    let keeper = Keeper::build(fixture.builder())?;
    let guard = keeper.mutex(&name).lock()?;
    assert!(keeper.mutex(&name).try_lock()?.is_none());
    guard.release()?;
    drop(keeper.mutex(&name).lock()?);
    keeper.close();
    drop(keeper);
    fixture.wait_until(&name, 0, 0).await
}

async fn it_works_inside_of_a_runtime_of_one_thread(fixture: &Fixture) -> Outcome {
    let (builder, name) = (fixture.builder(), fixture.name("stock"));
    on_a_thread(move || {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(async move {
            let keeper = Keeper::build(builder)?;
            let guard = keeper.mutex(&name).lock()?;
            assert!(guard.is_held());
            guard.release()?;
            drop(keeper);
            Ok(())
        })
    })
    .await
}

async fn a_loss_is_told_to_a_thread(fixture: &Fixture) -> Outcome {
    let (keeper, name, lease) = (keeper(fixture).await?, fixture.name("stock"), fixture.short_lease());
    on_a_thread(move || {
        let guard = keeper.mutex(&name).with(|mutex| mutex.expires_after(lease)).lock()?;
        assert_eq!(guard.lost_within(Duration::ZERO), None);
        assert_eq!(guard.lost_within(Duration::from_secs(20)), Some(Lost::Expired));
        assert!(!guard.is_held() && guard.remaining().is_zero() && guard.reenter().is_err());
        assert!(guard.release().is_err());
        Ok(())
    })
    .await
}
