//! Latches: one counter as a row, and the answers that are remembered for late copies.

use lockkeeper_core::{
    model::{COUNT_MEMORY, Counter, HighWater, Now},
    store::{Count, CountAction, CountState, Counted, StoreTime},
};

use crate::BadRow;

/// The row of a latch, which may stay when the latch is deleted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct LatchRow {
    /// The highest number that a creation got; 0 if that is not kept per name.
    pub high_water: i64,
    /// The latch itself; `None` if there is no such latch.
    pub state: Option<CountState>,
}

impl LatchRow {
    /// A state as columns: remaining, initial, opened, born.
    pub fn numbers(state: CountState) -> [i64; 4] {
        [state.remaining, state.initial, state.opened, state.born].map(u64::cast_signed)
    }

    /// Reads the columns of a latch that may be NULL: all of them are, if there is no such latch.
    ///
    /// # Errors
    /// If only some of them are.
    pub fn state_in(columns: [Option<i64>; 4]) -> Result<Option<CountState>, BadRow> {
        match columns {
            [None, None, None, None] => Ok(None),
            [Some(remaining), Some(initial), Some(opened), Some(born)] => {
                Ok(Some(Self::state_of([remaining, initial, opened, born])))
            }
            _ => Err(BadRow::at("remaining")),
        }
    }

    /// Reads a state from its numbers.
    pub fn state_of(numbers: [i64; 4]) -> CountState {
        let [remaining, initial, opened, born] = numbers.map(i64::cast_unsigned);
        CountState { remaining, initial, opened, born }
    }
}

/// The answer to a latch operation, for copies that may still arrive.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Remembered {
    /// Through this moment it is remembered.
    pub until: StoreTime,
    /// The answer.
    pub answer: Counted,
}

const STATE: i64 = 0;
const EXISTS: i64 = 1;
const MISSING: i64 = 2;

impl Remembered {
    /// The answer as columns: its kind, and the [state](LatchRow::numbers).
    pub fn numbers(self) -> (i64, [i64; 4]) {
        match self.answer {
            Counted::State(state) => (STATE, LatchRow::numbers(state)),
            Counted::Exists(state) => (EXISTS, LatchRow::numbers(state)),
            Counted::Missing | Counted::Stale => (MISSING, [0; 4]),
        }
    }

    /// Reads the answer from its columns.
    ///
    /// # Errors
    /// If there is no answer of this kind.
    pub fn answer_of(kind: i64, numbers: [i64; 4]) -> Result<Counted, BadRow> {
        let state = LatchRow::state_of(numbers);
        match kind {
            MISSING => Ok(Counted::Missing),
            EXISTS => Ok(Counted::Exists(state)),
            STATE => Ok(Counted::State(state)),
            _ => Err(BadRow::at("answer")),
        }
    }
}

/// The state that a store has locked and read for a latch operation.
#[derive(Clone, Copy, Debug)]
pub struct CountSnapshot {
    /// The clock, read after the lock was taken.
    pub now: Now,
    /// Numbers of creations are above this.
    pub floor: HighWater,
    /// The row of the latch.
    pub latch: LatchRow,
    /// The answer to an earlier copy of this operation.
    pub remembered: Option<Remembered>,
}

/// The outcome of a latch operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CountOutcome {
    /// The answer.
    pub answer: Counted,
    /// The row of the latch, if it has to be written.
    pub latch: Option<LatchRow>,
    /// The answer, if it has to be remembered under the operation's id. The subscribers of the latch are to be woken then.
    pub remember: Option<Remembered>,
    /// The number of the creation, if the latch was created: for stores that keep one mark for all names.
    pub high_water: Option<HighWater>,
}

