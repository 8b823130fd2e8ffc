//! Claims that need several requests: repeated claims, try-claims, and claims with a session of their own.

use std::{collections::HashMap, sync::Arc, time::Duration};

use lockkeeper_core::{
    ContenderId, StoreError,
    clock::BootTime,
    store::{Claim, Renew, Request, Verdict},
};
use tokio::task::JoinSet;

use crate::{
    claims::Remembered,
    keeper::KeeperState,
    listing::Freshness,
    nodes::{NewNode, grant_number},
    queue::Newcomer,
    reconnect::OwnSession,
    records::ClaimState,
    session::Session,
    trouble::{no_session, trouble},
};

/// How soon a waiter claims again if its own session got no answer.
const CLAIM_AGAIN: Duration = Duration::from_millis(250);

/// The sessions of a group's claims that need one of their own, or the errors of those that could not be opened.
pub(crate) type OwnSessions = HashMap<ContenderId, Result<OwnSession, StoreError>>;

impl KeeperState {
    /// Opens the sessions that claims of a group need for themselves.
    pub(crate) async fn own_sessions_for(self: &Arc<Self>, requests: &[Request]) -> OwnSessions {
        let mut opening = JoinSet::new();
        for request in requests {
            let Request::Claim(claim) = request else { continue };
            if claim.attachment.may_outlive_process() && matches!(self.remembered(claim), Remembered::Nothing)
            {
                let (keeper, claim) = (self.clone(), claim.clone());
                opening.spawn(async move { Some((claim.contender, keeper.open_for(&claim).await?)) });
            }
        }
        opening.join_all().await.into_iter().flatten().collect()
    }

    /// Opens the session of a claim; `None` for a try-claim that would have to wait.
    async fn open_for(&self, claim: &Claim) -> Option<Result<OwnSession, StoreError>> {
        if !claim.queue {
            let session = self.session().ok()?;
            let folder = self.settings.paths.lock(&claim.name);
            let queue = self.queue(&session, &folder, Freshness::Latest).await.ok()?;
            if queue.newcomer(claim.units, claim.capacity) != Newcomer::Holds {
                return None;
            }
        }
        Some(self.own_session_for(claim.lease).await)
    }

    /// Answers a claim that needs more than its node.
    pub(crate) async fn claim_stepwise(
        self: &Arc<Self>,
        session: &Arc<Session>,
        claim: &Claim,
        remembered: Remembered,
        own_session: Option<Result<OwnSession, StoreError>>,
    ) -> Result<Verdict, StoreError> {
        if let Some(verdict) = self.answer_remembered(session, claim, remembered).await? {
            return Ok(verdict);
        }
        if claim.again
            && let Some(verdict) = self.detached_before(session, claim).await?
        {
            return Ok(verdict);
        }
        if !claim.queue {
            // A try-claim must not be in anybody's way, so it makes no node if it would wait.
            let folder = self.settings.paths.lock(&claim.name);
            let queue = self.queue(session, &folder, Freshness::Latest).await?;
            match queue.newcomer(claim.units, claim.capacity) {
                Newcomer::Mismatch { in_use } => return Ok(Verdict::mismatch(in_use)),
                Newcomer::Waits { ahead } => return Ok(self.busy(ahead)),
                Newcomer::Holds => {}
            }
        }
        if !claim.attachment.may_outlive_process() {
            return self.enter_queue(session, claim).await;
        }
        let own_session = match own_session {
            Some(own_session) => own_session,
            None => self.own_session_for(claim.lease).await,
        };
        match own_session? {
            // The client would send the creation after it has connected again, although nobody asks for it any more then.
            OwnSession::Open(own) if !own.is_connected() => Err(no_session()),
            OwnSession::Open(own) => self.enter_queue(&own, claim).await,
            OwnSession::TooLong(refusal) => Ok(Verdict::Refused(refusal)),
        }
    }

    /// Answers a claim from the traces of an earlier copy of it; `None` if that left none.
    async fn answer_remembered(
        self: &Arc<Self>,
        session: &Arc<Session>,
        claim: &Claim,
        remembered: Remembered,
    ) -> Result<Option<Verdict>, StoreError> {
        match remembered {
            Remembered::Verdict(verdict) => return Ok(Some(verdict)),
            Remembered::Nothing => return Ok(None),
            Remembered::Holding(node) => {
                if let Some(verdict) = self.granted_before(session, &node, claim).await? {
                    return Ok(Some(verdict));
                }
            }
            Remembered::Unknown(asked_in) => {
                let folder = self.settings.paths.lock(&claim.name);
                if let Some(node) = self.find_node(&asked_in, &folder, claim.contender).await? {
                    let queue = self.queue(&asked_in, &folder, Freshness::AnyServer).await;
                    return self.decide(&asked_in, claim, node, queue).await.map(Some);
                }
            }
        }
        self.records().claims.remove(&claim.contender);
        Ok(None)
    }

    /// Answers a claim whose own session failed while the keeper's answers. The failure costs no other claim of the
    /// group its answer. A waiter claims again soon, and a try-claim is told.
    pub(crate) fn own_session_failed(
        &self,
        session: &Session,
        claim: &Claim,
        error: StoreError,
    ) -> Result<Verdict, StoreError> {
        if !claim.attachment.may_outlive_process() || !session.is_connected() {
            return Err(error);
        }
        if claim.queue && error.is_passing() {
            tracing::debug!(contender = %claim.contender, %error, "a claim's own session got no answer");
            return Ok(Verdict::busy(0, CLAIM_AGAIN));
        }
        self.give_up(claim.contender);
        Ok(Verdict::Refused(error))
    }

    /// Leaves a claim of unknown outcome to the reaper. It removes the node, since nobody asks for the claim any more.
    pub(crate) fn give_up(&self, contender: ContenderId) {
        if let Some(record) = self.records().claims.get_mut(&contender)
            && let ClaimState::Unknown { asked } = &mut record.state
        {
            *asked = BootTime::default();
        }
    }

    /// Answers a copy of a claim whose lease has been detached since; `None` if there is no such lease.
    async fn detached_before(
        &self,
        session: &Arc<Session>,
        claim: &Claim,
    ) -> Result<Option<Verdict>, StoreError> {
        match self.detached(session, &claim.name, claim.contender).await? {
            None => return Ok(None),
            Some(data) if data.retired => return Ok(Some(Verdict::Stale)),
            Some(_) => {}
        }
        let confirm = Renew {
            name: claim.name.clone(),
            contender: claim.contender,
            lease: Duration::ZERO,
            lower_to: None,
            detach: false,
            at_least: 0,
        };
        self.take_over(session, &confirm).await?;
        let node = self.records().claims.get(&claim.contender).map(|record| record.node.clone());
        match node {
            Some(node) => self.granted_before(session, &node, claim).await,
            None => Ok(None),
        }
    }

    /// The node that `contender` has in `session`, by the latest state of the store.
    pub(crate) async fn find_node(
        &self,
        session: &Session,
        folder: &str,
        contender: ContenderId,
    ) -> Result<Option<NewNode>, StoreError> {
        let queue = self.queue(session, folder, Freshness::Latest).await?;
        for claim in queue.of(contender) {
            let path = format!("{folder}/{}", claim.name);
            let stat = session.read(session.client.check_stat(&path)).await.map_err(trouble)?;
            if let Some(stat) = stat.filter(|stat| stat.ephemeral_owner == session.id) {
                return Ok(Some(NewNode { path, number: grant_number(stat.czxid)? }));
            }
        }
        Ok(None)
    }
}
