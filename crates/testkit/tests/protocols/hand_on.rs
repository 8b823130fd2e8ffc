//! Handing on: tasks of one process pass a hold to each other at memory speed, a task of another process waits in
//! the store's queue, any task may be dropped at any moment, and renewals may fail so that the hold is lost.
//!
//! It proves I14 (a hold that is handed on is held, each time with the next token, and not for ever while others wait),
//! and inside of a process I2 (one holder), I3 (once lost always lost), I5 (dropping a task at any moment leaks
//! nothing), I6 (tokens grow), I8 (waiters elsewhere are served).
//!
//! The process follows `engine/local_queue.rs` (a local queue has at most one front that claims at the store and at
//! most one open grant), `engine/release.rs` (a hold is handed on or left) and `engine/hold.rs`.

use std::{collections::VecDeque, time::Duration};

use lockkeeper_core::{
    ContenderId, GrantNumber, Token,
    clock::BootTime,
    deadline,
    store::{Claim, Grant, GrantNotice, Renewed, Verdict},
};
use stateright::{Model, Property};

use super::{
    prove, refute,
    store::{Store, Time, claim, contender},
};

const TICK: Duration = Duration::from_millis(10);
/// How long a grant may be handed on: as in the local queue.
const OPEN_FOR: Duration = Duration::from_millis(10);
const LEASE: Duration = Duration::from_millis(20);
/// How many steps a grant is good for: fewer than in life, so that they run out here.
const STEPS: u32 = 3;
const TASKS: usize = 3;
/// A task works at most this many ticks on a hold: long enough to lose it, if it is not renewed.
const WORK: u32 = 2;
const LAST_TICK: u32 = 5;
/// Grants that the process gets at most.
const GRANTS: u64 = 2;
/// A waiter elsewhere waits at most for the local queue to close, for the work of the last task, and for a tick
/// until the leave is at the store.
const PATIENCE: u32 = 1 + WORK + 1;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Variant {
    Right,
    /// A hold is handed on without a look at its deadline.
    AfterTheDeadline,
    /// The next task gets the token of the last one.
    SameToken,
    /// A grant stays open for as long as tasks want it.
    ForEver,
    /// A task that is dropped with a hold on its way to it does not give it back.
    Leaks,
}

/// A grant of the process, by its contender's number.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Hold {
    slot: u64,
    number: GrantNumber,
    deadline: BootTime,
    renew_at: BootTime,
    step: u32,
    lost: bool,
}

/// One step of a hold, owned by one task.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Turn {
    slot: u64,
    step: u32,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Task {
    Idle,
    /// In the local queue.
    Queued,
    /// Sent its turn, but has not run since.
    Handed(Turn),
    Called,
    /// Claims at the store under this number, as the front of the local queue or for a try.
    Asking {
        slot: u64,
        front: bool,
        sent: u32,
    },
    Working {
        turn: Turn,
        since: u32,
    },
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Open {
    slot: u64,
    until: BootTime,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
struct LocalQueue {
    front: bool,
    open: Option<Open>,
    queue: VecDeque<usize>,
}

/// Requests on their way to the store, in order: a group never overtakes another.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Job {
    Claim { slot: u64, task: usize, queue: bool, sent: u32 },
    Leave { slot: u64 },
}

/// The contender that waits elsewhere.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Other {
    Away,
    Waiting { since: u32 },
    Holding { number: GrantNumber, deadline: BootTime },
    Served,
}

#[derive(Clone, PartialEq, Hash, Debug)]
struct State {
    now: Time,
    store: Store,
    tasks: [Task; TASKS],
    local: LocalQueue,
    holds: Vec<Hold>,
    jobs: VecDeque<Job>,
    other: Other,
    next_slot: u64,
    /// The largest token that a task or the other one got, and whether a later one was not larger.
    highest: Option<Token>,
    token_fell: bool,
    /// Whether something was handed on that was not held.
    handed_on_lost: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Action {
    Tick,
    Lock(usize),
    TryLock(usize),
    Drop(usize),
    /// A task that was sent its turn runs.
    Run(usize),
    Process,
    CloseLane,
    Renew(u64),
    OtherComes,
    OtherReleases,
}

#[derive(Clone, Copy)]
struct World(Variant);

fn ours(slot: u64) -> ContenderId {
    contender(1, slot)
}

fn other() -> ContenderId {
    contender(2, 1)
}

impl State {
    fn hold(&self, slot: u64) -> Option<&Hold> {
        self.holds.iter().find(|hold| hold.slot == slot)
    }

