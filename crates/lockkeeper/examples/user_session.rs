//! cargo run -p lockkeeper --example user_session [URL]
//!
//! A user clicks in three tabs, and each click reaches another server. A session is edited by one
//! server at a time, so no click is lost; other users are not kept waiting.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use lockkeeper::{Error, Keeper};

const CLICKS: usize = 5;

/// Where the servers keep sessions: whole values, read and written back.
type Sessions = Arc<Mutex<HashMap<String, Vec<String>>>>;

#[tokio::main]
async fn main() -> Result<(), Error> {
    let url = std::env::args().nth(1).map_or_else(lockkeeper::url::default_store, Ok)?;
    let sessions = Sessions::default();
    let servers = ["north", "south", "west"];
    let running = servers.map(|server| {
        let (url, sessions) = (url.clone(), sessions.clone());
        tokio::spawn(async move {
            let keeper = lockkeeper::connect(&url).await?;
            for click in 1..=CLICKS {
                edit(&keeper, &sessions, "alice", format!("{server} {click}")).await?;
                edit(&keeper, &sessions, server, format!("only here {click}")).await?;
            }
            keeper.close().await;
            Ok::<(), Error>(())
        })
    });
    for server in running {
        server.await.expect("no server panics")?;
    }
    let sessions = sessions.lock().expect("nobody panicked");
    println!("alice's session: {}", sessions["alice"].join(", "));
    assert_eq!(sessions["alice"].len(), servers.len() * CLICKS, "no click was lost");
    Ok(())
}

async fn edit(keeper: &Keeper, sessions: &Sessions, user: &str, click: String) -> Result<(), Error> {
    let guard = keeper.mutex(&format!("example/session/{user}")).lock_within(Duration::from_secs(10)).await?;
    let mut session = sessions.lock().expect("nobody panicked").get(user).cloned().unwrap_or_default();
    // Rendering a page: somebody else's edit in between would be overwritten below.
    tokio::time::sleep(Duration::from_millis(2)).await;
    session.push(click);
    sessions.lock().expect("nobody panicked").insert(user.to_owned(), session);
    guard.release().await?;
    Ok(())
}
