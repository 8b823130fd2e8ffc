//! A contestant whose rounds also tell the server's work.

use std::time::Duration;

use crate::{
    Failure,
    drain::Drain,
    judge::Limit,
    rounds::{BoxFuture, Contestant, Load, Round, Served},
    workload::Workload,
};

/// Asks a server for its work so far.
pub(crate) type AskServer = Box<dyn Fn() -> Result<Served, Failure> + Send + Sync>;

/// A contestant, and the question to its server.
pub(crate) struct Metered {
    pub(crate) inner: Box<dyn Contestant>,
    pub(crate) served: AskServer,
}

impl Contestant for Metered {
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
        Box::pin(async move {
            let before = (self.served)()?;
            let mut round = self.inner.round(load).await?;
            round.served = Some((self.served)()?.since(before));
            Ok(round)
        })
    }

    fn drain(&self, waiters: usize, wait: Duration) -> BoxFuture<'_, Result<Drain, Failure>> {
        self.inner.drain(waiters, wait)
    }
}