    fn hold_mut(&mut self, slot: u64) -> Option<&mut Hold> {
        self.holds.iter_mut().find(|hold| hold.slot == slot)
    }

    /// Whether the owner of `turn` may act, as its guard says.
    fn is_held(&self, turn: Turn) -> bool {
        self.hold(turn.slot)
            .is_some_and(|hold| !hold.lost && hold.step == turn.step && self.now.boot() < hold.deadline)
    }

    fn token_given(&mut self, token: Token) {
        self.token_fell |= self.highest.is_some_and(|highest| token <= highest);
        self.highest = self.highest.max(Some(token));
    }

    /// The claim of `task` was granted: its hold begins and may be handed on for a while.
    fn granted(&mut self, task: usize, slot: u64, number: GrantNumber, deadline: BootTime, from: BootTime) {
        let Task::Asking { front, .. } = self.tasks[task] else { return };
        self.holds.push(Hold {
            slot,
            number,
            deadline,
            renew_at: from.after(LEASE / 3),
            step: 0,
            lost: false,
        });
        self.token_given(Token::new(number, 0));
        if front {
            self.local.front = false;
        }
        let until = self.now.boot().after(OPEN_FOR).min(deadline);
        self.local.open = Some(Open { slot, until });
        let turn = Turn { slot, step: 0 };
        self.tasks[task] = Task::Working { turn, since: self.now.ticks };
    }

    /// Tells pushed grants to their waiters at once.
    fn pushed(&mut self, notices: Vec<GrantNotice>) {
        for notice in notices {
            let from = BootTime(notice.stamp).after(notice.waited);
            let Some(deadline) = deadline::from_notice(&notice, self.now.boot()) else { continue };
            let slot = notice.contender.seq;
            if notice.contender == other() {
                self.other = Other::Holding { number: notice.number, deadline };
                self.token_given(Token::new(notice.number, 0));
                continue;
            }
            let asks = |task: &Task| matches!(task, Task::Asking { slot: asked, .. } if *asked == slot);
            if let Some(task) = self.tasks.iter().position(asks) {
                self.granted(task, slot, notice.number, deadline, from);
            }
        }
    }

    fn send_claim(&mut self, task: usize, front: bool, queue: bool) {
        let (slot, sent) = (self.next_slot, self.now.ticks);
        self.next_slot += 1;
        self.tasks[task] = Task::Asking { slot, front, sent };
        self.jobs.push_back(Job::Claim { slot, task, queue, sent });
    }

    /// Makes the first queued task the front, if there is none and nothing is open.
    fn advance(&mut self) {
        if self.local.front || self.local.open.is_some() {
            return;
        }
        if let Some(task) = self.local.queue.pop_front() {
            self.local.front = true;
            self.tasks[task] = Task::Called;
        }
    }

    fn close_lane(&mut self, slot: u64) {
        if self.local.open.is_some_and(|open| open.slot == slot) {
            self.local.open = None;
        }
        self.advance();
    }

    fn front_left(&mut self) {
        self.local.front = false;
        self.advance();
    }
}

impl World {
    /// The most steps that a grant can have. To hand on for ever takes more of them.
    fn steps(self) -> u32 {
        if self.0 == Variant::ForEver { Token::STEPS } else { STEPS }
    }

