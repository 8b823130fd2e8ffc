//! The verdict on one claim: from the keeper's records, or from the queue once the claim's node is there. Touches the
//! servers.

use std::sync::Arc;

use lockkeeper_core::{
    Capacity, GrantNumber, StoreError, Units,
    store::{Claim, Left, Verdict},
    support::background::Background,
};
use zookeeper_client::Error;

use crate::{
    codec::ClaimData,
    keeper::KeeperState,
    layout::split,
    listing::Freshness,
    nodes::{Created, NewNode},
    queue::{Admission, Obstacles, Queue},
    records::{ClaimRecord, ClaimState, HoldRecord},
    session::Session,
    trouble::trouble,
};

/// A claim as the keeper's records show it.
pub(crate) enum Remembered {
    /// Enough to answer it.
    Verdict(Verdict),
    /// Its node may have been made, in this session.
    Unknown(Arc<Session>),
    /// It holds, unless this node was taken away.
    Holding(String),
    Nothing,
}

impl KeeperState {
    /// Looks a claim up in the records, without asking the servers.
    pub(crate) fn remembered(&self, claim: &Claim) -> Remembered {
        let (now, time) = (self.now(), self.store_time());
        let mut records = self.records();
        if claim.not_after < time || records.left.find(claim.contender, time).is_some() {
            return Remembered::Verdict(Verdict::Stale);
        }
        let Some(record) = records.claims.get_mut(&claim.contender) else { return Remembered::Nothing };
        if !record.session.lives() {
            records.claims.remove(&claim.contender);
            return Remembered::Nothing;
        }
        match &mut record.state {
            ClaimState::Unknown { .. } => Remembered::Unknown(record.session.clone()),
            ClaimState::Leaving(_) | ClaimState::Retired { .. } => Remembered::Verdict(Verdict::Stale),
            ClaimState::Waiting { ahead, asked } => {
                *asked = now;
                Remembered::Verdict(self.busy(*ahead))
            }
            ClaimState::Holding(_) => Remembered::Holding(record.node.clone()),
        }
    }

    /// Returns the grant of a claim; `None` if its node is gone. The keeper's session asks, since the claim's may be
    /// silent.
    pub(crate) async fn granted_before(
        &self,
        session: &Session,
        node: &str,
        claim: &Claim,
    ) -> Result<Option<Verdict>, StoreError> {
        match session.check(node).await {
            Ok(()) => {}
            Err(Error::NoNode) => return Ok(None),
            Err(error) => return Err(trouble(error)),
        }
        let queue = self.queue(session, split(node).0, Freshness::AnyServer).await?;
        let Some(number) = self.records().claims.get(&claim.contender).map(|record| record.number) else {
            return Ok(None);
        };
        let floor = self.floor(session, &queue, node, claim.units, number).await?;
        let mut records = self.records();
        let Some(record) = records.claims.get_mut(&claim.contender) else { return Ok(None) };
        // Otherwise its lease has ended meanwhile, and its node is being removed.
        let ClaimState::Holding(hold) = &mut record.state else { return Ok(Some(Verdict::Stale)) };
        hold.confirm(claim.lease);
        hold.floor = floor;
        let hold = *hold;
        Ok(Some(Verdict::Granted(record.grant(&hold, self.now()))))
    }

    /// The verdict on a claim that waits. ZooKeeper tells when something ends, so claiming again earlier is of no use.
    pub(crate) fn busy(&self, ahead: usize) -> Verdict {
        Verdict::busy(u32::try_from(ahead).unwrap_or(u32::MAX), self.settings.session)
    }

    /// Makes the node of a claim in `session`, and answers the claim.
    pub(crate) async fn enter_queue(
        self: &Arc<Self>,
        session: &Arc<Session>,
        claim: &Claim,
    ) -> Result<Verdict, StoreError> {
        match self.create_node(session, claim).await? {
            Created::Node(node, queue) => self.decide(session, claim, node, queue).await,
            Created::TooLate => Ok(Verdict::Stale),
        }
    }

