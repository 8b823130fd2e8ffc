//! What operators see: one resource, or a page of them. Only reads.

use lockkeeper_core::{
    Name, StoreError,
    store::{ListQuery, Page, ResourceView},
};
use lockkeeper_rows::{Needs, page, view};

use crate::{
    connection::{Failure, Worked},
    flights,
    groups::Group,
    rows::name_of,
};

/// How many names are looked at in one read.
const AT_ONCE: usize = 200;

impl Group {
    /// The holders and waiters of a resource.
    pub(crate) async fn inspect(self, name: Name) -> Worked<Option<ResourceView>> {
        Ok(self.views(std::slice::from_ref(&name)).await?.pop())
    }

    /// A part of all resources that are held or waited for.
    pub(crate) async fn list(self, query: ListQuery) -> Worked<Page> {
        let limit = query.limit.max(1);
        let mut views = Vec::new();
        let mut after = query.after.as_ref().map(|name| name.as_str().to_owned()).unwrap_or_default();
        // One more than the page has shows that there are more. Names in which everything has ended are not shown.
        while views.len() <= limit {
            let read = self.session.statements.names(&query.prefix, &after, AT_ONCE.min(limit + 1));
            let rows = flights::rows(&self.session, &read).await?;
            let names = rows.iter().map(|row| name_of(row, 0));
            let names = names.collect::<Result<Vec<Name>, StoreError>>().map_err(Failure::keeps)?;
            let Some(last) = names.last() else { break };
            last.as_str().clone_into(&mut after);
            let asked: Vec<Name> = names.iter().filter(|name| query.asks_for(name)).cloned().collect();
            let is_over = asked.len() < names.len();
            views.append(&mut self.views(&asked).await?);
            if is_over {
                break;
            }
        }
        let views = views.into_iter().map(Ok::<_, StoreError>);
        page(views, limit).map_err(Failure::keeps)
    }

    async fn views(&self, names: &[Name]) -> Worked<Vec<ResourceView>> {
        let mut read = self.read_only(names, &Needs::default()).await?;
        let now = read.now;
        let views = names.iter().map(|name| match read.bad(name) {
            Some(bad) => Err(bad),
            None => view(name, read.stored(name), now),
        });
        let views = views.filter_map(Result::transpose).collect::<Result<Vec<_>, _>>();
        views.map_err(|bad| Failure::keeps(bad.into()))
    }
}
