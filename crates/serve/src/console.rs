//! The console that this server shows, and the demo that it can show instead.

use std::{fs, path::Path};

use lockkeeper::{Keeper, StoreError, clock::Clock, memory::MemoryServer, support::sentence};
use lockkeeper_console::{
    Console, Rules, Sample as Seen, SteadyClock, StoreFacts, Webhook,
    demo::{self, Demo},
};

use crate::{error::ServeError, sample::Sample, shapes::millis};

/// The console and its clock.
pub(crate) struct Watched {
    pub(crate) console: Console,
    pub(crate) clock: SteadyClock,
}

impl Watched {
    /// Makes the console of the store that `keeper` is connected to.
    pub(crate) fn new(keeper: &Keeper, alarms: Option<&Path>) -> Result<Self, ServeError> {
        let facts = StoreFacts { url: keeper.url().to_owned(), capability: keeper.capability().clone() };
        let console = Console::new(facts, Webhook::start());
        if let Some(file) = alarms {
            set_rules(&console, file, Receiver::AsTold).map_err(ServeError::usage)?;
        }
        Ok(Self { console, clock: SteadyClock::new(Clock::boot()) })
    }

    pub(crate) fn observe(&self, sample: &Sample) {
        self.console.observe(Seen {
            at: self.clock.now().saturating_sub(millis(sample.age())),
            took: millis(sample.took),
            every: millis(sample.every),
            locks: sample.locks.values().map(|entry| entry.view.clone()).collect(),
            latches: sample.latches.iter().map(|(name, state)| (name.clone(), *state)).collect(),
        });
    }
}

/// The receiver that is told of alarms.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Receiver {
    /// The webhook of the file.
    AsTold,
    /// Nobody: the alarms are invented.
    Nobody,
}

/// Reads the limits of `file`. If they cannot be used, nothing changes.
pub(crate) fn set_rules(console: &Console, file: &Path, receiver: Receiver) -> Result<(), String> {
    let shown = file.display();
    let text = fs::read_to_string(file)
        .map_err(|error| format!("cannot read the file of alarms {shown}: {}", sentence::of(&error)))?;
    let wrong = |error| format!("the file of alarms {shown}: {error}");
    let mut rules = Rules::parse(&text).map_err(wrong)?;
    if receiver == Receiver::Nobody {
        rules = rules.without_webhook();
    }
    console.set_rules(rules, Some(shown.to_string())).map_err(wrong)
}

/// The demo and the store in memory that it plays on.
pub(crate) struct Played {
    pub(crate) server: MemoryServer,
    demo: Demo,
}

impl Played {
    pub(crate) async fn new() -> Result<Self, StoreError> {
        let demo = Demo::new().await?;
        Ok(Self { server: demo.server().clone(), demo })
    }

    /// Shows the last hour to the console. From then on the console uses the demo's clock.
    pub(crate) async fn show_past(
        &mut self,
        watched: &mut Watched,
        alarms: Option<&Path>,
    ) -> Result<(), ServeError> {
        let console = &watched.console;
        match alarms {
            Some(file) => set_rules(console, file, Receiver::Nobody).map_err(ServeError::usage)?,
            None => {
                let rules = Rules::parse(demo::RULES).and_then(|rules| console.set_rules(rules, None));
                rules.map_err(|error| ServeError::internal(error.to_string()))?;
            }
        }
        self.demo.play_past(&watched.console).await?;
        watched.clock = SteadyClock::new(self.demo.clock());
        Ok(())
    }

    /// Plays on for ever.
    pub(crate) async fn run(self) {
        // Its store is in this process and does not fail.
        drop(self.demo.run().await);
    }
}

#[cfg(test)]
mod tests {
    use lockkeeper_console::Scope;

    use super::*;

    #[tokio::test]
    async fn a_webhook_that_cannot_be_used_is_told_at_the_start() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("alarms.toml");
        let text = "[webhook]\nurl = 'http://hooks.example/'\nauthorization = \"Bearer canary\\u0007\"";
        fs::write(&file, text).expect("written");
        let keeper = lockkeeper::builder("memory:").expect("a URL").connect().await.expect("a store");
        let error = Watched::new(&keeper, Some(&file)).map(drop).expect_err("it cannot be sent").to_string();
        assert!(error.contains("authorization") && !error.contains("canary"), "{error}");
    }

    #[tokio::test]
    async fn the_demo_tells_no_receiver_of_its_alarms() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("alarms.toml");
        fs::write(&file, "[webhook]\nurl = 'http://hooks.example/'\n[[alarm]]\nheld = '1m'")
            .expect("written");
        let mut played = Played::new().await.expect("a store");
        let keeper = Keeper::builder(played.server.connector(demo::URL)).connect().await.expect("a store");
        let mut watched = Watched::new(&keeper, None).expect("no file");
        played.show_past(&mut watched, Some(&file)).await.expect("a good file");
        let shown = watched.console.alarms(Scope::all());
        assert!(shown.webhook.is_none() && !shown.active.is_empty());
        assert_eq!(shown.limits[0].held.as_deref(), Some("1m"));
    }
}
