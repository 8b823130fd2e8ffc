//! Latches and fences: the two things in the file that are not resources.

use lockkeeper_core::{
    Token,
    model::{COUNT_MEMORY, Counter},
    store::{Admit, Admitted, Count, CountAction, CountState, Counted, Topic},
};
use rusqlite::{OptionalExtension, Row, params};

use crate::work::{Work, tell_watchers};

type Result<T> = rusqlite::Result<T>;

impl Work<'_> {
    /// The transition of a latch operation: however often it arrives, it counts once.
    pub(crate) fn count(&mut self, count: &Count) -> Result<Counted> {
        if let Some(done) = self.counted_before(count)? {
            return Ok(done);
        }
        if count.not_after < self.now.lease {
            return Ok(Counted::Stale);
        }
        let before = self.counter(count)?;
        let mut counter = before;
        let counted = counter.step(self.now, &mut self.high_water, count.action);
        if counter != before {
            self.store_counter(count, counter)?;
        }
        if count.action != CountAction::Read {
            self.remember(count, counted)?;
            let topic = Topic::Latch(count.name.clone());
            tell_watchers(self.transaction(), &topic, &mut self.done.wakes)?;
        }
        Ok(counted)
    }

    fn counter(&self, count: &Count) -> Result<Counter> {
        let mut find = self
            .transaction()
            .prepare_cached("SELECT remaining, initial, opened, born FROM latch WHERE name = ?")?;
        Ok(Counter(find.query_row([count.name.as_str()], |row| state_from(row, 0)).optional()?))
    }

    fn store_counter(&self, count: &Count, counter: Counter) -> Result<()> {
        let name = count.name.as_str();
        match counter.0 {
            None => self.transaction().prepare_cached("DELETE FROM latch WHERE name = ?")?.execute([name])?,
            Some(state) => {
                let [remaining, initial, opened, born] = numbers(state);
                self.transaction()
                    .prepare_cached("INSERT OR REPLACE INTO latch VALUES (?, ?, ?, ?, ?)")?
                    .execute(params![name, remaining, initial, opened, born])?
            }
        };
        Ok(())
    }

    fn counted_before(&self, count: &Count) -> Result<Option<Counted>> {
        let mut find = self.transaction().prepare_cached(
            "SELECT answer, remaining, initial, opened, born FROM counted
             WHERE keeper = ? AND seq = ? AND until >= ?",
        )?;
        let key =
            params![count.op.keeper.to_string(), count.op.seq.cast_signed(), self.now.lease.0.cast_signed()];
        let answer = |row: &Row<'_>| {
            let state = state_from(row, 1)?;
            Ok(match row.get(0)? {
                MISSING => Counted::Missing,
                EXISTS => Counted::Exists(state),
                _ => Counted::State(state),
            })
        };
        find.query_row(key, answer).optional()
    }

    fn remember(&self, count: &Count, counted: Counted) -> Result<()> {
        let nothing = CountState { remaining: 0, initial: 0, opened: 0, born: 0 };
        let (answer, state) = match counted {
            Counted::State(state) => (STATE, state),
            Counted::Exists(state) => (EXISTS, state),
            Counted::Missing => (MISSING, nothing),
            Counted::Stale => return Ok(()),
        };
        let [remaining, initial, opened, born] = numbers(state);
        self.transaction()
            .prepare_cached("INSERT OR REPLACE INTO counted VALUES (?, ?, ?, ?, ?, ?, ?, ?)")?
            .execute(params![
                count.op.keeper.to_string(),
                count.op.seq.cast_signed(),
                count.not_after.after(COUNT_MEMORY).0.cast_signed(),
                answer,
                remaining,
                initial,
                opened,
                born
            ])?;
        Ok(())
    }

    /// The transition of a fence: the highest floor seen never falls (invariant I7).
    pub(crate) fn fence(&mut self, admit: &Admit) -> Result<Admitted> {
        let name = admit.name.as_str();
        let mut find = self.transaction().prepare_cached("SELECT highest FROM fence WHERE name = ?")?;
        let seen: Option<i64> = find.query_row([name], |row| row.get(0)).optional()?;
        let highest = seen.and_then(Token::from_i64);
        if let Some(highest) = highest.filter(|highest| admit.token < *highest) {
            return Ok(Admitted::Stale { highest });
        }
        if highest.is_none_or(|highest| highest < admit.floor) {
            self.transaction()
                .prepare_cached("INSERT OR REPLACE INTO fence VALUES (?, ?)")?
                .execute(params![name, admit.floor.as_i64()])?;
        }
        Ok(Admitted::Yes)
    }
}

const STATE: i64 = 0;
const EXISTS: i64 = 1;
const MISSING: i64 = 2;

fn state_from(row: &Row<'_>, first: usize) -> Result<CountState> {
    let number = |place: usize| row.get::<_, i64>(first + place).map(i64::cast_unsigned);
    Ok(CountState { remaining: number(0)?, initial: number(1)?, opened: number(2)?, born: number(3)? })
}

fn numbers(state: CountState) -> [i64; 4] {
    [state.remaining, state.initial, state.opened, state.born].map(u64::cast_signed)
}
