//! Hears messages of other keepers and wakes the engine: on the session for waits, and only while somebody waits or watches.
//!
//! Messages are hints. After the session was lost, one resync makes up for all that it missed. If messages do not arrive,
//! as behind a pooler, or there is no session for them, the keeper polls instead and says so.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use lockkeeper_core::{
    KeeperId, StoreError,
    store::{Wake, WakeSink},
    support::{self, background::Background, backoff::Backoff, percent},
};
use lockkeeper_rows::wake_text;
use tokio::{
    sync::watch,
    time::{self, Instant},
};

use crate::{
    connection::{Connection, Failure, Opener, Worked, Working},
    flights::unread,
    session::{Messages, Session},
    settings::Statements,
    trouble,
};

/// A message is shorter than the server's limit, which is less than 8000 bytes. It is ASCII, since a name that the
/// database's encoding does not know would make the server refuse all messages of a flight. So a byte may become three.
const LARGEST: usize = 7999;
/// How long a subscriber waits until the keeper hears. After that a resync makes up for all that it missed.
const PATIENCE: Duration = Duration::from_millis(500);
/// How long the message may take that proves that messages arrive. Nothing else is done on the session meanwhile.
const PROOF: Duration = Duration::from_secs(1);
/// After how long without any answer the listening session is asked for a sign of life.
const BEAT: Duration = Duration::from_secs(15);
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
        let mut texts: Vec<_> = wake_text::messages(wakes, LARGEST).iter().map(|text| encode(text)).collect();
        if texts.iter().any(|text| text.len() > LARGEST) {
            texts = wake_text::messages(wakes, LARGEST / 3).iter().map(|text| encode(text)).collect();
        }
        texts.into_iter().map(|text| (channel(*keeper), text))
    });
    messages.unzip()
}

fn encode(text: &str) -> String {
    percent::encode(text, |_, byte| byte.is_ascii() && byte != b'%')
}

/// The wakes in a message.
fn wakes_in(text: &str) -> Vec<Wake> {
    let text = percent::decode(text).unwrap_or_default();
    wake_text::read(text.as_bytes()).collect()
}

/// Whether messages arrive.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Hearing {
    NotYet,
    Yes,
    /// This keeper polls: something between it and the server swallows them, or there is no session for them.
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
    pub(crate) fn new(
        opener: &Opener,
        requests: Arc<Connection>,
        waits: Arc<Connection>,
        keeper: KeeperId,
    ) -> Arc<Self> {
        let (interested, counted) = watch::channel(0);
        let (said, hearing) = watch::channel(Hearing::NotYet);
        let listening = Listening {
            wakes: opener.wakes.clone(),
            is_pooled: opener.settings.statements == Statements::Unnamed,
            requests,
            waits,
            channel: channel(keeper),
            interested: counted,
            said,
            proven: None,
        };
        let task = Mutex::new(Some(Background::spawn(&opener.background, listening.run())));
        Arc::new(Self { interested, hearing, task })
    }

    /// Ends it.
    pub(crate) fn close(&self) {
        drop(support::lock(&self.task).take());
    }

    /// Keeps the listener listening until the result is dropped. Returns when messages arrive, or after a while.
    pub(crate) async fn interest(self: &Arc<Self>) -> Interest {
        self.interested.send_modify(|count| *count += 1);
        let interest = Interest(self.clone());
        let mut hearing = self.hearing.clone();
        let settled = hearing.wait_for(|hearing| *hearing != Hearing::NotYet);
        // A caller that gives up waiting is told to ask again once messages arrive.
        drop(time::timeout(PATIENCE, settled).await);
        interest
    }
}

impl Drop for Interest {
    fn drop(&mut self) {
        self.0.interested.send_modify(|count| *count -= 1);
    }
}

/// A session that was proved to hear, and the messages that it hears.
struct ProvenSession {
    session: Arc<Session>,
    messages: Messages,
}

struct Listening {
    wakes: WakeSink,
    /// A pooler is between. It would leave listening any server process that happens to be the next.
    is_pooled: bool,
    requests: Arc<Connection>,
    waits: Arc<Connection>,
    channel: String,
    interested: watch::Receiver<usize>,
    said: watch::Sender<Hearing>,
    /// Kept while nobody cares.
    proven: Option<ProvenSession>,
}

/// The reason why listening ended.
enum End {
    NobodyCares,
    Lost(StoreError),
    Unproved,
    Closed,
}

impl Listening {
    async fn run(mut self) {
        let mut backoff = Backoff::new(Duration::from_millis(50), Duration::from_secs(5));
        let mut failures = 0;
        while self.interested.wait_for(|count| *count > 0).await.is_ok() {
            if self.is_pooled {
                self.says_no(
                    "a pooler is between, so messages of other keepers do not arrive; this keeper polls",
                );
                self.poll(Duration::MAX).await;
                continue;
            }
            match self.listen(&mut backoff, &mut failures).await {
                End::Closed => return,
                End::NobodyCares => _ = self.said.send_replace(Hearing::NotYet),
                End::Lost(error) if failures == 0 => {
                    tracing::debug!(%error, "the listening session was lost; it is opened again");
                    self.said.send_replace(Hearing::NotYet);
                    failures = 1;
                }
                End::Lost(error) => {
                    self.says_no(&format!("this keeper cannot listen for messages, so it polls: {error}"));
                    self.poll(backoff.jittered()).await;
                }
                End::Unproved => {
                    self.says_no(
                        "messages from the server do not arrive, as behind a pooler; this keeper polls",
                    );
                    self.poll(DEAF_FOR).await;
                }
            }
        }
    }

