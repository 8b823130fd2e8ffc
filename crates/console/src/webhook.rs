//! The webhook: alarms on their way to a receiver that may be slow, down or back.
//!
//! Messages wait in a bounded queue. A task of their own, for which nobody waits, sends them one by one, in order. A
//! message that cannot be delivered is tried again with growing pauses until it is too old. A message at which the
//! receiver itself fails again and again lets the others pass, but messages about the same thing stay in order.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, Weak},
    time::Duration,
};

use bytes::Bytes;
use lockkeeper::support::{self, backoff::Backoff};
use serde::Serialize;
use tokio::{
    sync::{Notify, watch},
    time::Instant,
};
use utoipa::ToSchema;

use crate::post::{Post, PostError};

/// The most messages that wait. For a new one, the oldest is dropped.
const MOST: usize = 1_000;
/// A message that is older is dropped.
const OLDEST: Duration = Duration::from_secs(3600);
/// A message is put behind the others after so many failures of the receiver at it.
const FAILURES: u32 = 5;
/// The pauses between tries.
const PAUSES: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(60));

pub(crate) const SENT: &str = "lockkeeper_webhook_sent_total";
pub(crate) const FAILED: &str = "lockkeeper_webhook_failed_total";
pub(crate) const DROPPED: &str = "lockkeeper_webhook_dropped_total";

/// Sends messages to a receiver. Its task ends when the last clone of it is dropped.
#[derive(Clone)]
pub struct Webhook(Arc<Shared>);

struct Shared {
    state: Mutex<State>,
    news: Arc<Notify>,
    /// Tells the task of another target.
    targets: watch::Sender<()>,
}

impl Drop for Shared {
    fn drop(&mut self) {
        // The task wakes up, sees that no clone is left, and ends.
        self.news.notify_one();
    }
}

#[derive(Default)]
struct State {
    target: Option<Arc<dyn Post>>,
    queue: VecDeque<Message>,
    last_id: u64,
    counts: Counts,
    last_error: Option<String>,
}

#[derive(Clone, Copy, Default)]
struct Counts {
    sent: u64,
    failed: u64,
    dropped: u64,
}

#[derive(Clone)]
struct Message {
    id: u64,
    /// The number of its alarm. Messages about the same one are delivered in order.
    about: u64,
    body: Bytes,
    since: Instant,
    /// How often the receiver failed at it.
    failures: u32,
}

/// The state of the webhook.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, ToSchema)]
pub struct WebhookStatus {
    /// The receiver's host.
    pub receiver: String,
    /// How many messages wait to be sent.
    pub waiting: usize,
    /// How many were delivered.
    pub sent: u64,
    /// How many tries failed.
    pub failed: u64,
    /// How many messages were given up: refused, too old, or too many.
    pub dropped: u64,
    /// The error of the last try; null if it did not fail.
    pub last_error: Option<String>,
}

impl Webhook {
    /// Starts the task that sends, on the current runtime. Without a target, messages are ignored.
    pub fn start() -> Self {
        for (name, help) in [
            (SENT, "messages that the webhook's receiver took"),
            (FAILED, "tries to send a message to the webhook that failed"),
            (DROPPED, "messages to the webhook that were given up: refused, too old, or too many"),
        ] {
            metrics::describe_counter!(name, help);
            metrics::counter!(name).absolute(0);
        }
        let news = Arc::new(Notify::new());
        let (targets, changed) = watch::channel(());
        let shared = Arc::new(Shared { state: Mutex::default(), news: news.clone(), targets });
        tokio::spawn(run(Arc::downgrade(&shared), news, changed));
        Self(shared)
    }

    /// Sends to `target` from now on. Messages that wait go there, too. Without a target they are dropped.
    pub fn set_target(&self, target: Option<Arc<dyn Post>>) {
        let mut state = support::lock(&self.0.state);
        if target.is_none() {
            state.queue.clear();
        }
        state.target = target;
        state.last_error = None;
        drop(state);
        self.0.news.notify_one();
        self.0.targets.send_replace(());
    }

    /// Hands a message over, without waiting. Messages with the same `about` are delivered in order.
    pub fn send(&self, about: u64, body: Bytes) {
        let mut state = support::lock(&self.0.state);
        if state.target.is_none() {
            return;
        }
        while state.queue.len() >= MOST {
            state.queue.pop_front();
            state.drop_one();
        }
        state.last_id += 1;
        let id = state.last_id;
        state.queue.push_back(Message { id, about, body, since: Instant::now(), failures: 0 });
        drop(state);
        self.0.news.notify_one();
    }

