//! Renewals, and leases that outlive their process.
//!
//! A lease is kept by its session, whose signs of life state for all of them. A renewal reads the nodes: they may have
//! been taken away, or marked by an operator. A lease that may outlive its process has a session
//! of its own, which nobody has to close. To take such a lease over, its node is replaced by one of the
//! same name in another session, in one transaction: nobody can come in between.

use std::{sync::Arc, time::Duration};

use lockkeeper_core::{
    ContenderId, StoreError, StoreErrorKind, Units,
    clock::BootTime,
    store::{Answers, Leave, Left, Renew, Renewed},
};
use tokio::time::{Instant, timeout_at};
use zookeeper_client::{Error, MultiReadResult};

use crate::{
    changes::Changed,
    codec::ClaimData,
    keeper::KeeperState,
    memory::{ClaimRecord, ClaimState, HoldRecord},
    queue,
    session::Session,
    trouble::{corrupt, refused, trouble},
};

/// What has become of a lease's node.
enum Node {
    There,
    Gone,
    /// It is not in a session of this keeper.
    Elsewhere,
    Unknown(StoreError),
}

/// A session, and the leases that it holds: the position of each in its group, and its node.
type Held = (Arc<Session>, Vec<(usize, String)>);

/// A node to be taken over.
struct Found {
    node: String,
    markers: Vec<String>,
    note: ClaimData,
    version: i32,
    /// What is left of its lease, if only its lease ends it.
    left: Duration,
    units: Units,
    capacity: lockkeeper_core::Capacity,
    number: u64,
}

