//! Alarms over samples in virtual time.

use super::*;
use crate::history::tests::{START, Seen, World, resource};

struct Test {
    world: World,
    alarms: Alarms,
}

impl Test {
    fn new(rules: &str) -> Self {
        let mut alarms = Alarms::default();
        alarms.set_rules(Rules::parse(rules).expect("good rules"));
        Self { world: World::new(), alarms }
    }

    /// Takes a sample, and returns the alarms that it raised or ended.
    fn sample(&mut self, seen: &[Seen]) -> Vec<String> {
        self.world.sample(seen);
        let locks = LocksSeen::Now(&self.world.history);
        let look = Look { now: self.world.now, locks, failing: None, findings: &[] };
        said(&self.alarms.look(&look))
    }

    fn samples(&mut self, count: usize, seen: &[Seen]) -> Vec<String> {
        (0..count).flat_map(|_| self.sample(seen)).collect()
    }

    fn fail(&mut self, since: Millis) -> Vec<String> {
        self.world.pass(1);
        let failing = Some(("refused", since));
        let look = Look { now: self.world.now, locks: LocksSeen::Unknown, failing, findings: &[] };
        said(&self.alarms.look(&look))
    }

    /// Gives the alarms the doctor's findings, without a sample of the locks.
    fn doctor(&mut self, findings: &[Finding]) -> Vec<String> {
        let look = Look { now: self.world.now, locks: LocksSeen::Before, failing: None, findings };
        said(&self.alarms.look(&look))
    }
}

fn said(events: &[Alarm]) -> Vec<String> {
    let each = events.iter().map(|alarm| {
        let at = |moment: Millis| (moment - START) / 1000;
        let ended = alarm
            .ended_ms
            .map_or_else(|| "on".to_owned(), |ended| format!("off {}-{}", at(alarm.since_ms), at(ended)));
        format!("{} {} {ended}", alarm.kind.word(), alarm.name.as_deref().unwrap_or("-"))
    });
    each.collect()
}

#[test]
fn held_too_long() {
    let mut test = Test::new("[[alarm]]\nheld = '10s'");
    test.sample(&[]);
    assert_eq!(test.samples(15, &[resource("a").held_by(1)]), ["held_too_long a on"]);
    let alarm = test.alarms.active().next().expect("an alarm").clone();
    assert_eq!(alarm.saw, "held for 14s by worker-1[1]@host-1; the limit is 10s");
    // The next holder has not held it for long.
    assert_eq!(test.samples(9, &[resource("a").held_by(2)]), ["held_too_long a off 13-16"]);
    assert_eq!(test.alarms.ended().count(), 1);
}

#[test]
fn waited_too_long_and_elections_wait_for_ever() {
    let mut test = Test::new("[[alarm]]\nnames = 'a'\nwaited = '10s'");
    let both = [resource("a").held_by(1).waited_by(2), resource("e").election().held_by(3).waited_by(4)];
    assert_eq!(test.samples(400, &both), ["waited_too_long a on"]);
    assert_eq!(test.samples(20, &[]), ["waited_too_long a off 12-400"]);
}

#[test]
fn too_many_waiters_do_not_flap() {
    let mut test = Test::new("[[alarm]]\nwaiters = 2\nwaited = 'off'");
    let crowd = || resource("a").held_by(1).waited_by(2).waited_by(3).waited_by(4);
    let few = || resource("a").held_by(1).waited_by(2);
    // Short crowds are no alarm.
    for _ in 0..5 {
        assert!(test.samples(8, &[crowd()]).is_empty());
        assert!(test.samples(2, &[few()]).is_empty());
    }
    assert_eq!(test.samples(15, &[crowd()]), ["too_many_waiters a on"]);
    // One alarm, however often it comes and goes.
    for _ in 0..20 {
        assert!(test.samples(20, &[few()]).is_empty());
        assert!(test.samples(3, &[crowd()]).is_empty());
    }
    assert_eq!(test.samples(40, &[few()]).len(), 1);
    assert_eq!(test.alarms.active().count(), 0);
}

#[test]
fn a_lease_that_is_not_renewed() {
    let mut test = Test::new("[[alarm]]\nnames = 'quiet'\nrenewal = 'off'");
    let mut events = Vec::new();
    for second in 0..18 {
        let left = 25_000 - second * 1000;
        events.extend(test.sample(&[
            resource("a").held_by(1).with_left(left),
            resource("quiet").held_by(2).with_left(left),
        ]));
    }
    assert_eq!(events, ["lease_not_renewed a on"]);
    // It is renewed again, but only just in time.
    let ended = test.samples(70, &[resource("a").held_by(1)]);
    assert_eq!(ended, ["lease_not_renewed a off 17-18"]);
}

