//! A connection to one sentinel: asks for the master, and hears of changes.

use std::{collections::HashMap, time::Duration};

use lockkeeper_core::StoreError;
use redis::{Pipeline, PushInfo, PushKind, Value};
use tokio::sync::mpsc;

use super::reports::Report;
use crate::{
    address::Address,
    opener::{Driven, Opener, checked},
    trouble,
};

/// A connection to a sentinel.
pub(super) struct SentinelConnection {
    open: Driven,
    /// The messages that it sends, if it can.
    messages: Option<mpsc::UnboundedReceiver<PushInfo>>,
    address: String,
    limit: Duration,
}

impl SentinelConnection {
    /// Connects, and subscribes to changes if `tells`, which needs RESP3.
    pub(super) async fn open(opener: &Opener, address: &Address, tells: bool) -> Result<Self, StoreError> {
        let (sender, messages) = mpsc::unbounded_channel();
        let pushes = tells.then(|| Box::new(sender) as _);
        let open = opener.to_sentinel(address, pushes).await?;
        let limit = opener.settings().connect_limit;
        let messages = tells.then_some(messages);
        let mut connection = Self { open, messages, address: address.to_string(), limit };
        if tells {
            let mut subscribe = Pipeline::with_capacity(1);
            subscribe.cmd("SUBSCRIBE").arg("+switch-master");
            let answer = connection.ask(&subscribe, 1).await?.pop();
            if let Some(Value::ServerError(error)) = answer {
                tracing::debug!(sentinel = %address, %error, "a sentinel does not tell of changes");
                connection.messages = None;
            }
        }
        Ok(connection)
    }

    /// Whether it tells of changes.
    pub(super) fn tells(&self) -> bool {
        self.messages.is_some()
    }

    async fn ask(&mut self, questions: &Pipeline, count: usize) -> Result<Vec<Value>, StoreError> {
        let answers = self.open.connection.send_packed_commands(questions, 0, count);
        match tokio::time::timeout(self.limit, answers).await {
            Ok(Ok(answers)) => Ok(answers),
            Ok(Err(error)) => Err(trouble::not_connected(&self.address, error)),
            Err(_) => Err(trouble::too_late(&self.address)),
        }
    }

    /// Asks for the master of this name and its epoch.
    ///
    /// A sentinel that leads a failover has the new epoch already, but shows the old master beside it. It gives the new
    /// master only to clients that ask for the address. So this asks for the address, and for the epoch before and
    /// after it: both must be the same.
    pub(super) async fn report(&mut self, name: &str) -> Result<Report, StoreError> {
        let mut questions = Pipeline::with_capacity(3);
        for command in ["MASTER", "GET-MASTER-ADDR-BY-NAME", "MASTER"] {
            questions.cmd("SENTINEL").arg(command).arg(name);
        }
        loop {
            let answers = self.ask(&questions, 3).await?;
            let [before, address, after] =
                <[Value; 3]>::try_from(answers).map_err(|_| trouble::nonsense("a master"))?;
            let address = checked(address).map_err(|error| trouble::refused(&error))?;
            if address == Value::Nil {
                return Err(trouble::unknown_master(&self.address, name));
            }
            let (host, port): (String, u16) =
                redis::from_redis_value(address).map_err(|_| trouble::nonsense("a master"))?;
            let (before, epoch) = (epoch_of(before), epoch_of(after));
            if before == epoch {
                return Ok(Report { epoch, master: Address::Tcp(host.into(), port) });
            }
        }
    }

    /// The next message of a change; `None` at the end of the connection. Never returns if the sentinel cannot tell.
    pub(super) async fn next_change(&mut self) -> Option<()> {
        let Some(messages) = &mut self.messages else { return std::future::pending().await };
        loop {
            match messages.recv().await?.kind {
                PushKind::Message => return Some(()),
                PushKind::Disconnection => return None,
                _ => {}
            }
        }
    }
}

/// The epoch that a sentinel shows; zero if this user may not see it.
fn epoch_of(shown: Value) -> u64 {
    let facts =
        checked(shown).ok().and_then(|facts| redis::from_redis_value::<HashMap<String, String>>(facts).ok());
    facts.and_then(|facts| facts.get("config-epoch")?.parse().ok()).unwrap_or(0)
}
