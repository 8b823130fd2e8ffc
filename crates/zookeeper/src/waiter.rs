//! How a claim waits: it watches the node before it, and its own once that takes long, until a listing says that it is
//! its turn. That stays true, whichever server said so: nobody comes in before it, and its node is there for as long as
//! its session certainly lives. What the watch says is only a reason to look: a node that is taken over is removed and
//! made again, and still holds.

use std::{collections::HashSet, sync::Arc, time::Duration};

use lockkeeper_core::{
    Capacity, ContenderId, StoreError,
    clock::BootTime,
    store::{GrantNotice, Wake},
};
use tokio::task::JoinSet;
use zookeeper_client::{Error, OneshotWatcher, Stat};

use crate::{
    codec::ClaimData,
    keeper::{KeeperState, Pause},
    memory::{ClaimState, HoldRecord},
    queue::{Queue, Standing},
    session::{Session, WatchPermit},
    trouble::trouble,
};

/// How often somebody looks who may not watch, because very many of its keeper do.
pub(crate) const LOOK_EVERY: Duration = Duration::from_secs(1);

/// How many times that long those far back in a line for permits go without a look.
const MOST_LOOKS_APART: u32 = 10;

/// Who waits longer than this also watches its own node, to come again at once if somebody removes that. Not from the
/// start: where a lock passes quickly, two requests more would be half as many again.
const WATCHES_ITSELF_AFTER: Duration = Duration::from_secs(1);

/// How the watches of a waiter are.
enum Armed {
    /// What was to be watched has changed already.
    Changed,
    Watching,
    /// There are too many to watch them all.
    Looking,
}

/// A waiter in line, from inside.
struct Waiter {
    contender: ContenderId,
    session: Arc<Session>,
    folder: String,
    node: String,
    /// The watches under way, by path.
    watched: JoinSet<String>,
    armed: HashSet<String>,
    /// Where it stood when its node was made, if that is known: it need not look again before it watches.
    standing: Option<Standing>,
}

impl KeeperState {
    /// Waits until `contender` is admitted and tells its keeper, or until it has lost its settings.
    pub(crate) async fn wait(self: Arc<Self>, contender: ContenderId, standing: Option<Standing>) {
        let Some((session, node)) = self.place_of(contender) else { return };
        let folder = node.rsplit_once('/').map_or(String::new(), |(folder, _)| folder.to_owned());
        let (watched, armed) = (JoinSet::new(), HashSet::new());
        let mut waiter = Waiter { contender, session, folder, node, watched, armed, standing };
        let mut pause = Pause::default();
        loop {
            match self.step(&mut waiter).await {
                Ok(true) => return,
                Ok(false) => pause = Pause::default(),
                // Connected again, it looks again; a session that is over is replaced by its keeper.
                Err(error) => {
                    tracing::debug!(%contender, %error, "waiting for ZooKeeper");
                    if !waiter.session.lives() {
                        return;
                    }
                    pause.pass(&self.clock).await;
                }
            }
        }
    }

    fn place_of(&self, contender: ContenderId) -> Option<(Arc<Session>, String)> {
        let memory = self.memory();
        let record = memory.records.get(&contender)?;
        Some((record.session.clone(), record.node.clone()))
    }

    /// Looks at the line once, and waits until it has changed; `true` if there is nothing more to wait
    /// for.
    async fn step(self: &Arc<Self>, waiter: &mut Waiter) -> Result<bool, StoreError> {
        let standing = match waiter.standing.take() {
            Some(standing) => standing,
            None => match self.look(waiter).await? {
                Some(standing) => standing,
                None => return Ok(true),
            },
        };
        if let Some(record) = self.memory().records.get_mut(&waiter.contender)
            && let ClaimState::Waiting { ahead, .. } = &mut record.state
        {
            *ahead = standing.ahead;
        }
        let look_again = match self.arm(waiter, &standing).await? {
            Armed::Changed => return Ok(false),
            // The one before it may state still, and then never says that it was admitted. Whoever is admitted next tells
            // those behind it, so they look the less often the further back they are.
            Armed::Watching if standing.behind_a_waiter => {
                let ahead = u32::try_from(standing.ahead).unwrap_or(u32::MAX);
                self.now().after(LOOK_EVERY * ahead.clamp(1, MOST_LOOKS_APART))
            }
            Armed::Watching if !standing.waits_for.is_empty() => BootTime::NEVER,
            Armed::Watching | Armed::Looking => self.now().after(LOOK_EVERY),
        };
        let watch_itself = self.now().after(WATCHES_ITSELF_AFTER);
        // Whoever looks as often as that finds out by itself.
        let watch_itself = match waiter.armed.contains(&waiter.node) || look_again <= watch_itself {
            true => BootTime::NEVER,
            false => watch_itself,
        };
        tokio::select! {
            // A watch cannot panic, and is not aborted while this waits for it.
            Some(Ok(path)) = waiter.watched.join_next() => {
                waiter.armed.remove(&path);
            }
            () = self.clock.sleep_until(look_again) => {}
            () = self.clock.sleep_until(watch_itself) => {
                // If it is gone, a look says so.
                waiter.standing = self.watch_itself(waiter).await?.then_some(standing);
            }
        }
        Ok(false)
    }

