//! Advice about hot locks: a reason and a remedy for each, as sentences.

use std::{collections::HashMap, sync::Arc, time::Duration};

use lockkeeper::{
    store::{Capacity, Kind, Units},
    support::duration,
};

use crate::{
    clock::Millis,
    curve::Use,
    history::{Past, Record, Who},
    window::Window,
};

/// A hold that is shorter than this is short: the way to the store costs about as much.
const SHORT: Millis = 100;

/// The reason why a lock is hot, and the remedy.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Advice {
    pub(crate) why: String,
    pub(crate) helps: String,
}

/// The facts about a lock's use in a window of time.
#[derive(Clone, Debug)]
pub(crate) struct Facts {
    kind: Kind,
    capacity: Capacity,
    window: Window,
    used: Use,
    /// How many holds were seen, and their length in all, cut to the window.
    holds: u64,
    held: Millis,
    longest: Option<(Arc<Who>, Millis)>,
    /// The share of all holds and waits that the busiest process has, in percent, and how many processes there are.
    busiest: u64,
    processes: usize,
    /// How many of the holds and waits only read.
    reads: u64,
    claims: u64,
    /// The first moment of the window at which it was seen in use.
    seen: Millis,
}

impl Facts {
    pub(crate) fn new(record: &Record, used: Use, now: Millis, window: Window) -> Self {
        let start = now.saturating_sub(window.length());
        let mut facts = Self {
            kind: record.kind,
            capacity: record.capacity,
            window,
            used,
            holds: 0,
            held: 0,
            longest: None,
            busiest: 0,
            processes: 0,
            reads: 0,
            claims: 0,
            seen: now,
        };
        let mut of_process: HashMap<(&str, &str, u32), u64> = HashMap::new();
        let mut claim = |facts: &mut Self, who, units, from: Millis| {
            let who: &Arc<Who> = who;
            *of_process.entry((&who.program, &who.host, who.pid)).or_default() += 1;
            facts.claims += 1;
            facts.reads += u64::from(units != Units::All);
            facts.seen = facts.seen.min(from.max(start));
        };
        let past = || record.past().rev();
        let past_holds =
            past().filter_map(|past| if let Past::Hold(hold) = past { Some(hold) } else { None });
        for hold in record.holds().iter().chain(past_holds).filter(|hold| hold.to > start) {
            claim(&mut facts, &hold.who, hold.units, hold.from);
            let held = hold.to - hold.from.max(start).min(hold.to);
            facts.holds += 1;
            facts.held += held;
            let whole = hold.to - hold.from;
            if facts.longest.as_ref().is_none_or(|(_, longest)| whole > *longest) {
                facts.longest = Some((hold.who.clone(), whole));
            }
        }
        let past_waits =
            past().filter_map(|past| if let Past::Wait(wait) = past { Some(wait) } else { None });
        for wait in record.waits().iter().chain(past_waits).filter(|wait| wait.to > start) {
            claim(&mut facts, &wait.who, wait.units, wait.from);
        }
        facts.processes = of_process.len();
        let most = of_process.into_values().max().unwrap_or(0);
        facts.busiest = (most * 100).checked_div(facts.claims).unwrap_or(0);
        facts
    }

    fn average(&self) -> Millis {
        self.held.checked_div(self.holds).unwrap_or(0)
    }

    /// Whether one hold takes most of the time.
    fn one_holder(&self) -> Option<(&Who, Millis)> {
        let (who, longest) = self.longest.as_ref()?;
        let most = longest.saturating_mul(2) >= self.window.length().min(self.held.max(1));
        (most && *longest >= 10_000 && self.used.waiters > 0).then_some((who, *longest))
    }

    pub(crate) fn advice(&self) -> Advice {
        let Use { waiters, changes, .. } = self.used;
        let minutes = match self.window.minutes() {
            1 => "the last minute".to_owned(),
            minutes => format!("the last {minutes} minutes"),
        };
        let said = |why: String, helps: &str| Advice { why, helps: helps.to_owned() };
        let average = show(self.average());
        if self.kind == Kind::Election {
            return said(
                format!("The leader changed {} in {minutes}.", times(changes)),
                "See whether leaders crash, lose their leases or step down: the page of this election shows how each ended.",
            );
        }
        if self.used.waited == 0 {
            return said(
                format!("It changed hands {} in {minutes}, and nobody had to wait for long.", times(changes)),
                "Nothing has to be done. If its rate grows, let one hold do the work of several.",
            );
        }
        if self.kind == Kind::Semaphore {
            return self.semaphore(&average);
        }
        if let Some((who, held)) = self.one_holder() {
            return said(
                format!("{} has held it for {} while up to {waiters} waited.", who.text(), show(held)),
                "See whether that holder is stuck. If it is only slow, hold the lock around less of its work, \
                 or do the work in pieces and release between them.",
            );
        }
        if self.kind == Kind::RwLock {
            return self.rw_lock(&average);
        }
        self.mutex(&average)
    }

    fn semaphore(&self, average: &str) -> Advice {
        let permits = self.capacity;
        let waiters = self.used.waiters;
        Advice {
            why: format!("All of its {permits} permits are in use for {average} at a time, and up to {waiters} waited."),
            helps: "Give it more permits if what it protects bears more at once; otherwise hold them for a shorter time."
                .to_owned(),
        }
    }

