//! The workloads, and how much of each is measured. It imports nothing of this crate.

use std::time::Duration;

/// The workloads; `docs/benchmarks.md` explains each.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Workload {
    W1,
    W2,
    W3,
    W3p,
    W4,
    W4p,
    Held,
    GivenUp,
    Serve,
    Console,
}

impl Workload {
    pub(crate) const ALL: [Self; 8] =
        [Self::W1, Self::W2, Self::W3, Self::W3p, Self::W4, Self::W4p, Self::Held, Self::GivenUp];

    /// Need the server beside this program, so they are measured only if they are asked for.
    pub(crate) const ON_DEMAND: [Self; 2] = [Self::Serve, Self::Console];

    /// Its name, in the table and on the command line.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::W1 => "w1",
            Self::W2 => "w2",
            Self::W3 => "w3",
            Self::W3p => "w3p",
            Self::W4 => "w4",
            Self::W4p => "w4p",
            Self::Held => "held",
            Self::GivenUp => "given_up",
            Self::Serve => "serve",
            Self::Console => "console",
        }
    }
}

/// How much is measured.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Pace {
    /// Rounds of each contestant.
    pub(crate) rounds: usize,
    /// The length of a round.
    pub(crate) length: Duration,
    /// Rounds of W4, each of which takes long and whose figures are counts or nearly so.
    pub(crate) waits: usize,
    /// How long W4's tasks wait: several of the polls that a waiter makes when no wake comes.
    pub(crate) wait: Duration,
    /// How many locks are held.
    pub(crate) locks: usize,
    /// The lease of each; renewed at a third of it, and watched for the whole of it.
    pub(crate) lease: Duration,
    /// How many tasks wait and give up.
    pub(crate) crowd: usize,
}

impl Pace {
    /// The pace at which goals are judged.
    pub(crate) const FULL: Self = Self {
        rounds: 15,
        length: Duration::from_secs(2),
        waits: 2,
        wait: Duration::from_secs(30),
        locks: 100_000,
        lease: Duration::from_secs(30),
        crowd: 10_000,
    };

    /// Enough to see that everything runs.
    pub(crate) const QUICK: Self = Self {
        rounds: 2,
        length: Duration::from_millis(50),
        waits: 1,
        wait: Duration::from_millis(100),
        locks: 1000,
        lease: Duration::from_millis(500),
        crowd: 100,
    };

    /// Whether rates of this pace may be judged.
    pub(crate) fn is_enough(&self) -> bool {
        self.rounds >= Self::FULL.rounds && self.length >= Self::FULL.length
    }
}
