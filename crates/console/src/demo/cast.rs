//! The processes of the demo.

use std::sync::Arc;

use lockkeeper::store::{Capacity, KeeperId, Kind, Name, ProcessInfo, Units};

use super::{
    Dice,
    job::{Job, State},
};
use crate::clock::Millis;

const SECOND: Millis = 1000;
const MINUTE: Millis = 60_000;

/// Returns a name of the script.
///
/// # Panics
/// Not for the names of the script, which are good.
pub(crate) fn name(text: &str) -> Name {
    Name::new(text).expect("a good name")
}

fn job(dice: &mut Dice, lock: &str, program: &str, host: &str) -> Job {
    let pid = u32::try_from(dice.between(900, 32_000)).unwrap_or(1);
    Job {
        name: name(lock),
        kind: Kind::Mutex,
        units: Units::All,
        capacity: Capacity::All,
        process: Arc::new(ProcessInfo { host: host.to_owned(), pid, program: program.to_owned() }),
        label: None,
        value: None,
        lease: 30 * SECOND,
        hold: (SECOND, 3 * SECOND),
        pause: (SECOND, 10 * SECOND),
        slow: None,
        crashes_at: None,
        state: State::Pauses { until: dice.between(0, 20 * SECOND) },
        keeper: KeeperId::random(),
        seq: 0,
    }
}

/// Returns all processes.
pub(crate) fn jobs(dice: &mut Dice) -> Vec<Job> {
    let mut jobs = Vec::new();
    checkout(dice, &mut jobs);
    billing(dice, &mut jobs);
    deploys(dice, &mut jobs);
    leaders(dice, &mut jobs);
    mail_and_catalog(dice, &mut jobs);
    payments(dice, &mut jobs);
    reports(dice, &mut jobs);
    sessions(dice, &mut jobs);
    jobs
}

fn checkout(dice: &mut Dice, jobs: &mut Vec<Job>) {
    for place in 1..=9 {
        let job = job(dice, "checkout/stock/1017", "checkout", &format!("web-{place}"));
        jobs.push(Job { hold: (SECOND, 4 * SECOND), pause: (SECOND, 12 * SECOND), ..job });
    }
    for (item, users) in [("1018", 3), ("2040", 2), ("3311", 2)] {
        for place in 1..=users {
            let job = job(dice, &format!("checkout/stock/{item}"), "checkout", &format!("web-{place}"));
            jobs.push(Job { hold: (SECOND, 3 * SECOND), pause: (4 * SECOND, 30 * SECOND), ..job });
        }
    }
}

fn billing(dice: &mut Dice, jobs: &mut Vec<Job>) {
    let lock = "billing/invoices";
    jobs.push(Job {
        label: Some("invoices of November".into()),
        hold: (300 * MINUTE, 301 * MINUTE),
        state: State::Pauses { until: 4 * MINUTE },
        ..job(dice, lock, "billing-batch", "batch-2")
    });
    for (place, program) in ["dunning", "ledger-export"].into_iter().enumerate() {
        let at = (43 + 6 * place as u64) * MINUTE;
        jobs.push(Job { state: State::Pauses { until: at }, ..job(dice, lock, program, "batch-1") });
    }
}

fn deploys(dice: &mut Dice, jobs: &mut Vec<Job>) {
    let labels = ["shop 8.14.0", "search 3.2.7", "gateway 5.0.1", "shop 8.14.1"];
    for (place, label) in labels.into_iter().enumerate() {
        jobs.push(Job {
            label: Some(format!("deploy of {label}").into()),
            hold: (70 * SECOND, 210 * SECOND),
            pause: (3 * MINUTE, 9 * MINUTE),
            state: State::Pauses { until: dice.between(0, 5 * MINUTE) },
            ..job(dice, "deploy/production", "deployer", &format!("ci-{}", place + 1))
        });
    }
}

