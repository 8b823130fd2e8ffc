//! Reads resources without changing them, one by one or page by page.

use std::collections::BTreeSet;

use lockkeeper_core::{
    Name, StoreError,
    store::{ListQuery, Page, ResourceView},
};

use crate::{
    codec::Reader,
    scripts::{Call, INSPECT},
    servers::{Priority, Server},
    store::{CAPABILITY, RedisStore},
    trouble,
};

/// How many keys the server goes through in one step of a scan.
const KEYS_PER_STEP: usize = 1000;

impl RedisStore {
    /// The views of these resources, without those that have neither holders nor waiters.
    pub(crate) async fn inspect_all(&self, names: &[Name]) -> Result<Vec<ResourceView>, StoreError> {
        let inspect = |name: &Name| {
            let key = self.keys.resource(name);
            Call::new(&INSPECT, &self.keys, name, 1, move |command, nonce| _ = command.arg(&key).arg(nonce))
        };
        let calls: Vec<_> = names.iter().map(inspect).collect();
        let mut views = Vec::new();
        for (name, reply) in names.iter().zip(self.servers.run(Priority::Normal, &calls).await) {
            views.extend(Reader::new(reply?).view(name)?);
        }
        Ok(views)
    }

    pub(crate) async fn page(&self, query: &ListQuery) -> Result<Page, StoreError> {
        let limit = query.limit.max(1);
        let mut names = self.names(&query.prefix).await?;
        names.retain(|name| query.after.as_ref().is_none_or(|after| name > after));
        let mut resources = Vec::new();
        for names in names.chunks(CAPABILITY.group_limit) {
            resources.append(&mut self.inspect_all(names).await?);
            if resources.len() > limit {
                break;
            }
        }
        let more = resources.len() > limit;
        resources.truncate(limit);
        let next = resources.last().filter(|_| more).map(|last| last.name.clone());
        Ok(Page { resources, next })
    }

    /// The names of all resources that start with `prefix`, in order. Goes through all keys of all servers.
    async fn names(&self, prefix: &str) -> Result<Vec<Name>, StoreError> {
        let mut names = BTreeSet::new();
        for server in &self.servers.map().in_use() {
            self.scan(server, prefix, &mut names).await?;
        }
        Ok(names.into_iter().filter(|name| name.as_str().starts_with(prefix)).collect())
    }

    /// Adds the names of one server, and perhaps some that start with something else.
    async fn scan(
        &self,
        server: &Server,
        prefix: &str,
        names: &mut BTreeSet<Name>,
    ) -> Result<(), StoreError> {
        let mut cursor = "0".to_owned();
        loop {
            let mut scan = redis::cmd("SCAN");
            scan.arg(&cursor).arg("MATCH").arg(self.keys.pattern(prefix)).arg("COUNT").arg(KEYS_PER_STEP);
            let found = self.servers.ask(Priority::Normal, server, scan).await?;
            let (next, keys): (String, Vec<String>) =
                redis::from_redis_value(found).map_err(|_| trouble::nonsense("a page of keys"))?;
            names.extend(keys.iter().filter_map(|key| self.keys.name(key)));
            if next == "0" {
                return Ok(());
            }
            cursor = next;
        }
    }
}
