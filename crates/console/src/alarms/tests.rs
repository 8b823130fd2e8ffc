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

    /// One sample, and what it brought about.
    fn sample(&mut self, seen: &[Seen]) -> Vec<String> {
        self.world.sample(seen);
        let look =
            Look { now: self.world.now, history: Some(&self.world.history), failing: None, findings: &[] };
        said(&self.alarms.look(&look))
    }

    fn samples(&mut self, count: usize, seen: &[Seen]) -> Vec<String> {
        (0..count).flat_map(|_| self.sample(seen)).collect()
    }

    fn fail(&mut self, since: Millis) -> Vec<String> {
        self.world.pass(1);
        let look =
            Look { now: self.world.now, history: None, failing: Some(("refused", since)), findings: &[] };
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
    assert_eq!((test.alarms.active().count(), test.alarms.left_off()), (MOST, 50));
    test.samples(10, &[]);
    assert_eq!((test.alarms.active().count(), test.alarms.left_off()), (0, 0));
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