#[test]
fn the_store_is_out_of_reach_and_alarms_about_locks_stay() {
    let mut test = Test::new("[[alarm]]\nheld = '3s'");
    test.sample(&[]);
    assert_eq!(test.samples(6, &[resource("a").held_by(1)]), ["held_too_long a on"]);
    let since = test.world.now + 1000;
    let events: Vec<String> = (0..60).flat_map(|_| test.fail(since)).collect();
    assert_eq!(events, ["store_out_of_reach - on"]);
    assert_eq!(test.alarms.active().count(), 2);
    assert_eq!(test.samples(12, &[resource("a").held_by(1)]), ["store_out_of_reach - off 8-67"]);
    assert_eq!(test.alarms.active().count(), 1);
}

#[test]
fn a_short_outage_is_no_alarm() {
    let mut test = Test::new("");
    test.sample(&[]);
    for _ in 0..5 {
        let since = test.world.now + 1000;
        for _ in 0..4 {
            assert!(test.fail(since).is_empty());
        }
        assert!(test.sample(&[]).is_empty());
    }
}

#[test]
fn there_is_an_end_to_alarms() {
    let mut test = Test::new("[[alarm]]\nheld = '1s'");
    let seen: Vec<Seen> =
        (0..MOST as u64 + 50).map(|place| resource(format!("lock-{place}").leak()).held_by(place)).collect();
    test.sample(&[]);
    test.samples(4, &seen);
    assert_eq!((test.alarms.active().count(), test.alarms.left_off().count()), (MOST, 50));
    test.samples(10, &[]);
    assert_eq!((test.alarms.active().count(), test.alarms.left_off().count()), (0, 0));
    assert_eq!(test.alarms.ended().count(), MOST_ENDED);
}

#[test]
fn rules_that_change_take_effect() {
    let mut test = Test::new("[[alarm]]\nheld = '5s'");
    test.sample(&[]);
    assert_eq!(test.samples(10, &[resource("a").held_by(1)]).len(), 1);
    test.alarms.set_rules(Rules::parse("[[alarm]]\nheld = 'off'").expect("good rules"));
    assert_eq!(test.samples(10, &[resource("a").held_by(1)]).len(), 1);
    assert_eq!(test.alarms.active().count(), 0);
}

#[test]
fn too_many_alarms_about_locks_leave_room_for_others() {
    let mut test = Test::new("[[alarm]]\nheld = '1s'");
    let old = |place: u64| resource(format!("lock-{place}").leak()).held_by(place);
    let mut seen: Vec<Seen> = (0..2 * MOST as u64).map(old).collect();
    test.sample(&[]);
    test.samples(4, &seen);
    assert_eq!(test.alarms.left_off().count(), MOST);
    // A late lease among them is told.
    seen.push(resource("late").held_by(1));
    test.samples(6, &seen);
    let late = |second: u64| resource("late").held_by(1).with_left(20_000 - second * 1000);
    let mut events = Vec::new();
    for second in 0..15 {
        *seen.last_mut().expect("one") = late(second);
        events.extend(test.sample(&seen));
    }
    assert_eq!(events, ["lease_not_renewed late on"]);
    // So is a store that is gone.
    let since = test.world.now;
    let events: Vec<String> = (0..10).flat_map(|_| test.fail(since)).collect();
    assert_eq!(events, ["store_out_of_reach - on"]);
    assert_eq!(test.alarms.left_off().count(), MOST + 1, "it is still known what was left off");
}

#[test]
fn a_queue_in_which_each_waits_for_too_long_is_one_alarm() {
    let mut test = Test::new("[[alarm]]\nwaited = '50s'");
    let mut events = Vec::new();
    for second in 0..1000 {
        // Each holds it for 20 s, after it has waited behind three others.
        let turn = second / 20;
        events.extend(test.sample(&[
            resource("a").held_by(turn).waited_by(turn + 1).waited_by(turn + 2).waited_by(turn + 3),
        ]));
    }
    assert_eq!(events, ["waited_too_long a on"]);
    // It ends soon once nobody waits.
    assert_eq!(test.samples(12, &[resource("a").held_by(1)]).len(), 1);
}

#[test]
fn holders_of_one_semaphore_that_take_turns_are_one_alarm() {
    let mut test = Test::new("[[alarm]]\nheld = '60s'");
    let mut events = Vec::new();
    for second in 0..1000 {
        // Five holders, each for 62 s or a little more.
        let seen = (0..5).fold(resource("a").semaphore(5), |seen, place| {
            seen.read_by(100 * place + (second + place * 13) / 65)
        });
        events.extend(test.sample(&[seen]));
    }
    assert_eq!(events, ["held_too_long a on"]);
}

#[test]
fn late_renewals_of_a_long_lease_are_one_alarm() {
    let mut test = Test::new("");
    let mut events = Vec::new();
    for second in 0..3000 {
        // A lease of ten minutes that is renewed after seven.
        let left = 600_000 - second % 420 * 1000;
        events.extend(test.sample(&[resource("a").held_by(1).with_lease(600_000).with_left(left)]));
    }
    assert_eq!(events, ["lease_not_renewed a on"]);
}

