//! Latches and fences: transactions on one row each.

use lockkeeper_core::{
    Name, StoreError,
    model::{HighWater, Now},
    store::{Admit, Admitted, Answers, Count, CountAction, Counted, LatchPage, ListQuery, StoreTime, Topic},
};
use lockkeeper_rows::{CountOutcome, CountSnapshot, LatchRow, Opening, Remembered, admit, high_water_from};
use mysql_async::Row;

use crate::{
    codec::{at, check_state, maybe_number, name_of, number, text},
    connection::{Failure, Worked},
    flights,
    groups::Group,
    statements::{Busy, Hex, Table, literal},
    trouble::{self, corrupt},
};

/// How often a row that was missing is made before an operation gives up.
const TRIES: usize = 3;

/// A latch, as it was read.
struct ReadLatch {
    snapshot: CountSnapshot,
    /// Whether there is a row that can be locked.
    has_row: bool,
}

impl ReadLatch {
    /// Takes the rows of [`read_latch`](crate::statements::Statements::read_latch).
    fn new(rows: &[Row], id: &str) -> Result<Self, StoreError> {
        let start = Now { lease: StoreTime(0), wall: 0 };
        let latch = LatchRow::default();
        let snapshot = CountSnapshot { now: start, floor: HighWater(0), latch, remembered: None };
        let mut read = Self { snapshot, has_row: false };
        for row in rows {
            read.take(row, id)?;
        }
        if read.snapshot.now == start {
            return Err(corrupt("the table store has no row; drop the tables, or restore them"));
        }
        Ok(read)
    }

    fn take(&mut self, row: &Row, id: &str) -> Result<(), StoreError> {
        let (first, second) = (number(row, 1)?, number(row, 2)?);
        let column = |column| maybe_number(row, column);
        let columns = [column(3)?, column(4)?, column(5)?, column(6)?];
        match number(row, 0)? {
            0 => {
                check_state(text(row, 7)?, id)?;
                self.snapshot.now = at(second);
                self.snapshot.floor = high_water_from(first)?;
            }
            1 => {
                self.has_row = true;
                high_water_from(first)?;
                self.snapshot.latch = LatchRow { high_water: first, state: LatchRow::state_in(columns)? };
            }
            _ => {
                let answer = Remembered::answer_of(first, columns.map(Option::unwrap_or_default))?;
                self.snapshot.remembered =
                    Some(Remembered { until: StoreTime(second.cast_unsigned()), answer });
            }
        }
        Ok(())
    }
}

/// A fence, as it was read.
struct ReadFence {
    highest: i64,
    now: i64,
}

impl ReadFence {
    /// Takes the row of [`read_fence`](crate::statements::Statements::read_fence).
    fn new(row: &Row, id: &str) -> Result<Self, StoreError> {
        check_state(text(row, 2)?, id)?;
        Ok(Self { highest: number(row, 0)?, now: number(row, 1)? })
    }
}

impl Group {
    /// Does a latch operation.
    pub(crate) async fn count(self, count: Count) -> Worked<Answers<Counted>> {
        if count.action == CountAction::Read {
            return self.look(&count).await;
        }
        let statements = &self.session.statements;
        let read = statements.read_latch(&count.name, count.op);
        let name = std::slice::from_ref(&count.name);
        let lock = statements.lock(Table::Latch, name, Busy::Awaited(self.wait));
        for _ in 0..TRIES {
            let flight = flights::first(&self.session, &lock, &read).await?;
            let latch = ReadLatch::new(&flight.read, &self.own.id).map_err(Failure::closes)?;
            if !flight.locked.is_empty() {
                return self.count_locked(&count, latch).await;
            }
            let make = statements.make(Table::Latch, name);
            flights::lone(&self.session, &make).await?;
        }
        Err(Failure::keeps(trouble::busy()))
    }

    /// Reads a latch without locking it. Whoever waits for the latch acts on an opening, and others see that before it is on
    /// disk. So the first look at each opening is answered after a commit, and the others need none.
    async fn look(&self, count: &Count) -> Worked<Answers<Counted>> {
        let read = self.session.statements.read_latch(&count.name, count.op);
        let rows = flights::rows(&self.session, &read).await?;
        let read = ReadLatch::new(&rows, &self.own.id).map_err(Failure::closes)?;
        let (facts, name) = (&self.session.facts, &count.name);
        if let Some(opening) = read.snapshot.latch.state.and_then(Opening::shown_by)
            && !self.own.openings.has(facts, name, opening)
        {
            self.read_is_on_disk().await?;
            self.own.openings.add(facts, name, opening);
        }
        Ok(answers(&read, &read.snapshot.count(count)))
    }

