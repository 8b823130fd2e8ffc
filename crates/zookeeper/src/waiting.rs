//! How a claim waits: it watches the node before it, and nothing else, until that is gone and it is first.
//!
//! A writer also watches the one before that. When that goes, it looks at the line while the one before it
//! holds, and so knows that it is next: the lock then passes without another look.

use std::{collections::HashSet, sync::Arc, time::Duration};

use lockkeeper_core::{
    Capacity, ContenderId, StoreError,
    runtime::clock::BootTime,
    store::{GrantNotice, Wake},
};
use tokio::task::JoinSet;
use zookeeper_client::{Error, EventType, OneshotWatcher};

use crate::{
    line::{Line, Standing},
    note::Note,
    session::Session,
    shared::Shared,
    table::{Hold, Stand, Task},
    trouble::trouble,
};

/// For so long a look at the line tells who is next. Nobody comes in before that one, but its own node may
/// be removed by hand, which only a look can show.
const LOOK_COUNTS: Duration = Duration::from_secs(1);

/// A place in line, from inside.
struct Place {
    contender: ContenderId,
    session: Arc<Session>,
    folder: String,
    node: String,
    /// The watches under way, by path.
    watched: JoinSet<(String, EventType)>,
    armed: HashSet<String>,
    /// Whose going lets it in, and until when that is certain.
    next_after: Option<(String, BootTime)>,
}

/// What came of a look at the line.
enum Seen {
    /// It is to be looked at again.
    Again,
    /// There is nothing more to wait for.
    Done,
}

impl Shared {
    /// Waits until `contender` is admitted and tells its keeper, or until it has lost its place. It begins
    /// where it was last seen to stand, if it was.
    pub(crate) async fn wait(self: Arc<Self>, contender: ContenderId, mut known: Option<Standing>) {
        let Some((session, node)) = self.place_of(contender) else { return };
        let folder = node.rsplit_once('/').map_or(String::new(), |(folder, _)| folder.to_owned());
        let (watched, armed) = (JoinSet::new(), HashSet::new());
        let mut place = Place { contender, session, folder, node, watched, armed, next_after: None };
        loop {
            match self.step(&mut place, known.take()).await {
                Ok(Seen::Done) => return,
                Ok(Seen::Again) => {}
                // Connected again, it looks again; a session that is over is replaced by its keeper.
                Err(error) => {
                    tracing::debug!(%contender, %error, "waiting for ZooKeeper");
                    if !place.session.lives() {
                        return;
                    }
                    self.clock.sleep_until(self.now().after(Duration::from_millis(20))).await;
                }
            }
        }
    }

    fn place_of(&self, contender: ContenderId) -> Option<(Arc<Session>, String)> {
        let table = self.table();
        let entry = table.entries.get(&contender)?;
        Some((entry.session.clone(), entry.node.clone()))
    }

    /// Looks at the line once, unless it is known, and waits until it has changed.
    async fn step(self: &Arc<Self>, place: &mut Place, known: Option<Standing>) -> Result<Seen, StoreError> {
        let looked = self.now();
        let standing = match known {
            Some(standing) => standing,
            None => {
                let line = self.line(&place.session, &place.folder).await?;
                let child = place.node.rsplit_once('/').map_or("", |(_, child)| child);
                let Some(standing) = line.standing(child) else {
                    self.lost_its_place(place);
                    return Ok(Seen::Done);
                };
                if standing.admitted {
                    return self.admitted(place, &line, child).await;
                }
                standing
            }
        };
        if let Some(entry) = self.table().entries.get_mut(&place.contender)
            && let Stand::Waiting { ahead, .. } = &mut entry.stand
        {
            *ahead = standing.ahead;
        }
        let last = standing.waits_for.first().filter(|_| standing.next);
        place.next_after = last.map(|name| (format!("{}/{name}", place.folder), looked.after(LOOK_COUNTS)));
        if !self.arm(place, &standing).await? {
            return Ok(Seen::Again);
        }
        // A watch cannot panic, and is not aborted while this waits for it.
        if let Some(Ok((path, event))) = place.watched.join_next().await {
            place.armed.remove(&path);
            let now = self.now();
            let last = place.next_after.take().is_some_and(|(last, until)| last == path && now < until);
            if last && event == EventType::NodeDeleted {
                return self.admitted(place, &Line::default(), "").await;
            }
        }
        Ok(Seen::Again)
    }

    /// Watches what `standing` waits for; `false` if it has changed already.
    async fn arm(self: &Arc<Self>, place: &mut Place, standing: &Standing) -> Result<bool, StoreError> {
        let session = place.session.clone();
        let mut asked = Vec::new();
        for name in standing.waits_for.iter().chain(&standing.forewarned_by) {
            let path = format!("{}/{name}", place.folder);
            if !place.armed.contains(&path) {
                let answer = session.client.get_and_watch_data(&path);
                asked.push((path, answer));
            }
        }
        for (path, answer) in asked {
            match session.read(answer).await {
                Ok((data, _, watcher)) => {
                    let news = standing.behind_a_waiter && Note::from_bytes(&data).granted;
                    let of = path.clone();
                    place.watched.spawn_on(
                        async move {
                            let event = watcher.changed().await;
                            (of, event.event_type)
                        },
                        &self.background,
                    );
                    place.armed.insert(path);
                    if news {
                        return Ok(false);
                    }
                }
                Err(Error::NoNode) => return Ok(false),
                Err(error) => return Err(trouble(error)),
            }
        }
        Ok(true)
    }