    /// Answers a claim whose node is there, by a queue that was listed after the node was made.
    pub(crate) async fn decide(
        self: &Arc<Self>,
        session: &Arc<Session>,
        claim: &Claim,
        node: NewNode,
        queue: Result<Queue, StoreError>,
    ) -> Result<Verdict, StoreError> {
        let queue = match queue {
            Ok(queue) => queue,
            // The node is there, so the claim waits. It will list the queue itself.
            Err(error) => {
                self.start_waiting(session, claim, node, None);
                return Err(error);
            }
        };
        let (folder, child) = split(&node.path);
        if queue.is_used_up(child) {
            tracing::warn!(
                folder,
                "two billion claims without a break: new ones wait until the queue is empty"
            );
            self.turn_away(session, claim, &node).await;
            // Without its folder the resource counts from zero. The removal fails while somebody is in the queue.
            drop(session.read(session.client.delete(folder, None)).await);
            return Ok(self.busy(queue.claims.len()));
        }
        if let Some(in_use) = queue.mismatch(child) {
            self.turn_away(session, claim, &node).await;
            return Ok(Verdict::mismatch(in_use));
        }
        match queue.admission(child) {
            // Somebody has removed the node already.
            None => Ok(Verdict::Stale),
            Some(Admission::Holds) => self.grant(session, claim, node, &queue).await,
            Some(Admission::Waits(obstacles)) => {
                let verdict = self.busy(obstacles.ahead);
                if claim.queue {
                    self.start_waiting(session, claim, node, Some(obstacles));
                } else {
                    self.turn_away(session, claim, &node).await;
                }
                Ok(verdict)
            }
        }
    }

    /// Grants a claim that `queue` admits.
    async fn grant(
        self: &Arc<Self>,
        session: &Arc<Session>,
        claim: &Claim,
        node: NewNode,
        queue: &Queue,
    ) -> Result<Verdict, StoreError> {
        let child = split(&node.path).1;
        let floor = match self.floor(session, queue, &node.path, claim.units, node.number).await {
            Ok(floor) => floor,
            Err(error) => {
                self.start_waiting(session, claim, node, None);
                return Err(error);
            }
        };
        let hold = HoldRecord::confirmed(self.now(), claim.lease, floor);
        let state = ClaimState::Holding(hold);
        let mut record = ClaimRecord::new(claim, session, node.path.clone(), node.number, state);
        record.behind = queue.behind(child);
        let grant = record.grant(&hold, self.now());
        self.records().claims.insert(claim.contender, record);
        if claim.capacity != Capacity::All && !queue.is_last(child) {
            // A claim that arrived before this listing may have seen this one wait.
            self.mark_granted(claim.contender);
        }
        Ok(Verdict::Granted(grant))
    }

    /// Removes the node of a claim that is not let in. If that fails, the reaper goes on with it.
    async fn turn_away(&self, session: &Arc<Session>, claim: &Claim, node: &NewNode) {
        let state = ClaimState::Leaving(Left::LeftQueue);
        let record = ClaimRecord::new(claim, session, node.path.clone(), node.number, state);
        self.records().claims.insert(claim.contender, record);
        self.remove_node(claim.contender).await;
    }

    /// Lets a claim wait in the background. Without `obstacles` it first lists the queue.
    fn start_waiting(
        self: &Arc<Self>,
        session: &Arc<Session>,
        claim: &Claim,
        node: NewNode,
        obstacles: Option<Obstacles>,
    ) {
        let ahead = obstacles.as_ref().map_or(0, |obstacles| obstacles.ahead);
        let state = ClaimState::Waiting { ahead, asked: self.now() };
        let mut record = ClaimRecord::new(claim, session, node.path, node.number, state);
        // Spawned under the lock, so that the task finds its record.
        let mut records = self.records();
        let waiting = self.background.spawn(self.clone().wait(claim.contender, obstacles));
        record.task = Some(Background::from(waiting.abort_handle()));
        records.claims.insert(claim.contender, record);
    }

    /// The smallest number that holds together with the claim at `node`, which is admitted now (I7).
    pub(crate) async fn floor(
        &self,
        session: &Session,
        queue: &Queue,
        node: &str,
        units: Units,
        own: GrantNumber,
    ) -> Result<GrantNumber, StoreError> {
        if units == Units::All {
            return Ok(own);
        }
        let (folder, child) = split(node);
        for before in queue.claims.iter().take_while(|claim| claim.name != child) {
            if let Some((data, stat)) = session.data(&format!("{folder}/{}", before.name)).await? {
                return Ok(ClaimData::from_bytes(&data).number(stat.czxid).min(own));
            }
        }
        Ok(own)
    }
}
