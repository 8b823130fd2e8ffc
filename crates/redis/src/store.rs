//! The store: its abilities, and its side of the `Store` trait. Each request becomes calls of scripts.

use std::{
    fmt,
    sync::{Arc, LazyLock},
    time::Duration,
};

use lockkeeper_core::{
    Capability, KeeperId, Name, Survives,
    store::{
        Admit, Admitted, Answer, Answers, BoxFuture, Count, Counted, Evict, Evicted, Eviction, LatchPage,
        ListQuery, Member, Page, Renew, Renewed, Reply, Request, ResourceView, Store, Topic, Watch,
    },
    support::background::Background,
};

use crate::{
    codec::{Reader, reason_argument},
    layout::{Keys, slot},
    records::Records,
    run_ids::RunIds,
    scripts::{Call, EVICT, FENCE},
    servers::{Priority, Servers},
    wakes::{Listeners, Subscription},
};

/// The abilities of the Redis store.
pub static CAPABILITY: Capability = {
    let mut can = Capability::new("redis");
    can.between_processes = true;
    can.pushes = true;
    can.min_lease = Duration::from_millis(100);
    can.max_lease = Duration::from_secs(366 * 24 * 3600);
    can.detachable = true;
    can.counts_permits = true;
    can.may_be_member = true;
    can.group_limit = 256;
    can.requests_at_once = 4;
    can.client_crash = Survives::Fully;
    can.restart = Survives::WithFence;
    can.data_loss = Survives::WithFence;
    can.clock_jump = Survives::WithFence;
    can
};

/// The same for several servers, of which two may believe that they decide.
static SEVERAL: LazyLock<Capability> = LazyLock::new(|| {
    let mut can = CAPABILITY.clone();
    can.may_be_member = false;
    can
});

/// How long a new subscription is waited for. After that it may come late, which a resync makes up for.
pub(crate) const SUBSCRIBE_LIMIT: Duration = Duration::from_millis(500);

/// One keeper's connection to a store.
pub(crate) struct RedisStore {
    pub(crate) url: Arc<str>,
    pub(crate) id: String,
    pub(crate) keeper: KeeperId,
    pub(crate) keys: Keys,
    pub(crate) servers: Arc<Servers>,
    pub(crate) listeners: Arc<Listeners>,
    /// The subscription to the keeper's own channel, unless this is a cluster.
    pub(crate) _grants: Option<Subscription>,
    /// Moves to the new master when there is one.
    pub(crate) _follower: Option<Background>,
    pub(crate) run_ids: RunIds,
    pub(crate) records: Records,
    /// The keeper's runtime.
    pub(crate) background: tokio::runtime::Handle,
}

impl fmt::Debug for RedisStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisStore").field("url", &self.url).finish_non_exhaustive()
    }
}

impl Store for RedisStore {
    fn capability(&self) -> &Capability {
        if self.keys.is_sharded() || self._follower.is_some() { &SEVERAL } else { &CAPABILITY }
    }

    fn url(&self) -> &Arc<str> {
        &self.url
    }

    fn id(&self) -> &str {
        &self.id
    }

    fn server_of(&self, name: &Name) -> usize {
        if self.keys.is_sharded() { self.servers.map().of(slot(&self.keys.resource(name))).number } else { 0 }
    }

    fn apply<'a>(&'a self, group: &'a [Request]) -> Reply<'a, Answers<Answer>> {
        Box::pin(self.apply_group(group))
    }

    fn renew<'a>(&'a self, leases: &'a [Renew]) -> Reply<'a, Answers<Renewed>> {
        Box::pin(self.renew_group(leases))
    }

    fn watch<'a>(&'a self, topic: &'a Topic) -> Reply<'a, Option<Watch>> {
        Box::pin(async move {
            let publishing = match topic {
                Topic::Grants(_) if !self.keys.is_sharded() => return Ok(None),
                Topic::Changes(name) => Some(self.publish_changes(name).await?),
                _ => None,
            };
            let Some(channel) = self.keys.channel(topic, self.keeper) else { return Ok(None) };
            let subscription = self.listeners.subscribe(channel, SUBSCRIBE_LIMIT).await;
            Ok(Some(Watch::new((subscription, publishing))))
        })
    }

    fn inspect<'a>(&'a self, name: &'a Name) -> Reply<'a, Option<ResourceView>> {
        Box::pin(async move { Ok(self.inspect_all(std::slice::from_ref(name)).await?.pop()) })
    }

    fn list<'a>(&'a self, query: &'a ListQuery) -> Reply<'a, Page> {
        Box::pin(self.page(query))
    }

    fn latches<'a>(&'a self, query: &'a ListQuery) -> Reply<'a, LatchPage> {
        Box::pin(self.page_of_latches(query))
    }

    fn evict<'a>(&'a self, order: &'a Evict) -> Reply<'a, Evicted> {
        let Evict { name, contender, number, how, reason } = order;
        let call = Call::new(&EVICT, &self.keys, name, 2, move |command, nonce| {
            command.arg(self.keys.high_water(name)).arg(self.keys.resource(name)).arg(nonce);
            command.arg(contender.to_string()).arg(*number).arg(u8::from(*how == Eviction::Immediate));
            command.arg(reason_argument(reason.as_deref()));
        });
        Box::pin(async move {
            let mut reader = Reader::new(self.servers.run_one(Priority::Normal, call).await?);
            Ok(if reader.number()? == 1 { Evicted::Done } else { Evicted::NotHeld })
        })
    }

    fn count<'a>(&'a self, count: &'a Count) -> Reply<'a, Answers<Counted>> {
        Box::pin(self.count_once(count))
    }

    fn fence<'a>(&'a self, admit: &'a Admit) -> Reply<'a, Admitted> {
        let Admit { name, token, floor } = admit;
        let call = Call::new(&FENCE, &self.keys, name, 1, move |command, nonce| {
            command.arg(self.keys.fence(name)).arg(nonce).arg(token.to_string()).arg(floor.to_string());
        });
        Box::pin(async move {
            let mut reader = Reader::new(self.servers.run_one(Priority::Normal, call).await?);
            Ok(match reader.number()? {
                1 => Admitted::Yes,
                _ => Admitted::Stale { highest: reader.token()? },
            })
        })
    }

    fn leave_caller(&self) {
        self.servers.leave_caller();
    }

    fn member(&self) -> Option<&dyn Member> {
        self.capability().may_be_member.then_some(self as &dyn Member)
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        self.listeners.close();
        self.servers.close();
        Box::pin(std::future::ready(()))
    }
}

impl Drop for RedisStore {
    fn drop(&mut self) {
        self.listeners.close();
        self.servers.close();
    }
}
