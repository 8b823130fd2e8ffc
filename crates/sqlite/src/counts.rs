//! Latches: the tables `latch` and `counted`.

use lockkeeper_core::{
    StoreError,
    model::{COUNT_MEMORY, Counter},
    store::{Count, CountAction, CountState, Counted, LatchPage, ListQuery, Topic},
};
use rusqlite::{OptionalExtension, Result, Row, Transaction, params};

use crate::{
    codec::{self, unsigned},
    database::Database,
    subscribers,
    ticket::Ticket,
    work::Work,
};

impl Database {
    /// A part of all latches.
    pub(crate) fn latches(&mut self, ticket: &Ticket, query: &ListQuery) -> Result<LatchPage, StoreError> {
        ticket.begin();
        self.read(|transaction, _| page_of(transaction, query))
    }
}

fn page_of(transaction: &Transaction<'_>, query: &ListQuery) -> Result<LatchPage> {
    let after = query.after.as_ref().map_or("", |name| name.as_str());
    let mut find = transaction.prepare_cached(
        "SELECT remaining, initial, opened, born, name FROM latch WHERE name >= ?1 AND name > ?2 ORDER BY name",
    )?;
    let mut rows = find.query([query.prefix.as_str(), after])?;
    let mut latches = Vec::new();
    // One more than the page has shows that there are more.
    while let Some(row) = rows.next()?
        && latches.len() <= query.limit.max(1)
    {
        let name = codec::name_from(row.get(4)?)?;
        if !query.asks_for(&name) {
            break;
        }
        latches.push((name, state_from(row, 0)?));
    }
    Ok(LatchPage::cut(latches, query))
}

impl Work<'_> {
    /// Does a latch operation. However often it arrives, it counts once.
    pub(crate) fn count(&mut self, count: &Count) -> Result<Counted> {
        if let Some(done) = self.counted_before(count)? {
            return Ok(done);
        }
        if count.not_after < self.transition.now.lease {
            return Ok(Counted::Stale);
        }
        let before = self.counter(count)?;
        let mut counter = before;
        let counted = counter.step(self.transition.now, &mut self.transition.high_water, count.action);
        if counter != before {
            self.store_counter(count, counter)?;
        }
        if count.action != CountAction::Read {
            self.remember(count, counted)?;
            let topic = Topic::Latch(count.name.clone());
            subscribers::wake(self.transaction, &topic, &mut self.after_commit.wakes)?;
        }
        Ok(counted)
    }

    fn counter(&self, count: &Count) -> Result<Counter> {
        let mut find = self
            .transaction
            .prepare_cached("SELECT remaining, initial, opened, born FROM latch WHERE name = ?")?;
        Ok(Counter(find.query_row([count.name.as_str()], |row| state_from(row, 0)).optional()?))
    }

    fn store_counter(&self, count: &Count, counter: Counter) -> Result<()> {
        let name = count.name.as_str();
        match counter.0 {
            None => self.transaction.prepare_cached("DELETE FROM latch WHERE name = ?")?.execute([name])?,
            Some(state) => {
                let [remaining, initial, opened, born] = numbers(state);
                self.transaction
                    .prepare_cached("INSERT OR REPLACE INTO latch VALUES (?, ?, ?, ?, ?)")?
                    .execute(params![name, remaining, initial, opened, born])?
            }
        };
        Ok(())
    }

    fn counted_before(&self, count: &Count) -> Result<Option<Counted>> {
        let mut find = self.transaction.prepare_cached(
            "SELECT answer, remaining, initial, opened, born FROM counted
             WHERE keeper = ? AND seq = ? AND until >= ?",
        )?;
        let key = params![
            count.op.keeper.to_string(),
            count.op.seq.cast_signed(),
            self.transition.now.lease.0.cast_signed()
        ];
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
        self.transaction
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
}

const STATE: i64 = 0;
const EXISTS: i64 = 1;
const MISSING: i64 = 2;

fn state_from(row: &Row<'_>, first: usize) -> Result<CountState> {
    let number = |column: usize| unsigned(row, first + column);
    Ok(CountState { remaining: number(0)?, initial: number(1)?, opened: number(2)?, born: number(3)? })
}

fn numbers(state: CountState) -> [i64; 4] {
    [state.remaining, state.initial, state.opened, state.born].map(u64::cast_signed)
}
