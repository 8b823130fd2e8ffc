//! A keeper that is used from another runtime than the one it was made in.

use std::sync::mpsc;

use lockkeeper_core::Keeper;
use tokio::{
    runtime::{Builder, Runtime},
    sync::oneshot,
    task::spawn_blocking,
};

use super::{Failure, Fixture, Outcome, fixture::soon, tests};

tests! {
    a_keeper_outlives_the_runtime_it_was_made_in,
    a_runtime_that_is_not_driven_keeps_nobody_waiting_for_ever,
    a_guard_dropped_before_long_work_is_given_back,
}

/// A keeper made, and used once, in a runtime that nobody drives afterwards.
async fn keeper_from_elsewhere(fixture: &Fixture, name: &str) -> Result<(Keeper, Runtime), Failure> {
    let (builder, name) = (fixture.builder(), name.to_owned());
    let made = spawn_blocking(move || {
        let elsewhere = Builder::new_current_thread().enable_all().build()?;
        let keeper = elsewhere.block_on(async {
            let keeper = builder.connect().await?;
            keeper.mutex(&name).lock().await?.release().await?;
            Ok::<_, Failure>(keeper)
        })?;
        Ok::<_, Failure>((keeper, elsewhere))
    });
    made.await?
}

/// Takes the lock, has somebody else wait for it, and gives it back.
async fn works(fixture: &Fixture, keeper: &Keeper, name: &str) -> Outcome {
    let other = fixture.keeper().await?;
    let guard = soon(keeper.mutex(name).lock()).await??;
    let mutex = other.mutex(name);
    let waiter = tokio::spawn(async move { mutex.lock().await });
    fixture.wait_until(name, 1, 1).await?;
    guard.release().await?;
    let guard = soon(waiter).await???;
    let mutex = keeper.mutex(name);
    let waiter = tokio::spawn(async move { mutex.lock().await });
    fixture.wait_until(name, 1, 1).await?;
    guard.release().await?;
    soon(waiter).await???.release().await?;
    Ok(())
}

async fn a_keeper_outlives_the_runtime_it_was_made_in(fixture: &Fixture) -> Outcome {
    let name = fixture.name("stock");
    let (keeper, elsewhere) = keeper_from_elsewhere(fixture, &name).await?;
    spawn_blocking(move || drop(elsewhere)).await?;
    works(fixture, &keeper, &name).await
}

async fn a_runtime_that_is_not_driven_keeps_nobody_waiting_for_ever(fixture: &Fixture) -> Outcome {
    let name = fixture.name("stock");
    let (keeper, elsewhere) = keeper_from_elsewhere(fixture, &name).await?;
    let outcome = works(fixture, &keeper, &name).await;
    spawn_blocking(move || drop(elsewhere)).await?;
    outcome
}

/// A dropped guard's release travels with the runtime that dropped it, which here does something else for as long as
/// somebody waits for the lock.
async fn a_guard_dropped_before_long_work_is_given_back(fixture: &Fixture) -> Outcome {
    let name = fixture.name("stock");
    let (keeper, elsewhere) = keeper_from_elsewhere(fixture, &name).await?;
    let ((waits, somebody_waits), (done, is_done)) = (oneshot::channel::<()>(), mpsc::channel::<()>());
    let mutex = keeper.mutex(&name);
    let long_work = spawn_blocking(move || {
        elsewhere.block_on(async {
            let guard = mutex.lock().await?;
            somebody_waits.await?;
            drop(guard);
            is_done.recv()?;
            Ok::<_, Failure>(())
        })
    });
    fixture.wait_until(&name, 1, 0).await?;
    let theirs = fixture.keeper().await?.mutex(&name);
    let waiter = fixture.start_waiter(&name, 1, async move { theirs.lock().await }).await?;
    waits.send(()).expect("the other waits for it");
    let guard = soon(waiter).await???;
    done.send(())?;
    long_work.await??;
    Ok(guard.release().await?)
}
