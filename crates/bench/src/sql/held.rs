//! Renewals of all locks of a keeper at once, as after an outage: the store is asked directly, with as many leases in a
//! group as the engine sends.

use std::{sync::Arc, time::Instant};

use lockkeeper::store::{Renewed, Request};
use lockkeeper_testkit::asker::Asker;
use tokio::task::JoinSet;

use super::{HELD, Kind, Server};
use crate::{
    Failure,
    judge::{Limit, Median, Verdict},
    table::Row,
    workload::Workload,
};

const ROUNDS: usize = 5;

/// Renews `locks` leases at once.
pub(crate) async fn renew_all(server: &Server, locks: usize) -> Result<Vec<Row>, Failure> {
    let asker = Asker::connect(&server.url()).await;
    let names: Vec<(String, u64)> =
        (0..locks as u64).map(|n| (format!("bench/at-once/{n:06}"), n + 1)).collect();
    let group = asker.store.capability().group_limit;
    for names in names.chunks(group) {
        let claims: Vec<_> = names.iter().map(|(name, seq)| (name.as_str(), *seq)).collect();
        asker.claims(&claims).await?;
    }
    let leases: Arc<[_]> = names.iter().map(|(name, seq)| asker.renewal(name, *seq)).collect();
    let mut millis = Vec::new();
    for _ in 0..ROUNDS {
        let (started, mut groups) = (Instant::now(), JoinSet::new());
        for first in (0..locks).step_by(group) {
            let (store, leases) = (asker.store.clone(), leases.clone());
            groups.spawn(async move { store.renew(&leases[first..locks.min(first + group)]).await });
        }
        let mut renewed = 0;
        while let Some(answers) = groups.join_next().await {
            let held = |answer: &&Renewed| matches!(answer, Renewed::Held(_));
            renewed += answers??.each.iter().filter(held).count();
        }
        millis.push(started.elapsed().as_secs_f64() * 1e3);
        if renewed != locks {
            return Err(format!("{renewed} of {locks} leases were renewed").into());
        }
    }
    for names in names.chunks(group) {
        let leaves: Vec<_> =
            names.iter().map(|(name, seq)| Request::Leave(asker.leave(name, *seq))).collect();
        asker.store.apply(&leaves).await?;
    }
    asker.store.close().await;
    let median = Median::of(millis);
    let limit = Limit::AtMost(if server.kind() == Kind::Postgres { 250.0 } else { 500.0 });
    let verdict = if locks < HELD { Verdict::TooShort } else { limit.judge(median.value) };
    let row = Row::median(Workload::Held, "lockkeeper", "all renewed at once, ms", median);
    Ok(vec![row.goal(limit, verdict)])
}
