//! Latches and fences: persistent nodes that are changed only from the version that was read.
//!
//! A latch operation leaves its answer under `counted/` in the same transaction, under its own id: a
//! second copy then fails, and finds the answer there. Its keeper removes the answer once it has it.

use std::time::Duration;

use lockkeeper_core::{
    StoreError, Token,
    model::{COUNT_MEMORY, Counter, HighWater, Now},
    store::{Admit, Admitted, Answers, Count, CountAction, CountState, Counted},
};
use zookeeper_client::{Error, MultiWriteError};

use crate::{
    claims::{add_number, checked, number_of},
    keeper::KeeperState,
    session::Session,
    trouble::{corrupt, trouble},
};

/// How long the answer to an operation is kept whose keeper never came for it.
const FORGOTTEN: Duration = Duration::from_secs(3600);

/// `remaining initial opened`; when it was born is the number of the transaction that made the node.
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

/// An answer as it is kept. A creation's `born` is the number of its own transaction.
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

impl KeeperState {
    /// Works a latch's counter.
    pub(crate) async fn count(
        &self,
        session: &Session,
        count: &Count,
    ) -> Result<Answers<Counted>, StoreError> {
        let done = self.memory().counted.find(count.op, self.store_time());
        let counted = match done {
            Some(done) => done,
            None => self.count_once(session, count).await?,
        };
        let now = self.store_time();
        if count.action != CountAction::Read && done.is_none() {
            let mut memory = self.memory();
            memory.unanswered.remove(&count.op);
            if counted != Counted::Stale {
                memory.counted.insert(count.op, count.not_after.after(COUNT_MEMORY), counted, now);
            }
        }
        Ok(Answers { now, each: vec![counted] })
    }

    async fn count_once(&self, session: &Session, count: &Count) -> Result<Counted, StoreError> {
        let answer_path = self.settings.paths.counted(count.op);
        let late = || count.not_after < self.store_time();
        // Before anything is awaited: from here on a copy may be under way.
        let unanswered = match count.action {
            CountAction::Read => false,
            _ if late() => self.memory().unanswered.contains(&count.op),
            _ => !self.memory().unanswered.insert(count.op),
        };
        if late() && !unanswered {
            return Ok(Counted::Stale);
        }
        let path = self.settings.paths.latch(&count.name);
        loop {
            let read = if late() { None } else { Some(self.read_latch(session, &path).await?) };
            // Perhaps it took long to read.
            let Some((before, version)) = read.filter(|_| !late()) else {
                // If a copy is still under way, it finds that its id is taken.
                return self.seal(session, &answer_path).await;
            };
            let mut counter = Counter(before);
            let counted =
                counter.step(Now { lease: self.store_time(), wall: 0 }, &mut HighWater(0), count.action);
            if counter.0 == before {
                // Nothing to write, unless an earlier copy has changed it to what it is.
                if unanswered && let Some(done) = self.read_answer(session, &answer_path).await? {
                    return Ok(done);
                }
                return Ok(counted);
            }
            let created = before.is_none();
            let answer = write_answer(&counted, created);
            let sent = session.now();
            let mut multi = session.client.new_multi_writer();
            multi.add_create(&answer_path, answer.as_bytes(), &self.persistent()).map_err(trouble)?;
            match &counter.0 {
                None => multi.add_delete(&path, Some(version)),
                Some(after) if created => {
                    multi.add_create(&path, write_state(after).as_bytes(), &self.persistent())
                }
                Some(after) => multi.add_set_data(&path, write_state(after).as_bytes(), Some(version)),
            }
            .map_err(trouble)?;
            add_number(&mut multi, &self.settings.paths.folder("counted"))?;
            match session.write(sent, multi.commit()).await {
                Ok(results) => {
                    let heard = std::mem::take(&mut self.memory().heard);
                    self.forget(session, heard, &answer_path);
                    return match (counted, number_of(&results)) {
                        (Counted::State(state), Some(born)) if created => {
                            Ok(Counted::State(CountState { born: checked(born)?, ..state }))
                        }
                        (counted, _) => Ok(counted),
                    };
                }
                Err(MultiWriteError::OperationFailed { index: 0, source: Error::NodeExists }) => {
                    return self
                        .read_answer(session, &answer_path)
                        .await?
                        .ok_or_else(|| trouble(Error::NodeExists));
                }
                Err(MultiWriteError::OperationFailed {
                    source: Error::BadVersion | Error::NoNode | Error::NodeExists,
                    ..
                }) => {}
                Err(error) => return Err(trouble(error.into())),
            }
        }
    }

    /// Makes sure that no copy of an operation counts from now on, and says whether one did.
    async fn seal(&self, session: &Session, answer_path: &str) -> Result<Counted, StoreError> {
        let sent = session.now();
        let sealed = session.client.create(answer_path, b"stale", &self.persistent());
        match session.write(sent, sealed).await {
            Ok(_) => Ok(Counted::Stale),
            Err(Error::NodeExists) => {
                let answer = self.read_answer(session, answer_path).await?;
                answer.ok_or_else(|| trouble(Error::NodeExists))
            }
            Err(error) => Err(trouble(error)),
        }
    }

