//! Clients of a server of locks, with as little of their own as can be.

use std::{
    net::SocketAddr,
    time::{Duration, Instant},
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    task::JoinSet,
};

use crate::Failure;

/// A caller's token, and the address that it calls.
#[derive(Clone)]
pub(crate) struct Client {
    pub(crate) address: SocketAddr,
    pub(super) token: String,
}

impl Client {
    /// So many connections acquire and release names of their own for a while; pairs a second.
    pub(super) async fn pairs(&self, connections: usize, length: Duration) -> Result<f64, Failure> {
        let mut open = Vec::with_capacity(connections);
        for _ in 0..connections {
            open.push(self.connect().await?);
        }
        let (mut tasks, start) = (JoinSet::new(), Instant::now());
        for (index, mut connection) in open.into_iter().enumerate() {
            tasks.spawn(async move {
                let mut pairs = 0_u64;
                let acquire = format!("{{\"name\":\"bench/{index}\"}}");
                while start.elapsed() < length {
                    let held = connection.call("/v1/acquire", &acquire).await?;
                    connection.call("/v1/release", &release(&held)?).await?;
                    pairs += 1;
                }
                Ok::<u64, Failure>(pairs)
            });
        }
        let mut pairs = 0;
        while let Some(done) = tasks.join_next().await {
            pairs += done??;
        }
        Ok(pairs as f64 / start.elapsed().as_secs_f64())
    }

    /// The answer to an acquisition.
    pub(super) async fn acquire(&self, name: &str) -> Result<String, Failure> {
        self.connect().await?.call("/v1/acquire", &format!("{{\"name\":\"{name}\",\"lease\":\"10m\"}}")).await
    }

    /// Gives back the acquisition whose answer is `held`.
    pub(super) async fn release(&self, held: &str) -> Result<(), Failure> {
        self.connect().await?.call("/v1/release", &release(held)?).await.map(drop)
    }

    /// So many requests wait for a name; they hang up when dropped.
    pub(super) async fn wait(&self, name: &str, count: usize) -> Result<Vec<Connection>, Failure> {
        let mut waiters = Vec::with_capacity(count);
        for _ in 0..count {
            let mut connection = self.connect().await?;
            connection.send("/v1/acquire", &format!("{{\"name\":\"{name}\",\"wait\":\"9m\"}}")).await?;
            waiters.push(connection);
        }
        Ok(waiters)
    }

    /// Opens a stream of events.
    pub(crate) async fn stream(&self, path: &str) -> Result<Stream, Failure> {
        let mut connection = self.connect().await?;
        connection.ask("GET", path, "").await?;
        Ok(Stream(connection))
    }

    /// How often the server has listed the store so far.
    pub(crate) async fn samples(&self) -> Result<u64, Failure> {
        let mut connection = self.connect().await?;
        connection.ask("GET", "/metrics", "").await?;
        let metrics = connection.answer("/metrics").await?;
        let count =
            metrics.lines().find_map(|line| line.strip_prefix("lockkeeper_store_listing_seconds_count "));
        Ok(count.ok_or("the server does not count its listings")?.trim().parse()?)
    }

    async fn connect(&self) -> Result<Connection, Failure> {
        let stream = TcpStream::connect(self.address).await?;
        stream.set_nodelay(true)?;
        Ok(Connection { stream, token: self.token.clone(), buffer: Vec::with_capacity(4096) })
    }
}

fn release(held: &str) -> Result<String, Failure> {
    let lease = held.split("\"lease\":\"").nth(1).and_then(|rest| rest.split('"').next());
    Ok(format!("{{\"lease\":\"{}\"}}", lease.ok_or_else(|| format!("no lease in {held}"))?))
}

/// A connection that is used again and again.
pub(super) struct Connection {
    stream: TcpStream,
    token: String,
    buffer: Vec<u8>,
}

impl Connection {
    async fn send(&mut self, path: &str, body: &str) -> Result<(), Failure> {
        self.ask("POST", path, body).await
    }

    async fn ask(&mut self, method: &str, path: &str, body: &str) -> Result<(), Failure> {
        let text = format!(
            "{method} {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {}\r\nContent-Type: \
             application/json\r\nContent-Length: {}\r\n\r\n{body}",
            self.token,
            body.len()
        );
        Ok(self.stream.write_all(text.as_bytes()).await?)
    }

    /// The body of a good answer.
    async fn call(&mut self, path: &str, body: &str) -> Result<String, Failure> {
        self.send(path, body).await?;
        self.answer(path).await
    }

    async fn answer(&mut self, path: &str) -> Result<String, Failure> {
        self.buffer.clear();
        loop {
            if self.stream.read_buf(&mut self.buffer).await? == 0 {
                return Err("the server hung up".into());
            }
            let text = std::str::from_utf8(&self.buffer)?;
            let Some((head, body)) = text.split_once("\r\n\r\n") else { continue };
            let length =
                head.lines().find_map(|line| line.strip_prefix("content-length: ")).ok_or("no length")?;
            if body.len() < length.parse()? {
                continue;
            }
            return match head.starts_with("HTTP/1.1 200") {
                true => Ok(body.to_owned()),
                false => Err(format!("{path}: {text}").into()),
            };
        }
    }
}

/// A stream of events that somebody reads.
pub(crate) struct Stream(Connection);

impl Stream {
    /// Reads until it ends, and tells the reason.
    pub(crate) async fn read(mut self) -> Result<(), Failure> {
        let Connection { stream, buffer, .. } = &mut self.0;
        stream.read_buf(buffer).await?;
        if !buffer.starts_with(b"HTTP/1.1 200") {
            return Err(String::from_utf8_lossy(buffer).into_owned().into());
        }
        loop {
            buffer.clear();
            if stream.read_buf(buffer).await? == 0 {
                return Err("the server hung up".into());
            }
        }
    }
}
