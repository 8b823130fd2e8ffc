//! cargo run -p lockkeeper --example leader_election [URL]
//!
//! Three candidates stand for one office. One leads, the others wait in the queue and take over one
//! after another; an observer sees each change. In real life each candidate is a process.

use std::time::Duration;

use lockkeeper::{Error, Keeper};

#[tokio::main]
async fn main() -> Result<(), Error> {
    let url = std::env::args().nth(1).map_or_else(lockkeeper::url::default_store, Ok)?;
    let observer = lockkeeper::connect(&url).await?;
    let office = format!("example/scheduler/{}", std::process::id());
    let mut changes = observer.election(&office).observe();

    let candidates = ["10.0.0.7:80", "10.0.0.8:80", "10.0.0.9:80"];
    let campaigns = candidates.map(|address| {
        let (url, office) = (url.clone(), office.clone());
        tokio::spawn(
            async move { lead_for_a_while(&lockkeeper::connect(&url).await?, &office, address).await },
        )
    });
    let watching = tokio::spawn(async move {
        while let Some(Ok(change)) = changes.next().await {
            match change {
                Some(leader) => println!("observer: {} leads with token {}", leader.value, leader.token),
                None => println!("observer: nobody leads"),
            }
        }
    });
    for campaign in campaigns {
        campaign.await.expect("no candidate panics")?;
    }
    observer.close().await;
    watching.await.expect("the observer does not panic");
    Ok(())
}

async fn lead_for_a_while(keeper: &Keeper, office: &str, address: &str) -> Result<(), Error> {
    let leadership = keeper.election(office).campaign(address).await?;
    println!("{address}: I lead");
    // The work of a leader: dropped at once if the leadership is lost.
    leadership.run(tokio::time::sleep(Duration::from_millis(200))).await?;
    leadership.resign().await?;
    keeper.close().await;
    Ok(())
}
