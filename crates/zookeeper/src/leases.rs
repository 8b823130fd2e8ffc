//! Renewals, and leases that outlive their process.
//!
//! A lease is kept by its session, whose signs of life stand for all of them. A renewal reads the nodes: they may have
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
    line,
    note::Note,
    session::Session,
    shared::Shared,
    table::{Entry, Hold, Stand},
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

/// A session, and the leases that it holds: the place of each in its group, and its node.
type Held = (Arc<Session>, Vec<(usize, String)>);

/// A node to be taken over.
struct Found {
    node: String,
    markers: Vec<String>,
    note: Note,
    version: i32,
    /// What is left of its lease, if only its lease ends it.
    left: Duration,
    units: Units,
    capacity: lockkeeper_core::Capacity,
    number: u64,
}

impl Shared {
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
        let root = &self.place.paths.root;
        let checks: Vec<_> = held.iter().map(|(session, _)| session.check(root)).collect();
        let soon = Instant::now() + until.duration_since(Instant::now()) / 2;
        let mut reads = Vec::with_capacity(held.len());
        for ((session, places), check) in held.iter().zip(checks) {
            reads.push(match timeout_at(soon, check).await.unwrap_or(Err(Error::Timeout)) {
                Ok(()) => {
                    let mut read = session.client.new_multi_reader();
                    let added = places.iter().try_for_each(|(_, node)| read.add_get_data(node));
                    added.map(|()| read.commit())
                }
                Err(error) => Err(error),
            });
        }
        for ((session, places), read) in held.iter().zip(reads) {
            let read = match read {
                Ok(read) => timeout_at(until, session.read(read)).await.unwrap_or(Err(Error::Timeout)),
                Err(error) => Err(error),
            };
            let mut results = read.map(Vec::into_iter);
            for (place, node) in places {
                nodes[*place] = match &mut results {
                    Ok(results) => self.read_one(session, &leases[*place], node, results.next()),
                    Err(error) => Node::Unknown(trouble(error.clone())),
                };
            }
        }
        nodes
    }

    /// What is known of these leases without asking, and for each session the places and nodes of those it holds.
    fn held(&self, leases: &[Renew]) -> (Vec<Node>, Vec<Held>) {
        let table = self.table();
        let mut nodes = Vec::with_capacity(leases.len());
        let mut held: Vec<Held> = Vec::new();
        for (place, renew) in leases.iter().enumerate() {
            let entry = table.entries.get(&renew.contender);
            nodes.push(if entry.is_some() { Node::There } else { Node::Elsewhere });
            // Of another stand there is no hold to be renewed.
            let entry =
                entry.filter(|entry| matches!(entry.stand, Stand::Holding(_)) && entry.session.lives());
            let Some(Entry { session, node, .. }) = entry else { continue };
            match held.iter_mut().find(|(known, _)| Arc::ptr_eq(known, session)) {
                Some((_, places)) => places.push((place, node.clone())),
                None => held.push((session.clone(), vec![(place, node.clone())])),
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
        let mut table = self.table();
        let entry = table.entries.get_mut(&renew.contender);
        let entry = entry.filter(|entry| entry.node == node && Arc::ptr_eq(&entry.session, session));
        match (read, entry) {
            (Some(MultiReadResult::Data { data, stat }), Some(entry))
                if stat.ephemeral_owner == session.id =>
            {
                (entry.note, entry.version) = (Note::from_bytes(&data), stat.version);
                Node::There
            }
            // Somebody has taken it over, in whose session it lives from then on.
            (Some(MultiReadResult::Data { .. }), Some(_)) => {
                table.entries.remove(&renew.contender);
                Node::Elsewhere
            }
            (Some(MultiReadResult::Error { err: Error::NoNode }), Some(_)) => {
                table.entries.remove(&renew.contender);
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
            let mut table = self.table();
            let Some(entry) = table.entries.get_mut(&renew.contender) else { return Ok(Renewed::Gone) };
            if !entry.session.lives() {
                return Ok(Renewed::Gone);
            }
            let Stand::Holding(hold) = &mut entry.stand else { return Ok(Renewed::Gone) };
            hold.confirm(entry.note.lease);
            if entry.note.evicted {
                return Ok(Renewed::Evicted);
            }
            hold.expires = hold.expires.max(now.after(renew.lease));
            let hold = *hold;
            let lower = renew.lower_to.filter(|units| units.below(entry.units));
            (Renewed::Held { remaining: entry.remaining(&hold, now) }, lower, renew.detach)
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
            let mut table = self.table();
            let Some(entry) = table.entries.get_mut(&contender) else { return Ok(Changed::Gone) };
            let folder = entry.node.rsplit_once('/').map_or("", |(folder, _)| folder);
            let marker = format!("{folder}/{}", line::marker(contender, units));
            // Before it is asked for: it is removed with the node also if the answer is lost.
            if !entry.markers.contains(&marker) {
                entry.markers.push(marker.clone());
            }
            marker
        };
        let changed = self.change(contender, Some(&marker), |_| {}).await?;
        if let Some(entry) = self.table().entries.get_mut(&contender)
            && changed == Changed::Done
        {
            entry.units = units;
        }
        Ok(changed)
    }

    /// A session of its own for a lease, or why there is none that long.
    pub(crate) async fn session_for(
        &self,
        lease: Duration,
    ) -> Result<Result<Arc<Session>, StoreError>, StoreError> {
        // Two ticks more, so that what is said about it is never longer than what it lives.
        let session = self.own_session(lease + self.place.limits().tick * 2).await?;
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
            let table = self.table();
            let Some(entry) = table.entries.get(&renew.contender) else { return Ok(Renewed::Gone) };
            let Stand::Holding(hold) = entry.stand else { return Ok(Renewed::Gone) };
            (entry.session.clone(), entry.own_session, hold.expires)
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
            let note = Note { detached: true, ..found.note };
            self.move_to(&own, renew, Found { note, ..found }, lease).await?
        } else {
            let detach = |note: &mut Note| (note.detached, note.lease) = (true, lease);
            match self.change(renew.contender, None, detach).await? {
                Changed::Done => {}
                Changed::Gone => return Ok(Renewed::Gone),
                Changed::Evicted => return Ok(Renewed::Evicted),
            }
            Renewed::Held { remaining: lease.min(session.deadline().since(self.now())) }
        };
        let entry = self.table().entries.remove(&renew.contender);
        drop(entry);
        Ok(detached)
    }

    /// What stands in the node of a lease that is held and detached.
    pub(crate) async fn detached(
        &self,
        session: &Session,
        renew: &Renew,
    ) -> Result<Option<Note>, StoreError> {
        let folder = self.place.paths.lock(&renew.name);
        let line = self.line_now(session, &folder).await?;
        for node in line.of(renew.contender) {
            let data = session.client.get_data(&format!("{folder}/{}", node.name));
            match session.read(data).await {
                Ok((data, _)) => return Ok(Some(Note::from_bytes(&data)).filter(|note| note.detached)),
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
        let (shared, session, renew) = (self.clone(), session.clone(), renew.clone());
        let taking = self.background.spawn(async move { shared.take_over(&session, &renew).await });
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
                    let entry = self.table().entries.remove(&renew.contender);
                    drop(entry);
                    return Ok(moved);
                }
                moved => return moved,
            }
        }
        Err(trouble(Error::BadVersion))
    }

    /// The node of a lease that is held, and what is left of it by the store's own clock.
    async fn look_up(&self, session: &Session, renew: &Renew) -> Result<Option<Found>, StoreError> {
        let folder = self.place.paths.lock(&renew.name);
        let line = self.line_now(session, &folder).await?;
        let mut holders = line.admissions().filter(|(node, held)| *held && node.contender == renew.contender);
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
        let mut note = Note::from_bytes(&data);
        let age = u64::try_from(after.mtime.saturating_sub(before.mtime)).unwrap_or(0);
        let left = note.lease.saturating_sub(Duration::from_millis(age));
        let number = note.number(before.czxid);
        note.number = Some(number);
        let markers = line.markers_of(renew.contender).iter().map(|marker| format!("{folder}/{marker}"));
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
        let note = Note { lease, ..found.note };
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
        let hold = Hold::confirmed(sent, lease, found.number);
        let entry = Entry {
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
            stand: Stand::Holding(hold),
            behind: None,
            waits: None,
        };
        let remaining = entry.remaining(&hold, self.now());
        self.table().entries.insert(renew.contender, entry);
        Ok(Renewed::Held { remaining })
    }

    /// Leaves before the minimum hold: the node stays without its owner until then, unless an operator wants it back.
    pub(crate) async fn retire(self: &Arc<Self>, leave: &Leave, until: BootTime) -> Result<Left, StoreError> {
        let before = {
            let mut table = self.table();
            let Some(entry) = table.entries.get_mut(&leave.contender) else { return Ok(Left::NotThere) };
            std::mem::replace(&mut entry.stand, Stand::Retired { until })
        };
        let lease = until.since(self.now());
        let retire = |note: &mut Note| (note.retired, note.detached, note.lease) = (true, true, lease);
        match self.change(leave.contender, None, retire).await {
            Ok(Changed::Done) => Ok(Left::Released),
            Ok(Changed::Gone) => {
                self.table().entries.remove(&leave.contender);
                Ok(Left::NotThere)
            }
            Ok(Changed::Evicted) => {
                if let Some(entry) = self.table().entries.get_mut(&leave.contender) {
                    entry.leave(Left::Released);
                }
                // What is not removed now is by the reaper.
                self.remove_node(leave.contender).await;
                Ok(Left::Released)
            }
            Err(error) => {
                // Asked again, it is done again.
                if let Some(entry) = self.table().entries.get_mut(&leave.contender) {
                    entry.stand = before;
                }
                Err(error)
            }
        }
    }

    /// Before the keeper ends: what must outlive it gets a session that ends in time by itself.
    pub(crate) async fn hand_over_the_retired(self: &Arc<Self>, session: &Session) {
        let retired: Vec<Renew> = {
            let table = self.table();
            let retired =
                table.entries.iter().filter(|(_, entry)| matches!(entry.stand, Stand::Retired { .. }));
            retired
                .map(|(contender, entry)| Renew {
                    name: entry.name.clone(),
                    contender: *contender,
                    lease: Duration::ZERO,
                    lower_to: None,
                    detach: true,
                })
                .collect()
        };
        for renew in retired {
            let until = match self.table().entries.get(&renew.contender).map(|entry| entry.stand) {
                Some(Stand::Retired { until }) => until,
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