    /// Nobody is before it any more: it holds, as long as its session lives. Of an exclusive claim nothing
    /// in the line matters then.
    async fn admitted(self: &Arc<Self>, place: &Place, line: &Line, child: &str) -> Result<Seen, StoreError> {
        let (mut note, units, capacity, version, number) = {
            let table = self.table();
            let Some(entry) = table.entries.get(&place.contender) else { return Ok(Seen::Done) };
            (entry.note.clone(), entry.units, entry.capacity, entry.version, entry.number)
        };
        let session = &place.session;
        let floor = self.floor(session, &place.folder, line, child, units, number).await?;
        let sent = session.now();
        if capacity == Capacity::All {
            // Past its deadline the node may be gone, whatever this server says.
            if !session.lives() {
                return Err(trouble(Error::SessionExpired));
            }
            self.granted(place, sent, floor, note, version);
            return Ok(Seen::Done);
        }
        // Whoever stands behind it watches it, and may fit beside it.
        note.granted = true;
        let set = session.client.set_data(&place.node, &note.to_bytes(), None);
        match session.write(sent, set).await {
            Ok(stat) => self.granted(place, sent, floor, note, stat.version),
            Err(Error::NoNode) => self.lost_its_place(place),
            Err(error) => return Err(trouble(error)),
        }
        Ok(Seen::Done)
    }

    fn granted(&self, place: &Place, sent: BootTime, floor: u64, note: Note, version: i32) {
        let mut table = self.table();
        let Some(entry) = table.entries.get_mut(&place.contender) else { return };
        if !matches!(entry.stand, Stand::Waiting { .. }) || entry.node != place.node {
            return;
        }
        let hold = Hold::pushed(sent, note.lease, floor);
        (entry.note, entry.version, entry.stand) = (note, version, Stand::Holding(hold));
        let notice = GrantNotice {
            contender: place.contender,
            number: entry.number,
            floor,
            // The moment of the grant by the keeper's own clock: nothing has to be measured.
            stamp: sent.0,
            waited: std::time::Duration::ZERO,
            lease: entry.remaining(&hold, sent),
        };
        let name = entry.name.clone();
        drop(table);
        self.sooner.notify_one();
        self.wakes.wake(Wake::Granted(name, notice));
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

    /// Watches the own node of `contender` from now on, and learns what stands in it. `false` if it is
    /// gone.
    pub(crate) async fn watch_own_node(self: &Arc<Self>, contender: ContenderId) -> Result<bool, StoreError> {
        let (session, node) = {
            let table = self.table();
            let Some(entry) = table.entries.get(&contender) else { return Ok(false) };
            if entry.watches.is_some() {
                return Ok(true);
            }
            (entry.session.clone(), entry.node.clone())
        };
        let (data, stat, watcher) = match session.read(session.client.get_and_watch_data(&node)).await {
            Ok(read) if read.1.ephemeral_owner == session.id => read,
            // In another session it is somebody else's.
            Ok(_) | Err(Error::NoNode) => return Ok(false),
            Err(error) => return Err(trouble(error)),
        };
        let mut table = self.table();
        let Some(entry) = table.entries.get_mut(&contender).filter(|entry| entry.node == node) else {
            return Ok(false);
        };
        (entry.note, entry.version) = (Note::from_bytes(&data), stat.version);
        let task = self.background.spawn(self.clone().follow(contender, session, node, watcher));
        entry.watches = Some(Task(task.abort_handle()));
        Ok(true)
    }

    /// Keeps what is known of a node up to date, until it is gone.
    async fn follow(
        self: Arc<Self>,
        contender: ContenderId,
        session: Arc<Session>,
        node: String,
        mut watcher: OneshotWatcher,
    ) {
        loop {
            let event = watcher.changed().await;
            let read = match event.event_type {
                EventType::NodeDataChanged => session.read(session.client.get_and_watch_data(&node)).await,
                EventType::NodeDeleted => Err(Error::NoNode),
                _ => return,
            };
            let mut table = self.table();
            let Some(entry) = table.entries.get_mut(&contender).filter(|entry| entry.node == node) else {
                return;
            };
            match read {
                Ok((data, stat, again)) if stat.ephemeral_owner == session.id => {
                    (entry.note, entry.version) = (Note::from_bytes(&data), stat.version);
                    watcher = again;
                }
                // Gone, or somebody else's by now.
                Ok(_) | Err(Error::NoNode) => {
                    let lost = table.entries.remove(&contender);
                    drop(table);
                    if let Some(lost) = lost {
                        self.wake_waiters(&lost.name);
                    }
                    return;
                }
                Err(_) => {
                    // The next renewal reads it again.
                    entry.watches = None;
                    return;
                }
            }
        }
    }
}
