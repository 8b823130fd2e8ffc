//! Mutex: one holder at a time, for as long as was agreed, in the order of arrival.

use std::{
    collections::BTreeSet,
    future::pending,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use lockkeeper_core::{AcquireError, Keeper, Lost, Name, ReleaseError, Token, support};
use tokio::{
    sync::oneshot,
    task::{JoinSet, yield_now},
    time::timeout,
};

use super::{
    Failure, Fixture, Outcome,
    fixture::{KillableKeeper, ROUNDING, TIME_TO_QUEUE, soon},
    tests,
};

tests! {
    one_holder_at_a_time,
    a_mutex_excludes_also_its_own_task,
    a_waiter_gets_it_when_it_is_released,
    lock_within_gives_up_in_time,
    lock_within_gets_what_comes_free_in_time,
    it_stays_held_past_its_lease,
    a_fixed_lease_ends,
    max_hold_ends_a_renewed_lease,
    min_hold_outlasts_the_release if |can| can.detachable,
    min_hold_outlasts_the_release_of_every_kind if |can| can.detachable && can.counts_permits,
    min_hold_outlasts_a_crash if |can| can.detachable && can.between_processes,
    min_hold_outlasts_a_crash_after_waiting if |can| can.detachable && can.between_processes,
    the_longest_lease_is_allowed,
    fifo_is_the_order_of_arrival,
    fifo_holds_for_short_leases_too,
    processes_are_served_in_turn,
    no_update_is_lost,
    tokens_grow_with_every_grant,
    tokens_grow_when_handed_on_in_a_process,
    names_differ_by_every_byte,
}

async fn one_holder_at_a_time(fixture: &Fixture) -> Outcome {
    let ((a, b), name) = (fixture.two_keepers().await?, fixture.name("stock"));
    let guard = a.mutex(&name).lock().await?;
    assert!(b.mutex(&name).try_lock().await?.is_none(), "another process has it");
    guard.release().await?;
    let guard = b.mutex(&name).try_lock().await?.expect("it is free");
    assert!(a.mutex(&name).try_lock().await?.is_none(), "another process has it");
    Ok(guard.release().await?)
}

async fn a_mutex_excludes_also_its_own_task(fixture: &Fixture) -> Outcome {
    let mutex = fixture.keeper().await?.mutex(&fixture.name("stock"));
    let guard = mutex.lock().await?;
    assert!(mutex.try_lock().await?.is_none(), "re-entering takes a guard or an owner");
    Ok(guard.release().await?)
}

async fn a_waiter_gets_it_when_it_is_released(fixture: &Fixture) -> Outcome {
    let ((a, b), name) = (fixture.two_keepers().await?, fixture.name("stock"));
    let first = a.mutex(&name).lock().await?;
    let theirs = b.mutex(&name);
    let waiter = fixture.start_waiter(&name, 1, async move { theirs.lock().await }).await?;
    let token = first.token();
    first.release().await?;
    let second = soon(waiter).await???;
    assert!(second.token() > token);
    Ok(second.release().await?)
}

async fn lock_within_gives_up_in_time(fixture: &Fixture) -> Outcome {
    let ((a, b), name) = (fixture.two_keepers().await?, fixture.name("stock"));
    let guard = a.mutex(&name).lock().await?;
    let theirs = b.mutex(&name);
    let first = fixture.start_waiter(&name, 1, async move { theirs.lock().await }).await?;
    let asked = Instant::now();
    let error =
        fixture.keeper().await?.mutex(&name).lock_within(2 * TIME_TO_QUEUE).await.expect_err("it is held");
    let AcquireError::TimedOut { waited, ahead, .. } = &error else { return Err(error.into()) };
    assert!(*waited >= 2 * TIME_TO_QUEUE && asked.elapsed() >= *waited, "{error}");
    assert_eq!(*ahead, Some(1), "{error}");
    assert!(error.to_string().contains(&name) && error.to_string().contains("wait longer"), "{error}");
    fixture.wait_until(&name, 1, 1).await?;
    guard.release().await?;
    Ok(soon(first).await???.release().await?)
}

async fn lock_within_gets_what_comes_free_in_time(fixture: &Fixture) -> Outcome {
    let ((a, b), name) = (fixture.two_keepers().await?, fixture.name("stock"));
    let guard = a.mutex(&name).lock().await?;
    let theirs = b.mutex(&name);
    let limit = Duration::from_secs(30);
    let waiter = fixture.start_waiter(&name, 1, async move { theirs.lock_within(limit).await }).await?;
    guard.release().await?;
    Ok(soon(waiter).await???.release().await?)
}

async fn it_stays_held_past_its_lease(fixture: &Fixture) -> Outcome {
    let ((a, b), name, lease) =
        (fixture.two_keepers().await?, fixture.name("stock"), fixture.renewed_lease());
    let guard = a.mutex(&name).lease(lease).lock().await?;
    let lost = timeout(2 * lease, guard.lost()).await;
    assert!(lost.is_err() && guard.is_held(), "lost although the keeper renews it: {lost:?}");
    assert!(b.mutex(&name).try_lock().await?.is_none(), "given away although it is renewed");
    Ok(guard.release().await?)
}

async fn a_fixed_lease_ends(fixture: &Fixture) -> Outcome {
    let ((a, b), name) = (fixture.two_keepers().await?, fixture.name("stock"));
    let asked = Instant::now();
    let guard = a.mutex(&name).expires_after(fixture.short_lease()).lock().await?;
    let next = soon(b.mutex(&name).lock()).await??;
    assert!(asked.elapsed() + ROUNDING >= fixture.short_lease(), "given away before its lease was over");
    assert!(!guard.is_held() && guard.remaining().is_zero(), "two believe that they hold it");
    assert_eq!(soon(guard.lost()).await?, Lost::Expired);
    assert!(next.token() > guard.token());
    let error = guard.release().await.expect_err("it was lost");
    assert!(matches!(error, ReleaseError::NotHeld { why: Lost::Expired, .. }), "{error}");
    assert!(next.is_held());
    Ok(next.release().await?)
}

async fn max_hold_ends_a_renewed_lease(fixture: &Fixture) -> Outcome {
    let ((a, b), name, lease) =
        (fixture.two_keepers().await?, fixture.name("stock"), fixture.renewed_lease());
    let asked = Instant::now();
    let guard = a.mutex(&name).lease(lease).max_hold(lease * 3 / 2).lock().await?;
    assert_eq!(soon(guard.lost()).await?, Lost::MaxHold);
    assert!(asked.elapsed() >= lease, "it was renewed until then");
    let error = guard.release().await.expect_err("it was lost");
    assert!(matches!(error, ReleaseError::NotHeld { why: Lost::MaxHold, .. }), "{error}");
    Ok(soon(b.mutex(&name).lock()).await??.release().await?)
}

async fn min_hold_outlasts_the_release(fixture: &Fixture) -> Outcome {
    let ((a, b), name, least) =
        (fixture.two_keepers().await?, fixture.name("report"), fixture.renewed_lease());
    let asked = Instant::now();
    a.mutex(&name).min_hold(least).lock().await?.release().await?;
    let view = fixture.view(&name).await?.expect("it is kept");
    assert!(view.holders[0].detached, "{view:?}");
    let next = soon(b.mutex(&name).lock()).await??;
    assert!(asked.elapsed() + ROUNDING >= least, "kept only {:?}", asked.elapsed());
    Ok(next.release().await?)
}

async fn min_hold_outlasts_the_release_of_every_kind(fixture: &Fixture) -> Outcome {
    let ((a, b), least) = (fixture.two_keepers().await?, 2 * fixture.renewed_lease());
    let [reads, writes, permits, leads] =
        ["reads", "writes", "permits", "leads"].map(|kind| fixture.name(kind));
    let asked = Instant::now();
    a.rw_lock(&reads).min_hold(least).read().await?.release().await?;
    a.rw_lock(&writes).min_hold(least).write().await?.release().await?;
    a.semaphore(&permits, 3).min_hold(least).acquire_many(2).await?.release().await?;
    a.election(&leads).min_hold(least).campaign("me").await?.resign().await?;
    a.close().await;
    b.rw_lock(&reads).try_read().await?.expect("readers share it").release().await?;
    let taken = [
        b.mutex(&reads).try_lock().await?.is_some(),
        b.mutex(&writes).try_lock().await?.is_some(),
        b.semaphore(&permits, 3).try_acquire_many(2).await?.is_some(),
        b.mutex(&leads).try_lock().await?.is_some(),
    ];
    assert!(asked.elapsed() < least, "this machine is too slow for this test");
    assert_eq!(taken, [false; 4], "released too early");
    for name in [&reads, &writes, &leads] {
        soon(b.mutex(name).lock()).await??.release().await?;
    }
    Ok(soon(b.semaphore(&permits, 3).acquire_many(2)).await??.release().await?)
}

async fn min_hold_outlasts_a_crash(fixture: &Fixture) -> Outcome {
    let (keeper, name) = (fixture.keeper().await?, fixture.name("report"));
    let (process, asked) = (fixture.killable_keeper().await?, Instant::now());
    hold_until_killed(&process, &name, 2 * fixture.renewed_lease()).await?;
    process.kill().await?;
    is_kept_since(asked, &keeper, &name, 2 * fixture.renewed_lease()).await
}

/// A grant that is pushed has a short first lease, and its owner may crash right after it has heard of it.
async fn min_hold_outlasts_a_crash_after_waiting(fixture: &Fixture) -> Outcome {
    let (keeper, name) = (fixture.keeper().await?, fixture.name("report"));
    let process = fixture.killable_keeper().await?;
    let guard = keeper.mutex(&name).lock().await?;
    let held = hold_until_killed(&process, &name, 2 * fixture.renewed_lease());
    let released = async {
        fixture.wait_until(&name, 1, 1).await?;
        let released = Instant::now();
        guard.release().await?;
        Ok::<_, Failure>(released)
    };
    let (held, released) = tokio::join!(held, released);
    held?;
    process.kill().await?;
    is_kept_since(released?, &keeper, &name, 2 * fixture.renewed_lease()).await
}

/// Has a process lock `name`, for at least so long, and never release it.
async fn hold_until_killed(process: &KillableKeeper, name: &str, least: Duration) -> Outcome {
    let mutex = process.keeper.mutex(name).lease(least).min_hold(least);
    let (tell, held) = oneshot::channel();
    process.run(async move {
        let guard = mutex.lock().await;
        // If nobody receives it, the test has failed already.
        drop(tell.send(guard.as_ref().map(drop).map_err(ToString::to_string)));
        pending::<()>().await;
    });
    soon(held).await??.map_err(Failure::new)
}

/// Checks that nobody gets `name` until `least` after it was granted, which was not before `since`.
async fn is_kept_since(since: Instant, keeper: &Keeper, name: &str, least: Duration) -> Outcome {
    let next = soon(keeper.mutex(name).lock()).await??;
    assert!(since.elapsed() + ROUNDING >= least, "kept only {:?}", since.elapsed());
    Ok(next.release().await?)
}

async fn the_longest_lease_is_allowed(fixture: &Fixture) -> Outcome {
    let (keeper, name, longest) =
        (fixture.keeper().await?, fixture.name("stock"), fixture.capability().max_lease);
    let guard = keeper.mutex(&name).lease(longest).lock().await?;
    let whole = !fixture.capability().lease_per_claim || guard.remaining() > longest / 2;
    assert!(whole && guard.is_held() && guard.remaining() <= longest, "{:?}", guard.remaining());
    Ok(guard.release().await?)
}

/// Lines up contenders of two processes behind a holder and sees in which order they get in.
async fn arrival_order(fixture: &Fixture, lease: Duration) -> Outcome {
    let ((a, b), name) = (fixture.two_keepers().await?, fixture.name("stock"));
    let first = a.mutex(&name).lease(lease).fifo().lock().await?;
    let order = Arc::new(Mutex::new(Vec::new()));
    let mut waiters = JoinSet::new();
    let contenders = fixture.repeats(6, 3) as usize;
    for place in 0..contenders {
        let keeper = if place % 3 == 0 { &b } else { &a };
        let (mutex, order) = (keeper.mutex(&name).lease(lease).fifo(), order.clone());
        waiters.spawn(async move {
            let guard = mutex.lock().await?;
            support::lock(&order).push(place);
            Ok::<_, lockkeeper_core::Error>(guard.release().await?)
        });
        fixture.wait_until(&name, 1, place + 1).await?;
    }
    first.release().await?;
    while let Some(done) = soon(waiters.join_next()).await? {
        done??;
    }
    let order = support::lock(&order).clone();
    assert_eq!(order, Vec::from_iter(0..contenders));
    Ok(())
}

async fn fifo_is_the_order_of_arrival(fixture: &Fixture) -> Outcome {
    arrival_order(fixture, Duration::from_secs(30)).await
}

/// A waiter whose whole lease is shorter than the usual time between two looks must still hear of
/// its grant before that lease is over.
async fn fifo_holds_for_short_leases_too(fixture: &Fixture) -> Outcome {
    arrival_order(fixture, fixture.renewed_lease()).await
}

async fn processes_are_served_in_turn(fixture: &Fixture) -> Outcome {
    let name = fixture.name("stock");
    let first = fixture.keeper().await?.mutex(&name).lock().await?;
    let mut waiters = Vec::new();
    for place in 1..=fixture.repeats(5, 3) as usize {
        let mutex = fixture.keeper().await?.mutex(&name);
        waiters.push(fixture.start_waiter(&name, place, async move { mutex.lock().await }).await?);
    }
    let mut held = first;
    for waiter in waiters {
        let token = held.token();
        held.release().await?;
        held = soon(waiter).await???;
        assert!(held.token() > token);
    }
    Ok(held.release().await?)
}

async fn no_update_is_lost(fixture: &Fixture) -> Outcome {
    let name = fixture.name("counter");
    let (keepers, tasks, rounds) = (fixture.repeats(4, 2), fixture.repeats(5, 2), fixture.repeats(10, 3));
    let counter = Arc::new(AtomicU64::new(0));
    let mut work = JoinSet::new();
    for _ in 0..keepers {
        let keeper = fixture.keeper().await?;
        for _ in 0..tasks {
            let (mutex, counter) = (keeper.mutex(&name), counter.clone());
            work.spawn(async move {
                for _ in 0..rounds {
                    let guard = mutex.lock().await?;
                    let seen = counter.load(Ordering::Relaxed);
                    yield_now().await;
                    counter.store(seen + 1, Ordering::Relaxed);
                    guard.release().await?;
                }
                Ok::<_, lockkeeper_core::Error>(())
            });
        }
    }
    while let Some(done) = work.join_next().await {
        done??;
    }
    assert_eq!(counter.load(Ordering::Relaxed), u64::from(keepers * tasks * rounds));
    Ok(())
}

async fn tokens_grow_with_every_grant(fixture: &Fixture) -> Outcome {
    let ((a, b), name) = (fixture.two_keepers().await?, fixture.name("stock"));
    let mut last: Option<Token> = None;
    for round in 0..12 {
        let keeper = if round % 3 == 0 { &a } else { &b };
        // Released, dropped and expired: the number grows after each.
        let guard = match round % 4 {
            0 => keeper.mutex(&name).expires_after(fixture.short_lease()).lock().await?,
            _ => soon(keeper.mutex(&name).lock()).await??,
        };
        assert!(Some(guard.token()) > last, "{} is not after {last:?}", guard.token());
        assert_eq!(guard.token().to_string().parse::<Token>()?, guard.token());
        last = Some(guard.token());
        match round % 4 {
            0 => assert_eq!(soon(guard.lost()).await?, Lost::Expired),
            1 => drop(guard),
            _ => guard.release().await?,
        }
    }
    Ok(())
}

async fn tokens_grow_when_handed_on_in_a_process(fixture: &Fixture) -> Outcome {
    let mutex = fixture.keeper().await?.mutex(&fixture.name("stock"));
    let tokens = Arc::new(Mutex::new(Vec::new()));
    let mut work = JoinSet::new();
    for _ in 0..fixture.repeats(40, 8) {
        let (mutex, tokens) = (mutex.clone(), tokens.clone());
        work.spawn(async move {
            let guard = mutex.lock().await?;
            support::lock(&tokens).push(guard.token());
            Ok::<_, lockkeeper_core::Error>(guard.release().await?)
        });
    }
    while let Some(done) = work.join_next().await {
        done??;
    }
    let tokens = support::lock(&tokens).clone();
    assert!(tokens.is_sorted_by(|a, b| a < b), "in order of holding: {tokens:?}");
    Ok(())
}

async fn names_differ_by_every_byte(fixture: &Fixture) -> Outcome {
    let keeper = fixture.keeper().await?;
    let longest = "x".repeat(Name::MAX_BYTES - fixture.prefix().len());
    let awkward = [
        "stock",
        "Stock",
        "stock ",
        " stock",
        "stock/",
        "/stock",
        "stock/.",
        "stock/..",
        "stock#1",
        "stock%2F",
        "stock_1",
        "stock%",
        "stock*",
        "stock?",
        "stock[0]",
        "{stock}",
        "'stock'",
        "\"stock\"",
        "`stock`",
        "stock\\",
        "$1",
        "a;--",
        "stöck",
        "sto\u{308}ck",
        "STÖCK",
        "ß",
        "ss",
        "🔒",
        &longest,
    ];
    let mut guards = Vec::new();
    for name in awkward {
        let guard = keeper.mutex(&fixture.name(name)).try_lock().await?;
        guards.push(guard.unwrap_or_else(|| panic!("{name:?} is taken for another name")));
    }
    let tokens: BTreeSet<Token> = guards.iter().map(|guard| guard.token()).collect();
    assert_eq!(tokens.len(), awkward.len(), "each has a token of its own");
    for (name, guard) in awkward.into_iter().zip(guards) {
        let view = fixture.view(&fixture.name(name)).await?.expect("it is held");
        assert_eq!(view.holders[0].token, guard.token(), "{name:?}");
        guard.release().await?;
    }
    Ok(())
}
