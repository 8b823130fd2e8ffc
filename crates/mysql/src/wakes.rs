//! Looks for news and wakes the engine: the server tells nobody anything, so a keeper that waits or watches polls.
//!
//! A poll finds hints only: others see a commit before it is on disk. So a waiter that was granted asks again, in a
//! transaction of its own.

use std::{sync::Weak, time::Duration};

use lockkeeper_core::{StoreError, support::backoff::Backoff};
use mysql_async::Row;
use tokio::time;

use crate::{
    codec::{bytes, check_state, decode, maybe_number, name_of, number, text},
    connection::{Connection, Failure},
    flights,
    own::Own,
    trouble,
    waits::{Due, LATEST, Moved, News},
};

/// Polls for as long as there is something to wait for, until the connection ends.
pub(crate) async fn run(requests: Weak<Connection>, own: Own) {
    let mut backoff = Backoff::new(Duration::from_millis(50), LATEST);
    loop {
        let changed = own.waits.changes();
        let due = match own.waits.due() {
            Ok(due) => due,
            Err(next) => {
                tokio::select! {
                    () = changed => {}
                    () = async {
                        match next {
                            Some(next) => time::sleep_until(next).await,
                            None => std::future::pending().await,
                        }
                    } => {}
                }
                continue;
            }
        };
        let Some(requests) = requests.upgrade() else { return };
        match poll(&requests, &own, &due).await {
            Ok(news) => {
                backoff.reset();
                own.waits.found(&due, &news).into_iter().for_each(|wake| own.wakes.wake(wake));
            }
            Err(error) => {
                tracing::debug!(%error, "a poll failed; another one follows");
                drop(requests);
                time::sleep(backoff.jittered()).await;
            }
        }
    }
}

async fn poll(requests: &Connection, own: &Own, due: &Due) -> Result<News, StoreError> {
    let (keeper, id, due) = (own.keeper, own.id.clone(), due.clone());
    let polled = requests.run(move |session, _| {
        Box::pin(async move {
            let (names, latches): (Vec<_>, Vec<_>) =
                (due.names.into_iter().collect(), due.latches.into_iter().collect());
            let poll = session.statements.poll(keeper, &names, &latches);
            let rows = flights::rows(&session, &poll).await?;
            news_in(&rows, &id).map_err(Failure::closes)
        })
    });
    polled.await
}

/// Takes the rows of [`poll`](crate::statements::Statements::poll).
fn news_in(rows: &[Row], id: &str) -> Result<News, StoreError> {
    let mut news = News::default();
    for row in rows {
        let (part, moved) = (number(row, 0)?, number(row, 2)?);
        let ahead = maybe_number(row, 3)?.unwrap_or_default();
        match part {
            0 => {
                check_state(text(row, 4)?, id)?;
                news.clock = moved;
            }
            1 => {
                let ahead = u32::try_from(ahead).unwrap_or(u32::MAX);
                news.names.insert(name_of(row, 1)?, Moved { moved, ahead });
            }
            2 => {
                // The waiter meets a row that cannot be read when it asks itself.
                if let Some(Ok(entry)) = bytes(row, 4)?.map(decode) {
                    news.granted.push((name_of(row, 1)?, entry.contender));
                }
            }
            _ => drop(news.latches.insert(name_of(row, 1)?, moved)),
        }
    }
    if news.clock == 0 {
        return Err(trouble::corrupt("the table store has no row; drop the tables, or restore them"));
    }
    Ok(news)
}
