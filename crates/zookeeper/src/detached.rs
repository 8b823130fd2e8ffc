//! Leases that may outlive their process.
//!
//! Such a lease has a session of its own, which nobody has to close. To take it over, its node is replaced by one of the
//! same name in another session, in one transaction, so that no other claim can be admitted in between.

use std::{sync::Arc, time::Duration};

use lockkeeper_core::{
    Capacity, ContenderId, GrantNumber, Name, StoreError, StoreErrorKind, Units,
    store::{Grant, Renew, Renewed},
};
use tokio::time::{Instant, timeout_at};
use zookeeper_client::Error;

use crate::{
    changes::Changed,
    codec::ClaimData,
    keeper::KeeperState,
    listing::Freshness,
    records::{ClaimRecord, ClaimState, HoldRecord},
    session::Session,
    trouble::{refused, trouble},
};

/// How often a take-over is tried against others that change the same node.
const TRIES: u32 = 3;

/// The node of a lease that is to be moved to another session.
pub(crate) struct FoundLease {
    name: Name,
    contender: ContenderId,
    node: String,
    markers: Vec<String>,
    pub(crate) data: ClaimData,
    version: i32,
    /// What is left of the lease by the servers' clock, if only the lease ends it.
    left: Duration,
    units: Units,
    capacity: Capacity,
    number: GrantNumber,
}

impl KeeperState {
    /// Lets a lease outlive this process: from now on only the lease ends it.
    pub(crate) async fn detach(&self, renew: &Renew) -> Result<Renewed, StoreError> {
        let (session, expires, grant) = match self.records().claims.get(&renew.contender) {
            Some(record @ ClaimRecord { session, state: ClaimState::Holding(hold), .. }) => {
                (session.clone(), hold.expires, record.grant(hold, self.now()))
            }
            _ => return Ok(Renewed::Gone),
        };
        let lease = expires.since(self.now());
        let detached = if lease > session.timeout() || !session.is_for_one_claim() {
            let Some(found) = self.find_lease(&session, &renew.name, renew.contender).await? else {
                return Ok(Renewed::Gone);
            };
            if found.data.evicted {
                return Ok(found.data.refused_renewal());
            }
            let own = self.own_session_for(lease).await?.open()?;
            let data = ClaimData { detached: true, ..found.data };
            self.move_lease(&own, FoundLease { data, ..found }, lease).await?
        } else {
            let detach = |data: &mut ClaimData| (data.detached, data.lease) = (true, lease);
            match self.change(renew.contender, None, detach).await? {
                Changed::Done => {}
                Changed::Gone => return Ok(Renewed::Gone),
                Changed::Evicted(refused) => return Ok(refused),
            }
            let remaining = lease.min(session.deadline().since(self.now()));
            Renewed::Held(Grant { remaining, ..grant })
        };
        self.records().claims.remove(&renew.contender);
        Ok(detached)
    }

    /// The data of a detached lease's node; `None` if there is no such lease.
    pub(crate) async fn detached(
        &self,
        session: &Session,
        name: &Name,
        contender: ContenderId,
    ) -> Result<Option<ClaimData>, StoreError> {
        let folder = self.settings.paths.lock(name);
        let queue = self.queue(session, &folder, Freshness::Latest).await?;
        for claim in queue.of(contender) {
            if let Some((data, _)) = session.data(&format!("{folder}/{}", claim.name)).await? {
                return Ok(Some(ClaimData::from_bytes(&data)).filter(|data| data.detached));
            }
        }
        Ok(None)
    }

    /// As [`take_over`](Self::take_over). If it takes longer, it goes on in the background.
    pub(crate) async fn take_over_until(
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

    /// Takes over a lease that is in a session of its own, opened by this keeper or another one.
    pub(crate) async fn take_over(&self, session: &Session, renew: &Renew) -> Result<Renewed, StoreError> {
        for _ in 0..TRIES {
            let Some(found) = self.find_lease(session, &renew.name, renew.contender).await? else {
                return Ok(Renewed::Gone);
            };
            if found.data.retired || found.left.is_zero() {
                return Ok(Renewed::Gone);
            }
            if found.data.evicted {
                return Ok(found.data.refused_renewal());
            }
            let lease = renew.lease.max(found.left);
            let own = self.own_session_for(lease).await?.open()?;
            match self.move_lease(&own, found, lease).await {
                Err(error) if error.kind() == StoreErrorKind::Conflict => {}
                Ok(moved) => {
                    if renew.detach {
                        self.records().claims.remove(&renew.contender);
                    }
                    return Ok(moved);
                }
                Err(error) => return Err(error),
            }
        }
        Err(trouble(Error::BadVersion))
    }

    /// The node of a lease that is held, and what is left of the lease by the servers' clock.
    pub(crate) async fn find_lease(
        &self,
        session: &Session,
        name: &Name,
        contender: ContenderId,
    ) -> Result<Option<FoundLease>, StoreError> {
        let folder = self.settings.paths.lock(name);
        let queue = self.queue(session, &folder, Freshness::Latest).await?;
        let Some(holder) = queue.holder(contender) else { return Ok(None) };
        let node = format!("{folder}/{}", holder.name);
        let Some((bytes, before)) = session.data(&node).await? else { return Ok(None) };
        // The answer to a write shows the servers' time.
        let sent = session.now();
        let touched = session.client.set_data(&node, &bytes, Some(before.version));
        let after = match session.write(sent, touched).await {
            Ok(stat) => stat,
            Err(Error::NoNode) => return Ok(None),
            Err(error) => return Err(trouble(error)),
        };
        let mut data = ClaimData::from_bytes(&bytes);
        let age = u64::try_from(after.mtime.saturating_sub(before.mtime)).unwrap_or(0);
        let left = data.lease.saturating_sub(Duration::from_millis(age));
        let number = data.number(before.czxid);
        data.number = Some(number);
        Ok(Some(FoundLease {
            name: name.clone(),
            contender,
            node,
            markers: queue.marker_paths(&folder, contender),
            data,
            version: after.version,
            left,
            units: holder.units,
            capacity: holder.capacity,
            number,
        }))
    }

    /// Replaces a node by one of the same name in the session `own`.
    pub(crate) async fn move_lease(
        &self,
        own: &Arc<Session>,
        found: FoundLease,
        lease: Duration,
    ) -> Result<Renewed, StoreError> {
        let data = ClaimData { lease, ..found.data };
        let sent = own.now();
        let mut multi = own.client.new_multi_writer();
        for marker in &found.markers {
            multi.add_delete(marker, None).map_err(trouble)?;
            multi.add_create(marker, b"", &self.ephemeral()).map_err(trouble)?;
        }
        multi.add_delete(&found.node, Some(found.version)).map_err(trouble)?;
        multi.add_create(&found.node, &data.to_bytes(), &self.ephemeral()).map_err(trouble)?;
        match own.write(sent, multi.commit()).await {
            Ok(_) => {}
            Err(error) if refused(&error) => return Err(trouble(Error::BadVersion)),
            Err(error) => return Err(trouble(error.into())),
        }
        let hold = HoldRecord::confirmed(sent, lease, found.number);
        let record = ClaimRecord {
            name: found.name,
            units: found.units,
            capacity: found.capacity,
            session: own.clone(),
            node: found.node,
            markers: found.markers,
            number: found.number,
            data,
            version: 0,
            state: ClaimState::Holding(hold),
            behind: None,
            task: None,
        };
        let grant = record.grant(&hold, self.now());
        self.records().claims.insert(found.contender, record);
        Ok(Renewed::Held(grant))
    }
}
