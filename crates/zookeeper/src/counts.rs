//! Latches: one persistent node each, changed only from the version that was read.
//!
//! A latch operation leaves its answer under `counted/` in the same transaction, named by its own id. A second copy of the
//! operation then fails, and reads the answer there. The keeper removes the answer after it has read it.

use std::time::Duration;

use lockkeeper_core::{
    StoreError,
    model::{COUNT_MEMORY, Counter, HighWater, Now},
    store::{Answers, Count, CountAction, CountState, Counted, LatchPage, ListQuery},
};
use zookeeper_client::{Error, MultiWriteError, MultiWriteResult};

use crate::{
    codec::name_of,
    keeper::KeeperState,
    nodes::{add_number, grant_number, number_of},
    session::Session,
    trouble::{corrupt, trouble},
};

/// How long an answer is kept whose keeper never read it.
const ABANDONED: Duration = Duration::from_secs(3600);

/// A latch's data: `remaining initial opened`. The transaction that made the node says when the latch was born.
fn write_state(state: &CountState) -> String {
    format!("{} {} {}", state.remaining, state.initial, state.opened)
}

fn read_state(data: &[u8], czxid: i64) -> Option<CountState> {
    let text = std::str::from_utf8(data).ok()?;
    let mut numbers = text.split(' ').map(|number| number.parse::<u64>().ok());
    let mut next = || numbers.next().flatten();
    let state = CountState {
        remaining: next()?,
        initial: next()?,
        opened: next()?,
        born: u64::try_from(czxid).ok()?,
    };
    numbers.next().is_none().then_some(state)
}

/// An answer's data. If the operation creates the latch, its own transaction says when the latch was born.
fn write_answer(counted: &Counted, created: bool) -> String {
    match counted {
        Counted::State(state) if created => format!("born {}", write_state(state)),
        Counted::State(state) => format!("{} {}", state.born, write_state(state)),
        _ => "stale".to_owned(),
    }
}

fn read_answer(data: &[u8], czxid: i64) -> Option<Counted> {
    let text = std::str::from_utf8(data).ok()?;
    if text == "stale" {
        return Some(Counted::Stale);
    }
    let (born, state) = text.split_once(' ')?;
    let born = if born == "born" { czxid } else { born.parse().ok()? };
    read_state(state.as_bytes(), born).map(Counted::State)
}

/// A latch as it was read.
#[derive(Clone, Copy)]
struct ReadLatch {
    state: Option<CountState>,
    version: i32,
}

/// A change of a latch that is to be written.
struct Change {
    before: ReadLatch,
    after: Option<CountState>,
    answer: Counted,
}

impl KeeperState {
    /// Does a latch operation.
    pub(crate) async fn count(
        &self,
        session: &Session,
        count: &Count,
    ) -> Result<Answers<Counted>, StoreError> {
        let done = self.records().counted.find(count.op, self.store_time());
        let counted = match done {
            Some(done) => done,
            None => self.count_once(session, count).await?,
        };
        let now = self.store_time();
        if count.action != CountAction::Read && done.is_none() {
            let mut records = self.records();
            records.unanswered.remove(&count.op);
            if counted != Counted::Stale {
                records.counted.insert(count.op, count.not_after.after(COUNT_MEMORY), counted, now);
            }
        }
        Ok(Answers { now, each: vec![counted] })
    }

    /// One page of all latches.
    pub(crate) async fn latches(
        &self,
        session: &Session,
        query: &ListQuery,
    ) -> Result<LatchPage, StoreError> {
        let folder = self.settings.paths.latches();
        let synced = session.client.sync(&folder);
        let listed = session.client.list_children(&folder);
        session.read(synced).await.map_err(trouble)?;
        let children = session.read(listed).await.map_err(trouble)?;
        let mut names: Vec<_> = children.iter().filter_map(|child| name_of(child)).collect();
        names.retain(|name| query.asks_for(name));
        names.sort_unstable();
        let mut latches = Vec::new();
        for name in names {
            let Some((data, stat)) = session.data(&self.settings.paths.latch(&name)).await? else { continue };
            latches.extend(read_state(&data, stat.czxid).map(|state| (name, state)));
            // One more than the page has shows that there are more.
            if latches.len() > query.limit.max(1) {
                break;
            }
        }
        Ok(LatchPage::cut(latches, query))
    }

