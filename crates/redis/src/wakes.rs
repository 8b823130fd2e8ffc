//! Messages from the servers: one listener per server, for any number of resources.
//!
//! A listener lives where its messages are waited for, so that they change threads as little as can be, and on the
//! keeper's thread should that runtime be blocked or gone.
//!
//! Messages are hints. Whatever is lost while a listener is away is made up for by one resync when it is back.

use lockkeeper_core::support;
use std::{
    collections::{BTreeMap, HashMap, HashSet},
    future::poll_fn,
    pin::{Pin, pin},
    sync::{Arc, Mutex, MutexGuard, Weak},
    time::Duration,
};

use futures_core::Stream;
use lockkeeper_core::{
    StoreError,
    store::{Context, Topic, Wake, WakeSink},
};
use redis::{
    Pipeline, PushInfo, PushKind, Value,
    aio::{AsyncPushSender, MultiplexedConnection, PubSubSink, PubSubStream, SendError},
};
use tokio::{
    sync::{mpsc, watch},
    task::JoinHandle,
};

use crate::{
    codec,
    connect::checked,
    connection::jittered,
    layout::{self, Keys},
    runtime::ConnectionRuntime,
    servers::{Server, Servers},
    settings::Address,
    trouble,
};

/// How long a listener that could not connect waits: twice as long each time.
const SHORTEST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

/// So many channels are subscribed to at a time.
const TOGETHER: usize = 256;

/// All that a keeper listens to.
pub(crate) struct Listeners {
    servers: Arc<Servers>,
    keys: Keys,
    wakes: WakeSink,
    runtime: ConnectionRuntime,
    /// With `wait=n` a grant counts only when replicas have it, which its waiter must see to.
    only_hints: bool,
    wanted: Mutex<HashMap<String, Channel>>,
    /// Counts changes of what is wanted.
    orders: watch::Sender<u64>,
    /// Which count of orders each server's listener has carried out, by the server's number.
    done: watch::Sender<BTreeMap<usize, u64>>,
    tasks: Mutex<HashMap<usize, JoinHandle<()>>>,
}

/// A channel that is listened to.
struct Channel {
    slot: usize,
    /// For how many it is there.
    users: usize,
    /// Somebody did not wait until it was there, and may have missed something.
    late: bool,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    support::lock(mutex)
}

impl Listeners {
    pub(crate) fn new(servers: &Arc<Servers>, keys: &Keys, context: &Context) -> Arc<Self> {
        Arc::new(Self {
            servers: servers.clone(),
            keys: keys.clone(),
            wakes: context.wakes.clone(),
            runtime: servers.runtime(),
            only_hints: servers.opener.settings().wait > 0,
            wanted: Mutex::default(),
            orders: watch::channel(0).0,
            done: watch::channel(BTreeMap::new()).0,
            tasks: Mutex::default(),
        })
    }

    /// Listens to a channel until the subscription is dropped. Returns when the server has confirmed it, or after
    /// `patience`: then the listener goes on trying.
    pub(crate) async fn listen(self: &Arc<Self>, channel: String, patience: Duration) -> Subscription {
        let slot = layout::slot(&channel);
        lock(&self.wanted).entry(channel.clone()).or_insert(Channel { slot, users: 0, late: false }).users +=
            1;
        let subscription = Subscription { listeners: self.clone(), channel };
        self.orders.send_modify(|orders| *orders += 1);
        let order = *self.orders.borrow();
        let mut done = self.done.subscribe();
        self.start_listener(slot, false);
        // The slot may move to another server meanwhile.
        let confirmed = done.wait_for(|done| {
            let server = self.servers.map().of(slot).number;
            done.get(&server).is_some_and(|done| *done >= order)
        });
        if tokio::time::timeout(patience, confirmed).await.is_err() {
            // The channel is only late, and a resync will make up for it.
            if let Some(wanted) = lock(&self.wanted).get_mut(&subscription.channel) {
                wanted.late = true;
            }
            self.check_runtime();
        }
        subscription
    }

