//! The place of the master, as the sentinels report it.
//!
//! A master that was cut off from its replicas and sentinels goes on answering its clients while another server has
//! become the master. Only the sentinels know. So this store keeps connections to them while anything is held or waited
//! for, on the keeper's runtime. Each sentinel tells when the master changes (`+switch-master`), and is asked from time
//! to time, since a message may be lost and a connection be dead. While nothing is held or waited for there are no
//! connections.
//!
//! [`reports`] decides which master counts, [`connection`] speaks with one sentinel.

mod connection;
mod reports;

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard},
    time::{Duration, Instant},
};

use lockkeeper_core::{
    ContenderId, StoreError, StoreErrorKind,
    support::{self, backoff::Backoff},
};
use tokio::{
    runtime::Handle,
    sync::watch,
    task::{AbortHandle, JoinSet},
};

use self::{
    connection::SentinelConnection,
    reports::{Report, Reports},
};
use crate::{address::Address, opener::Opener, trouble};

/// How often a sentinel is asked that tells of changes.
const ASK_EVERY: Duration = Duration::from_secs(5);
/// How often a sentinel is asked that cannot tell, and each while they disagree.
const ASK_OFTEN: Duration = Duration::from_secs(1);
/// A hold that lasts for less than this opens no connection to a sentinel.
const SHORT_HOLD: Duration = Duration::from_secs(1);
/// How long the connections are kept after nothing is held or waited for any more.
const LINGER: Duration = Duration::from_secs(10);
/// How long a sentinel that cannot be asked is left alone.
const SHORTEST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

#[derive(Default)]
struct State {
    reports: Reports,
    /// When each hold or wait ends.
    needs: HashMap<ContenderId, Instant>,
    /// The connections are kept until then, also if nothing needs them.
    keep_until: Option<Instant>,
    /// The task that keeps the connections, while there is one.
    task: Option<AbortHandle>,
    closed: bool,
}

impl State {
    fn is_needed(&mut self, now: Instant) -> bool {
        self.needs.retain(|_, until| *until > now);
        !self.needs.is_empty()
    }

    fn keeps_connections(&self, now: Instant) -> bool {
        self.keep_until.is_some_and(|until| until > now)
    }
}

/// The sentinels of one master.
pub(crate) struct Sentinels {
    opener: Arc<Opener>,
    addresses: Vec<Address>,
    name: String,
    keeper: Handle,
    state: Mutex<State>,
    /// The master that counts.
    master: watch::Sender<Option<Address>>,
    /// Counts rounds of questions.
    rounds: watch::Sender<u64>,
    /// Counts answers, also those that failed.
    answers: watch::Sender<u64>,
}

