//! Does requests that are repeated with the same `Idempotency-Key` once. This server remembers them, others do not.
//!
//! Each token has room of its own, so nobody can take the room of others.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use bytes::Bytes;
use lockkeeper::{Lease, Token, support};
use sha2::{Digest, Sha256};

use crate::{
    problem::{Code, Problem},
    shapes::Acquired,
    tokens::Hash,
};

/// How long an answer is remembered at least, and after its lease was released.
const AT_LEAST: Duration = Duration::from_secs(60);
/// How long a lease is remembered at most.
const AT_MOST: Duration = Duration::from_secs(600);
/// How many keys of one token are remembered.
const MOST: usize = 20_000;
/// The shortest pause between two searches of a full memory for keys that may be forgotten.
const SWEEP: Duration = Duration::from_secs(1);
/// How long a repeat that does not wait for a lock waits for the first request.
pub(crate) const TURN: Duration = Duration::from_secs(10);
/// The longest key.
pub(crate) const LONGEST: usize = 255;

/// The token of a request, its path, and the key that it came with.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(crate) struct Key {
    pub(crate) who: Hash,
    pub(crate) path: &'static str,
    pub(crate) key: String,
}

/// A grant: the name of its lock, and its number.
type Grant = (String, u64);

/// An answer that can be given again.
#[derive(Clone)]
pub(crate) enum Answer {
    /// A lease. Only the store knows whether it is still held.
    Acquired(Box<Acquired>, Box<Lease>),
    /// Anything else, as JSON.
    Other(Bytes),
}

impl Answer {
    fn keep(&self) -> Duration {
        match self {
            Self::Acquired(acquired, _) => {
                Duration::from_millis(acquired.expires_in_ms).clamp(AT_LEAST, AT_MOST)
            }
            Self::Other(_) => AT_LEAST,
        }
    }

    fn grant(&self) -> Option<Grant> {
        match self {
            Self::Acquired(_, lease) => Some((lease.name().as_str().to_owned(), lease.token().number())),
            Self::Other(_) => None,
        }
    }
}

/// One key. The request that has its lock does the work; repeats that come meanwhile wait for it.
#[derive(Default)]
struct Slot {
    done: tokio::sync::Mutex<Option<Done>>,
    state: Mutex<State>,
}

/// The facts about a key that can be read without waiting for its turn.
#[derive(Default)]
struct State {
    /// Until when it is remembered; `None` until its request was done.
    until: Option<Instant>,
    grant: Option<Grant>,
}

struct Done {
    body: [u8; 32],
    answer: Answer,
}

/// The keys of one token.
#[derive(Default)]
struct Keys {
    slots: HashMap<Key, Arc<Slot>>,
    grants: HashMap<Grant, Key>,
    swept: Option<Instant>,
}

impl Keys {
    fn remove(&mut self, key: &Key) {
        let slot = self.slots.remove(key);
        if let Some(grant) = slot.and_then(|slot| support::lock(&slot.state).grant.take()) {
            self.grants.remove(&grant);
        }
    }

    /// Forgets answers that are too old, and keys whose request nobody does any more.
    fn sweep(&mut self) {
        let now = Instant::now();
        if self.swept.is_some_and(|swept| now < swept + SWEEP) {
            return;
        }
        self.swept = Some(now);
        let over = |slot: &Arc<Slot>| match support::lock(&slot.state).until {
            Some(until) => until <= now,
            None => Arc::strong_count(slot) == 1,
        };
        let keys: Vec<Key> =
            self.slots.iter().filter(|(_, slot)| over(slot)).map(|(key, _)| key.clone()).collect();
        keys.iter().for_each(|key| self.remove(key));
    }
}

/// The answers to requests with keys.
pub(crate) struct Remembered {
    most: usize,
    tokens: Mutex<HashMap<Hash, Keys>>,
}

impl Default for Remembered {
    fn default() -> Self {
        Self::new(MOST)
    }
}

