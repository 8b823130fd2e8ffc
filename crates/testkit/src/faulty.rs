//! A bad network, by chance: which requests, replies and wakes are delayed, lost or doubled.
//!
//! The network itself is [`lockkeeper_core::testing::Network`]. It wraps any store, so it tests the engine's logic in
//! virtual time and a real store's in real time.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use lockkeeper_core::{
    store::Connector,
    support,
    testing::{self, FateSource},
};

pub use lockkeeper_core::testing::Fate;

use crate::dice::Dice;

/// The faults of a network: chances in a thousand, times in milliseconds.
#[derive(Clone, Copy, Debug)]
pub struct Faults {
    /// Requests that never arrive.
    pub lost_request: u64,
    /// Requests that are done but whose reply never comes.
    pub lost_reply: u64,
    /// Requests that arrive once more: at once if the first copy is answered, up to `late` later
    /// if not. (A copy that comes after an answer that arrived would be the work of a driver that
    /// repeats requests by itself, which the contract forbids.)
    pub doubled: u64,
    /// Requests or replies that take up to `late`.
    pub slow: u64,
    /// Wakes that never come.
    pub lost_wake: u64,
    /// Wakes that come twice or late.
    pub odd_wake: u64,
    /// The longest time that a request usually takes.
    pub usual: u64,
    /// The longest time that a slow request or reply takes.
    pub late: u64,
}

impl Faults {
    /// A good network.
    pub const NONE: Self = Self {
        lost_request: 0,
        lost_reply: 0,
        doubled: 0,
        slow: 0,
        lost_wake: 0,
        odd_wake: 0,
        usual: 3,
        late: 0,
    };

    /// A bad network, drawn from dice.
    pub fn some(dice: &mut Dice) -> Self {
        let mut rate = |most| if dice.chance(500) { dice.below(most) } else { 0 };
        Self {
            lost_request: rate(60),
            lost_reply: rate(100),
            doubled: rate(150),
            slow: rate(100),
            lost_wake: rate(400),
            odd_wake: rate(300),
            usual: 1 + rate(20),
            late: 1 + rate(9000),
        }
    }
}

/// The network between one keeper and its store.
#[derive(Debug)]
pub struct Network {
    network: testing::Network,
    chance: Arc<Chance>,
}

impl Network {
    /// A network with these faults.
    pub fn new(dice: Dice, faults: Faults) -> Arc<Self> {
        let chance = Arc::new(Chance { dice: Mutex::new(dice), faults: Mutex::new(faults) });
        Arc::new(Self { network: testing::Network::by(chance.clone()), chance })
    }

    /// A good network, for a script.
    pub fn good() -> Arc<Self> {
        Self::new(Dice::new(0), Faults { usual: 0, ..Faults::NONE })
    }

    /// Decides the fate of the next request that has none yet.
    pub fn next(&self, fate: Fate) {
        self.network.next(fate);
    }

    /// Sets other faults from now on.
    pub fn set(&self, faults: Faults) {
        *support::lock(&self.chance.faults) = faults;
    }

    /// Lets nothing pass any more in either direction, as after a crash of the keeper's process.
    pub fn cut(&self) {
        self.network.cut();
    }
}

/// Dice that decide according to the faults.
#[derive(Debug)]
struct Chance {
    dice: Mutex<Dice>,
    faults: Mutex<Faults>,
}

impl Chance {
    fn roll<T>(&self, draw: impl FnOnce(&mut Dice, Faults) -> T) -> T {
        let faults = *support::lock(&self.faults);
        draw(&mut support::lock(&self.dice), faults)
    }
}

impl FateSource for Chance {
    fn request(&self) -> Fate {
        self.roll(|dice, faults| {
            let delay = |dice: &mut Dice| {
                let most = if dice.chance(faults.slow) { faults.late } else { faults.usual };
                dice.up_to(most)
            };
            Fate {
                before: delay(dice),
                arrives: !dice.chance(faults.lost_request),
                again: dice.chance(faults.doubled).then(|| dice.up_to(faults.late)),
                after: delay(dice),
                answers: !dice.chance(faults.lost_reply),
            }
        })
    }

    fn wake(&self) -> Vec<Duration> {
        self.roll(|dice, faults| {
            let odd = dice.chance(faults.odd_wake);
            let most = if odd { faults.late.min(4000) } else { faults.usual };
            let lost = dice.chance(faults.lost_wake);
            let delays = [dice.up_to(most), dice.up_to(most)];
            let copies = if lost { 0 } else { 1 + usize::from(odd) };
            delays.into_iter().take(copies).collect()
        })
    }
}

/// The store that `connector` connects to, behind `network`.
#[expect(clippy::needless_pass_by_value, reason = "a keeper has its network to itself")]
pub fn faulty(connector: Connector, network: Arc<Network>) -> Connector {
    network.network.wrap(connector)
}
