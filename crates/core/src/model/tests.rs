//! The model's invariants (numbers as in `docs/design.md`), each as a property of random
//! sequences of steps: claims, repeated and late claims, renewals, leaves, evictions, time.

mod cases;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use proptest::prelude::*;

use super::*;
use crate::{
    id::{ContenderId, KeeperId},
    name::Name,
    share::{Capacity, Units},
    store::*,
    testing,
};

/// One random step. Contenders are small numbers: `who / 4` is the keeper.
#[derive(Clone, Debug)]
enum Op {
    Claim {
        who: u8,
        units: u8,
        queue: bool,
        lease: u8,
        life: u8,
    },
    /// A copy of the last claim of this contender, delivered late.
    Copy {
        who: u8,
    },
    Renew {
        who: u8,
        lease: u8,
        lower: bool,
        detach: bool,
    },
    Leave {
        who: u8,
        bury: u8,
        keep: u8,
    },
    Evict {
        who: u8,
        now: bool,
    },
    Pass {
        millis: u16,
    },
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let who = 0u8..12;
    let op = prop_oneof![
        6 => (who.clone(), 0u8..4, prop::bool::weighted(0.8), 1u8..6, 0u8..8)
            .prop_map(|(who, units, queue, lease, life)| Op::Claim { who, units, queue, lease, life }),
        2 => who.clone().prop_map(|who| Op::Copy { who }),
        3 => (who.clone(), 0u8..6, prop::bool::weighted(0.2), prop::bool::weighted(0.1))
            .prop_map(|(who, lease, lower, detach)| Op::Renew { who, lease, lower, detach }),
        4 => (who.clone(), 0u8..8, prop_oneof![4 => Just(0u8), 1 => 1u8..4])
            .prop_map(|(who, bury, keep)| Op::Leave { who, bury, keep }),
        1 => (who, any::<bool>()).prop_map(|(who, now)| Op::Evict { who, now }),
        3 => (0u16..5000).prop_map(|millis| Op::Pass { millis }),
    ];
    prop::collection::vec(op, 1..120)
}

fn contender(who: u8) -> ContenderId {
    ContenderId { keeper: KeeperId::from_u128(u128::from(who / 4) + 1), seq: u64::from(who) }
}

fn name() -> Name {
    Name::new("r").expect("valid")
}

const SECOND: Duration = Duration::from_secs(1);

/// The state before and after one step, and its effects.
struct Step<'a> {
    op: &'a Op,
    now: Now,
    before: &'a Model,
    after: &'a Model,
    effects: &'a Effects,
    verdict: Option<&'a Verdict>,
    left: Option<Left>,
    renewed: Option<Renewed>,
}

impl Step<'_> {
    fn holders(&self) -> Vec<HolderView> {
        self.after.inspect(self.now, &name()).map(|view| view.holders).unwrap_or_default()
    }

    fn who(&self) -> ContenderId {
        match *self.op {
            Op::Claim { who, .. }
            | Op::Copy { who }
            | Op::Renew { who, .. }
            | Op::Leave { who, .. }
            | Op::Evict { who, .. } => contender(who),
            Op::Pass { .. } => contender(255),
        }
    }

    /// Grants made by this step: to the asker itself if it did not hold before, and to waiters.
    fn grants(&self) -> Vec<(ContenderId, GrantNumber, GrantNumber)> {
        let held_before = |id| {
            self.before
                .resource(&name())
                .is_some_and(|resource| resource.holders.iter().any(|holder| holder.contender == id))
        };
        let mut grants: Vec<_> =
            self.effects.grants.iter().map(|grant| (grant.contender, grant.number, grant.floor)).collect();
        if let Some(Verdict::Granted(grant)) = self.verdict {
            let id = self.who();
            if !held_before(id) && !grants.iter().any(|(other, ..)| *other == id) {
                grants.push((id, grant.number, grant.floor));
            }
        }
        grants
    }
}

