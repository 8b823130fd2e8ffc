//! Shows operators the holders and the waiters.

use std::time::{Duration, SystemTime};

use lockkeeper_core::{
    ContenderId, Name, StoreError, Token,
    store::{HolderView, ListQuery, Page, ResourceView, WaiterView},
};
use zookeeper_client::{Error, Stat};

use crate::{
    codec::{ClaimData, ClaimNode, name_of},
    keeper::KeeperState,
    listing::Freshness,
    queue::Queue,
    records::ClaimState,
    session::Session,
    trouble::trouble,
};

fn wall_time(millis: i64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_millis(u64::try_from(millis).unwrap_or(0))
}

impl KeeperState {
    /// Shows the holders of `name` and the waiters for it.
    pub(crate) async fn inspect(
        &self,
        session: &Session,
        name: &Name,
    ) -> Result<Option<ResourceView>, StoreError> {
        let folder = self.settings.paths.lock(name);
        let queue = self.queue(session, &folder, Freshness::Latest).await?;
        self.view(session, name, &folder, &queue).await
    }

    /// One page of all resources that are held or waited for.
    pub(crate) async fn list(&self, session: &Session, query: &ListQuery) -> Result<Page, StoreError> {
        let locks = self.settings.paths.locks();
        let synced = session.client.sync(&locks);
        let listed = session.client.list_children(&locks);
        session.read(synced).await.map_err(trouble)?;
        let children = session.read(listed).await.map_err(trouble)?;
        let mut names: Vec<Name> =
            children.iter().filter_map(|child| name_of(child)).filter(|name| query.asks_for(name)).collect();
        names.sort_unstable();
        let limit = query.limit.max(1);
        let mut resources: Vec<ResourceView> = Vec::new();
        for name in names {
            let folder = self.settings.paths.lock(&name);
            let queue = self.queue(session, &folder, Freshness::AnyServer).await?;
            let Some(view) = self.view(session, &name, &folder, &queue).await? else { continue };
            if resources.len() == limit {
                let next = resources.last().map(|last| last.name.clone());
                return Ok(Page { resources, next });
            }
            resources.push(view);
        }
        Ok(Page { resources, next: None })
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
        let read = queue.admissions().map(|(claim, holds)| {
            (claim, holds, session.client.get_data(&format!("{folder}/{}", claim.name)))
        });
        // All requests are sent before the first is awaited.
        let read: Vec<_> = read.collect();
        for (claim, holds, data) in read {
            let (data, stat) = match session.read(data).await {
                Ok(read) => read,
                Err(Error::NoNode) => continue,
                Err(error) => return Err(trouble(error)),
            };
            let data = ClaimData::from_bytes(&data);
            if holds {
                view.holders.push(self.holder_view(claim, data, &stat));
            } else {
                view.waiters.push(WaiterView {
                    contender: claim.contender,
                    units: claim.units,
                    details: data.details,
                    since: wall_time(stat.ctime),
                });
            }
        }
        Ok((!view.holders.is_empty() || !view.waiters.is_empty()).then_some(view))
    }

    fn holder_view(&self, claim: &ClaimNode, data: ClaimData, stat: &Stat) -> HolderView {
        HolderView {
            contender: claim.contender,
            token: Token::new(data.number(stat.czxid), 0),
            units: claim.units,
            since: wall_time(if data.granted { stat.mtime } else { stat.ctime }),
            lease: data.lease,
            remaining: self.lease_left(claim.contender),
            renewed: !data.fixed && !data.detached,
            evicted: data.evicted,
            detached: data.detached,
            details: data.details,
        }
    }

    /// Returns the rest of a lease, which only its own keeper knows.
    fn lease_left(&self, contender: ContenderId) -> Option<Duration> {
        let now = self.now();
        match self.records().claims.get(&contender).map(|record| record.state)? {
            ClaimState::Holding(hold) => Some(hold.expires.since(now)),
            ClaimState::Retired { until } => Some(until.since(now)),
            _ => None,
        }
    }
}