    /// Hands a turn on, or leaves.
    fn give_back(self, state: &mut State, mut turn: Turn) {
        let may = state.is_held(turn) || self.0 == Variant::AfterTheDeadline;
        let now = state.now.boot();
        let open = state.local.open.is_some_and(|open| {
            let in_time = now < open.until || matches!(self.0, Variant::AfterTheDeadline | Variant::ForEver);
            open.slot == turn.slot && in_time
        });
        if may && open && turn.step + 1 < self.steps() && !state.local.queue.is_empty() {
            state.handed_on_lost |= !state.is_held(turn);
            if self.0 != Variant::SameToken {
                turn.step += 1;
            }
            if let Some(hold) = state.hold_mut(turn.slot) {
                hold.step = turn.step;
                let token = Token::new(hold.number, turn.step);
                state.token_given(token);
            }
            if let Some(next) = state.local.queue.pop_front() {
                state.tasks[next] = Task::Handed(turn);
            }
            return;
        }
        state.holds.retain(|hold| hold.slot != turn.slot);
        state.jobs.push_back(Job::Leave { slot: turn.slot });
        state.close_lane(turn.slot);
    }

    /// A task's guard or future is dropped.
    fn drop_task(self, state: &mut State, task: usize) {
        let was = std::mem::replace(&mut state.tasks[task], Task::Idle);
        match was {
            Task::Idle => {}
            Task::Queued => state.local.queue.retain(|queued| *queued != task),
            Task::Handed(_) if self.0 == Variant::Leaks => {}
            Task::Handed(turn) | Task::Working { turn, .. } => self.give_back(state, turn),
            Task::Called => state.front_left(),
            Task::Asking { slot, front, .. } => {
                // A claim that was not sent yet never is; the leave is for the one that was.
                state.jobs.retain(|job| !matches!(job, Job::Claim { slot: asked, .. } if *asked == slot));
                state.jobs.push_back(Job::Leave { slot });
                if front {
                    state.front_left();
                }
            }
        }
    }

    fn process(self, state: &mut State, job: Job) {
        let now = state.now;
        match job {
            Job::Leave { slot } => {
                let (_, notices) = state.store.leave(now, ours(slot), None);
                state.pushed(notices);
            }
            Job::Claim { slot, task, queue, sent } => {
                let sent = Time { ticks: sent, ..now };
                let request = Claim { queue, ..claim(ours(slot), LEASE, sent) };
                let (verdict, notices) = state.store.claim(now, request);
                state.pushed(notices);
                match verdict {
                    Verdict::Granted(grant) => {
                        let deadline = deadline::from_answer(sent.boot(), grant.remaining);
                        if now.boot() < deadline {
                            state.granted(task, slot, grant.number, deadline, sent.boot());
                        } else {
                            self.drop_task(state, task);
                        }
                    }
                    Verdict::Busy { .. } if !queue => state.tasks[task] = Task::Idle,
                    Verdict::Busy { .. } => {}
                    other => unreachable!("{other:?}"),
                }
            }
        }
    }

    /// The events that come by themselves at each tick: holds whose time is over are lost, and those who wait at the
    /// store ask again. The polls need no order of their own: they bring nothing to the store but time.
    fn tick(self, state: &mut State) {
        state.now.ticks += 1;
        let now = state.now;
        for hold in &mut state.holds {
            hold.lost |= now.boot() >= hold.deadline;
        }
        for task in 0..TASKS {
            let Task::Asking { slot, sent, .. } = state.tasks[task] else { continue };
            let known = state.store.everybody().any(|id| id == ours(slot));
            if known {
                self.process(state, Job::Claim { slot, task, queue: true, sent });
            }
        }
        if let Other::Waiting { .. } = state.other {
            self.other_asks(state);
        }
    }

    fn other_asks(self, state: &mut State) {
        let (verdict, notices) = state.store.claim(state.now, claim(other(), LEASE, state.now));
        state.pushed(notices);
        match (verdict, state.other) {
            (Verdict::Granted(grant), Other::Away | Other::Waiting { .. }) => {
                let deadline = deadline::from_answer(state.now.boot(), grant.remaining);
                state.other = Other::Holding { number: grant.number, deadline };
                state.token_given(Token::new(grant.number, 0));
            }
            (_, Other::Away) => state.other = Other::Waiting { since: state.now.ticks },
            _ => {}
        }
    }