#[test]
fn a_minimum_hold_is_not_late() {
    let mut test = Test::new("[[alarm]]\nheld = 'off'");
    let held = |left: u64| resource("a").held_by(1).with_lease(600_000).with_left(left);
    // Renewals of 30 s do not shorten the first lease of ten minutes.
    for left in (30..600).rev() {
        assert!(test.sample(&[held(left * 1000)]).is_empty(), "{left}");
    }
    for second in 0..100 {
        assert!(test.sample(&[held(30_000 - second % 10 * 1000)]).is_empty());
    }
    // When its renewals end, it is late.
    let events: Vec<String> =
        (0..25).flat_map(|second| test.sample(&[held(30_000 - second * 1000)])).collect();
    assert_eq!(events, ["lease_not_renewed a on"]);
}

#[test]
fn numbers_are_of_one_run_only() {
    let first = |test: &mut Test| {
        test.samples(3, &[resource("a").held_by(1).since(START - 9_000_000)]);
        test.alarms.active().next().expect("an alarm").id
    };
    let ids: std::collections::BTreeSet<u64> = (0..20).map(|_| first(&mut Test::new(""))).collect();
    // They began in the same millisecond.
    assert!(ids.len() > 10, "{ids:?}");
    assert!(ids.iter().all(|id| *id > START * 1000 && *id < 1 << 53));
}

fn clock_differs(by: &str) -> Finding {
    Finding { server: Some("s".into()), risk: "Clock".into(), message: format!("clocks differ by {by}") }
}

#[test]
fn a_finding_that_is_measured_anew_is_the_same_alarm() {
    let mut test = Test::new("");
    test.sample(&[]);
    assert_eq!(test.doctor(&[clock_differs("2.1s")]), ["doctor - on"]);
    test.world.pass(600);
    assert!(test.doctor(&[clock_differs("2.2s")]).is_empty());
    let alarm = test.alarms.active().next().expect("an alarm");
    assert!(alarm.saw.contains("2.2s"), "{alarm:?}");
    // Another one of the same kind is another alarm.
    test.world.pass(600);
    assert_eq!(test.doctor(&[clock_differs("2s"), clock_differs("3s")]), ["doctor - on"]);
    test.world.pass(600);
    assert_eq!(test.doctor(&[]).len(), 2);
}

#[test]
fn the_doctor_does_not_change_alarms_about_locks() {
    let mut test = Test::new("[[alarm]]\nwaiters = 1\nwaited = 'off'");
    let crowd = resource("a").held_by(1).waited_by(2).waited_by(3);
    assert_eq!(test.samples(20, &[crowd]).len(), 1);
    test.samples(20, &[]);
    test.doctor(&[clock_differs("2s")]);
    // The crowd was gone since second 20, no matter who looked meanwhile.
    let ended: Vec<String> = test.samples(20, &[]).into_iter().filter(|it| it.starts_with("too")).collect();
    assert_eq!(ended, ["too_many_waiters a off 1-20"]);
}

#[test]
fn moments_that_come_in_the_wrong_order_do_no_harm() {
    let mut test = Test::new("[[alarm]]\nheld = '3s'");
    test.samples(6, &[resource("a").held_by(1)]);
    test.world.now += 500;
    test.doctor(&[clock_differs("2s")]);
    test.world.now -= 1_505;
    test.sample(&[resource("a").held_by(1)]);
    let since = test.world.now + 3_000;
    test.fail(since);
    assert!(test.alarms.active().all(|alarm| !alarm.saw.contains("million")), "{:?}", test.alarms);
}

#[test]
fn names_are_matched_once_until_the_rules_change() {
    let mut test = Test::new("[[alarm]]\nheld = '3s'");
    test.sample(&[resource("a").held_by(1)]);
    let name = Name::new("a").expect("a name");
    let known = |test: &Test| {
        let record = test.world.history.record(&name).expect("a record");
        record.limits.get().expect("known")
    };
    let before = known(&test);
    assert_eq!(before.limits.held.at(), Some(std::time::Duration::from_secs(3)));
    // Known limits are believed: no name is matched anew.
    let other = Limits { renewal: false, ..before.limits };
    let record = test.world.history.record(&name).expect("a record");
    record.limits.set(Some(KnownLimits { limits: other, ..before }));
    test.sample(&[resource("a").held_by(1)]);
    assert_eq!(known(&test).limits, other);
    test.alarms.set_rules(Rules::parse("[[alarm]]\nheld = '9s'").expect("good rules"));
    test.sample(&[resource("a").held_by(1)]);
    assert_eq!(known(&test).limits.held.at(), Some(std::time::Duration::from_secs(9)));
}

#[test]
fn limits_for_all_names_are_not_for_elections() {
    for rule in ["held = '10s'\nwaited = '10s'\nwaiters = 0", "names = '*'\nwaited = '10s'"] {
        let mut test = Test::new(&format!("[[alarm]]\n{rule}"));
        assert!(test.samples(100, &[resource("e").election().held_by(3).waited_by(4)]).is_empty(), "{rule}");
    }
    let mut test = Test::new("[[alarm]]\nnames = ['*', 'e']\nwaited = '10s'");
    assert_eq!(
        test.samples(100, &[resource("e").election().held_by(3).waited_by(4)]),
        ["waited_too_long e on"]
    );
}