    /// Watches its own node, unless many are watched already; `false` if it is gone.
    async fn watch_itself(&self, waiter: &mut Waiter) -> Result<bool, StoreError> {
        let session = waiter.session.clone();
        let Some(may) = session.may_also_watch(&waiter.node) else { return Ok(true) };
        let asked = session.client.get_and_watch_data(&waiter.node);
        Ok(self.watch(waiter, waiter.node.clone(), may, asked).await?.is_some())
    }

    /// Watches the node at `path`, which has been `asked` for, and gives what is written there; `None` if it is gone.
    async fn watch(
        &self,
        waiter: &mut Waiter,
        path: String,
        may: WatchPermit,
        asked: impl Future<Output = Result<(Vec<u8>, Stat, OneshotWatcher), Error>>,
    ) -> Result<Option<Vec<u8>>, StoreError> {
        match waiter.session.read(asked).await {
            Ok((data, _, watcher)) => {
                waiter.armed.insert(path.clone());
                let watching = async move {
                    drop(watcher.changed().await);
                    drop(may);
                    path
                };
                waiter.watched.spawn_on(watching, &self.background);
                Ok(Some(data))
            }
            Err(Error::NoNode) => Ok(None),
            Err(error) => Err(trouble(error)),
        }
    }

    /// Looks at the line: where it stands, or `None` if there is nothing more to wait for.
    async fn look(self: &Arc<Self>, waiter: &mut Waiter) -> Result<Option<Standing>, StoreError> {
        let session = waiter.session.clone();
        let child = waiter.node.rsplit_once('/').map_or("", |(_, child)| child).to_owned();
        let queue = match session.read(session.client.list_children(&waiter.folder)).await {
            Ok(children) => self.queue_of(&waiter.folder, children),
            Err(Error::NoNode) => Queue::default(),
            Err(error) => return Err(trouble(error)),
        };
        let Some(standing) = queue.standing(&child) else {
            self.lost_its_place(waiter);
            return Ok(None);
        };
        if !standing.admitted {
            return Ok(Some(standing));
        }
        self.admitted(waiter, &queue, &child).await?;
        Ok(None)
    }

    /// Watches what `standing` waits for.
    async fn arm(self: &Arc<Self>, waiter: &mut Waiter, standing: &Standing) -> Result<Armed, StoreError> {
        let session = waiter.session.clone();
        let (mut asked, mut armed) = (Vec::new(), Armed::Watching);
        for name in &standing.waits_for {
            let path = format!("{}/{name}", waiter.folder);
            if waiter.armed.contains(&path) {
                continue;
            }
            if let Some(may) = session.may_watch(&path) {
                let answer = session.client.get_and_watch_data(&path);
                asked.push((path, may, answer));
            } else {
                armed = Armed::Looking;
            }
        }
        for (path, may, answer) in asked {
            match self.watch(waiter, path, may, answer).await? {
                Some(data) if standing.behind_a_waiter && ClaimData::from_bytes(&data).granted => {
                    return Ok(Armed::Changed);
                }
                Some(_) => {}
                None => return Ok(Armed::Changed),
            }
        }
        Ok(armed)
    }

    /// Nobody is before it any more that it does not fit beside, by a listing with its own node in it. So it holds, for as
    /// long as its session certainly lives.
    async fn admitted(
        self: &Arc<Self>,
        waiter: &Waiter,
        queue: &Queue,
        child: &str,
    ) -> Result<(), StoreError> {
        let (units, capacity, number) = {
            let memory = self.memory();
            let Some(record) = memory.records.get(&waiter.contender) else { return Ok(()) };
            (record.units, record.capacity, record.number)
        };
        let floor = self.floor(&waiter.session, &waiter.folder, queue, child, units, number).await?;
        if !waiter.session.lives() {
            return Err(trouble(Error::SessionExpired));
        }
        if self.granted(waiter, floor, queue.behind(child)) && capacity != Capacity::All {
            // Whoever stands behind it watches it, and may fit beside it.
            self.mark_until_done(waiter.contender);
        }
        Ok(())
    }

    /// Tells its keeper; `false` if it does not wait any more.
    fn granted(&self, waiter: &Waiter, floor: u64, behind: Option<Vec<String>>) -> bool {
        let now = self.now();
        let mut memory = self.memory();
        let Some(record) = memory.records.get_mut(&waiter.contender) else { return false };
        if !matches!(record.state, ClaimState::Waiting { .. }) || record.node != waiter.node {
            return false;
        }
        let hold = HoldRecord::pushed(now, record.note.lease, floor);
        (record.state, record.behind) = (ClaimState::Holding(hold), behind);
        let notice = GrantNotice {
            contender: waiter.contender,
            number: record.number,
            floor,
            // The moment of the grant by the keeper's own clock: nothing has to be measured.
            stamp: now.0,
            waited: Duration::ZERO,
            lease: record.remaining(&hold, now),
        };
        let name = record.name.clone();
        drop(memory);
        self.sooner.notify_one();
        self.wakes.wake(Wake::Granted(name, notice));
        true
    }

    /// Its node is gone: it has to come again.
    fn lost_its_place(&self, waiter: &Waiter) {
        let mut memory = self.memory();
        let mine = memory.records.get(&waiter.contender).is_some_and(|record| record.node == waiter.node);
        let lost = if mine { memory.records.remove(&waiter.contender) } else { None };
        drop(memory);
        if let Some(lost) = lost {
            self.wake_waiters(&lost.name);
        }
    }
}
