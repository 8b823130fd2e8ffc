//! Bad input: an error that says where and what to do, and nothing is changed.

use std::{fmt::Display, time::Duration};

use lockkeeper_core::{AcquireError, FenceError, Latch, LatchError, Name, StoreErrorKind};

use super::{
    Fixture, Outcome,
    fixture::{BRIEFLY, soon},
    tests,
};

tests! {
    bad_names_are_refused_by_every_primitive if |can| can.counts_permits,
    bad_leases_are_refused if |can| can.counts_permits,
    holds_that_contradict_each_other_are_refused,
    a_capacity_of_nothing_is_refused if |can| can.counts_permits,
    more_than_there_is_is_refused if |can| can.counts_permits,
    another_capacity_is_refused_while_in_use if |can| can.counts_permits,
    a_semaphore_and_a_mutex_share_no_name if |can| can.counts_permits,
    texts_too_long_are_refused,
    a_latch_too_large_is_refused if |can| can.counts_permits,
    a_keeper_without_time_is_refused,
}

/// The error names store, resource and operation and has the remedy.
#[track_caller]
fn says(error: &impl Display, places: &[&str], remedy: &str) {
    let text = error.to_string();
    for part in places.iter().chain([&remedy]) {
        assert!(text.contains(part), "{part:?} is missing in: {text}");
    }
    assert!(!text.contains(char::is_control), "what came from outside is escaped: {text:?}");
}

async fn bad_names_are_refused_by_every_primitive(fixture: &Fixture) -> Outcome {
    let keeper = fixture.keeper().await?;
    let url = keeper.url();
    let token = keeper.mutex(&fixture.name("good")).lock().await?.token();
    let too_long = "x".repeat(Name::MAX_BYTES + 1);
    let names = [("", "give 1 to 512 bytes"), (&*too_long, "shorten or hash it"), ("a\nb", "remove it")];
    for (name, remedy) in names {
        let acquired = [
            (keeper.mutex(name).lock().await.err(), "lock"),
            (keeper.mutex(name).try_lock().await.err(), "try_lock"),
            (keeper.mutex(name).lock_within(BRIEFLY).await.err(), "lock"),
            (keeper.mutex(name).lock_as(&keeper.owner()).await.err(), "lock"),
            (keeper.rw_lock(name).read().await.err(), "read"),
            (keeper.rw_lock(name).write().await.err(), "write"),
            (keeper.semaphore(name, 2).acquire().await.err(), "acquire"),
            (keeper.election(name).campaign("a").await.err(), "campaign"),
            (keeper.segmented(name, 2).for_key("a").lock().await.err(), "lock"),
        ];
        for (error, operation) in acquired {
            let error = error.expect("a bad name");
            assert!(matches!(&error, AcquireError::Invalid { .. }), "{error:?}");
            says(&error, &[url, operation], remedy);
        }
        let counted = [
            (keeper.latch(name).create(1).await.err(), "create"),
            (keeper.latch(name).count_down().await.err(), "count_down"),
            (keeper.latch(name).wait().await.err(), "wait"),
        ];
        for (error, operation) in counted {
            let error = error.expect("a bad name");
            assert!(matches!(&error, LatchError::Invalid { .. }), "{error:?}");
            says(&error, &[url, operation], remedy);
        }
        let error = keeper.fence(name).admit(token).await.expect_err("a bad name");
        assert!(matches!(&error, FenceError::Invalid { .. }), "{error:?}");
        says(&error, &[url, "admit"], remedy);
        says(&keeper.inspect(name).await.expect_err("a bad name"), &[], remedy);
        says(&keeper.election(name).leader().await.expect_err("a bad name"), &[url], remedy);
        let observed = soon(keeper.election(name).observe().next()).await?.expect("the first look");
        says(&observed.expect_err("a bad name"), &[url], remedy);
    }
    Ok(())
}

async fn bad_leases_are_refused(fixture: &Fixture) -> Outcome {
    let (keeper, name, can) = (fixture.keeper().await?, fixture.name("stock"), fixture.capability());
    let bad = [
        Duration::ZERO,
        can.min_lease - Duration::from_nanos(1),
        can.max_lease + Duration::from_nanos(1),
        Duration::MAX,
    ];
    for lease in bad {
        let errors = [
            keeper.mutex(&name).lease(lease).lock().await.err(),
            keeper.mutex(&name).expires_after(lease).try_lock().await.err(),
            keeper.rw_lock(&name).lease(lease).read().await.err(),
            keeper.semaphore(&name, 2).expires_after(lease).acquire().await.err(),
            keeper.election(&name).lease(lease).campaign("a").await.err(),
        ];
        for error in errors {
            let error = error.unwrap_or_else(|| panic!("a lease of {lease:?}"));
            assert!(matches!(&error, AcquireError::Invalid { .. }), "{error:?}");
            says(&error, &[&name, keeper.url()], &format!("give {:?} to", can.min_lease));
        }
    }
    fixture.wait_until(&name, 0, 0).await
}

async fn holds_that_contradict_each_other_are_refused(fixture: &Fixture) -> Outcome {
    let (keeper, name) = (fixture.keeper().await?, fixture.name("stock"));
    let mutex = keeper.mutex(&name);
    let error = mutex.clone().max_hold(Duration::ZERO).lock().await.expect_err("no time to hold it");
    says(&error, &[&name, keeper.url()], "raise it");
    let (least, most) = (Duration::from_secs(2), Duration::from_secs(1));
    let error = mutex.min_hold(least).max_hold(most).lock().await.expect_err("no time fits");
    says(&error, &[&name, keeper.url()], "raise it");
    fixture.wait_until(&name, 0, 0).await
}

