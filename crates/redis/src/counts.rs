//! Operations on the counters of latches.

use std::time::Duration;

use lockkeeper_core::{
    StoreError, StoreErrorKind,
    model::COUNT_MEMORY,
    store::{Answers, Count, CountAction, Counted},
};

use crate::{
    codec::{self, Reader},
    scripts::{COUNT, Call},
    servers::Priority,
    store::RedisStore,
};

/// How long an unused latch lasts.
const LATCH_LIFE: Duration = Duration::from_secs(30 * 24 * 3600);
/// Scripts compute with doubles, which are exact below this.
const COUNT_LIMIT: u64 = 1 << 53;

impl RedisStore {
    pub(crate) async fn count_once(&self, count: &Count) -> Result<Answers<Counted>, StoreError> {
        let Count { name, op, not_after, action } = count;
        let (word, amount) = match *action {
            CountAction::Create(COUNT_LIMIT..) => {
                let message = "a latch of this store counts to 2^53 - 1; use a smaller count";
                return Err(StoreError::new(StoreErrorKind::Unsupported, message));
            }
            CountAction::Create(amount) => ("create", amount),
            CountAction::Down(by) => ("down", by),
            CountAction::Reset => ("reset", 0),
            CountAction::Delete => ("delete", 0),
            CountAction::Read => ("read", 0),
        };
        let call = Call::new(&COUNT, &self.keys, name, 3, move |command, nonce| {
            command.arg(self.keys.high_water(name)).arg(self.keys.latch(name));
            command.arg(self.keys.operation(name, *op));
            command.arg(nonce).arg(codec::end(*not_after)).arg(word).arg(amount);
            command.arg(COUNT_MEMORY.as_micros() as u64).arg(LATCH_LIFE.as_millis() as u64);
        });
        let mut reader = Reader::new(self.servers.run_one(Priority::Normal, call).await?);
        if matches!(action, CountAction::Read) {
            self.listeners.check_runtime();
        }
        Ok(Answers { now: reader.time()?, each: vec![reader.counted()?] })
    }
}
