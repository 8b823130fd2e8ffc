//! A relay between client and server. It counts the sessions that are asked for, and can answer like a server before 3.6.

use std::{
    io::{self, Read as _, Write as _},
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    sync::{Arc, Mutex},
    thread,
    time::Duration,
};

use lockkeeper_core::support;

/// The request that came with 3.6, and the answer to requests that a server does not know.
const MULTI_READ: i32 = 22;
const UNIMPLEMENTED: i32 = -6;

/// A relay to one server.
pub(crate) struct Relay {
    address: SocketAddr,
    asked: Asked,
}

/// The timeouts of all new sessions that were asked for, in milliseconds.
type Asked = Arc<Mutex<Vec<i32>>>;

impl Relay {
    /// Starts a relay to `server`. If `old`, the server looks like one before 3.6.
    pub(crate) fn start(server: SocketAddr, old: bool) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("bound");
        let (address, asked) = (listener.local_addr().expect("an address"), Asked::default());
        let noted = asked.clone();
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let (server, noted) = (TcpStream::connect(server).expect("connected"), noted.clone());
                let (mut from_server, mut to_client) =
                    (server.try_clone().expect("cloned"), client.try_clone().expect("cloned"));
                thread::spawn(move || {
                    // Either end may close it.
                    drop(io::copy(&mut from_server, &mut to_client));
                    drop(to_client.shutdown(Shutdown::Both));
                });
                thread::spawn(move || {
                    drop(requests(client, &server, &noted, old));
                    drop(server.shutdown(Shutdown::Both));
                });
            }
        });
        Self { address, asked }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// How many new sessions with this timeout were asked for.
    pub(crate) fn sessions_of(&self, length: Duration) -> usize {
        let asked = support::lock(&self.asked);
        asked.iter().filter(|millis| u128::try_from(**millis) == Ok(length.as_millis())).count()
    }
}

/// Hands requests on. An old server answers the first that it does not know, and closes the connection.
fn requests(mut client: TcpStream, mut server: &TcpStream, asked: &Asked, old: bool) -> io::Result<()> {
    let mut connected = false;
    loop {
        let mut length = [0; 4];
        client.read_exact(&mut length)?;
        let mut request = vec![0; usize::try_from(i32::from_be_bytes(length)).map_err(io::Error::other)?];
        client.read_exact(&mut request)?;
        let bytes = |at: usize| request.get(at..at + 4).and_then(|word| <[u8; 4]>::try_from(word).ok());
        let word = |at: usize| bytes(at).map_or(0, i32::from_be_bytes);
        // Version, last transaction seen, timeout, session id. The id of a new session is zero.
        if !connected && [word(16), word(20)] == [0, 0] {
            support::lock(asked).push(word(12));
        }
        if old && connected && word(4) == MULTI_READ {
            let id = bytes(0).unwrap_or_default();
            let answer = [16_i32.to_be_bytes(), id, [0; 4], [0; 4], UNIMPLEMENTED.to_be_bytes()].concat();
            client.write_all(&answer)?;
            client.shutdown(Shutdown::Write)?;
            // Closed with something unread in it, a connection may lose the bytes that were written.
            return io::copy(&mut client, &mut io::sink()).map(drop);
        }
        connected = true;
        server.write_all(&length)?;
        server.write_all(&request)?;
    }
}
