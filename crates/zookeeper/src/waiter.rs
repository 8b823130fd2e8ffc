//! Waits until a claim is admitted: watches the node before it, and lists the queue when that changes.
//!
//! A listing that contains the claim's own node and admits it stays true, from whichever server it is: no claim comes in
//! before it, and its node is there for as long as its session certainly lives. A watch is only a reason to list again,
//! since a take-over removes the node of a claim that still holds.

use std::{collections::HashSet, sync::Arc, time::Duration};

use lockkeeper_core::{
    Capacity, ContenderId, GrantNumber, StoreError,
    clock::BootTime,
    store::{GrantNotice, Wake},
};
use tokio::task::JoinSet;
use zookeeper_client::{Error, OneshotWatcher, Stat};

use crate::{
    codec::ClaimData,
    keeper::KeeperState,
    layout::split,
    listing::Freshness,
    queue::{Admission, Obstacles, Queue},
    reconnect::backoff,
    records::{ClaimState, HoldRecord},
    session::Session,
    trouble::trouble,
    watch_budget::WatchPermit,
};

/// How often the queue is listed for a waiter beyond the watch budget.
pub(crate) const POLL: Duration = Duration::from_secs(1);

/// How many times as long the waiters far back in a queue for permits go without a listing, at most.
const MOST_POLLS_APART: u32 = 10;

/// A waiter that waits for longer than this also watches its own node, to claim again at once if somebody removes it. It
/// does not do so from the start: two more requests would be half as many again if a lock passes quickly.
const WATCHES_ITSELF_AFTER: Duration = Duration::from_secs(1);

/// The outcome of setting watches.
enum Watching {
    /// A node that was to be watched has changed already.
    Changed,
    All,
    /// The watch budget was too small for all of them.
    Some,
}

/// Whether a waiter goes on.
enum Step {
    Again,
    Done,
}

/// A claim that waits.
struct Waiter {
    contender: ContenderId,
    session: Arc<Session>,
    folder: String,
    node: String,
    /// One task for each watched path; it returns the path when that has changed.
    watches: JoinSet<String>,
    watched: HashSet<String>,
    /// The nodes that it waits for, if they are known without another listing.
    obstacles: Option<Obstacles>,
}

impl KeeperState {
    /// Waits until `contender` is admitted and tells its keeper, or until its node is gone.
    pub(crate) async fn wait(self: Arc<Self>, contender: ContenderId, obstacles: Option<Obstacles>) {
        let Some((session, node)) =
            self.records().claims.get(&contender).map(|record| (record.session.clone(), record.node.clone()))
        else {
            return;
        };
        let mut waiter = Waiter {
            contender,
            session,
            folder: split(&node).0.to_owned(),
            node,
            watches: JoinSet::new(),
            watched: HashSet::new(),
            obstacles,
        };
        let mut backoff = backoff();
        loop {
            match self.step(&mut waiter).await {
                Ok(Step::Done) => return,
                Ok(Step::Again) => backoff.reset(),
                Err(error) => {
                    tracing::debug!(%contender, %error, "waiting for ZooKeeper");
                    // The keeper replaces a session that is over, and claims again.
                    if !waiter.session.lives() {
                        return;
                    }
                    self.pause(&mut backoff).await;
                }
            }
        }
    }

    /// Lists the queue once, and waits until it has changed.
    async fn step(self: &Arc<Self>, waiter: &mut Waiter) -> Result<Step, StoreError> {
        let obstacles = match waiter.obstacles.take() {
            Some(obstacles) => obstacles,
            None => match self.look(waiter).await? {
                Some(obstacles) => obstacles,
                None => return Ok(Step::Done),
            },
        };
        if let Some(record) = self.records().claims.get_mut(&waiter.contender)
            && let ClaimState::Waiting { ahead, .. } = &mut record.state
        {
            *ahead = obstacles.ahead;
        }
        let poll_at = match self.watch_obstacles(waiter, &obstacles).await? {
            Watching::Changed => return Ok(Step::Again),
            watching => self.poll_at(&watching, &obstacles),
        };
        let watch_itself = self.now().after(WATCHES_ITSELF_AFTER);
        // A waiter that polls as often as that notices by itself.
        let watch_itself = match waiter.watched.contains(&waiter.node) || poll_at <= watch_itself {
            true => BootTime::NEVER,
            false => watch_itself,
        };
        tokio::select! {
            // A watch cannot panic, and nobody aborts it while this waits for it.
            Some(Ok(path)) = waiter.watches.join_next() => {
                waiter.watched.remove(&path);
            }
            () = self.clock.sleep_until(poll_at) => {}
            () = self.clock.sleep_until(watch_itself) => {
                // If the node is gone, the next listing shows it.
                waiter.obstacles = self.watch_itself(waiter).await?.then_some(obstacles);
            }
        }
        Ok(Step::Again)
    }

    /// The time at which to list the queue even if no watch says so.
    fn poll_at(&self, watching: &Watching, obstacles: &Obstacles) -> BootTime {
        match watching {
            // The process of the claim before it may stand still, and then never marks that claim as granted. The next claim
            // that is admitted wakes those behind it, so waiters further back poll less often.
            Watching::All if obstacles.wait_themselves => {
                let ahead = u32::try_from(obstacles.ahead).unwrap_or(u32::MAX);
                self.now().after(POLL * ahead.clamp(1, MOST_POLLS_APART))
            }
            Watching::All if !obstacles.nodes.is_empty() => BootTime::NEVER,
            _ => self.now().after(POLL),
        }
    }

