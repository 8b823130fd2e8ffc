//! Requests as the server counts them on each connection.

use std::time::Duration;

use super::{LOCKKEEPER, ZooKeeper};
use crate::{
    Failure,
    bench::Bench,
    judge::{Limit, Median},
    rounds::{Contestant, Load},
    table::Row,
    workload::Workload,
};

/// So many rounds, of this length each: shorter than the time between two signs of life, so that most
/// rounds have none, and the median is that of locks alone.
const ROUNDS: usize = 15;
const LENGTH: Duration = Duration::from_millis(100);

/// Create, list, delete.
const EACH: Limit = Limit::AtMost(3.0);

impl ZooKeeper {
    /// How many requests a free lock costs, and its release.
    pub(crate) async fn requests(&self, bench: &Bench) -> Result<Vec<Row>, Failure> {
        let load = Load::new(Workload::W1, 1, 1, LENGTH.min(bench.pace.length));
        let mut rows = Vec::new();
        let contestants: Vec<&dyn Contestant> =
            [bench.usual()].into_iter().chain(bench.peers(Workload::W1)).collect();
        for contestant in contestants {
            let who = contestant.name();
            let mut each = Vec::new();
            for _ in 0..ROUNDS {
                let before = self.received_of(who)?;
                let acquired = contestant.round(&load).await?.acquired();
                each.push((self.received_of(who)? - before) as f64 / acquired);
            }
            let median = Median::of(each);
            let row = Row::median(Workload::W1, who, "requests at the server each", median);
            rows.push(if who == LOCKKEEPER { row.goal(EACH, EACH.judge(median.value)) } else { row });
        }
        Ok(rows)
    }
}
