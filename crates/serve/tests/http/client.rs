//! A client that sends given bytes as they are: other clients would refuse to be hostile.

use std::{net::SocketAddr, time::Duration};

use serde_json::Value;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};

/// How long anything may take before a test fails. Only a failing test waits so long.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);

/// An answer.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) text: String,
}

impl Answer {
    fn parse(bytes: &[u8]) -> Self {
        let text = String::from_utf8_lossy(bytes).into_owned();
        let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0);
        Self { status, head: head.to_lowercase(), text: body.to_owned() }
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    pub(crate) fn get(&self, name: &str) -> String {
        match &self.json()[name] {
            Value::String(text) => text.clone(),
            other => other.to_string(),
        }
    }

    /// Returns the code of an error, after checking the shape of the error.
    pub(crate) fn code(&self) -> String {
        let json = self.json();
        let keys: Vec<&String> = json.as_object().expect("an object").keys().collect();
        assert_eq!(keys, ["code", "message", "what_to_do"], "{self:?}");
        assert!(json["message"].as_str().is_some_and(|text| !text.is_empty()), "{self:?}");
        self.get("code")
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().find_map(|line| line.strip_prefix(&format!("{name}: ")))
    }
}

/// Sends requests to one server with one token.
#[derive(Clone, Debug)]
pub(crate) struct Client {
    pub(crate) address: SocketAddr,
    pub(crate) token: String,
}

impl Client {
    pub(crate) fn head(&self, method: &str, path: &str) -> String {
        format!(
            "{method} {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {}\r\nConnection: close\r\n",
            self.token
        )
    }

    pub(crate) async fn get(&self, path: &str) -> Answer {
        self.raw(&format!("{}\r\n", self.head("GET", path))).await
    }

    pub(crate) async fn post(&self, path: &str, body: &Value) -> Answer {
        self.post_with(path, "", body).await
    }

    /// Posts with more headers, each with its line end.
    pub(crate) async fn post_with(&self, path: &str, headers: &str, body: &Value) -> Answer {
        self.raw(&self.posted(path, headers, body)).await
    }

    pub(crate) fn posted(&self, path: &str, headers: &str, body: &Value) -> String {
        let body = body.to_string();
        format!(
            "{}Content-Type: application/json\r\nContent-Length: {}\r\n{headers}\r\n{body}",
            self.head("POST", path),
            body.len()
        )
    }

    pub(crate) async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.address).await.expect("it listens")
    }

    /// Sends this text, and reads to the end of the connection.
    pub(crate) async fn raw(&self, text: &str) -> Answer {
        let mut stream = self.connect().await;
        // A server that refuses early may close before everything is written.
        let _ = stream.write_all(text.as_bytes()).await;
        read(&mut stream).await
    }
}

/// Reads to the end of the connection.
pub(crate) async fn read(stream: &mut TcpStream) -> Answer {
    let mut bytes = Vec::new();
    // A reset after the answer is an end, too.
    let _ = timeout(LIMIT, stream.read_to_end(&mut bytes)).await.expect("in time");
    Answer::parse(&bytes)
}