    async fn count_locked(&self, count: &Count, read: ReadLatch) -> Worked<Answers<Counted>> {
        let outcome = read.snapshot.count(count);
        let now = read.snapshot.now.wall.cast_signed();
        let Some(remember) = outcome.remember else {
            // An answer that is remembered may not be on disk yet.
            let touch = self.session.statements.touch(Table::Latch, [&count.name], now);
            flights::second(&self.session, &self.progress, &[touch]).await?;
            return Ok(answers(&read, &outcome));
        };
        let latch = outcome.latch.unwrap_or(read.snapshot.latch);
        let state = match latch.state.map(LatchRow::numbers) {
            Some(numbers) => numbers.map(|number| number.to_string()),
            None => std::array::from_fn(|_| "NULL".to_owned()),
        };
        let [remaining, initial, opened, born] = state;
        let (name, high_water, op) = (literal(&count.name), latch.high_water, count.op.to_string());
        let (kind, [a, b, c, d]) = remember.numbers();
        let writes = [
            format!(
                "UPDATE {{p}}latch SET high_water = {high_water}, used = {now}, remaining = {remaining}, \
                 initial = {initial}, opened = {opened}, born = {born} WHERE name = {name}"
            ),
            format!(
                "INSERT INTO {{p}}counted VALUES ({}, {}, {kind}, {a}, {b}, {c}, {d}) ON DUPLICATE KEY UPDATE \
                 until = VALUES(until), answer = VALUES(answer), remaining = VALUES(remaining), \
                 initial = VALUES(initial), opened = VALUES(opened), born = VALUES(born)",
                Hex(op.as_bytes()),
                remember.until.0.cast_signed()
            ),
        ];
        let writes = writes.map(|text| self.session.statements.in_tables(&text));
        flights::second(&self.session, &self.progress, &writes).await?;
        if let Some(opening) = latch.state.and_then(Opening::shown_by) {
            self.own.openings.add(&self.session.facts, &count.name, opening);
        }
        self.own.waits.changed(Topic::Latch(count.name.clone()), &self.own.wakes);
        Ok(answers(&read, &outcome))
    }

    /// Shows a token to a fence.
    pub(crate) async fn fence(self, order: Admit) -> Worked<Admitted> {
        let (statements, name) = (&self.session.statements, std::slice::from_ref(&order.name));
        let lock = statements.lock(Table::Fence, name, Busy::Awaited(self.wait));
        let read = statements.read_fence(&order.name);
        for _ in 0..TRIES {
            let flight = flights::first(&self.session, &lock, &read).await?;
            let (Some(row), false) = (flight.read.first(), flight.locked.is_empty()) else {
                let make = statements.make(Table::Fence, name);
                flights::lone(&self.session, &make).await?;
                continue;
            };
            let fence = match ReadFence::new(row, &self.own.id) {
                Ok(fence) => fence,
                Err(error) => return Err(Failure::closes(error)),
            };
            let admitted = match admit(Some(fence.highest), &order) {
                Ok(admitted) => admitted,
                Err(bad) => return Err(flights::give_up(&self.session, bad.into()).await),
            };
            let write = match admitted.highest {
                Some(highest) => format!(
                    "UPDATE {{p}}fence SET highest = {highest}, used = {} WHERE name = {}",
                    fence.now,
                    literal(&order.name)
                ),
                None if admitted.answer != Admitted::Yes => {
                    flights::roll_back(&self.session).await?;
                    return Ok(admitted.answer);
                }
                // What was read may not be on disk yet, or on no replica, however old it is.
                None => statements.touch(Table::Fence, name, fence.now),
            };
            flights::second(&self.session, &self.progress, &[statements.in_tables(&write)]).await?;
            return Ok(admitted.answer);
        }
        Err(Failure::keeps(trouble::busy()))
    }

    /// A part of all latches.
    pub(crate) async fn latches(self, query: ListQuery) -> Worked<LatchPage> {
        // One more than the page has shows that there are more.
        let limit = query.limit.max(1).saturating_add(1);
        let after = query.after.as_ref().map(Name::as_str).unwrap_or_default();
        let read = self.session.statements.latches(&query.prefix, after, limit);
        let rows = flights::rows(&self.session, &read).await?;
        let latch = |row: &Row| -> Result<(Name, _), StoreError> {
            let numbers = [number(row, 1)?, number(row, 2)?, number(row, 3)?, number(row, 4)?];
            Ok((name_of(row, 0)?, LatchRow::state_of(numbers)))
        };
        let mut latches = Vec::with_capacity(rows.len());
        for row in &rows {
            match latch(row) {
                Ok(latch) => latches.push(latch),
                Err(error) => tracing::warn!(%error, "a latch has a row that cannot be used"),
            }
        }
        let latches = latches.into_iter().filter(|(name, _)| query.asks_for(name)).collect();
        Ok(LatchPage::cut(latches, &query))
    }
}

fn answers(read: &ReadLatch, outcome: &CountOutcome) -> Answers<Counted> {
    Answers { now: read.snapshot.now.lease, each: vec![outcome.answer] }
}
