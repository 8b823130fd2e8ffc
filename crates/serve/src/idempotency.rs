//! Requests that are repeated with the same `Idempotency-Key` are done once. This server remembers them, others do not.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use bytes::Bytes;
use lockkeeper::support;
use sha2::{Digest, Sha256};

use crate::{
    problem::{Code, Problem},
    shapes::{Acquired, millis},
    tokens::Hash,
};

/// How long an answer is remembered at least.
const AT_LEAST: Duration = Duration::from_secs(60);
/// How many keys are remembered at most.
const MOST: usize = 50_000;
/// The longest key.
pub(crate) const LONGEST: usize = 255;

/// Whose request it is, what it asks for, and the key that it came with.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(crate) struct Key {
    pub(crate) who: Hash,
    pub(crate) path: &'static str,
    pub(crate) key: String,
}

/// An answer that can be given again.
#[derive(Clone)]
pub(crate) enum Answer {
    /// A lease that was certainly held until then.
    Acquired(Acquired, Instant),
    /// Anything else, as JSON.
    Other(Bytes),
}

impl Answer {
    fn keep(&self) -> Duration {
        match self {
            Self::Acquired(_, until) => until.saturating_duration_since(Instant::now()).max(AT_LEAST),
            Self::Other(_) => AT_LEAST,
        }
    }

    /// The answer of now: less of the lease is left.
    pub(crate) fn again(self) -> Self {
        match self {
            Self::Acquired(mut acquired, until) => {
                acquired.expires_in_ms = millis(until.saturating_duration_since(Instant::now()));
                Self::Acquired(acquired, until)
            }
            other => other,
        }
    }
}

/// One key. Whoever has its lock does the request; those who come meanwhile wait for that.
#[derive(Default)]
struct Slot {
    done: tokio::sync::Mutex<Option<Done>>,
    until: Mutex<Option<Instant>>,
}

struct Done {
    body: [u8; 32],
    answer: Answer,
}

/// What was answered to requests with keys.
#[derive(Default)]
pub(crate) struct Remembered {
    slots: Mutex<HashMap<Key, Arc<Slot>>>,
}

impl Remembered {
    /// Does `work` unless it was done before for the same key. Dropping the future drops the work, and the next one who
    /// comes with that key does it.
    pub(crate) async fn once(
        &self,
        key: Key,
        body: &[u8],
        work: impl Future<Output = Result<Answer, Problem>>,
    ) -> Result<Answer, Problem> {
        let slot = self.slot(&key)?;
        let _forget = Forget { remembered: self, key: &key, slot: &slot };
        let mut done = slot.done.lock().await;
        let body = Sha256::digest(body).into();
        if let Some(done) = &*done {
            if done.body != body {
                let message = "another request came with this Idempotency-Key before";
                return Err(Problem::new(Code::KeyReused, message));
            }
            return Ok(done.answer.clone().again());
        }
        let answer = work.await?;
        *support::lock(&slot.until) = Some(Instant::now() + answer.keep());
        *done = Some(Done { body, answer: answer.clone() });
        Ok(answer)
    }

    fn slot(&self, key: &Key) -> Result<Arc<Slot>, Problem> {
        let mut slots = support::lock(&self.slots);
        if slots.len() >= MOST && !slots.contains_key(key) {
            let now = Instant::now();
            slots.retain(|_, slot| support::lock(&slot.until).is_none_or(|until| now < until));
            if slots.len() >= MOST {
                let message = "too many requests with an Idempotency-Key are remembered";
                return Err(Problem::new(Code::TooManyRequests, message).retry_after(AT_LEAST));
            }
        }
        let slot = slots.entry(key.clone()).or_default();
        if support::lock(&slot.until).is_some_and(|until| until <= Instant::now()) {
            *slot = Arc::default();
        }
        Ok(slot.clone())
    }
}

/// Forgets a key whose request was not done, once nobody has it any more.
struct Forget<'a> {
    remembered: &'a Remembered,
    key: &'a Key,
    slot: &'a Arc<Slot>,
}

impl Drop for Forget<'_> {
    fn drop(&mut self) {
        let mut slots = support::lock(&self.remembered.slots);
        let undone = support::lock(&self.slot.until).is_none();
        // The map's and ours.
        if undone && Arc::strong_count(self.slot) <= 2 {
            slots.remove(self.key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(key: &str) -> Key {
        Key { who: [0; 32], path: "/v1/x", key: key.into() }
    }

    fn answer(text: &'static str) -> Result<Answer, Problem> {
        Ok(Answer::Other(Bytes::from_static(text.as_bytes())))
    }

    fn text(answer: Result<Answer, Problem>) -> String {
        match answer {
            Ok(Answer::Other(bytes)) => String::from_utf8_lossy(&bytes).into_owned(),
            Ok(Answer::Acquired(..)) => "acquired".into(),
            Err(problem) => problem.code.word().into(),
        }
    }

    #[tokio::test]
    async fn a_repeat_gets_the_first_answer_and_another_body_is_refused() {
        let remembered = Remembered::default();
        assert_eq!(text(remembered.once(key("a"), b"{}", async { answer("one") }).await), "one");
        assert_eq!(text(remembered.once(key("a"), b"{}", async { answer("two") }).await), "one");
        assert_eq!(text(remembered.once(key("b"), b"{}", async { answer("two") }).await), "two");
        assert_eq!(text(remembered.once(key("a"), b"[]", async { answer("three") }).await), "key_reused");
    }

    #[tokio::test]
    async fn what_failed_or_was_dropped_is_done_by_the_next() {
        let remembered = Remembered::default();
        let failing = async { Err(Problem::shutting_down()) };
        assert_eq!(text(remembered.once(key("a"), b"{}", failing).await), "shutting_down");
        assert!(support::lock(&remembered.slots).is_empty());
        let never = remembered.once(key("a"), b"{}", std::future::pending());
        let waits = remembered.once(key("a"), b"{}", async { answer("second") });
        tokio::select! {
            biased;
            _ = never => panic!("it never ends"),
            () = tokio::task::yield_now() => {}
        }
        assert_eq!(text(waits.await), "second");
        assert_eq!(support::lock(&remembered.slots).len(), 1);
    }
}