impl Remembered {
    /// Makes a memory for at most `most` keys of each token.
    fn new(most: usize) -> Self {
        Self { most, tokens: Mutex::default() }
    }

    /// Does `work` unless it was done before for the same key; then `again` makes the present answer from the earlier
    /// one. Waits for at most `turn` while another request does it. Dropping the future drops the work, and the next
    /// request with that key does it.
    pub(crate) async fn once<A: Future<Output = Result<Answer, Problem>>>(
        &self,
        key: Key,
        body: &[u8],
        turn: Duration,
        work: impl Future<Output = Result<Answer, Problem>>,
        again: impl FnOnce(Answer) -> A,
    ) -> Result<Answer, Problem> {
        let slot = self.slot(&key)?;
        let _forget = Forget { remembered: self, key: &key, slot: &slot };
        let Ok(mut done) = tokio::time::timeout(turn, slot.done.lock()).await else {
            let message = "the first request with this Idempotency-Key is still under way";
            return Err(Problem::new(Code::NotInTime, message));
        };
        let body = Sha256::digest(body).into();
        if let Some(done) = &*done {
            if done.body != body {
                let message = "another request came with this Idempotency-Key before";
                return Err(Problem::new(Code::KeyReused, message));
            }
            return again(done.answer.clone()).await;
        }
        let answer = work.await?;
        self.keep(&key, &slot, &answer);
        *done = Some(Done { body, answer: answer.clone() });
        Ok(answer)
    }

    /// Takes note that a grant has ended, so its key need not be kept for as long as its lease. It is not forgotten at
    /// once: a late copy of the request must not acquire the lock anew.
    pub(crate) fn ended(&self, name: &str, token: Token) {
        let grant = (name.to_owned(), token.number());
        let tokens = support::lock(&self.tokens);
        for keys in tokens.values() {
            let slot = keys.grants.get(&grant).and_then(|key| keys.slots.get(key));
            if let Some(slot) = slot {
                let until = &mut support::lock(&slot.state).until;
                *until = until.map(|until| until.min(Instant::now() + AT_LEAST));
            }
        }
    }

    fn keep(&self, key: &Key, slot: &Slot, answer: &Answer) {
        let mut tokens = support::lock(&self.tokens);
        let keys = tokens.entry(key.who).or_default();
        let mut state = support::lock(&slot.state);
        state.until = Some(Instant::now() + answer.keep());
        state.grant = answer.grant();
        if let Some(grant) = &state.grant {
            keys.grants.insert(grant.clone(), key.clone());
        }
    }

