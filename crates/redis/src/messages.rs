//! A connection that a server pushes messages over: subscribes to channels and passes their messages on.

use std::{collections::HashSet, future::poll_fn, pin::Pin, time::Duration};

use futures_core::Stream;
use lockkeeper_core::StoreError;
use redis::{
    Pipeline, PushInfo, PushKind, RedisError, Value,
    aio::{AsyncPushSender, PubSubSink, PubSubStream, SendError},
};
use tokio::sync::mpsc;

use crate::{
    address::Address,
    opener::{Driven, Opener, checked},
    trouble,
};

/// How many channels one request subscribes to.
const CHANNELS_PER_REQUEST: usize = 256;

/// An event on a connection.
pub(crate) enum Event {
    /// A message, by channel and content.
    Message(String, Vec<u8>),
    /// The connection has ended, or lost one of its subscriptions.
    Ended,
}

/// A connection that messages come over.
pub(crate) enum MessageConnection {
    Resp2(PubSubSink, PubSubStream),
    /// With RESP3, the task that reads the connection passes messages on; all other pushes come here. Every server that
    /// has sharded channels speaks RESP3.
    Resp3 {
        open: Driven,
        others: mpsc::UnboundedReceiver<PushInfo>,
        sharded: bool,
    },
}

impl MessageConnection {
    /// Opens a connection with RESP2, whose messages are read with [`MessageConnection::next`].
    pub(crate) async fn resp2(opener: &Opener, address: &Address) -> Result<Self, StoreError> {
        let (sink, stream) = opener.for_messages(address).await?.split();
        Ok(Self::Resp2(sink, stream))
    }

    /// Opens a connection with RESP3, whose messages are given to `deliver`: by channel and content.
    pub(crate) async fn resp3(
        opener: &Opener,
        address: &Address,
        sharded: bool,
        deliver: impl Fn(&str, &[u8]) + Send + Sync + 'static,
    ) -> Result<Self, StoreError> {
        let (sender, others) = mpsc::unbounded_channel();
        let pushes = Box::new(Deliver { deliver, others: sender });
        let open = opener.for_requests(address, Some(pushes)).await?;
        Ok(Self::Resp3 { open, others, sharded })
    }

    /// Subscribes to `new` and unsubscribes from `old`. The server has `limit` for each request.
    pub(crate) async fn subscribe(
        &mut self,
        new: &[String],
        old: &[String],
        limit: Duration,
    ) -> Result<(), StoreError> {
        for some in new.chunks(CHANNELS_PER_REQUEST) {
            within(limit, self.add(some)).await?;
        }
        for some in old.chunks(CHANNELS_PER_REQUEST) {
            within(limit, self.remove(some)).await?;
        }
        Ok(())
    }

    async fn add(&mut self, channels: &[String]) -> Result<(), StoreError> {
        match self {
            Self::Resp2(sink, _) => sink.subscribe(channels).await.map_err(not_subscribed),
            Self::Resp3 { open, sharded, .. } => {
                request(open, if *sharded { "SSUBSCRIBE" } else { "SUBSCRIBE" }, channels).await
            }
        }
    }

    async fn remove(&mut self, channels: &[String]) -> Result<(), StoreError> {
        match self {
            Self::Resp2(sink, _) => sink.unsubscribe(channels).await.map_err(not_subscribed),
            Self::Resp3 { open, sharded, .. } => {
                request(open, if *sharded { "SUNSUBSCRIBE" } else { "UNSUBSCRIBE" }, channels).await
            }
        }
    }

    /// The next event of a connection that is subscribed to `channels`. With RESP3 it is never a message.
    pub(crate) async fn next(&mut self, channels: &HashSet<String>) -> Event {
        match self {
            Self::Resp2(_, stream) => {
                match poll_fn(|context| Pin::new(&mut *stream).poll_next(context)).await {
                    Some(message) => Event::Message(
                        message.get_channel_name().to_owned(),
                        message.get_payload_bytes().to_vec(),
                    ),
                    None => Event::Ended,
                }
            }
            Self::Resp3 { others, .. } => {
                while let Some(push) = others.recv().await {
                    if ends(&push, channels) {
                        break;
                    }
                }
                Event::Ended
            }
        }
    }
}

/// Whether a push says that the connection has ended, or that the server dropped a subscription because its slot has
/// moved.
///
/// The push that confirms an `SUNSUBSCRIBE` of this client comes before the reply to it, and so before the client can
/// subscribe to the channel again.
fn ends(push: &PushInfo, channels: &HashSet<String>) -> bool {
    let is_subscribed = |value: &Value| match value {
        Value::BulkString(channel) => std::str::from_utf8(channel).is_ok_and(|name| channels.contains(name)),
        _ => false,
    };
    match push.kind {
        PushKind::Disconnection => true,
        PushKind::SUnsubscribe => push.data.first().is_some_and(is_subscribed),
        _ => false,
    }
}

/// Sends one command for each channel, since one command is for one slot.
async fn request(open: &mut Driven, command: &str, channels: &[String]) -> Result<(), StoreError> {
    let mut commands = Pipeline::with_capacity(channels.len());
    for channel in channels {
        commands.cmd(command).arg(channel);
    }
    let answers = open.connection.send_packed_commands(&commands, 0, channels.len()).await;
    for answer in answers.map_err(not_subscribed)? {
        checked(answer).map_err(|error| trouble::refused(&error))?;
    }
    Ok(())
}

fn not_subscribed(error: RedisError) -> StoreError {
    match error.code() {
        Some(_) if !error.is_io_error() => trouble::not_connected("the server", error),
        _ => trouble::unanswered("the server", error),
    }
}

async fn within(
    limit: Duration,
    request: impl Future<Output = Result<(), StoreError>>,
) -> Result<(), StoreError> {
    tokio::time::timeout(limit, request).await.unwrap_or_else(|_| Err(trouble::too_late("the server")))
}

/// Delivers messages in the task that reads them, so no other task has to be woken for it.
struct Deliver<D> {
    deliver: D,
    others: mpsc::UnboundedSender<PushInfo>,
}

impl<D: Fn(&str, &[u8]) + Send + Sync + 'static> AsyncPushSender for Deliver<D> {
    fn send(&self, push: PushInfo) -> Result<(), SendError> {
        if !matches!(push.kind, PushKind::Message | PushKind::SMessage) {
            return self.others.send(push).map_err(|_| SendError);
        }
        if let [Value::BulkString(channel), Value::BulkString(payload)] = &push.data[..]
            && let Ok(channel) = std::str::from_utf8(channel)
        {
            (self.deliver)(channel, payload);
        }
        Ok(())
    }
}
