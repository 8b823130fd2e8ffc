//! The `impl Store`: every request becomes an action of the keeper's writer.

use std::{
    os::fd::OwnedFd,
    sync::{Arc, LazyLock, Mutex},
    time::Duration,
};

use lockkeeper_core::{
    Capability, KeeperId, Name, Survives,
    store::{
        Admit, Admitted, Answer, Answers, BoxFuture, Count, CountAction, Counted, Evict, Evicted, LatchPage,
        ListQuery, Member, Page, Renew, Renewed, Reply, Request, ResourceView, Store, Topic, Watch,
    },
    support,
};

use lockkeeper_rows::wake_text::topic_words;

use crate::{subscription::Subscription, ticket::Urgency, writer::Writer};

/// The abilities of the SQLite store.
pub static CAPABILITY: Capability = {
    let mut can = Capability::new("sqlite");
    can.between_processes = true;
    can.pushes = true;
    // Longer than the first lease of a grant: the kernel hands a wake over, or the sender is told. The reader notices
    // by itself that a wake may be missing: after a full inbox, or a crash of the process that would have sent it.
    can.asks_again = Duration::from_millis(4500);
    can.min_lease = Duration::from_millis(100);
    can.max_lease = Duration::from_secs(366 * 24 * 3600);
    can.detachable = true;
    can.counts_permits = true;
    can.may_be_member = true;
    can.frees_crashed_at_once = true;
    can.group_limit = 1024;
    can.client_crash = Survives::Fully;
    can.restart = Survives::Fully;
    can.data_loss = Survives::WithFence;
    can.clock_jump = Survives::Fully;
    can
};

/// The same for a keeper that gets no wakes.
static DEAF: LazyLock<Capability> = LazyLock::new(|| {
    let mut can = CAPABILITY.clone();
    can.asks_again = Capability::ASKS_AGAIN;
    can
});

/// One keeper's connection to a file.
#[derive(Debug)]
pub(crate) struct SqliteStore {
    pub(crate) url: Arc<str>,
    pub(crate) id: String,
    pub(crate) keeper: KeeperId,
    pub(crate) writer: Arc<Writer>,
    pub(crate) life_line: Mutex<Option<OwnedFd>>,
    /// The task that reads the wakes of other keepers.
    pub(crate) listener: Option<tokio::task::AbortHandle>,
}

impl Store for SqliteStore {
    fn capability(&self) -> &Capability {
        if self.listener.as_ref().is_some_and(|listener| !listener.is_finished()) {
            &CAPABILITY
        } else {
            &DEAF
        }
    }

    fn url(&self) -> &Arc<str> {
        &self.url
    }

    fn id(&self) -> &str {
        &self.id
    }

    fn apply<'a>(&'a self, group: &'a [Request]) -> Reply<'a, Answers<Answer>> {
        let group = group.to_vec();
        Box::pin(self.writer.ask(Urgency::Usual, move |database, ticket| {
            if group.is_empty() {
                let now = database.check(ticket)?.lease;
                return Ok(Answers { now, each: Vec::new() });
            }
            database.apply(ticket, &group)
        }))
    }

    fn renew<'a>(&'a self, leases: &'a [Renew]) -> Reply<'a, Answers<Renewed>> {
        let leases = leases.to_vec();
        Box::pin(self.writer.ask(Urgency::First, move |database, ticket| {
            let (each, now) = database.write(ticket, Urgency::First, |work| {
                leases.iter().map(|renew| work.renew(renew)).collect()
            })?;
            Ok(Answers { now, each })
        }))
    }

    fn watch<'a>(&'a self, topic: &'a Topic) -> Reply<'a, Option<Watch>> {
        Box::pin(async move {
            if topic_words(topic).is_none() {
                return Ok(None);
            }
            let subscription = Subscription::start(&self.writer, self.keeper, topic.clone()).await?;
            Ok(Some(Watch::new(subscription)))
        })
    }

    fn inspect<'a>(&'a self, name: &'a Name) -> Reply<'a, Option<ResourceView>> {
        let name = name.clone();
        Box::pin(self.writer.ask(Urgency::Usual, move |database, ticket| database.inspect(ticket, &name)))
    }

    fn list<'a>(&'a self, query: &'a ListQuery) -> Reply<'a, Page> {
        let query = query.clone();
        Box::pin(self.writer.ask(Urgency::Usual, move |database, ticket| database.list(ticket, &query)))
    }

    fn latches<'a>(&'a self, query: &'a ListQuery) -> Reply<'a, LatchPage> {
        let query = query.clone();
        Box::pin(self.writer.ask(Urgency::Usual, move |database, ticket| database.latches(ticket, &query)))
    }

    fn evict<'a>(&'a self, order: &'a Evict) -> Reply<'a, Evicted> {
        let order = order.clone();
        Box::pin(self.writer.ask(Urgency::Usual, move |database, ticket| {
            Ok(database.write(ticket, Urgency::Usual, |work| work.evict(&order))?.0)
        }))
    }

    fn count<'a>(&'a self, count: &'a Count) -> Reply<'a, Answers<Counted>> {
        let count = count.clone();
        Box::pin(self.writer.ask(Urgency::Usual, move |database, ticket| {
            let (counted, now) = match count.action {
                CountAction::Read => database.read_count(ticket, &count)?,
                _ => database.write(ticket, Urgency::Usual, |work| work.count(&count))?,
            };
            Ok(Answers { now, each: vec![counted] })
        }))
    }

    fn fence<'a>(&'a self, admit: &'a Admit) -> Reply<'a, Admitted> {
        let admit = admit.clone();
        Box::pin(self.writer.ask(Urgency::Usual, move |database, ticket| {
            Ok(database.write(ticket, Urgency::Usual, |work| work.fence(&admit))?.0)
        }))
    }

    fn life_line(&self) -> Option<OwnedFd> {
        support::lock(&self.life_line).as_ref()?.try_clone().ok()
    }

    fn member(&self) -> Option<&dyn Member> {
        Some(self)
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        // Else the keeper would count as alive for as long as the store is referenced.
        drop(support::lock(&self.life_line).take());
        if let Some(listener) = &self.listener {
            listener.abort();
        }
        Box::pin(self.writer.end())
    }
}

impl Drop for SqliteStore {
    fn drop(&mut self) {
        if let Some(listener) = &self.listener {
            listener.abort();
        }
    }
}
