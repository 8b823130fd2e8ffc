//! What no lock between processes can do without, and nothing else: whoever is woken has the quorum confirm that its
//! node is there, and one transaction wakes the next, removes the node and makes another. In a ring, so that nobody has
//! to find out whose turn it is.

use std::time::{Duration, Instant};

use zookeeper_client::{Acls, Client, CreateMode, MultiWriteResult, OneshotWatcher};

use crate::{
    Failure,
    processes::{PROCESSES, now},
};

const FOLDER: &str = "/bench/ring";

/// One process of the ring.
pub(super) struct Ring {
    client: Client,
    own: usize,
    /// Its node in what would be the line.
    node: String,
    /// Rounds so far.
    round: u64,
}

fn bell(of: usize) -> String {
    format!("{FOLDER}/bell-{of}")
}

fn prefix() -> String {
    format!("{FOLDER}/line/c-")
}

impl Ring {
    pub(super) async fn join(servers: &str, own: usize) -> Result<Self, Failure> {
        let client = Client::connector().connect(servers).await?;
        let lasting = CreateMode::Persistent.with_acls(Acls::anyone_all());
        client.mkdir(&format!("{FOLDER}/line"), &lasting).await?;
        client.create(&bell(own), b"", &lasting).await?;
        let passing = CreateMode::EphemeralSequential.with_acls(Acls::anyone_all());
        let (_, sequence) = client.create(&prefix(), b"", &passing).await?;
        Ok(Self { client, own, node: format!("{}{sequence}", prefix()), round: 0 })
    }

    /// Goes round for as long as `length`, and tells when it was woken and when it began to wake the next.
    pub(super) async fn pass(&mut self, length: Duration) -> Result<Vec<(u64, u64)>, Failure> {
        self.round += 1;
        let (started, mut times) = (Instant::now(), Vec::new());
        // What its bell says when it is woken next. The first begins.
        let mut visit = 0;
        let mut rung = self.own == 0;
        let mut watcher = if rung { None } else { self.listen(visit).await? };
        while let Some(left) = length.checked_sub(started.elapsed()) {
            if let Some(watcher) = watcher.take().filter(|_| !rung)
                && tokio::time::timeout(left, watcher.changed()).await.is_err()
            {
                break;
            }
            rung = false;
            self.client.new_check_writer(&self.node, None)?.commit().await?;
            times.push((now(), now()));
            let next = (self.own + 1) % PROCESSES;
            let to_next = if next == 0 { visit + 1 } else { visit };
            visit += 1;
            let mut multi = self.client.new_multi_writer();
            multi.add_set_data(&bell(next), self.says(to_next).as_bytes(), None)?;
            multi.add_delete(&self.node, None)?;
            let passing = CreateMode::EphemeralSequential.with_acls(Acls::anyone_all());
            multi.add_create(&prefix(), b"", &passing)?;
            // One behind the other.
            let (done, listening) = (multi.commit(), self.listen(visit));
            let (done, listening) = tokio::join!(done, listening);
            watcher = listening?;
            for result in done? {
                if let MultiWriteResult::Create { path, .. } = result {
                    self.node = path;
                }
            }
        }
        Ok(times)
    }

    fn says(&self, visit: u64) -> String {
        format!("{} {visit}", self.round)
    }

    /// Waits for its bell; `None` if it has rung for this visit already.
    async fn listen(&self, visit: u64) -> Result<Option<OneshotWatcher>, Failure> {
        let (data, _, watcher) = self.client.get_and_watch_data(&bell(self.own)).await?;
        Ok((data != self.says(visit).as_bytes()).then_some(watcher))
    }
}
