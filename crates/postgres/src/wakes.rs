//! Hears messages of other keepers and wakes the engine: one listening session, only while somebody waits or watches.
//!
//! Messages are hints. After the session was lost, one resync makes up for all that it missed. If messages do not arrive,
//! as behind a pooler, the keeper polls instead and says so.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use lockkeeper_core::{
    KeeperId, StoreError,
    store::{Wake, WakeSink},
    support::{self, background::Background, backoff::Backoff},
};
use lockkeeper_rows::wake_text;
use tokio::{
    sync::{mpsc, watch},
    time::{self, Instant},
};

use crate::{
    connection::{Connection, Opener},
    groups::unread,
    session::Session,
    trouble,
};

/// A message is shorter than what the server takes, which is less than 8000 bytes.
const LARGEST: usize = 7999;
/// How long a subscriber waits until the keeper hears. After that a resync makes up for what was missed.
const PATIENCE: Duration = Duration::from_millis(500);
/// How long the message may take that proves that messages arrive.
const PROOF: Duration = Duration::from_secs(2);
/// How often the listening session is asked for a sign of life, and how long it may take.
const BEAT: Duration = Duration::from_secs(15);
const BEAT_LIMIT: Duration = Duration::from_secs(5);
/// How often a keeper that cannot hear asks, and for how long it does so before it tries to hear again.
const POLL: Duration = Duration::from_millis(250);
const DEAF_FOR: Duration = Duration::from_secs(60);

/// The channel of a keeper.
fn channel(keeper: KeeperId) -> String {
    format!("lk_{keeper}")
}

/// The channels and texts of messages with these wakes.
pub(crate) fn texts(wakes: Vec<(KeeperId, Wake)>) -> (Vec<String>, Vec<String>) {
    let mut by_keeper = BTreeMap::<KeeperId, Vec<Wake>>::new();
    for (keeper, wake) in wakes {
        by_keeper.entry(keeper).or_default().push(wake);
    }
    let messages = by_keeper.iter().flat_map(|(keeper, wakes)| {
        wake_text::messages(wakes, LARGEST).into_iter().map(|text| (channel(*keeper), text))
    });
    messages.unzip()
}

/// Whether messages arrive.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Hearing {
    NotYet,
    Yes,
    /// Something between this keeper and the server swallows them: it polls.
    No,
}

/// The listener of a keeper.
pub(crate) struct Listener {
    interested: watch::Sender<usize>,
    hearing: watch::Receiver<Hearing>,
    task: Mutex<Option<Background>>,
}

/// Keeps the listener listening.
pub(crate) struct Interest(Arc<Listener>);

impl Listener {
    pub(crate) fn new(opener: Arc<Opener>, requests: Arc<Connection>, keeper: KeeperId) -> Arc<Self> {
        let (interested, counted) = watch::channel(0);
        let (said, hearing) = watch::channel(Hearing::NotYet);
        let background = opener.background.clone();
        let ears = Listening {
            wakes: opener.wakes.clone(),
            opener,
            requests,
            channel: channel(keeper),
            interested: counted,
            said,
            session: None,
        };
        let task = Mutex::new(Some(Background::spawn(&background, ears.run())));
        Arc::new(Self { interested, hearing, task })
    }

    /// Ends it.
    pub(crate) fn close(&self) {
        drop(support::lock(&self.task).take());
    }

    /// Somebody waits or watches until the result is dropped. Returns when messages arrive, or after a while.
    pub(crate) async fn interest(self: &Arc<Self>) -> Interest {
        self.interested.send_modify(|count| *count += 1);
        let interest = Interest(self.clone());
        let mut hearing = self.hearing.clone();
        let settled = hearing.wait_for(|hearing| *hearing != Hearing::NotYet);
        // Whoever does not wait for it is told to ask again once messages arrive.
        drop(time::timeout(PATIENCE, settled).await);
        interest
    }
}

impl Drop for Interest {
    fn drop(&mut self) {
        self.0.interested.send_modify(|count| *count -= 1);
    }
}

/// The listening session.
struct Ears {
    session: Session,
    messages: mpsc::UnboundedReceiver<String>,
}

impl Drop for Ears {
    /// Whatever it waited for, nobody cares any more.
    fn drop(&mut self) {
        self.session.cut();
    }
}

struct Listening {
    wakes: WakeSink,
    opener: Arc<Opener>,
    requests: Arc<Connection>,
    channel: String,
    interested: watch::Receiver<usize>,
    said: watch::Sender<Hearing>,
    /// A session that was proved to hear, while nobody cares.
    session: Option<Ears>,
}

/// Why listening ended.
enum End {
    NobodyCares,
    Lost(StoreError),
    Unproved,
    Closed,
}

