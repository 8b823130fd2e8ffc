//! For operators: holders, waiters and their times; listings in pages; taking a lock back.

use std::time::{Duration, SystemTime};

use lockkeeper_core::{
    Capacity, ContenderId, Keeper, KeeperId, Lost, Token, Units,
    store::{Eviction, HolderView, Kind},
};

use super::{Failure, Fixture, Outcome, fixture::soon, tests};

tests! {
    what_the_store_can_do_makes_sense,
    a_holder_is_shown_with_its_facts,
    waiters_are_shown_in_order,
    units_and_capacity_are_shown if |can| can.counts_permits,
    what_is_free_is_not_shown,
    a_listing_has_pages_in_order,
    a_prefix_is_no_pattern,
    an_eviction_is_told_to_its_holder,
    an_eviction_passes_it_on_when_the_holder_leaves,
    an_eviction_now_passes_it_at_once,
    an_eviction_hits_only_whom_it_names,
}

/// The only holder.
async fn holder(fixture: &Fixture, name: &str) -> Result<HolderView, Failure> {
    let mut view = fixture.view(name).await?.expect("it is held");
    assert_eq!(view.holders.len(), 1, "{view:?}");
    Ok(view.holders.remove(0))
}

async fn what_the_store_can_do_makes_sense(fixture: &Fixture) -> Outcome {
    let keeper = fixture.keeper().await?;
    let can = keeper.capability();
    assert_eq!(can, fixture.capability(), "the same on every connection");
    assert!(!can.store.is_empty() && can.group_limit >= 1);
    assert!(!can.min_lease.is_zero() && can.min_lease < can.max_lease, "{can:?}");
    assert!(can.min_lease <= Duration::from_secs(10), "locks could not be had for the default lease");
    assert!(can.max_lease >= Duration::from_secs(30), "locks could not be had for the default lease");
    assert!(!keeper.url().is_empty() && can.table_row().contains(can.store));
    Ok(())
}

async fn a_holder_is_shown_with_its_facts(fixture: &Fixture) -> Outcome {
    let keeper = fixture.builder().program("payroll").connect().await?;
    let (name, lease) = (fixture.name("report"), fixture.renewed_lease());
    let guard = keeper.mutex(&name).lease(lease).label("monthly run").lock().await?;
    let shown = holder(fixture, &name).await?;
    assert_eq!((shown.token, shown.units), (guard.token(), Units::All));
    assert_eq!((shown.details.kind, shown.details.label.as_deref()), (Kind::Mutex, Some("monthly run")));
    assert_eq!(shown.details.value, None);
    let process = &shown.details.process;
    assert_eq!((process.pid, process.program.as_str()), (std::process::id(), "payroll"));
    assert!(!process.host.is_empty());
    assert_eq!(shown.lease, lease);
    assert!(shown.remaining.is_none_or(|left| !left.is_zero() && left <= lease), "{:?}", shown.remaining);
    let can_tell = fixture.capability().lease_per_claim;
    assert!(shown.remaining.is_some() || !can_tell, "this store knows how long others' leases last");
    assert!(shown.renewed && !shown.evicted && !shown.detached);
    // Wall clocks of two machines: this would show a wrong unit or epoch.
    let now = SystemTime::now();
    let apart = now.duration_since(shown.since).or_else(|_| shown.since.duration_since(now))?;
    assert!(apart < Duration::from_secs(24 * 3600), "{:?}", shown.since);
    guard.release().await?;
    let guard = keeper.mutex(&name).expires_after(lease).lock().await?;
    assert!(!holder(fixture, &name).await?.renewed, "nobody renews a fixed lease");
    guard.release().await?;
    let leads = keeper.election(&name).campaign("10.0.0.7:80").await?;
    let details = holder(fixture, &name).await?.details;
    assert_eq!((details.kind, details.value.as_deref()), (Kind::Election, Some("10.0.0.7:80")));
    Ok(leads.resign().await?)
}