    async fn count_once(&self, session: &Session, count: &Count) -> Result<Counted, StoreError> {
        let answer_path = self.settings.paths.counted(count.op);
        let late = || count.not_after < self.store_time();
        // Remembered before anything is awaited, since a copy may be in flight from here on.
        let unanswered = match count.action {
            CountAction::Read => false,
            _ if late() => self.records().unanswered.contains(&count.op),
            _ => !self.records().unanswered.insert(count.op),
        };
        if late() && !unanswered {
            return Ok(Counted::Stale);
        }
        let path = self.settings.paths.latch(&count.name);
        loop {
            let read = if late() { None } else { Some(self.read_latch(session, &path).await?) };
            // The read may have taken long.
            let Some(before) = read.filter(|_| !late()) else {
                return self.seal(session, &answer_path).await;
            };
            let mut counter = Counter(before.state);
            let answer =
                counter.step(Now { lease: self.store_time(), wall: 0 }, &mut HighWater(0), count.action);
            if counter.0 == before.state {
                // Nothing is to be written, unless an earlier copy has already done so.
                let done = if unanswered { self.read_answer(session, &answer_path).await? } else { None };
                return Ok(done.unwrap_or(answer));
            }
            let change = Change { before, after: counter.0, answer };
            if let Some(counted) = self.write_latch(session, &path, &answer_path, change).await? {
                return Ok(counted);
            }
        }
    }

    /// Writes a latch and the operation's answer in one transaction; `None` if the latch has changed since it was read.
    async fn write_latch(
        &self,
        session: &Session,
        path: &str,
        answer_path: &str,
        Change { before, after, answer }: Change,
    ) -> Result<Option<Counted>, StoreError> {
        let created = before.state.is_none();
        let options = self.persistent();
        let sent = session.now();
        let mut multi = session.client.new_multi_writer();
        multi
            .add_create(answer_path, write_answer(&answer, created).as_bytes(), &options)
            .map_err(trouble)?;
        match &after {
            None => multi.add_delete(path, Some(before.version)),
            Some(after) if created => multi.add_create(path, write_state(after).as_bytes(), &options),
            Some(after) => multi.add_set_data(path, write_state(after).as_bytes(), Some(before.version)),
        }
        .map_err(trouble)?;
        add_number(&mut multi, &self.settings.paths.all_counted())?;
        match session.write(sent, multi.commit()).await {
            Ok(results) => {
                self.answer_read(session, answer_path);
                with_birth(answer, created, &results).map(Some)
            }
            Err(MultiWriteError::OperationFailed { index: 0, source: Error::NodeExists }) => {
                self.existing_answer(session, answer_path).await.map(Some)
            }
            Err(MultiWriteError::OperationFailed {
                source: Error::BadVersion | Error::NoNode | Error::NodeExists,
                ..
            }) => Ok(None),
            Err(error) => Err(trouble(error.into())),
        }
    }

    /// Makes sure that no copy of an operation counts from now on, and says whether one did. A copy in flight will find its
    /// id taken.
    async fn seal(&self, session: &Session, answer_path: &str) -> Result<Counted, StoreError> {
        let options = self.persistent();
        let sent = session.now();
        let sealed = session.client.create(answer_path, b"stale", &options);
        match session.write(sent, sealed).await {
            Ok(_) => Ok(Counted::Stale),
            Err(Error::NodeExists) => self.existing_answer(session, answer_path).await,
            Err(error) => Err(trouble(error)),
        }
    }

