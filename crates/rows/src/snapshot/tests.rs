//! A store made of rows alone, beside the model.

use std::{
    collections::{BTreeMap, HashMap},
    ops::Range,
    time::Duration,
};

use lockkeeper_core::{
    Capacity, ContenderId, Units,
    model::{Effects, Model},
    store::{Claim, Eviction, GrantNotice, Leave, Left, StoreTime, Verdict},
};
use proptest::prelude::*;

use super::*;
use crate::{
    EntryRow, Needs, ResourceRow, RowChange, RowHolder, Writes,
    samples::{at, claim, claims, contender, leave, leaves, name},
};

/// Rows as a store keeps them.
#[derive(Debug, Default)]
struct Rows {
    /// The row of a new name.
    fresh: ResourceRow,
    /// One mark for all names, if marks are not kept per name.
    floor: HighWater,
    resources: HashMap<Name, (ResourceRow, BTreeMap<ContenderId, EntryRow>)>,
    tombstones: HashMap<ContenderId, StoreTime>,
}

impl Rows {
    fn snapshot(&self, now: Now, names: impl IntoIterator<Item = Name>) -> Snapshot {
        let rows = |name: &Name| match self.resources.get(name) {
            Some((row, entries)) => Stored { row: row.clone(), entries: entries.values().cloned().collect() },
            None => Stored { row: self.fresh.clone(), entries: Vec::new() },
        };
        let tombstones = self.tombstones.iter();
        Snapshot {
            now,
            floor: self.floor,
            resources: names.into_iter().map(|name| (name.clone(), rows(&name))).collect(),
            tombstones: tombstones
                .map(|(contender, until)| Tombstone { contender: *contender, until: *until })
                .collect(),
        }
    }

    fn write(&mut self, writes: Writes) {
        for writes in writes.resources {
            let fresh = || (self.fresh.clone(), BTreeMap::new());
            let (row, entries) = self.resources.entry(writes.name).or_insert_with(fresh);
            if writes.row_changed {
                *row = writes.row;
            }
            for change in writes.entries {
                match change {
                    RowChange::Remove(before) => drop(entries.remove(&before.contender)),
                    RowChange::Put { after, .. } => drop(entries.insert(after.contender, after)),
                }
            }
        }
        for tombstone in writes.tombstones {
            let until = self.tombstones.entry(tombstone.contender).or_insert(tombstone.until);
            *until = tombstone.until.max(*until);
        }
        if self.fresh.holder == RowHolder::NoRoom {
            self.floor = writes.high_water.unwrap_or(self.floor).max(self.floor);
        }
    }
}

#[derive(Clone, Debug)]
enum Step {
    Apply(Vec<Request>),
    Renew(Vec<Renew>),
    Evict(Evict),
}

const NAMES: [&str; 2] = ["a", "b"];

fn requests(at_least: Range<u64>) -> impl Strategy<Value = Request> {
    let resource = prop::sample::select(&NAMES[..]);
    let claim = (resource.clone(), 1..6_u64, 0..3_u32, 0..8_u64, any::<bool>(), at_least).prop_map(
        |(resource, seq, units, until, queue, at_least)| {
            let units = Units::count(units).unwrap_or(Units::All);
            let capacity = if resource == "b" { Capacity::count(2).expect("valid") } else { Capacity::All };
            let not_after = at(until * 10).lease;
            Request::Claim(Claim { units, capacity, not_after, queue, at_least, ..claim(resource, seq) })
        },
    );
    let leave = (resource, 1..6_u64, prop::option::of(0..40_u64), 0..3_u64).prop_map(
        |(resource, seq, until, seconds)| {
            let tombstone_until = until.map(|until| at(until).lease);
            let hold_at_least = Duration::from_secs(seconds);
            Request::Leave(Leave { tombstone_until, hold_at_least, ..leave(resource, seq) })
        },
    );
    prop_oneof![3 => claim, 2 => leave]
}

