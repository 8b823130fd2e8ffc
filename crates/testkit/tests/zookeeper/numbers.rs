//! A resource whose sequences are used up: from then on the server gives all nodes the same one. A test cannot make two
//! billion nodes, so it changes the counter in the server's snapshot.

use std::{fs, path::Path, time::Duration};

use lockkeeper_testkit::servers::ZooKeeperNode;
use zookeeper_client::{Acls, CreateMode};

use crate::stage::{Stage, nodes, soon, until_nodes};

const SESSION: Duration = Duration::from_secs(4);

/// The checksum at the end of each part of a snapshot.
struct Adler(u64, u64);

impl Adler {
    fn add(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 + u64::from(*byte)) % 65521;
            self.1 = (self.1 + self.0) % 65521;
        }
    }

    fn value(&self) -> [u8; 8] {
        (self.1 << 16 | self.0).to_be_bytes()
    }
}

/// The files with the checksums of a snapshot.
fn checksums(snapshot: &[u8]) -> Vec<usize> {
    let mut adler = Adler(1, 0);
    let sealed = |(position, byte): (usize, &u8)| {
        let here = snapshot[position..].starts_with(&adler.value());
        adler.add(&[*byte]);
        here.then_some(position)
    };
    snapshot.iter().enumerate().filter_map(sealed).collect()
}

/// Sets how many children of `path` were made, at a server that is not running.
fn set_children_made(server: &ZooKeeperNode, path: &str, made: i32) {
    let newest = |file: &Path| {
        let name = file.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        name.strip_prefix("snapshot.").and_then(|zxid| u64::from_str_radix(zxid, 16).ok())
    };
    let files = fs::read_dir(server.data()).expect("a folder").map(|file| file.expect("a file").path());
    let file =
        files.max_by_key(|file| newest(file)).filter(|file| newest(file).is_some()).expect("a snapshot");
    let mut snapshot = fs::read(&file).expect("read");
    let seals = checksums(&snapshot);
    assert!(!seals.is_empty(), "no checksum found");
    // Length and path, length and data, the access rights, four numbers of eight bytes, the version of the data.
    let node = [&(path.len() as u32).to_be_bytes(), path.as_bytes()].concat();
    let at = snapshot.windows(node.len()).position(|window| window == node).expect("the node") + node.len();
    let length = i32::from_be_bytes(snapshot[at..at + 4].try_into().expect("four bytes"));
    let at = at + 4 + usize::try_from(length).unwrap_or(0) + 8 + 4 * 8 + 4;
    snapshot[at..at + 4].copy_from_slice(&made.to_be_bytes());
    for seal in seals {
        let mut adler = Adler(1, 0);
        adler.add(&snapshot[..seal]);
        snapshot[seal..seal + 8].copy_from_slice(&adler.value());
    }
    fs::write(file, snapshot).expect("written");
}

/// Holders exclude each other and waiters are served in order until the sequences run out. Then the resource counts from
/// zero.
#[tokio::test(flavor = "multi_thread")]
async fn a_resource_that_has_used_up_its_sequences_counts_from_zero() {
    let stage = Stage::single(SESSION);
    let server = &stage.servers.nodes()[0];
    let client = stage.client().await;
    let keeper = stage.keeper().await;
    keeper.mutex("stock").lock().await.expect("locked").release().await.expect("released");
    keeper.close().await;
    // The child keeps the folder. A server that starts writes its log into a snapshot.
    let plain = CreateMode::Persistent.with_acls(Acls::anyone_all());
    client.create("/lockkeeper/locks/stock/foreign", b"", &plain).await.expect("made");
    drop(client);
    server.restart().and_then(|()| server.until_ready()).expect("restarted");
    server.process().kill();
    set_children_made(server, "/lockkeeper/locks/stock", i32::MAX - 1_000_020);
    server.start_again().and_then(|()| server.until_ready()).expect("restarted");

    let client = stage.client().await;
    client.delete("/lockkeeper/locks/stock/foreign", None).await.expect("deleted");
    let (holder, keeper) = (stage.keeper().await, stage.keeper().await);
    let guard = holder.mutex("stock").lock().await.expect("locked");
    let mut last = guard.token();
    let name = nodes(&client, "stock").await.remove(0);
    assert!(name.ends_with("-2146483627"), "{name}");
    let (order, mut served) = tokio::sync::mpsc::unbounded_channel();
    let waits = |position: usize| {
        let (mutex, order) = (keeper.mutex("stock").fifo(), order.clone());
        tokio::spawn(async move {
            let guard = mutex.lock().await.expect("locked");
            order.send((position, guard.token())).expect("heard");
            guard.release().await.expect("released");
        })
    };
    let mut all = Vec::new();
    for position in 0..8 {
        all.push(waits(position));
        until_nodes(&client, "stock", position + 2).await;
    }
    // There are too few sequences for these.
    all.extend((8..40).map(waits));
    tokio::time::sleep(Duration::from_millis(500)).await;
    guard.release().await.expect("released");
    for position in 0..8 {
        let (next, token) = soon(served.recv()).await.expect("served");
        assert!(next == position && token > last, "{next} instead of {position}");
        last = token;
    }
    for _ in 8..40 {
        let (_, token) = soon(served.recv()).await.expect("served");
        assert!(token > last);
        last = token;
    }
    for served in all {
        served.await.expect("released");
    }
    let guard = keeper.mutex("stock").lock().await.expect("locked");
    let name = nodes(&client, "stock").await.remove(0);
    assert!(name.contains("-00000000"), "{name}");
    guard.release().await.expect("released");
    keeper.close().await;
    holder.close().await;
}