    /// `missed` says whether there was a listener before, who may have missed something.
    fn start_listener(self: &Arc<Self>, slot: usize, missed: bool) {
        let server = self.servers.map().of(slot).clone();
        let mut tasks = lock(&self.tasks);
        if tasks.get(&server.number).is_none_or(JoinHandle::is_finished) {
            let (listeners, number) = (self.clone(), server.number);
            let listener = self.runtime.spawn(move || listeners.clone().listener(server.clone(), missed));
            tasks.insert(number, listener);
        }
    }

    /// Somebody asks instead of being told: perhaps the runtime of the tasks is blocked, or nobody drives it any more.
    /// Then new ones listen on the keeper's thread, and ask about all that the old ones may have missed.
    pub(crate) fn check_runtime(self: &Arc<Self>) {
        let listeners = self.clone();
        self.runtime.check_runtime(move || {
            listeners.close();
            listeners.start_missing();
            listeners.wakes.wake(Wake::Resync);
        });
    }

    /// What the listener of this server must be subscribed to.
    fn wanted_of(&self, server: &Server) -> HashSet<String> {
        let map = self.servers.map();
        let wanted = lock(&self.wanted);
        let here = |(_, wanted): &(&String, &Channel)| map.of(wanted.slot).number == server.number;
        wanted.iter().filter(here).map(|(name, _)| name.clone()).collect()
    }

    /// Whether anybody may have missed something on these channels, because it did not wait for them; they are there now.
    fn were_late(&self, channels: &[String]) -> bool {
        let mut wanted = lock(&self.wanted);
        let mut was_late =
            |channel| wanted.get_mut(channel).is_some_and(|wanted| std::mem::take(&mut wanted.late));
        channels.iter().filter(|channel| was_late(*channel)).count() > 0
    }

    /// Sees to it that every server that keeps something wanted has a listener.
    fn start_missing(self: &Arc<Self>) {
        let slots: HashSet<usize> = lock(&self.wanted).values().map(|wanted| wanted.slot).collect();
        for slot in slots {
            self.start_listener(slot, true);
        }
    }

    async fn listener(self: Arc<Self>, server: Arc<Server>, mut missed: bool) {
        let mut pause = Duration::ZERO;
        loop {
            self.start_missing();
            if !self.servers.map().has(&server) {
                return self.forget(&server);
            }
            let ended = match self.connect(&server).await {
                Ok((mut connection, place)) => {
                    self.serve(&server, &mut connection, &place, &mut missed, &mut pause).await
                }
                Err(error) => Err(error),
            };
            match ended {
                Ok(why) => tracing::debug!(server = %server.address, why, "messages are interrupted"),
                Err(error) if pause.is_zero() => {
                    tracing::warn!(server = %server.address, %error, "no messages: waiters ask again by themselves");
                }
                Err(_) => {}
            }
            missed = true;
            if self.keys.is_sharded() {
                // Perhaps the slot has moved.
                self.servers.look_again();
            }
            pause = (pause * 2).clamp(SHORTEST_PAUSE, LONGEST_PAUSE);
            let mut maps = self.servers.changes.subscribe();
            tokio::select! {
                () = tokio::time::sleep(jittered(pause)) => {}
                // Perhaps the server is gone.
                _ = maps.wait_for(|_| !self.servers.map().has(&server)) => {}
            }
        }
    }

    /// The listener of a server that is gone has ended. Another server with its address has another number.
    fn forget(&self, server: &Server) {
        self.done.send_modify(|done| _ = done.remove(&server.number));
        lock(&self.tasks).remove(&server.number);
    }

    async fn connect(self: &Arc<Self>, server: &Server) -> Result<(MessageConnection, Address), StoreError> {
        let opener = &self.servers.opener;
        let place = server.location.locate().await?;
        let sharded = self.keys.is_sharded();
        let connection = if sharded || opener.settings().resp3 {
            let (others, pushes) = mpsc::unbounded_channel();
            let post = Forward { listeners: Arc::downgrade(self), others };
            let (connection, driver) = opener.requests(&place, Some(Box::new(post))).await?;
            MessageConnection::Resp3 { connection, driver, pushes, sharded }
        } else {
            let (sink, stream) = opener.messages(&place).await?.split();
            MessageConnection::Resp2(sink, stream)
        };
        Ok((connection, place))
    }

