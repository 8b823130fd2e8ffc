//! Layer 3: a store and the model go through the same random steps. The memory store does so in virtual
//! time, the SQLite store in real time; planted bugs and slips must all be told apart. `LOCKKEEPER_SEEDS`
//! sets how many seeds the memory store runs, `LOCKKEEPER_SEED` runs one again.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use lockkeeper_core::{
    Capability, Name,
    memory::MemoryServer,
    store::{
        Admit, Admitted, Answer, Answers, BoxFuture, Connector, Count, Counted, Evict, Evicted, ListQuery,
        Page, Renew, Renewed, Reply, Request, ResourceView, Store, Topic, Watch,
    },
    testing::VirtualClock,
};
use lockkeeper_testkit::{
    broken::{Bug, broken},
    dice::Dice,
    faulty::{Faults, Line, faulty},
    refinement::{Failure, Subject, Tally, check},
};

const STEPS: usize = 200;

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok().map(|text| text.parse().expect("a number"))
}

/// Runs one seed in virtual time on a memory store, wrapped by `wrap`, with this tolerance.
fn run(
    seed: u64,
    tolerance: Duration,
    wrap: impl Fn(Connector) -> Connector + Send + Sync + 'static,
) -> Result<Tally, Box<Failure>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    runtime.expect("a runtime without I/O").block_on(async {
        let clock = VirtualClock::new();
        let server = MemoryServer::new(clock.clock());
        let subject = Subject::in_virtual_time(&clock, move || Ok(wrap(server.connector("memory:"))));
        check(&subject.tolerance(tolerance), seed, STEPS).await
    })
}

/// The tolerance for a slow line, which is not exact to the moment.
const SLOW: Duration = Duration::from_millis(1);

/// Requests take a while.
fn slow(seed: u64) -> impl Fn(Connector) -> Connector + Send + Sync + 'static {
    let line = Line::new(Dice::new(seed), Faults { usual: 5, ..Faults::NONE });
    move |connector| faulty(connector, line.clone())
}

#[test]
fn the_memory_store_is_the_model() {
    let seeds = match number("LOCKKEEPER_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("LOCKKEEPER_SEEDS").unwrap_or(300),
    };
    let mut sum = Tally::default();
    for seed in seeds.clone() {
        sum += run(seed, Duration::ZERO, |connector| connector).unwrap_or_else(|failure| panic!("{failure}"));
    }
    println!("{} seeds of {STEPS} steps: {sum:?}", seeds.clone().count());
    let Tally { granted, busy, stale, mismatch, left, held, gone, refused_renewals, .. } = sum;
    let Tally { evicted, counted, fenced, notices, .. } = sum;
    let all = [
        granted,
        busy,
        stale,
        mismatch,
        left,
        held,
        gone,
        refused_renewals,
        evicted,
        counted,
        fenced,
        notices,
    ];
    let enough = seeds.count() as u64 / 10;
    assert!(all.iter().all(|count| *count >= enough), "too little was compared to prove anything: {sum:?}");
}

/// A store that takes its time is no worse: what is compared does not depend on how fast it is.
#[test]
fn a_slow_store_is_no_worse() {
    for seed in 0..30 {
        run(seed, SLOW, slow(seed)).unwrap_or_else(|failure| panic!("{failure}"));
    }
}

/// The SQLite store, in real time: few seeds, since the end of a lease has to be waited for.
#[tokio::test]
async fn the_sqlite_store_refines_the_model() {
    let folder = tempfile::tempdir().expect("a folder of its own");
    let url = format!("sqlite:{}", folder.path().join("locks.db").display());
    let subject = Subject::in_real_time(move || lockkeeper::url::connector(&url));
    for seed in 0..2 {
        check(&subject, seed, 60).await.unwrap_or_else(|failure| panic!("{failure}"));
    }
}

/// Those that the simulation has no eye for.
const OTHER_BUGS: [Bug; 8] = [
    Bug::LeaveForgotten,
    Bug::MismatchGranted,
    Bug::NeverDetached,
    Bug::EvictedByName,
    Bug::ValueForgotten,
    Bug::ListedAnyhow,
    Bug::CountedTwice,
    Bug::FenceForgets,
];

#[test]
fn every_planted_bug_is_told_apart() {
    for bug in Bug::ALL.into_iter().chain(OTHER_BUGS) {
        // A wrong deadline shows only when an answer takes a while.
        let failure = (0..20).find_map(|seed| match bug {
            Bug::DeadlineAfterReply => {
                let slow = slow(seed);
                run(seed, SLOW, move |connector| broken(slow(connector), bug)).err()
            }
            _ => run(seed, Duration::ZERO, move |connector| broken(connector, bug)).err(),
        });
        let failure = failure.unwrap_or_else(|| panic!("{bug:?} went unseen in 20 seeds"));
        println!("{bug:?}: {failure}\n");
    }
}

