//! Latches and fences: transactions on one row each.

use std::sync::Arc;

use lockkeeper_core::{
    KeeperId, Name, StoreError,
    model::{HighWater, Now},
    store::{
        Admit, Admitted, Answers, Count, CountAction, CountState, Counted, LatchPage, ListQuery, StoreTime,
        Topic, Wake,
    },
};
use lockkeeper_rows::{CountOutcome, CountSnapshot, LatchRow, Opening, Remembered, admit, high_water_from};
use tokio_postgres::Row;

use crate::{
    codec::{get, name_from_bytes},
    connection::{Failure, Worked},
    flights::{self, Call, unread},
    groups::{Group, messages},
    origin::{Header, Origin},
    session::Session,
    statements::Statement,
    trouble::{self, corrupt},
};

/// How often a row that was missing is made before an operation gives up.
const TRIES: usize = 3;

/// The state of a latch, as one statement read it.
pub(crate) struct ReadLatch {
    snapshot: CountSnapshot,
    /// Whether there is a row that can be locked.
    has_row: bool,
    header: Header,
    /// When the server started. Each says so, behind a pooler too. One that takes over without a new start has confirmed
    /// nothing before.
    server: i64,
    watchers: Vec<KeeperId>,
}

impl ReadLatch {
    /// Takes the rows of `Statement::ReadLatch`, which must have been answered by the server process and the store of `origin`.
    pub(crate) fn new(rows: &[Row], origin: &Origin) -> Result<Self, StoreError> {
        let start = Now { lease: StoreTime(0), wall: 0 };
        let mut read = Self {
            snapshot: CountSnapshot {
                now: start,
                floor: HighWater(0),
                latch: LatchRow::default(),
                remembered: None,
            },
            has_row: false,
            header: Header { transaction: None, waits_for_replicas: true },
            server: 0,
            watchers: Vec::new(),
        };
        for row in rows {
            read.take(row, origin)?;
        }
        if read.snapshot.now == start {
            return Err(corrupt("the table store has no row; drop the schema, or restore it"));
        }
        Ok(read)
    }

    /// The last opening that it shows, if commits wait for replicas. It may come from a commit whose wait was cancelled, and
    /// nobody may act on an opening that a failover takes back.
    fn opening(&self) -> Option<Opening> {
        self.opening_of(self.snapshot.latch.state)
    }

    /// As [`Self::opening`], of a state that it becomes.
    fn opening_of(&self, state: Option<CountState>) -> Option<Opening> {
        state.filter(|_| self.header.waits_for_replicas).and_then(Opening::shown_by)
    }

    fn take(&mut self, row: &Row, origin: &Origin) -> Result<(), StoreError> {
        let (first, second): (i64, i64) = (get(row, 1)?, get(row, 2)?);
        let numbers: [Option<i64>; 4] = [get(row, 3)?, get(row, 4)?, get(row, 5)?, get(row, 6)?];
        let word: Option<&str> = get(row, 7)?;
        match get::<i32>(row, 0)? {
            0 => {
                self.header = origin.header(numbers[3].unwrap_or_default(), word.unwrap_or_default())?;
                self.server = numbers[0].unwrap_or_default();
                let wall = second.cast_unsigned();
                self.snapshot.now = Now { lease: StoreTime(wall), wall };
                self.snapshot.floor = high_water_from(first)?;
            }
            1 => {
                self.has_row = true;
                high_water_from(first)?;
                self.snapshot.latch = LatchRow { high_water: first, state: LatchRow::state_in(numbers)? };
            }
            2 => {
                let answer = Remembered::answer_of(first, numbers.map(Option::unwrap_or_default))?;
                self.snapshot.remembered =
                    Some(Remembered { until: StoreTime(second.cast_unsigned()), answer });
            }
            _ => self.watchers.extend(word.and_then(|word| word.parse::<KeeperId>().ok())),
        }
        Ok(())
    }
}

impl Group {
    /// Looks at a latch without locking it. `None` if it shows an opening that the replicas may lack: then the answer needs a
    /// commit that waits for them.
    pub(crate) async fn look(&self, count: &Count) -> Worked<Option<Answers<Counted>>> {
        let (name, op) = (count.name.as_str().as_bytes(), count.op.to_string());
        let rows = self.session.query(Statement::ReadLatch, &[&name, &op]).await.map_err(unread)?;
        let read = ReadLatch::new(&rows, &self.session.origin).map_err(Failure::closes)?;
        let lacks = |opening| !self.own.openings.has(&read.server, &count.name, opening);
        let may_lack = read.opening().is_some_and(lacks);
        Ok((!may_lack).then(|| answers(&read, &read.snapshot.count(count))))
    }

    /// Does a latch operation.
    pub(crate) async fn count(self, count: Count) -> Worked<Answers<Counted>> {
        // Of many looks at once, the first one confirms the opening for those behind it.
        if count.action == CountAction::Read
            && let Some(answers) = self.look(&count).await?
        {
            return Ok(answers);
        }
        let (name, op) = (count.name.as_str().as_bytes(), count.op.to_string());
        for _ in 0..TRIES {
            let lock = Call { statement: Statement::LockLatch, parameters: &[&name] };
            let read = Call { statement: Statement::ReadLatch, parameters: &[&name, &op] };
            let flight = flights::first(
                &self.session,
                self.wait,
                lock,
                read,
                &[Statement::WriteLatch, Statement::TouchLatch, Statement::Notify],
            )
            .await?;
            let read = match ReadLatch::new(&flight.read, &self.session.origin) {
                Ok(read) => read,
                Err(error) => return Err(flights::give_up(&self.session, error).await),
            };
            if flight.locked.is_empty() {
                flights::roll_back(&self.session).await?;
                if !read.has_row {
                    self.session.query(Statement::MakeLatch, &[&name]).await.map_err(unread)?;
                }
                continue;
            }
            self.progress.works_in(&read.header);
            return self.count_locked(&count, read).await;
        }
        Err(Failure::keeps(trouble::busy()))
    }

