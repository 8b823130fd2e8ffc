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
    let copy =
        Claim { lease: SECOND, not_after: until, again: true, ..testing::claim(&name(), contender(0)) };
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
        let claim =
            Claim { lease: SECOND, not_after: StoreTime(hour), ..testing::claim(&name(), contender(0)) };
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

/// A crashed keeper may have done its work: a hold that it knew of is kept for its minimum, and no longer. A hold that
/// it never heard of is not.
#[test]
fn i8_crashed_keepers_keep_what_they_confirmed_for_its_minimum() {
    let at = |lease| Now { lease: StoreTime(lease), wall: 1 };
    let claim = |who, min_hold| Claim {
        lease: 60 * SECOND,
        attachment: Attachment::Detachable,
        min_hold,
        ..testing::claim(&name(), contender(who))
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

fn at(lease: u64) -> Now {
    Now { lease: StoreTime(lease), wall: 1_000_000 }
}

/// A reader that claims at one second, with a grant number of at least `at_least`.
fn reader(who: u8, at_least: GrantNumber) -> Claim {
    Claim { units: Units::ONE, lease: 60 * SECOND, at_least, ..testing::claim(&name(), contender(who)) }
}

fn renewal(who: u8, at_least: GrantNumber) -> Renew {
    let lease = Duration::ZERO;
    Renew { name: name(), contender: contender(who), lease, lower_to: None, detach: false, at_least }
}

fn leave(who: u8) -> Request {
    let (tombstone_until, hold_at_least) = (None, Duration::ZERO);
    Request::Leave(Leave { name: name(), contender: contender(who), tombstone_until, hold_at_least })
}

/// Members of a quorum grant equal numbers although their clocks differ, so such a number owes nothing to the clock.
#[test]
fn i6_a_number_is_as_high_as_asked_and_still_grows() {
    let (mut model, mut effects) = (Model::default(), Effects::default());
    let mut claim =
        |model: &mut Model, claim: Claim| match model.apply(at(1), &Request::Claim(claim), &mut effects) {
            Answer::Claim(Verdict::Granted(grant)) => Some(grant.number),
            Answer::Claim(Verdict::Busy { .. }) => None,
            answer => panic!("{answer:?}"),
        };
    assert_eq!(claim(&mut model, reader(0, 5_000)), Some(5_000));
    assert_eq!(claim(&mut model, reader(1, 10)), Some(5_001));
    let writer = Claim { units: Units::All, ..reader(2, 7_000) };
    assert_eq!(claim(&mut model, writer), None, "it waits");
    for who in [0, 1] {
        model.apply(at(1), &leave(who), &mut Effects::default());
    }
    assert_eq!(model.high_water, HighWater(7_000), "the waiter has kept it");
    assert_eq!(claim(&mut model, reader(3, u64::MAX)), None);
    model.apply(at(1), &leave(2), &mut Effects::default());
    assert_eq!(model.high_water, HighWater(Token::NUMBER_LIMIT - 1), "no more than a token has room for");
}

#[test]
fn i7_a_raised_number_counts_for_the_floor_and_for_later_grants() {
    let (mut model, mut effects) = (Model::default(), Effects::default());
    for who in [0, 1] {
        model.apply(at(1), &Request::Claim(reader(who, 100 + u64::from(who))), &mut effects);
    }
    let mut raise = |who, at_least| model.renew(at(1), &renewal(who, at_least), &mut effects);
    let held = |number, floor| Renewed::Held(Grant { number, floor, remaining: 60 * SECOND });
    assert_eq!(raise(0, 0), held(100, 100), "zero raises nothing");
    assert_eq!(raise(0, 99), held(100, 100), "and nothing is lowered");
    assert_eq!(raise(0, 200), held(200, 101));
    assert_eq!(raise(1, 200), held(200, 200), "two readers may come to the same number");
    assert_eq!(model.high_water, HighWater(200));
    let view = model.inspect(at(1), &name()).expect("held");
    assert_eq!(view.holders.iter().map(|holder| holder.token.number()).collect::<Vec<_>>(), [200, 200]);
}

#[test]
fn an_evicted_holder_is_told_the_reason_of_the_last_order() {
    let (mut model, mut effects) = (Model::default(), Effects::default());
    model.apply(at(1), &Request::Claim(reader(0, 100)), &mut effects);
    for reason in [None, Some("first"), Some("last")] {
        let reason: Option<Arc<str>> = reason.map(Into::into);
        let (contender, how) = (contender(0), Eviction::Graceful);
        let order = Evict { name: name(), contender, number: 100, how, reason: reason.clone() };
        assert_eq!(model.evict(at(1), &order, &mut effects), Evicted::Done);
        assert_eq!(model.renew(at(1), &renewal(0, 0), &mut effects), Renewed::Evicted(reason));
    }
}

/// A hold that was claimed for somebody else goes on without the process that claimed it, also if it had to wait.
#[test]
fn i8_what_was_born_detached_outlives_its_process() {
    let dead = BTreeSet::from([contender(0).keeper]);
    for attachment in [Attachment::Process, Attachment::Detachable, Attachment::Detached] {
        let (mut resource, mut high_water) = (Resource::free(Capacity::All), HighWater::default());
        let mut effects = Effects::default();
        for who in [0, 1] {
            let claim = Claim { attachment, units: Units::All, ..reader(who, 0) };
            resource.claim(at(1), &mut high_water, &claim, &mut effects);
        }
        for holder in [0, 1] {
            let mut after = resource.clone();
            after.expire_keepers(at(2), &mut high_water, &dead, &mut effects);
            let holders: Vec<_> = after.holders.iter().map(|holder| holder.contender).collect();
            let kept = if attachment == Attachment::Detached { vec![contender(holder)] } else { vec![] };
            assert_eq!(holders, kept, "{attachment:?}");
            let Request::Leave(leave) = leave(holder) else { unreachable!() };
            resource.leave(at(2), &mut high_water, &leave, &mut effects);
        }
    }
}

#[test]
fn latches_are_listed_in_order_page_by_page() {
    let mut model = Model::default();
    let latch = |text: &str| Name::new(text).expect("valid");
    for (seq, text) in ["b", "a", "ab", "ac"].into_iter().enumerate() {
        let op = ContenderId { keeper: KeeperId::from_u128(1), seq: seq as u64 };
        let action = CountAction::Create(seq as u64);
        model.count(at(1), &Count { name: latch(text), op, not_after: StoreTime(2), action });
    }
    let page = |prefix: &str, after: Option<&Name>, limit| {
        let query = ListQuery { prefix: prefix.into(), after: after.cloned(), limit };
        let LatchPage { latches, next } = model.latches(&query);
        (latches.into_iter().map(|(name, state)| (name.to_string(), state.initial)).collect::<Vec<_>>(), next)
    };
    let (first, next) = page("a", None, 2);
    assert_eq!(first, [("a".to_owned(), 1), ("ab".to_owned(), 2)]);
    assert_eq!(page("a", next.as_ref(), 2), (vec![("ac".to_owned(), 3)], None));
    assert_eq!(page("", None, 0).0.len(), 1, "at least one");
}
