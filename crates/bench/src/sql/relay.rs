//! A relay between a client and a database that counts flights and transactions.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{
        TcpListener, TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
    task::JoinHandle,
};

use super::Kind;
use crate::Failure;

const COMMIT: &[u8] = b"COMMIT";

/// The counts so far.
#[derive(Default)]
struct Counts {
    /// How often a client began to send after the server had: statements that are sent together are one flight.
    flights: AtomicU64,
    /// On PostgreSQL, how often the server said that a session is ready and not in a transaction: each transaction, and each
    /// statement without one, ends so. On MariaDB, how many flights had a commit in them.
    transactions: AtomicU64,
}

/// The relay. It ends when dropped.
pub(super) struct Relay {
    pub(super) address: SocketAddr,
    counts: Arc<Counts>,
    task: JoinHandle<()>,
}

impl Relay {
    pub(super) async fn start(server: SocketAddr, kind: Kind) -> Result<Self, Failure> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let (address, counts) = (listener.local_addr()?, Arc::<Counts>::default());
        let task = tokio::spawn(accept(listener, server, kind, counts.clone()));
        Ok(Self { address, counts, task })
    }

    pub(super) fn flights(&self) -> u64 {
        self.counts.flights.load(Ordering::Relaxed)
    }

    pub(super) fn transactions(&self) -> u64 {
        self.counts.transactions.load(Ordering::Relaxed)
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn accept(listener: TcpListener, server: SocketAddr, kind: Kind, counts: Arc<Counts>) {
    while let Ok((client, _)) = listener.accept().await {
        let counts = counts.clone();
        tokio::spawn(async move {
            if let Err(error) = relay(client, server, kind, counts).await {
                eprintln!("a connection through the relay ended: {error}");
            }
        });
    }
}

async fn relay(
    client: TcpStream,
    server: SocketAddr,
    kind: Kind,
    counts: Arc<Counts>,
) -> std::io::Result<()> {
    let server = TcpStream::connect(server).await?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let ((from_client, to_client), (from_server, to_server)) = (client.into_split(), server.into_split());
    let server_spoke = AtomicBool::new(true);
    let mut messages = Messages::default();
    let requests = copy(from_client, to_server, |bytes| {
        // All values are hexadecimal there, so this is no name.
        if kind == Kind::MariaDb && bytes.windows(COMMIT.len()).any(|word| word == COMMIT) {
            counts.transactions.fetch_add(1, Ordering::Relaxed);
        }
        if server_spoke.swap(false, Ordering::Relaxed) {
            counts.flights.fetch_add(1, Ordering::Relaxed);
        }
    });
    let answers = copy(from_server, to_client, |bytes| {
        server_spoke.store(true, Ordering::Relaxed);
        if kind == Kind::Postgres {
            counts.transactions.fetch_add(messages.ends_in(bytes), Ordering::Relaxed);
        }
    });
    // A session ends when either side has ended.
    tokio::select! {
        ended = requests => ended,
        ended = answers => ended,
    }
}

async fn copy(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    mut count: impl FnMut(&[u8]),
) -> std::io::Result<()> {
    let mut buffer = vec![0; 256 << 10];
    loop {
        let read = from.read(&mut buffer).await?;
        if read == 0 {
            return Ok(());
        }
        count(&buffer[..read]);
        to.write_all(&buffer[..read]).await?;
    }
}

/// Reads the messages of a PostgreSQL server: a letter, a length that counts itself, and so many bytes less four.
#[derive(Default)]
struct Messages {
    begun: bool,
    /// The first bytes of a message that is not whole yet.
    head: Vec<u8>,
    /// How many bytes of the message are still to come.
    rest: usize,
}

impl Messages {
    /// How many sessions became ready outside of a transaction in these bytes.
    fn ends_in(&mut self, mut bytes: &[u8]) -> u64 {
        // A lone letter that refuses encryption comes before all messages.
        if !std::mem::replace(&mut self.begun, true) && bytes.len() == 1 {
            return 0;
        }
        let mut ends = 0;
        while let Some((first, others)) = bytes.split_first() {
            if self.rest > 0 {
                let skipped = self.rest.min(bytes.len());
                self.rest -= skipped;
                bytes = &bytes[skipped..];
                continue;
            }
            self.head.push(*first);
            bytes = others;
            if let [letter, a, b, c, d] = self.head[..] {
                let length = u32::from_be_bytes([a, b, c, d]).saturating_sub(4);
                if letter != b'Z' {
                    self.rest = length as usize;
                    self.head.clear();
                }
            } else if let [b'Z', _, _, _, _, state] = self.head[..] {
                ends += u64::from(state == b'I');
                self.head.clear();
            }
        }
        ends
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A message of a server.
    fn message(letter: u8, body: &[u8]) -> Vec<u8> {
        let length = u32::try_from(body.len() + 4).expect("short").to_be_bytes();
        [&[letter], &length[..], body].concat()
    }

    #[test]
    fn transactions_are_counted_however_bytes_are_cut() {
        let all = [
            message(b'C', b"BEGIN\0"),
            message(b'Z', b"T"),
            message(b'D', b"ZZZZZI"),
            message(b'Z', b"T"),
            message(b'C', b"COMMIT\0"),
            message(b'Z', b"I"),
            message(b'n', b""),
            message(b'Z', b"I"),
        ]
        .concat();
        for size in 1..all.len() {
            let mut messages = Messages::default();
            assert_eq!(messages.ends_in(b"N"), 0);
            let ends: u64 = all.chunks(size).map(|bytes| messages.ends_in(bytes)).sum();
            assert_eq!(ends, 2, "in pieces of {size}");
        }
    }
}