/// Steps with numbers that are asked for in this range.
fn steps(at_least: Range<u64>) -> impl Strategy<Value = Step> {
    let resource = prop::sample::select(&NAMES[..]);
    let renew = (resource.clone(), 1..6_u64, 0..20_u64, any::<bool>(), at_least.clone()).prop_map(
        |(resource, seq, seconds, lower, at_least)| Renew {
            name: name(resource),
            contender: contender(seq),
            lease: Duration::from_secs(seconds),
            lower_to: lower.then_some(Units::ONE),
            detach: seconds == 7,
            at_least,
        },
    );
    let evict = (resource, 1..6_u64, any::<bool>()).prop_map(|(resource, seq, at_once)| Evict {
        name: name(resource),
        contender: contender(seq),
        number: 0,
        how: if at_once { Eviction::Immediate } else { Eviction::Graceful },
        reason: Some("why".into()),
    });
    prop_oneof![
        5 => prop::collection::vec(requests(at_least), 1..5).prop_map(Step::Apply),
        2 => prop::collection::vec(renew, 1..3).prop_map(Step::Renew),
        1 => evict.prop_map(Step::Evict),
    ]
}

/// The effects of a step: its answers as text, since they have no equality, its grants, and whether holders changed.
type Told = (String, Vec<GrantNotice>, bool);

fn in_rows(rows: &mut Rows, now: Now, step: &Step) -> Told {
    let snapshot = |names: Needs| rows.snapshot(now, names.names.into_iter().map(|needed| needed.name));
    let (writes, wakes, answers) = match step {
        Step::Apply(group) => {
            let outcome = snapshot(Needs::of(group)).apply(group).expect("good rows");
            (outcome.writes, outcome.wakes, format!("{:?}", outcome.answers))
        }
        Step::Renew(leases) => {
            let outcome = snapshot(Needs::of_renewals(leases)).renew(leases).expect("good rows");
            (outcome.writes, outcome.wakes, format!("{:?}", outcome.answers))
        }
        Step::Evict(order) => {
            let outcome = rows.snapshot(now, [order.name.clone()]).evict(order).expect("good rows");
            let answers: Vec<_> = outcome.answers.into_iter().map(|answer| answer.expect("locked")).collect();
            (outcome.writes, outcome.wakes, format!("{answers:?}"))
        }
    };
    rows.write(writes);
    (answers, wakes.grants.into_iter().map(|(_, grant)| grant).collect(), !wakes.changed.is_empty())
}

fn in_model(model: &mut Model, now: Now, step: &Step) -> Told {
    let mut effects = Effects::default();
    let answers = match step {
        Step::Apply(group) => {
            let answers: Vec<_> =
                group.iter().map(|request| model.apply(now, request, &mut effects)).collect();
            format!("{answers:?}")
        }
        Step::Renew(leases) => {
            let answers: Vec<_> = leases.iter().map(|renew| model.renew(now, renew, &mut effects)).collect();
            format!("{answers:?}")
        }
        Step::Evict(order) => format!("{:?}", [model.evict(now, order, &mut effects)]),
    };
    // A grant that was taken back in the same step is not told.
    let resources = NAMES.map(|text| model.resource(&name(text)));
    effects.grants.retain(|grant| {
        let mut holders = resources.iter().flatten().flat_map(|resource| &resource.holders);
        holders.any(|holder| (holder.contender, holder.number) == (grant.contender, grant.number))
    });
    (answers, effects.grants, effects.changed)
}

/// Fills in the number of the grant, which an order names.
fn with_number(step: &Step, model: &Model) -> Step {
    let Step::Evict(order) = step else { return step.clone() };
    let holders = model.resource(&order.name).map(|resource| &resource.holders);
    let holder =
        holders.and_then(|holders| holders.iter().find(|holder| holder.contender == order.contender));
    Step::Evict(Evict { number: holder.map_or(1, |holder| holder.number), ..order.clone() })
}

