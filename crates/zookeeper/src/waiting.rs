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
    line::{Line, Standing},
    note::Note,
    session::{MayWatch, Session},
    shared::{Pause, Shared},
    table::{Hold, Stand},
    trouble::trouble,
};

/// How often somebody looks who may not watch, because very many of its keeper do.
pub(crate) const LOOK_EVERY: Duration = Duration::from_secs(1);

/// How many times that long those far back in a line for permits go without a look.
const MOST_LOOKS_APART: u32 = 10;

/// Who waits longer than this also watches its own node, to come again at once if somebody removes that. Not from the
/// start: where a lock passes quickly, two requests more would be half as many again.
const WATCHES_ITSELF_AFTER: Duration = Duration::from_secs(1);

/// How the watches of a place are.
enum Armed {
    /// What was to be watched has changed already.
    Changed,
    Watching,
    /// There are too many to watch them all.
    Looking,
}

/// A place in line, from inside.
struct Place {
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

impl Shared {
    /// Waits until `contender` is admitted and tells its keeper, or until it has lost its place.
    pub(crate) async fn wait(self: Arc<Self>, contender: ContenderId, standing: Option<Standing>) {
        let Some((session, node)) = self.place_of(contender) else { return };
        let folder = node.rsplit_once('/').map_or(String::new(), |(folder, _)| folder.to_owned());
        let (watched, armed) = (JoinSet::new(), HashSet::new());
        let mut place = Place { contender, session, folder, node, watched, armed, standing };
        let mut pause = Pause::default();
        loop {
            match self.step(&mut place).await {
                Ok(true) => return,
                Ok(false) => pause = Pause::default(),
                // Connected again, it looks again; a session that is over is replaced by its keeper.
                Err(error) => {
                    tracing::debug!(%contender, %error, "waiting for ZooKeeper");
                    if !place.session.lives() {
                        return;
                    }
                    pause.pass(&self.clock).await;
                }
            }
        }
    }

    fn place_of(&self, contender: ContenderId) -> Option<(Arc<Session>, String)> {
        let table = self.table();
        let entry = table.entries.get(&contender)?;
        Some((entry.session.clone(), entry.node.clone()))
    }