    fn may_pass(self, state: &State) -> bool {
        let now = state.now;
        // Tasks that were told something run, jobs arrive, and work ends, before time goes on.
        let all_run = state.tasks.iter().all(|task| match task {
            Task::Handed(_) | Task::Called => false,
            Task::Working { since, .. } => since + WORK > now.ticks,
            Task::Idle | Task::Queued | Task::Asking { .. } => true,
        });
        let local = &state.local;
        let overdue = local.open.is_some_and(|open| now.boot() >= open.until) && !local.queue.is_empty();
        let closes = self.0 != Variant::ForEver;
        now.ticks < LAST_TICK && all_run && state.jobs.is_empty() && !(overdue && closes)
    }
}

impl Model for World {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State {
            now: Time::zero(TICK),
            store: Store::new(),
            tasks: [Task::Idle; TASKS],
            local: LocalQueue::default(),
            holds: Vec::new(),
            jobs: VecDeque::new(),
            other: Other::Away,
            next_slot: 1,
            highest: None,
            token_fell: false,
            handed_on_lost: false,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        if self.may_pass(state) {
            actions.push(Action::Tick);
        }
        for (nth, task) in state.tasks.iter().enumerate() {
            match task {
                Task::Idle => {
                    actions.push(Action::Lock(nth));
                    // All tasks are alike, so it is enough that one tries.
                    if nth == 0 {
                        actions.push(Action::TryLock(nth));
                    }
                }
                Task::Handed(_) | Task::Called => actions.extend([Action::Run(nth), Action::Drop(nth)]),
                Task::Queued | Task::Asking { .. } | Task::Working { .. } => actions.push(Action::Drop(nth)),
            }
        }
        if !state.jobs.is_empty() {
            actions.push(Action::Process);
        }
        if let Some(open) = state.local.open
            && state.now.boot() >= open.until
            && !state.local.queue.is_empty()
            && self.0 != Variant::ForEver
        {
            actions.push(Action::CloseLane);
        }
        for hold in state.holds.iter().filter(|hold| !hold.lost && state.now.boot() >= hold.renew_at) {
            actions.push(Action::Renew(hold.slot));
        }
        match state.other {
            Other::Away => actions.push(Action::OtherComes),
            Other::Holding { .. } => actions.push(Action::OtherReleases),
            Other::Waiting { .. } | Other::Served => {}
        }
    }

    fn next_state(&self, state: &State, action: Action) -> Option<State> {
        let mut next = state.clone();
        match action {
            Action::Tick => self.tick(&mut next),
            Action::Lock(task) => {
                let now = next.now.boot();
                let local = &mut next.local;
                let open = local.open.is_some_and(|open| now < open.until || self.0 == Variant::ForEver);
                if !local.front && !open && local.queue.is_empty() {
                    local.front = true;
                    next.send_claim(task, true, true);
                } else {
                    local.queue.push_back(task);
                    next.tasks[task] = Task::Queued;
                }
            }
            Action::TryLock(task) => next.send_claim(task, false, false),
            Action::Drop(task) => self.drop_task(&mut next, task),
            Action::Run(task) => match next.tasks[task] {
                Task::Handed(turn) => {
                    next.tasks[task] = Task::Working { turn, since: next.now.ticks };
                }
                Task::Called => next.send_claim(task, true, true),
                _ => return None,
            },
            Action::Process => {
                let job = next.jobs.pop_front()?;
                self.process(&mut next, job);
            }
            Action::CloseLane => {
                let slot = next.local.open?.slot;
                next.close_lane(slot);
            }
            Action::Renew(slot) => {
                let (answer, notices) = next.store.renew(next.now, ours(slot), LEASE);
                next.pushed(notices);
                let now = next.now.boot();
                let hold = next.hold_mut(slot)?;
                match answer {
                    Renewed::Held(Grant { remaining, .. }) if now < hold.deadline => {
                        hold.deadline = deadline::from_answer(now, remaining);
                        hold.renew_at = now.after(remaining / 3);
                    }
                    _ => hold.lost = true,
                }
            }
            Action::OtherComes => self.other_asks(&mut next),
            Action::OtherReleases => {
                let (_, notices) = next.store.leave(next.now, other(), None);
                next.other = Other::Served;
                next.pushed(notices);
            }
        }
        Some(next)
    }

