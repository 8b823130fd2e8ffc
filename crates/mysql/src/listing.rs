//! The views for operators: one resource, or a page of them. Only reads.

use lockkeeper_core::{
    Name, StoreError,
    store::{ListQuery, Page, ResourceView},
};
use lockkeeper_rows::{Needs, page, view};

use crate::{
    codec::{bytes, name_of},
    connection::{Failure, Worked},
    flights,
    groups::{Group, bad_rows},
};

/// How many names are looked at in one read.
const AT_ONCE: usize = 200;

impl Group {
    /// The holders and waiters of a resource.
    pub(crate) async fn inspect(self, name: Name) -> Worked<Option<ResourceView>> {
        let mut read = self.read_only(std::slice::from_ref(&name), &Needs::default()).await?;
        let seen = match read.bad(&name) {
            Some(bad) => Err(bad),
            None => view(&name, read.stored(&name), read.now),
        };
        seen.map_err(|bad| Failure::keeps(bad_rows(bad, &name)))
    }

    /// A part of all resources that are held or waited for.
    pub(crate) async fn list(self, query: ListQuery) -> Worked<Page> {
        let limit = query.limit.max(1);
        let mut views = Vec::new();
        let mut after =
            query.after.as_ref().map(|name| name.as_str().as_bytes().to_vec()).unwrap_or_default();
        // One more than the page has shows that there are more. Names in which everything has ended are not shown.
        while views.len() <= limit {
            let read = self.session.statements.names(&query.prefix, &after, AT_ONCE.min(limit + 1));
            let rows = flights::rows(&self.session, &read).await?;
            let Some(last) = rows.last() else { break };
            after = bytes(last, 0).map_err(Failure::keeps)?.unwrap_or_default().to_vec();
            // A name that is not text belongs to nobody.
            let names = rows.iter().filter_map(|row| name_of(row, 0).ok());
            let asked: Vec<Name> = names.filter(|name| query.asks_for(name)).collect();
            let is_over = !after.starts_with(query.prefix.as_bytes());
            views.append(&mut self.views(&asked).await?);
            if is_over {
                break;
            }
        }
        let views = views.into_iter().map(Ok::<_, StoreError>);
        page(views, limit).map_err(Failure::keeps)
    }

    /// Reads the views of these names. Those with rows that cannot be used are left out, and the log says so.
    async fn views(&self, names: &[Name]) -> Worked<Vec<ResourceView>> {
        let mut read = self.read_only(names, &Needs::default()).await?;
        let mut views = Vec::with_capacity(names.len());
        for name in names {
            let seen = match read.bad(name) {
                Some(bad) => Err(bad),
                None => view(name, read.stored(name), read.now),
            };
            match seen {
                Ok(seen) => views.extend(seen),
                Err(bad) => {
                    tracing::warn!(name = name.as_str(), error = %bad, "a row of this name cannot be used");
                }
            }
        }
        Ok(views)
    }
}