    /// Returns the state; `None` without a target.
    pub fn status(&self) -> Option<WebhookStatus> {
        let state = support::lock(&self.0.state);
        let Counts { sent, failed, dropped } = state.counts;
        state.target.as_ref().map(|target| WebhookStatus {
            receiver: target.receiver().to_owned(),
            waiting: state.queue.len(),
            sent,
            failed,
            dropped,
            last_error: state.last_error.clone(),
        })
    }
}

impl State {
    fn drop_one(&mut self) {
        self.counts.dropped += 1;
        metrics::counter!(DROPPED).increment(1);
    }

    /// Returns the message to send next, with its target.
    fn next(&mut self) -> Option<(Message, Arc<dyn Post>)> {
        while self.queue.front().is_some_and(|message| message.since.elapsed() > OLDEST) {
            self.queue.pop_front();
            self.drop_one();
        }
        Some((self.queue.front()?.clone(), self.target.clone()?))
    }

    /// Takes note that the receiver failed at the first message. If it does so again and again, the others go first.
    fn put_back(&mut self, about: u64) {
        let Some(first) = self.queue.front_mut() else { return };
        first.failures += 1;
        if first.failures < FAILURES {
            return;
        }
        first.failures = 0;
        // Later messages about the same thing must not overtake it.
        let (behind, others) = self.queue.drain(..).partition(|message| message.about == about);
        self.queue = others;
        self.queue.extend::<VecDeque<Message>>(behind);
    }

    /// Takes note of the outcome of a try. Returns whether to pause.
    fn done(&mut self, message: &Message, outcome: Result<(), PostError>) -> bool {
        let front = self.queue.front().is_some_and(|front| front.id == message.id);
        let passing = matches!(outcome, Err(PostError::Passing(_) | PostError::Failed(_)));
        if front && !passing {
            self.queue.pop_front();
        }
        if front && matches!(outcome, Err(PostError::Failed(_))) {
            self.put_back(message.about);
        }
        match outcome {
            Ok(()) => {
                self.counts.sent += 1;
                self.last_error = None;
                metrics::counter!(SENT).increment(1);
            }
            Err(error) => {
                self.counts.failed += 1;
                metrics::counter!(FAILED).increment(1);
                if self.last_error.is_none() {
                    tracing::warn!(%error, waiting = self.queue.len(), "the webhook fails");
                }
                self.last_error = Some(error.to_string());
                if !passing {
                    self.drop_one();
                }
            }
        }
        passing
    }
}

async fn run(shared: Weak<Shared>, news: Arc<Notify>, mut targets: watch::Receiver<()>) {
    let mut pauses = PAUSES;
    loop {
        targets.mark_unchanged();
        let Some(next) = shared.upgrade().map(|shared| support::lock(&shared.state).next()) else { return };
        let Some((message, target)) = next else {
            news.notified().await;
            continue;
        };
        let outcome = target.post(message.body.clone()).await;
        let Some(shared) = shared.upgrade() else { return };
        let pause = support::lock(&shared.state).done(&message, outcome);
        drop(shared);
        if pause {
            let pause = tokio::time::sleep(pauses.jittered());
            tokio::select! {
                () = pause => {}
                // A new target is tried at once. This also ends when nobody is left.
                _ = targets.changed() => pauses.reset(),
            }
        } else {
            pauses.reset();
        }
    }
}

#[cfg(test)]
mod tests {
    use lockkeeper::store::BoxFuture;
    use tokio::sync::mpsc;

    use super::*;

    /// A receiver whose answers a test gives one by one.
    struct Receiver {
        got: mpsc::UnboundedSender<(Bytes, Instant)>,
        answers: tokio::sync::Mutex<mpsc::UnboundedReceiver<Result<(), PostError>>>,
    }

    impl Post for Receiver {
        fn receiver(&self) -> &str {
            "a test"
        }

