//! Requests as the server counts them: what it received on each connection.

use std::{collections::HashMap, io, time::Duration};

use super::{BARE, CURATOR, LOCKKEEPER, RECIPE, ZooKeeper};
use crate::{
    Failure,
    bench::{Bench, Workload},
    judge::{Limit, Median},
    rounds::{Contestant, Load},
    table::Row,
};

/// So many rounds, of this length each: shorter than the time between two signs of life, so that most
/// rounds have none, and the median is that of locks alone.
const ROUNDS: usize = 15;
const LENGTH: Duration = Duration::from_millis(100);

/// Create, list, delete.
const EACH: Limit = Limit::AtMost(3.0);

impl ZooKeeper {
    /// What the server has received so far, by session.
    pub(super) fn received(&self) -> io::Result<HashMap<i64, u64>> {
        Ok(received_in(&self.server.nodes()[0].ask("cons")?))
    }

    /// What the server has received so far of `who`.
    pub(super) fn received_of(&self, who: &str) -> io::Result<u64> {
        let received = self.received()?;
        let sessions = self.sessions.get(who).into_iter().flatten();
        Ok(sessions.filter_map(|session| received.get(session)).sum())
    }

    /// How many requests a free lock costs, and its release.
    pub(super) async fn requests(&self, bench: &Bench) -> Result<Vec<Row>, Failure> {
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

    /// All whose requests are counted.
    pub(super) fn counted(&self) -> impl Iterator<Item = &'static str> {
        [LOCKKEEPER, RECIPE, CURATOR, BARE].into_iter().filter(|who| self.sessions.contains_key(who))
    }
}

/// Reads the answer to `cons`: a line for each connection, with its session unless it has none.
fn received_in(answer: &str) -> HashMap<i64, u64> {
    let field = |line: &str, name: &str| {
        let (_, rest) = line.split_once(name)?;
        rest.split([',', ')']).next().map(str::to_owned)
    };
    let connection = |line: &str| {
        let session = field(line, "sid=0x")?;
        let session = u64::from_str_radix(&session, 16).ok()?.cast_signed();
        Some((session, field(line, "recved=")?.parse().ok()?))
    };
    answer.lines().filter_map(connection).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_of_sessions_are_counted() {
        let answer = "\
 /127.0.0.1:41734[1](queued=0,recved=12,sent=13,sid=0x10000f7e0a80000,lop=PING,est=1,to=10000,lcxid=0x0)
 /127.0.0.1:41740[1](queued=0,recved=7,sent=7,sid=0xffff000000000001,lop=GETC)
 /127.0.0.1:41736[0](queued=0,recved=1,sent=0)
";
        let received = received_in(answer);
        assert_eq!(received.len(), 2);
        assert_eq!(received.get(&0x10000f7e0a80000), Some(&12));
        assert_eq!(received.get(&0xffff000000000001_u64.cast_signed()), Some(&7));
    }
}
