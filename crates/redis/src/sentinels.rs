//! Where the master is, as the sentinels say.
//!
//! A master that was cut off from its replicas and sentinels goes on answering its clients while another one has taken its
//! place. Only the sentinels know. So they are listened to while anything is held or waited for, on kept connections on
//! the keeper's thread: each tells when it turns to another master (`+switch-master`), and is asked from time to time, since
//! a message may be lost and a connection be dead. While nothing is held or waited for there are no connections.
//!
//! What counts is the newest configuration that more than half of the sentinels of the URL name, and never one that is
//! older than what counted before: a sentinel may lag behind, or have been restarted with an old file.

use lockkeeper_core::support;
use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard},
    time::{Duration, Instant},
};

use lockkeeper_core::{ContenderId, StoreError, StoreErrorKind};
use redis::{Pipeline, PushInfo, PushKind, Value, aio::MultiplexedConnection};
use tokio::{
    runtime::Handle,
    sync::{mpsc, watch},
    task::{AbortHandle, JoinHandle, JoinSet},
};

use crate::{
    connect::{Opener, checked},
    connection::jittered,
    settings::Address,
    trouble,
};

/// How often a sentinel that tells of changes is asked all the same.
const LOOK: Duration = Duration::from_secs(5);
/// How often it is asked if it cannot tell, or while the sentinels disagree.
const CLOSE_LOOK: Duration = Duration::from_secs(1);
/// What is held for less than this opens no connection to a sentinel.
const PATIENCE: Duration = Duration::from_secs(1);
/// How long the connections are kept after nothing is held or waited for any more.
const LINGER: Duration = Duration::from_secs(10);
/// How long a sentinel that could not be asked is left alone: twice as long each time.
const SHORTEST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// What a sentinel says.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Report {
    /// Each failover has an epoch, larger than those before it.
    epoch: u64,
    master: Address,
}

/// The last that was heard of a sentinel.
#[derive(Clone, Default)]
struct LastReport {
    /// Which round of asking it answered.
    round: u64,
    /// What it says, or why it could not be asked.
    report: Option<Result<Report, StoreError>>,
}

impl LastReport {
    fn report(&self) -> Option<&Report> {
        self.report.as_ref()?.as_ref().ok()
    }
}

#[derive(Default)]
struct State {
    heard: Vec<LastReport>,
    /// The epoch that counts. No older one ever will.
    seen: u64,
    /// Until when what is held or waited for lasts.
    needs: HashMap<ContenderId, Instant>,
    /// Until when the connections are kept, whatever is needed.
    awake_until: Option<Instant>,
    /// The task that keeps the connections, while there is one.
    task: Option<AbortHandle>,
    closed: bool,
}

impl State {
    /// What more than half of all sentinels say, of those that answered in this round or later.
    fn agreed(&self, round: u64) -> Option<&Report> {
        let mut reports = self.fresh(round);
        let agree = |report: &&Report| {
            2 * self.fresh(round).filter(|other| other == report).count() > self.heard.len()
        };
        reports.find(agree).filter(|report| report.epoch >= self.seen)
    }

    fn fresh(&self, round: u64) -> impl Iterator<Item = &Report> {
        self.heard.iter().filter(move |heard| heard.round >= round).filter_map(LastReport::report)
    }

    /// Whether some of those that can be asked say something else than others.
    fn disagree(&self) -> bool {
        let mut reports = self.fresh(0);
        let first = reports.next();
        reports.any(|report| Some(report) != first) || self.fresh(0).any(|report| report.epoch != self.seen)
    }

    fn is_needed(&mut self, now: Instant) -> bool {
        self.needs.retain(|_, until| *until > now);
        !self.needs.is_empty()
    }

    fn is_awake(&self, now: Instant) -> bool {
        self.awake_until.is_some_and(|until| until > now)
    }
}

/// The sentinels of one master.
pub(crate) struct Sentinels {
    opener: Arc<Opener>,
    addresses: Vec<Address>,
    name: String,
    keeper: Handle,
    state: Mutex<State>,
    /// Where the master is.
    place: watch::Sender<Option<Address>>,
    /// Counts rounds of asking.
    rounds: watch::Sender<u64>,
    /// Counts what was heard.
    answers: watch::Sender<u64>,
}