impl Sentinels {
    pub(crate) fn new(opener: &Arc<Opener>, addresses: &[Address], name: &str, keeper: &Handle) -> Arc<Self> {
        let state = State { reports: Reports::new(addresses.len()), ..State::default() };
        Arc::new(Self {
            opener: opener.clone(),
            addresses: addresses.to_vec(),
            name: name.to_owned(),
            keeper: keeper.clone(),
            state: Mutex::new(state),
            master: watch::channel(None).0,
            rounds: watch::channel(0).0,
            answers: watch::channel(0).0,
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        support::lock(&self.state)
    }

    /// The master as far as it is known, and each change of it.
    pub(crate) fn master(&self) -> watch::Receiver<Option<Address>> {
        self.master.subscribe()
    }

    /// Whether `address` is that of the master, as far as it is known.
    pub(crate) fn is_master(&self, address: &Address) -> bool {
        self.master.borrow().as_ref().is_none_or(|master| master == address)
    }

    /// A contender holds or waits for `lasts`: until then, a change of the master must be noticed.
    pub(crate) fn need(self: &Arc<Self>, contender: ContenderId, lasts: Duration) {
        let now = Instant::now();
        // A time beyond the clock's range is as good as for ever.
        let until = now.checked_add(lasts).unwrap_or(now + Duration::from_secs(1 << 30));
        let mut state = self.state();
        state.needs.insert(contender, until);
        self.start_task(&mut state);
    }

    /// A contender no longer holds or waits.
    pub(crate) fn done(&self, contender: ContenderId) {
        self.state().needs.remove(&contender);
    }

    /// Has all sentinels asked now; returns the number of the round.
    pub(crate) fn ask(self: &Arc<Self>) -> u64 {
        let mut state = self.state();
        state.keep_until = Some(Instant::now() + LINGER);
        self.start_task(&mut state);
        drop(state);
        let mut round = 0;
        self.rounds.send_modify(|rounds| {
            *rounds += 1;
            round = *rounds;
        });
        round
    }

    /// Asks the sentinels for the master.
    pub(crate) async fn locate(self: &Arc<Self>) -> Result<Address, StoreError> {
        let mut answers = self.answers.subscribe();
        let round = self.ask();
        let answered = answers.wait_for(|_| self.state().reports.are_enough(round));
        // Sentinels that have not answered by then are left out.
        drop(tokio::time::timeout(self.opener.patience(), answered).await);
        let mut state = self.state();
        let master = state.reports.choose(round)?;
        self.turn_to(&master);
        Ok(master)
    }

    fn turn_to(&self, master: &Address) {
        self.master.send_if_modified(|known| {
            let changed = known.as_ref() != Some(master);
            if changed {
                *known = Some(master.clone());
            }
            changed
        });
    }

    /// Takes in the answer of a sentinel to the questions of a round.
    fn take_in(&self, sentinel: usize, round: u64, answer: Result<Report, StoreError>) {
        let mut state = self.state();
        let is_news = state.reports.take_in(sentinel, round, answer);
        let agreed = state.reports.agree();
        if let Some(master) = &agreed {
            self.turn_to(master);
        }
        drop(state);
        self.answers.send_modify(|answers| *answers += 1);
        if agreed.is_none() && is_news {
            // The others may be about to learn of it.
            self.next_round();
        }
    }

    fn next_round(&self) {
        self.rounds.send_modify(|rounds| *rounds += 1);
    }

    /// Starts the task that keeps the connections, unless it runs.
    fn start_task(self: &Arc<Self>, state: &mut State) {
        if state.task.is_none() && !state.closed {
            state.task = Some(self.keeper.spawn(self.clone().keep_connections()).abort_handle());
        }
    }

    /// Keeps the connections while they are needed; ends them, and itself, when they are not.
    async fn keep_connections(self: Arc<Self>) {
        let mut rounds = self.rounds.subscribe();
        let mut tasks = JoinSet::new();
        let mut needed_before = false;
        loop {
            let now = Instant::now();
            {
                let mut state = self.state();
                let needed = state.is_needed(now);
                if needed && needed_before {
                    state.keep_until = Some(now + LINGER);
                }
                if !needed && !state.keeps_connections(now) {
                    state.task = None;
                    // The reports will be old at the next question.
                    state.reports.forget();
                    return;
                }
                needed_before = needed;
                if tasks.is_empty() && state.keeps_connections(now) {
                    for sentinel in 0..self.addresses.len() {
                        tasks.spawn(self.clone().keep_connection(sentinel));
                    }
                }
            }
            if tasks.is_empty() {
                // A question opens the connections at once.
                tokio::select! {
                    () = tokio::time::sleep(SHORT_HOLD) => {}
                    _ = rounds.changed() => {}
                }
            } else {
                tokio::time::sleep(SHORT_HOLD).await;
            }
        }
    }

    /// Keeps the connection to one sentinel.
    async fn keep_connection(self: Arc<Self>, sentinel: usize) {
        let mut rounds = self.rounds.subscribe();
        let mut tells = self.opener.settings().resp3;
        let mut backoff = Backoff::new(SHORTEST_PAUSE, LONGEST_PAUSE);
        let address = &self.addresses[sentinel];
        loop {
            let round = *rounds.borrow_and_update();
            let error = match SentinelConnection::open(&self.opener, address, tells).await {
                Ok(mut connection) => self.listen(sentinel, &mut connection, &mut rounds, &mut backoff).await,
                Err(error)
                    if tells && error.kind() == StoreErrorKind::Config && !self.opener.has_wrong_scheme() =>
                {
                    // It does not speak RESP3.
                    tells = false;
                    continue;
                }
                Err(error) => error,
            };
            let round = round.max(*rounds.borrow());
            tracing::debug!(sentinel = %address, %error, "a sentinel cannot be asked");
            self.take_in(sentinel, round, Err(error));
            tokio::select! {
                () = tokio::time::sleep(backoff.jittered()) => {}
                _ = rounds.changed() => {}
            }
        }
    }

    /// Asks a sentinel when it tells of a change, when a round begins, and from time to time; until it fails.
    async fn listen(
        &self,
        sentinel: usize,
        connection: &mut SentinelConnection,
        rounds: &mut watch::Receiver<u64>,
        backoff: &mut Backoff,
    ) -> StoreError {
        loop {
            let round = *rounds.borrow_and_update();
            match connection.report(&self.name).await {
                Ok(report) => self.take_in(sentinel, round, Ok(report)),
                Err(error) => return error,
            }
            backoff.reset();
            let often = !connection.tells() || self.state().reports.disagree();
            tokio::select! {
                changed = connection.next_change() => match changed {
                    // The others may know of it as well.
                    Some(()) => self.next_round(),
                    None => return trouble::ended(&self.addresses[sentinel].to_string()),
                },
                _ = rounds.changed() => {}
                () = tokio::time::sleep(if often { ASK_OFTEN } else { ASK_EVERY }) => {}
            }
        }
    }

    /// Ends all connections for good.
    pub(crate) fn close(&self) {
        let mut state = self.state();
        state.closed = true;
        state.needs.clear();
        if let Some(task) = state.task.take() {
            task.abort();
        }
    }
}
