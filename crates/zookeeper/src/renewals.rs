//! Renewals: reads the nodes of leases, and extends, lowers or detaches them.
//!
//! A session keeps all leases in it, so a renewal writes nothing. It reads the nodes, since they may have been removed, or
//! marked by an operator.

use std::sync::Arc;

use lockkeeper_core::{
    ContenderId, StoreError, Units,
    store::{Answers, Renew, Renewed},
};
use tokio::time::{Instant, timeout_at};
use zookeeper_client::{Error, MultiReadResult};

use crate::{
    changes::Changed,
    codec::{ClaimData, marker},
    keeper::KeeperState,
    layout::split,
    records::{ClaimRecord, ClaimState},
    session::Session,
    trouble::{too_few_answers, trouble},
};

/// The state of a lease's node, as far as it is known.
enum LeaseNode {
    There,
    Gone,
    /// It is not in a session of this keeper.
    Elsewhere,
    Unknown(StoreError),
}

/// The leases of a group that one session keeps.
struct SessionLeases {
    session: Arc<Session>,
    leases: Vec<LeaseToRead>,
}

struct LeaseToRead {
    /// In the group.
    position: usize,
    node: String,
}

impl KeeperState {
    /// Renews leases. A lease whose session gives no answer costs no other lease its answer.
    pub(crate) async fn renew(self: &Arc<Self>, leases: &[Renew]) -> Result<Answers<Renewed>, StoreError> {
        let session = self.session()?;
        // Earlier than the caller gives them all up.
        let until = Instant::now() + self.limit.mul_f32(0.8);
        let mut each = Vec::with_capacity(leases.len());
        let mut failed = None;
        for (renew, node) in leases.iter().zip(self.read_nodes(leases, until).await) {
            let renewed = match node {
                LeaseNode::There => self.renew_here(renew).await,
                LeaseNode::Gone => Ok(Renewed::Gone),
                LeaseNode::Elsewhere => self.take_over_until(until, &session, renew).await,
                LeaseNode::Unknown(error) => Err(error),
            };
            each.push(renewed.unwrap_or_else(|error| {
                failed = Some(error);
                Renewed::Unknown
            }));
        }
        self.sooner.notify_one();
        match failed {
            Some(error) if each.iter().all(|renewed| *renewed == Renewed::Unknown) => Err(error),
            _ => Ok(Answers { now: self.store_time(), each }),
        }
    }

    /// Reads the nodes of these leases, no older than this call. Each session sends a check, and one request that reads all
    /// its nodes.
    async fn read_nodes(&self, leases: &[Renew], until: Instant) -> Vec<LeaseNode> {
        let (mut nodes, sessions) = self.sort_by_session(leases);
        // A server that answers a check knows of everything that was done before. All checks are sent before the first is
        // awaited. A session whose server is silent costs the others half of the time.
        let root = &self.settings.paths.root;
        let checks: Vec<_> = sessions.iter().map(|one| one.session.check(root)).collect();
        let soon = Instant::now() + until.duration_since(Instant::now()) / 2;
        let mut reads = Vec::with_capacity(sessions.len());
        for (SessionLeases { session, leases }, check) in sessions.iter().zip(checks) {
            reads.push(match timeout_at(soon, check).await.unwrap_or(Err(Error::Timeout)) {
                Ok(()) => {
                    let mut read = session.client.new_multi_reader();
                    let added = leases.iter().try_for_each(|lease| read.add_get_data(&lease.node));
                    added.map(|()| read.commit())
                }
                Err(error) => Err(error),
            });
        }
        for (one, read) in sessions.iter().zip(reads) {
            let read = match read {
                Ok(read) => timeout_at(until, one.session.read(read)).await.unwrap_or(Err(Error::Timeout)),
                Err(error) => Err(error),
            };
            let mut results = read.map(Vec::into_iter);
            for LeaseToRead { position, node } in &one.leases {
                let contender = leases[*position].contender;
                nodes[*position] = match &mut results {
                    Ok(results) => self.node_read(&one.session, contender, node, results.next()),
                    Err(error) => LeaseNode::Unknown(trouble(error.clone())),
                };
            }
        }
        nodes
    }

