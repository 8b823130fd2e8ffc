//! A store asked directly, without an engine above it.

use std::{sync::Arc, time::Duration};

use lockkeeper_core::{
    ContenderId, KeeperId, Name, StoreError,
    clock::Clock,
    store::{Answer, Answers, Claim, Context, Leave, Left, Renew, Request, Store, Verdict, WakeSink},
    testing,
};

/// How often a request is asked again that a store can do nothing for.
const TRIES: usize = 40;

/// How long leases last: longer than any test.
const LEASE: Duration = Duration::from_secs(120);

/// A store, and the keeper that asks it.
#[derive(Clone, Debug)]
pub struct Asker {
    /// The store.
    pub store: Arc<dyn Store>,
    /// The keeper whose contenders ask.
    pub keeper: KeeperId,
}

impl Asker {
    /// Connects without caring for wakes.
    ///
    /// # Panics
    /// If it cannot.
    pub async fn connect(url: &str) -> Self {
        Self::connect_with(url, WakeSink::new(|_| {})).await.expect("connected")
    }

    /// Connects, with wakes that go to `wakes`. A request may take a minute.
    ///
    /// # Errors
    /// If it cannot.
    pub async fn connect_with(url: &str, wakes: WakeSink) -> Result<Self, StoreError> {
        let keeper = KeeperId::random();
        let context = Context {
            keeper,
            wakes,
            background: tokio::runtime::Handle::current(),
            clock: Clock::boot(),
            request_limit: Duration::from_secs(60),
        };
        let connector = lockkeeper::url::connector(url)?;
        Ok(Self { store: connector.connect(context).await?, keeper })
    }

    /// A claim of everything that waits.
    pub fn claim(&self, name: &str, seq: u64) -> Claim {
        let name = Name::new(name).expect("a name");
        Claim { lease: LEASE, ..testing::claim(&name, ContenderId { keeper: self.keeper, seq }) }
    }

    /// A leave without a tombstone.
    pub fn leave(&self, name: &str, seq: u64) -> Leave {
        let Claim { name, contender, .. } = self.claim(name, seq);
        Leave { name, contender, tombstone_until: None, hold_at_least: Duration::ZERO }
    }

    /// A renewal.
    pub fn renewal(&self, name: &str, seq: u64) -> Renew {
        let Claim { name, contender, .. } = self.claim(name, seq);
        Renew { name, contender, lease: LEASE, lower_to: None, detach: false, at_least: 0 }
    }

    /// Claims as one group.
    ///
    /// # Errors
    /// That of the store.
    pub async fn claims(&self, claims: &[(&str, u64)]) -> Result<Answers<Answer>, StoreError> {
        let group: Vec<_> = claims.iter().map(|(name, seq)| Request::Claim(self.claim(name, *seq))).collect();
        self.store.apply(&group).await
    }

    /// A lone claim. If nothing was done for now, it is asked again alone, as the engine does.
    ///
    /// # Panics
    /// If it fails.
    pub async fn ask(&self, name: &str, seq: u64) -> Verdict {
        let answer = self.lone(Request::Claim(self.claim(name, seq))).await.expect("answered");
        let [Answer::Claim(verdict)] = &answer.each[..] else { panic!("{answer:?}") };
        verdict.clone()
    }

    /// A lone leave, in the same way.
    ///
    /// # Errors
    /// That of the store.
    pub async fn give_back(&self, name: &str, seq: u64) -> Result<Answers<Answer>, StoreError> {
        self.lone(Request::Leave(self.leave(name, seq))).await
    }

    /// A lone claim that is asked once.
    ///
    /// # Panics
    /// If it fails.
    pub async fn ask_once(&self, name: &str, seq: u64) -> Verdict {
        let answers = self.claims(&[(name, seq)]).await.expect("answered");
        let [Answer::Claim(verdict)] = &answers.each[..] else { panic!("{answers:?}") };
        verdict.clone()
    }

    /// A lone claim that waits for its row, asked once.
    ///
    /// # Panics
    /// If it fails.
    pub async fn ask_alone(&self, name: &str, seq: u64) -> Answers<Answer> {
        let group = [Request::Claim(self.claim(name, seq))];
        self.store.apply_alone(&group).await.expect("answered")
    }

    /// A lone leave that is asked once.
    ///
    /// # Errors
    /// That of the store.
    pub async fn give_back_once(&self, name: &str, seq: u64) -> Result<Answers<Answer>, StoreError> {
        self.store.apply(&[Request::Leave(self.leave(name, seq))]).await
    }

    /// A lone request. If nothing was done for now, it is asked again alone.
    ///
    /// # Errors
    /// That of the store.
    pub async fn lone(&self, request: Request) -> Result<Answers<Answer>, StoreError> {
        let group = [request];
        let mut answers = self.store.apply(&group).await?;
        for _ in 0..TRIES {
            match answers.each[..] {
                [Answer::Claim(Verdict::NotNow(_)) | Answer::Leave(Left::NotNow)] => {
                    answers = self.store.apply_alone(&group).await?;
                }
                _ => break,
            }
        }
        Ok(answers)
    }

    /// The numbers of the contenders that hold a name.
    ///
    /// # Panics
    /// If it cannot be read.
    pub async fn holders(&self, name: &str) -> Vec<u64> {
        let view = self.store.inspect(&Name::new(name).expect("a name")).await.expect("asked");
        view.iter().flat_map(|view| &view.holders).map(|holder| holder.contender.seq).collect()
    }
}
