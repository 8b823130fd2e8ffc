//! A server with a store that the test shares, and a browser that looks at it.

use std::{
    net::SocketAddr,
    sync::atomic::{AtomicU32, Ordering},
};

use lockkeeper::Keeper;
use lockkeeper_serve::{Listen, Server, Settings};
use lockkeeper_testkit::servers::write_private;
use tokio::{sync::oneshot, task::JoinHandle};

use crate::browser::Browser;

const TOKENS: &str =
    "look looklooklooklook eye\nadminister adminadminadminadmin ops\nlook teamlookteamlook team team/\n";

pub(crate) const LOOK: &str = "looklooklooklook";
pub(crate) const ADMIN: &str = "adminadminadminadmin";

/// A running server.
pub(crate) struct World {
    pub(crate) browser: Browser,
    pub(crate) keeper: Keeper,
    pub(crate) url: String,
    pub(crate) folder: tempfile::TempDir,
    end: Option<oneshot::Sender<()>>,
    task: Option<JoinHandle<()>>,
}

impl World {
    pub(crate) async fn start() -> Self {
        Self::with(|_, _| {}).await
    }

    /// Starts a server with other settings.
    pub(crate) async fn with(change: impl FnOnce(&mut Settings, &tempfile::TempDir)) -> Self {
        static WORLDS: AtomicU32 = AtomicU32::new(0);
        let folder = tempfile::tempdir().expect("a folder");
        let tokens = folder.path().join("tokens");
        write_private(&tokens, TOKENS).expect("written");
        let mut settings =
            Settings::new(format!("memory:console-{}", WORLDS.fetch_add(1, Ordering::Relaxed)));
        settings.listen = Listen::Tcp(SocketAddr::from(([127, 0, 0, 1], 0)));
        settings.token_file = Some(tokens);
        change(&mut settings, &folder);
        let store = if settings.demo { "memory:".to_owned() } else { settings.store.clone() };
        let keeper =
            lockkeeper::builder(&store).expect("a URL").program("worker").connect().await.expect("a store");
        let server = Server::bind_with_log(settings, Box::new(std::io::sink())).await.expect("it starts");
        let url = server.link().unwrap_or_else(|| server.url());
        let (end, ended) = oneshot::channel();
        let task = tokio::spawn(server.run(async move { drop(ended.await) }));
        Self { browser: Browser::start(), keeper, url, folder, end: Some(end), task: Some(task) }
    }

    /// Opens the console as the owner of `token`.
    pub(crate) fn sign_in(&self, token: &str) {
        self.browser.open("about:blank");
        self.browser.open(&format!("{}/#token={token}", self.url));
        self.browser.until("document.querySelector('.stats dd')");
    }

    /// Goes to another page of the console.
    pub(crate) fn go(&self, fragment: &str) {
        self.browser.run_with("location.hash = arguments[0]", &serde_json::json!([fragment]));
    }

    /// Ends the server and, with it, its streams.
    pub(crate) async fn end(mut self) {
        drop(self.browser);
        drop(self.end.take());
        self.task.take().expect("it runs").await.expect("without a panic");
        self.keeper.close().await;
    }
}
