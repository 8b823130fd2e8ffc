//! The part that no lock between processes can do without, and nothing else: one transaction wakes the next, removes
//! the own node and makes another. In a ring, so that nobody has to find out whose turn it is.

use std::time::{Duration, Instant};

use zookeeper_client::{Acls, Client, CreateMode, MultiWriteResult, OneshotWatcher};

use crate::{
    Failure,
    processes::{PROCESSES, now},
};

/// One process of the ring.
pub(super) struct Ring {
    client: Client,
    folder: String,
    own: usize,
    /// Its node, in the place of a queue.
    node: String,
    /// Rounds so far.
    round: u64,
}

impl Ring {
    /// A folder that no ring had before: nodes of an earlier one would ring the bells of this one.
    pub(super) fn new_folder() -> String {
        format!("/bench/ring-{}", now())
    }

    pub(super) async fn join(servers: &str, folder: &str, own: usize) -> Result<Self, Failure> {
        let client = Client::connector().connect(servers).await?;
        let mut ring = Self { client, folder: folder.to_owned(), own, node: String::new(), round: 0 };
        let lasting = CreateMode::Persistent.with_acls(Acls::anyone_all());
        ring.client.mkdir(&format!("{folder}/line"), &lasting).await?;
        ring.client.create(&ring.bell(own), b"", &lasting).await?;
        let passing = CreateMode::EphemeralSequential.with_acls(Acls::anyone_all());
        let (_, sequence) = ring.client.create(&ring.prefix(), b"", &passing).await?;
        ring.node = format!("{}{sequence}", ring.prefix());
        Ok(ring)
    }

    fn bell(&self, of: usize) -> String {
        format!("{}/bell-{of}", self.folder)
    }

    fn prefix(&self) -> String {
        format!("{}/line/c-", self.folder)
    }

    /// Goes round for as long as `length`, and tells when it was woken and when it began to wake the next.
    pub(super) async fn pass(&mut self, length: Duration) -> Result<Vec<(u64, u64)>, Failure> {
        self.round += 1;
        let (started, mut times) = (Instant::now(), Vec::new());
        // The number in its bell when it is woken next. The first begins.
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
            times.push((now(), now()));
            let next = (self.own + 1) % PROCESSES;
            let to_next = if next == 0 { visit + 1 } else { visit };
            visit += 1;
            let mut multi = self.client.new_multi_writer();
            multi.add_set_data(&self.bell(next), self.says(to_next).as_bytes(), None)?;
            multi.add_delete(&self.node, None)?;
            let passing = CreateMode::EphemeralSequential.with_acls(Acls::anyone_all());
            multi.add_create(&self.prefix(), b"", &passing)?;
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
        let (data, _, watcher) = self.client.get_and_watch_data(&self.bell(self.own)).await?;
        Ok((data != self.says(visit).as_bytes()).then_some(watcher))
    }
}

#[cfg(test)]
mod tests {
    use lockkeeper_testkit::servers::ZooKeeper;

    use super::*;

    /// One ring after another on one server, as when a workload is measured again: a process that passes on is followed
    /// by the next in the ring, so nothing of the first ring is heard in the second.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_second_ring_goes_round_like_the_first() {
        let server = ZooKeeper::start().expect("started");
        let address = server.nodes()[0].address().to_string();
        for _ in 0..2 {
            let (folder, mut members) = (Ring::new_folder(), Vec::new());
            for own in 0..PROCESSES {
                members.push(Ring::join(&address, &folder, own).await.expect("it joins"));
            }
            let rounds = members.into_iter().enumerate().map(|(index, mut ring)| {
                tokio::spawn(
                    async move { (index, ring.pass(Duration::from_secs(1)).await.expect("it passes")) },
                )
            });
            let mut turns = Vec::new();
            for round in rounds.collect::<Vec<_>>() {
                let (index, times) = round.await.expect("no panic");
                turns.extend(times.into_iter().map(|(granted, _)| (granted, index)));
            }
            turns.sort_unstable();
            assert!(!turns.is_empty());
            for (turn, (_, index)) in turns.iter().enumerate() {
                assert_eq!(turn % PROCESSES, *index, "{turns:?}");
            }
        }
    }
}
