//! The bare token of PostgreSQL: sixteen processes that listen, and two durable updates of one row a pass. It is no
//! lock, but it does as much as a lock that is on disk has to do for a claim and a release.

use std::{
    pin::pin,
    time::{Duration, Instant},
};

use tokio::sync::mpsc;
use tokio_postgres::{AsyncMessage, NoTls};

use crate::{
    Failure,
    processes::{PROCESSES, now, wait_for_go},
};

fn channel(of: usize) -> String {
    format!("bench_token_{of}")
}

/// One process: hears that it has the token, updates one row for that, and another one with the message to the next.
pub(crate) async fn token(url: &str, own: usize, length: Duration) -> Result<Vec<(u64, u64)>, Failure> {
    let (client, mut connection) = tokio_postgres::connect(url, NoTls).await?;
    let (heard, mut messages) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        while let Some(Ok(message)) = std::future::poll_fn(|context| connection.poll_message(context)).await {
            if matches!(message, AsyncMessage::Notification(_)) && heard.send(()).is_err() {
                return;
            }
        }
    });
    let take = client.prepare("UPDATE bench_token SET n = n + 1 WHERE id = 1").await?;
    let pass = "WITH updated AS (UPDATE bench_token SET n = n + 1 WHERE id = 2 RETURNING n)
SELECT pg_notify($1, '') FROM updated";
    let pass = client.prepare(pass).await?;
    client.batch_execute(&format!("LISTEN {}", channel(own))).await?;
    let next = channel((own + 1) % PROCESSES);
    let started = wait_for_go()?;
    if own == 0 {
        // All listen, or nobody would have said go.
        client.query(&pass, &[&channel(own)]).await?;
    }
    let mut times = Vec::new();
    while let Some(left) = left(started, length) {
        let mut message = pin!(messages.recv());
        if tokio::time::timeout(left, &mut message).await.is_err() {
            break;
        }
        client.execute(&take, &[]).await?;
        let granted = now();
        times.push((granted, now()));
        client.query(&pass, &[&next]).await?;
    }
    Ok(times)
}

fn left(started: Instant, length: Duration) -> Option<Duration> {
    length.checked_sub(started.elapsed()).filter(|left| !left.is_zero())
}
