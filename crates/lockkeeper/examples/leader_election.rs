//! `cargo run -p lockkeeper --example leader_election [URL [SECONDS]]`
//!
//! Three candidates stand for one office. One leads, the others wait in the queue and take over one
//! after another; an observer sees each change. In real life each candidate is a process.
//!
//! On SIGTERM or Ctrl-C the leader resigns before the program ends. Without that, a signal would end the program
//! with the office taken, and the next leader would wait until the lease has ended.

use std::{io, time::Duration};

use lockkeeper::{Error, Keeper};
use tokio::task::JoinSet;

/// Program errors of any kind.
type Failure = Box<dyn std::error::Error + Send + Sync>;

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let mut words = std::env::args().skip(1);
    let url = words.next().map_or_else(lockkeeper::url::default_store, Ok)?;
    let term = words.next().map_or(Ok(0.2), |seconds| seconds.parse())?;
    let office = format!("example/scheduler/{}", std::process::id());
    run(&url, &office, Duration::try_from_secs_f64(term)?).await
}

/// Lets each candidate lead for `term`, unless this program is asked to end.
pub(crate) async fn run(url: &str, office: &str, term: Duration) -> Result<(), Failure> {
    // First of all, so that there is no moment at which a signal ends the program.
    let asked_to_end = asked_to_end()?;
    let observer = lockkeeper::connect(url).await?;
    let mut changes = observer.election(office).observe();
    let watching = tokio::spawn(async move {
        while let Some(Ok(change)) = changes.next().await {
            match change {
                Some(leader) => println!("observer: {} leads with token {}", leader.value, leader.token),
                None => println!("observer: nobody leads"),
            }
        }
    });

    let (mut keepers, mut campaigns) = (vec![observer], JoinSet::new());
    for address in ["10.0.0.7:80", "10.0.0.8:80", "10.0.0.9:80"] {
        let keeper = lockkeeper::connect(url).await?;
        keepers.push(keeper.clone());
        let office = office.to_owned();
        campaigns.spawn(async move { lead_for_a_while(&keeper, &office, address, term).await });
    }
    tokio::select! {
        ended = all(&mut campaigns) => ended?,
        () = asked_to_end => println!("asked to end: whoever leads resigns"),
    }
    // Gives back whatever is held or waited for, and returns when that is done.
    for keeper in keepers {
        keeper.close().await;
    }
    watching.await?;
    Ok(())
}

async fn lead_for_a_while(keeper: &Keeper, office: &str, address: &str, term: Duration) -> Result<(), Error> {
    let leadership = keeper.election(office).campaign(address).await?;
    println!("{address}: I lead");
    // The work of a leader: dropped at once if the leadership is lost.
    leadership.run(tokio::time::sleep(term)).await?;
    leadership.resign().await?;
    Ok(())
}

async fn all(campaigns: &mut JoinSet<Result<(), Error>>) -> Result<(), Failure> {
    while let Some(ended) = campaigns.join_next().await {
        ended??;
    }
    Ok(())
}

/// Returns when this program is asked to end. From the call on, signals no longer end it.
#[cfg(unix)]
fn asked_to_end() -> io::Result<impl Future<Output = ()>> {
    use tokio::signal::unix::{SignalKind, signal};
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    Ok(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    })
}

#[cfg(not(unix))]
fn asked_to_end() -> io::Result<impl Future<Output = ()>> {
    Ok(async { drop(tokio::signal::ctrl_c().await) })
}
