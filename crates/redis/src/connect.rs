//! Opens the store: finds the servers, checks the layout, and starts the tasks that run beside requests.

use std::sync::Arc;

use lockkeeper_core::{
    StoreError, StoreErrorKind,
    store::{Connector, Context, Store, Wake},
    support::{background::Background, risks},
};
use redis::Value;

use crate::{
    check,
    layout::{self, Keys, slot},
    opener::Opener,
    records::Records,
    run_ids::RunIds,
    servers::{Priority, Servers},
    settings::Settings,
    store::{RedisStore, SUBSCRIBE_LIMIT},
    wakes::Listeners,
};

pub(crate) fn connector(settings: Settings) -> Connector {
    Connector::new(move |context| {
        let settings = settings.clone();
        async move { Ok(Arc::new(open(settings, context).await?) as Arc<dyn Store>) }
    })
}

async fn open(settings: Settings, context: Context) -> Result<RedisStore, StoreError> {
    // Below the engine's own limit, so it is this store that gives up a silent connection.
    let limit = context.request_limit.mul_f32(0.9);
    let limit = settings.request_limit.map_or(limit, |own| own.min(limit));
    let (url, strict) = (settings.shown.clone(), settings.strict);
    let opener = Arc::new(Opener::new(settings)?);
    let servers = Servers::find(opener, context.background.clone(), limit).await?;
    let keys = Keys::new(&servers.settings().namespace, servers.is_cluster());
    let id = identify(&servers, &keys).await?;
    let listeners = Listeners::new(&servers, &keys, &context);
    let follower = follow_master(&servers, &context);
    let mut grants = None;
    if !keys.is_sharded() {
        // In a cluster, messages stay in the slot of their resource, so each resource has a channel of its own.
        grants = Some(listeners.subscribe(keys.grants(context.keeper), SUBSCRIBE_LIMIT).await);
    }
    if strict {
        risks::refuse(&check::look(&servers).await?.findings)?;
    } else {
        let servers = servers.clone();
        context.background.spawn(async move { check::warn(check::look(&servers).await) });
    }
    Ok(RedisStore {
        url,
        id,
        keeper: context.keeper,
        keys,
        servers,
        listeners,
        _grants: grants,
        _follower: follower,
        run_ids: RunIds::default(),
        records: Records::default(),
        background: context.background,
    })
}

/// Checks the version of the layout and learns the id of the store, which is made if there is none.
async fn identify(servers: &Servers, keys: &Keys) -> Result<String, StoreError> {
    let key = keys.identity();
    let map = servers.map();
    let server = map.of(slot(&key));
    let mut get = redis::cmd("GET");
    get.arg(&key);
    let mut found = servers.ask(Priority::Normal, server, get.clone()).await?;
    // Written only if it is not there: a server that takes no writes can still be inspected.
    if found == Value::Nil {
        let mut set = redis::cmd("SET");
        set.arg(&key).arg(layout::new_identity()).arg("NX");
        servers.ask(Priority::Normal, server, set).await?;
        found = servers.ask(Priority::Normal, server, get).await?;
    }
    let Value::BulkString(text) = found else {
        let message = "the key of the layout has no text; choose another namespace= in the URL";
        return Err(StoreError::new(StoreErrorKind::Corrupt, message));
    };
    layout::store_id(&String::from_utf8_lossy(&text)).map(str::to_owned)
}

/// Moves to another master as soon as the sentinels name one: the old one may be cut off and answer as before. All
/// holds are renewed at once, so the holder of a lock that the new master does not know is told.
fn follow_master(servers: &Arc<Servers>, context: &Context) -> Option<Background> {
    let mut master = servers.master()?;
    let (servers, wakes) = (Arc::downgrade(servers), context.wakes.clone());
    let follow = async move {
        while master.changed().await.is_ok() {
            let (Some(servers), Some(now)) = (servers.upgrade(), master.borrow_and_update().clone()) else {
                return;
            };
            tracing::info!(master = %now, "the sentinels name another master");
            servers.move_to(&now);
            wakes.wake(Wake::Reconfirm);
        }
    };
    Some(Background::spawn(&context.background, follow))
}
