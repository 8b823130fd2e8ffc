//! Refinement: the same random steps go to a real store, through the trait `Store`, and to the pure
//! model. All answers, and after each step all views, must mean the same. Scripts and SQL that rewrite the
//! model are proven to do the same as the model in this way.
//!
//! Every answer that has a time is compared exactly: the model makes its step at the store's own time
//! of the answer. Where an answer has no time (evictions, views), the store's clock is read before and
//! after. No step happens near a moment at which something ends, so nothing depends on how fast a store
//! is.
//!
//! A store that *settles by itself* grants to the next waiter without a request: a node of ZooKeeper goes when
//! its lease ends, and the next waiter finds out. Then the model is settled at each moment at which something
//! ends, answers may be one grant behind, and after each step the two must come to the same state within a few
//! seconds.

mod compare;
mod pair;
mod plan;

use std::{
    fmt,
    ops::{AddAssign, Range},
    sync::Arc,
    time::Duration,
};

use libtest_mimic::Trial;
use lockkeeper_core::{
    StoreError,
    clock::Clock,
    store::{BoxFuture, Connector},
    testing::VirtualClock,
};
use tokio::runtime::Builder;

use crate::dice::Dice;
use pair::Pair;
use plan::Step;
pub use plan::TimeMode;

/// Every connector of one run leads to the same server.
type Connect = Box<dyn Fn() -> Result<Connector, StoreError> + Send + Sync>;
type Pass = Box<dyn Fn(Duration) -> BoxFuture<'static, ()> + Send + Sync>;

/// A store to be compared with the model.
pub struct Subject {
    connect: Connect,
    clock: Clock,
    pass: Pass,
    time_mode: TimeMode,
    tolerance: Duration,
    by_itself: bool,
}

impl Subject {
    /// A store in virtual time, which `connect` connects to again and again. Call it in a runtime whose
    /// time is paused; `clock` is the one that the store's leases run on.
    pub fn in_virtual_time(
        clock: &VirtualClock,
        connect: impl Fn() -> Result<Connector, StoreError> + Send + Sync + 'static,
    ) -> Self {
        Self {
            connect: Box::new(connect),
            clock: clock.clock(),
            pass: Box::new(|length| Box::pin(tokio::time::sleep(length))),
            time_mode: TimeMode::Virtual,
            tolerance: Duration::ZERO,
            by_itself: false,
        }
    }

    /// A store in real time, which `connect` connects to again and again.
    pub fn in_real_time(connect: impl Fn() -> Result<Connector, StoreError> + Send + Sync + 'static) -> Self {
        Self {
            connect: Box::new(connect),
            clock: Clock::boot(),
            pass: Box::new(|length| Box::pin(tokio::time::sleep(length))),
            time_mode: TimeMode::Real,
            tolerance: Duration::from_millis(20),
            by_itself: false,
        }
    }

    /// How far the store's times may be off, for stores that count in other units.
    pub fn tolerance(mut self, tolerance: Duration) -> Self {
        self.tolerance = tolerance;
        self
    }

    /// The store settles by itself: see the [module](self). The entries of a group then have times of their own
    /// and not one in common.
    pub fn settles_by_itself(mut self) -> Self {
        self.by_itself = true;
        self.tolerance = self.tolerance.max(Duration::from_millis(300));
        self
    }

    /// The way to let the store's time pass, for stores whose clock can be set.
    pub fn passes(
        mut self,
        time_mode: TimeMode,
        pass: impl Fn(Duration) -> BoxFuture<'static, ()> + Send + Sync + 'static,
    ) -> Self {
        self.time_mode = time_mode;
        self.pass = Box::new(pass);
        self
    }
}

impl fmt::Debug for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Subject")
            .field("time_mode", &self.time_mode)
            .field("tolerance", &self.tolerance)
            .finish()
    }
}