    /// Says that messages do not arrive, and why, once until they do again.
    fn says_no(&self, why: &str) {
        if self.said.send_replace(Hearing::No) != Hearing::No {
            tracing::warn!("{why}");
        }
    }

    /// Listens for as long as somebody cares.
    async fn listen(&mut self, backoff: &mut Backoff, failures: &mut u32) -> End {
        let mut proven = match self.open().await {
            Ok(Some(proven)) => proven,
            Ok(None) => return End::Unproved,
            Err(error) => return End::Lost(error),
        };
        backoff.reset();
        *failures = 0;
        self.said.send_replace(Hearing::Yes);
        // Grants that were made before this moment were told to nobody.
        self.wakes.wake(Wake::Resync);
        let end = loop {
            tokio::select! {
                message = proven.messages.recv() => match message {
                    Some(text) => wakes_in(&text).into_iter().for_each(|wake| self.wakes.wake(wake)),
                    None => return End::Lost(trouble::closed()),
                },
                changed = self.interested.changed() => match changed {
                    Err(_) => return End::Closed,
                    Ok(()) if *self.interested.borrow_and_update() == 0 => break End::NobodyCares,
                    Ok(()) => {}
                },
                () = time::sleep(BEAT.saturating_sub(self.waits.quiet_for())) => {
                    if self.waits.quiet_for() >= BEAT && let Err(error) = self.tell("SELECT 1".to_owned()).await {
                        return End::Lost(error);
                    }
                }
            }
        };
        if self.tell(format!("UNLISTEN \"{}\"", self.channel)).await.is_ok() {
            self.proven = Some(proven);
        }
        end
    }

    /// Has the session do something between other work, because inside of a transaction it would be a part of that.
    async fn tell(&self, statement: String) -> Result<(), StoreError> {
        let work = move |session: Arc<Session>, _| -> Working<()> {
            Box::pin(async move { session.batch(&statement).await.map_err(unread) })
        };
        self.waits.run(work).await
    }

    /// Begins to listen; `None` if messages do not arrive.
    async fn open(&mut self) -> Result<Option<ProvenSession>, StoreError> {
        let (channel, requests, before) = (self.channel.clone(), self.requests.clone(), self.proven.take());
        let work = move |session: Arc<Session>, _| -> Working<Option<ProvenSession>> {
            Box::pin(async move { listen_on(session, &channel, &requests, before).await })
        };
        self.waits.run(work).await
    }

    /// Asks about everything again and again, for this long or for as long as somebody cares.
    async fn poll(&mut self, length: Duration) {
        let started = Instant::now();
        loop {
            let left = length.saturating_sub(started.elapsed());
            if left.is_zero() || *self.interested.borrow_and_update() == 0 {
                return;
            }
            time::sleep(POLL.min(left)).await;
            // While the server is down, waiters ask as often as the engine wants.
            if self.requests.works() {
                self.wakes.wake(Wake::Resync);
            }
        }
    }
}

/// Begins to listen on a session, and has it proved that messages arrive, unless that was done before. A session on which
/// that fails is closed.
async fn listen_on(
    session: Arc<Session>,
    channel: &str,
    requests: &Connection,
    before: Option<ProvenSession>,
) -> Worked<Option<ProvenSession>> {
    session.batch(&format!("LISTEN \"{channel}\"")).await.map_err(closes)?;
    if let Some(proven) = before.filter(|proven| Arc::ptr_eq(&proven.session, &session)) {
        return Ok(Some(proven));
    }
    let Some(messages) = session.take_messages() else { return Err(Failure::closes(trouble::closed())) };
    let mut proven = ProvenSession { session, messages };
    if prove(channel, requests, &mut proven).await.map_err(Failure::closes)? {
        return Ok(Some(proven));
    }
    proven.session.cut();
    Ok(None)
}

fn closes(error: tokio_postgres::Error) -> Failure {
    Failure::closes(trouble::explain(error))
}

/// Whether a message of another session arrives while nothing is asked on this one. A message from the session to
/// itself would prove nothing, because a pooler may hand it over with an answer.
async fn prove(channel: &str, requests: &Connection, proven: &mut ProvenSession) -> Result<bool, StoreError> {
    let proof = format!("proof {:016x}", getrandom::u64().unwrap_or_default());
    let send = format!("SELECT pg_notify('{channel}', '{proof}')");
    let work = move |session: Arc<Session>, _| -> Working<()> {
        Box::pin(async move { session.rows(&send).await.map(drop).map_err(unread) })
    };
    requests.run(work).await?;
    let arrived = async {
        while let Some(text) = proven.messages.recv().await {
            if text == proof {
                return true;
            }
        }
        false
    };
    Ok(time::timeout(PROOF, arrived).await.unwrap_or(false))
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
        let wakes: usize = texts.iter().map(|text| wakes_in(text).len()).sum();
        assert_eq!((wakes, channels.len()), (40, texts.len()));
    }

    #[test]
    fn messages_are_ascii_whatever_the_names_are() {
        let keeper = KeeperId::from_u128(1);
        let names: Vec<Name> = (0..40)
            .map(|number| Name::new(format!("{number}% {}", "日".repeat(160))).expect("valid"))
            .collect();
        let wake = |name: &Name| (keeper, Wake::Changed(Topic::Latch(name.clone())));
        let (_, texts) = texts(names.iter().map(wake).collect());
        assert!(texts.iter().all(|text| text.is_ascii() && text.len() < 8000));
        let told = texts.iter().flat_map(|text| wakes_in(text)).map(|wake| match wake {
            Wake::Changed(Topic::Latch(name)) => name,
            other => panic!("{other:?}"),
        });
        assert!(told.eq(names));
    }
}