        fn post(&self, body: Bytes) -> BoxFuture<'_, Result<(), PostError>> {
            Box::pin(async move {
                drop(self.got.send((body, Instant::now())));
                self.answers.lock().await.recv().await.unwrap_or(Ok(()))
            })
        }
    }

    struct Test {
        webhook: Webhook,
        got: mpsc::UnboundedReceiver<(Bytes, Instant)>,
        answers: mpsc::UnboundedSender<Result<(), PostError>>,
    }

    impl Test {
        fn new() -> Self {
            let webhook = Webhook::start();
            let (send_got, got) = mpsc::unbounded_channel();
            let (answers, receive) = mpsc::unbounded_channel();
            let receiver = Receiver { got: send_got, answers: tokio::sync::Mutex::new(receive) };
            webhook.set_target(Some(Arc::new(receiver)));
            Self { webhook, got, answers }
        }

        fn send(&self, number: usize) {
            self.webhook.send(number as u64, number.to_string().into());
        }

        async fn next(&mut self) -> (String, Instant) {
            let (body, at) = self.got.recv().await.expect("a message");
            (String::from_utf8(body.to_vec()).expect("text"), at)
        }

        fn answer(&self, answer: Result<(), PostError>) {
            self.answers.send(answer).expect("a reader");
        }

        fn fail(&self) {
            self.answer(Err(PostError::Passing("down".into())));
        }

        fn status(&self) -> WebhookStatus {
            self.webhook.status().expect("a target")
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_fails_is_sent_again_in_order_with_growing_pauses() {
        let mut test = Test::new();
        test.send(1);
        test.send(2);
        let mut last = test.next().await.1;
        for pause in [1, 2, 4, 8, 16, 32, 60, 60] {
            test.fail();
            let (body, at) = test.next().await;
            let passed = at - last;
            assert_eq!(body, "1");
            let whole = Duration::from_secs(pause);
            assert!(
                passed >= whole / 2 && passed <= whole + Duration::from_millis(2),
                "{passed:?} of {whole:?}"
            );
            last = at;
        }
        assert_eq!(test.status().last_error.as_deref(), Some("down"));
        test.answer(Ok(()));
        assert_eq!(test.next().await.0, "2");
        test.answer(Ok(()));
        tokio::time::sleep(Duration::from_secs(1)).await;
        let status = test.status();
        assert_eq!((status.sent, status.waiting, status.dropped, status.last_error), (2, 0, 0, None));
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_receiver_blocks_nobody_and_the_queue_is_bounded() {
        let mut test = Test::new();
        test.send(0);
        test.next().await;
        for number in 1..=MOST + 5 {
            test.send(number);
        }
        let status = test.status();
        assert_eq!((status.waiting, status.dropped), (MOST, 6));
        // The message that was under way is delivered; its place was taken long ago.
        test.answer(Ok(()));
        assert_eq!(test.next().await.0, "6");
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_refused_or_too_old_is_dropped() {
        let mut test = Test::new();
        test.send(1);
        test.send(2);
        test.next().await;
        test.answer(Err(PostError::Refused("no".into())));
        assert_eq!(test.next().await.0, "2");
        tokio::time::sleep(OLDEST + Duration::from_secs(1)).await;
        test.fail();
        tokio::time::sleep(Duration::from_secs(61)).await;
        let status = test.status();
        assert_eq!((status.waiting, status.dropped, status.sent), (0, 2, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn a_message_at_which_the_receiver_fails_lets_others_pass_but_not_those_about_the_same() {
        let mut test = Test::new();
        test.webhook.send(7, "raised 7".into());
        test.webhook.send(7, "ended 7".into());
        test.webhook.send(8, "raised 8".into());
        for _ in 0..FAILURES {
            assert_eq!(test.next().await.0, "raised 7");
            test.answer(Err(PostError::Failed("the receiver answered 500".into())));
        }
        for expected in ["raised 8", "raised 7", "ended 7"] {
            assert_eq!(test.next().await.0, expected);
            test.answer(Ok(()));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_new_target_is_tried_at_once() {
        let mut test = Test::new();
        test.send(1);
        for _ in 0..8 {
            test.next().await;
            test.fail();
        }
        // Waits until the task has taken note of the failure and pauses.
        while test.status().failed < 8 {
            tokio::task::yield_now().await;
        }
        let (send_got, mut got) = mpsc::unbounded_channel();
        let (_answers, receive) = mpsc::unbounded_channel();
        let started = Instant::now();
        let other = Receiver { got: send_got, answers: tokio::sync::Mutex::new(receive) };
        test.webhook.set_target(Some(Arc::new(other)));
        let (_, at) = got.recv().await.expect("a message");
        assert!(at - started < Duration::from_secs(1), "{:?}", at - started);
    }

    #[tokio::test(start_paused = true)]
    async fn without_a_target_nothing_is_kept() {
        let webhook = Webhook::start();
        webhook.send(1, Bytes::from_static(b"1"));
        assert_eq!(webhook.status(), None);
        let test = Test::new();
        test.send(1);
        test.webhook.set_target(None);
        assert_eq!(test.webhook.status(), None);
    }
}
