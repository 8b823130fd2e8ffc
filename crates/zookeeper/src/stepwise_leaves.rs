//! Leaves that need several requests: of claims of unknown outcome, of detached leases, and before the minimum hold.

use std::sync::Arc;

use lockkeeper_core::{
    ContenderId, Name, StoreError,
    store::{Leave, Left},
};

use crate::{
    codec::ClaimData,
    keeper::KeeperState,
    listing::Freshness,
    nodes::{NewNode, RemovalAnswer},
    records::{ClaimRecord, ClaimState},
    session::Session,
};

impl KeeperState {
    /// Answers a leave that needs more than one removal.
    pub(crate) async fn leave_stepwise(
        &self,
        session: &Arc<Session>,
        leave: &Leave,
    ) -> Result<Left, StoreError> {
        let record =
            self.records().claims.get(&leave.contender).map(|record| (record.state, record.session.clone()));
        match record {
            Some((ClaimState::Unknown { .. }, asked_in)) if !asked_in.lives() => {
                // Its node, if there is one, ends with that session.
                self.records().claims.remove(&leave.contender);
                Ok(Left::NotThere)
            }
            Some((ClaimState::Unknown { .. }, asked_in)) => {
                match self.leave_unknown(&asked_in, leave).await {
                    // Its owner never heard that it holds.
                    Err(_) if asked_in.is_for_one_claim() && session.is_connected() => {
                        self.give_up(leave.contender);
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
            None => self.leave_detached(session, leave).await,
        }
    }

    /// Leaves a claim that may have made a node in `asked_in`.
    async fn leave_unknown(&self, asked_in: &Session, leave: &Leave) -> Result<Left, StoreError> {
        let folder = self.settings.paths.lock(&leave.name);
        let node = self.find_node(asked_in, &folder, leave.contender).await?;
        Ok(self.leave_found(leave.contender, node).await)
    }

    async fn leave_found(&self, contender: ContenderId, node: Option<NewNode>) -> Left {
        let Some(node) = node else {
            self.records().claims.remove(&contender);
            return Left::NotThere;
        };
        if let Some(record) = self.records().claims.get_mut(&contender) {
            record.node = node.path;
            record.leave(Left::LeftQueue);
        }
        self.remove_node(contender).await;
        Left::LeftQueue
    }

    /// Leaves a claim of unknown outcome that nobody asks for. Its session may be silent, so the turn is not held while the
    /// session is asked.
    pub(crate) async fn leave_forgotten(
        &self,
        name: &Name,
        contender: ContenderId,
    ) -> Result<(), StoreError> {
        let unknown = || match self.records().claims.get(&contender) {
            Some(ClaimRecord { state: ClaimState::Unknown { asked }, session, .. }) => {
                Some((session.clone(), *asked))
            }
            _ => None,
        };
        let Some((asked_in, asked)) = unknown() else { return Ok(()) };
        let node = self.find_node(&asked_in, &self.settings.paths.lock(name), contender).await?;
        let _turn = self.turn.lock().await;
        // A copy of the claim may have been sent meanwhile.
        if unknown().is_some_and(|(now_in, now)| Arc::ptr_eq(&now_in, &asked_in) && now == asked) {
            self.leave_found(contender, node).await;
        }
        Ok(())
    }

    /// Leaves a lease that is in no session of this keeper.
    async fn leave_detached(&self, session: &Session, leave: &Leave) -> Result<Left, StoreError> {
        let Leave { name, contender, .. } = leave;
        let (folder, contender) = (self.settings.paths.lock(name), *contender);
        let queue = self.queue(session, &folder, Freshness::Latest).await?;
        let Some(claim) = queue.of(contender).next() else { return Ok(Left::NotThere) };
        let path = format!("{folder}/{}", claim.name);
        match session.data(&path).await? {
            Some((data, _)) if !ClaimData::from_bytes(&data).retired => {}
            _ => return Ok(Left::NotThere),
        }
        if !leave.hold_at_least.is_zero()
            && let Some(left) = self.retire_detached(session, leave).await?
        {
            return Ok(left);
        }
        let markers = queue.marker_paths(&folder, contender);
        let answer = RemovalAnswer { removed: Left::Released, gone: Left::NotThere };
        self.delete_node(session, contender, &path, &markers, answer).await
    }
}