impl KeeperState {
    /// Extends leases. What cannot be asked about one costs no other its answer.
    pub(crate) async fn renew(self: &Arc<Self>, leases: &[Renew]) -> Result<Answers<Renewed>, StoreError> {
        let session = self.session()?;
        // Before whoever asks gives them all up.
        let until = Instant::now() + self.limit.mul_f32(0.8);
        let mut each = Vec::with_capacity(leases.len());
        let mut failed = None;
        for (renew, node) in leases.iter().zip(self.read_again(leases, until).await) {
            let renewed = match node {
                Node::There => self.renew_here(renew).await,
                Node::Gone => Ok(Renewed::Gone),
                Node::Elsewhere => self.take_over_until(until, &session, renew).await,
                Node::Unknown(error) => Err(error),
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

    /// Reads the nodes of these leases, not older than this call: one request to each session's server, and one that
    /// reads them all.
    async fn read_again(&self, leases: &[Renew], until: Instant) -> Vec<Node> {
        let (mut nodes, held) = self.held(leases);
        // Whoever answers the reads knows of everything that was done before these were answered. All are sent before the
        // first is awaited; one whose server is silent costs the others half of the time.
        let root = &self.settings.paths.root;
        let checks: Vec<_> = held.iter().map(|(session, _)| session.check(root)).collect();
        let soon = Instant::now() + until.duration_since(Instant::now()) / 2;
        let mut reads = Vec::with_capacity(held.len());
        for ((session, positions), check) in held.iter().zip(checks) {
            reads.push(match timeout_at(soon, check).await.unwrap_or(Err(Error::Timeout)) {
                Ok(()) => {
                    let mut read = session.client.new_multi_reader();
                    let added = positions.iter().try_for_each(|(_, node)| read.add_get_data(node));
                    added.map(|()| read.commit())
                }
                Err(error) => Err(error),
            });
        }
        for ((session, positions), read) in held.iter().zip(reads) {
            let read = match read {
                Ok(read) => timeout_at(until, session.read(read)).await.unwrap_or(Err(Error::Timeout)),
                Err(error) => Err(error),
            };
            let mut results = read.map(Vec::into_iter);
            for (position, node) in positions {
                nodes[*position] = match &mut results {
                    Ok(results) => self.read_one(session, &leases[*position], node, results.next()),
                    Err(error) => Node::Unknown(trouble(error.clone())),
                };
            }
        }
        nodes
    }

    /// What is known of these leases without asking, and for each session the positions and nodes of those it holds.
    fn held(&self, leases: &[Renew]) -> (Vec<Node>, Vec<Held>) {
        let memory = self.memory();
        let mut nodes = Vec::with_capacity(leases.len());
        let mut held: Vec<Held> = Vec::new();
        for (position, renew) in leases.iter().enumerate() {
            let record = memory.records.get(&renew.contender);
            nodes.push(if record.is_some() { Node::There } else { Node::Elsewhere });
            // Of another state there is no hold to be renewed.
            let record = record
                .filter(|record| matches!(record.state, ClaimState::Holding(_)) && record.session.lives());
            let Some(ClaimRecord { session, node, .. }) = record else { continue };
            match held.iter_mut().find(|(known, _)| Arc::ptr_eq(known, session)) {
                Some((_, positions)) => positions.push((position, node.clone())),
                None => held.push((session.clone(), vec![(position, node.clone())])),
            }
        }
        (nodes, held)
    }

    /// What was read of the node of one lease.
    fn read_one(
        &self,
        session: &Arc<Session>,
        renew: &Renew,
        node: &str,
        read: Option<MultiReadResult>,
    ) -> Node {
        let mut memory = self.memory();
        let record = memory.records.get_mut(&renew.contender);
        let record = record.filter(|record| record.node == node && Arc::ptr_eq(&record.session, session));
        match (read, record) {
            (Some(MultiReadResult::Data { data, stat }), Some(record))
                if stat.ephemeral_owner == session.id =>
            {
                (record.note, record.version) = (ClaimData::from_bytes(&data), stat.version);
                Node::There
            }
            // Somebody has taken it over, in whose session it lives from then on.
            (Some(MultiReadResult::Data { .. }), Some(_)) => {
                memory.records.remove(&renew.contender);
                Node::Elsewhere
            }
            (Some(MultiReadResult::Error { err: Error::NoNode }), Some(_)) => {
                memory.records.remove(&renew.contender);
                Node::Gone
            }
            (Some(MultiReadResult::Error { err: Error::NoNode }), None) => Node::Gone,
            // It has changed here while this was read.
            (Some(MultiReadResult::Data { .. }), None) => Node::There,
            (Some(MultiReadResult::Error { err }), _) => Node::Unknown(trouble(err)),
            (_, _) => Node::Unknown(corrupt("ZooKeeper answered fewer reads than it was asked")),
        }
    }

    /// Renews what this keeper has.
    async fn renew_here(self: &Arc<Self>, renew: &Renew) -> Result<Renewed, StoreError> {
        let now = self.now();
        let (held, lower, detach) = {
            let mut memory = self.memory();
            let Some(record) = memory.records.get_mut(&renew.contender) else { return Ok(Renewed::Gone) };
            if !record.session.lives() {
                return Ok(Renewed::Gone);
            }
            let ClaimState::Holding(hold) = &mut record.state else { return Ok(Renewed::Gone) };
            hold.confirm(record.note.lease);
            if record.note.evicted {
                return Ok(Renewed::Evicted);
            }
            hold.expires = hold.expires.max(now.after(renew.lease));
            let hold = *hold;
            let lower = renew.lower_to.filter(|units| units.below(record.units));
            (Renewed::Held { remaining: record.remaining(&hold, now) }, lower, renew.detach)
        };
        if let Some(units) = lower {
            match self.lower(renew.contender, units).await? {
                Changed::Done => {}
                Changed::Gone => return Ok(Renewed::Gone),
                Changed::Evicted => return Ok(Renewed::Evicted),
            }
        }
        if detach {
            return self.detach(renew).await;
        }
        Ok(held)
    }

    /// Holds only `units` from now on: a marker beside the node says so, and the node changes for those
    /// who watch it.
    async fn lower(&self, contender: ContenderId, units: Units) -> Result<Changed, StoreError> {
        let marker = {
            let mut memory = self.memory();
            let Some(record) = memory.records.get_mut(&contender) else { return Ok(Changed::Gone) };
            let folder = record.node.rsplit_once('/').map_or("", |(folder, _)| folder);
            let marker = format!("{folder}/{}", queue::marker(contender, units));
            // Before it is asked for: it is removed with the node also if the answer is lost.
            if !record.markers.contains(&marker) {
                record.markers.push(marker.clone());
            }
            marker
        };
        let changed = self.change(contender, Some(&marker), |_| {}).await?;
        if let Some(record) = self.memory().records.get_mut(&contender)
            && changed == Changed::Done
        {
            record.units = units;
        }
        Ok(changed)
    }

    /// A session of its own for a lease, or why there is none that long.
    pub(crate) async fn session_for(
        &self,
        lease: Duration,
    ) -> Result<Result<Arc<Session>, StoreError>, StoreError> {
        // Two ticks more, so that what is said about it is never longer than what it lives.
        let session = self.own_session(lease + self.settings.limits().tick * 2).await?;
        let longest = session.timeout();
        if longest < lease {
            return Ok(Err(StoreError::new(
                StoreErrorKind::Unsupported,
                format!(
                    "a lease that may outlive its process can last at most {longest:?} on these servers; \
                     ask for less, or raise maxSessionTimeout"
                ),
            )));
        }
        Ok(Ok(session))
    }

    /// From now on only the lease ends it: the session goes on by itself.
    async fn detach(self: &Arc<Self>, renew: &Renew) -> Result<Renewed, StoreError> {
        let (session, own_session, expires) = {
            let memory = self.memory();
            let Some(record) = memory.records.get(&renew.contender) else { return Ok(Renewed::Gone) };
            let ClaimState::Holding(hold) = record.state else { return Ok(Renewed::Gone) };
            (record.session.clone(), record.own_session, hold.expires)
        };
        let lease = expires.since(self.now());
        let detached = if lease > session.timeout() || !own_session {
            let Some(found) = self.look_up(&session, renew).await? else { return Ok(Renewed::Gone) };
            if found.note.evicted {
                return Ok(Renewed::Evicted);
            }
            let own = match self.session_for(lease).await? {
                Ok(own) => own,
                Err(refusal) => return Err(refusal),
            };
            let note = ClaimData { detached: true, ..found.note };
            self.move_to(&own, renew, Found { note, ..found }, lease).await?
        } else {
            let detach = |note: &mut ClaimData| (note.detached, note.lease) = (true, lease);
            match self.change(renew.contender, None, detach).await? {
                Changed::Done => {}
                Changed::Gone => return Ok(Renewed::Gone),
                Changed::Evicted => return Ok(Renewed::Evicted),
            }
            Renewed::Held { remaining: lease.min(session.deadline().since(self.now())) }
        };
        let record = self.memory().records.remove(&renew.contender);
        drop(record);
        Ok(detached)
    }

    /// What stands in the node of a lease that is held and detached.
    pub(crate) async fn detached(
        &self,
        session: &Session,
        renew: &Renew,
    ) -> Result<Option<ClaimData>, StoreError> {
        let folder = self.settings.paths.lock(&renew.name);
        let queue = self.queue_now(session, &folder).await?;
        for node in queue.of(renew.contender) {
            let data = session.client.get_data(&format!("{folder}/{}", node.name));
            match session.read(data).await {
                Ok((data, _)) => return Ok(Some(ClaimData::from_bytes(&data)).filter(|note| note.detached)),
                Err(Error::NoNode) => {}
                Err(error) => return Err(trouble(error)),
            }
        }
        Ok(None)
    }

    /// As [`take_over`](Self::take_over), which goes on by itself if it takes longer.
    async fn take_over_until(
        self: &Arc<Self>,
        until: Instant,
        session: &Arc<Session>,
        renew: &Renew,
    ) -> Result<Renewed, StoreError> {
        let (keeper, session, renew) = (self.clone(), session.clone(), renew.clone());
        let taking = self.background.spawn(async move { keeper.take_over(&session, &renew).await });
        match timeout_at(until, taking).await {
            Ok(Ok(taken)) => taken,
            Ok(Err(_)) | Err(_) => Err(trouble(Error::Timeout)),
        }
    }

    /// Goes on with a lease that lives in a session of its own, made by this or another keeper.
    pub(crate) async fn take_over(
        self: &Arc<Self>,
        session: &Session,
        renew: &Renew,
    ) -> Result<Renewed, StoreError> {
        for _ in 0..3 {
            let Some(found) = self.look_up(session, renew).await? else { return Ok(Renewed::Gone) };
            if found.note.retired || found.left.is_zero() {
                return Ok(Renewed::Gone);
            }
            if found.note.evicted {
                return Ok(Renewed::Evicted);
            }
            let lease = renew.lease.max(found.left);
            let own = match self.session_for(lease).await? {
                Ok(own) => own,
                Err(refusal) => return Err(refusal),
            };
            match self.move_to(&own, renew, found, lease).await {
                Err(error) if error.kind() == StoreErrorKind::Conflict => {}
                Ok(moved) if renew.detach => {
                    let record = self.memory().records.remove(&renew.contender);
                    drop(record);
                    return Ok(moved);
                }
                moved => return moved,
            }
        }
        Err(trouble(Error::BadVersion))
    }

    /// The node of a lease that is held, and what is left of it by the store's own clock.
    async fn look_up(&self, session: &Session, renew: &Renew) -> Result<Option<Found>, StoreError> {
        let folder = self.settings.paths.lock(&renew.name);
        let queue = self.queue_now(session, &folder).await?;
        let mut holders =
            queue.admissions().filter(|(node, held)| *held && node.contender == renew.contender);
        let Some((holder, _)) = holders.next() else { return Ok(None) };
        let node = format!("{folder}/{}", holder.name);
        let (data, before) = match session.read(session.client.get_data(&node)).await {
            Ok(read) => read,
            Err(Error::NoNode) => return Ok(None),
            Err(error) => return Err(trouble(error)),
        };
        // A write shows the servers' time.
        let sent = session.now();
        let touched = session.client.set_data(&node, &data, Some(before.version));
        let after = match session.write(sent, touched).await {
            Ok(stat) => stat,
            Err(Error::NoNode) => return Ok(None),
            Err(error) => return Err(trouble(error)),
        };
        let mut note = ClaimData::from_bytes(&data);
        let age = u64::try_from(after.mtime.saturating_sub(before.mtime)).unwrap_or(0);
        let left = note.lease.saturating_sub(Duration::from_millis(age));
        let number = note.number(before.czxid);
        note.number = Some(number);
        let markers = queue.markers_of(renew.contender).iter().map(|marker| format!("{folder}/{marker}"));
        Ok(Some(Found {
            node,
            markers: markers.collect(),
            note,
            version: after.version,
            left,
            units: holder.units,
            capacity: holder.capacity,
            number,
        }))
    }

    /// Replaces a node by one of the same name in `own`.
    async fn move_to(
        self: &Arc<Self>,
        own: &Arc<Session>,
        renew: &Renew,
        found: Found,
        lease: Duration,
    ) -> Result<Renewed, StoreError> {
        let note = ClaimData { lease, ..found.note };
        let sent = own.now();
        let mut multi = own.client.new_multi_writer();
        for marker in &found.markers {
            multi.add_delete(marker, None).map_err(trouble)?;
            multi.add_create(marker, b"", &self.ephemeral()).map_err(trouble)?;
        }
        multi.add_delete(&found.node, Some(found.version)).map_err(trouble)?;
        multi.add_create(&found.node, &note.to_bytes(), &self.ephemeral()).map_err(trouble)?;
        match own.write(sent, multi.commit()).await {
            Ok(_) => {}
            Err(error) if refused(&error) => return Err(trouble(Error::BadVersion)),
            Err(error) => return Err(trouble(error.into())),
        }
        let hold = HoldRecord::confirmed(sent, lease, found.number);
        let record = ClaimRecord {
            name: renew.name.clone(),
            units: found.units,
            capacity: found.capacity,
            session: own.clone(),
            own_session: true,
            node: found.node,
            markers: found.markers,
            number: found.number,
            note,
            version: 0,
            state: ClaimState::Holding(hold),
            behind: None,
            waits: None,
        };
        let remaining = record.remaining(&hold, self.now());
        self.memory().records.insert(renew.contender, record);
        Ok(Renewed::Held { remaining })
    }

    /// Leaves before the minimum hold: the node stays without its owner until then, unless an operator wants it back.
    pub(crate) async fn retire(self: &Arc<Self>, leave: &Leave, until: BootTime) -> Result<Left, StoreError> {
        let before = {
            let mut memory = self.memory();
            let Some(record) = memory.records.get_mut(&leave.contender) else { return Ok(Left::NotThere) };
            std::mem::replace(&mut record.state, ClaimState::Retired { until })
        };
        let lease = until.since(self.now());
        let retire = |note: &mut ClaimData| (note.retired, note.detached, note.lease) = (true, true, lease);
        match self.change(leave.contender, None, retire).await {
            Ok(Changed::Done) => Ok(Left::Released),
            Ok(Changed::Gone) => {
                self.memory().records.remove(&leave.contender);
                Ok(Left::NotThere)
            }
            Ok(Changed::Evicted) => {
                if let Some(record) = self.memory().records.get_mut(&leave.contender) {
                    record.leave(Left::Released);
                }
                // What is not removed now is by the reaper.
                self.remove_node(leave.contender).await;
                Ok(Left::Released)
            }
            Err(error) => {
                // Asked again, it is done again.
                if let Some(record) = self.memory().records.get_mut(&leave.contender) {
                    record.state = before;
                }
                Err(error)
            }
        }
    }

    /// Before the keeper ends: what must outlive it gets a session that ends in time by itself.
    pub(crate) async fn hand_over_the_retired(self: &Arc<Self>, session: &Session) {
        let retired: Vec<Renew> = {
            let memory = self.memory();
            let retired = memory
                .records
                .iter()
                .filter(|(_, record)| matches!(record.state, ClaimState::Retired { .. }));
            retired
                .map(|(contender, record)| Renew {
                    name: record.name.clone(),
                    contender: *contender,
                    lease: Duration::ZERO,
                    lower_to: None,
                    detach: true,
                })
                .collect()
        };
        for renew in retired {
            let until = match self.memory().records.get(&renew.contender).map(|record| record.state) {
                Some(ClaimState::Retired { until }) => until,
                _ => continue,
            };
            let left = until.since(self.now());
            let moved = async {
                let Some(found) = self.look_up(session, &renew).await? else { return Ok(()) };
                let own = self.own_session(left).await?;
                self.move_to(&own, &renew, found, left).await.map(drop)
            };
            let moved: Result<(), StoreError> = moved.await;
            if let Err(error) = moved {
                // It then lasts as long as its first session: longer than asked for.
                tracing::debug!(%error, "a minimum hold ends late");
            }
        }
    }
}
