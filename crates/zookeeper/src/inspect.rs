//! What people ask: who holds and waits, and taking a lock back.

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use lockkeeper_core::{
    Name, StoreError, Token,
    store::{Evict, Evicted, Eviction, HolderView, ListQuery, Page, ResourceView, WaiterView},
};
use zookeeper_client::{Error, Stat};

use crate::{
    changes::TRIES, claims::delete_markers, codec::ClaimData, keeper::KeeperState, layout,
    memory::ClaimState, queue::Queue, session::Session, trouble::trouble,
};

fn wall(millis: i64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_millis(u64::try_from(millis).unwrap_or(0))
}

impl KeeperState {
    /// Who holds and who waits.
    pub(crate) async fn inspect(
        &self,
        session: &Session,
        name: &Name,
    ) -> Result<Option<ResourceView>, StoreError> {
        let folder = self.settings.paths.lock(name);
        let queue = self.queue_now(session, &folder).await?;
        self.view(session, name, &folder, &queue).await
    }

    async fn view(
        &self,
        session: &Session,
        name: &Name,
        folder: &str,
        queue: &Queue,
    ) -> Result<Option<ResourceView>, StoreError> {
        let Some(capacity) = queue.capacity() else { return Ok(None) };
        let mut view =
            ResourceView { name: name.clone(), capacity, holders: Vec::new(), waiters: Vec::new() };
        let read = queue.admissions().map(|(node, admitted)| {
            (node, admitted, session.client.get_data(&format!("{folder}/{}", node.name)))
        });
        let read: Vec<_> = read.collect();
        for (node, admitted, data) in read {
            let (data, stat) = match session.read(data).await {
                Ok(read) => read,
                Err(Error::NoNode) => continue,
                Err(error) => return Err(trouble(error)),
            };
            let (contender, units) = (node.contender, node.units);
            let note = ClaimData::from_bytes(&data);
            if admitted {
                view.holders.push(HolderView {
                    contender,
                    token: Token::new(note.number(stat.czxid), 0),
                    units,
                    since: wall(if note.granted { stat.mtime } else { stat.ctime }),
                    remaining: self.remaining(node.contender, &note),
                    evicted: note.evicted,
                    detached: note.detached,
                    details: note.details,
                });
            } else {
                view.waiters.push(WaiterView {
                    contender,
                    units,
                    details: note.details,
                    since: wall(stat.ctime),
                });
            }
        }
        Ok((!view.holders.is_empty() || !view.waiters.is_empty()).then_some(view))
    }

    /// What is left of a lease. Only its own keeper knows; of others' the whole length is shown.
    fn remaining(&self, contender: lockkeeper_core::ContenderId, note: &ClaimData) -> Duration {
        let now = self.now();
        match self.memory().records.get(&contender).map(|record| record.state) {
            Some(ClaimState::Holding(hold)) => hold.expires.since(now),
            Some(ClaimState::Retired { until }) => until.since(now),
            _ => note.lease,
        }
    }

    /// All resources that are held or waited for.
    pub(crate) async fn list(&self, session: &Session, query: &ListQuery) -> Result<Page, StoreError> {
        let locks = self.settings.paths.locks();
        let synced = session.client.sync(&locks);
        let listed = session.client.list_children(&locks);
        session.read(synced).await.map_err(trouble)?;
        let children = session.read(listed).await.map_err(trouble)?;
        let mut names: Vec<Name> = children
            .iter()
            .filter_map(|child| layout::name_of(child))
            .filter(|name| name.as_str().starts_with(&query.prefix))
            .filter(|name| query.after.as_ref().is_none_or(|after| name > after))
            .collect();
        names.sort_unstable();
        let limit = query.limit.max(1);
        let mut resources: Vec<ResourceView> = Vec::new();
        for name in names {
            let folder = self.settings.paths.lock(&name);
            let queue = self.queue(session, &folder).await?;
            let Some(view) = self.view(session, &name, &folder, &queue).await? else { continue };
            if resources.len() == limit {
                let next = resources.last().map(|last| last.name.clone());
                return Ok(Page { resources, next });
            }
            resources.push(view);
        }
        Ok(Page { resources, next: None })
    }

    /// Takes a lock back from the named holder with the named number, and from nobody else.
    pub(crate) async fn evict(
        self: &Arc<Self>,
        session: &Session,
        order: &Evict,
    ) -> Result<Evicted, StoreError> {
        let folder = self.settings.paths.lock(&order.name);
        for _ in 0..TRIES {
            let queue = self.queue_now(session, &folder).await?;
            let held = queue.admissions().find(|(node, held)| *held && node.contender == order.contender);
            let Some((node, _)) = held else { return Ok(Evicted::NotHeld) };
            let path = format!("{folder}/{}", node.name);
            let markers: Vec<String> =
                queue.markers_of(order.contender).iter().map(|marker| format!("{folder}/{marker}")).collect();
            let (data, stat) = match session.read(session.client.get_data(&path)).await {
                Ok(read) => read,
                Err(Error::NoNode) => continue,
                Err(error) => return Err(trouble(error)),
            };
            match self.evict_node(session, order, &path, &markers, &data, &stat).await {
                Ok(evicted) => return Ok(evicted),
                Err(Error::BadVersion | Error::NoNode) => {}
                Err(error) => return Err(trouble(error)),
            }
        }
        Err(trouble(Error::BadVersion))
    }

    async fn evict_node(
        &self,
        session: &Session,
        order: &Evict,
        path: &str,
        markers: &[String],
        data: &[u8],
        stat: &Stat,
    ) -> Result<Evicted, Error> {
        let mut note = ClaimData::from_bytes(data);
        if note.number(stat.czxid) != order.number {
            return Ok(Evicted::NotHeld);
        }
        note.evicted = true;
        let sent = session.now();
        let marked = session.client.set_data(path, &note.to_bytes(), Some(stat.version));
        let marked = session.write(sent, marked).await?;
        if order.how == Eviction::Immediate || note.retired {
            // Only the node that was marked: a new one of that name would have another version.
            session.read(session.client.delete(path, Some(marked.version))).await?;
            session.read(delete_markers(&session.client, markers)).await?;
        }
        let mut memory = self.memory();
        if order.how == Eviction::Immediate || note.retired {
            memory.records.remove(&order.contender);
        } else if let Some(record) = memory.records.get_mut(&order.contender) {
            record.note.evicted = true;
        }
        Ok(Evicted::Done)
    }
}
