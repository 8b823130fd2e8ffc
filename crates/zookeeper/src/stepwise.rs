//! Claims and leaves that take more than one step: those of which an earlier copy may have had an effect, of
//! who does not wait, and of leases that outlive their process.

use std::{collections::HashMap, sync::Arc, time::Duration};

use lockkeeper_core::{
    ContenderId, Name, StoreError,
    clock::BootTime,
    store::{Claim, Leave, Left, Renew, Request, Verdict},
};
use tokio::task::JoinSet;
use zookeeper_client::Error;

use crate::{
    claims::{NewNode, Remembered, checked},
    codec::ClaimData,
    keeper::KeeperState,
    memory::{ClaimRecord, ClaimState},
    session::Session,
    trouble::{no_session, trouble},
};

/// When a claim is to be asked for again whose own session got no answer.
const ASK_AGAIN: Duration = Duration::from_millis(250);

/// A session for one lease, why there is none that long, or why it is not known.
pub(crate) type OwnSession = Result<Result<Arc<Session>, StoreError>, StoreError>;

/// Those of a group, by claim.
pub(crate) type OwnSessions = HashMap<ContenderId, OwnSession>;

impl KeeperState {
    /// Opens the sessions that the claims of a group need for themselves.
    pub(crate) async fn sessions_for(self: &Arc<Self>, group: &[Request]) -> OwnSessions {
        let mut opening = JoinSet::new();
        for request in group {
            let Request::Claim(claim) = request else { continue };
            if claim.detachable && matches!(self.known(claim), Remembered::New) {
                let (keeper, claim) = (self.clone(), claim.clone());
                opening.spawn(async move { Some((claim.contender, keeper.open_for(&claim).await?)) });
            }
        }
        opening.join_all().await.into_iter().flatten().collect()
    }

    /// The session for a claim, unless it does not wait and would have to.
    async fn open_for(&self, claim: &Claim) -> Option<OwnSession> {
        if !claim.queue {
            let session = self.session().ok()?;
            let queue = self.queue_now(&session, &self.settings.paths.lock(&claim.name)).await.ok()?;
            queue.newcomer(claim.units, claim.capacity).ok().filter(|(fits, _)| *fits)?;
        }
        Some(self.session_for(claim.lease).await)
    }

    /// A claim that needs more than its node: it does not wait, has a session of its own, or an earlier
    /// copy of it may have made the node.
    pub(crate) async fn claim_alone(
        self: &Arc<Self>,
        session: &Arc<Session>,
        claim: &Claim,
        known: Remembered,
        own: Option<OwnSession>,
    ) -> Result<Verdict, StoreError> {
        let folder = self.settings.paths.lock(&claim.name);
        if let Remembered::Holding(node) = &known {
            if let Some(verdict) = self.granted_before(session, node, claim).await? {
                return Ok(verdict);
            }
            self.memory().records.remove(&claim.contender);
        }
        if let Remembered::Unknown(asked_in) = known {
            if let Some(made) = self.find(&asked_in, &folder, claim.contender).await? {
                let listed = asked_in.read(asked_in.client.list_children(&folder)).await;
                let own = !Arc::ptr_eq(&asked_in, session);
                return self.placed(&asked_in, own, claim, made, listed).await;
            }
            self.memory().records.remove(&claim.contender);
        }
        if claim.again
            && let Some(verdict) = self.detached_before(session, claim).await?
        {
            return Ok(verdict);
        }
        if !claim.queue {
            // Whoever does not wait must not state in anybody's way: it looks first.
            match self.queue_now(session, &folder).await?.newcomer(claim.units, claim.capacity) {
                Err(in_use) => return Ok(Verdict::mismatch(in_use)),
                Ok((false, ahead)) => return Ok(self.busy(ahead)),
                Ok((true, _)) => {}
            }
        }
        if !claim.detachable {
            return self.create(session, false, claim).await;
        }
        let own = match own {
            Some(own) => own,
            None => self.session_for(claim.lease).await,
        };
        match own? {
            // The client would send the creation whenever it has connected again, although nobody asks for it any more.
            Ok(own) if !own.is_connected() => Err(no_session()),
            Ok(own) => self.create(&own, true, claim).await,
            Err(refusal) => Ok(Verdict::Refused(refusal)),
        }
    }

    /// The answer to a claim whose own session failed it, while the keeper's goes on: that costs no other of its group
    /// the answer. Who waits asks again soon, and who only tries is told.
    pub(crate) fn in_trouble(
        &self,
        session: &Session,
        claim: &Claim,
        error: StoreError,
    ) -> Result<Verdict, StoreError> {
        if !claim.detachable || !session.is_connected() {
            return Err(error);
        }
        if claim.queue && error.is_passing() {
            tracing::debug!(contender = %claim.contender, %error, "a session of its own is in trouble");
            return Ok(Verdict::busy(0, ASK_AGAIN));
        }
        self.nobody_asks(claim.contender);
        Ok(Verdict::Refused(error))
    }

    /// Nobody asks for a claim of unknown outcome any more: the reaper removes what it may have made.
    fn nobody_asks(&self, contender: ContenderId) {
        if let Some(record) = self.memory().records.get_mut(&contender)
            && let ClaimState::Unknown { asked } = &mut record.state
        {
            *asked = BootTime::default();
        }
    }