impl Sentinels {
    pub(crate) fn new(opener: &Arc<Opener>, addresses: &[Address], name: &str, keeper: &Handle) -> Arc<Self> {
        let state = State { heard: vec![LastReport::default(); addresses.len()], ..State::default() };
        Arc::new(Self {
            opener: opener.clone(),
            addresses: addresses.to_vec(),
            name: name.to_owned(),
            keeper: keeper.clone(),
            state: Mutex::new(state),
            place: watch::channel(None).0,
            rounds: watch::channel(0).0,
            answers: watch::channel(0).0,
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        support::lock(&self.state)
    }

    /// Where the master is, as far as is known, and each change of that.
    pub(crate) fn place(&self) -> watch::Receiver<Option<Address>> {
        self.place.subscribe()
    }

    /// Whether a connection that goes to `place` goes to the master, as far as is known.
    pub(crate) fn is_at(&self, place: &Address) -> bool {
        self.place.borrow().as_ref().is_none_or(|now| now == place)
    }

    /// Something is held or waited for, for this long unless report otherwise.
    pub(crate) fn need(self: &Arc<Self>, who: ContenderId, lasts: Duration) {
        // A time that cannot be told is as good as for ever.
        let now = Instant::now();
        let until = now.checked_add(lasts).unwrap_or(now + Duration::from_secs(1 << 30));
        let mut state = self.state();
        state.needs.insert(who, until);
        self.start_task(&mut state);
    }

    /// It is not held or waited for any more.
    pub(crate) fn done(&self, who: ContenderId) {
        self.state().needs.remove(&who);
    }

    /// Has all sentinels asked now; gives the number of the round.
    pub(crate) fn ask(self: &Arc<Self>) -> u64 {
        let mut state = self.state();
        state.awake_until = Some(Instant::now() + LINGER);
        self.start_task(&mut state);
        drop(state);
        let mut round = 0;
        self.rounds.send_modify(|rounds| {
            *rounds += 1;
            round = *rounds;
        });
        round
    }

    /// Where the master is now, by asking.
    pub(crate) async fn locate(self: &Arc<Self>) -> Result<Address, StoreError> {
        let mut answers = self.answers.subscribe();
        let round = self.ask();
        let all_said = || {
            let state = self.state();
            state.agreed(round).is_some() || state.heard.iter().all(|heard| heard.round >= round)
        };
        let limit = self.opener.settings().connect_limit;
        let report = answers.wait_for(|_| all_said());
        // Those who have not answered by then are left out.
        drop(tokio::time::timeout(limit, report).await);
        self.choose(round)
    }

    /// What this round came to: what counts; else, as few sentinels can be asked, the newest that any of them says.
    fn choose(&self, round: u64) -> Result<Address, StoreError> {
        let mut state = self.state();
        if let Some(report) = state.agreed(round).cloned() {
            return Ok(self.count(&mut state, &report));
        }
        if let Some(report) = state.fresh(round).max_by_key(|report| report.epoch) {
            if report.epoch < state.seen {
                return Err(trouble::outdated_sentinels(report.epoch, state.seen));
            }
            let master = report.master.clone();
            self.turn_to(&master);
            return Ok(master);
        }
        let why = state.heard.iter().find_map(|heard| heard.report.as_ref()?.as_ref().err().cloned());
        Err(why.unwrap_or_else(|| trouble::too_late("the sentinels")).not_applied())
    }

    fn count(&self, state: &mut State, report: &Report) -> Address {
        state.seen = report.epoch;
        self.turn_to(&report.master);
        report.master.clone()
    }

    fn turn_to(&self, master: &Address) {
        self.place.send_if_modified(|place| {
            let new = place.as_ref() != Some(master);
            if new {
                *place = Some(master.clone());
            }
            new
        });
    }

    /// Takes in what a sentinel says, or that it does not.
    fn heard(self: &Arc<Self>, sentinel: usize, round: u64, report: Result<Report, StoreError>) {
        let mut state = self.state();
        let news = report
            .as_ref()
            .is_ok_and(|report| report.epoch > state.seen && state.heard[sentinel].report() != Some(report));
        state.heard[sentinel] = LastReport { round, report: Some(report) };
        let agreed = state.agreed(0).cloned();
        let mut asked = false;
        match agreed {
            Some(report) => drop(self.count(&mut state, &report)),
            // The others may be about to learn of it.
            None => asked = news,
        }
        drop(state);
        self.answers.send_modify(|answers| *answers += 1);
        if asked {
            self.rounds.send_modify(|rounds| *rounds += 1);
        }
    }

    /// Starts the task that keeps the connections, unless it runs.
    fn start_task(self: &Arc<Self>, state: &mut State) {
        if state.task.is_none() && !state.closed {
            state.task = Some(self.keeper.spawn(self.clone().task()).abort_handle());
        }
    }

    /// Keeps the connections while they are needed; ends them, and itself, when they are not.
    async fn task(self: Arc<Self>) {
        let mut rounds = self.rounds.subscribe();
        let mut listeners = JoinSet::new();
        let mut needed_before = false;
        loop {
            let now = Instant::now();
            {
                let mut state = self.state();
                let needed = state.is_needed(now);
                if needed && needed_before {
                    state.awake_until = Some(now + LINGER);
                }
                if !needed && !state.is_awake(now) {
                    state.task = None;
                    // What they report will be old when somebody asks again.
                    state.heard.fill(LastReport::default());
                    return;
                }
                needed_before = needed;
                if listeners.is_empty() && state.is_awake(now) {
                    for sentinel in 0..self.addresses.len() {
                        listeners.spawn(self.clone().attend(sentinel));
                    }
                }
            }
            if listeners.is_empty() {
                // Unless somebody asks, which is not waited for.
                tokio::select! {
                    () = tokio::time::sleep(PATIENCE) => {}
                    _ = rounds.changed() => {}
                }
            } else {
                tokio::time::sleep(PATIENCE).await;
            }
        }
    }

    /// Keeps one sentinel's connection.
    async fn attend(self: Arc<Self>, sentinel: usize) {
        let mut rounds = self.rounds.subscribe();
        let mut tells = self.opener.settings().resp3;
        let mut pause = Duration::ZERO;
        loop {
            let round = *rounds.borrow_and_update();
            let error = match self.call(sentinel, tells).await {
                Ok(mut connection) => self.listen(sentinel, &mut connection, &mut rounds, &mut pause).await,
                Err(error) if tells && error.kind() == StoreErrorKind::Config => {
                    // It does not speak RESP3.
                    tells = false;
                    continue;
                }
                Err(error) => error,
            };
            let round = round.max(*rounds.borrow());
            tracing::debug!(sentinel = %self.addresses[sentinel], %error, "a sentinel cannot be asked");
            self.heard(sentinel, round, Err(error));
            pause = (pause * 2).clamp(SHORTEST_PAUSE, LONGEST_PAUSE);
            tokio::select! {
                () = tokio::time::sleep(jittered(pause)) => {}
                _ = rounds.changed() => {}
            }
        }
    }

    async fn call(&self, sentinel: usize, tells: bool) -> Result<SentinelConnection, StoreError> {
        let address = &self.addresses[sentinel];
        let (sender, messages) = mpsc::unbounded_channel();
        let pushes = tells.then(|| Box::new(sender) as _);
        let (connection, driver) = self.opener.sentinel(address, pushes).await?;
        let mut connection = SentinelConnection {
            connection,
            driver,
            messages: tells.then_some(messages),
            address: address.to_string(),
        };
        if tells {
            let mut subscribe = Pipeline::with_capacity(1);
            subscribe.cmd("SUBSCRIBE").arg("+switch-master");
            let answer = connection.ask(&subscribe, 1, self.opener.settings().connect_limit).await?.pop();
            if let Some(Value::ServerError(error)) = answer {
                tracing::debug!(sentinel = %address, %error, "a sentinel does not tell of changes");
                connection.messages = None;
            }
        }
        Ok(connection)
    }

    /// Asks a sentinel when it tells of a change, when somebody wants to know, and from time to time; until it fails.
    async fn listen(
        self: &Arc<Self>,
        sentinel: usize,
        connection: &mut SentinelConnection,
        rounds: &mut watch::Receiver<u64>,
        pause: &mut Duration,
    ) -> StoreError {
        loop {
            let round = *rounds.borrow_and_update();
            match self.question(connection).await {
                Ok(report) => self.heard(sentinel, round, Ok(report)),
                Err(error) => return error,
            }
            *pause = Duration::ZERO;
            let again =
                if connection.messages.is_none() || self.state().disagree() { CLOSE_LOOK } else { LOOK };
            tokio::select! {
                told = connection.told() => match told {
                    // The others may know of it as well.
                    Some(()) => self.rounds.send_modify(|rounds| *rounds += 1),
                    None => return trouble::ended(&connection.address),
                },
                _ = rounds.changed() => {}
                () = tokio::time::sleep(again) => {}
            }
        }
    }

    /// Asks for master and epoch. While it leads a failover, a sentinel has the new epoch already but shows the old master
    /// beside it, and gives the new one only to those who ask for the address; so that is asked for, between two looks at
    /// the epoch that must be the same.
    async fn question(&self, connection: &mut SentinelConnection) -> Result<Report, StoreError> {
        let mut questions = Pipeline::with_capacity(3);
        for order in ["MASTER", "GET-MASTER-ADDR-BY-NAME", "MASTER"] {
            questions.cmd("SENTINEL").arg(order).arg(&self.name);
        }
        loop {
            let answers = connection.ask(&questions, 3, self.opener.settings().connect_limit).await?;
            let [before, place, after] =
                <[Value; 3]>::try_from(answers).map_err(|_| trouble::nonsense("a master"))?;
            let place = checked(place).map_err(|error| trouble::refused(&error))?;
            if place == Value::Nil {
                return Err(trouble::unknown_master(&connection.address, &self.name));
            }
            let (host, port): (String, u16) =
                redis::from_redis_value(place).map_err(|_| trouble::nonsense("a master"))?;
            let (before, epoch) = (epoch_of(before), epoch_of(after));
            if before == epoch {
                return Ok(Report { epoch, master: Address::Tcp(host.into(), port) });
            }
        }
    }

    /// Ends all connections; nobody will ask any more.
    pub(crate) fn close(&self) {
        let mut state = self.state();
        state.closed = true;
        state.needs.clear();
        if let Some(task) = state.task.take() {
            task.abort();
        }
    }
}

/// The epoch that a sentinel shows; zero if this user may not see it.
fn epoch_of(shown: Value) -> u64 {
    let facts =
        checked(shown).ok().and_then(|facts| redis::from_redis_value::<HashMap<String, String>>(facts).ok());
    facts.and_then(|facts| facts.get("config-epoch")?.parse().ok()).unwrap_or(0)
}

/// A connection to a sentinel.
struct SentinelConnection {
    connection: MultiplexedConnection,
    driver: JoinHandle<()>,
    /// What it tells, if it can.
    messages: Option<mpsc::UnboundedReceiver<PushInfo>>,
    address: String,
}

impl SentinelConnection {
    async fn ask(
        &mut self,
        questions: &Pipeline,
        count: usize,
        limit: Duration,
    ) -> Result<Vec<Value>, StoreError> {
        let asked = self.connection.send_packed_commands(questions, 0, count);
        match tokio::time::timeout(limit, asked).await {
            Ok(Ok(answers)) => Ok(answers),
            Ok(Err(error)) => Err(trouble::not_connected(&self.address, error)),
            Err(_) => Err(trouble::too_late(&self.address)),
        }
    }

    /// The next message; `None` at the end of the connection, never if it cannot tell.
    async fn told(&mut self) -> Option<()> {
        let Some(messages) = &mut self.messages else { return std::future::pending().await };
        loop {
            match messages.recv().await?.kind {
                PushKind::Message => return Some(()),
                PushKind::Disconnection => return None,
                _ => {}
            }
        }
    }
}

impl Drop for SentinelConnection {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(epoch: u64, host: &str) -> Report {
        Report { epoch, master: Address::Tcp(host.into(), 6379) }
    }

    fn state(seen: u64, reports: &[Option<Report>]) -> State {
        let heard = |report: &Option<Report>| LastReport { round: 1, report: report.clone().map(Ok) };
        State { heard: reports.iter().map(heard).collect(), seen, ..State::default() }
    }

    #[test]
    fn what_more_than_half_say_counts() {
        let (old, new) = (report(4, "old"), report(5, "new"));
        let agreed = |seen, reports: &[Option<Report>]| state(seen, reports).agreed(0).cloned();
        let one_ahead = [Some(new.clone()), Some(old.clone()), Some(old.clone())];
        assert_eq!(agreed(4, &one_ahead), Some(old.clone()), "one is ahead of the others");
        let one_behind = [Some(old.clone()), Some(new.clone()), Some(new.clone())];
        assert_eq!(agreed(4, &one_behind), Some(new.clone()), "one lies behind");
        assert_eq!(agreed(4, &[Some(new.clone()), Some(old), None]), None, "no two agree");
        assert_eq!(agreed(4, &[Some(new.clone()), None, None]), None, "one of three");
        assert_eq!(agreed(0, &[Some(new.clone())]), Some(new), "the only one");
    }

    #[test]
    fn an_older_epoch_than_was_seen_never_counts() {
        let old = report(4, "old");
        let all_old = [Some(old.clone()), Some(old.clone()), Some(old)];
        assert_eq!(state(5, &all_old).agreed(0), None, "they were restarted with old files");
    }

    #[test]
    fn only_answers_of_a_round_count_for_it() {
        let new = report(5, "new");
        let mut state = state(4, &[Some(new.clone()), Some(new.clone()), Some(new.clone())]);
        state.heard[0].round = 2;
        assert_eq!(state.agreed(2), None, "one has answered so far");
        state.heard[2].round = 2;
        assert_eq!(state.agreed(2), Some(&new));
    }
}
