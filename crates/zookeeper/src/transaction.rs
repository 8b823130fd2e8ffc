//! Sends claims and leaves as one transaction. Behind it, without waiting for its answer, go the listings that say which
//! claims were admitted.

use std::sync::Arc;

use lockkeeper_core::{
    Capacity, ContenderId, StoreError,
    store::{Answer, Claim},
};
use zookeeper_client::{MultiWriteResult, MultiWriter};

use crate::{
    codec::{ClaimData, follows},
    keeper::KeeperState,
    layout::split,
    listing::{Freshness, Listing},
    nodes::{NewNode, RemovalAnswer, add_number, grant_number, number_of},
    queue::Queue,
    session::Session,
    trouble::{refused, too_few_answers, trouble},
};

/// One request of a group, as an operation of a transaction.
pub(crate) enum Operation<'g> {
    Create { position: usize, claim: &'g Claim },
    Remove(Removal),
}

/// The removal of a claim's node.
pub(crate) struct Removal {
    /// In the group.
    pub(crate) position: usize,
    pub(crate) contender: ContenderId,
    pub(crate) answer: RemovalAnswer,
    pub(crate) node: String,
    pub(crate) markers: Vec<String>,
    /// If the claim holds alone: the claims behind it when it was admitted.
    pub(crate) behind: Option<Vec<String>>,
}

impl Operation<'_> {
    pub(crate) fn contender(&self) -> ContenderId {
        match self {
            Self::Create { claim, .. } => claim.contender,
            Self::Remove(removal) => removal.contender,
        }
    }
}

/// The way in which the queue of a new claim is learned.
enum QueueSource<'s> {
    /// By a listing in flight.
    Listing(Listing<'s>),
    /// The same transaction removes the claim `removed`, which held alone, and `behind` were the claims behind it. If the new
    /// claim arrived right after the last of them, no other claim is before it.
    Known { removed: String, behind: Vec<String> },
}

impl KeeperState {
    /// Sends all of `operations` as one transaction. If the servers refuse it, sends them one by one.
    pub(crate) async fn send(
        self: &Arc<Self>,
        session: &Arc<Session>,
        operations: Vec<Operation<'_>>,
        answers: &mut [Option<Answer>],
    ) -> Result<(), StoreError> {
        match operations.len() {
            0 => return Ok(()),
            1 => return self.send_singly(session, operations, answers).await,
            _ => {}
        }
        let sent = session.now();
        let committed = self.transaction(session, &operations)?.commit();
        let sources = self.queue_sources(session, &operations);
        match session.write(sent, committed).await {
            Ok(results) => self.sent(session, operations, results, sources, answers).await,
            Err(error) if refused(&error) => self.send_singly(session, operations, answers).await,
            Err(error) => {
                let mut error = trouble(error.into());
                for operation in &operations {
                    if let Operation::Create { claim, .. } = operation {
                        error = self.outcome_unknown(session, claim, error);
                    }
                }
                Err(error)
            }
        }
    }

