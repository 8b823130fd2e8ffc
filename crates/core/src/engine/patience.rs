//! How long a caller is ready to wait.

use std::time::Duration;

use crate::clock::{BootTime, Clock};

#[derive(Clone, Copy, Debug)]
pub(crate) enum Patience {
    /// Not at all: one answer of the store is enough.
    Try,
    /// From when the caller began to when its time is up. One call may wait for several locks.
    Within {
        since: BootTime,
        until: BootTime,
    },
    Forever,
}

impl Patience {
    /// `limit` from now on.
    pub(crate) fn within(clock: &Clock, limit: Duration) -> Self {
        let since = clock.now();
        Self::Within { since, until: since.after(limit) }
    }

    /// Whether the caller takes a position in a queue.
    pub(crate) fn waits(self) -> bool {
        !matches!(self, Self::Try)
    }

    /// Whether the caller's time is up.
    pub(crate) fn is_over(self, clock: &Clock) -> bool {
        matches!(self, Self::Within { until, .. } if clock.now() >= until)
    }

    /// Runs `work` for as long as the caller is ready to wait; `None` if that was too short.
    pub(crate) async fn limit<T>(self, clock: &Clock, work: impl Future<Output = T>) -> Option<T> {
        match self {
            Self::Within { until, .. } => {
                tokio::select! {
                    biased;
                    done = work => Some(done),
                    () = clock.sleep_until(until) => None,
                }
            }
            Self::Try | Self::Forever => Some(work.await),
        }
    }
}
