//! How a claim waits: it watches the node before it and its own, and nothing else, until it is its turn
//! and the quorum has confirmed that it is still there.

use std::{collections::HashSet, sync::Arc};

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

/// A place in line, from inside.
struct Place {
    contender: ContenderId,
    session: Arc<Session>,
    folder: String,
    node: String,
    /// The watches under way, by path.
    watched: JoinSet<String>,
    armed: HashSet<String>,
}

impl Shared {
    /// Waits until `contender` is admitted and tells its keeper, or until it has lost its place.
    pub(crate) async fn wait(self: Arc<Self>, contender: ContenderId) {
        let Some((session, node)) = self.place_of(contender) else { return };
        let folder = node.rsplit_once('/').map_or(String::new(), |(folder, _)| folder.to_owned());
        let (watched, armed) = (JoinSet::new(), HashSet::new());
        let mut place = Place { contender, session, folder, node, watched, armed };
        loop {
            match self.step(&mut place).await {
                Ok(true) => return,
                Ok(false) => {}
                // Connected again, it looks again; a session that is over is replaced by its keeper.
                Err(error) => {
                    tracing::debug!(%contender, %error, "waiting for ZooKeeper");
                    if !place.session.lives() {
                        return;
                    }
                    let soon = self.now().after(std::time::Duration::from_millis(20));
                    self.clock.sleep_until(soon).await;
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
        let session = place.session.clone();
        let child = place.node.rsplit_once('/').map_or("", |(_, child)| child).to_owned();
        let listed = session.client.list_children(&place.folder);
        let line = match session.read(listed).await {
            Ok(children) => self.line_of(&place.folder, children),
            Err(Error::NoNode) => Line::default(),
            Err(error) => return Err(trouble(error)),
        };
        let Some(standing) = line.standing(&child) else {
            self.lost_its_place(place);
            return Ok(true);
        };
        if standing.admitted {
            return self.admitted(place, &line, &child).await;
        }
        if let Some(entry) = self.table().entries.get_mut(&place.contender)
            && let Stand::Waiting { ahead, .. } = &mut entry.stand
        {
            *ahead = standing.ahead;
        }
        if !self.arm(place, &standing).await? {
            return Ok(false);
        }
        match place.watched.join_next().await {
            Some(Ok(path)) => place.armed.remove(&path),
            // A watch cannot panic, and is not aborted while this waits for it.
            Some(Err(_)) | None => false,
        };
        Ok(false)
    }

    /// Watches what `standing` waits for; `false` if it has changed already.
    async fn arm(self: &Arc<Self>, place: &mut Place, standing: &Standing) -> Result<bool, StoreError> {
        let session = place.session.clone();
        self.watch_own_node(place.contender).await?;
        let mut asked = Vec::new();
        for name in &standing.waits_for {
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
                            drop(watcher.changed().await);
                            of
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

    /// Nobody is before it any more. It holds once the quorum has confirmed that its node is there.
    async fn admitted(self: &Arc<Self>, place: &Place, line: &Line, child: &str) -> Result<bool, StoreError> {
        let (mut note, units, capacity, version, number) = {
            let table = self.table();
            let Some(entry) = table.entries.get(&place.contender) else { return Ok(true) };
            (entry.note.clone(), entry.units, entry.capacity, entry.version, entry.number)
        };
        let session = &place.session;
        let floor = self.floor(session, &place.folder, line, child, units, number).await?;
        let sent = session.now();
        let proof = if capacity == Capacity::All {
            session.check(&place.node).await.map(|()| version)
        } else {
            // Whoever stands behind it watches it, and may fit beside it.
            note.granted = true;
            let set = session.client.set_data(&place.node, &note.to_bytes(), None);
            session.write(sent, set).await.map(|stat| stat.version)
        };
        match proof {
            Ok(version) => self.granted(place, sent, floor, note, version),
            Err(Error::NoNode) => self.lost_its_place(place),
            Err(error) => return Err(trouble(error)),
        }
        Ok(true)
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
            Ok(read) => read,
            Err(Error::NoNode) => return Ok(false),
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
                Ok((data, stat, again)) => {
                    (entry.note, entry.version) = (Note::from_bytes(&data), stat.version);
                    watcher = again;
                }
                Err(Error::NoNode) => {
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
