//! Single cases that random sequences would seldom meet.

use super::*;

/// A counter that a waiter slept through is still seen as opened, also after a reset.
#[test]
fn i13_opened_outlives_a_reset() {
    let mut counter = Counter::default();
    let mut high_water = HighWater::default();
    let now = Now { lease: StoreTime(1), wall: 1 };
    counter.step(now, &mut high_water, CountAction::Create(2));
    counter.step(now, &mut high_water, CountAction::Down(5));
    counter.step(now, &mut high_water, CountAction::Down(1));
    let Counted::State(state) = counter.step(now, &mut high_water, CountAction::Reset) else { panic!() };
    assert_eq!((state.remaining, state.opened), (2, 1));
}

/// Timeline A5: numbers follow the clock only upwards and never outrun it by more than one per grant.
#[test]
fn i6_the_high_water_mark_grows_by_one_when_the_clock_stands() {
    let mut high_water = HighWater::default();
    let at = |wall| Now { lease: StoreTime(0), wall };
    assert_eq!(high_water.next(at(1000)), 1000);
    assert_eq!(high_water.next(at(1000)), 1001);
    assert_eq!(high_water.next(at(500)), 1002);
    assert_eq!(high_water.next(at(2000)), 2000);
}

/// A copy that arrives at the very last moment at which it may take effect still finds the tombstone.
#[test]
fn i9_a_tombstone_lasts_as_long_as_the_copy_it_is_against() {
    let mut model = Model::default();
    let until = StoreTime(2_000_000);
    let leave = Leave {
        name: name(),
        contender: contender(0),
        tombstone_until: Some(until),
        hold_at_least: Duration::ZERO,
    };
    let copy = Claim {
        name: name(),
        contender: contender(0),
        units: Units::All,
        capacity: Capacity::All,
        lease: SECOND,
        queue: true,
        detachable: false,
        min_hold: Duration::ZERO,
        not_after: until,
        stamp: 0,
        again: true,
        details: details(),
    };
    // Left before the copy's last moment, or in it.
    for left_at in [StoreTime(1_000_000), until] {
        let at = |lease| Now { lease, wall: 1 };
        model.apply(at(left_at), &Request::Leave(leave.clone()), &mut Effects::default());
        let answer = model.apply(at(until), &Request::Claim(copy.clone()), &mut Effects::default());
        assert!(matches!(answer, Answer::Claim(Verdict::Stale)), "{answer:?}");
    }
}

/// The store's clock went back an hour while the lock was held: a release is a release all the same, and a minimum
/// time to hold is kept from now on at the longest.
#[test]
fn i8_a_clock_that_went_back_keeps_no_released_lock() {
    let hour = 3_600_000_000;
    for (hold_at_least, ends) in [(Duration::ZERO, None), (SECOND, Some(StoreTime(1_000_000)))] {
        let mut model = Model::default();
        let at = |lease| Now { lease, wall: 1 };
        let claim = Claim {
            name: name(),
            contender: contender(0),
            units: Units::All,
            capacity: Capacity::All,
            lease: SECOND,
            queue: true,
            detachable: false,
            min_hold: Duration::ZERO,
            not_after: StoreTime(hour),
            stamp: 0,
            again: false,
            details: details(),
        };
        model.apply(at(StoreTime(hour)), &Request::Claim(claim), &mut Effects::default());
        let leave = Leave { name: name(), contender: contender(0), tombstone_until: None, hold_at_least };
        let left = model.apply(at(StoreTime(0)), &Request::Leave(leave), &mut Effects::default());
        assert!(matches!(left, Answer::Leave(Left::Released)), "{left:?}");
        let kept = model
            .resource(&name())
            .and_then(|resource| resource.holders.first().map(|holder| holder.expires));
        assert_eq!(kept, ends, "with a minimum of {hold_at_least:?}");
    }
}

/// Who died may have done its work: what it knew of is kept for its minimum, and no longer. What it never heard of is not.
#[test]
fn i8_crashed_keepers_keep_what_they_confirmed_for_its_minimum() {
    let at = |lease| Now { lease: StoreTime(lease), wall: 1 };
    let claim = |who, min_hold| Claim {
        name: name(),
        contender: contender(who),
        units: Units::All,
        capacity: Capacity::All,
        lease: 60 * SECOND,
        queue: true,
        detachable: true,
        min_hold,
        not_after: StoreTime(u64::MAX),
        stamp: 0,
        again: false,
        details: details(),
    };
    for (confirmed, min_hold, ends) in [
        (true, 5 * SECOND, Some(StoreTime(6_000_000))),
        (true, SECOND, None),
        (true, Duration::ZERO, None),
        (false, 5 * SECOND, None),
    ] {
        let (mut resource, mut high_water) = (Resource::free(Capacity::All), HighWater::default());
        let mut effects = Effects::default();
        resource.claim(at(0), &mut high_water, &claim(0, Duration::ZERO), &mut effects);
        resource.claim(at(0), &mut high_water, &claim(1, min_hold), &mut effects);
        let leave = Leave {
            name: name(),
            contender: contender(0),
            tombstone_until: None,
            hold_at_least: Duration::ZERO,
        };
        resource.leave(at(1_000_000), &mut high_water, &leave, &mut effects);
        if confirmed {
            resource.claim(at(1_500_000), &mut high_water, &claim(1, min_hold), &mut effects);
        }
        let dead = BTreeSet::from([contender(1).keeper]);
        resource.expire_keepers(at(2_000_000), &mut high_water, &dead, &mut effects);
        let kept = resource.holders.first().map(|holder| (holder.expires, holder.retired));
        assert_eq!(kept, ends.map(|ends| (ends, true)), "{min_hold:?}, confirmed: {confirmed}");
    }
}