    fn rw_lock(&self, average: &str) -> Advice {
        let waiters = self.used.waiters;
        let reads = (self.reads * 100).checked_div(self.claims).unwrap_or(0);
        let (why, helps) = if reads >= 80 {
            (
                format!(
                    "{reads} % of its users only read, but each writer waits for all readers, and new readers wait \
                         behind the writer: up to {waiters} waited."
                ),
                "Make reads shorter, write less often, or read a copy that a writer replaces.",
            )
        } else {
            (
                format!("Many of its users write, for {average} at a time, and up to {waiters} waited."),
                "Write shorter, or split the name into segments so that writers of different parts do not meet.",
            )
        };
        Advice { why, helps: helps.to_owned() }
    }

    fn mutex(&self, average: &str) -> Advice {
        let waiters = self.used.waiters;
        if self.busiest >= 80 && self.claims > 4 {
            return Advice {
                why: format!("{} % of its users are tasks of one process, and up to {waiters} waited.", self.busiest),
                helps: "Share one keeper in that process and lock without .fifo() and min_hold: then the lock is handed \
                        on inside the process, without a request to the store."
                    .to_owned(),
            };
        }
        let users = self.processes;
        if self.average() <= SHORT {
            return Advice {
                why: format!("{users} processes take it in quick turns, and up to {waiters} waited."),
                helps: "Split it into segments (keeper.segmented) if its users work on different parts, or let one hold \
                        do the work of several."
                    .to_owned(),
            };
        }
        Advice {
            why: format!("{users} processes want it, each holds it for {average} on average, and up to {waiters} waited."),
            helps: "Hold it around less work. If most users only read, use a read-write lock; if they work on different \
                    parts, use segments (keeper.segmented)."
                .to_owned(),
        }
    }
}

fn times(count: u32) -> String {
    match count {
        1 => "once".to_owned(),
        count => format!("{count} times"),
    }
}

fn show(length: Millis) -> String {
    duration::show(Duration::from_millis(length))
}

#[cfg(test)]
mod tests {
    use lockkeeper::store::Name;

    use super::*;
    use crate::history::tests::{Seen, World, resource};

    fn advice(world: &World, name: &str) -> Advice {
        let record = world.history.record(&Name::new(name).expect("a name")).expect("a record");
        let used = Window::Five.sum(record, world.now);
        Facts::new(record, used, world.now, Window::Five).advice()
    }

    fn seen(times: u64, each: impl Fn(u64) -> Seen) -> Advice {
        let mut world = World::new();
        world.sample(&[]);
        for second in 0..times {
            world.sample(&[each(second)]);
        }
        advice(&world, "a")
    }

    #[test]
    fn one_long_holder_is_named() {
        let advice = seen(200, |_| resource("a").held_by(7).waited_by(8).waited_by(9));
        assert!(
            advice.why.contains("worker-7[7]@host-1 has held it for 3m19s while up to 2 waited"),
            "{advice:?}"
        );
        assert!(advice.helps.contains("stuck"), "{advice:?}");
    }

    #[test]
    fn many_users_are_told_of_segments_and_read_write_locks() {
        let advice = seen(100, |second| resource("a").held_by(10 + second / 2).waited_by(12 + second / 2));
        assert!(advice.why.contains("processes want it, each holds it for"), "{advice:?}");
        assert!(advice.helps.contains("read-write") && advice.helps.contains("segments"), "{advice:?}");
    }

    #[test]
    fn one_busy_process_is_told_of_hand_on() {
        let advice =
            seen(100, |second| resource("a").held_by_task(1, second / 2).waited_by_task(1, second / 2 + 1));
        assert!(advice.why.contains("100 % of its users are tasks of one process"), "{advice:?}");
        assert!(advice.helps.contains("handed on"), "{advice:?}");
    }

    #[test]
    fn semaphores_need_permits() {
        let advice =
            seen(100, |second| resource("a").semaphore(1).held_by(second / 2).waited_by(second / 2 + 1));
        assert!(advice.why.contains("All of its 1 permits"), "{advice:?}");
        assert!(advice.helps.contains("more permits"), "{advice:?}");
    }

    #[test]
    fn readers_and_writers_are_told_apart() {
        let advice = seen(100, |second| {
            let turn = second / 2;
            resource("a").rw_lock().held_by(turn).waited_by(turn + 1)
        });
        assert!(advice.why.contains("Many of its users write"), "{advice:?}");
        let advice = seen(100, |second| {
            let first = second / 2 * 10;
            let readers = (first..first + 9).fold(resource("a").rw_lock(), |seen, who| seen.read_by(who));
            readers.waited_by(100_000 + second / 2)
        });
        assert!(advice.why.contains("only read") && advice.helps.contains("reads shorter"), "{advice:?}");
    }

    #[test]
    fn quiet_turnover_needs_nothing_and_elections_are_their_own() {
        let advice = seen(30, |second| resource("a").held_by(second));
        assert!(advice.helps.contains("Nothing has to be done"), "{advice:?}");
        let advice = seen(3, |second| resource("a").election().held_by(second).waited_by(second + 1));
        assert!(advice.why.contains("leader changed 3 times"), "{advice:?}");
    }
}
