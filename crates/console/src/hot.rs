//! Hot locks: locks whose waiters wait the longest, that have the most waiters, or that change hands the most.

use std::cmp::Reverse;

use lockkeeper::store::{Kind, Name};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{
    advice::{Advice, Facts},
    clock::Millis,
    curve::Use,
    history::{History, Record},
    window::Window,
};

/// The most hot locks that are shown.
const MOST: usize = 20;

/// The measure that makes a lock hot.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Deserialize, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum By {
    /// How long its waiters waited, all of them together.
    #[default]
    Waiting,
    /// The most waiters at a time.
    Waiters,
    /// How often it changed hands.
    Turnover,
}

impl By {
    fn key(self, used: Use) -> [u64; 3] {
        let Use { waited, waiters, changes } = used;
        let (waiters, changes) = (u64::from(waiters), u64::from(changes));
        match self {
            Self::Waiting => [waited, waiters, changes],
            Self::Waiters => [waiters, waited, changes],
            Self::Turnover => [changes, waited, waiters],
        }
    }
}

/// A hot lock.
#[derive(Clone, Debug)]
pub(crate) struct Hot {
    pub(crate) name: Name,
    pub(crate) kind: Kind,
    pub(crate) used: Use,
    pub(crate) points: Vec<Use>,
    pub(crate) waiters_now: usize,
    pub(crate) advice: Advice,
}

/// Returns the use of a lock as it counts here: candidates of an election wait by design.
fn counted(record: &Record, used: Use) -> Use {
    match record.kind {
        Kind::Election => Use { waited: 0, waiters: 0, ..used },
        _ => used,
    }
}

/// Returns the hottest locks, the hottest first.
pub(crate) fn hottest(
    history: &History,
    now: Millis,
    window: Window,
    by: By,
    may_see: impl Fn(&Name) -> bool,
) -> Vec<Hot> {
    let mut found: Vec<_> = history
        .records()
        .map(|(name, record)| (name, record, counted(record, window.sum(record, now))))
        // A lock that is taken now and then and that nobody waits for is in use, not hot.
        .filter(|(name, _, used)| (used.waited > 0 || used.changes > 1) && may_see(name))
        .collect();
    found.sort_by(|(name, _, used), (other_name, _, other)| {
        (Reverse(by.key(*used)), name).cmp(&(Reverse(by.key(*other)), other_name))
    });
    found.truncate(MOST);
    let hot = |(name, record, used): (&Name, &Record, Use)| {
        let facts = Facts::new(record, used, now, window);
        Hot {
            name: name.clone(),
            kind: record.kind,
            used,
            points: window.points(record, now).into_iter().map(|used| counted(record, used)).collect(),
            waiters_now: record.waits().len(),
            advice: facts.advice(),
        }
    };
    found.into_iter().map(hot).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::tests::{World, resource};

    fn names(world: &World, by: By) -> Vec<String> {
        let hot = hottest(&world.history, world.now, Window::Five, by, |_| true);
        hot.iter().map(|hot| hot.name.to_string()).collect()
    }

    #[test]
    fn ranked_by_waiting_waiters_and_turnover() {
        let mut world = World::new();
        world.sample(&[]);
        for second in 0..40 {
            let turns = resource("turns").held_by(100 + second);
            let long = resource("long").held_by(1).waited_by(2);
            let mut crowd = resource("crowd").held_by(1);
            for waiter in (10..14).filter(|_| second < 4) {
                crowd = crowd.waited_by(waiter);
            }
            let leader = resource("leader").election().held_by(3).waited_by(4).waited_by(5);
            world.sample(&[turns, long, crowd, leader]);
        }
        assert_eq!(names(&world, By::Waiting), ["long", "crowd", "turns"]);
        assert_eq!(names(&world, By::Waiters), ["crowd", "long", "turns"]);
        assert_eq!(names(&world, By::Turnover), ["turns", "long", "crowd"]);
    }

    #[test]
    fn what_is_over_cools_down() {
        let mut world = World::new();
        world.sample(&[]);
        for _ in 0..10 {
            world.sample(&[resource("hot").held_by(1).waited_by(2)]);
        }
        assert_eq!(names(&world, By::Waiting), ["hot"]);
        world.pass(301);
        world.sample(&[]);
        assert!(names(&world, By::Waiting).is_empty());
        let hour = hottest(&world.history, world.now, Window::Sixty, By::Waiting, |_| true);
        assert_eq!(hour.len(), 1);
        assert_eq!(hour[0].points.len(), 60);
        assert!(hottest(&world.history, world.now, Window::Sixty, By::Waiting, |_| false).is_empty());
    }
}
