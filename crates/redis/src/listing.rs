//! Reads resources without changing them, one by one or page by page.

use std::collections::BTreeSet;

use lockkeeper_core::{
    Name, StoreError,
    store::{LatchPage, ListQuery, Page, ResourceView},
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
        let calls: Vec<_> = names.iter().map(|name| self.read_key(name, self.keys.resource(name))).collect();
        let mut views = Vec::new();
        for (name, reply) in names.iter().zip(self.servers.run(Priority::Normal, &calls).await) {
            views.extend(Reader::new(reply?).view(name)?);
        }
        Ok(views)
    }

    /// A call that reads a key of the resource or latch `name`.
    fn read_key<'a>(&self, name: &Name, key: String) -> Call<'a> {
        Call::new(&INSPECT, &self.keys, name, 1, move |command, nonce| _ = command.arg(&key).arg(nonce))
    }

    pub(crate) async fn page_of_latches(&self, query: &ListQuery) -> Result<LatchPage, StoreError> {
        let pattern = self.keys.latch_pattern(&query.prefix);
        let mut names = self.names(&pattern, |key| self.keys.name_of_latch(key)).await?;
        names.retain(|name| query.asks_for(name));
        let mut latches = Vec::new();
        for names in names.chunks(CAPABILITY.group_limit) {
            let calls: Vec<_> = names.iter().map(|name| self.read_key(name, self.keys.latch(name))).collect();
            for (name, reply) in names.iter().zip(self.servers.run(Priority::Normal, &calls).await) {
                latches.extend(Reader::new(reply?).latch()?.map(|state| (name.clone(), state)));
            }
            if latches.len() > query.limit.max(1) {
                break;
            }
        }
        Ok(LatchPage::cut(latches, query))
    }

    pub(crate) async fn page(&self, query: &ListQuery) -> Result<Page, StoreError> {
        let limit = query.limit.max(1);
        let pattern = self.keys.pattern(&query.prefix);
        let mut names = self.names(&pattern, |key| self.keys.name(key)).await?;
        names.retain(|name| query.asks_for(name));
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

    /// The names that `name_of` finds in the keys that match `pattern`, in order. Goes through all keys of all servers.
    async fn names(
        &self,
        pattern: &str,
        name_of: impl Fn(&str) -> Option<Name> + Send + Sync,
    ) -> Result<Vec<Name>, StoreError> {
        let mut names = BTreeSet::new();
        for server in &self.servers.map().in_use() {
            names.extend(self.scan(server, pattern).await?.iter().filter_map(|key| name_of(key)));
        }
        Ok(names.into_iter().collect())
    }

    /// The keys of one server that match `pattern`.
    async fn scan(&self, server: &Server, pattern: &str) -> Result<Vec<String>, StoreError> {
        let mut all = Vec::new();
        let mut cursor = "0".to_owned();
        loop {
            let mut scan = redis::cmd("SCAN");
            scan.arg(&cursor).arg("MATCH").arg(pattern).arg("COUNT").arg(KEYS_PER_STEP);
            let found = self.servers.ask(Priority::Normal, server, scan).await?;
            let (next, mut keys): (String, Vec<String>) =
                redis::from_redis_value(found).map_err(|_| trouble::nonsense("a page of keys"))?;
            all.append(&mut keys);
            if next == "0" {
                return Ok(all);
            }
            cursor = next;
        }
    }
}
