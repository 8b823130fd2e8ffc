//! Holders that are killed inside of their sections: how soon the lock is granted to the next one.

use std::{
    fmt, thread,
    time::{Duration, SystemTime},
};

use lockkeeper_core::Token;

use crate::{load::crew, processes::Task};

/// Longer than anything takes, also on a busy machine.
const LONG: Duration = Duration::from_secs(60);

/// The measured effects of killed holders. Both lists are sorted.
///
/// The number of a grant is the time of the grant, in microseconds of the clock that server and test share. So the time
/// that the news of it takes to the test does not count.
#[derive(Clone, Debug, Default)]
pub struct Kills {
    /// How long after the kill the lock was granted to another.
    pub passed_after: Vec<Duration>,
    /// How long after the lease had ended.
    pub late: Vec<Duration>,
}

impl Kills {
    /// Kills `kills` holders in all, in as many crews as there are names, which work side by side. Each crew has three
    /// processes of the program `worker`, of which one holds.
    ///
    /// # Panics
    /// If a lock is not granted to another at all.
    pub fn of_holders(worker: &str, task: &Task, names: usize, kills: usize) -> Self {
        let mut all = Self::default();
        thread::scope(|scope| {
            let crews: Vec<_> = (0..names)
                .map(|name| {
                    let task = Task {
                        prefix: format!("kills-{name}"),
                        resources: 1,
                        tasks: 1,
                        hold_for_ever: true,
                        seed: task.seed + name as u64,
                        ..task.clone()
                    };
                    let share = kills / names + usize::from(name < kills % names);
                    scope.spawn(move || Self::in_one_crew(worker, task, share))
                })
                .collect();
            for crew in crews {
                let some = crew.join().expect("no panic");
                all.passed_after.extend(some.passed_after);
                all.late.extend(some.late);
            }
        });
        all.passed_after.sort_unstable();
        all.late.sort_unstable();
        all
    }

    fn in_one_crew(worker: &str, task: Task, kills: usize) -> Self {
        let name = format!("{}/0", task.prefix);
        let keeper = lockkeeper::blocking::connect(&task.url).expect("connected");
        let mut crew = crew(worker, task, 3);
        let mut some = Self::default();
        for round in 0..kills {
            let ready = crew.listen(LONG, |crew| crew.holders().len() == 1 && crew.waiting() >= 1);
            assert!(ready, "round {round}: {:?} hold, {} wait", crew.holders(), crew.waiting());
            let (holder, token) = crew.holders()[0];
            crew.kill(holder);
            let killed = wall();
            let view = keeper.inspect(&name).expect("reachable");
            let old =
                view.iter().flat_map(|view| &view.holders).find(|old| old.token.as_i64() == token as i64);
            let ended = old.map_or(killed, |old| wall() + old.remaining.unwrap_or_default());
            let mut next = None;
            let passed = crew.listen(LONG, |crew| {
                next = crew.holders().iter().map(|(_, new)| *new).find(|new| *new > token);
                next.is_some()
            });
            assert!(passed, "round {round}: nobody got {name}");
            let granted = Duration::from_micros(next.expect("somebody") / u64::from(Token::STEPS));
            some.passed_after.push(granted.saturating_sub(killed));
            some.late.push(granted.saturating_sub(ended));
            crew.start_worker().expect("started");
        }
        keeper.close();
        some
    }

    /// How long after the kill the lock was granted to another, in so many percent of all cases.
    pub fn passed(&self, percent: usize) -> Duration {
        let last = self.passed_after.len().saturating_sub(1);
        self.passed_after.get(last * percent / 100).copied().unwrap_or_default()
    }
}

impl fmt::Display for Kills {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} kills: granted to the next within {:?} for half, {:?} for 95 % and {:?} for all; {:?} at most after the \
             lease had ended",
            self.passed_after.len(),
            self.passed(50),
            self.passed(95),
            self.passed(100),
            self.late.last().copied().unwrap_or_default(),
        )
    }
}

/// The time of day, as on the server.
fn wall() -> Duration {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default()
}
