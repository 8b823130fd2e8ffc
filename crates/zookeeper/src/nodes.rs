//! Creates and removes the nodes of claims. Touches the servers.

use std::sync::Arc;

use lockkeeper_core::{
    ContenderId, GrantNumber, StoreError, Token,
    store::{Claim, Left},
};
use zookeeper_client::{Client, Error, MultiWriteError, MultiWriteResult, MultiWriter};

use crate::{
    codec::{ClaimData, claim_prefix},
    keeper::KeeperState,
    listing::{Freshness, Listing},
    queue::Queue,
    records::{ClaimRecord, ClaimState},
    session::Session,
    trouble::{corrupt, too_few_answers, trouble},
};

/// A claim's node that has been made.
pub(crate) struct NewNode {
    pub(crate) path: String,
    pub(crate) number: GrantNumber,
}

/// The outcome of a creation.
pub(crate) enum Created {
    /// The node, and the queue that was listed right after.
    Node(NewNode, Result<Queue, StoreError>),
    /// The claim came too late, and nothing was sent.
    TooLate,
}

/// The two answers that a removal can give.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RemovalAnswer {
    /// If this request removed the node.
    pub(crate) removed: Left,
    /// If the node was gone before.
    pub(crate) gone: Left,
}

impl KeeperState {
    /// The path of a claim's node, up to the sequence that the server appends.
    pub(crate) fn claim_path(&self, claim: &Claim) -> String {
        let prefix = claim_prefix(claim.contender, claim.units, claim.capacity);
        format!("{}/{prefix}", self.settings.paths.lock(&claim.name))
    }

    /// Makes the node of a claim in `session`. If that fails, the keeper remembers that the node may be there.
    pub(crate) async fn create_node(
        &self,
        session: &Arc<Session>,
        claim: &Claim,
    ) -> Result<Created, StoreError> {
        loop {
            // The keeper may have waited for much since it looked at the claim (I9).
            if claim.not_after < self.store_time() {
                return Ok(Created::TooLate);
            }
            match self.create_in_folder(session, claim).await {
                Ok(Some(created)) => return Ok(created),
                Ok(None) => {}
                Err(error) => return Err(self.outcome_unknown(session, claim, error)),
            }
            match self.create_with_folder(session, claim).await {
                Ok(Some(created)) => return Ok(created),
                Ok(None) => {}
                Err(error) => return Err(self.outcome_unknown(session, claim, error)),
            }
        }
    }

    /// Makes the node in a folder that exists; `None` if there is no folder.
    async fn create_in_folder(
        &self,
        session: &Session,
        claim: &Claim,
    ) -> Result<Option<Created>, StoreError> {
        let (folder, path) = (self.settings.paths.lock(&claim.name), self.claim_path(claim));
        let data = ClaimData::of(claim).to_bytes();
        let options = self.sequential();
        let sent = session.now();
        let created = session.client.create(&path, &data, &options);
        let listing = Listing::send(session, &folder, Freshness::AnyServer);
        match session.write(sent, created).await {
            Ok((stat, sequence)) => {
                let node = NewNode { path: format!("{path}{sequence}"), number: grant_number(stat.czxid)? };
                Ok(Some(Created::Node(node, self.listed(listing).await)))
            }
            Err(Error::NoNode) => Ok(None),
            Err(error) => Err(trouble(error)),
        }
    }

    /// Makes the node and its folder in one transaction; `None` if there is a folder. An empty folder would never be
    /// removed by the servers, so it is never made alone.
    async fn create_with_folder(
        &self,
        session: &Session,
        claim: &Claim,
    ) -> Result<Option<Created>, StoreError> {
        let folder = self.settings.paths.lock(&claim.name);
        let data = ClaimData::of(claim).to_bytes();
        let sent = session.now();
        let mut multi = session.client.new_multi_writer();
        multi.add_create(&folder, b"", &self.container()).map_err(trouble)?;
        multi.add_create(&self.claim_path(claim), &data, &self.sequential()).map_err(trouble)?;
        add_number(&mut multi, &folder)?;
        let committed = multi.commit();
        let listing = Listing::send(session, &folder, Freshness::AnyServer);
        match session.write(sent, committed).await {
            Ok(results) => {
                let number = number_of(&results);
                let (Some(MultiWriteResult::Create { path, .. }), Some(number)) =
                    (results.into_iter().nth(1), number)
                else {
                    return Err(too_few_answers());
                };
                let node = NewNode { path, number: grant_number(number)? };
                Ok(Some(Created::Node(node, self.listed(listing).await)))
            }
            Err(MultiWriteError::OperationFailed { index: 0, source: Error::NodeExists }) => Ok(None),
            Err(error) => Err(trouble(error.into())),
        }
    }

