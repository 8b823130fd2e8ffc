//! A keeper that is used from another runtime than the one it was made in.

use std::sync::mpsc;

use lockkeeper_core::Keeper;
use tokio::{
    runtime::{Builder, Runtime},
    sync::oneshot,
    task::spawn_blocking,
};

use super::{Failure, Outcome, Stage, stage::soon, tests};

tests! {
    a_keeper_outlives_the_runtime_it_was_made_in,
    a_runtime_that_is_not_driven_keeps_nobody_waiting_for_ever,
    a_guard_dropped_before_long_work_is_given_back,
}

/// A keeper made, and used once, in a runtime that nobody drives afterwards.
async fn keeper_from_elsewhere(stage: &Stage, name: &str) -> Result<(Keeper, Runtime), Failure> {
    let (builder, name) = (stage.builder(), name.to_owned());
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
async fn works(stage: &Stage, keeper: &Keeper, name: &str) -> Outcome {
    let other = stage.keeper().await?;
    let guard = soon(keeper.mutex(name).lock()).await??;
    let mutex = other.mutex(name);
    let waiter = tokio::spawn(async move { mutex.lock().await });
    stage.until(name, 1, 1).await?;
    guard.release().await?;
    let guard = soon(waiter).await???;
    let mutex = keeper.mutex(name);
    let waiter = tokio::spawn(async move { mutex.lock().await });
    stage.until(name, 1, 1).await?;
    guard.release().await?;
    soon(waiter).await???.release().await?;
    Ok(())
}

async fn a_keeper_outlives_the_runtime_it_was_made_in(stage: &Stage) -> Outcome {
    let name = stage.name("stock");
    let (keeper, elsewhere) = keeper_from_elsewhere(stage, &name).await?;
    spawn_blocking(move || drop(elsewhere)).await?;
    works(stage, &keeper, &name).await
}

async fn a_runtime_that_is_not_driven_keeps_nobody_waiting_for_ever(stage: &Stage) -> Outcome {
    let name = stage.name("stock");
    let (keeper, elsewhere) = keeper_from_elsewhere(stage, &name).await?;
    let outcome = works(stage, &keeper, &name).await;
    spawn_blocking(move || drop(elsewhere)).await?;
    outcome
}

/// What is dropped travels with the runtime that dropped it, which here does something else for as long as somebody
/// waits for the lock.
async fn a_guard_dropped_before_long_work_is_given_back(stage: &Stage) -> Outcome {
    let name = stage.name("stock");
    let (keeper, elsewhere) = keeper_from_elsewhere(stage, &name).await?;
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
    stage.until(&name, 1, 0).await?;
    let theirs = stage.keeper().await?.mutex(&name);
    let waiter = stage.line_up(&name, 1, async move { theirs.lock().await }).await?;
    waits.send(()).expect("the other waits for it");
    let guard = soon(waiter).await???;
    done.send(())?;
    long_work.await??;
    Ok(guard.release().await?)
}
