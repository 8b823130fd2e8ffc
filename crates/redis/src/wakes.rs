//! Hears messages from the servers and wakes the engine: one listener per server, for any number of resources.
//!
//! The listeners run on the caller's runtime, where the tasks wait that they wake, and on the keeper's if that runtime
//! is blocked or gone. Messages are hints: after a listener was away, one resync makes up for all that it missed.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    pin::pin,
    sync::{Arc, Mutex},
    time::Duration,
};

use lockkeeper_core::{
    StoreError,
    store::{Context, Topic, Wake, WakeSink},
    support::{self, backoff::Backoff},
};
use tokio::{sync::watch, task::JoinHandle};

use crate::{
    address::Address,
    codec::notice,
    layout::{self, Keys},
    messages::{Event, MessageConnection},
    runtime::ConnectionRuntime,
    servers::{Server, Servers},
};

/// How long a listener pauses that could not connect.
const SHORTEST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// The listeners of a keeper and its subscriptions.
pub(crate) struct Listeners {
    servers: Arc<Servers>,
    keys: Keys,
    wakes: WakeSink,
    runtime: ConnectionRuntime,
    /// With `wait=n` a grant counts only when replicas have it. Its waiter asks for that, so a message is only a hint.
    only_hints: bool,
    channels: Mutex<HashMap<String, Channel>>,
    /// Counts changes of `channels`.
    changes: watch::Sender<u64>,
    /// Which change each listener has carried out, by the number of its server.
    carried_out: watch::Sender<BTreeMap<usize, u64>>,
    tasks: Mutex<HashMap<usize, JoinHandle<()>>>,
}

/// A channel with at least one subscription.
struct Channel {
    slot: usize,
    subscriptions: usize,
    /// A subscriber did not wait for the server's confirmation, and may have missed a message.
    unconfirmed: bool,
}

impl Listeners {
    pub(crate) fn new(servers: &Arc<Servers>, keys: &Keys, context: &Context) -> Arc<Self> {
        Arc::new(Self {
            servers: servers.clone(),
            keys: keys.clone(),
            wakes: context.wakes.clone(),
            runtime: servers.runtime(),
            only_hints: servers.settings().wait > 0,
            channels: Mutex::default(),
            changes: watch::channel(0).0,
            carried_out: watch::channel(BTreeMap::new()).0,
            tasks: Mutex::default(),
        })
    }

    /// Subscribes to a channel until the subscription is dropped. Returns when the server has confirmed it, or after
    /// `patience`: the listener then goes on trying.
    pub(crate) async fn subscribe(self: &Arc<Self>, channel: String, patience: Duration) -> Subscription {
        let slot = layout::slot(&channel);
        let new = Channel { slot, subscriptions: 0, unconfirmed: false };
        support::lock(&self.channels).entry(channel.clone()).or_insert(new).subscriptions += 1;
        let subscription = Subscription { listeners: self.clone(), channel };
        self.changes.send_modify(|changes| *changes += 1);
        let change = *self.changes.borrow();
        let mut carried_out = self.carried_out.subscribe();
        self.start_listener(slot, false);
        // The slot may move to another server meanwhile.
        let confirmed = carried_out.wait_for(|carried_out| {
            let server = self.servers.map().of(slot).number;
            carried_out.get(&server).is_some_and(|done| *done >= change)
        });
        if tokio::time::timeout(patience, confirmed).await.is_err() {
            if let Some(channel) = support::lock(&self.channels).get_mut(&subscription.channel) {
                channel.unconfirmed = true;
            }
            self.check_runtime();
        }
        subscription
    }

    /// Starts the listener of the server that keeps `slot`, unless it runs. `missed` says whether there was a listener
    /// before, so messages may have been missed.
    fn start_listener(self: &Arc<Self>, slot: usize, missed: bool) {
        let server = self.servers.map().of(slot).clone();
        let mut tasks = support::lock(&self.tasks);
        if tasks.get(&server.number).is_none_or(JoinHandle::is_finished) {
            let (this, number) = (self.clone(), server.number);
            let listener = self.runtime.spawn(move || this.clone().listen(server.clone(), missed));
            tasks.insert(number, listener);
        }
    }

