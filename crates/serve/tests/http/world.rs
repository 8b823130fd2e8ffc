//! A server in this process with tokens of every role, and its log.

use std::{
    io::Write,
    net::SocketAddr,
    path::PathBuf,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use lockkeeper_serve::{Listen, Server, Settings};
use lockkeeper_testkit::servers::write_private;
use serde_json::{Value, json};
use tokio::{sync::oneshot, task::JoinHandle};

use crate::client::{Client, LIMIT};

pub(crate) const TOKENS: &str = "look looklooklooklook eye\n\
    use useuseuseuseuseuse worker\n\
    use teamteamteamteam team team/ shared/\n\
    look teamlookteamlook team-eye team/\n\
    administer adminadminadminadmin ops\n";

/// A running server.
pub(crate) struct World {
    pub(crate) folder: tempfile::TempDir,
    pub(crate) address: SocketAddr,
    log: Log,
    end: Option<oneshot::Sender<()>>,
    task: Option<JoinHandle<()>>,
}

impl World {
    pub(crate) async fn start() -> Self {
        Self::with(|_| {}).await
    }

    /// Starts a server with other settings.
    pub(crate) async fn with(change: impl FnOnce(&mut Settings)) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("tokens");
        write_private(&file, TOKENS).expect("written");
        let mut settings = Settings::new("memory:");
        settings.listen = Listen::Tcp(SocketAddr::from(([127, 0, 0, 1], 0)));
        settings.token_file = Some(file);
        change(&mut settings);
        let log = Log::default();
        let server = Server::bind_with_log(settings, Box::new(log.clone())).await.expect("it starts");
        let Listen::Tcp(address) = *server.listens() else { panic!("a port") };
        let (end, ended) = oneshot::channel();
        let task = tokio::spawn(server.run(async move { drop(ended.await) }));
        Self { folder, address, log, end: Some(end), task: Some(task) }
    }

    pub(crate) fn client(&self, token: &str) -> Client {
        Client { address: self.address, token: token.into() }
    }

    pub(crate) fn look(&self) -> Client {
        self.client("looklooklooklook")
    }

    pub(crate) fn user(&self) -> Client {
        self.client("useuseuseuseuseuse")
    }

    pub(crate) fn team(&self) -> Client {
        self.client("teamteamteamteam")
    }

    pub(crate) fn admin(&self) -> Client {
        self.client("adminadminadminadmin")
    }

    pub(crate) fn token_file(&self) -> PathBuf {
        self.folder.path().join("tokens")
    }

    /// Acquires a name and returns its lease.
    pub(crate) async fn acquire(&self, name: &str) -> String {
        let answer = self.admin().post("/v1/acquire", &json!({ "name": name })).await;
        assert_eq!(answer.status, 200, "{answer:?}");
        answer.get("lease")
    }

    pub(crate) async fn release(&self, lease: &str) {
        let answer = self.admin().post("/v1/release", &json!({ "lease": lease })).await;
        assert_eq!(answer.status, 200, "{answer:?}");
    }

    /// Returns the number of holders of a name, and of its waiters.
    pub(crate) async fn counts(&self, name: &str) -> (usize, usize) {
        let lock = self.admin().get(&format!("/v1/lock?name={name}")).await.json();
        let count = |what: &str| lock[what].as_array().map_or(0, Vec::len);
        (count("holders"), count("waiters"))
    }

    /// Waits until a name has so many holders and waiters.
    pub(crate) async fn until_counts(&self, name: &str, wanted: (usize, usize)) {
        let start = Instant::now();
        while self.counts(name).await != wanted {
            assert!(start.elapsed() < LIMIT, "{name} has {:?}, not {wanted:?}", self.counts(name).await);
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Waits for a listing of the store that began after this call.
    pub(crate) async fn sampled(&self) {
        let start = Instant::now();
        loop {
            let asked = Instant::now();
            let listed = self.admin().get("/v1/locks?limit=1").await.json();
            let length = |what: &str| Duration::from_millis(listed[what].as_u64().expect("a number") + 1);
            if asked.duration_since(start) > length("age_ms") + length("took_ms") {
                return;
            }
            assert!(start.elapsed() < LIMIT, "no new sample: {listed}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Returns the lines of the log so far that have these fields.
    pub(crate) fn logged(&self, fields: &Value) -> Vec<Value> {
        let wanted = fields.as_object().expect("an object");
        let text = String::from_utf8_lossy(&self.log.0.lock().expect("whole")).into_owned();
        let lines = text.lines().map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
        lines.filter(|line| wanted.iter().all(|(key, value)| line[key] == *value)).collect()
    }

    /// Waits until the log has a line with these fields.
    pub(crate) async fn until_logged(&self, fields: Value) -> Value {
        let start = Instant::now();
        loop {
            if let Some(line) = self.logged(&fields).pop() {
                return line;
            }
            assert!(start.elapsed() < LIMIT, "no line with {fields}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Returns all of the log.
    pub(crate) fn log_text(&self) -> String {
        String::from_utf8_lossy(&self.log.0.lock().expect("whole")).into_owned()
    }

    /// Tells it to end.
    pub(crate) fn end(&mut self) {
        if let Some(end) = self.end.take() {
            // It may have ended by itself.
            let _ = end.send(());
        }
    }

    /// Waits for its end.
    pub(crate) async fn ended(&mut self) {
        let task = self.task.take().expect("it runs");
        tokio::time::timeout(LIMIT, task).await.expect("in time").expect("without a panic");
    }
}

#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().expect("whole").extend(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}
