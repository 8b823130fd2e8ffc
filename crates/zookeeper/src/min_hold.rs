//! Holds that are left before their minimum hold: the node stays without its owner until then.

use std::{sync::Arc, time::Duration};

use lockkeeper_core::{
    ContenderId, Name, StoreError,
    clock::BootTime,
    store::{Leave, Left},
};
use tokio::task::JoinSet;

use crate::{changes::Changed, codec::ClaimData, keeper::KeeperState, records::ClaimState, session::Session};

impl KeeperState {
    /// Leaves a hold and keeps its node `until` the minimum hold, unless an operator wants it back.
    pub(crate) async fn retire(&self, leave: &Leave, until: BootTime) -> Result<Left, StoreError> {
        let before = {
            let mut records = self.records();
            let Some(record) = records.claims.get_mut(&leave.contender) else { return Ok(Left::NotThere) };
            std::mem::replace(&mut record.state, ClaimState::Retired { until })
        };
        let lease = until.since(self.now());
        let retire = |data: &mut ClaimData| (data.retired, data.detached, data.lease) = (true, true, lease);
        match self.change(leave.contender, None, retire).await {
            Ok(Changed::Done) => Ok(Left::Released),
            Ok(Changed::Gone) => {
                self.records().claims.remove(&leave.contender);
                Ok(Left::NotThere)
            }
            Ok(Changed::Evicted(_)) => {
                if let Some(record) = self.records().claims.get_mut(&leave.contender) {
                    record.leave(Left::Released);
                }
                // If this fails, the reaper goes on with it.
                self.remove_node(leave.contender).await;
                Ok(Left::Released)
            }
            Err(error) => {
                // The leave will be repeated.
                if let Some(record) = self.records().claims.get_mut(&leave.contender) {
                    record.state = before;
                }
                Err(error)
            }
        }
    }

    /// Moves each retired hold to a session that ends with the minimum hold, before the keeper ends. It moves all at
    /// once: a process that ends does not wait for long.
    pub(crate) async fn hand_over_retired(self: &Arc<Self>, session: &Arc<Session>) {
        let retired: Vec<_> = {
            let records = self.records();
            let retired = records.claims.iter().filter_map(|(contender, record)| match record.state {
                ClaimState::Retired { until } => Some((record.name.clone(), *contender, until)),
                _ => None,
            });
            retired.collect()
        };
        let mut moves = JoinSet::new();
        for (name, contender, until) in retired {
            let (keeper, session) = (self.clone(), session.clone());
            moves.spawn(async move {
                let left = until.since(keeper.now());
                if let Err(error) = keeper.hand_over(&session, &name, contender, left).await {
                    // It lasts as long as its first session, which is longer than asked for.
                    tracing::debug!(%error, "a minimum hold ends late");
                }
            });
        }
        moves.join_all().await;
    }

    async fn hand_over(
        &self,
        session: &Session,
        name: &Name,
        contender: ContenderId,
        left: Duration,
    ) -> Result<(), StoreError> {
        let Some(found) = self.find_lease(session, name, contender).await? else { return Ok(()) };
        let own = self.open_own_session(left).await?;
        self.move_lease(&own, found, left).await.map(drop)
    }
}
