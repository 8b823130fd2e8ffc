//! The store: every request becomes work for the keeper's writer.

use lockkeeper_core::support;
use std::{
    os::fd::OwnedFd,
    sync::{Arc, LazyLock, Mutex, OnceLock, Weak},
    time::Duration,
};

use lockkeeper_core::{
    Capability, KeeperId, Name, StoreError, Survives,
    store::{
        Admit, Admitted, Answer, Answers, BoxFuture, Connector, Context, Count, CountAction, Counted, Evict,
        Evicted, ListQuery, Page, Renew, Renewed, Reply, Request, ResourceView, Store, Topic, Wake, Watch,
    },
};
use rusqlite::params;

use crate::{
    database::{Database, OpenOptions},
    settings::Settings,
    ticket::{Ticket, Urgency},
    wakes,
    work::topic_words,
    writer::Writer,
};

/// What the SQLite store can do.
pub static CAPABILITY: Capability = {
    let mut can = Capability::new("sqlite");
    can.between_processes = true;
    can.pushes = true;
    // Longer than the first lease of a grant: a wake here is handed over by the kernel or not at all. What may keep one
    // from its reader is noticed there: a full inbox, and the death of the writer that would have sent it.
    can.asks_again = Duration::from_millis(4500);
    can.min_lease = Duration::from_millis(100);
    can.max_lease = Duration::from_secs(366 * 24 * 3600);
    can.detachable = true;
    can.frees_the_dead_at_once = true;
    can.group_limit = 1024;
    can.client_crash = Survives::Fully;
    can.restart = Survives::Fully;
    can.data_loss = Survives::WithFence;
    can.clock_jump = Survives::Fully;
    can
};

/// The same for a keeper that hears no wakes.
static DEAF: LazyLock<Capability> = LazyLock::new(|| {
    let mut can = CAPABILITY.clone();
    can.asks_again = Capability::ASKS_AGAIN;
    can
});

/// Connects a keeper to the file that `settings` name.
pub(crate) fn connector(settings: Settings) -> Connector {
    Connector::new(move |context| async move {
        Ok(Arc::new(SqliteStore::connect(settings, context).await?) as Arc<dyn Store>)
    })
}

/// One keeper's connection to a file.
#[derive(Debug)]
struct SqliteStore {
    url: Arc<str>,
    id: String,
    keeper: KeeperId,
    writer: Arc<Writer>,
    life_line: Mutex<Option<OwnedFd>>,
    listener: Option<tokio::task::AbortHandle>,
}

impl SqliteStore {
    async fn connect(settings: Settings, context: Context) -> Result<Self, StoreError> {
        let writer_slot = Arc::new(OnceLock::<Weak<Writer>>::new());
        let (slot, wakes) = (writer_slot.clone(), context.wakes.clone());
        let bury = move |dead: KeeperId| {
            if let Some(writer) = slot.get().and_then(Weak::upgrade) {
                let wakes = wakes.clone();
                writer.send(Urgency::Usual, move |database| {
                    if let Err(error) = database.expire_if_crashed(dead) {
                        tracing::warn!(keeper = %dead, %error, "a dead process was not cleared away yet");
                    }
                    // It may have died between a grant and telling of it.
                    wakes.wake(Wake::Resync);
                });
            }
        };
        let file = settings.path.display().to_string();
        let opening = OpenOptions {
            path: settings.path,
            keeper: context.keeper,
            clock: context.clock,
            sink: context.wakes.clone(),
            limit: context.request_limit,
            background: context.background.clone(),
            on_crash: Box::new(bury),
        };
        let limit = context.request_limit;
        let (writer, opened) = Writer::start(file, limit, move || Database::open(opening)).await?;
        let writer = Arc::new(writer);
        // Set once, here.
        drop(writer_slot.set(Arc::downgrade(&writer)));
        let listen = |inbox| context.background.spawn(wakes::listen(inbox, context.wakes)).abort_handle();
        Ok(Self {
            url: settings.url,
            id: opened.id,
            keeper: context.keeper,
            writer,
            life_line: Mutex::new(Some(opened.life_line)),
            listener: opened.inbox.map(listen),
        })
    }
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
                let now = database.look(ticket)?.lease;
                return Ok(Answers { now, each: Vec::new() });
            }
            let (each, now) = database.apply(ticket, &group)?;
            Ok(Answers { now, each })
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
        let topic = topic.clone();
        if topic_words(&topic).is_none() {
            return Box::pin(std::future::ready(Ok(None)));
        }
        Box::pin(async move {
            let subscription = Subscription {
                writer: Arc::downgrade(&self.writer),
                keeper: self.keeper,
                topic: topic.clone(),
            };
            let keeper = self.keeper;
            self.writer
                .ask(Urgency::Usual, move |database, ticket| {
                    subscribe(
                        database,
                        ticket,
                        "INSERT OR IGNORE INTO watcher VALUES (?, ?, ?)",
                        keeper,
                        &topic,
                    )
                })
                .await?;
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

    fn close(&self) -> BoxFuture<'_, ()> {
        // Else the keeper would count as alive for as long as somebody has the store.
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

/// A keeper's interest in a topic.
struct Subscription {
    writer: Weak<Writer>,
    keeper: KeeperId,
    topic: Topic,
}

impl Drop for Subscription {
    fn drop(&mut self) {
        let Some(writer) = self.writer.upgrade() else { return };
        let (keeper, topic) = (self.keeper, self.topic.clone());
        writer.send(Urgency::Usual, move |database| {
            let end = "DELETE FROM watcher WHERE topic = ? AND name = ? AND keeper = ?";
            // One that stays costs its keeper a wake now and then, until it closes.
            drop(subscribe(database, &Ticket::new(), end, keeper, &topic));
        });
    }
}

fn subscribe(
    database: &mut Database,
    ticket: &Ticket,
    statement: &str,
    keeper: KeeperId,
    topic: &Topic,
) -> Result<(), StoreError> {
    let Some((word, name)) = topic_words(topic) else { return Ok(()) };
    // Whoever lost it would ask again after a while.
    database.write_unsynced(ticket, |work| {
        let mut statement = work.transaction().prepare_cached(statement)?;
        statement.execute(params![word, name.as_str(), keeper.to_string()])
    })?;
    Ok(())
}
