//! Ends leases and waiters whose time is over, and removes nodes whose removal got no answer.

use std::{sync::Arc, time::Duration};

use lockkeeper_core::{ContenderId, Name, clock::BootTime, store::Left};

use crate::{
    keeper::KeeperState,
    records::{ClaimState, HoldRecord},
    session::Session,
};

/// How long the reaper waits before it repeats a request that got no answer.
const AGAIN: Duration = Duration::from_millis(100);

/// The work of the reaper.
struct Due {
    /// Sessions that are over.
    lost: Vec<Arc<Session>>,
    /// Claims whose nodes have to be removed.
    leaving: Vec<ContenderId>,
    /// Claims that may have a node and that nobody asks for any more.
    forgotten: Vec<(ContenderId, Name)>,
    /// When the reaper has to look again.
    next: BootTime,
}

/// Runs the reaper until it is aborted.
pub(crate) async fn run(keeper: Arc<KeeperState>) {
    loop {
        let sooner = keeper.sooner.notified();
        tokio::pin!(sooner);
        sooner.as_mut().enable();
        let next = keeper.reap().await;
        tokio::select! {
            () = keeper.clock.sleep_until(next) => {}
            () = sooner => {}
        }
    }
}

impl KeeperState {
    /// Ends everything that is due, and returns when to look again.
    async fn reap(&self) -> BootTime {
        let now = self.now();
        let Due { lost, leaving, forgotten, mut next } = self.due(now);
        for session in lost {
            self.forget_session(&session);
        }
        for contender in leaving {
            // A group may be removing the same node. Without its turn it would find the node gone, and answer that it was
            // not held.
            let _turn = self.turn.lock().await;
            if !self.remove_node(contender).await {
                next = next.min(now.after(AGAIN));
            }
        }
        for (contender, name) in forgotten {
            if self.leave_forgotten(&name, contender).await.is_err() {
                // The claim is overdue, so without this it would be asked for without a pause.
                next = next.max(self.now().after(AGAIN));
            }
        }
        next
    }

    /// Marks the claims that have ended as leaving.
    fn due(&self, now: BootTime) -> Due {
        let (mut lost, mut unheard) = (Vec::new(), Vec::new());
        let mut records = self.records();
        for record in records.claims.values_mut().filter(|record| record.due() <= now) {
            if !record.session.lives() {
                lost.push(record.session.clone());
                continue;
            }
            match record.state {
                ClaimState::Waiting { .. } => record.leave(Left::LeftQueue),
                ClaimState::Holding(HoldRecord { confirmed, .. }) => {
                    if !confirmed {
                        unheard.push(record.name.clone());
                    }
                    record.leave(Left::Released);
                }
                ClaimState::Retired { .. } => record.leave(Left::Released),
                ClaimState::Unknown { .. } | ClaimState::Leaving(_) => {}
            }
        }
        let (mut leaving, mut forgotten, mut next) = (Vec::new(), Vec::new(), BootTime::NEVER);
        for (contender, record) in &mut records.claims {
            // This keeper did not hear of a grant. Its other waiters would each cost the queue as much time (I8).
            if matches!(record.state, ClaimState::Waiting { .. }) && unheard.contains(&record.name) {
                record.leave(Left::LeftQueue);
            }
            match record.state {
                ClaimState::Leaving(_) => leaving.push((record.number, *contender)),
                ClaimState::Unknown { .. } if record.due() <= now => {
                    forgotten.push((*contender, record.name.clone()));
                }
                _ => {}
            }
            next = next.min(record.due());
        }
        // In order of arrival: a waiter behind several of them is not admitted beside one that is over.
        leaving.sort_unstable();
        let leaving = leaving.into_iter().map(|(_, contender)| contender).collect();
        Due { lost, leaving, forgotten, next }
    }
}