    async fn count_locked(&self, count: &Count, read: ReadLatch) -> Worked<Answers<Counted>> {
        let outcome = read.snapshot.count(count);
        let name = count.name.as_str().as_bytes();
        let used = read.snapshot.now.wall.cast_signed();
        let Some(remember) = outcome.remember else {
            if read.header.waits_for_replicas {
                // The remembered answer may come from a commit whose wait was cancelled, which a failover loses.
                let touch = Call { statement: Statement::TouchLatch, parameters: &[&name, &used] };
                flights::second(&self.session, &self.progress, touch, None).await?;
                self.confirmed(count, &read, read.opening());
            } else {
                flights::roll_back(&self.session).await?;
            }
            return Ok(answers(&read, &outcome));
        };
        let latch = outcome.latch.unwrap_or(read.snapshot.latch);
        let state = latch.state.map(LatchRow::numbers);
        let column = |at: usize| state.map(|numbers| numbers[at]);
        let (kind, [remaining, initial, opened, born]) = remember.numbers();
        let topic = Topic::Latch(count.name.clone());
        let (own, others): (Vec<_>, Vec<_>) =
            read.watchers.iter().partition::<Vec<KeeperId>, _>(|keeper| **keeper == self.own.keeper);
        let wake = |keeper: KeeperId| (keeper, Wake::Changed(topic.clone()));
        let messages = messages(others.into_iter().map(wake).collect(), &read.header);
        let write = Call {
            statement: Statement::WriteLatch,
            parameters: &[
                &name,
                &latch.high_water,
                &used,
                &column(0),
                &column(1),
                &column(2),
                &column(3),
                &count.op.to_string(),
                &remember.until.0.cast_signed(),
                &kind,
                &remaining,
                &initial,
                &opened,
                &born,
            ],
        };
        flights::second(&self.session, &self.progress, write, messages).await?;
        self.confirmed(count, &read, read.opening_of(latch.state));
        if !own.is_empty() {
            self.own.wakes.wake(Wake::Changed(topic));
        }
        Ok(answers(&read, &outcome))
    }

    /// Notes what a commit has confirmed.
    fn confirmed(&self, count: &Count, read: &ReadLatch, opening: Option<Opening>) {
        if let Some(opening) = opening {
            self.own.openings.add(&read.server, &count.name, opening);
        }
    }

    /// Shows a token to a fence.
    pub(crate) async fn fence(self, order: Admit) -> Worked<Admitted> {
        let name = order.name.as_str().as_bytes();
        for _ in 0..TRIES {
            let lock = Call { statement: Statement::LockFence, parameters: &[&name] };
            let read = Call { statement: Statement::ReadFence, parameters: &[&name] };
            let flight =
                flights::first(&self.session, self.wait, lock, read, &[Statement::WriteFence]).await?;
            let (Some(row), false) = (flight.read.first(), flight.locked.is_empty()) else {
                flights::roll_back(&self.session).await?;
                self.session.query(Statement::MakeFence, &[&name]).await.map_err(unread)?;
                continue;
            };
            let admitted = get::<i32>(row, 1).and_then(|backend| {
                let header = self.session.origin.header(backend.into(), get(row, 2)?)?;
                let seen: i64 = get(row, 0)?;
                Ok((admit(Some(seen), &order)?, seen, header))
            });
            let (admitted, seen, header) = match admitted {
                Ok(admitted) => admitted,
                Err(error) => return Err(flights::give_up(&self.session, error).await),
            };
            self.progress.works_in(&header);
            // A number that was seen may come from a commit whose wait was cancelled, which a failover loses.
            let again = (header.waits_for_replicas && admitted.answer == Admitted::Yes).then_some(seen);
            match admitted.highest.or(again) {
                None => flights::roll_back(&self.session).await?,
                Some(highest) => {
                    let write = Call { statement: Statement::WriteFence, parameters: &[&name, &highest] };
                    flights::second(&self.session, &self.progress, write, None).await?;
                }
            }
            return Ok(admitted.answer);
        }
        Err(Failure::keeps(trouble::busy()))
    }
}

fn answers(read: &ReadLatch, outcome: &CountOutcome) -> Answers<Counted> {
    Answers { now: read.snapshot.now.lease, each: vec![outcome.answer] }
}

/// Lists a part of all latches.
pub(crate) async fn latches(session: Arc<Session>, query: ListQuery) -> Worked<LatchPage> {
    let (from, after) = bounds(&query);
    // One more than the page has shows that there are more.
    let limit = i64::try_from(query.limit.max(1).saturating_add(1)).unwrap_or(i64::MAX);
    let rows = session.query(Statement::Latches, &[&from, &after, &limit]).await.map_err(unread)?;
    let latch = |row: &Row| -> Result<(Name, _), StoreError> {
        let columns = [get(row, 1)?, get(row, 2)?, get(row, 3)?, get(row, 4)?];
        let state = LatchRow::state_in(columns)?.ok_or_else(|| corrupt("a latch has no state"))?;
        Ok((name_from_bytes(get(row, 0)?)?, state))
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

/// Returns the two bounds of a listing: the name that it begins at, and the name that it goes on after.
pub(crate) fn bounds(query: &ListQuery) -> (Vec<u8>, Vec<u8>) {
    let after = query.after.as_ref().map(|name| name.as_str().as_bytes().to_vec()).unwrap_or_default();
    (query.prefix.as_bytes().to_vec(), after)
}