/// How often each kind of answer was compared. A run that lacks some kinds proves little.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[expect(missing_docs, reason = "each field is named after the answer that it counts")]
pub struct Tally {
    pub granted: u64,
    pub busy: u64,
    pub stale: u64,
    pub mismatch: u64,
    pub left: u64,
    pub held: u64,
    pub gone: u64,
    pub refused_renewals: u64,
    pub evicted: u64,
    pub counted: u64,
    pub fenced: u64,
    pub notices: u64,
}

impl AddAssign for Tally {
    fn add_assign(&mut self, other: Self) {
        self.granted += other.granted;
        self.busy += other.busy;
        self.stale += other.stale;
        self.mismatch += other.mismatch;
        self.left += other.left;
        self.held += other.held;
        self.gone += other.gone;
        self.refused_renewals += other.refused_renewals;
        self.evicted += other.evicted;
        self.counted += other.counted;
        self.fenced += other.fenced;
        self.notices += other.notices;
    }
}

/// The difference between a store and the model, and the steps that lead there.
#[derive(Clone, Debug)]
pub struct Failure {
    seed: u64,
    what: String,
    steps: Vec<Step>,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "seed {}: the store and the model differ after {} steps:", self.seed, self.steps.len())?;
        for step in &self.steps {
            writeln!(f, "  {step:?}")?;
        }
        write!(f, "{}", self.what)
    }
}

/// How often a failing run is tried with fewer steps.
const SHORTENINGS: usize = 300;

/// Compares the store with the model over `count` random steps.
///
/// # Errors
/// The seed, and as few steps as were found after which the two differ.
pub async fn check(subject: &Subject, seed: u64, count: usize) -> Result<Tally, Box<Failure>> {
    let steps = plan::draw(&mut Dice::new(seed), count, subject.time_mode);
    match run(subject, seed, &steps).await {
        Ok(tally) => Ok(tally),
        Err(Difference { at, what }) => {
            let (what, steps) = shorten(subject, seed, what, steps[..=at].to_vec()).await;
            Err(Box::new(Failure { seed, what, steps }))
        }
    }
}

/// One trial per seed, each over `count` random steps in a runtime of its own.
pub fn trials(subject: Subject, seeds: Range<u64>, count: usize) -> Vec<Trial> {
    let subject = Arc::new(subject);
    let trial = |seed| {
        let subject = subject.clone();
        Trial::test(format!("refinement::seed_{seed}"), move || {
            let runtime = Builder::new_current_thread().enable_all().build()?;
            match runtime.block_on(check(&subject, seed, count)) {
                Ok(_tally) => Ok(()),
                Err(failure) => Err(failure.to_string().into()),
            }
        })
    };
    seeds.map(trial).collect()
}

/// Leaves out steps for as long as the run still fails.
async fn shorten(subject: &Subject, seed: u64, what: String, steps: Vec<Step>) -> (String, Vec<Step>) {
    let (mut what, mut steps, mut tries) = (what, steps, 0);
    let mut chunk = steps.len() / 2;
    while chunk > 0 && tries < SHORTENINGS {
        let mut from = 0;
        while from < steps.len() && tries < SHORTENINGS {
            let mut fewer = steps.clone();
            fewer.drain(from..(from + chunk).min(steps.len()));
            tries += 1;
            match run(subject, seed, &fewer).await {
                Err(difference) if !fewer.is_empty() => {
                    what = difference.what;
                    fewer.truncate(difference.at + 1);
                    steps = fewer;
                }
                _ => from += chunk,
            }
        }
        chunk /= 2;
    }
    (what, steps)
}

/// The step after which the two differ, and the difference.
struct Difference {
    at: usize,
    what: String,
}

async fn run(subject: &Subject, seed: u64, steps: &[Step]) -> Result<Tally, Difference> {
    let mut pair = Pair::connect(subject, seed).await.map_err(|what| Difference { at: 0, what })?;
    let mut difference = None;
    for (at, step) in steps.iter().enumerate() {
        if let Err(what) = pair.step(step).await {
            difference = Some(Difference { at, what });
            break;
        }
    }
    pair.clean_up().await;
    difference.map_or(Ok(pair.tally()), Err)
}
