//! The sweep: removes what ended and nobody asks for any more. One keeper of all does it, once a minute.

use std::{
    sync::{Arc, Weak},
    time::Duration,
};

use lockkeeper_core::{
    ContenderId, Name, StoreError,
    store::{Leave, Request},
    support::backoff::Backoff,
};
use tokio_postgres::Row;

use crate::{
    connection::{Connection, Worked},
    flights::{self, Call},
    groups::{Group, Own, unread},
    rows::{get, name_from_bytes},
    session::Parameter,
    statements::Statement,
};

/// How often the sweep is made.
const EVERY: Duration = Duration::from_secs(60);
/// How long the row of a free name is kept, and for how long empty slots wait to be used again.
const KEPT: Duration = Duration::from_secs(24 * 3600);
const SLOTS_KEPT: Duration = Duration::from_secs(60);

/// Sweeps until the connection ends.
pub(crate) async fn run(requests: Weak<Connection>, own: Own) {
    // Keepers that start together do not sweep together.
    let mut pause = Backoff::new(EVERY, EVERY);
    loop {
        tokio::time::sleep(pause.jittered()).await;
        let Some(requests) = requests.upgrade() else { return };
        if let Err(error) = sweep(&requests, &own).await {
            tracing::debug!(%error, "the sweep failed; another one follows");
        }
    }
}

/// Sweeps, unless another keeper did so within the last minute.
async fn sweep(requests: &Arc<Connection>, own: &Own) -> Result<(), StoreError> {
    let every = micros(EVERY) * 3 / 4;
    let started = requests.run(move |session, _| {
        Box::pin(async move { session.query(Statement::StartSweep, &[&every]).await.map_err(unread) })
    });
    let Some(now) = started.await?.first().map(|row| get::<i64>(row, 0)).transpose()? else { return Ok(()) };
    settle_ended(requests, own, now).await?;
    let (slots, old) = (now - micros(SLOTS_KEPT), now - micros(KEPT));
    remove(requests, own, Statement::LockFreed, Statement::SweepResources, vec![slots, old], Some(old))
        .await?;
    remove(requests, own, Statement::LockFreedLatches, Statement::SweepLatches, vec![old], None).await?;
    let sweep_old = requests.run(move |session, _| {
        Box::pin(async move { session.query(Statement::SweepOld, &[&now]).await.map(drop).map_err(unread) })
    });
    sweep_old.await
}

/// Settles names in which everything has ended. A leave of nobody does so.
async fn settle_ended(requests: &Connection, own: &Own, now: i64) -> Result<(), StoreError> {
    let ended = requests.run(move |session, _| {
        Box::pin(async move { session.query(Statement::Ended, &[&now]).await.map_err(unread) })
    });
    let names: Vec<Name> = names(&ended.await?)?;
    let nobody = ContenderId { keeper: own.keeper, seq: 0 };
    let leave = |name| {
        Request::Leave(Leave {
            name,
            contender: nobody,
            tombstone_until: None,
            hold_at_least: Duration::ZERO,
        })
    };
    let group: Arc<[Request]> = names.into_iter().map(leave).collect();
    if group.is_empty() {
        return Ok(());
    }
    let own = own.clone();
    let applied =
        requests.run(move |session, progress| Box::pin(Group { session, progress, own }.apply(group)));
    applied.await.map(drop)
}

/// Locks rows, and removes those that are still free.
async fn remove(
    requests: &Connection,
    own: &Own,
    lock: Statement,
    sweep: Statement,
    times: Vec<i64>,
    old: Option<i64>,
) -> Result<(), StoreError> {
    let own = own.clone();
    let work = move |session, progress| -> std::pin::Pin<Box<dyn Future<Output = Worked<()>> + Send>> {
        Box::pin(async move {
            let group = Group { session, progress, own };
            let times: Vec<Parameter<'_>> = times.iter().map(|time| time as Parameter<'_>).collect();
            let (no_names, nobody) = (Vec::<Vec<u8>>::new(), Vec::<String>::new());
            let read = Call { statement: Statement::Read, parameters: &[&no_names, &nobody] };
            let flight =
                flights::first(&group.session, Call { statement: lock, parameters: &times }, read, &[sweep])
                    .await?;
            let locked = flight.locked.iter().map(|row| get(row, 0)).collect::<Result<Vec<&[u8]>, _>>();
            let locked = match locked {
                Ok(locked) => locked,
                Err(error) => return Err(flights::give_up(&group.session, error).await),
            };
            if locked.is_empty() {
                return flights::roll_back(&group.session).await;
            }
            let mut parameters: Vec<Parameter<'_>> = vec![&locked];
            parameters.extend(old.as_ref().map(|old| old as Parameter<'_>));
            let write = Call { statement: sweep, parameters: &parameters };
            flights::second(&group.session, &group.progress, write, None).await
        })
    };
    requests.run(work).await
}

fn names(rows: &[Row]) -> Result<Vec<Name>, StoreError> {
    rows.iter().map(|row| name_from_bytes(get(row, 0)?)).collect()
}

fn micros(length: Duration) -> i64 {
    i64::try_from(length.as_micros()).unwrap_or(i64::MAX)
}
