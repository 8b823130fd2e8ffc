//! Opens the store: connects, makes the tables if need be, and starts the tasks that run beside requests.

use std::sync::{Arc, Mutex};

use lockkeeper_core::{
    StoreError,
    store::{Connector, Context, Store},
    support::{background::Background, risks},
};

use lockkeeper_rows::ConfirmedOpenings;

use crate::{
    check,
    connection::{Connection, Opened, Opener},
    own::Own,
    server::ServerFacts,
    settings::Settings,
    store::MySqlStore,
    sweep, trouble, wakes,
};

pub(crate) fn connector(settings: Settings) -> Connector {
    Connector::new(move |context| {
        let settings = settings.clone();
        async move { Ok(Arc::new(open(settings, context).await?) as Arc<dyn Store>) }
    })
}

async fn open(settings: Settings, context: Context) -> Result<MySqlStore, StoreError> {
    // Below the engine's own limit, so it is this store that gives up a silent connection.
    let limit = context.request_limit.mul_f32(0.9);
    let limit = settings.request_limit.map_or(limit, |own| own.min(limit));
    let (url, strict, prefix) = (settings.shown.clone(), settings.strict, settings.prefix.as_str().into());
    let background = context.background.clone();
    let opener = Arc::new(Opener::new(settings, context.background, context.wakes.clone())?);
    let first = first_session(&opener).await?;
    let id = opener.id().ok_or_else(trouble::closed)?;
    let (keeper, wakes, waits) = (context.keeper, context.wakes, Arc::default());
    let openings = Arc::new(ConfirmedOpenings::new(ServerFacts::is_same_run));
    let own = Own { keeper, id, prefix, wakes, waits, openings };
    let requests = Arc::new(Connection::new(opener.clone(), limit, Some(first)));
    if strict {
        risks::refuse(&check::look(&requests).await?)?;
    } else {
        let requests = requests.clone();
        background.spawn(async move { check::warn(check::look(&requests).await) });
    }
    let renewals = Connection::new(opener.clone(), limit, None);
    let waits = Connection::new(opener, limit, None);
    let polls = Background::spawn(&background, wakes::run(Arc::downgrade(&requests), own.clone()));
    let sweep = Background::spawn(&background, sweep::run(Arc::downgrade(&requests), own.clone()));
    Ok(MySqlStore { url, own, requests, renewals, waits, tasks: Mutex::new(vec![polls, sweep]) })
}

/// Opens a session on the keeper's thread.
async fn first_session(opener: &Arc<Opener>) -> Result<Opened, StoreError> {
    let (background, opener) = (opener.background.clone(), opener.clone());
    let opened = background.spawn(async move { opener.open_first().await });
    opened.await.map_err(|_| trouble::closed())?
}
