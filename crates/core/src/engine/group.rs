//! Requests in groups: what arrives while requests are in flight goes out as the next one.
//!
//! Idle, a lone claim leaves at once, started by the very task that asked. Loaded, sixty-four
//! tasks cost the store little more than one. There is one queue of jobs per server of the store,
//! and only as many requests in flight on each as the store says it can make use of.

use std::{
    collections::{BTreeSet, HashMap, VecDeque},
    sync::{Arc, Mutex, MutexGuard},
};

use tokio::sync::oneshot;

use super::{
    Engine,
    flight::Flight,
    seat::{Seat, Standing},
    steps::look,
};
use crate::{
    clock::BootTime,
    error::{StoreError, StoreErrorKind},
    name::Name,
    store::{Answer, Answers, Leave, Left, Request},
    support,
};

/// One entry of a group to be.
pub(crate) enum Job {
    Claim(Arc<Seat>),
    Leave(LeaveJob),
}

/// A leave, who waits for its answer, and when it becomes pointless.
pub(crate) struct LeaveJob {
    pub(crate) leave: Leave,
    pub(crate) reply: Option<oneshot::Sender<Result<Left, StoreError>>>,
    pub(crate) until: BootTime,
    pub(crate) tries: u32,
}

impl Job {
    fn name(&self) -> &Name {
        match self {
            Self::Claim(seat) => &seat.claim().name,
            Self::Leave(job) => &job.leave.name,
        }
    }
}

/// The jobs for one server.
#[derive(Default)]
pub(crate) struct Group {
    queue: Mutex<Queue>,
}

#[derive(Default)]
struct Queue {
    jobs: VecDeque<Job>,
    /// First claims behind another first claim of the same name that is among the jobs: each comes among them when the
    /// one before it is taken out, so that a long line of them is not looked through for each request. Where there are
    /// no jobs, nobody is behind.
    behind: HashMap<Name, VecDeque<Arc<Seat>>>,
    flying: usize,
    /// How many jobs are in flight.
    on_board: usize,
    /// Somebody will see to it that what lies here flies.
    called_for: bool,
}

impl Group {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        support::lock(&self.queue)
    }

    /// Adds jobs. If another request may fly, the caller gets the flight and must let it fly.
    pub(crate) fn submit(
        self: &Arc<Self>,
        engine: &Arc<Engine>,
        jobs: impl IntoIterator<Item = Job>,
    ) -> Option<Flight> {
        let mut queue = self.lock();
        queue.jobs.extend(jobs);
        if queue.jobs.is_empty() || queue.flying >= engine.requests_at_once() {
            return None;
        }
        queue.flying += 1;
        let alone = queue.flying == 1;
        drop(queue);
        Some(self.flight(engine, alone))
    }

    /// Adds a leave that nobody waits for. It goes along with whatever flies next; the caller gets a flight, which it
    /// must let fly, that takes it if nothing else has until then.
    pub(crate) fn leave_behind(self: &Arc<Self>, engine: &Arc<Engine>, job: LeaveJob) -> Option<Flight> {
        let mut queue = self.lock();
        queue.jobs.push_back(Job::Leave(job));
        if queue.flying >= engine.requests_at_once() || std::mem::replace(&mut queue.called_for, true) {
            return None;
        }
        drop(queue);
        let (group, engine) = (self.clone(), engine.clone());
        let patrol = engine.patrol().clone();
        Some(patrol.flight(Box::pin(async move {
            group.lock().called_for = false;
            if let Some(flight) = group.submit(&engine, []) {
                flight.await;
            }
        })))
    }

    /// Sends one batch and settles it; what has come in meanwhile flies next. One that is not `alone` first lets the
    /// tasks speak that are ready to: the store is busy anyway, and what they say goes along.
    fn flight(self: &Arc<Self>, engine: &Arc<Engine>, alone: bool) -> Flight {
        // Made here and not at the first poll: a flight that never starts must land, too.
        let mut landing =
            Landing { group: self.clone(), engine: engine.clone(), started: false, on_board: 0 };
        let flying = Box::pin(async move {
            landing.started = true;
            if !alone {
                tokio::task::yield_now().await;
            }
            let batch = landing.group.take(&landing.engine, alone);
            landing.on_board = batch.len();
            if !batch.is_empty() {
                landing.engine.send(batch).await;
            }
            drop(landing);
        });
        engine.patrol().flight(flying)
    }

    /// The next batch: at most one claim per resource that the store has not seen before, in
    /// order of name, leaves before claims. One that is not `alone` takes its share of all that is under way, so that
    /// flights are equally full: else one would carry all and the others nothing, for ever.
    fn take(&self, engine: &Engine, alone: bool) -> Vec<Job> {
        let mut queue = self.lock();
        let share = (queue.jobs.len() + queue.on_board).div_ceil(engine.requests_at_once());
        let limit = if alone { engine.group_limit() } else { engine.group_limit().min(share.max(1)) };
        let mut batch = Vec::with_capacity(queue.jobs.len().min(limit));
        let mut new: BTreeSet<Name> = BTreeSet::new();
        while batch.len() < limit
            && let Some(job) = queue.jobs.pop_front()
        {
            look();
            match job {
                Job::Claim(seat) => match seat.standing() {
                    Standing::Over => {
                        // Those behind it move up all the same.
                        if queue.behind.contains_key(&seat.claim().name) {
                            new.insert(seat.claim().name.clone());
                        }
                    }
                    Standing::New if new.contains(&seat.claim().name) => {
                        queue.behind.entry(seat.claim().name.clone()).or_default().push_back(seat);
                    }
                    Standing::New => {
                        if !queue.is_last(&batch) {
                            new.insert(seat.claim().name.clone());
                        }
                        batch.push(Job::Claim(seat));
                    }
                    Standing::Known => batch.push(Job::Claim(seat)),
                },
                leave => batch.push(leave),
            }
        }
        queue.follow(&new);
        queue.on_board += batch.len();
        drop(queue);
        batch.sort_by(|a, b| {
            let is_claim = |job: &Job| matches!(job, Job::Claim(_));
            (a.name(), is_claim(a)).cmp(&(b.name(), is_claim(b)))
        });
        batch
    }
}