    /// Keeps one connection subscribed and passes on what it brings, until it ends; says why it did, or why it could not
    /// subscribe. Who can has no reason to pause.
    async fn serve(
        self: &Arc<Self>,
        server: &Server,
        connection: &mut MessageConnection,
        place: &Address,
        missed: &mut bool,
        pause: &mut Duration,
    ) -> Result<&'static str, StoreError> {
        let (mut orders, mut maps) = (self.orders.subscribe(), self.servers.changes.subscribe());
        let mut elsewhere = pin!(self.servers.until_elsewhere(place));
        let mut have = HashSet::new();
        let mut redrawn = false;
        loop {
            let order = *orders.borrow_and_update();
            maps.borrow_and_update();
            let wanted = self.wanted_of(server);
            let new: Vec<String> = wanted.difference(&have).cloned().collect();
            let old: Vec<String> = have.difference(&wanted).cloned().collect();
            have = wanted;
            connection.subscribe(&new, &old, self.servers.limit).await?;
            *pause = Duration::ZERO;
            // Those that another server had until now may have missed something in between.
            let late = self.were_late(&new) || (redrawn && !new.is_empty());
            if std::mem::take(missed) || late {
                self.wakes.wake(Wake::Resync);
            }
            self.done.send_modify(|done| _ = done.insert(server.number, order));
            redrawn = loop {
                tokio::select! {
                    biased;
                    message = connection.next(&have) => match message {
                        Some((channel, payload)) => self.tell(&channel, &payload),
                        None => return Ok("the connection ended"),
                    },
                    () = &mut elsewhere => return Ok("the master is elsewhere"),
                    _ = orders.changed() => break false,
                    _ = maps.changed() => {
                        if !self.servers.map().has(server) {
                            return Ok("the server is gone");
                        }
                        self.start_missing();
                        break true;
                    }
                }
            };
        }
    }

    fn tell(&self, channel: &str, payload: &[u8]) {
        let wake = if payload.is_empty() {
            self.keys.topic(channel).map(Wake::Changed)
        } else {
            let notice = std::str::from_utf8(payload).ok().and_then(|text| codec::notice(&self.keys, text));
            notice.map(|(name, notice)| {
                self.servers.keep_watch(notice.contender, notice.lease);
                if self.only_hints { Wake::Changed(Topic::Grants(name)) } else { Wake::Granted(name, notice) }
            })
        };
        if let Some(wake) = wake {
            self.wakes.wake(wake);
        }
    }

    pub(crate) fn close(&self) {
        for (_, listener) in lock(&self.tasks).drain() {
            listener.abort();
        }
    }
}

/// Interest in a channel; ends when dropped.
pub(crate) struct Subscription {
    listeners: Arc<Listeners>,
    channel: String,
}

impl Drop for Subscription {
    fn drop(&mut self) {
        let mut wanted = lock(&self.listeners.wanted);
        if let Some(of) = wanted.get_mut(&self.channel) {
            of.users -= 1;
            if of.users == 0 {
                wanted.remove(&self.channel);
            }
        }
        drop(wanted);
        self.listeners.orders.send_modify(|orders| *orders += 1);
    }
}

async fn within(
    limit: Duration,
    asked: impl Future<Output = Result<(), StoreError>>,
) -> Result<(), StoreError> {
    tokio::time::timeout(limit, asked).await.unwrap_or_else(|_| Err(trouble::too_late("the server")))
}

/// A connection that messages come from.
enum MessageConnection {
    /// With RESP2.
    Resp2(PubSubSink, PubSubStream),
    /// With RESP3, messages are pushed beside replies, and passed on where they are read; what else is pushed comes here.
    /// A server that has sharded messages speaks it.
    Resp3 {
        connection: MultiplexedConnection,
        driver: JoinHandle<()>,
        pushes: mpsc::UnboundedReceiver<PushInfo>,
        sharded: bool,
    },
}

