//! Feeds the console: samples and outages as they come, and the limits of alarms whenever their file changes.

use std::{fs, path::Path, sync::Arc, time::Duration};

use lockkeeper::{Keeper, StoreError, clock::Clock, doctor, memory::MemoryServer, support::sentence};
use lockkeeper_console::{
    Console, Finding, Rules, Sample as Seen, SteadyClock, StoreFacts, Webhook,
    demo::{self, Demo},
};
use serde_json::json;

use crate::{
    app::App,
    error::ServeError,
    files::{Attempt, Followed, Loaded},
    sample::Sample,
    sampler::Reader,
    shapes::millis,
};

/// How often the doctor looks.
const DOCTOR: Duration = Duration::from_secs(600);
/// How soon it looks again if the store could not be asked.
const DOCTOR_AGAIN: Duration = Duration::from_secs(60);

/// The console and the clock that it goes by.
pub(crate) struct Watched {
    pub(crate) console: Console,
    pub(crate) clock: SteadyClock,
}

impl Watched {
    /// The console of the store that `keeper` is connected to.
    pub(crate) fn new(keeper: &Keeper, alarms: Option<&Path>) -> Result<Self, ServeError> {
        let facts = StoreFacts { url: keeper.url().to_owned(), capability: keeper.capability().clone() };
        let console = Console::new(facts, Webhook::start());
        if let Some(file) = alarms {
            let rules = read(file).map_err(ServeError::usage)?;
            console.set_rules(rules, Some(file.display().to_string()));
        }
        Ok(Self { console, clock: SteadyClock::new(Clock::boot()) })
    }

    fn observe(&self, sample: &Sample) {
        self.console.observe(Seen {
            at: self.clock.now().saturating_sub(millis(sample.age())),
            took: millis(sample.took),
            every: millis(sample.every),
            locks: sample.locks.values().map(|entry| entry.view.clone()).collect(),
            latches: sample.latches.iter().map(|(name, state)| (name.clone(), *state)).collect(),
        });
    }
}

fn read(file: &Path) -> Result<Rules, String> {
    let shown = file.display();
    let text = fs::read_to_string(file)
        .map_err(|error| format!("cannot read the file of alarms {shown}: {}", sentence::of(&error)))?;
    Rules::parse(&text).map_err(|error| format!("the file of alarms {shown}: {error}"))
}

/// Shows every sample to the console, for ever.
pub(crate) async fn watch(app: Arc<App>, mut reader: Reader) {
    loop {
        let known = reader.next().await;
        match (known.outage, known.sample) {
            (Some(outage), _) => app.watched.console.fail(app.watched.clock.now(), &outage.message),
            (None, Some(sample)) => app.watched.observe(&sample),
            (None, None) => {}
        }
    }
}

/// Has the doctor look at the store now and then, for ever.
pub(crate) async fn ask_doctor(app: Arc<App>) {
    let store = if app.settings.demo { "memory:" } else { &app.settings.store };
    loop {
        let pause = match doctor::check(store).await {
            Ok(found) => {
                let found = found.into_iter().map(|it| Finding { server: it.server, message: it.message });
                app.watched.console.set_findings(app.watched.clock.now(), found.collect());
                DOCTOR
            }
            // The alarm that the store is out of reach says it better. What was found before stays.
            Err(_) => DOCTOR_AGAIN,
        };
        tokio::time::sleep(pause).await;
    }
}

/// Reads the limits anew whenever their file changes, for ever.
pub(crate) async fn follow_alarms(app: Arc<App>, followed: Followed) {
    let Some(file) = app.settings.alarms.clone() else { return };
    let load = |attempt| match read(&file) {
        Ok(rules) => {
            app.watched.console.set_rules(rules, Some(file.display().to_string()));
            app.log.write("info", "the limits of alarms were read anew", json!({}));
            Loaded::Good
        }
        Err(error) => {
            if attempt == Attempt::First {
                app.watched.console.rules_failed(&error);
                let what = "the file of alarms changed and cannot be used; the limits of before stay";
                app.log.write("error", what, json!({ "error": error }));
            }
            Loaded::Bad
        }
    };
    followed.follow(load).await;
}

/// The demo, with its past already shown to the console.
pub(crate) struct Played {
    pub(crate) server: MemoryServer,
    demo: Demo,
}

impl Played {
    pub(crate) async fn new() -> Result<Self, StoreError> {
        let demo = Demo::new().await?;
        Ok(Self { server: demo.server().clone(), demo })
    }

    /// Shows the last hour to the console, which goes by the demo's clock from then on.
    pub(crate) async fn show_past(
        &mut self,
        watched: &mut Watched,
        alarms: Option<&Path>,
    ) -> Result<(), ServeError> {
        if alarms.is_none() {
            let rules = Rules::parse(demo::RULES).map_err(|error| ServeError::internal(error.to_string()))?;
            watched.console.set_rules(rules, None);
        }
        self.demo.play_past(&watched.console).await?;
        watched.clock = SteadyClock::new(self.demo.clock());
        Ok(())
    }

    /// Goes on for ever.
    pub(crate) async fn run(self) {
        // Its store is in this process and does not fail.
        drop(self.demo.run().await);
    }
}