impl Step<'_> {
    /// The state before, with everything that ended meanwhile taken out.
    fn only_time_passed(&self) -> Model {
        let mut model = self.before.clone();
        let stranger = Leave {
            name: name(),
            contender: contender(u8::MAX),
            tombstone_until: None,
            hold_at_least: Duration::ZERO,
        };
        model.apply(self.now, &Request::Leave(stranger), &mut Effects::default());
        model
    }
}

/// Runs the steps on a resource of this capacity and shows each to `check`.
fn run(capacity: Capacity, ops: &[Op], mut check: impl FnMut(&Step<'_>)) -> Model {
    let mut model = Model::default();
    let mut now = Now { lease: StoreTime(1_000_000_000), wall: 5_000 };
    let mut sent: HashMap<u8, Claim> = HashMap::new();
    for op in ops {
        let before = model.clone();
        let mut effects = Effects::default();
        let (mut verdict, mut left, mut renewed) = (None, None, None);
        match *op {
            Op::Claim { who, units, queue, lease, life } => {
                let units = match (capacity, units) {
                    (Capacity::All, 0 | 1) => Units::All,
                    (Capacity::All, _) => Units::ONE,
                    (Capacity::Count(_), units) => Units::count(u32::from(units.max(1))).expect("not zero"),
                };
                let claim = Claim {
                    units,
                    capacity,
                    lease: SECOND * u32::from(lease),
                    queue,
                    not_after: now.lease.after(SECOND * u32::from(life)),
                    stamp: now.lease.0,
                    again: sent.contains_key(&who),
                    ..testing::claim(&name(), contender(who))
                };
                sent.insert(who, claim.clone());
                let Answer::Claim(answer) = model.apply(now, &Request::Claim(claim), &mut effects) else {
                    unreachable!()
                };
                verdict = Some(answer);
            }
            Op::Copy { who } => {
                if let Some(claim) = sent.get(&who) {
                    let Answer::Claim(answer) =
                        model.apply(now, &Request::Claim(claim.clone()), &mut effects)
                    else {
                        unreachable!()
                    };
                    verdict = Some(answer);
                }
            }
            Op::Renew { who, lease, lower, detach } => {
                let renew = Renew {
                    name: name(),
                    contender: contender(who),
                    lease: SECOND * u32::from(lease),
                    lower_to: lower.then_some(Units::ONE),
                    detach,
                    at_least: 0,
                };
                renewed = Some(model.renew(now, &renew, &mut effects));
            }
            Op::Leave { who, bury, keep } => {
                let leave = Leave {
                    name: name(),
                    contender: contender(who),
                    tombstone_until: (bury > 0).then(|| now.lease.after(SECOND * u32::from(bury))),
                    hold_at_least: SECOND * u32::from(keep),
                };
                let Answer::Leave(answer) = model.apply(now, &Request::Leave(leave), &mut effects) else {
                    unreachable!()
                };
                left = Some(answer);
            }
            Op::Evict { who, now: at_once } => {
                let number = before
                    .resource(&name())
                    .and_then(|resource| resource.holders.iter().find(|h| h.contender == contender(who)))
                    .map_or(1, |holder| holder.number);
                let order = Evict {
                    name: name(),
                    contender: contender(who),
                    number,
                    how: if at_once { Eviction::Immediate } else { Eviction::Graceful },
                    reason: None,
                };
                model.evict(now, &order, &mut effects);
            }
            Op::Pass { millis } => {
                now.lease = now.lease.after(Duration::from_millis(u64::from(millis)));
                // The wall clock follows for a while and then stands: numbers must grow anyway.
                now.wall = (now.wall + u64::from(millis)).min(20_000);
            }
        }
        check(&Step {
            op,
            now,
            before: &before,
            after: &model,
            effects: &effects,
            verdict: verdict.as_ref(),
            left,
            renewed,
        });
    }
    model
}

fn capacities() -> impl Strategy<Value = Capacity> {
    prop_oneof![Just(Capacity::All), (3u32..6).prop_map(|n| Capacity::count(n).expect("not zero"))]
}

proptest! {
    /// I1: nobody's hold ends by another's leave, renewal or late copy.
    #[test]
    fn i1_only_the_owner_touches_its_hold(capacity in capacities(), ops in ops()) {
        run(capacity, &ops, |step| {
            let Some(before) = step.before.resource(&name()) else { return };
            if matches!(step.op, Op::Pass { .. } | Op::Evict { .. }) {
                return;
            }
            for holder in before.holders.iter().filter(|h| h.contender != step.who() && h.expires > step.now.lease) {
                let after = step.after.resource(&name()).expect("still held");
                assert!(after.holders.contains(holder), "{holder:?} changed by {:?}", step.op);
            }
        });
    }

    /// I2: holders never exceed the capacity; an exclusive holder is alone.
    #[test]
    fn i2_holders_never_exceed_the_capacity(capacity in capacities(), ops in ops()) {
        run(capacity, &ops, |step| {
            let held: Vec<Units> = step.holders().iter().map(|holder| holder.units).collect();
            match capacity {
                Capacity::All => assert!(!held.contains(&Units::All) || held.len() == 1, "{held:?}"),
                Capacity::Count(most) => {
                    let sum: u32 = held.iter().map(|u| match u { Units::All => u32::MAX, Units::Count(n) => n.get() }).sum();
                    assert!(sum <= most.get(), "{held:?}");
                }
            }
        });
    }

    /// I6: every grant has a larger number than all before it, even if the wall clock goes back.
    #[test]
    fn i6_numbers_grow(capacity in capacities(), ops in ops()) {
        let mut last = 0;
        run(capacity, &ops, |step| {
            let mut grants = step.grants();
            grants.sort_by_key(|(_, number, _)| *number);
            for (_, number, _) in grants {
                assert!(number > last, "{number} after {last}");
                last = number;
            }
        });
    }

    /// I7: a grant's floor is the smallest number that holds, never above its own.
    #[test]
    fn i7_the_floor_is_the_oldest_holder(capacity in capacities(), ops in ops()) {
        run(capacity, &ops, |step| {
            for (_, number, floor) in step.grants() {
                assert!(floor <= number);
                // A contender that leaves in the step of a grant still held at the moment of that grant.
                let oldest = step.holders().first().map_or(number, |holder| holder.token.number());
                let leaving = matches!(step.op, Op::Leave { .. } | Op::Evict { .. });
                assert!(floor == oldest || (leaving && floor < oldest), "{floor} but {oldest}");
            }
        });
    }

    /// I8: a grant that nobody confirms ends after the first lease, with the keeper's other places.
    #[test]
    fn i8_crashed_keepers_are_passed(capacity in capacities(), ops in ops()) {
        let mut heard: HashSet<ContenderId> = HashSet::new();
        let mut pushed: HashMap<ContenderId, StoreTime> = HashMap::new();
        run(capacity, &ops, |step| {
            for grant in &step.effects.grants {
                pushed.insert(grant.contender, step.now.lease);
                heard.remove(&grant.contender);
            }
            if matches!(step.op, Op::Claim { .. } | Op::Copy { .. } | Op::Renew { .. }) {
                heard.insert(step.who());
            }
            for holder in step.holders() {
                if let Some(at) = pushed.get(&holder.contender).filter(|_| !heard.contains(&holder.contender)) {
                    assert!(step.now.lease.since(*at) < FIRST_LEASE, "{:?} was never heard of", holder.contender);
                }
            }
            for waiter in step.after.resource(&name()).iter().flat_map(|resource| &resource.queue) {
                let known = step.before.resource(&name()).is_some();
                assert!(known || waiter.asked == step.now.lease);
            }
        });
    }

    /// I8: a place lasts as long as its claim is asked again, though not every copy is written down.
    #[test]
    fn i8_asking_again_keeps_a_position(capacity in capacities(), ops in ops()) {
        run(capacity, &ops, |step| {
            let place = |model: &Model| {
                let queue = model.resource(&name()).map(|resource| &resource.queue);
                queue.into_iter().flatten().find(|waiter| waiter.contender == step.who()).cloned()
            };
            if let (Some(before), Some(after), Some(Verdict::Busy { .. })) =
                (place(step.before), place(step.after), step.verdict)
            {
                let now = step.now.lease;
                let (kept, fresh) = (after.asked == before.asked, before.asked.after(POSITION_KEPT) > now);
                // One whose keeper was silent, or that was away for too long, has come anew.
                assert!(if kept { fresh } else { after.asked == now }, "{before:?}, at {now:?}: {after:?}");
                // Time is measured from the copy whose stamp is kept. Claims here are stamped with the store's time.
                let (copy, stamp) = (matches!(step.op, Op::Copy { .. }), if kept { before.stamp } else { now.0 });
                assert!(after.stamp == stamp || copy && !kept, "{before:?}, at {now:?}: {after:?}");
            }
        });
    }

    /// I9: however often a claim arrives, a contender is at most once among holders and waiters,
    /// and one that has left with a tombstone does not come back before its time.
    #[test]
    fn i9_asking_again_never_enters_twice(capacity in capacities(), ops in ops()) {
        let mut buried: HashMap<ContenderId, StoreTime> = HashMap::new();
        run(capacity, &ops, |step| {
            if let Op::Leave { bury, .. } = *step.op {
                let until = step.now.lease.after(SECOND * u32::from(bury));
                let tombstone = buried.entry(step.who()).or_default();
                *tombstone = until.max(*tombstone);
            }
            let Some(resource) = step.after.resource(&name()) else { return };
            let everybody = resource.holders.iter().filter(|h| !h.retired).map(|h| h.contender)
                .chain(resource.queue.iter().map(|w| w.contender));
            let mut seen = HashSet::new();
            for id in everybody {
                assert!(seen.insert(id), "{id:?} is there twice");
                if matches!(step.op, Op::Claim { .. } | Op::Copy { .. }) && id == step.who() {
                    let late = buried.get(&id).is_some_and(|until| *until > step.now.lease);
                    assert!(!late, "{id:?} came back");
                }
            }
            if let Some(Verdict::Stale) = step.verdict && step.before.resource(&name()) != Some(resource) {
                // Time has passed: the effects that a stranger's request would have are not the copy's doing.
                assert_eq!(step.only_time_passed().resource(&name()), Some(resource), "a late copy did something");
            }
        });
    }

    /// I10: the first to come is granted first; nobody overtakes.
    #[test]
    fn i10_the_queue_is_in_order_of_arrival(capacity in capacities(), ops in ops()) {
        run(capacity, &ops, |step| {
            let line: Vec<ContenderId> =
                step.before.resource(&name()).iter().flat_map(|r| &r.queue).map(|w| w.contender).collect();
            let place = |id: &ContenderId| line.iter().position(|other| other == id).unwrap_or(usize::MAX);
            let granted: Vec<usize> = step.effects.grants.iter().map(|grant| place(&grant.contender)).collect();
            assert!(granted.is_sorted(), "granted out of order: {granted:?}");
            let still: HashSet<ContenderId> =
                step.after.resource(&name()).iter().flat_map(|r| &r.queue).map(|w| w.contender).collect();
            for (who, ..) in step.grants() {
                for ahead in line.iter().take(place(&who).min(line.len())) {
                    // A contender that lost its place and asks in this very step stands at the end again.
                    let back = *ahead == step.who();
                    assert!(back || !still.contains(ahead), "{who:?} overtook {ahead:?}");
                }
            }
        });
    }

    /// I11: a renewal never shortens a lease, and an ended one is not revived.
    #[test]
    fn i11_renewals_neither_shorten_nor_revive(capacity in capacities(), ops in ops()) {
        run(capacity, &ops, |step| {
            let Op::Renew { lease, .. } = *step.op else { return };
            let before = step.before.resource(&name())
                .and_then(|r| r.holders.iter().find(|h| h.contender == step.who() && !h.retired))
                .filter(|holder| holder.expires > step.now.lease);
            match (before, step.renewed.clone()) {
                (None, Some(renewed)) => {
                    let just_granted = step.effects.grants.iter().any(|g| g.contender == step.who());
                    assert!(just_granted || renewed == Renewed::Gone, "revived: {renewed:?}");
                }
                (Some(holder), Some(Renewed::Held(Grant { remaining, .. }))) => {
                    assert!(!holder.evicted);
                    assert!(remaining >= holder.expires.since(step.now.lease));
                    assert!(remaining >= SECOND * u32::from(lease));
                }
                (Some(holder), Some(Renewed::Evicted(_))) => assert!(holder.evicted),
                (_, other) => panic!("{other:?}"),
            }
        });
    }

    /// I12: once everybody has left and every kept hold is over, nothing is left behind.
    #[test]
    fn i12_a_free_resource_leaves_nothing_behind(capacity in capacities(), ops in ops()) {
        let mut all = ops;
        all.extend((0..12).map(|who| Op::Leave { who, bury: 0, keep: 0 }));
        all.push(Op::Pass { millis: 10_000 });
        all.extend((0..12).map(|who| Op::Leave { who, bury: 0, keep: 0 }));
        let model = run(capacity, &all, |_| {});
        assert_eq!(model.kept(), 0);
    }

    /// I15: an eviction hits the holder it names and nobody else; a leave tells whether it ended a hold.
    #[test]
    fn i15_leaves_and_evictions_say_what_they_did(capacity in capacities(), ops in ops()) {
        run(capacity, &ops, |step| {
            let live = |model: &Model| -> BTreeMap<ContenderId, bool> {
                model.resource(&name()).iter().flat_map(|r| &r.holders)
                    .filter(|h| h.expires > step.now.lease).map(|h| (h.contender, h.retired)).collect()
            };
            let (before, after) = (live(step.before), live(step.after));
            match step.left {
                Some(Left::Released) => {
                    assert!(before.get(&step.who()) == Some(&false) || step.effects.grants.iter().any(|g| g.contender == step.who()));
                    assert_ne!(after.get(&step.who()), Some(&false));
                }
                Some(Left::NotThere) => assert_ne!(before.get(&step.who()), Some(&false)),
                _ => {}
            }
            if let Op::Evict { now: true, .. } = step.op {
                assert!(!after.contains_key(&step.who()) || !before.contains_key(&step.who()));
            }
        });
    }

    /// I13: each latch operation counts once, however often it arrives.
    #[test]
    fn i13_latch_operations_count_once(
        ops in prop::collection::vec((0u64..20, 0u8..5, 0u64..4, 1usize..4, 0u16..3000), 1..60)
    ) {
        let mut model = Model::default();
        let mut now = Now { lease: StoreTime(1_000_000_000), wall: 1 };
        let mut twin = Counter::default();
        let mut high_water = HighWater::default();
        let mut done: HashMap<u64, Counted> = HashMap::new();
        for (id, action, by, copies, millis) in ops {
            now.lease = now.lease.after(Duration::from_millis(u64::from(millis)));
            let action = match action {
                0 => CountAction::Create(by),
                1 | 2 => CountAction::Down(by),
                3 => CountAction::Reset,
                _ => CountAction::Delete,
            };
            let count = Count {
                name: name(),
                op: contender(id as u8),
                not_after: now.lease.after(SECOND * 120),
                action,
            };
            let expected = *done.entry(id).or_insert_with(|| twin.step(now, &mut high_water, action));
            for _ in 0..copies {
                assert_eq!(model.count(now, &count), expected);
            }
        }
    }

    /// I7 at the fence: an admitted floor is never forgotten, and all that hold together pass.
    #[test]
    fn i7_the_fence_never_goes_back(tokens in prop::collection::vec((1u64..20, 0u64..5), 1..60)) {
        let mut model = Model::default();
        let mut highest = None;
        for (number, below) in tokens {
            let token = Token::new(number, 0);
            let floor = Token::new(number.saturating_sub(below).max(1), 0);
            let admitted = model.fence(&Admit { name: name(), token, floor });
            if highest.is_some_and(|highest| token < highest) {
                assert_eq!(admitted, Admitted::Stale { highest: highest.expect("seen") });
            } else {
                assert_eq!(admitted, Admitted::Yes);
                highest = highest.max(Some(floor));
            }
        }
    }
}
