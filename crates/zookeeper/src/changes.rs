//! Changes the data of a claim's own node. Operators write there too, so each change names the version that it is based on.
//! If the node has changed since, it is read and changed again.

use std::sync::Arc;

use lockkeeper_core::{ContenderId, StoreError, store::Renewed, support::background::Background};
use zookeeper_client::{Error, MultiWriteError, MultiWriteResult};

use crate::{
    codec::ClaimData, keeper::KeeperState, reconnect::backoff, records::ClaimRecord, session::Session,
    trouble::trouble,
};

/// How often a change is tried against others that change the same node.
pub(crate) const TRIES: u32 = 10;

/// The outcome of a change.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Changed {
    Done,
    /// The node is gone, or belongs to another session.
    Gone,
    /// An operator wants it back, so nothing was changed. This is the answer to a renewal.
    Evicted(Renewed),
}

/// Whether a node that an operator wants back is changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum IfEvicted {
    Leave,
    Change,
}

impl KeeperState {
    /// Changes the node of a claim, unless it is evicted. `marker` is created beside it in the same transaction.
    pub(crate) async fn change(
        &self,
        contender: ContenderId,
        marker: Option<&str>,
        change: impl Fn(&mut ClaimData) + Send + Sync,
    ) -> Result<Changed, StoreError> {
        self.change_repeatedly(contender, marker, IfEvicted::Leave, change).await
    }

    /// Marks the node of a permit that was admitted as granted, in the background and until it is done. Waiters behind it
    /// watch the node, and may fit beside the permit.
    pub(crate) fn mark_granted(self: &Arc<Self>, contender: ContenderId) {
        let keeper = self.clone();
        let marking = async move {
            let mut backoff = backoff();
            let mark = |data: &mut ClaimData| data.granted = true;
            while let Err(error) = keeper.change_repeatedly(contender, None, IfEvicted::Change, mark).await {
                tracing::debug!(%contender, %error, "not marked yet");
                keeper.pause(&mut backoff).await;
            }
        };
        // Spawned under the lock, so that the task ends with its record.
        if let Some(record) = self.records().claims.get_mut(&contender) {
            record.task = Some(Background::from(self.background.spawn(marking).abort_handle()));
        }
    }

    async fn change_repeatedly(
        &self,
        contender: ContenderId,
        marker: Option<&str>,
        if_evicted: IfEvicted,
        change: impl Fn(&mut ClaimData) + Send + Sync,
    ) -> Result<Changed, StoreError> {
        for _ in 0..TRIES {
            match self.change_once(contender, marker, if_evicted, &change).await {
                Err(Error::BadVersion) => {}
                changed => return changed.map_err(trouble),
            }
        }
        Err(trouble(Error::BadVersion))
    }

    async fn change_once(
        &self,
        contender: ContenderId,
        marker: Option<&str>,
        if_evicted: IfEvicted,
        change: &(impl Fn(&mut ClaimData) + Send + Sync),
    ) -> Result<Changed, Error> {
        let (own, node, mut data, version) = match self.records().claims.get(&contender) {
            Some(ClaimRecord { session, node, data, version, .. }) => {
                (session.clone(), node.clone(), data.clone(), *version)
            }
            None => return Ok(Changed::Gone),
        };
        // A marker has to belong to the claim's own session. That one may be silent while the keeper's answers, so it is
        // used for nothing else.
        let session = match (marker, self.session()) {
            (None, Ok(session)) => session,
            _ => own.clone(),
        };
        if data.evicted && if_evicted == IfEvicted::Leave {
            return Ok(Changed::Evicted(data.refused_renewal()));
        }
        change(&mut data);
        match self.write_data(&session, &node, marker, &data, version).await {
            Ok(version) => {
                self.remember_data(contender, &node, data, version);
                Ok(Changed::Done)
            }
            Err(Error::NoNode) => Ok(Changed::Gone),
            Err(Error::BadVersion) => match session.read(session.client.get_data(&node)).await {
                Ok((data, stat)) if stat.ephemeral_owner == own.id => {
                    self.remember_data(contender, &node, ClaimData::from_bytes(&data), Some(stat.version));
                    Err(Error::BadVersion)
                }
                Ok(_) | Err(Error::NoNode) => Ok(Changed::Gone),
                Err(error) => Err(error),
            },
            Err(error) => Err(error),
        }
    }

    /// Writes the data of a node, and returns the new version if it is known.
    async fn write_data(
        &self,
        session: &Session,
        node: &str,
        marker: Option<&str>,
        data: &ClaimData,
        version: i32,
    ) -> Result<Option<i32>, Error> {
        let sent = session.now();
        let Some(marker) = marker else {
            let set = session.client.set_data(node, &data.to_bytes(), Some(version));
            return session.write(sent, set).await.map(|stat| Some(stat.version));
        };
        let mut multi = session.client.new_multi_writer();
        multi.add_create(marker, b"", &self.ephemeral())?;
        multi.add_set_data(node, &data.to_bytes(), Some(version))?;
        match session.write(sent, multi.commit()).await {
            Ok(results) => Ok(results.iter().find_map(|result| match result {
                MultiWriteResult::SetData { stat } => Some(stat.version),
                _ => None,
            })),
            // An earlier copy of this request did both.
            Err(MultiWriteError::OperationFailed { index: 0, source: Error::NodeExists }) => Ok(None),
            Err(MultiWriteError::OperationFailed { source, .. }) => Err(source),
            Err(error) => Err(error.into()),
        }
    }

    /// Remembers the data of a claim's node.
    fn remember_data(&self, contender: ContenderId, node: &str, data: ClaimData, version: Option<i32>) {
        let mut records = self.records();
        if let Some(record) = records.claims.get_mut(&contender).filter(|record| record.node == node) {
            record.data = data;
            record.version = version.unwrap_or(record.version);
        }
    }
}
