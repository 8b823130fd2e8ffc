//! What people ask: who holds and waits, and taking a lock back.

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use lockkeeper_core::{
    Name, StoreError, Token,
    store::{Evict, Evicted, HolderView, ListQuery, Page, ResourceView, WaiterView},
};
use zookeeper_client::{Error, Stat};

use crate::{
    changes::TRIES, claims::delete_markers, line::Line, note::Note, path, session::Session, shared::Shared,
    table::Stand, trouble::trouble,
};

fn wall(millis: i64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_millis(u64::try_from(millis).unwrap_or(0))
}

impl Shared {
    /// Who holds and who waits.
    pub(crate) async fn inspect(
        &self,
        session: &Session,
        name: &Name,
    ) -> Result<Option<ResourceView>, StoreError> {
        let folder = self.place.paths.lock(name);
        let line = self.line_now(session, &folder).await?;
        self.view(session, name, &folder, &line).await
    }

    async fn view(
        &self,
        session: &Session,
        name: &Name,
        folder: &str,
        line: &Line,
    ) -> Result<Option<ResourceView>, StoreError> {
        let Some(capacity) = line.capacity() else { return Ok(None) };
        let mut view =
            ResourceView { name: name.clone(), capacity, holders: Vec::new(), waiters: Vec::new() };
        let read = line.admissions().map(|(node, admitted)| {
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
            let note = Note::from_bytes(&data);
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
    fn remaining(&self, contender: lockkeeper_core::ContenderId, note: &Note) -> Duration {
        let now = self.now();
        match self.table().entries.get(&contender).map(|entry| entry.stand) {
            Some(Stand::Holding(hold)) => hold.expires.since(now),
            Some(Stand::Retired { until }) => until.since(now),
            _ => note.lease,
        }
    }

    /// All resources that are held or waited for.
    pub(crate) async fn list(&self, session: &Session, query: &ListQuery) -> Result<Page, StoreError> {
        let locks = self.place.paths.locks();
        let synced = session.client.sync(&locks);
        let listed = session.client.list_children(&locks);
        session.read(synced).await.map_err(trouble)?;
        let children = session.read(listed).await.map_err(trouble)?;
        let mut names: Vec<Name> = children
            .iter()
            .filter_map(|child| path::name_of(child))
            .filter(|name| name.as_str().starts_with(&query.prefix))
            .filter(|name| query.after.as_ref().is_none_or(|after| name > after))
            .collect();
        names.sort_unstable();
        let limit = query.limit.max(1);
        let mut resources: Vec<ResourceView> = Vec::new();
        for name in names {
            let folder = self.place.paths.lock(&name);
            let line = self.line(session, &folder).await?;
            let Some(view) = self.view(session, &name, &folder, &line).await? else { continue };
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
        let folder = self.place.paths.lock(&order.name);
        for _ in 0..TRIES {
            let line = self.line_now(session, &folder).await?;
            let held = line.admissions().find(|(node, held)| *held && node.contender == order.contender);
            let Some((node, _)) = held else { return Ok(Evicted::NotHeld) };
            let path = format!("{folder}/{}", node.name);
            let markers: Vec<String> =
                line.markers_of(order.contender).iter().map(|marker| format!("{folder}/{marker}")).collect();
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
        let mut note = Note::from_bytes(data);
        if note.number(stat.czxid) != order.number {
            return Ok(Evicted::NotHeld);
        }
        note.evicted = true;
        let sent = session.now();
        let marked = session.client.set_data(path, &note.to_bytes(), Some(stat.version));
        let marked = session.write(sent, marked).await?;
        if order.now || note.retired {
            // Only the node that was marked: a new one of that name would have another version.
            session.read(session.client.delete(path, Some(marked.version))).await?;
            session.read(delete_markers(&session.client, markers)).await?;
        }
        let mut table = self.table();
        if order.now || note.retired {
            table.entries.remove(&order.contender);
        } else if let Some(entry) = table.entries.get_mut(&order.contender) {
            entry.note.evicted = true;
        }
        Ok(Evicted::Done)
    }
}