    async fn read_latch(&self, session: &Session, path: &str) -> Result<ReadLatch, StoreError> {
        let Some((data, stat)) = session.synced_data(path).await? else {
            return Ok(ReadLatch { state: None, version: 0 });
        };
        let state = read_state(&data, stat.czxid).ok_or_else(|| {
            corrupt(format!("{path} holds no latch of Lockkeeper; remove it or choose another namespace"))
        })?;
        Ok(ReadLatch { state: Some(state), version: stat.version })
    }

    async fn read_answer(&self, session: &Session, path: &str) -> Result<Option<Counted>, StoreError> {
        let answer = session.synced_data(path).await?;
        Ok(answer.and_then(|(data, stat)| read_answer(&data, stat.czxid)))
    }

    /// The answer that another copy of the operation has left.
    async fn existing_answer(&self, session: &Session, path: &str) -> Result<Counted, StoreError> {
        self.read_answer(session, path).await?.ok_or_else(|| trouble(Error::NodeExists))
    }

    /// Removes the answers that this keeper has read before. The one at `path` stays until the next operation, whose request
    /// it then follows.
    fn answer_read(&self, session: &Session, path: &str) {
        let read = std::mem::replace(&mut self.records().read_answers, vec![path.to_owned()]);
        for path in read {
            // The request is sent here, and nobody waits for its answer.
            drop(session.client.delete(&path, None));
        }
    }

    /// Removes all answers that this keeper has read, before it ends. A later keeper sweeps those that are left.
    pub(crate) async fn remove_read_answers(&self, session: &Session) {
        let read = std::mem::take(&mut self.records().read_answers);
        for path in read {
            drop(session.read(session.client.delete(&path, None)).await);
        }
    }

    /// Removes answers of keepers that crashed before they read them.
    pub(crate) async fn sweep_answers(&self) {
        if let Ok(session) = self.session()
            && let Err(error) = self.try_sweep_answers(&session).await
        {
            tracing::debug!(%error, "old answers were not swept");
        }
    }

    async fn try_sweep_answers(&self, session: &Session) -> Result<(), Error> {
        let folder = self.settings.paths.all_counted();
        let mut answers = Vec::new();
        for child in session.read(session.client.list_children(&folder)).await? {
            let path = format!("{folder}/{child}");
            if let Some(stat) = session.read(session.client.check_stat(&path)).await? {
                answers.push((path, stat.ctime));
            }
        }
        // The newest answer stands for the servers' clock.
        let newest = answers.iter().map(|(_, made)| *made).max().unwrap_or(i64::MIN);
        let age = i64::try_from(ABANDONED.as_millis()).unwrap_or(i64::MAX);
        for (path, _) in answers.into_iter().filter(|(_, made)| newest.saturating_sub(*made) > age) {
            match session.read(session.client.delete(&path, None)).await {
                Ok(()) | Err(Error::NoNode) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

/// An answer with the birth of the latch, if the transaction created it.
fn with_birth(answer: Counted, created: bool, results: &[MultiWriteResult]) -> Result<Counted, StoreError> {
    match (answer, number_of(results)) {
        (Counted::State(state), Some(born)) if created => {
            Ok(Counted::State(CountState { born: grant_number(born)?, ..state }))
        }
        (answer, _) => Ok(answer),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_survive_text() {
        let state = CountState { remaining: 1, initial: 3, opened: 2, born: 77 };
        let counted = Counted::State(state);
        assert_eq!(read_answer(write_answer(&counted, false).as_bytes(), 99), Some(counted));
        let created = read_answer(write_answer(&counted, true).as_bytes(), 99);
        assert_eq!(created, Some(Counted::State(CountState { born: 99, ..state })));
        assert_eq!(read_answer(b"what", 1), None);
        assert_eq!(read_state(b"1 2 3 4", 1), None);
    }
}
