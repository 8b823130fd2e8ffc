//! A receiver of alarms that is down, slow and back.

use std::{fs, time::Duration};

use serde_json::Value;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};

use crate::world::World;

/// Reads one request to its end; returns its JSON.
async fn receive(listener: &TcpListener) -> (TcpStream, Value) {
    let (mut client, _) = listener.accept().await.expect("a client");
    let mut got = Vec::new();
    loop {
        let mut some = [0; 4096];
        let count = client.read(&mut some).await.expect("bytes");
        got.extend_from_slice(&some[..count]);
        let text = String::from_utf8_lossy(&got).into_owned();
        if let Some(json) = text.split_once("\r\n\r\n").and_then(|(_, body)| serde_json::from_str(body).ok())
        {
            return (client, json);
        }
        assert!(count > 0, "{text}");
    }
}

async fn answer(mut client: TcpStream, status: &str) {
    let answer = format!("HTTP/1.1 {status}\r\ncontent-length: 0\r\n\r\n");
    client.write_all(answer.as_bytes()).await.expect("a reader");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn alarms_reach_a_receiver_that_is_down_slow_and_back() {
    // Reserves a port, on which nobody answers from then on.
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    drop(listener);
    let world = World::with(|settings, folder| {
        let file = folder.path().join("alarms.toml");
        let text = format!("[webhook]\nurl = 'http://{address}/hook'\n[[alarm]]\nheld = '1s'\n");
        fs::write(&file, text).expect("written");
        settings.alarms = Some(file);
    })
    .await;
    let guard = world.keeper.mutex("slow").lock().await.expect("free");
    world.sign_in(crate::world::LOOK);
    world.go("#/alarms");
    // The receiver is down: the page says so, and nothing waits for it.
    world.browser.until_text("The last try failed");
    let listener = TcpListener::bind(address).await.expect("the port again");
    // The receiver is back, but busy.
    let (client, _) = receive(&listener).await;
    answer(client, "503 Busy").await;
    // The receiver is slow: alarms that come meanwhile are kept, in order.
    let (client, raised) = receive(&listener).await;
    assert_eq!((raised["event"].as_str(), raised["alarm"]["name"].as_str()), (Some("raised"), Some("slow")));
    guard.release().await.expect("held");
    world.browser.until("document.querySelector('.alarms.past li')");
    answer(client, "204 Thanks").await;
    let ended = tokio::time::timeout(Duration::from_secs(120), receive(&listener)).await.expect("in time");
    assert_eq!(ended.1["event"], "ended");
    assert_eq!(ended.1["alarm"]["id"], raised["alarm"]["id"]);
    answer(ended.0, "200 OK").await;
    world.browser.until_text("2 sent");
    world.end().await;
}