    /// Lists the queue, and returns the nodes that the waiter waits for; `None` if it has nothing more to wait for.
    async fn look(self: &Arc<Self>, waiter: &Waiter) -> Result<Option<Obstacles>, StoreError> {
        let queue = self.queue(&waiter.session, &waiter.folder, Freshness::AnyServer).await?;
        match queue.admission(split(&waiter.node).1) {
            Some(Admission::Waits(obstacles)) => return Ok(Some(obstacles)),
            Some(Admission::Holds) => self.admitted(waiter, &queue).await?,
            None => self.node_lost(waiter),
        }
        Ok(None)
    }

    /// Watches the nodes that the waiter waits for.
    async fn watch_obstacles(
        &self,
        waiter: &mut Waiter,
        obstacles: &Obstacles,
    ) -> Result<Watching, StoreError> {
        let session = waiter.session.clone();
        let (mut asked, mut watching) = (Vec::new(), Watching::All);
        for name in &obstacles.nodes {
            let path = format!("{}/{name}", waiter.folder);
            if waiter.watched.contains(&path) {
                continue;
            }
            if let Some(permit) = session.watch_budget.permit(&path) {
                let answer = session.client.get_and_watch_data(&path);
                asked.push((path, permit, answer));
            } else {
                watching = Watching::Some;
            }
        }
        for (path, permit, answer) in asked {
            match self.watch(waiter, path, permit, answer).await? {
                Some(data) if obstacles.wait_themselves && ClaimData::from_bytes(&data).granted => {
                    return Ok(Watching::Changed);
                }
                Some(_) => {}
                None => return Ok(Watching::Changed),
            }
        }
        Ok(watching)
    }

    /// Watches the waiter's own node, if the watch budget allows it; `false` if the node is gone.
    async fn watch_itself(&self, waiter: &mut Waiter) -> Result<bool, StoreError> {
        let session = waiter.session.clone();
        let Some(permit) = session.watch_budget.permit_optional(&waiter.node) else { return Ok(true) };
        let asked = session.client.get_and_watch_data(&waiter.node);
        Ok(self.watch(waiter, waiter.node.clone(), permit, asked).await?.is_some())
    }

    /// Watches the node at `path`, which has been `asked` for, and returns its data; `None` if it is gone.
    async fn watch(
        &self,
        waiter: &mut Waiter,
        path: String,
        permit: WatchPermit,
        asked: impl Future<Output = Result<(Vec<u8>, Stat, OneshotWatcher), Error>>,
    ) -> Result<Option<Vec<u8>>, StoreError> {
        match waiter.session.read(asked).await {
            Ok((data, _, watcher)) => {
                waiter.watched.insert(path.clone());
                let watching = async move {
                    drop(watcher.changed().await);
                    drop(permit);
                    path
                };
                waiter.watches.spawn_on(watching, &self.background);
                Ok(Some(data))
            }
            Err(Error::NoNode) => Ok(None),
            Err(error) => Err(trouble(error)),
        }
    }

    /// Grants a waiter that `queue` admits.
    async fn admitted(self: &Arc<Self>, waiter: &Waiter, queue: &Queue) -> Result<(), StoreError> {
        let (units, capacity, number) = {
            let records = self.records();
            let Some(record) = records.claims.get(&waiter.contender) else { return Ok(()) };
            (record.units, record.capacity, record.number)
        };
        let child = split(&waiter.node).1;
        let floor = self.floor(&waiter.session, queue, &waiter.node, units, number).await?;
        if !waiter.session.lives() {
            return Err(trouble(Error::SessionExpired));
        }
        if self.push_grant(waiter, floor, queue.behind(child)) && capacity != Capacity::All {
            self.mark_granted(waiter.contender);
        }
        Ok(())
    }

    /// Tells the keeper of a grant; `false` if the claim does not wait any more.
    fn push_grant(&self, waiter: &Waiter, floor: GrantNumber, behind: Option<Vec<String>>) -> bool {
        let now = self.now();
        let mut records = self.records();
        let Some(record) = records.claims.get_mut(&waiter.contender) else { return false };
        if !matches!(record.state, ClaimState::Waiting { .. }) || record.node != waiter.node {
            return false;
        }
        let hold = HoldRecord::pushed(now, record.data.lease, floor);
        (record.state, record.behind) = (ClaimState::Holding(hold), behind);
        let notice = GrantNotice {
            contender: waiter.contender,
            number: record.number,
            floor,
            // The moment of the grant by the keeper's own clock, so no delay has to be measured.
            stamp: now.0,
            waited: Duration::ZERO,
            lease: record.remaining(&hold, now),
        };
        let name = record.name.clone();
        drop(records);
        self.sooner.notify_one();
        self.wakes.wake(Wake::Granted(name, notice));
        true
    }

    /// Tells the keeper that the waiter's node is gone, so that it claims again.
    fn node_lost(&self, waiter: &Waiter) {
        let mut records = self.records();
        let own = records.claims.get(&waiter.contender).is_some_and(|record| record.node == waiter.node);
        let lost = if own { records.claims.remove(&waiter.contender) } else { None };
        drop(records);
        if let Some(lost) = lost {
            self.wake_waiters(&lost.name);
        }
    }
}