impl Queue {
    /// Whether what was taken out just now is all there is.
    fn is_last(&self, batch: &[Job]) -> bool {
        batch.is_empty() && self.jobs.is_empty() && self.behind.is_empty()
    }

    /// First claims of these names were taken: those behind them are next.
    fn follow(&mut self, taken: &BTreeSet<Name>) {
        if self.behind.is_empty() {
            return;
        }
        for name in taken {
            let Some(line) = self.behind.get_mut(name) else { continue };
            while let Some(seat) = line.pop_front() {
                look();
                if seat.standing() != Standing::Over {
                    self.jobs.push_front(Job::Claim(seat));
                    break;
                }
            }
            if line.is_empty() {
                self.behind.remove(name);
            }
        }
    }
}

/// Ends a flight, also one that panicked or was dropped: what is left flies next.
struct Landing {
    group: Arc<Group>,
    engine: Arc<Engine>,
    started: bool,
    on_board: usize,
}

impl Drop for Landing {
    fn drop(&mut self) {
        let mut queue = self.group.lock();
        queue.on_board -= self.on_board;
        if queue.jobs.is_empty() || !self.started {
            // A flight is never started only if the keeper's thread has ended: then nobody can send
            // what is left, and nobody waits for it.
            let given_up = (std::mem::take(&mut queue.jobs), std::mem::take(&mut queue.behind));
            queue.flying -= 1;
            drop(queue);
            drop(given_up);
            return;
        }
        let alone = queue.flying == 1;
        drop(queue);
        self.group.flight(&self.engine, alone).depart();
    }
}

/// A batch in flight: every job gets an answer, whatever happens to the flight, also if the code that one of them calls
/// panics.
struct Batch<'a> {
    engine: &'a Arc<Engine>,
    jobs: VecDeque<Job>,
}

impl Batch<'_> {
    fn land(mut self, sent: BootTime, result: Result<Answers<Answer>, StoreError>) {
        match result {
            Ok(answers) => {
                let mut answers = answers.each.into_iter();
                while let Some(job) = self.jobs.pop_front() {
                    self.engine.settle(job, sent, answers.next());
                }
            }
            Err(error) => {
                while let Some(job) = self.jobs.pop_front() {
                    self.engine.trouble(job, &error);
                }
            }
        }
    }
}

impl Drop for Batch<'_> {
    fn drop(&mut self) {
        let jobs = std::mem::take(&mut self.jobs);
        if jobs.is_empty() {
            return;
        }
        let error = StoreError::new(StoreErrorKind::Unreachable, "the request was given up half-way");
        for job in jobs {
            self.engine.trouble(job, &error);
        }
    }
}

impl Engine {
    /// Sends one batch as one request and settles every job in it.
    async fn send(self: &Arc<Self>, jobs: Vec<Job>) {
        let mut batch = Batch { engine: self, jobs: VecDeque::with_capacity(jobs.len()) };
        let mut requests = Vec::with_capacity(jobs.len());
        let sent = self.clock().now();
        // All of one group go to one server.
        let server = jobs.first().map_or(0, |job| self.store().server_of(job.name()));
        let not_after = self.store_clock().not_after(server, sent);
        for job in jobs {
            let request = match &job {
                // Cancelled before it was sent: nothing to say.
                Job::Claim(seat) => seat.next_copy(sent, not_after).map(Request::Claim),
                Job::Leave(job) => Some(Request::Leave(job.leave.clone())),
            };
            if let Some(request) = request {
                requests.push(request);
                batch.jobs.push_back(job);
            }
        }
        if requests.is_empty() {
            return;
        }
        let result = self.ask_in_flight(self.store().apply(&requests)).await;
        if let Ok(answers) = &result {
            self.store_clock().heard(server, self.clock().now(), answers.now);
        }
        batch.land(sent, result);
    }

    /// Hands one answer to whom it belongs.
    fn settle(self: &Arc<Self>, job: Job, sent: BootTime, answer: Option<Answer>) {
        match (job, answer) {
            (Job::Claim(seat), Some(Answer::Claim(verdict))) => self.on_verdict(&seat, sent, verdict),
            (Job::Leave(job), Some(Answer::Leave(left))) => self.left(job, Ok(left)),
            (job, _) => {
                let message = "the store's answers do not match the requests; report this as a bug";
                self.trouble(job, &StoreError::new(StoreErrorKind::Corrupt, message));
            }
        }
    }

    fn trouble(self: &Arc<Self>, job: Job, error: &StoreError) {
        match job {
            Job::Claim(seat) => self.judged_unknown(&seat, error),
            Job::Leave(job) => self.left(job, Err(error.clone())),
        }
    }
}