    /// A waiter asked instead of being told: the runtime of the listeners may be blocked or gone. If so, new listeners
    /// start on the keeper's runtime, and a resync makes up for what the old ones missed.
    pub(crate) fn check_runtime(self: &Arc<Self>) {
        let this = self.clone();
        self.runtime.check(move || {
            this.close();
            this.start_missing();
            this.wakes.wake(Wake::Resync);
        });
    }

    /// The channels that the listener of this server must be subscribed to.
    fn channels_of(&self, server: &Server) -> HashSet<String> {
        let map = self.servers.map();
        let channels = support::lock(&self.channels);
        let here = |(_, channel): &(&String, &Channel)| map.of(channel.slot).number == server.number;
        channels.iter().filter(here).map(|(name, _)| name.clone()).collect()
    }

    /// These channels are confirmed now. Returns whether a subscriber of any may have missed a message.
    fn confirm(&self, names: &[String]) -> bool {
        let mut channels = support::lock(&self.channels);
        let mut was_unconfirmed =
            |name| channels.get_mut(name).is_some_and(|channel| std::mem::take(&mut channel.unconfirmed));
        names.iter().filter(|name| was_unconfirmed(*name)).count() > 0
    }

    /// Starts a listener for every server that keeps a channel and has none.
    fn start_missing(self: &Arc<Self>) {
        let slots: HashSet<usize> =
            support::lock(&self.channels).values().map(|channel| channel.slot).collect();
        for slot in slots {
            self.start_listener(slot, true);
        }
    }

    /// The listener of one server: connects, listens, and connects again, until the server is gone.
    async fn listen(self: Arc<Self>, server: Arc<Server>, mut missed: bool) {
        let mut backoff = Backoff::new(SHORTEST_PAUSE, LONGEST_PAUSE);
        // Whether no failure was reported since the last success.
        let mut first_failure = true;
        loop {
            self.start_missing();
            if !self.servers.map().has(&server) {
                return self.forget(&server);
            }
            let ended = match self.connect(&server).await {
                Ok((connection, address)) => {
                    let mut listener = Listener { of: &self, server: &server, connection, missed };
                    let subscribed = || {
                        backoff.reset();
                        first_failure = true;
                    };
                    listener.run(&address, subscribed).await
                }
                Err(error) => Err(error),
            };
            match ended {
                Ok(why) => tracing::debug!(server = %server.address, why, "messages are interrupted"),
                Err(error) if first_failure => {
                    tracing::warn!(server = %server.address, %error, "no messages: waiters ask again by themselves");
                }
                Err(_) => {}
            }
            (missed, first_failure) = (true, false);
            if self.keys.is_sharded() {
                // The slot may have moved.
                self.servers.look_again();
            }
            let mut maps = self.servers.map_changes.subscribe();
            tokio::select! {
                () = tokio::time::sleep(backoff.jittered()) => {}
                // The server may be gone.
                _ = maps.wait_for(|_| !self.servers.map().has(&server)) => {}
            }
        }
    }

    /// The server is gone and its listener ends. Another server with its address has another number.
    fn forget(&self, server: &Server) {
        self.carried_out.send_modify(|carried_out| _ = carried_out.remove(&server.number));
        support::lock(&self.tasks).remove(&server.number);
    }

