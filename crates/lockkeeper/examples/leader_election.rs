//! `cargo run -p lockkeeper --example leader_election [URL [SECONDS]]`
//!
//! Three candidates stand for one office. One leads, the others wait in the queue and take over one
//! after another; an observer sees each change. In real life each candidate is a process.
//!
//! On SIGTERM or Ctrl-C the leader first stops its work and then resigns, in this order: the next one leads as soon as the
//! office is free, and there would be two at work for a moment otherwise. Those who wait leave the queue. Without all that, a
//! signal would end the program with the office taken, and the next leader would wait until the lease has ended.

use std::{io, time::Duration};

use lockkeeper::{Error, Keeper};
use tokio::{sync::watch, task::JoinSet};

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
    let (end, ending) = watch::channel(false);
    for address in ["10.0.0.7:80", "10.0.0.8:80", "10.0.0.9:80"] {
        let keeper = lockkeeper::connect(url).await?;
        keepers.push(keeper.clone());
        let (office, ending) = (office.to_owned(), ending.clone());
        campaigns.spawn(async move { lead_for_a_while(&keeper, &office, address, term, ending).await });
    }
    tokio::select! {
        ended = all(&mut campaigns) => ended?,
        () = asked_to_end => {
            println!("asked to end: whoever leads stops and resigns");
            end.send_replace(true);
            // Closing alone would give the office to the next one while the work of this one may still be stopping.
            all(&mut campaigns).await?;
        }
    }
    // Nobody works any more. This gives back whatever is left, and returns when that is done.
    for keeper in keepers {
        keeper.close().await;
    }
    watching.await?;
    Ok(())
}

async fn lead_for_a_while(
    keeper: &Keeper,
    office: &str,
    address: &str,
    term: Duration,
    mut ending: watch::Receiver<bool>,
) -> Result<(), Error> {
    let election = keeper.election(office);
    let leadership = tokio::select! {
        leadership = election.campaign(address) => leadership?,
        // To drop the campaign is to leave the queue.
        _ = ending.wait_for(|ending| *ending) => return Ok(()),
    };
    if *ending.borrow() {
        // The office came at the last moment. Whoever is to end does not begin.
        return Ok(leadership.resign().await?);
    }
    println!("{address}: I lead");
    tokio::select! {
        // The work of a leader: dropped at once if the leadership is lost.
        worked = leadership.run(tokio::time::sleep(term)) => worked?,
        _ = ending.wait_for(|ending| *ending) => {}
    }
    // The work has been dropped here, or has ended. Work in threads or processes of its own has to be waited for.
    println!("{address}: my work has stopped");
    leadership.resign().await?;
    println!("{address}: I have resigned");
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