fn same_as_the_model(fresh: ResourceRow, steps: &[(u64, Step)]) {
    let (mut rows, mut model) = (Rows { fresh, ..Rows::default() }, Model::default());
    let mut seconds = 0;
    for (turn, (pause, step)) in (1..).zip(steps) {
        seconds += pause;
        // The wall clock is far ahead of all numbers before, so marks per name and one for all give the same numbers.
        let now = Now { wall: turn * 1000, ..at(seconds) };
        let step = with_number(step, &model);
        assert_eq!(in_rows(&mut rows, now, &step), in_model(&mut model, now, &step), "{step:?}");
        for text in NAMES {
            let (_, stored) = rows.snapshot(now, [name(text)]).resources.remove(0);
            let view = crate::view(&name(text), stored, now).expect("good rows");
            assert_eq!(view, model.inspect(now, &name(text)), "after {step:?}");
        }
    }
}

fn with_room() -> ResourceRow {
    ResourceRow { holder: RowHolder::Vacant, ..ResourceRow::default() }
}

proptest! {
    #[test]
    fn rows_behave_as_the_model(steps in prop::collection::vec((0..6_u64, steps(0..1)), 1..40)) {
        same_as_the_model(ResourceRow::default(), &steps);
        same_as_the_model(with_room(), &steps);
    }

    #[test]
    fn i6_a_name_has_a_mark_above_all_its_numbers(steps in prop::collection::vec((0..6_u64, steps(0..90)), 1..40)) {
        let mut rows = Rows { fresh: with_room(), ..Rows::default() };
        let (mut seconds, mut marks) = (0, [0; NAMES.len()]);
        for (pause, step) in &steps {
            seconds += pause;
            in_rows(&mut rows, Now { wall: 1, ..at(seconds) }, step);
            for (text, mark) in NAMES.iter().zip(&mut marks) {
                let Some((row, entries)) = rows.resources.get(&name(text)) else { continue };
                let in_row = row.holder.row().into_iter();
                let holders = in_row.chain(entries.values().filter(|entry| !entry.queued));
                let highest = holders.map(|holder| holder.number).max().unwrap_or_default();
                prop_assert!(row.high_water >= highest, "{} has {highest}: {row:?} after {step:?}", text);
                prop_assert!(row.high_water >= *mark, "the mark of {} went back after {step:?}", text);
                *mark = row.high_water;
            }
        }
    }
}

/// Two names are renewed together, the first of which has the higher mark.
#[test]
fn i6_a_raised_number_raises_the_mark_of_its_own_name() {
    let mut rows = Rows { fresh: with_room(), ..Rows::default() };
    let now = Now { wall: 0, ..at(1) };
    let group = |rows: &mut Rows, group: &[Request]| {
        let names = Needs::of(group).names.into_iter().map(|needed| needed.name);
        let outcome = rows.snapshot(now, names).apply(group).expect("good rows");
        rows.write(outcome.writes);
        outcome.answers
    };
    let numbered = |resource, seq, at_least| Request::Claim(Claim { at_least, ..claim(resource, seq) });
    group(&mut rows, &[numbered("a", 1, 100)]);
    group(&mut rows, &[numbered("b", 2, 50)]);
    let renew = |resource, seq, at_least| Renew {
        name: name(resource),
        contender: contender(seq),
        lease: Duration::from_secs(10),
        lower_to: None,
        detach: false,
        at_least,
    };
    let leases = [renew("a", 1, 0), renew("b", 2, 80)];
    let outcome = rows.snapshot(now, [name("a"), name("b")]).renew(&leases).expect("good rows");
    assert!(matches!(outcome.answers[1], Renewed::Held(grant) if grant.number == 80), "{outcome:?}");
    rows.write(outcome.writes);
    group(&mut rows, &[leaves("b", 2)]);
    let answers = group(&mut rows, &[numbered("b", 3, 60)]);
    let [Answer::Claim(Verdict::Granted(grant))] = &answers[..] else { panic!("{answers:?}") };
    assert!(grant.number > 80, "above the earlier number: {grant:?}");
}

