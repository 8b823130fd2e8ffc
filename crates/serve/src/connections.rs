//! All open connections: their number, and the choice of one that makes room for a new one.

use std::{
    collections::HashMap,
    net::IpAddr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::Instant,
};

use lockkeeper::support;
use tokio::sync::Notify;

use crate::{
    count::{Count, OneOf},
    delivery::Delivery,
};

/// The other end of a connection.
pub(crate) struct Peer {
    id: u64,
    /// Its address; none on a socket of the file system.
    pub(crate) address: Option<IpAddr>,
    /// The grant that is on its way.
    pub(crate) delivery: Arc<Delivery>,
    /// How many requests with a good token are worked on.
    busy: AtomicUsize,
    /// The moment since when there are none.
    idle_since: Mutex<Instant>,
    closed: Notify,
}

impl Peer {
    /// Counts a request with a good token until the returned value is dropped.
    pub(crate) fn busy(self: &Arc<Self>) -> Busy {
        self.busy.fetch_add(1, Ordering::AcqRel);
        Busy(self.clone())
    }

    /// Whether a request with a good token is worked on.
    pub(crate) fn is_busy(&self) -> bool {
        self.busy.load(Ordering::Acquire) > 0
    }

    /// Waits until the connection must make room for another.
    pub(crate) async fn closed(&self) {
        self.closed.notified().await;
    }
}

/// A request that is worked on.
pub(crate) struct Busy(Arc<Peer>);

impl Drop for Busy {
    fn drop(&mut self) {
        *support::lock(&self.0.idle_since) = Instant::now();
        self.0.busy.fetch_sub(1, Ordering::AcqRel);
    }
}

/// All open connections.
pub(crate) struct Connections {
    most: usize,
    /// Streams without an end.
    streams: Arc<Count>,
    next: AtomicU64,
    open: Mutex<HashMap<u64, Arc<Peer>>>,
}

impl Connections {
    pub(crate) fn new(most: usize) -> Self {
        Self { most, streams: Arc::default(), next: AtomicU64::new(0), open: Mutex::default() }
    }

    /// How many connections one token may keep busy, so that others always find room. Unless the settings say so, fewer
    /// requests may wait than this, so those that wait do not keep renewals out.
    pub(crate) fn share(&self) -> usize {
        (self.most - self.most / 4).max(1)
    }

    /// Counts one more stream without an end, of a token whose streams `own` counts. `None` if there are too many.
    pub(crate) fn stream(&self, own: &Arc<Count>) -> Option<(OneOf, OneOf)> {
        let own = own.one_of((self.most / 16).max(1))?;
        Some((own, self.streams.one_of((self.most / 4).max(1))?))
    }

    #[cfg(test)]
    fn count(&self) -> usize {
        support::lock(&self.open).len()
    }

    /// Closes all of them.
    pub(crate) fn close_all(&self) {
        support::lock(&self.open).values().for_each(|peer| peer.closed.notify_one());
    }

    /// Lets one more connection in. If there are too many, the one that has been idle the longest has to go: a client
    /// that opens many and sends nothing loses its own. `None` if all are busy.
    pub(crate) fn enter(self: &Arc<Self>, address: Option<IpAddr>) -> Option<Entered> {
        let mut open = support::lock(&self.open);
        if open.len() >= self.most {
            let idle = open.values().filter(|peer| peer.busy.load(Ordering::Acquire) == 0);
            let oldest = idle.min_by_key(|peer| *support::lock(&peer.idle_since)).map(|peer| peer.id)?;
            if let Some(peer) = open.remove(&oldest) {
                peer.closed.notify_one();
            }
        }
        let peer = Arc::new(Peer {
            id: self.next.fetch_add(1, Ordering::Relaxed),
            address,
            delivery: Arc::default(),
            busy: AtomicUsize::new(0),
            idle_since: Mutex::new(Instant::now()),
            closed: Notify::new(),
        });
        open.insert(peer.id, peer.clone());
        metrics::gauge!(crate::metrics::CONNECTIONS).set(open.len() as f64);
        Some(Entered { connections: self.clone(), peer })
    }
}

/// A connection that was let in, until this is dropped.
pub(crate) struct Entered {
    connections: Arc<Connections>,
    pub(crate) peer: Arc<Peer>,
}

impl Drop for Entered {
    fn drop(&mut self) {
        let mut open = support::lock(&self.connections.open);
        open.remove(&self.peer.id);
        metrics::gauge!(crate::metrics::CONNECTIONS).set(open.len() as f64);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test]
    async fn the_longest_idle_connection_makes_room_and_busy_ones_stay() {
        let connections = Arc::new(Connections::new(2));
        let first = connections.enter(None).expect("room");
        let busy = first.peer.busy();
        let second = connections.enter(None).expect("room");
        let third = connections.enter(None).expect("the second makes room");
        tokio::time::timeout(Duration::from_secs(5), second.peer.closed()).await.expect("told");
        drop(second);
        assert_eq!(connections.count(), 2);
        let _also = third.peer.busy();
        assert!(connections.enter(None).is_none(), "all are busy");
        drop(busy);
        assert!(connections.enter(None).is_some(), "the first is idle");
    }
}
