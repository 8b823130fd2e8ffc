//! Evictions: an operator takes a lock back.

use lockkeeper_core::{
    StoreError,
    store::{Evict, Evicted, Eviction},
};
use zookeeper_client::{Error, Stat};

use crate::{
    changes::TRIES, codec::ClaimData, keeper::KeeperState, listing::Freshness, nodes::delete_markers,
    session::Session, trouble::trouble,
};

/// The node of the holder.
struct HolderNode {
    path: String,
    markers: Vec<String>,
    bytes: Vec<u8>,
    stat: Stat,
}

impl KeeperState {
    /// Takes a lock back from the contender with the number that `order` names, and from nobody else.
    pub(crate) async fn evict(&self, session: &Session, order: &Evict) -> Result<Evicted, StoreError> {
        let folder = self.settings.paths.lock(&order.name);
        for _ in 0..TRIES {
            let queue = self.queue(session, &folder, Freshness::Latest).await?;
            let Some(holder) = queue.holder(order.contender) else { return Ok(Evicted::NotHeld) };
            let path = format!("{folder}/{}", holder.name);
            let Some((bytes, stat)) = session.data(&path).await? else { continue };
            let markers = queue.marker_paths(&folder, order.contender);
            match self.evict_node(session, order, HolderNode { path, markers, bytes, stat }).await {
                Ok(evicted) => return Ok(evicted),
                Err(Error::BadVersion | Error::NoNode) => {}
                Err(error) => return Err(trouble(error)),
            }
        }
        Err(trouble(Error::BadVersion))
    }

    async fn evict_node(
        &self,
        session: &Session,
        order: &Evict,
        HolderNode { path, markers, bytes, stat }: HolderNode,
    ) -> Result<Evicted, Error> {
        let mut data = ClaimData::from_bytes(&bytes);
        if data.number(stat.czxid) != order.number {
            return Ok(Evicted::NotHeld);
        }
        data.evicted = true;
        data.reason.clone_from(&order.reason);
        let sent = session.now();
        let marked = session.client.set_data(&path, &data.to_bytes(), Some(stat.version));
        let marked = session.write(sent, marked).await?;
        if order.how == Eviction::Immediate || data.retired {
            // The version makes sure that this is the node that was marked. A new one of that name has another version.
            session.read(session.client.delete(&path, Some(marked.version))).await?;
            session.read(delete_markers(&session.client, &markers)).await?;
            self.records().claims.remove(&order.contender);
        } else if let Some(record) = self.records().claims.get_mut(&order.contender) {
            (record.data.evicted, record.data.reason) = (true, order.reason.clone());
        }
        Ok(Evicted::Done)
    }
}