#[test]
fn a_name_that_was_not_locked_is_answered_not_now_and_others_go_on() {
    let rows = Rows::default();
    let until = Some(StoreTime(u64::MAX));
    let left = Request::Leave(Leave { tombstone_until: until, ..leave("busy", 2) });
    let group = [claims("busy", 1), left, claims("stock", 3)];
    let outcome = rows.snapshot(at(1), [name("stock")]).apply(&group).expect("good rows");
    let [
        Answer::Claim(Verdict::NotNow(error)),
        Answer::Leave(Left::NotNow),
        Answer::Claim(Verdict::Granted(_)),
    ] = &outcome.answers[..]
    else {
        panic!("{outcome:?}")
    };
    assert!(error.is_passing() && !error.maybe_applied(), "{error:?}");
    let written: Vec<_> = outcome.writes.resources.iter().map(|writes| &writes.name).collect();
    assert_eq!((written, outcome.writes.tombstones), (vec![&name("stock")], vec![]));
    let renew = Renew {
        name: name("busy"),
        contender: contender(1),
        lease: Duration::ZERO,
        lower_to: None,
        detach: false,
        at_least: 0,
    };
    let renewed = rows.snapshot(at(1), []).renew(&[renew]).expect("good rows");
    assert_eq!(renewed.answers, [Renewed::Unknown]);
    let order = Evict {
        name: name("busy"),
        contender: contender(1),
        number: 1,
        how: Eviction::Immediate,
        reason: None,
    };
    assert_eq!(rows.snapshot(at(1), []).evict(&order).expect("good rows").answers, [None]);
}

#[test]
fn numbers_are_above_the_mark_of_the_name_and_the_floor() {
    let number = |floor, high_water| {
        let row = ResourceRow { high_water, ..with_room() };
        let resources = vec![(name("stock"), Stored { row, entries: Vec::new() })];
        let snapshot = Snapshot { now: at(1), floor: HighWater(floor), resources, tombstones: Vec::new() };
        let outcome = snapshot.apply(&[claims("stock", 1)]).expect("good rows");
        let writes = &outcome.writes.resources[0];
        assert_eq!(outcome.writes.high_water, Some(HighWater(writes.row.high_water.cast_unsigned())));
        writes.row.high_water
    };
    assert_eq!([number(0, 0), number(200, 0), number(0, 300), number(400, 300)], [100, 201, 301, 401]);
}

#[test]
fn only_what_gives_somebody_something_has_to_be_durable() {
    let mut rows = Rows { fresh: with_room(), ..Rows::default() };
    let tombstone = Request::Leave(Leave { tombstone_until: Some(StoreTime(u64::MAX)), ..leave("stock", 9) });
    for (request, writes_something, gives) in [
        (claims("stock", 1), true, true),
        (claims("stock", 2), true, false),
        (claims("stock", 2), false, false),
        (leaves("stock", 1), true, true),
        (leaves("stock", 2), true, false),
        (leaves("stock", 2), false, false),
        (tombstone, true, true),
    ] {
        let outcome =
            rows.snapshot(at(1), [name("stock")]).apply(std::slice::from_ref(&request)).expect("good rows");
        let writes = outcome.writes;
        assert_eq!((!writes.is_empty(), writes.gives), (writes_something, gives), "{request:?}");
        rows.write(writes);
    }
}

/// An operator was told that it is gone, so a power cut must not bring it back.
#[test]
fn an_eviction_has_to_be_durable_even_if_nobody_waits() {
    for how in [Eviction::Immediate, Eviction::Graceful] {
        let mut rows = Rows { fresh: with_room(), ..Rows::default() };
        let claimed = rows.snapshot(at(1), [name("stock")]).apply(&[claims("stock", 1)]).expect("good rows");
        let [Answer::Claim(Verdict::Granted(grant))] = &claimed.answers[..] else { panic!("{claimed:?}") };
        let order =
            Evict { name: name("stock"), contender: contender(1), number: grant.number, how, reason: None };
        rows.write(claimed.writes);
        let evicted = rows.snapshot(at(1), [name("stock")]).evict(&order).expect("good rows");
        assert_eq!(
            (&evicted.answers[..], evicted.writes.gives),
            (&[Some(Evicted::Done)][..], true),
            "{how:?}"
        );
        rows.write(evicted.writes);
        let order = Evict { number: grant.number + 1, ..order };
        let not_held = rows.snapshot(at(1), [name("stock")]).evict(&order).expect("good rows");
        assert_eq!((&not_held.answers[..], not_held.writes.gives), (&[Some(Evicted::NotHeld)][..], false));
    }
}
