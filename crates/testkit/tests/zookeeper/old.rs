//! Servers before 3.6, which cannot read many nodes with one request. There is no such server to be had here, so one
//! is made of a server of today: what stands between it and the client answers that request as an old server does.

use std::{
    io::{self, Read as _, Write as _},
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    thread,
    time::Duration,
};

use lockkeeper::StoreErrorKind;

use crate::stage::Stage;

/// The request that came with 3.6, and the answer to requests that a server does not know.
const MULTI_READ: i32 = 22;
const UNIMPLEMENTED: i32 = -6;

/// An old server in front of `server`.
fn old_server(server: SocketAddr) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("bound");
    let address = listener.local_addr().expect("an address");
    thread::spawn(move || {
        for client in listener.incoming().flatten() {
            let to_server = TcpStream::connect(server).expect("connected");
            let (mut from_server, mut to_client) =
                (to_server.try_clone().expect("cloned"), client.try_clone().expect("cloned"));
            thread::spawn(move || {
                // Either end may close it.
                drop(io::copy(&mut from_server, &mut to_client));
                drop(to_client.shutdown(Shutdown::Both));
            });
            thread::spawn(move || {
                drop(requests(client, &to_server));
                drop(to_server.shutdown(Shutdown::Both));
            });
        }
    });
    address
}

/// Hands requests on until the first that an old server does not know. It answers that and closes the connection.
fn requests(mut client: TcpStream, mut server: &TcpStream) -> io::Result<()> {
    let mut connected = false;
    loop {
        let mut length = [0; 4];
        client.read_exact(&mut length)?;
        let mut request = vec![0; usize::try_from(i32::from_be_bytes(length)).map_err(io::Error::other)?];
        client.read_exact(&mut request)?;
        let word = |at: usize| request.get(at..at + 4).and_then(|word| <[u8; 4]>::try_from(word).ok());
        if connected && word(4).map(i32::from_be_bytes) == Some(MULTI_READ) {
            let id = word(0).unwrap_or_default();
            let answer = [16_i32.to_be_bytes(), id, [0; 4], [0; 4], UNIMPLEMENTED.to_be_bytes()].concat();
            client.write_all(&answer)?;
            client.shutdown(Shutdown::Write)?;
            // Closed with something unread in it, a connection may lose what was written.
            return io::copy(&mut client, &mut io::sink()).map(drop);
        }
        connected = true;
        server.write_all(&length)?;
        server.write_all(&request)?;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_too_old_is_named_on_connecting() {
    let stage = Stage::single(Duration::from_secs(10));
    let url = format!("zookeeper://{}?session=10s&tick=200ms", old_server(stage.address()));
    let error = lockkeeper::connect(&url).await.expect_err("too old");
    assert_eq!(error.kind(), StoreErrorKind::Unsupported, "{error}");
    assert!(error.to_string().contains("3.6"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_shorter_than_the_session_names_what_to_change() {
    let stage = Stage::single(Duration::from_secs(4));
    // The settings are not in the URL, which messages show.
    let keeper = lockkeeper::connect(&stage.servers.url()).await.expect("connected");
    let error = keeper.mutex("stock").lease(Duration::from_secs(1)).lock().await.expect_err("too short");
    let error = error.to_string();
    assert!(error.contains("?session=") && error.contains("&tick="), "{error}");
    keeper.close().await;
}
