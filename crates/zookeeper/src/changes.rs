//! Changes of what stands in a claim's own node. Operators write there too, so a change is made only over the version
//! that it is based on, and else made again from what is there.

use std::sync::Arc;

use lockkeeper_core::{ContenderId, StoreError};
use zookeeper_client::{Error, MultiWriteError, MultiWriteResult};

use crate::{
    note::Note,
    session::Session,
    shared::{Pause, Shared},
    table::{Entry, Task},
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

impl Shared {
    /// Changes the node of a claim; `marker` is created beside it in the same transaction. Not if it is evicted.
    pub(crate) async fn change(
        &self,
        contender: ContenderId,
        marker: Option<&str>,
        change: impl Fn(&mut Note) + Send + Sync,
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
        change: impl Fn(&mut Note) + Send + Sync,
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
        let shared = self.clone();
        let marking = async move {
            let mut pause = Pause::default();
            while let Err(error) = shared.mark(contender).await {
                tracing::debug!(%contender, %error, "not marked yet");
                pause.pass(&shared.clock).await;
            }
        };
        // Begun under the lock: an entry that goes takes its task along.
        if let Some(entry) = self.table().entries.get_mut(&contender) {
            entry.waits = Some(Task(self.background.spawn(marking).abort_handle()));
        }
    }

    async fn change_once(
        &self,
        contender: ContenderId,
        marker: Option<&str>,
        heeds: bool,
        change: &(impl Fn(&mut Note) + Send + Sync),
    ) -> Result<Changed, Error> {
        let (own, node, mut note, version) = match self.table().entries.get(&contender) {
            Some(Entry { session, node, note, version, .. }) => {
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
                    self.noted(contender, &node, Note::from_bytes(&data), Some(stat.version));
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
        note: &Note,
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
    fn noted(&self, contender: ContenderId, node: &str, note: Note, version: Option<i32>) {
        let mut table = self.table();
        if let Some(entry) = table.entries.get_mut(&contender).filter(|entry| entry.node == node) {
            entry.note = note;
            entry.version = version.unwrap_or(entry.version);
        }
    }
}