    fn transaction<'s>(
        &self,
        session: &'s Session,
        operations: &[Operation<'_>],
    ) -> Result<MultiWriter<'s>, StoreError> {
        let mut multi = session.client.new_multi_writer();
        let mut folder = None;
        for operation in operations {
            match operation {
                Operation::Remove(Removal { node, markers, .. }) => {
                    for node in markers.iter().chain([node]) {
                        multi.add_delete(node, None).map_err(trouble)?;
                    }
                }
                Operation::Create { claim, .. } => {
                    let data = ClaimData::of(claim);
                    let path = self.claim_path(claim);
                    multi.add_create(&path, &data.to_bytes(), &self.sequential()).map_err(trouble)?;
                    folder.get_or_insert_with(|| self.settings.paths.lock(&claim.name));
                }
            }
        }
        if let Some(folder) = folder {
            add_number(&mut multi, &folder)?;
        }
        Ok(multi)
    }

    /// Decides for each creation how its queue is learned, and sends the listings.
    fn queue_sources<'s>(&self, session: &'s Session, operations: &[Operation<'_>]) -> Vec<QueueSource<'s>> {
        let (mut sources, mut removed) = (Vec::new(), None);
        for operation in operations {
            match operation {
                // A leave comes right before a claim of the same name.
                Operation::Remove(Removal { node, behind, .. }) => {
                    removed = behind.as_ref().map(|behind| (node, behind));
                }
                Operation::Create { claim, .. } => {
                    let folder = self.settings.paths.lock(&claim.name);
                    let known = removed.take().filter(|(node, _)| {
                        // A claim of another capacity must not disagree with claims that may have left since.
                        split(node).0 == folder && claim.capacity == Capacity::All
                    });
                    sources.push(match known {
                        Some((node, behind)) => {
                            QueueSource::Known { removed: split(node).1.to_owned(), behind: behind.clone() }
                        }
                        None => QueueSource::Listing(Listing::send(session, &folder, Freshness::AnyServer)),
                    });
                }
            }
        }
        sources
    }

    async fn queue_from(
        &self,
        session: &Session,
        source: QueueSource<'_>,
        node: &str,
    ) -> Result<Queue, StoreError> {
        let (folder, child) = split(node);
        match source {
            QueueSource::Listing(listing) => self.listed(listing).await,
            // Some of those behind may have left since, which does no harm: the new claim waits for the last of them.
            QueueSource::Known { removed, mut behind }
                if follows(behind.last().unwrap_or(&removed), child) =>
            {
                behind.push(child.to_owned());
                Ok(self.queue_of(folder, behind))
            }
            QueueSource::Known { .. } => self.queue(session, folder, Freshness::AnyServer).await,
        }
    }

    /// Answers the operations of a transaction that was done.
    async fn sent(
        self: &Arc<Self>,
        session: &Arc<Session>,
        operations: Vec<Operation<'_>>,
        results: Vec<MultiWriteResult>,
        sources: Vec<QueueSource<'_>>,
        answers: &mut [Option<Answer>],
    ) -> Result<(), StoreError> {
        let number = number_of(&results);
        let paths = results.into_iter().filter_map(|result| match result {
            MultiWriteResult::Create { path, .. } => Some(path),
            _ => None,
        });
        let mut made = paths.zip(sources);
        let mut failed = None;
        for operation in operations {
            match operation {
                Operation::Remove(removal) => {
                    self.records().claims.remove(&removal.contender);
                    answers[removal.position] = Some(Answer::Leave(removal.answer.removed));
                }
                Operation::Create { position, claim } => {
                    let Some(((path, source), number)) = made.next().zip(number) else {
                        return Err(too_few_answers());
                    };
                    let queue = self.queue_from(session, source, &path).await;
                    let node = NewNode { path, number: grant_number(number)? };
                    match self.decide(session, claim, node, queue).await {
                        Ok(verdict) => answers[position] = Some(Answer::Claim(verdict)),
                        // The other claims still have to be remembered.
                        Err(error) => failed = Some(error),
                    }
                }
            }
        }
        failed.map_or(Ok(()), Err)
    }

    async fn send_singly(
        self: &Arc<Self>,
        session: &Arc<Session>,
        operations: Vec<Operation<'_>>,
        answers: &mut [Option<Answer>],
    ) -> Result<(), StoreError> {
        let mut failed = None;
        for operation in operations {
            let (position, answer) = match operation {
                Operation::Create { position, claim } => {
                    (position, self.enter_queue(session, claim).await.map(Answer::Claim))
                }
                Operation::Remove(Removal { position, contender, answer, node, markers, .. }) => {
                    let left = self.delete_node(session, contender, &node, &markers, answer).await;
                    (position, left.map(Answer::Leave))
                }
            };
            match answer {
                Ok(answer) => answers[position] = Some(answer),
                Err(error) => failed = Some(error),
            }
        }
        failed.map_or(Ok(()), Err)
    }
}
