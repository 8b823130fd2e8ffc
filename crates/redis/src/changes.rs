//! Has scripts publish the changes of a resource while a client subscribes to them.

use std::time::Duration;

use lockkeeper_core::{Name, StoreError, support::background::Background};

use crate::{
    layout::Keys,
    scripts::{CHANGES, Call},
    servers::{Priority, Servers},
    store::RedisStore,
};

/// How long scripts publish changes after the last request for it, and how often a subscriber requests it.
const PUBLISHED_FOR: Duration = Duration::from_secs(60);
const REQUEST_EVERY: Duration = Duration::from_secs(10);

impl RedisStore {
    /// Has the scripts publish changes of a resource until the returned task is dropped.
    pub(crate) async fn publish_changes(&self, name: &Name) -> Result<Background, StoreError> {
        let (servers, keys, name) = (self.servers.clone(), self.keys.clone(), name.clone());
        request(&servers, &keys, &name).await?;
        let again = async move {
            loop {
                tokio::time::sleep(REQUEST_EVERY).await;
                // A request that fails is made again well before the scripts forget the last one.
                drop(request(&servers, &keys, &name).await);
            }
        };
        Ok(Background::spawn(&self.background, again))
    }
}

async fn request(servers: &Servers, keys: &Keys, name: &Name) -> Result<(), StoreError> {
    let call = Call::new(&CHANGES, keys, name, 2, |command, nonce| {
        command.arg(keys.high_water(name)).arg(keys.resource(name));
        command.arg(nonce).arg(PUBLISHED_FOR.as_micros() as u64);
    });
    servers.run_one(Priority::Urgent, call).await.map(drop)
}