async fn a_capacity_of_nothing_is_refused(fixture: &Fixture) -> Outcome {
    let (keeper, name) = (fixture.keeper().await?, fixture.name("gpu"));
    let none = keeper.semaphore(&name, 0);
    for error in [none.acquire().await.err(), none.try_acquire().await.err()] {
        let error = error.expect("nobody could ever hold it");
        assert!(matches!(&error, AcquireError::Invalid { .. }), "{error:?}");
        says(&error, &[&name, keeper.url(), "acquire"], "give at least 1");
    }
    fixture.wait_until(&name, 0, 0).await
}

async fn more_than_there_is_is_refused(fixture: &Fixture) -> Outcome {
    let (keeper, name) = (fixture.keeper().await?, fixture.name("gpu"));
    let semaphore = keeper.semaphore(&name, 4);
    for (permits, remedy) in [(5, "ask for fewer"), (u32::MAX, "ask for fewer"), (0, "ask for at least 1")] {
        let errors = [
            semaphore.acquire_many(permits).await.err(),
            semaphore.try_acquire_many(permits).await.err(),
            semaphore.acquire_many_within(permits, BRIEFLY).await.err(),
        ];
        for error in errors {
            let error = error.unwrap_or_else(|| panic!("{permits} of 4"));
            assert!(matches!(&error, AcquireError::Invalid { .. }), "{error:?}");
            says(&error, &[&name, keeper.url(), "acquire"], remedy);
        }
    }
    fixture.wait_until(&name, 0, 0).await
}

async fn another_capacity_is_refused_while_in_use(fixture: &Fixture) -> Outcome {
    let ((a, b), name) = (fixture.two_keepers().await?, fixture.name("gpu"));
    let permit = a.semaphore(&name, 4).acquire().await?;
    for capacity in [3, 5] {
        let theirs = b.semaphore(&name, capacity);
        for error in [soon(theirs.acquire()).await?.err(), theirs.try_acquire().await.err()] {
            let error = error.expect("another capacity");
            assert!(matches!(&error, AcquireError::CapacityMismatch { .. }), "{error:?}");
            says(&error, &[&name, b.url(), "acquire"], "use one capacity per name");
            says(&error, &[&format!("capacity {capacity}")], "capacity 4");
        }
    }
    fixture.wait_until(&name, 1, 0).await?;
    assert!(permit.is_held());
    permit.release().await?;
    // Free, it may become something else.
    Ok(b.semaphore(&name, 3).try_acquire().await?.expect("it is free").release().await?)
}

async fn a_semaphore_and_a_mutex_share_no_name(fixture: &Fixture) -> Outcome {
    let ((a, b), name) = (fixture.two_keepers().await?, fixture.name("gpu"));
    let guard = a.mutex(&name).lock().await?;
    for capacity in [1, u32::MAX] {
        let error = soon(b.semaphore(&name, capacity).acquire()).await?.expect_err("it is a mutex");
        assert!(matches!(&error, AcquireError::CapacityMismatch { .. }), "{error:?}");
        says(&error, &[&name, b.url()], "use one capacity per name");
    }
    guard.release().await?;
    let permit = a.semaphore(&name, 1).acquire().await?;
    let error = soon(b.mutex(&name).lock()).await?.expect_err("it is a semaphore");
    assert!(matches!(&error, AcquireError::CapacityMismatch { .. }), "{error:?}");
    Ok(permit.release().await?)
}

async fn texts_too_long_are_refused(fixture: &Fixture) -> Outcome {
    let (keeper, name) = (fixture.keeper().await?, fixture.name("scheduler"));
    let (longest, too_long) = ("x".repeat(4096), "x".repeat(4097));
    let error = keeper.mutex(&name).label(&too_long).lock().await.expect_err("too long");
    says(&error, &[&name, keeper.url(), "label"], "shorten it");
    let error = keeper.election(&name).campaign(&too_long).await.expect_err("too long");
    says(&error, &[&name, keeper.url(), "value"], "shorten it");
    fixture.wait_until(&name, 0, 0).await?;
    let leads = keeper.election(&name).label(&longest).campaign(&longest).await?;
    assert_eq!(fixture.leader(&name).await?.expect("somebody leads").value, longest);
    Ok(leads.resign().await?)
}

async fn a_latch_too_large_is_refused(fixture: &Fixture) -> Outcome {
    let (keeper, name) = (fixture.keeper().await?, fixture.name("import"));
    let error = keeper.latch(&name).create(Latch::MAX + 1).await.expect_err("too large");
    assert!(matches!(&error, LatchError::Invalid { .. }), "{error:?}");
    says(&error, &[&name, keeper.url(), "create"], &Latch::MAX.to_string());
    assert_eq!(keeper.latch(&name).state().await?, None);
    Ok(())
}

async fn a_keeper_without_time_is_refused(fixture: &Fixture) -> Outcome {
    let error = fixture.builder().request_limit(Duration::ZERO).connect().await.expect_err("no time");
    assert_eq!(error.kind(), StoreErrorKind::Config);
    says(&error, &[], "give at least 1 ms");
    Ok(())
}
