//! W4 on a quorum: the commands to each member while tasks wait.

use std::time::{Duration, Instant};

use super::{MEMBERS, Members};
use crate::{
    Failure,
    drain::Drain,
    judge::Limit,
    rounds::{BoxFuture, Contestant, Load, Round},
    workload::Workload,
};

/// The name of the figure in the table, and its goal.
pub(crate) const WAITING: (&str, Limit) = ("commands/s at each member while 64 wait", Limit::AtMost(2.0));

/// A contestant, and the members that count the commands while its tasks wait.
pub(super) struct Watched {
    pub(super) inner: Box<dyn Contestant>,
    pub(super) members: Members,
}

impl Watched {
    /// Commands per second at each member, in the middle of the time in which all wait.
    async fn commands(&self, wait: Duration) -> Result<f64, Failure> {
        // The tasks get a tenth to queue up.
        tokio::time::sleep(wait / 5).await;
        let (before, started) = (self.members.served()?, Instant::now());
        tokio::time::sleep(wait * 4 / 5).await;
        let since = self.members.served()?.since(before);
        Ok(since.commands.unwrap_or_default() as f64 / MEMBERS as f64 / started.elapsed().as_secs_f64())
    }
}

impl Contestant for Watched {
    fn name(&self) -> &'static str {
        self.inner.name()
    }

    fn goal(&self, workload: Workload) -> Option<Limit> {
        self.inner.goal(workload)
    }

    fn fifo_goal(&self, workload: Workload) -> Option<Limit> {
        self.inner.fifo_goal(workload)
    }

    fn takes_part(&self, workload: Workload) -> bool {
        self.inner.takes_part(workload)
    }

    fn round<'a>(&'a self, load: &'a Load) -> BoxFuture<'a, Result<Round, Failure>> {
        self.inner.round(load)
    }

    fn drain(&self, waiters: usize, wait: Duration) -> BoxFuture<'_, Result<Drain, Failure>> {
        Box::pin(async move {
            let (drained, commands) = tokio::join!(self.inner.drain(waiters, wait), self.commands(wait));
            Ok(Drain { requests: Some(commands?), ..drained? })
        })
    }
}