    /// Remembers that the node of a claim may be there. The claim is asked for again, or the reaper removes the node.
    pub(crate) fn outcome_unknown(
        &self,
        session: &Arc<Session>,
        claim: &Claim,
        error: StoreError,
    ) -> StoreError {
        let state = ClaimState::Unknown { asked: self.now() };
        let record = ClaimRecord::new(claim, session, String::new(), 0, state);
        self.records().claims.insert(claim.contender, record);
        error
    }

    /// Removes a node and its markers.
    pub(crate) async fn delete_node(
        &self,
        session: &Session,
        contender: ContenderId,
        node: &str,
        markers: &[String],
        answer: RemovalAnswer,
    ) -> Result<Left, StoreError> {
        let sent = session.now();
        let left = match session.write(sent, session.client.delete(node, None)).await {
            Ok(()) => answer.removed,
            Err(Error::NoNode) => answer.gone,
            Err(error) => return Err(trouble(error)),
        };
        session.read(delete_markers(&session.client, markers)).await.map_err(trouble)?;
        self.records().claims.remove(&contender);
        Ok(left)
    }

    /// Removes the node of a claim that is leaving; `false` if it may still be there. A node of that name in another
    /// session belongs to a keeper that has taken the lease over, and stays.
    pub(crate) async fn remove_node(&self, contender: ContenderId) -> bool {
        let (session, node, markers) = match self.records().claims.get(&contender) {
            Some(ClaimRecord { session, node, markers, state: ClaimState::Leaving(_), .. }) => {
                (session.clone(), node.clone(), markers.clone())
            }
            _ => return true,
        };
        // The claim's own session may be silent while the keeper's answers.
        let client = self.session().unwrap_or_else(|_| session.clone()).client.clone();
        let removing = async {
            let (synced, stat) = (client.sync(&node), client.check_stat(&node));
            synced.await?;
            let version = match stat.await? {
                // Its markers were taken over with it.
                Some(stat) if stat.ephemeral_owner != session.id => return Ok(()),
                stat => stat.map(|stat| stat.version),
            };
            match client.delete(&node, version).await {
                Ok(()) | Err(Error::NoNode) => delete_markers(&client, &markers).await,
                Err(error) => Err(error),
            }
        };
        let gone = matches!(tokio::time::timeout(self.limit, removing).await, Ok(Ok(())));
        if gone {
            self.records().claims.remove(&contender);
        }
        gone
    }
}

/// Removes the markers of a claim whose node is gone. Until then they must stay: without them the claim would hold the
/// released units again.
pub(crate) async fn delete_markers(client: &Client, markers: &[String]) -> Result<(), Error> {
    for marker in markers {
        match client.delete(marker, None).await {
            Ok(()) | Err(Error::NoNode) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Returns the number of a grant, which is that of the transaction that made its node.
pub(crate) fn grant_number(zxid: i64) -> Result<GrantNumber, StoreError> {
    let number = GrantNumber::try_from(zxid).ok().filter(|number| (1..Token::NUMBER_LIMIT).contains(number));
    number.ok_or_else(|| {
        corrupt("ZooKeeper's transaction numbers have outgrown the tokens: too many elections")
    })
}

/// Adds an operation that shows the number of the transaction. Servers before 3.9 leave it out of their answers to
/// creations in a transaction (ZOOKEEPER-4667), but not out of those to changes.
pub(crate) fn add_number(multi: &mut MultiWriter<'_>, folder: &str) -> Result<(), StoreError> {
    multi.add_set_data(folder, b"", None).map_err(trouble)
}

/// The number of the transaction with these results.
pub(crate) fn number_of(results: &[MultiWriteResult]) -> Option<i64> {
    results.iter().find_map(|result| match result {
        MultiWriteResult::SetData { stat } => Some(stat.mzxid),
        _ => None,
    })
}