    /// A copy of a claim whose lease has been detached since: it has what it had.
    async fn detached_before(
        self: &Arc<Self>,
        session: &Arc<Session>,
        claim: &Claim,
    ) -> Result<Option<Verdict>, StoreError> {
        let confirm = Renew {
            name: claim.name.clone(),
            contender: claim.contender,
            lease: Duration::ZERO,
            lower_to: None,
            detach: false,
        };
        let verdict = match self.detached(session, &confirm).await? {
            None => return Ok(None),
            Some(note) if note.retired => Some(Verdict::Stale),
            Some(_) => {
                self.take_over(session, &confirm).await?;
                let memory = self.memory();
                let record = memory.records.get(&claim.contender);
                record.and_then(|record| match record.state {
                    ClaimState::Holding(hold) => Some(Verdict::Granted(record.grant(&hold, self.now()))),
                    _ => None,
                })
            }
        };
        Ok(verdict)
    }

    /// The node that `contender` has in `session`, by the latest state of the store.
    async fn find(
        &self,
        session: &Session,
        folder: &str,
        contender: ContenderId,
    ) -> Result<Option<NewNode>, StoreError> {
        let queue = self.queue_now(session, folder).await?;
        for node in queue.of(contender) {
            let path = format!("{folder}/{}", node.name);
            let stat = session.read(session.client.check_stat(&path)).await.map_err(trouble)?;
            if let Some(stat) = stat.filter(|stat| stat.ephemeral_owner == session.id) {
                return Ok(Some(NewNode { node: path, number: checked(stat.czxid)? }));
            }
        }
        Ok(None)
    }

    /// A leave that needs more than one step.
    pub(crate) async fn leave_alone(
        self: &Arc<Self>,
        session: &Arc<Session>,
        leave: &Leave,
    ) -> Result<Left, StoreError> {
        let state =
            self.memory().records.get(&leave.contender).map(|record| (record.state, record.session.clone()));
        match state {
            Some((ClaimState::Unknown { .. }, asked_in)) if !asked_in.lives() => {
                // What it may have made ends with its session, and nothing can be asked in that any more.
                self.memory().records.remove(&leave.contender);
                Ok(Left::NotThere)
            }
            Some((ClaimState::Unknown { .. }, asked_in)) => {
                let own_session = !Arc::ptr_eq(&asked_in, session);
                match self.leave_unknown(&asked_in, leave).await {
                    // Nobody has heard that it holds.
                    Err(_) if own_session && session.is_connected() => {
                        self.nobody_asks(leave.contender);
                        Ok(Left::LeftQueue)
                    }
                    left => left,
                }
            }
            Some((ClaimState::Holding(hold), _)) => {
                self.retire(leave, hold.granted.after(leave.hold_at_least)).await
            }
            Some((ClaimState::Leaving(left), _)) => Ok(left),
            Some(_) => Ok(Left::NotThere),
            None => self.leave_detached(session, &leave.name, leave.contender).await,
        }
    }

    /// Leaves what may or may not have made a node in `asked_in`.
    async fn leave_unknown(&self, asked_in: &Session, leave: &Leave) -> Result<Left, StoreError> {
        let folder = self.settings.paths.lock(&leave.name);
        let made = self.find(asked_in, &folder, leave.contender).await?;
        Ok(self.leave_found(leave.contender, made).await)
    }

    async fn leave_found(&self, contender: ContenderId, made: Option<NewNode>) -> Left {
        let Some(made) = made else {
            self.memory().records.remove(&contender);
            return Left::NotThere;
        };
        if let Some(record) = self.memory().records.get_mut(&contender) {
            record.node = made.node;
            record.leave(Left::LeftQueue);
        }
        self.remove_node(contender).await;
        Left::LeftQueue
    }

    /// Leaves a claim of unknown outcome that nobody asks for. Its session may be silent, so nobody else's turn is taken
    /// while that is asked.
    pub(crate) async fn leave_forgotten(
        &self,
        name: &Name,
        contender: ContenderId,
    ) -> Result<(), StoreError> {
        let record = |keeper: &Self| match keeper.memory().records.get(&contender) {
            Some(ClaimRecord { state: ClaimState::Unknown { asked }, session, .. }) => {
                Some((session.clone(), *asked))
            }
            _ => None,
        };
        let Some((asked_in, asked)) = record(self) else { return Ok(()) };
        let made = self.find(&asked_in, &self.settings.paths.lock(name), contender).await?;
        let _turn = self.turn.lock().await;
        // A copy of it may have been asked for meanwhile.
        if record(self).is_some_and(|(now_in, now)| Arc::ptr_eq(&now_in, &asked_in) && now == asked) {
            self.leave_found(contender, made).await;
        }
        Ok(())
    }

    /// Leaves what lives in no session of this keeper.
    async fn leave_detached(
        &self,
        session: &Session,
        name: &Name,
        contender: ContenderId,
    ) -> Result<Left, StoreError> {
        let folder = self.settings.paths.lock(name);
        let queue = self.queue_now(session, &folder).await?;
        let Some(node) = queue.of(contender).next() else { return Ok(Left::NotThere) };
        let path = format!("{folder}/{}", node.name);
        match session.read(session.client.get_data(&path)).await {
            Ok((data, _)) if ClaimData::from_bytes(&data).retired => return Ok(Left::NotThere),
            Ok(_) => {}
            Err(Error::NoNode) => return Ok(Left::NotThere),
            Err(error) => return Err(trouble(error)),
        }
        let markers: Vec<_> =
            queue.markers_of(contender).iter().map(|marker| format!("{folder}/{marker}")).collect();
        self.delete(session, contender, [Left::Released, Left::NotThere], &path, &markers).await
    }
}