fn leaders(dice: &mut Dice, jobs: &mut Vec<Job>) {
    for (lock, program, candidates) in [("scheduler/leader", "scheduler", 3), ("ingest/leader", "ingest", 2)]
    {
        for place in 1..=candidates {
            let host = format!("{program}-{place}");
            let crashes_at = (lock == "scheduler/leader" && place == 1).then_some(38 * MINUTE);
            jobs.push(Job {
                kind: Kind::Election,
                value: Some(format!("10.2.0.{place}:7000").into()),
                hold: (600 * MINUTE, 900 * MINUTE),
                lease: 15 * SECOND,
                crashes_at,
                state: State::Pauses { until: place * SECOND },
                ..job(dice, lock, program, &host)
            });
        }
    }
}

fn mail_and_catalog(dice: &mut Dice, jobs: &mut Vec<Job>) {
    let permits = Capacity::count(6).unwrap_or(Capacity::All);
    for place in 1..=9 {
        jobs.push(Job {
            kind: Kind::Semaphore,
            units: Units::ONE,
            capacity: permits,
            hold: (3 * SECOND, 20 * SECOND),
            pause: (2 * SECOND, 16 * SECOND),
            ..job(dice, "mail/smtp", "mailer", &format!("worker-{}", place % 4 + 1))
        });
    }
    for place in 1..=8 {
        jobs.push(Job {
            kind: Kind::RwLock,
            units: Units::ONE,
            hold: (2 * SECOND, 8 * SECOND),
            pause: (4 * SECOND, 20 * SECOND),
            ..job(dice, "catalog/index", "search", &format!("search-{place}"))
        });
    }
    jobs.push(Job {
        kind: Kind::RwLock,
        label: Some("rebuild of the index".into()),
        hold: (4 * SECOND, 9 * SECOND),
        pause: (25 * SECOND, 70 * SECOND),
        ..job(dice, "catalog/index", "indexer", "search-1")
    });
}

/// Adds the payments. Every ten minutes their bank is slow for a while, and a queue builds up.
fn payments(dice: &mut Dice, jobs: &mut Vec<Job>) {
    for place in 1..=12 {
        jobs.push(Job {
            hold: (SECOND, 2 * SECOND),
            pause: (15 * SECOND, 40 * SECOND),
            slow: Some((10 * MINUTE, 75 * SECOND)),
            ..job(dice, "payments/settle", "settler", &format!("pay-{place}"))
        });
    }
}

fn reports(dice: &mut Dice, jobs: &mut Vec<Job>) {
    jobs.push(Job {
        label: Some("October, second run".into()),
        hold: (50 * MINUTE, 55 * MINUTE),
        pause: (8 * MINUTE, 9 * MINUTE),
        state: State::Pauses { until: 9 * MINUTE },
        ..job(dice, "report/monthly", "reporter", "batch-1")
    });
    jobs.push(Job {
        crashes_at: Some(51 * MINUTE),
        hold: (12 * MINUTE, 14 * MINUTE),
        pause: (MINUTE, 2 * MINUTE),
        ..job(dice, "etl/warehouse", "etl", "batch-3")
    });
    jobs.push(Job {
        hold: (2 * MINUTE, 6 * MINUTE),
        pause: (MINUTE, 4 * MINUTE),
        ..job(dice, "etl/warehouse", "etl-backfill", "batch-4")
    });
}

/// Adds many locks that nobody waits for, which are the most in every store.
fn sessions(dice: &mut Dice, jobs: &mut Vec<Job>) {
    for _ in 0..170 {
        let user = dice.between(10_000, 99_999);
        let host = format!("web-{}", dice.between(1, 10));
        let state = State::Pauses { until: dice.between(0, 20 * MINUTE) };
        jobs.push(Job {
            hold: (20 * SECOND, 20 * MINUTE),
            pause: (10 * SECOND, 6 * MINUTE),
            state,
            ..job(dice, &format!("session/{user}"), "shop", &host)
        });
    }
}
