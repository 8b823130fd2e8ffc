//! Leases that may outlive their process.
//!
//! Such a lease has a session of its own, which nobody has to close. To take it over, its node is replaced by one of the
//! same name in another session, in one transaction, so that no other claim can be admitted in between.

use std::{sync::Arc, time::Duration};

use lockkeeper_core::{
    Capacity, ContenderId, GrantNumber, Name, StoreError, StoreErrorKind, Units,
    store::{Claim, Grant, Leave, Left, Renew, Renewed, Verdict},
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
    /// The rest of the lease by the servers' clock, if only the lease ends it.
    left: Duration,
    /// How long it is held by the servers' clock, if it is detached.
    held: Duration,
    units: Units,
    capacity: Capacity,
    number: GrantNumber,
    floor: GrantNumber,
}

impl KeeperState {
    /// Lets a lease outlive this process: from now on only the lease ends it.
    pub(crate) async fn detach(&self, renew: &Renew) -> Result<Renewed, StoreError> {
        let (session, hold, grant) = match self.records().claims.get(&renew.contender) {
            Some(record @ ClaimRecord { session, state: ClaimState::Holding(hold), .. }) => {
                (session.clone(), *hold, record.grant(hold, self.now()))
            }
            _ => return Ok(Renewed::Gone),
        };
        let (lease, held) = (hold.expires.since(self.now()), self.now().since(hold.granted));
        let detached = if lease > session.timeout() || !session.is_for_one_claim() {
            let Some(found) = self.find_lease(&session, &renew.name, renew.contender).await? else {
                return Ok(Renewed::Gone);
            };
            if found.data.evicted {
                return Ok(found.data.refused_renewal());
            }
            let own = self.own_session_for(lease).await?.open()?;
            let data = ClaimData { detached: true, ..found.data };
            self.move_lease(&own, FoundLease { data, held, ..found }, lease).await?
        } else {
            let detach =
                |data: &mut ClaimData| (data.detached, data.lease, data.held) = (true, lease, Some(held));
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

    /// Lets go of a grant that is born detached, and answers its claim. Its owner knows of it by this answer.
    pub(crate) async fn let_go(&self, claim: &Claim) -> Result<Verdict, StoreError> {
        let renew = Renew {
            name: claim.name.clone(),
            contender: claim.contender,
            lease: Duration::ZERO,
            lower_to: None,
            detach: true,
            at_least: 0,
        };
        Ok(match self.detach(&renew).await? {
            Renewed::Held(grant) => Verdict::Granted(grant),
            // It was taken away meanwhile, so it does not hold.
            _ => Verdict::Stale,
        })
    }

    /// Leaves a lease that is in no session of this keeper and younger than `hold_at_least`: its node moves to a session
    /// that ends in time. `None`: it is old enough, or an operator wants it back, so its node is to be removed.
    pub(crate) async fn retire_detached(
        &self,
        session: &Session,
        leave: &Leave,
    ) -> Result<Option<Left>, StoreError> {
        let Some(found) = self.find_lease(session, &leave.name, leave.contender).await? else {
            return Ok(None);
        };
        let left = leave.hold_at_least.saturating_sub(found.held);
        if left.is_zero() || found.data.evicted || found.data.retired {
            return Ok(None);
        }
        let own = self.open_own_session(left).await?;
        let data = ClaimData { retired: true, detached: true, ..found.data };
        self.move_lease(&own, FoundLease { data, ..found }, left).await?;
        self.records().claims.remove(&leave.contender);
        Ok(Some(Left::Released))
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
            let lower_to = renew.lower_to.filter(|units| units.below(found.units));
            match self.move_lease(&own, found, lease).await {
                Err(error) if error.kind() == StoreErrorKind::Conflict => {}
                Ok(moved) => {
                    if let Some(units) = lower_to {
                        match self.lower(renew.contender, units).await? {
                            Changed::Done => {}
                            Changed::Gone => return Ok(Renewed::Gone),
                            Changed::Evicted(refused) => return Ok(refused),
                        }
                    }
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

    /// Finds the node of a lease that is held, and the rest of the lease by the servers' clock.
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
        let until_now =
            |then: i64| Duration::from_millis(u64::try_from(after.mtime.saturating_sub(then)).unwrap_or(0));
        let left = data.lease.saturating_sub(until_now(before.mtime));
        // Versions that did not write how long it was held made its node anew when they moved it.
        let held = data.held.map_or(until_now(before.ctime), |held| held + until_now(before.mtime));
        let number = data.number(before.czxid);
        data.number = Some(number);
        let floor = self.floor(session, &queue, &node, holder.units, number).await?;
        Ok(Some(FoundLease {
            name: name.clone(),
            contender,
            node,
            markers: queue.marker_paths(&folder, contender),
            data,
            version: after.version,
            left,
            held,
            units: holder.units,
            capacity: holder.capacity,
            number,
            floor,
        }))
    }

    /// Replaces a node by one of the same name in the session `own`.
    pub(crate) async fn move_lease(
        &self,
        own: &Arc<Session>,
        found: FoundLease,
        lease: Duration,
    ) -> Result<Renewed, StoreError> {
        let data = ClaimData { lease, held: Some(found.held), ..found.data };
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
        let hold = HoldRecord {
            granted: sent.before(found.held),
            ..HoldRecord::confirmed(sent, lease, found.floor)
        };
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
