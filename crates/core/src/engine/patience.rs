//! How long a caller is ready to wait.

use crate::clock::{BootTime, Clock};

#[derive(Clone, Copy, Debug)]
pub(crate) enum Patience {
    /// Not at all: one answer of the store is enough.
    Try,
    Until(BootTime),
    Forever,
}

impl Patience {
    /// Whether the caller takes a position in a queue.
    pub(crate) fn waits(self) -> bool {
        !matches!(self, Self::Try)
    }

    /// Runs `work` for as long as the caller is ready to wait; `None` if that was too short.
    pub(crate) async fn limit<T>(self, clock: &Clock, work: impl Future<Output = T>) -> Option<T> {
        match self {
            Self::Until(limit) => {
                tokio::select! {
                    biased;
                    done = work => Some(done),
                    () = clock.sleep_until(limit) => None,
                }
            }
            Self::Try | Self::Forever => Some(work.await),
        }
    }
}
