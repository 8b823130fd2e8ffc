//! Lists queues: asks a server for the children of a resource's folder. Every listing of a queue is sent from here.

use std::{future::Future, pin::Pin};

use lockkeeper_core::StoreError;
use zookeeper_client::Error;

use crate::{keeper::KeeperState, queue::Queue, session::Session, trouble::trouble};

/// How old a listing may be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Freshness {
    /// As old as the session's server is behind the leader. It includes all that this session has written before.
    AnyServer,
    /// No older than the call.
    Latest,
}

type Answer<'s, T> = Pin<Box<dyn Future<Output = Result<T, Error>> + Send + 's>>;

/// A listing that was sent and is not answered yet.
pub(crate) struct Listing<'s> {
    session: &'s Session,
    folder: String,
    synced: Option<Answer<'s, ()>>,
    children: Answer<'s, Vec<String>>,
}

impl<'s> Listing<'s> {
    /// Sends the request at once, so that it follows the request before it without waiting for its answer.
    pub(crate) fn send(session: &'s Session, folder: &str, freshness: Freshness) -> Self {
        let synced: Option<Answer<'s, ()>> = match freshness {
            Freshness::AnyServer => None,
            Freshness::Latest => Some(Box::pin(session.client.sync(folder))),
        };
        let children = Box::pin(session.client.list_children(folder));
        Self { session, folder: folder.to_owned(), synced, children }
    }
}

impl KeeperState {
    /// The queue of the resource whose folder is `folder`; empty if there is no such folder.
    pub(crate) async fn queue(
        &self,
        session: &Session,
        folder: &str,
        freshness: Freshness,
    ) -> Result<Queue, StoreError> {
        self.listed(Listing::send(session, folder, freshness)).await
    }

    /// The queue that a listing shows.
    pub(crate) async fn listed(&self, listing: Listing<'_>) -> Result<Queue, StoreError> {
        let Listing { session, folder, synced, children } = listing;
        if let Some(synced) = synced {
            session.read(synced).await.map_err(trouble)?;
        }
        match session.read(children).await {
            Ok(children) => Ok(self.queue_of(&folder, children)),
            Err(Error::NoNode) => Ok(Queue::default()),
            Err(error) => Err(trouble(error)),
        }
    }

    /// The queue of these children. Foreign nodes among them are warned of, once.
    pub(crate) fn queue_of(&self, folder: &str, children: Vec<String>) -> Queue {
        let queue = Queue::new(children);
        for foreign in &queue.foreign {
            let node = format!("{folder}/{foreign}");
            if self.records().warned_of.insert(node.clone()) {
                tracing::warn!(node, "there is a node that Lockkeeper did not make among its own");
            }
        }
        queue
    }
}