impl CountSnapshot {
    /// Does a latch operation. However often it arrives, it counts once.
    pub fn count(self, count: &Count) -> CountOutcome {
        let only = |answer| CountOutcome { answer, latch: None, remember: None, high_water: None };
        let now = self.now.lease;
        if let Some(done) = self.remembered.filter(|done| done.until >= now) {
            return only(done.answer);
        }
        if count.not_after < now {
            return only(Counted::Stale);
        }
        let mut high_water = self.floor;
        high_water.raise(self.latch.high_water.cast_unsigned());
        let before = high_water;
        let mut counter = Counter(self.latch.state);
        let answer = counter.step(self.now, &mut high_water, count.action);
        if count.action == CountAction::Read {
            return only(answer);
        }
        let given = (high_water != before).then_some(high_water);
        let latch = LatchRow {
            high_water: given.map_or(self.latch.high_water, |given| given.0.cast_signed()),
            state: counter.0,
        };
        CountOutcome {
            answer,
            latch: (latch != self.latch).then_some(latch),
            remember: Some(Remembered { until: count.not_after.after(COUNT_MEMORY), answer }),
            high_water: given,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples::{at, contender, name};

    fn snapshot(latch: LatchRow) -> CountSnapshot {
        CountSnapshot { now: at(1), floor: HighWater(200), latch, remembered: None }
    }

    fn count(action: CountAction) -> Count {
        Count { name: name("import"), op: contender(1), not_after: StoreTime(2_000_000), action }
    }

    #[test]
    fn an_operation_counts_once_and_is_remembered() {
        let kept = LatchRow { high_water: 300, state: None };
        let made = snapshot(kept).count(&count(CountAction::Create(2)));
        let state = CountState { remaining: 2, initial: 2, opened: 0, born: 301 };
        let row = LatchRow { high_water: 301, state: Some(state) };
        let remember = Remembered { until: StoreTime(62_000_000), answer: Counted::State(state) };
        let expected = CountOutcome {
            answer: Counted::State(state),
            latch: Some(row),
            remember: Some(remember),
            high_water: Some(HighWater(301)),
        };
        assert_eq!(made, expected);
        let again = CountSnapshot { remembered: Some(remember), ..snapshot(row) };
        let again = again.count(&count(CountAction::Create(2)));
        let nothing = CountOutcome { latch: None, remember: None, high_water: None, ..expected };
        assert_eq!(again, nothing);
    }

    #[test]
    fn a_deleted_latch_keeps_its_number() {
        let state = CountState { remaining: 2, initial: 2, opened: 0, born: 301 };
        let row = LatchRow { high_water: 301, state: Some(state) };
        let gone = snapshot(row).count(&count(CountAction::Delete));
        assert_eq!(gone.latch, Some(LatchRow { high_water: 301, state: None }));
        assert_eq!((gone.answer, gone.high_water), (Counted::State(state), None));
    }

    #[test]
    fn reads_and_late_copies_write_nothing() {
        let read = snapshot(LatchRow::default()).count(&count(CountAction::Read));
        let nothing =
            CountOutcome { answer: Counted::Missing, latch: None, remember: None, high_water: None };
        assert_eq!(read, nothing);
        let late = Count { not_after: StoreTime(0), ..count(CountAction::Create(1)) };
        let late = snapshot(LatchRow::default()).count(&late);
        assert_eq!(late, CountOutcome { answer: Counted::Stale, ..nothing });
    }

    #[test]
    fn answers_survive_rows() {
        let state = CountState { remaining: 1, initial: 2, opened: 3, born: u64::MAX };
        for answer in [Counted::State(state), Counted::Exists(state), Counted::Missing] {
            let (kind, numbers) = Remembered { until: StoreTime(1), answer }.numbers();
            assert_eq!(Remembered::answer_of(kind, numbers), Ok(answer));
        }
    }

    /// Else a latch that somebody changed would look like one that is not there, and be made anew.
    #[test]
    fn half_a_latch_and_unknown_answers_are_nobodys() {
        assert_eq!(LatchRow::state_in([None; 4]), Ok(None));
        let state = LatchRow::state_of([1, 2, 0, 3]);
        assert_eq!(LatchRow::state_in([Some(1), Some(2), Some(0), Some(3)]), Ok(Some(state)));
        assert!(LatchRow::state_in([Some(1), Some(2), Some(0), None]).is_err());
        assert!(LatchRow::state_in([None, Some(2), Some(0), Some(3)]).is_err());
        assert!(Remembered::answer_of(7, [0; 4]).is_err());
    }
}