/// What a script or a query that rewrites the model may forget.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Slip {
    CountsRepeatedOperations,
    DoesNotEvict,
    ListsOnePageOnly,
    IgnoresDowngrades,
    IgnoresTheMinimumHold,
    SharesAStamp,
    AnswersTheFullLease,
}

const SLIPS: [Slip; 7] = [
    Slip::CountsRepeatedOperations,
    Slip::DoesNotEvict,
    Slip::ListsOnePageOnly,
    Slip::IgnoresDowngrades,
    Slip::IgnoresTheMinimumHold,
    Slip::SharesAStamp,
    Slip::AnswersTheFullLease,
];

#[test]
fn every_slip_is_told_apart() {
    for slip in SLIPS {
        let failure = (0..50).find_map(|seed| {
            run(seed, Duration::ZERO, move |connector| {
                Connector::new(move |context| async move {
                    let inner = connector.connect(context).await?;
                    Ok(Arc::new(Slipping { inner, slip, operations: AtomicU64::new(1 << 40) })
                        as Arc<dyn Store>)
                })
            })
            .err()
        });
        let failure = failure.unwrap_or_else(|| panic!("{slip:?} went unseen in 50 seeds"));
        println!("{slip:?}: {failure}\n");
    }
}

#[derive(Debug)]
struct Slipping {
    inner: Arc<dyn Store>,
    slip: Slip,
    operations: AtomicU64,
}

impl Slipping {
    fn spoil(&self, request: &Request) -> Request {
        let mut request = request.clone();
        match (self.slip, &mut request) {
            (Slip::SharesAStamp, Request::Claim(claim)) => claim.stamp = 7,
            (Slip::IgnoresTheMinimumHold, Request::Leave(leave)) => leave.hold_at_least = Duration::ZERO,
            _ => {}
        }
        request
    }
}

impl Store for Slipping {
    fn capability(&self) -> &Capability {
        self.inner.capability()
    }

    fn url(&self) -> &Arc<str> {
        self.inner.url()
    }

    fn id(&self) -> &str {
        self.inner.id()
    }

    fn server_of(&self, name: &Name) -> usize {
        self.inner.server_of(name)
    }

    fn apply<'a>(&'a self, group: &'a [Request]) -> Reply<'a, Answers<Answer>> {
        Box::pin(async move {
            let spoiled: Vec<_> = group.iter().map(|request| self.spoil(request)).collect();
            self.inner.apply(&spoiled).await
        })
    }

    fn renew<'a>(&'a self, leases: &'a [Renew]) -> Reply<'a, Answers<Renewed>> {
        Box::pin(async move {
            let mut spoiled = leases.to_vec();
            for renew in &mut spoiled {
                match self.slip {
                    Slip::IgnoresDowngrades => renew.lower_to = None,
                    _ => {}
                }
            }
            let mut answers = self.inner.renew(&spoiled).await?;
            for (renew, answer) in leases.iter().zip(&mut answers.each) {
                if let (Slip::AnswersTheFullLease, Renewed::Held { remaining }) = (self.slip, answer) {
                    *remaining = renew.lease;
                }
            }
            Ok(answers)
        })
    }

    fn watch<'a>(&'a self, topic: &'a Topic) -> Reply<'a, Option<Watch>> {
        self.inner.watch(topic)
    }

    fn inspect<'a>(&'a self, name: &'a Name) -> Reply<'a, Option<ResourceView>> {
        self.inner.inspect(name)
    }

    fn list<'a>(&'a self, query: &'a ListQuery) -> Reply<'a, Page> {
        Box::pin(async move {
            let mut page = self.inner.list(query).await?;
            if self.slip == Slip::ListsOnePageOnly {
                page.next = None;
            }
            Ok(page)
        })
    }

    fn evict<'a>(&'a self, order: &'a Evict) -> Reply<'a, Evicted> {
        Box::pin(async move {
            if self.slip == Slip::DoesNotEvict {
                return Ok(Evicted::Done);
            }
            self.inner.evict(order).await
        })
    }

    fn count<'a>(&'a self, count: &'a Count) -> Reply<'a, Answers<Counted>> {
        Box::pin(async move {
            let mut count = count.clone();
            if self.slip == Slip::CountsRepeatedOperations {
                count.op.seq = self.operations.fetch_add(1, Ordering::Relaxed);
            }
            self.inner.count(&count).await
        })
    }

    fn fence<'a>(&'a self, admit: &'a Admit) -> Reply<'a, Admitted> {
        self.inner.fence(admit)
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        self.inner.close()
    }
}
