//! Changes of what stands in a claim's own node. Operators write there too, so a change is made only over the version
//! that it is based on, and else made again from what is there.

use std::sync::Arc;

use lockkeeper_core::{ContenderId, StoreError};
use zookeeper_client::{Error, MultiWriteError, MultiWriteResult};

use crate::{
    codec::ClaimData,
    keeper::{KeeperState, Pause},
    memory::{ClaimRecord, Task},
    session::Session,
    trouble::trouble,
};

/// How often a change is tried against others who change the same node.
pub(crate) const TRIES: u32 = 10;

/// What came of a change.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Changed {
    Done,
    /// The node is gone, or lives in another session.
    Gone,
    /// An operator wants it back: nothing was changed.
    Evicted,
}

impl KeeperState {
    /// Changes the node of a claim; `marker` is created beside it in the same transaction. Not if it is evicted.
    pub(crate) async fn change(
        &self,
        contender: ContenderId,
        marker: Option<&str>,
        change: impl Fn(&mut ClaimData) + Send + Sync,
    ) -> Result<Changed, StoreError> {
        self.change_over(contender, marker, true, change).await
    }

    /// Those behind a permit that was admitted see so in its node, evicted or not.
    async fn mark(&self, contender: ContenderId) -> Result<Changed, StoreError> {
        self.change_over(contender, None, false, |note| note.granted = true).await
    }

    async fn change_over(
        &self,
        contender: ContenderId,
        marker: Option<&str>,
        heeds: bool,
        change: impl Fn(&mut ClaimData) + Send + Sync,
    ) -> Result<Changed, StoreError> {
        for _ in 0..TRIES {
            match self.change_once(contender, marker, heeds, &change).await {
                Err(Error::BadVersion) => {}
                changed => return changed.map_err(trouble),
            }
        }
        Err(trouble(Error::BadVersion))
    }

    /// As [`mark`](Self::mark), in the background and until it is done.
    pub(crate) fn mark_until_done(self: &Arc<Self>, contender: ContenderId) {
        let keeper = self.clone();
        let marking = async move {
            let mut pause = Pause::default();
            while let Err(error) = keeper.mark(contender).await {
                tracing::debug!(%contender, %error, "not marked yet");
                pause.pass(&keeper.clock).await;
            }
        };
        // Begun under the lock: an record that goes takes its task along.
        if let Some(record) = self.memory().records.get_mut(&contender) {
            record.waits = Some(Task(self.background.spawn(marking).abort_handle()));
        }
    }

    async fn change_once(
        &self,
        contender: ContenderId,
        marker: Option<&str>,
        heeds: bool,
        change: &(impl Fn(&mut ClaimData) + Send + Sync),
    ) -> Result<Changed, Error> {
        let (own, node, mut note, version) = match self.memory().records.get(&contender) {
            Some(ClaimRecord { session, node, note, version, .. }) => {
                (session.clone(), node.clone(), note.clone(), *version)
            }
            None => return Ok(Changed::Gone),
        };
        // Its own session may be silent while the keeper's is not. A marker has to live in it.
        let session = match (marker, self.session()) {
            (None, Ok(session)) => session,
            _ => own.clone(),
        };
        if heeds && note.evicted {
            return Ok(Changed::Evicted);
        }
        change(&mut note);
        match self.write_note(&session, &node, marker, &note, version).await {
            Ok(version) => {
                self.noted(contender, &node, note, version);
                Ok(Changed::Done)
            }
            Err(Error::NoNode) => Ok(Changed::Gone),
            Err(Error::BadVersion) => match session.read(session.client.get_data(&node)).await {
                Ok((data, stat)) if stat.ephemeral_owner == own.id => {
                    self.noted(contender, &node, ClaimData::from_bytes(&data), Some(stat.version));
                    Err(Error::BadVersion)
                }
                Ok(_) | Err(Error::NoNode) => Ok(Changed::Gone),
                Err(error) => Err(error),
            },
            Err(error) => Err(error),
        }
    }

    /// The new version, if it is known.
    async fn write_note(
        &self,
        session: &Session,
        node: &str,
        marker: Option<&str>,
        note: &ClaimData,
        version: i32,
    ) -> Result<Option<i32>, Error> {
        let sent = session.now();
        let Some(marker) = marker else {
            let set = session.client.set_data(node, &note.to_bytes(), Some(version));
            return session.write(sent, set).await.map(|stat| Some(stat.version));
        };
        let mut multi = session.client.new_multi_writer();
        multi.add_create(marker, b"", &self.ephemeral())?;
        multi.add_set_data(node, &note.to_bytes(), Some(version))?;
        match session.write(sent, multi.commit()).await {
            Ok(results) => Ok(results.iter().find_map(|result| match result {
                MultiWriteResult::SetData { stat } => Some(stat.version),
                _ => None,
            })),
            // An earlier copy did both.
            Err(MultiWriteError::OperationFailed { index: 0, source: Error::NodeExists }) => Ok(None),
            Err(MultiWriteError::OperationFailed { source, .. }) => Err(source),
            Err(error) => Err(error.into()),
        }
    }

    /// This is what stands in the node of a claim now.
    fn noted(&self, contender: ContenderId, node: &str, note: ClaimData, version: Option<i32>) {
        let mut memory = self.memory();
        if let Some(record) = memory.records.get_mut(&contender).filter(|record| record.node == node) {
            record.note = note;
            record.version = version.unwrap_or(record.version);
        }
    }
}