/// Passes messages on in the task that reads them, so that no other has to be woken for it.
struct Forward {
    listeners: Weak<Listeners>,
    others: mpsc::UnboundedSender<PushInfo>,
}

impl AsyncPushSender for Forward {
    fn send(&self, push: PushInfo) -> Result<(), SendError> {
        if !matches!(push.kind, PushKind::Message | PushKind::SMessage) {
            return self.others.send(push).map_err(|_| SendError);
        }
        if let [Value::BulkString(channel), Value::BulkString(payload)] = &push.data[..]
            && let (Some(listeners), Ok(channel)) = (self.listeners.upgrade(), std::str::from_utf8(channel))
        {
            listeners.tell(channel, payload);
        }
        Ok(())
    }
}

impl MessageConnection {
    /// Subscribes to `new` and no longer to `old`, some at a time, for each of which the server has `limit`.
    async fn subscribe(&mut self, new: &[String], old: &[String], limit: Duration) -> Result<(), StoreError> {
        for some in new.chunks(TOGETHER) {
            within(limit, self.change(some, true)).await?;
        }
        for some in old.chunks(TOGETHER) {
            within(limit, self.change(some, false)).await?;
        }
        Ok(())
    }

    async fn change(&mut self, channels: &[String], wanted: bool) -> Result<(), StoreError> {
        let broken = |error: redis::RedisError| match error.code() {
            Some(_) if !error.is_io_error() => trouble::not_connected("the server", error),
            _ => trouble::unanswered("the server", error),
        };
        match self {
            Self::Resp2(sink, _) if wanted => sink.subscribe(channels).await.map_err(broken),
            Self::Resp2(sink, _) => sink.unsubscribe(channels).await.map_err(broken),
            Self::Resp3 { connection, sharded, .. } => {
                // One each, since one command is for one slot.
                let order = match (*sharded, wanted) {
                    (true, true) => "SSUBSCRIBE",
                    (true, false) => "SUNSUBSCRIBE",
                    (false, true) => "SUBSCRIBE",
                    (false, false) => "UNSUBSCRIBE",
                };
                let mut orders = Pipeline::with_capacity(channels.len());
                for channel in channels {
                    orders.cmd(order).arg(channel);
                }
                let answers = connection.send_packed_commands(&orders, 0, channels.len()).await;
                for answer in answers.map_err(broken)? {
                    checked(answer).map_err(|error| trouble::refused(&error))?;
                }
                Ok(())
            }
        }
    }

    /// The next message; `None` if the connection is at its end, or no longer gets what it `has` asked for.
    async fn next(&mut self, has: &HashSet<String>) -> Option<(String, Vec<u8>)> {
        match self {
            Self::Resp2(_, stream) => {
                let message = poll_fn(|context| Pin::new(&mut *stream).poll_next(context)).await?;
                Some((message.get_channel_name().to_owned(), message.get_payload_bytes().to_vec()))
            }
            Self::Resp3 { pushes, .. } => loop {
                let PushInfo { kind, data } = pushes.recv().await?;
                let is_wanted = |value: &Value| match value {
                    Value::BulkString(channel) => {
                        std::str::from_utf8(channel).is_ok_and(|name| has.contains(name))
                    }
                    _ => false,
                };
                match kind {
                    PushKind::Disconnection => return None,
                    // The slot has moved away, and the server says so. That a subscription has ended because this listener
                    // wanted it is read before it can be wanted anew: the word comes ahead of the reply.
                    PushKind::SUnsubscribe if data.first().is_some_and(is_wanted) => return None,
                    _ => {}
                }
            },
        }
    }
}

impl Drop for MessageConnection {
    fn drop(&mut self) {
        if let Self::Resp3 { driver, .. } = self {
            driver.abort();
        }
    }
}
