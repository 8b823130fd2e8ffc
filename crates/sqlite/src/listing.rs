//! The views for operators: one resource, or a page of them. Crashed keepers are expired before they would be shown.

use lockkeeper_core::{
    KeeperId, Name, StoreError,
    model::Now,
    store::{ListQuery, Page, ResourceView},
};
use rusqlite::{Result, Transaction};

use crate::{codec, database::Database, ticket::Ticket};

impl Database {
    /// The holders and waiters of a resource.
    pub(crate) fn inspect(
        &mut self,
        ticket: &Ticket,
        name: &Name,
    ) -> Result<Option<ResourceView>, StoreError> {
        ticket.begin();
        let view = self.read(|transaction, now| view_of(transaction, now, name))?;
        if self.expire_crashed(view.iter())? {
            return self.read(|transaction, now| view_of(transaction, now, name));
        }
        Ok(view)
    }

    /// A part of all resources that are held or waited for.
    pub(crate) fn list(&mut self, ticket: &Ticket, query: &ListQuery) -> Result<Page, StoreError> {
        ticket.begin();
        let page = self.read(|transaction, now| page_of(transaction, now, query))?;
        if self.expire_crashed(page.resources.iter())? {
            return self.read(|transaction, now| page_of(transaction, now, query));
        }
        Ok(page)
    }

    /// Expires the crashed keepers among those in `views`; false if there are none.
    fn expire_crashed<'a>(
        &mut self,
        views: impl Iterator<Item = &'a ResourceView>,
    ) -> Result<bool, StoreError> {
        let mut keepers: Vec<KeeperId> = Vec::new();
        for view in views {
            keepers.extend(view.holders.iter().filter(|holder| !holder.detached).map(|h| h.contender.keeper));
            keepers.extend(view.waiters.iter().map(|waiter| waiter.contender.keeper));
        }
        keepers.sort_unstable();
        keepers.dedup();
        keepers.retain(|keeper| self.is_crashed(*keeper));
        for keeper in &keepers {
            self.expire_if_crashed(*keeper)?;
        }
        Ok(!keepers.is_empty())
    }
}

fn view_of(transaction: &Transaction<'_>, now: Now, name: &Name) -> Result<Option<ResourceView>> {
    lockkeeper_rows::view(name, codec::load(transaction, name)?, now).map_err(codec::not_ours)
}

fn page_of(transaction: &Transaction<'_>, now: Now, query: &ListQuery) -> Result<Page> {
    let after = query.after.as_ref().map_or("", |name| name.as_str());
    let mut find = transaction
        .prepare_cached("SELECT DISTINCT name FROM entry WHERE name >= ?1 AND name > ?2 ORDER BY name")?;
    let names = find.query_map([query.prefix.as_str(), after], |row| row.get(0))?;
    let views = names
        .map(|name| codec::name_from(name?))
        .take_while(|name| name.as_ref().map_or(true, |name| name.as_str().starts_with(&query.prefix)))
        .filter_map(|name| name.and_then(|name| view_of(transaction, now, &name)).transpose());
    lockkeeper_rows::page(views, query.limit)
}