    fn slot(&self, key: &Key) -> Result<Arc<Slot>, Problem> {
        let mut tokens = support::lock(&self.tokens);
        let keys = tokens.entry(key.who).or_default();
        let known = keys.slots.get(key).map(|slot| support::lock(&slot.state).until);
        match known {
            Some(Some(until)) if until <= Instant::now() => keys.remove(key),
            Some(_) => {}
            None if keys.slots.len() >= self.most => keys.sweep(),
            None => {}
        }
        if keys.slots.len() >= self.most && !keys.slots.contains_key(key) {
            let message = "too many requests of this token with an Idempotency-Key are remembered";
            return Err(Problem::new(Code::TooManyRequests, message).retry_after(AT_LEAST));
        }
        Ok(keys.slots.entry(key.clone()).or_default().clone())
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
        let mut tokens = support::lock(&self.remembered.tokens);
        let undone = support::lock(&self.slot.state).until.is_none();
        // Two references: the map's and ours. If two requests are dropped at once, both may see more; a sweep of a full
        // memory forgets such keys.
        if undone
            && Arc::strong_count(self.slot) <= 2
            && let Some(keys) = tokens.get_mut(&self.key.who)
        {
            keys.remove(self.key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(key: &str) -> Key {
        key_of(0, key)
    }

    fn key_of(who: u8, key: &str) -> Key {
        Key { who: [who; 32], path: "/v1/x", key: key.into() }
    }

    async fn once(
        remembered: &Remembered,
        key: Key,
        body: &[u8],
        work: impl Future<Output = Result<Answer, Problem>>,
    ) -> Result<Answer, Problem> {
        remembered.once(key, body, TURN, work, async |answer| Ok(answer)).await
    }

    fn count(remembered: &Remembered) -> usize {
        support::lock(&remembered.tokens).values().map(|keys| keys.slots.len()).sum()
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
        assert_eq!(text(once(&remembered, key("a"), b"{}", async { answer("one") }).await), "one");
        assert_eq!(text(once(&remembered, key("a"), b"{}", async { answer("two") }).await), "one");
        assert_eq!(text(once(&remembered, key("b"), b"{}", async { answer("two") }).await), "two");
        assert_eq!(text(once(&remembered, key("a"), b"[]", async { answer("three") }).await), "key_reused");
    }

    #[tokio::test]
    async fn what_failed_or_was_dropped_is_done_by_the_next() {
        let remembered = Remembered::default();
        let failing = async { Err(Problem::shutting_down()) };
        assert_eq!(text(once(&remembered, key("a"), b"{}", failing).await), "shutting_down");
        assert_eq!(count(&remembered), 0);
        let never = once(&remembered, key("a"), b"{}", std::future::pending());
        let waits = once(&remembered, key("a"), b"{}", async { answer("second") });
        tokio::select! {
            biased;
            _ = never => panic!("it never ends"),
            () = tokio::task::yield_now() => {}
        }
        assert_eq!(text(waits.await), "second");
        assert_eq!(count(&remembered), 1);
    }

    #[tokio::test]
    async fn one_token_cannot_take_the_room_of_another() {
        let remembered = Remembered::new(3);
        for index in 0..3 {
            let key = key_of(1, &index.to_string());
            assert_eq!(text(once(&remembered, key, b"{}", async { answer("one") }).await), "one");
        }
        let full = once(&remembered, key_of(1, "more"), b"{}", async { answer("no") }).await;
        assert_eq!(text(full), "too_many_requests");
        let other = once(&remembered, key_of(2, "more"), b"{}", async { answer("other") }).await;
        assert_eq!(text(other), "other");
        assert_eq!(text(once(&remembered, key_of(1, "2"), b"{}", async { answer("no") }).await), "one");
    }

    #[tokio::test]
    async fn a_lease_is_remembered_for_ten_minutes_and_after_its_release_for_one() {
        let keeper = lockkeeper::connect("memory:").await.expect("a store in this process");
        let mut claim = lockkeeper::lock::LeaseClaim::new(
            lockkeeper::store::Kind::Mutex,
            lockkeeper::store::Units::All,
            lockkeeper::store::Capacity::All,
        );
        claim.lease = Duration::from_secs(24 * 3600);
        let lease = keeper.acquire_lease("a", &claim, None).await.expect("asked").expect("free").lease;
        let acquired = Acquired {
            name: "a".into(),
            lease: lease.to_string(),
            token: lease.token().to_string(),
            floor: lease.floor().to_string(),
            expires_in_ms: 24 * 3600 * 1000,
        };
        let remembered = Remembered::default();
        let token = lease.token();
        let work = async { Ok(Answer::Acquired(Box::new(acquired), Box::new(lease))) };
        assert_eq!(text(once(&remembered, key("a"), b"{}", work).await), "acquired");
        let left = || {
            let tokens = support::lock(&remembered.tokens);
            let until = support::lock(&tokens[&[0; 32]].slots[&key("a")].state).until;
            until.expect("it was done").saturating_duration_since(Instant::now())
        };
        assert!(left() > AT_LEAST && left() <= AT_MOST, "{:?}", left());
        remembered.ended("b", token);
        assert!(left() > AT_LEAST);
        remembered.ended("a", token);
        assert!(left() <= AT_LEAST);
    }
}