    /// Judges each lease by the records, and sorts the leases to read by session.
    fn sort_by_session(&self, leases: &[Renew]) -> (Vec<LeaseNode>, Vec<SessionLeases>) {
        let records = self.records();
        let mut nodes = Vec::with_capacity(leases.len());
        let mut sessions: Vec<SessionLeases> = Vec::new();
        for (position, renew) in leases.iter().enumerate() {
            let record = records.claims.get(&renew.contender);
            nodes.push(if record.is_some() { LeaseNode::There } else { LeaseNode::Elsewhere });
            // A claim that does not hold has no lease to read.
            let holding = record
                .filter(|record| matches!(record.state, ClaimState::Holding(_)) && record.session.lives());
            let Some(ClaimRecord { session, node, .. }) = holding else { continue };
            let lease = LeaseToRead { position, node: node.clone() };
            match sessions.iter_mut().find(|one| Arc::ptr_eq(&one.session, session)) {
                Some(one) => one.leases.push(lease),
                None => sessions.push(SessionLeases { session: session.clone(), leases: vec![lease] }),
            }
        }
        (nodes, sessions)
    }

    /// Judges one lease by the answer to the read of its node, and remembers the answer.
    fn node_read(
        &self,
        session: &Arc<Session>,
        contender: ContenderId,
        node: &str,
        read: Option<MultiReadResult>,
    ) -> LeaseNode {
        let mut records = self.records();
        let record = records.claims.get_mut(&contender);
        let record = record.filter(|record| record.node == node && Arc::ptr_eq(&record.session, session));
        match (read, record) {
            (Some(MultiReadResult::Data { data, stat }), Some(record))
                if stat.ephemeral_owner == session.id =>
            {
                (record.data, record.version) = (ClaimData::from_bytes(&data), stat.version);
                LeaseNode::There
            }
            // Another session has taken it over.
            (Some(MultiReadResult::Data { .. }), Some(_)) => {
                records.claims.remove(&contender);
                LeaseNode::Elsewhere
            }
            (Some(MultiReadResult::Error { err: Error::NoNode }), Some(_)) => {
                records.claims.remove(&contender);
                LeaseNode::Gone
            }
            (Some(MultiReadResult::Error { err: Error::NoNode }), None) => LeaseNode::Gone,
            // The record has changed during the read.
            (Some(MultiReadResult::Data { .. }), None) => LeaseNode::There,
            (Some(MultiReadResult::Error { err }), _) => LeaseNode::Unknown(trouble(err)),
            (_, _) => LeaseNode::Unknown(too_few_answers()),
        }
    }

    /// Renews a lease that is in a session of this keeper.
    async fn renew_here(&self, renew: &Renew) -> Result<Renewed, StoreError> {
        let now = self.now();
        let (held, lower_to) = {
            let mut records = self.records();
            let Some(record) = records.claims.get_mut(&renew.contender) else { return Ok(Renewed::Gone) };
            if !record.session.lives() {
                return Ok(Renewed::Gone);
            }
            let ClaimState::Holding(hold) = &mut record.state else { return Ok(Renewed::Gone) };
            hold.confirm(record.data.lease);
            if record.data.evicted {
                return Ok(record.data.refused_renewal());
            }
            hold.expires = hold.expires.max(now.after(renew.lease));
            let hold = *hold;
            let held = Renewed::Held(record.grant(&hold, now));
            (held, renew.lower_to.filter(|units| units.below(record.units)))
        };
        if let Some(units) = lower_to {
            match self.lower(renew.contender, units).await? {
                Changed::Done => {}
                Changed::Gone => return Ok(Renewed::Gone),
                Changed::Evicted(refused) => return Ok(refused),
            }
        }
        if renew.detach { self.detach(renew).await } else { Ok(held) }
    }

    /// Lowers a hold to `units`. A marker beside the node says so. The node changes too, for those that watch it.
    pub(crate) async fn lower(&self, contender: ContenderId, units: Units) -> Result<Changed, StoreError> {
        let marker = {
            let mut records = self.records();
            let Some(record) = records.claims.get_mut(&contender) else { return Ok(Changed::Gone) };
            let marker = format!("{}/{}", split(&record.node).0, marker(contender, units));
            // Remembered before it is made, so that it is removed with the node even if the answer is lost.
            if !record.markers.contains(&marker) {
                record.markers.push(marker.clone());
            }
            marker
        };
        let changed = self.change(contender, Some(&marker), |_| {}).await?;
        if let Some(record) = self.records().claims.get_mut(&contender)
            && changed == Changed::Done
        {
            record.units = units;
        }
        Ok(changed)
    }
}
