//! Asks a server that could not be connected to whether it speaks TLS, so that the error can say which URL is right.
//! It opens a connection of its own and sends no secret.

use std::{io, time::Duration};

use tokio::{io::Interest, net::TcpStream};

use crate::address::Address;

/// How long the answer may take: the caller has waited before.
pub(crate) const LIMIT: Duration = Duration::from_millis(500);

/// A TLS record with an empty greeting: every server that speaks TLS refuses it with a record of TLS.
const EMPTY_HELLO: &[u8] = &[22, 3, 1, 0, 4, 1, 0, 0, 0];
/// The first byte of a record with an alert, and of one of the handshake.
const TLS: &[u8] = &[21, 22];

const PING: &[u8] = b"PING\r\n";
/// The first byte of a Redis answer: fine, or an error such as a missing password.
const REDIS: &[u8] = b"+-";

/// Whether the server answers TLS.
pub(crate) async fn speaks_tls(address: &Address) -> bool {
    answers(address, EMPTY_HELLO, TLS).await
}

/// Whether the server answers Redis without TLS.
pub(crate) async fn speaks_plain(address: &Address) -> bool {
    answers(address, PING, REDIS).await
}

/// Whether the answer to `words` begins with one of `first`.
async fn answers(address: &Address, words: &[u8], first: &[u8]) -> bool {
    let Address::Tcp(host, port) = address else { return false };
    let ask = async {
        let stream = TcpStream::connect((&**host, *port)).await?;
        // A new connection takes these few bytes at once.
        stream.async_io(Interest::WRITABLE, || stream.try_write(words)).await?;
        let mut answer = [0];
        let length = stream.async_io(Interest::READABLE, || stream.try_read(&mut answer)).await?;
        io::Result::Ok(length == 1 && first.contains(&answer[0]))
    };
    matches!(tokio::time::timeout(LIMIT, ask).await, Ok(Ok(true)))
}
