//! The operators' view: one resource, or a page of them. Only reads.

use lockkeeper_core::{
    Name, StoreError,
    store::{ListQuery, Page, ResourceView},
};
use lockkeeper_rows::{page, view};

use crate::{
    codec::{damaged, get, name_from_bytes},
    connection::{Failure, Worked},
    counts::bounds,
    flights::unread,
    groups::Group,
    statements::Statement,
};

/// How many names are looked at in one read.
const AT_ONCE: usize = 200;

impl Group {
    /// Shows the holders and waiters of a resource.
    pub(crate) async fn inspect(self, name: Name) -> Worked<Option<ResourceView>> {
        let mut read = self.read_only(std::slice::from_ref(&name), &[]).await?;
        if let Some(error) = read.damage(&name) {
            return Err(Failure::keeps(error.clone()));
        }
        let (stored, now) = (read.stored(&name), read.now);
        view(&name, stored, now).map_err(|bad| Failure::keeps(damaged(&name).with_source(bad)))
    }

    /// Lists a part of all resources that are held or waited for.
    pub(crate) async fn list(self, query: ListQuery) -> Worked<Page> {
        let limit = query.limit.max(1);
        let mut views = Vec::new();
        let (from, mut after) = bounds(&query);
        // One more than the page has shows that there are more. Names in which everything has ended are not shown.
        while views.len() <= limit {
            let at_once = i64::try_from(AT_ONCE.min(limit + 1)).unwrap_or(i64::MAX);
            let rows =
                self.session.query(Statement::Names, &[&from, &after, &at_once]).await.map_err(unread)?;
            let Some(last) = rows.last() else { break };
            after = get::<&[u8]>(last, 0).map_err(Failure::keeps)?.to_vec();
            // A name that is no text belongs to nobody.
            let names = rows.iter().filter_map(|row| name_from_bytes(get(row, 0).ok()?).ok());
            let names: Vec<Name> = names.collect();
            let asked: Vec<Name> = names.iter().filter(|name| query.asks_for(name)).cloned().collect();
            let is_over = !after.starts_with(&from);
            views.append(&mut self.views(&asked).await?);
            if is_over {
                break;
            }
        }
        let views = views.into_iter().map(Ok::<_, StoreError>);
        page(views, limit).map_err(Failure::keeps)
    }

    /// Names with rows that cannot be used are left out, and the log says so: the others are to be seen.
    async fn views(&self, names: &[Name]) -> Worked<Vec<ResourceView>> {
        let mut read = self.read_only(names, &[]).await?;
        let mut views = Vec::with_capacity(names.len());
        for name in names {
            let (damage, stored) = (read.damage(name).cloned(), read.stored(name));
            let seen = match damage {
                Some(error) => Err(error),
                None => view(name, stored, read.now).map_err(|bad| damaged(name).with_source(bad)),
            };
            match seen {
                Ok(seen) => views.extend(seen),
                Err(error) => self.own.told.once(name, &error),
            }
        }
        Ok(views)
    }
}