    async fn connect(self: &Arc<Self>, server: &Server) -> Result<(MessageConnection, Address), StoreError> {
        let opener = self.servers.opener();
        let address = server.location.locate().await?;
        let sharded = self.keys.is_sharded();
        let connection = if sharded || opener.settings().resp3 {
            let this = Arc::downgrade(self);
            let deliver = move |channel: &str, payload: &[u8]| {
                if let Some(this) = this.upgrade() {
                    this.deliver(channel, payload);
                }
            };
            MessageConnection::resp3(opener, &address, sharded, deliver).await?
        } else {
            MessageConnection::resp2(opener, &address).await?
        };
        Ok((connection, address))
    }

    /// Wakes the engine for a message.
    fn deliver(&self, channel: &str, payload: &[u8]) {
        let wake = if payload.is_empty() {
            self.keys.topic(channel).map(Wake::Changed)
        } else {
            let notice = std::str::from_utf8(payload).ok().and_then(|text| notice(&self.keys, text));
            notice.map(|(name, notice)| {
                self.servers.follow_master(notice.contender, notice.lease);
                if self.only_hints { Wake::Changed(Topic::Grants(name)) } else { Wake::Granted(name, notice) }
            })
        };
        if let Some(wake) = wake {
            self.wakes.wake(wake);
        }
    }

    pub(crate) fn close(&self) {
        for (_, listener) in support::lock(&self.tasks).drain() {
            listener.abort();
        }
    }
}

/// A listener while it is connected.
struct Listener<'a> {
    of: &'a Arc<Listeners>,
    server: &'a Server,
    connection: MessageConnection,
    /// Whether messages may have been missed since the last resync.
    missed: bool,
}

impl Listener<'_> {
    /// Keeps the connection to `address` subscribed and delivers its messages until it ends. Returns why it ended, or
    /// why it could not subscribe. Calls `subscribed` whenever the server has confirmed all subscriptions.
    async fn run(
        &mut self,
        address: &Address,
        mut subscribed: impl FnMut(),
    ) -> Result<&'static str, StoreError> {
        let Self { of, server, connection, missed } = self;
        let (mut changes, mut maps) = (of.changes.subscribe(), of.servers.map_changes.subscribe());
        let mut master_moves = pin!(of.servers.until_master_moves(address));
        let mut channels = HashSet::new();
        let mut map_changed = false;
        loop {
            let change = *changes.borrow_and_update();
            maps.borrow_and_update();
            let wanted = of.channels_of(server);
            let new: Vec<String> = wanted.difference(&channels).cloned().collect();
            let old: Vec<String> = channels.difference(&wanted).cloned().collect();
            channels = wanted;
            connection.subscribe(&new, &old, of.servers.limit).await?;
            subscribed();
            // Channels that came from another server may have missed a message in between.
            let missed_some = of.confirm(&new) || (map_changed && !new.is_empty());
            if std::mem::take(missed) || missed_some {
                of.wakes.wake(Wake::Resync);
            }
            of.carried_out.send_modify(|carried_out| _ = carried_out.insert(server.number, change));
            map_changed = loop {
                tokio::select! {
                    biased;
                    event = connection.next(&channels) => match event {
                        Event::Message(channel, payload) => of.deliver(&channel, &payload),
                        Event::Ended => return Ok("the connection ended"),
                    },
                    () = &mut master_moves => return Ok("the master is elsewhere"),
                    _ = changes.changed() => break false,
                    _ = maps.changed() => {
                        if !of.servers.map().has(server) {
                            return Ok("the server is gone");
                        }
                        of.start_missing();
                        break true;
                    }
                }
            };
        }
    }
}

/// A subscription to a channel; ends when dropped.
pub(crate) struct Subscription {
    listeners: Arc<Listeners>,
    channel: String,
}

impl Drop for Subscription {
    fn drop(&mut self) {
        let mut channels = support::lock(&self.listeners.channels);
        if let Some(channel) = channels.get_mut(&self.channel) {
            channel.subscriptions -= 1;
            if channel.subscriptions == 0 {
                channels.remove(&self.channel);
            }
        }
        drop(channels);
        self.listeners.changes.send_modify(|changes| *changes += 1);
    }
}
