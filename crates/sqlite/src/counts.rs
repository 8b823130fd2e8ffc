//! Latches: the tables `latch` and `counted`.

use lockkeeper_core::{
    StoreError,
    store::{Count, CountState, Counted, LatchPage, ListQuery, StoreTime, Topic},
};
use lockkeeper_rows::{LatchRow, Remembered};
use rusqlite::{OptionalExtension, Result, Row, Transaction, params};

use crate::{codec, database::Database, subscribers, ticket::Ticket, work::Work};

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
    /// Does a latch operation. It counts once, even if it arrives more often.
    pub(crate) fn count(&mut self, count: &Count) -> Result<Counted> {
        let (latch, remembered) = (self.latch(count)?, self.remembered(count)?);
        let outcome = self.transition.count(latch, remembered, count);
        if let Some(latch) = outcome.latch {
            self.store_latch(count, latch)?;
        }
        if let Some(remembered) = outcome.remember {
            self.remember(count, remembered)?;
            let topic = Topic::Latch(count.name.clone());
            subscribers::wake(self.transaction, &topic, &mut self.after_commit.wakes)?;
        }
        Ok(outcome.answer)
    }

    fn latch(&self, count: &Count) -> Result<LatchRow> {
        let mut find = self
            .transaction
            .prepare_cached("SELECT remaining, initial, opened, born FROM latch WHERE name = ?")?;
        let state = find.query_row([count.name.as_str()], |row| state_from(row, 0)).optional()?;
        Ok(LatchRow { state, ..LatchRow::default() })
    }

    fn store_latch(&self, count: &Count, latch: LatchRow) -> Result<()> {
        let name = count.name.as_str();
        match latch.state {
            None => self.transaction.prepare_cached("DELETE FROM latch WHERE name = ?")?.execute([name])?,
            Some(state) => {
                let [remaining, initial, opened, born] = LatchRow::numbers(state);
                self.transaction
                    .prepare_cached("INSERT OR REPLACE INTO latch VALUES (?, ?, ?, ?, ?)")?
                    .execute(params![name, remaining, initial, opened, born])?
            }
        };
        Ok(())
    }

    fn remembered(&self, count: &Count) -> Result<Option<Remembered>> {
        let mut find = self.transaction.prepare_cached(
            "SELECT until, answer, remaining, initial, opened, born FROM counted WHERE keeper = ? AND seq = ?",
        )?;
        let key = params![count.op.keeper.to_string(), count.op.seq.cast_signed()];
        let remembered = |row: &Row<'_>| {
            let answer =
                Remembered::answer_of(row.get(1)?, numbers_from(row, 2)?).map_err(codec::not_ours)?;
            Ok(Remembered { until: StoreTime(codec::unsigned(row, 0)?), answer })
        };
        find.query_row(key, remembered).optional()
    }

    fn remember(&self, count: &Count, remembered: Remembered) -> Result<()> {
        let (answer, [remaining, initial, opened, born]) = remembered.numbers();
        self.transaction
            .prepare_cached("INSERT OR REPLACE INTO counted VALUES (?, ?, ?, ?, ?, ?, ?, ?)")?
            .execute(params![
                count.op.keeper.to_string(),
                count.op.seq.cast_signed(),
                remembered.until.0.cast_signed(),
                answer,
                remaining,
                initial,
                opened,
                born
            ])?;
        Ok(())
    }
}

fn state_from(row: &Row<'_>, first: usize) -> Result<CountState> {
    numbers_from(row, first).map(LatchRow::state_of)
}

fn numbers_from(row: &Row<'_>, first: usize) -> Result<[i64; 4]> {
    Ok([row.get(first)?, row.get(first + 1)?, row.get(first + 2)?, row.get(first + 3)?])
}