async fn waiters_are_shown_in_order(fixture: &Fixture) -> Outcome {
    let ((a, b), name) = (fixture.two_keepers().await?, fixture.name("report"));
    let guard = a.mutex(&name).lock().await?;
    let mut waiters = Vec::new();
    for (place, (keeper, label)) in [(&b, "first"), (&a, "second"), (&b, "third")].into_iter().enumerate() {
        let mutex = keeper.mutex(&name).fifo().label(label);
        waiters.push(fixture.start_waiter(&name, place + 1, async move { mutex.lock().await }).await?);
    }
    let view = fixture.view(&name).await?.expect("it is held");
    let labels: Vec<_> = view.waiters.iter().map(|waiter| waiter.details.label.as_deref()).collect();
    assert_eq!(labels, [Some("first"), Some("second"), Some("third")]);
    assert!(view.waiters.iter().all(|waiter| waiter.units == Units::All));
    assert!(view.waiters.is_sorted_by_key(|waiter| waiter.since), "{view:?}");
    assert_eq!(view.waiters[0].contender.keeper, view.waiters[2].contender.keeper);
    for waiter in waiters {
        waiter.abort();
    }
    fixture.wait_until(&name, 1, 0).await?;
    Ok(guard.release().await?)
}

async fn units_and_capacity_are_shown(fixture: &Fixture) -> Outcome {
    let ((a, b), name) = (fixture.two_keepers().await?, fixture.name("gpu"));
    let (two, one) = (a.semaphore(&name, 4).acquire_many(2).await?, b.semaphore(&name, 4).acquire().await?);
    let view = fixture.view(&name).await?.expect("it is held");
    assert_eq!((view.name.as_str(), view.capacity), (&*name, Capacity::count(4)?));
    let shown: Vec<_> = view.holders.iter().map(|holder| (holder.token, holder.units)).collect();
    assert_eq!(shown, [(two.token(), Units::count(2)?), (one.token(), Units::ONE)], "by token");
    two.release().await?;
    Ok(one.release().await?)
}

async fn what_is_free_is_not_shown(fixture: &Fixture) -> Outcome {
    let (keeper, name) = (fixture.keeper().await?, fixture.name("report"));
    assert_eq!(fixture.view(&name).await?, None);
    keeper.mutex(&name).lock().await?.release().await?;
    assert_eq!(fixture.view(&name).await?, None);
    let lost = keeper.mutex(&name).expires_after(fixture.short_lease()).lock().await?;
    assert_eq!(soon(lost.lost()).await?, Lost::Expired);
    fixture.wait_until(&name, 0, 0).await?;
    assert_eq!(keeper.list(fixture.prefix(), None, 10).await?.resources, []);
    Ok(())
}

/// All names that a listing shows, in pages of at most `limit`.
async fn listed(keeper: &Keeper, prefix: &str, limit: usize) -> Result<Vec<String>, Failure> {
    let (mut names, mut after) = (Vec::new(), None);
    loop {
        let page = keeper.list(prefix, after.as_ref(), limit).await?;
        assert!(page.resources.len() <= limit, "{} are more than {limit}", page.resources.len());
        names.extend(page.resources.iter().map(|resource| resource.name.to_string()));
        let Some(next) = page.next else { return Ok(names) };
        assert!(after.as_ref() < Some(&next), "the same page again");
        after = Some(next);
    }
}

async fn a_listing_has_pages_in_order(fixture: &Fixture) -> Outcome {
    let (keeper, mut guards) = (fixture.keeper().await?, Vec::new());
    for item in ["c", "a", "e", "B", "d", "ä", "b"] {
        guards.push(keeper.mutex(&fixture.name(&format!("item/{item}"))).lock().await?);
    }
    let other = keeper.mutex(&fixture.name("other")).lock().await?;
    let items = fixture.name("item/");
    let expected = ["B", "a", "b", "c", "d", "e", "ä"].map(|item| format!("{items}{item}"));
    for limit in [1, 2, 3, 7, 100] {
        assert_eq!(listed(&keeper, &items, limit).await?, expected, "in pages of {limit}");
    }
    assert_eq!(listed(&keeper, fixture.prefix(), 3).await?.len(), expected.len() + 1);
    for guard in guards {
        guard.release().await?;
    }
    Ok(other.release().await?)
}

async fn a_prefix_is_no_pattern(fixture: &Fixture) -> Outcome {
    let (keeper, mut guards) = (fixture.keeper().await?, Vec::new());
    let marks = ["%", "_", "*", "?", "[a-z]", "\\", "'", "x"];
    for mark in marks {
        guards.push(keeper.mutex(&fixture.name(&format!("{mark}tail"))).lock().await?);
    }
    for mark in marks {
        let prefix = fixture.name(mark);
        assert_eq!(listed(&keeper, &prefix, 100).await?, [format!("{prefix}tail")]);
    }
    for guard in guards {
        guard.release().await?;
    }
    Ok(())
}