    /// Looks at the line once, and waits until it has changed; `true` if there is nothing more to wait
    /// for.
    async fn step(self: &Arc<Self>, place: &mut Place) -> Result<bool, StoreError> {
        let standing = match place.standing.take() {
            Some(standing) => standing,
            None => match self.look(place).await? {
                Some(standing) => standing,
                None => return Ok(true),
            },
        };
        if let Some(entry) = self.table().entries.get_mut(&place.contender)
            && let Stand::Waiting { ahead, .. } = &mut entry.stand
        {
            *ahead = standing.ahead;
        }
        let look_again = match self.arm(place, &standing).await? {
            Armed::Changed => return Ok(false),
            // The one before it may stand still, and then never says that it was admitted. Whoever is admitted next tells
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
        let watch_itself = match place.armed.contains(&place.node) || look_again <= watch_itself {
            true => BootTime::NEVER,
            false => watch_itself,
        };
        tokio::select! {
            // A watch cannot panic, and is not aborted while this waits for it.
            Some(Ok(path)) = place.watched.join_next() => {
                place.armed.remove(&path);
            }
            () = self.clock.sleep_until(look_again) => {}
            () = self.clock.sleep_until(watch_itself) => {
                // If it is gone, a look says so.
                place.standing = self.watch_itself(place).await?.then_some(standing);
            }
        }
        Ok(false)
    }

    /// Watches its own node, unless many are watched already; `false` if it is gone.
    async fn watch_itself(&self, place: &mut Place) -> Result<bool, StoreError> {
        let session = place.session.clone();
        let Some(may) = session.may_also_watch(&place.node) else { return Ok(true) };
        let asked = session.client.get_and_watch_data(&place.node);
        Ok(self.watch(place, place.node.clone(), may, asked).await?.is_some())
    }

    /// Watches the node at `path`, which has been `asked` for, and gives what is written there; `None` if it is gone.
    async fn watch(
        &self,
        place: &mut Place,
        path: String,
        may: MayWatch,
        asked: impl Future<Output = Result<(Vec<u8>, Stat, OneshotWatcher), Error>>,
    ) -> Result<Option<Vec<u8>>, StoreError> {
        match place.session.read(asked).await {
            Ok((data, _, watcher)) => {
                place.armed.insert(path.clone());
                let watching = async move {
                    drop(watcher.changed().await);
                    drop(may);
                    path
                };
                place.watched.spawn_on(watching, &self.background);
                Ok(Some(data))
            }
            Err(Error::NoNode) => Ok(None),
            Err(error) => Err(trouble(error)),
        }
    }

    /// Looks at the line: where it stands, or `None` if there is nothing more to wait for.
    async fn look(self: &Arc<Self>, place: &mut Place) -> Result<Option<Standing>, StoreError> {
        let session = place.session.clone();
        let child = place.node.rsplit_once('/').map_or("", |(_, child)| child).to_owned();
        let line = match session.read(session.client.list_children(&place.folder)).await {
            Ok(children) => self.line_of(&place.folder, children),
            Err(Error::NoNode) => Line::default(),
            Err(error) => return Err(trouble(error)),
        };
        let Some(standing) = line.standing(&child) else {
            self.lost_its_place(place);
            return Ok(None);
        };
        if !standing.admitted {
            return Ok(Some(standing));
        }
        self.admitted(place, &line, &child).await?;
        Ok(None)
    }

    /// Watches what `standing` waits for.
    async fn arm(self: &Arc<Self>, place: &mut Place, standing: &Standing) -> Result<Armed, StoreError> {
        let session = place.session.clone();
        let (mut asked, mut armed) = (Vec::new(), Armed::Watching);
        for name in &standing.waits_for {
            let path = format!("{}/{name}", place.folder);
            if place.armed.contains(&path) {
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
            match self.watch(place, path, may, answer).await? {
                Some(data) if standing.behind_a_waiter && Note::from_bytes(&data).granted => {
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
    async fn admitted(self: &Arc<Self>, place: &Place, line: &Line, child: &str) -> Result<(), StoreError> {
        let (units, capacity, number) = {
            let table = self.table();
            let Some(entry) = table.entries.get(&place.contender) else { return Ok(()) };
            (entry.units, entry.capacity, entry.number)
        };
        let floor = self.floor(&place.session, &place.folder, line, child, units, number).await?;
        if !place.session.lives() {
            return Err(trouble(Error::SessionExpired));
        }
        if self.granted(place, floor, line.behind(child)) && capacity != Capacity::All {
            // Whoever stands behind it watches it, and may fit beside it.
            self.mark_until_done(place.contender);
        }
        Ok(())
    }

    /// Tells its keeper; `false` if it does not wait any more.
    fn granted(&self, place: &Place, floor: u64, behind: Option<Vec<String>>) -> bool {
        let now = self.now();
        let mut table = self.table();
        let Some(entry) = table.entries.get_mut(&place.contender) else { return false };
        if !matches!(entry.stand, Stand::Waiting { .. }) || entry.node != place.node {
            return false;
        }
        let hold = Hold::pushed(now, entry.note.lease, floor);
        (entry.stand, entry.behind) = (Stand::Holding(hold), behind);
        let notice = GrantNotice {
            contender: place.contender,
            number: entry.number,
            floor,
            // The moment of the grant by the keeper's own clock: nothing has to be measured.
            stamp: now.0,
            waited: Duration::ZERO,
            lease: entry.remaining(&hold, now),
        };
        let name = entry.name.clone();
        drop(table);
        self.sooner.notify_one();
        self.wakes.wake(Wake::Granted(name, notice));
        true
    }

    /// Its node is gone: it has to come again.
    fn lost_its_place(&self, place: &Place) {
        let mut table = self.table();
        let mine = table.entries.get(&place.contender).is_some_and(|entry| entry.node == place.node);
        let lost = if mine { table.entries.remove(&place.contender) } else { None };
        drop(table);
        if let Some(lost) = lost {
            self.wake_waiters(&lost.name);
        }
    }
}
