//! Opens the store: connects, makes the tables if need be, and starts the tasks that run beside requests.

use std::sync::Arc;

use lockkeeper_core::{
    StoreError,
    store::{Connector, Context, Store},
    support::{background::Background, risks},
};

use crate::{
    check,
    connection::{Connection, Opener},
    own::Own,
    session::Session,
    settings::Settings,
    store::PostgresStore,
    sweep, trouble,
    wakes::Listener,
};

pub(crate) fn connector(settings: Settings) -> Connector {
    Connector::new(move |context| {
        let settings = settings.clone();
        async move { Ok(Arc::new(open(settings, context).await?) as Arc<dyn Store>) }
    })
}

async fn open(settings: Settings, context: Context) -> Result<PostgresStore, StoreError> {
    // Below the engine's own limit, so it is this store that gives up a silent connection.
    let limit = context.request_limit.mul_f32(0.9);
    let limit = settings.request_limit.map_or(limit, |own| own.min(limit));
    let (url, strict) = (settings.shown.clone(), settings.strict);
    let opener = Arc::new(Opener::new(settings, context.background.clone(), context.wakes.clone()));
    let first = first_session(&opener).await?;
    let id = opener.id().ok_or_else(trouble::closed)?;
    let own = Own::new(context.keeper, context.wakes.clone());
    let requests = Arc::new(Connection::new(opener.clone(), limit, Some(first)));
    if strict {
        risks::refuse(&check::look(&requests).await?)?;
    } else {
        let requests = requests.clone();
        context.background.spawn(async move { check::warn(check::look(&requests).await) });
    }
    let renewals = Connection::new(opener.clone(), limit, None);
    let waits = Arc::new(Connection::new(opener.clone(), limit, None));
    let listener = Listener::new(&opener, requests.clone(), waits.clone(), context.keeper);
    let sweep = Background::spawn(&context.background, sweep::run(Arc::downgrade(&waits), own.clone()));
    let (sweep, background) = (std::sync::Mutex::new(Some(sweep)), context.background);
    Ok(PostgresStore { url, id, own, requests, renewals, waits, listener, background, sweep })
}

/// Opens a session on the keeper's thread.
async fn first_session(opener: &Arc<Opener>) -> Result<Session, StoreError> {
    let opener = opener.clone();
    let background = opener.background.clone();
    background.spawn(async move { opener.open().await }).await.map_err(|_| trouble::closed())?
}