    fn within_boundary(&self, state: &State) -> bool {
        state.next_slot <= GRANTS + 1
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(ONE_HOLDER, |_, state: &State| {
                let working = state.tasks.iter().filter(|task| match task {
                    Task::Working { turn, .. } => state.is_held(*turn),
                    _ => false,
                });
                let elsewhere =
                    matches!(state.other, Other::Holding { deadline, .. } if state.now.boot() < deadline);
                working.count() + usize::from(elsewhere) <= 1
            }),
            Property::always(TOKENS_GROW, |_, state: &State| {
                !state.token_fell && !state.store.numbers_fell()
            }),
            Property::always(HANDED_ON_HELD, |_, state: &State| !state.handed_on_lost),
            Property::always(OTHERS_SERVED, |_, state: &State| match state.other {
                Other::Waiting { since } => state.now.ticks <= since + PATIENCE,
                _ => true,
            }),
            Property::always(NO_LEAK, |_, state: &State| {
                state.store.everybody().filter(|id| *id != other()).all(|id| {
                    let owned = state.tasks.iter().any(|task| match task {
                        Task::Handed(turn) | Task::Working { turn, .. } => turn.slot == id.seq,
                        Task::Asking { slot, .. } => *slot == id.seq,
                        Task::Idle | Task::Queued | Task::Called => false,
                    });
                    owned || state.jobs.contains(&Job::Leave { slot: id.seq })
                })
            }),
            Property::always(QUEUE_MOVES, |_, state: &State| {
                let local = &state.local;
                let fronts = state
                    .tasks
                    .iter()
                    .filter(|task| matches!(task, Task::Called | Task::Asking { front: true, .. }));
                fronts.count() == usize::from(local.front)
                    && (local.queue.is_empty() || local.front || local.open.is_some())
            }),
            Property::sometimes("a hold is handed on twice", |_, state: &State| {
                state.holds.iter().any(|hold| hold.step == 2)
            }),
            Property::sometimes("the steps of a grant run out", |_, state: &State| {
                let last = state.holds.iter().any(|hold| hold.step + 1 == STEPS);
                last && !state.local.queue.is_empty()
            }),
            Property::sometimes("the front waits behind another process", |_, state: &State| {
                let front = |task: &Task| matches!(task, Task::Asking { front: true, .. });
                matches!(state.other, Other::Holding { .. }) && state.tasks.iter().any(front)
            }),
            Property::sometimes("a hold is lost while others are queued", |_, state: &State| {
                !state.local.queue.is_empty() && state.holds.iter().any(|hold| hold.lost)
            }),
            Property::sometimes("a grant is open while the front asks", |_, state: &State| {
                state.local.front && state.local.open.is_some()
            }),
            Property::sometimes("another process waits while a hold is handed on", |_, state: &State| {
                let handed = state.tasks.iter().any(|task| matches!(task, Task::Handed(_)));
                handed && matches!(state.other, Other::Waiting { .. })
            }),
        ]
    }
}

const ONE_HOLDER: &str = "I2 I3: no two believe to hold";
const TOKENS_GROW: &str = "I6 I14: each step and each grant has a larger token";
const HANDED_ON_HELD: &str = "I14: what is handed on is held";
const OTHERS_SERVED: &str = "I8 I14: who waits elsewhere waits no longer than the grant is open";
const NO_LEAK: &str = "I5: whatever the process has at the store has an owner";
const QUEUE_MOVES: &str = "I5: a local queue with waiting tasks has somebody who moves it on";

#[test]
fn handing_on_is_sound() {
    prove(World(Variant::Right));
}

#[test]
fn handing_on_after_the_deadline_is_refuted() {
    refute(World(Variant::AfterTheDeadline), HANDED_ON_HELD);
}

#[test]
fn the_same_token_twice_is_refuted() {
    refute(World(Variant::SameToken), TOKENS_GROW);
}

#[test]
fn handing_on_for_ever_is_refuted() {
    refute(World(Variant::ForEver), OTHERS_SERVED);
}

#[test]
fn a_leak_with_a_cancelled_task_is_refuted() {
    refute(World(Variant::Leaks), NO_LEAK);
}
