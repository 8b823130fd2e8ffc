//! Curves: the use of a lock over time, in steps of one width. Quiet times take no room.

use std::collections::VecDeque;

use serde::Serialize;

use crate::clock::Millis;

/// The use of a lock in one step of time.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub(crate) struct Use {
    /// How long its waiters waited, all of them together.
    pub(crate) waited: Millis,
    /// The most waiters at a time.
    pub(crate) waiters: u32,
    /// How often another token was seen.
    pub(crate) changes: u32,
}

impl Use {
    pub(crate) fn add(&mut self, other: Self) {
        self.waited += other.waited;
        self.waiters = self.waiters.max(other.waiters);
        self.changes += other.changes;
    }

    fn is_nothing(&self) -> bool {
        *self == Self::default()
    }
}

/// One lock's use over time.
#[derive(Clone, Debug)]
pub(crate) struct Curve {
    width: Millis,
    steps: u64,
    /// The index of a step since 1970, and the use in it.
    used: VecDeque<(u64, Use)>,
}

impl Curve {
    pub(crate) const fn new(width: Millis, steps: u64) -> Self {
        Self { width, steps, used: VecDeque::new() }
    }

    pub(crate) fn add(&mut self, at: Millis, more: Use) {
        if more.is_nothing() {
            return;
        }
        let index = at / self.width;
        match self.used.back_mut() {
            Some((last, sum)) if *last >= index => sum.add(more),
            _ => self.used.push_back((index, more)),
        }
        self.forget(at);
    }

    /// Gives back room that it does not need.
    pub(crate) fn shrink(&mut self) {
        self.used.shrink_to_fit();
    }

    /// Drops steps that are too old. True if none is left.
    pub(crate) fn forget(&mut self, now: Millis) -> bool {
        let first = (now / self.width + 1).saturating_sub(self.steps + 1);
        while self.used.front().is_some_and(|(index, _)| *index < first) {
            self.used.pop_front();
        }
        if self.used.is_empty() {
            self.used = VecDeque::new();
        }
        self.used.is_empty()
    }

    /// Returns the use in the last `length`, which is a multiple of the width.
    pub(crate) fn sum(&self, now: Millis, length: Millis) -> Use {
        let first = (now / self.width + 1).saturating_sub(length / self.width);
        let mut sum = Use::default();
        self.used.iter().rev().take_while(|(index, _)| *index >= first).for_each(|(_, more)| sum.add(*more));
        sum
    }

    /// Returns the last `length` as points in order of time, each `per_point` steps wide. The point that is not over
    /// yet is left out, because it would look like a fall.
    pub(crate) fn points(&self, now: Millis, length: Millis, per_point: u64) -> Vec<Use> {
        let count = (length / self.width / per_point).max(1);
        let last = (now / self.width / per_point).saturating_sub(1);
        let mut points = vec![Use::default(); usize::try_from(count).unwrap_or(0)];
        for (index, more) in &self.used {
            let Some(behind) = last.checked_sub(index / per_point) else { continue };
            if let Some(place) =
                usize::try_from(behind).ok().and_then(|behind| points.len().checked_sub(behind + 1))
            {
                points[place].add(*more);
            }
        }
        points
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn used(waited: Millis, waiters: u32, changes: u32) -> Use {
        Use { waited, waiters, changes }
    }

    #[test]
    fn steps_add_up_and_old_ones_go() {
        let mut curve = Curve::new(10, 5);
        curve.add(1000, used(5, 2, 1));
        curve.add(1009, used(5, 1, 0));
        curve.add(1010, used(1, 7, 1));
        assert_eq!(curve.sum(1010, 50), used(11, 7, 2));
        assert_eq!(curve.sum(1010, 10), used(1, 7, 1));
        assert_eq!(curve.sum(1055, 50), used(1, 7, 1));
        assert!(!curve.forget(1055));
        assert!(!curve.forget(1060));
        assert!(curve.forget(1070));
        assert_eq!(curve.sum(1060, 50), Use::default());
    }

    #[test]
    fn points_are_in_order_and_end_with_the_last_whole_one() {
        let mut curve = Curve::new(10, 8);
        curve.add(1000, used(1, 1, 1));
        curve.add(1020, used(2, 1, 1));
        curve.add(1050, used(4, 1, 1));
        curve.add(1060, used(9, 1, 1));
        let waited = |points: Vec<Use>| points.iter().map(|point| point.waited).collect::<Vec<_>>();
        assert_eq!(waited(curve.points(1060, 60, 1)), [1, 0, 2, 0, 0, 4]);
        assert_eq!(waited(curve.points(1060, 60, 2)), [1, 2, 4]);
        assert_eq!(waited(curve.points(1060, 20, 1)), [0, 4]);
    }

    #[test]
    fn quiet_locks_cost_nothing() {
        let mut curve = Curve::new(10, 6);
        curve.add(1000, Use::default());
        assert_eq!(curve.used.capacity(), 0);
    }
}
