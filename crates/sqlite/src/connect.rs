//! Connects a keeper: starts its writer, which opens the database, and its listener.

use std::sync::{Arc, Mutex, OnceLock, Weak};

use lockkeeper_core::{
    KeeperId, StoreError,
    store::{Connector, Context, Store, Wake, WakeSink},
};

use crate::{
    crashes::OnCrash,
    database::{Database, OpenOptions},
    settings::Settings,
    store::SqliteStore,
    ticket::Urgency,
    wakes,
    writer::Writer,
};

/// Connects keepers to the file that `settings` name.
pub(crate) fn connector(settings: Settings) -> Connector {
    Connector::new(move |context| {
        let settings = settings.clone();
        async move { Ok(Arc::new(connect(settings, context).await?) as Arc<dyn Store>) }
    })
}

async fn connect(settings: Settings, context: Context) -> Result<SqliteStore, StoreError> {
    // The writer opens the database, which needs a way to the writer.
    let writer_slot = Arc::new(OnceLock::new());
    let shown = settings.path.display().to_string();
    let options = OpenOptions {
        path: settings.path,
        keeper: context.keeper,
        clock: context.clock,
        sink: context.wakes.clone(),
        limit: context.request_limit,
        background: context.background.clone(),
        on_crash: expire_through(writer_slot.clone(), context.wakes.clone()),
    };
    let open = move || Database::open(options);
    let (writer, opened) = Writer::start(shown, context.request_limit, open).await?;
    let writer = Arc::new(writer);
    // It is set only here, once.
    drop(writer_slot.set(Arc::downgrade(&writer)));
    let listen = |inbox| context.background.spawn(wakes::listen(inbox, context.wakes)).abort_handle();
    Ok(SqliteStore {
        url: settings.url,
        id: opened.store_id,
        keeper: context.keeper,
        writer,
        life_line: Mutex::new(Some(opened.life_line)),
        listener: opened.inbox.map(listen),
    })
}

/// Has each crashed keeper expired by the writer.
fn expire_through(writer: Arc<OnceLock<Weak<Writer>>>, wakes: WakeSink) -> OnCrash {
    Box::new(move |crashed: KeeperId| {
        let Some(writer) = writer.get().and_then(Weak::upgrade) else { return };
        let wakes = wakes.clone();
        writer.send(Urgency::Usual, move |database| {
            if let Err(error) = database.expire_if_crashed(crashed) {
                tracing::warn!(keeper = %crashed, %error, "a crashed process still holds its locks");
            }
            // It may have crashed after a grant and before it sent the wake.
            wakes.wake(Wake::Resync);
        });
    })
}