impl Listening {
    async fn run(mut self) {
        let mut backoff = Backoff::new(Duration::from_millis(50), Duration::from_secs(5));
        loop {
            if self.interested.wait_for(|count| *count > 0).await.is_err() {
                return;
            }
            match self.listen(&mut backoff).await {
                End::NobodyCares => {}
                End::Closed => return,
                End::Lost(error) => {
                    tracing::debug!(%error, "the listening session was lost; it is opened again");
                    self.said.send_replace(Hearing::NotYet);
                    time::sleep(backoff.jittered()).await;
                }
                End::Unproved => {
                    tracing::warn!(
                        "messages from the server do not arrive, as behind a transaction pooler; this keeper polls"
                    );
                    self.said.send_replace(Hearing::No);
                    self.poll().await;
                }
            }
            self.said.send_replace(Hearing::NotYet);
        }
    }

    /// Listens for as long as somebody cares.
    async fn listen(&mut self, backoff: &mut Backoff) -> End {
        let mut ears = match self.open().await {
            Ok(Some(ears)) => ears,
            Ok(None) => return End::Unproved,
            Err(error) => return End::Lost(error),
        };
        backoff.reset();
        self.said.send_replace(Hearing::Yes);
        // Grants that were made before this moment were told to nobody.
        self.wakes.wake(Wake::Resync);
        let mut beat = time::interval_at(Instant::now() + BEAT, BEAT);
        let end = loop {
            tokio::select! {
                message = ears.messages.recv() => match message {
                    Some(text) => wake_text::read(text.as_bytes()).for_each(|wake| self.wakes.wake(wake)),
                    None => return End::Lost(trouble::closed()),
                },
                changed = self.interested.changed() => match changed {
                    Err(_) => return End::Closed,
                    Ok(()) if *self.interested.borrow_and_update() == 0 => break End::NobodyCares,
                    Ok(()) => {}
                },
                _ = beat.tick() => if let Err(error) = answered(ears.session.batch("SELECT 1")).await {
                    return End::Lost(error);
                },
            }
        };
        if answered(ears.session.batch(&format!("UNLISTEN \"{}\"", self.channel))).await.is_ok() {
            self.session = Some(ears);
        }
        end
    }

    /// Begins to listen; `None` if messages do not arrive.
    async fn open(&mut self) -> Result<Option<Ears>, StoreError> {
        let listen = format!("LISTEN \"{}\"", self.channel);
        if let Some(ears) = self.session.take()
            && !ears.session.is_closed()
        {
            answered(ears.session.batch(&listen)).await?;
            return Ok(Some(ears));
        }
        let (sender, messages) = mpsc::unbounded_channel();
        let open = time::timeout(BEAT_LIMIT, self.opener.open(Some(sender)));
        let session = open.await.map_err(|_| trouble::too_slow())??;
        answered(session.batch(&listen)).await?;
        let mut ears = Ears { session, messages };
        Ok(self.prove(&mut ears).await?.then_some(ears))
    }

    /// Whether a message of another session arrives while nothing is asked on this one: what a session tells itself proves
    /// nothing, because a pooler may hand it over with an answer.
    async fn prove(&self, ears: &mut Ears) -> Result<bool, StoreError> {
        let proof = format!("proof {:016x}", getrandom::u64().unwrap_or_default());
        let send = format!("SELECT pg_notify('{}', '{proof}')", self.channel);
        let sent = self.requests.run(move |session, _| {
            Box::pin(async move { session.rows(&send).await.map(drop).map_err(unread) })
        });
        sent.await?;
        let arrived = async {
            while let Some(text) = ears.messages.recv().await {
                if text == proof {
                    return true;
                }
            }
            false
        };
        Ok(time::timeout(PROOF, arrived).await.unwrap_or(false))
    }

    /// Asks about everything again and again, for as long as somebody cares.
    async fn poll(&mut self) {
        let until = Instant::now() + DEAF_FOR;
        while Instant::now() < until && *self.interested.borrow() > 0 {
            time::sleep(POLL).await;
            self.wakes.wake(Wake::Resync);
        }
    }
}

/// Waits for an answer on the listening session.
async fn answered(asked: impl Future<Output = Result<(), tokio_postgres::Error>>) -> Result<(), StoreError> {
    match time::timeout(BEAT_LIMIT, asked).await {
        Ok(answer) => answer.map_err(trouble::explain),
        Err(_) => Err(trouble::too_slow()),
    }
}

#[cfg(test)]
mod tests {
    use lockkeeper_core::{Name, store::Topic};

    use super::*;

    #[test]
    fn each_keeper_gets_its_wakes_in_messages_that_the_server_takes() {
        let (a, b) = (KeeperId::from_u128(1), KeeperId::from_u128(2));
        let changed = |number: usize| {
            let name = Name::new(format!("{number}-{}", "x".repeat(500))).expect("valid");
            Wake::Changed(Topic::Changes(name))
        };
        let wakes = (0..40).map(|number| (if number == 7 { b } else { a }, changed(number))).collect();
        let (channels, texts) = texts(wakes);
        assert!(channels.iter().all(|channel| channel.len() < 64));
        assert!(texts.iter().all(|text| text.len() < 8000));
        assert_eq!(channels.iter().filter(|other| **other == channel(b)).count(), 1);
        let wakes: usize = texts.iter().map(|text| wake_text::read(text.as_bytes()).count()).sum();
        assert_eq!((wakes, channels.len()), (40, texts.len()));
    }
}