async fn an_eviction_is_told_to_its_holder(fixture: &Fixture) -> Outcome {
    let ((a, b), name) = (fixture.two_keepers().await?, fixture.name("report"));
    let guard = a.mutex(&name).lease(fixture.renewed_lease()).lock().await?;
    let shown = holder(fixture, &name).await?;
    assert_eq!(guard.lost_because(), None);
    let too_long = "x".repeat(4097);
    let error = b.evict_because(&name, shown.contender, shown.token, Eviction::Graceful, &too_long).await;
    assert!(error.expect_err("too long").to_string().contains("4096"));
    let reason = "the machine is needed: 100 %, ü and\nall";
    assert!(b.evict_because(&name, shown.contender, shown.token, Eviction::Graceful, reason).await?);
    assert_eq!(soon(guard.lost()).await?, Lost::Evicted);
    assert_eq!(guard.lost_because().as_deref(), Some(reason));
    assert!(!guard.is_held() && guard.release().await.is_err());
    fixture.wait_until(&name, 0, 0).await
}

async fn an_eviction_passes_it_on_when_the_holder_leaves(fixture: &Fixture) -> Outcome {
    let ((a, b), name) = (fixture.two_keepers().await?, fixture.name("report"));
    let guard = a.mutex(&name).lock().await?;
    let theirs = b.mutex(&name);
    let waiter = fixture.start_waiter(&name, 1, async move { theirs.lock().await }).await?;
    let shown = holder(fixture, &name).await?;
    assert!(b.evict(&name, shown.contender, shown.token, Eviction::Graceful).await?);
    let shown = holder(fixture, &name).await?;
    assert!(shown.evicted && shown.token == guard.token(), "still there until it leaves");
    assert!(!waiter.is_finished(), "passed on while its holder may still act");
    let error = guard.extend(fixture.renewed_lease()).await.expect_err("no further renewals");
    assert!(error.to_string().contains("evicted by an operator"), "{error}");
    drop(guard);
    Ok(soon(waiter).await???.release().await?)
}

async fn an_eviction_now_passes_it_at_once(fixture: &Fixture) -> Outcome {
    let ((a, b), name) = (fixture.two_keepers().await?, fixture.name("report"));
    let guard = a.mutex(&name).lease(fixture.renewed_lease()).lock().await?;
    let theirs = b.mutex(&name);
    let waiter = fixture.start_waiter(&name, 1, async move { theirs.lock().await }).await?;
    let shown = holder(fixture, &name).await?;
    assert!(b.evict(&name, shown.contender, shown.token, Eviction::Immediate).await?);
    let next = soon(waiter).await???;
    assert!(next.token() > guard.token(), "the fence tells them apart");
    let lost = soon(guard.lost()).await?;
    assert!(matches!(lost, Lost::Gone | Lost::Evicted), "{lost:?}");
    assert!(guard.release().await.is_err() && next.is_held());
    Ok(next.release().await?)
}

async fn an_eviction_hits_only_whom_it_names(fixture: &Fixture) -> Outcome {
    let ((a, b), name) = (fixture.two_keepers().await?, fixture.name("report"));
    let first = a.mutex(&name).lock().await?;
    let old = holder(fixture, &name).await?;
    first.release().await?;
    let second = a.mutex(&name).lock().await?;
    let shown = holder(fixture, &name).await?;
    let nobody = ContenderId { keeper: KeeperId::random(), seq: shown.contender.seq };
    let never = Token::new(shown.token.number() - 1, 0);
    for how in [Eviction::Graceful, Eviction::Immediate] {
        assert!(!b.evict(&name, old.contender, old.token, how).await?, "that holder has left");
        assert!(!b.evict(&name, nobody, shown.token, how).await?, "nobody has that id");
        assert!(!b.evict(&name, shown.contender, never, how).await?, "that token holds nothing");
        assert!(!b.evict(&fixture.name("other"), shown.contender, shown.token, how).await?);
    }
    second.extend(fixture.renewed_lease()).await?;
    assert!(!holder(fixture, &name).await?.evicted);
    Ok(second.release().await?)
}