    async fn read_latch(
        &self,
        session: &Session,
        path: &str,
    ) -> Result<(Option<CountState>, i32), StoreError> {
        let synced = session.client.sync(path);
        let read = session.client.get_data(path);
        session.read(synced).await.map_err(trouble)?;
        match session.read(read).await {
            Ok((data, stat)) => {
                let state = read_state(&data, stat.czxid).ok_or_else(|| {
                    corrupt(format!(
                        "{path} holds no latch of Lockkeeper; remove it or choose another namespace"
                    ))
                })?;
                Ok((Some(state), stat.version))
            }
            Err(Error::NoNode) => Ok((None, 0)),
            Err(error) => Err(trouble(error)),
        }
    }

    async fn read_answer(&self, session: &Session, path: &str) -> Result<Option<Counted>, StoreError> {
        let synced = session.client.sync(path);
        let read = session.client.get_data(path);
        session.read(synced).await.map_err(trouble)?;
        match session.read(read).await {
            Ok((data, stat)) => Ok(read_answer(&data, stat.czxid)),
            Err(Error::NoNode) => Ok(None),
            Err(error) => Err(trouble(error)),
        }
    }

    /// Removes answers that this keeper has heard; what fails is removed with the next one.
    fn forget(&self, session: &Session, mut heard: Vec<String>, answer: &str) {
        // The latest stays until the next operation, which costs nothing more.
        for path in heard.drain(..) {
            // Sent now; nobody waits for the answer.
            drop(session.client.delete(&path, None));
        }
        self.memory().heard.push(answer.to_owned());
    }

    /// Removes all answers that this keeper has heard, before it ends.
    pub(crate) async fn forget_all(&self, session: &Session) {
        let heard = std::mem::take(&mut self.memory().heard);
        for path in heard {
            // What is left is swept by a later keeper.
            drop(session.read(session.client.delete(&path, None)).await);
        }
    }

    /// Removes answers that nobody came for: their keepers are gone.
    pub(crate) async fn sweep_answers(&self, session: &Session) -> Result<(), Error> {
        let folder = self.settings.paths.folder("counted");
        let mut newest = i64::MIN;
        let mut stats = Vec::new();
        for child in session.read(session.client.list_children(&folder)).await? {
            let path = format!("{folder}/{child}");
            if let Some(stat) = session.read(session.client.check_stat(&path)).await? {
                newest = newest.max(stat.ctime);
                stats.push((path, stat.ctime));
            }
        }
        let age = i64::try_from(FORGOTTEN.as_millis()).unwrap_or(i64::MAX);
        for (path, _) in stats.into_iter().filter(|(_, made)| newest.saturating_sub(*made) > age) {
            match session.read(session.client.delete(&path, None)).await {
                Ok(()) | Err(Error::NoNode) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Shows a token to a fence.
    pub(crate) async fn fence(&self, session: &Session, admit: &Admit) -> Result<Admitted, StoreError> {
        let path = self.settings.paths.fence(&admit.name);
        loop {
            let read = match session.read(session.client.get_data(&path)).await {
                Ok((data, stat)) => {
                    let highest = std::str::from_utf8(&data).ok().and_then(|text| text.parse::<Token>().ok());
                    let highest =
                        highest.ok_or_else(|| corrupt(format!("{path} holds no fence of Lockkeeper")))?;
                    Some((highest, stat.version))
                }
                Err(Error::NoNode) => None,
                Err(error) => return Err(trouble(error)),
            };
            let sent = session.now();
            let written = match read {
                // A fence never falls, so an old answer that says stale is true.
                Some((highest, _)) if admit.token < highest => return Ok(Admitted::Stale { highest }),
                Some((highest, version)) if admit.floor <= highest => {
                    // Nothing to write, but the quorum must know of nothing higher.
                    let checked = session.client.new_check_writer(&path, Some(version)).map_err(trouble)?;
                    let checked = session.write(sent, checked.commit()).await;
                    checked.map(drop).map_err(|error| match error {
                        zookeeper_client::CheckWriteError::CheckFailed { source } => source,
                        error => error.into(),
                    })
                }
                Some((_, version)) => {
                    let floor = admit.floor.to_string();
                    let set = session.client.set_data(&path, floor.as_bytes(), Some(version));
                    session.write(sent, set).await.map(drop)
                }
                None => {
                    let floor = admit.floor.to_string();
                    let made = session.client.create(&path, floor.as_bytes(), &self.persistent());
                    session.write(sent, made).await.map(drop)
                }
            };
            match written {
                Ok(()) => return Ok(Admitted::Yes),
                Err(Error::BadVersion | Error::NodeExists | Error::NoNode) => {}
                Err(error) => return Err(trouble(error)),
            }
        }
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
