//! Feeds the console with samples and outages as they come, with the doctor's findings, and with the limits of alarms
//! when their file changes. Each task runs for as long as the server.

use std::{sync::Arc, time::Duration};

use lockkeeper::{
    Keeper, doctor,
    support::{self, sentence},
};
use lockkeeper_console::{Diagnosis, Finding};
use serde_json::json;

use crate::{
    app::App,
    console::{Receiver, Watched, set_rules},
    files::{Attempt, Followed, Loaded},
    sampler::Reader,
};

/// The pause between two examinations by the doctor.
const DOCTOR: Duration = Duration::from_secs(600);
/// The same if the store could not be asked.
const DOCTOR_AGAIN: Duration = Duration::from_secs(60);

/// The pause between two probes of the store.
const PROBE: Duration = Duration::from_secs(1);
/// How long the store may take to answer a probe.
const PROBE_LIMIT: Duration = Duration::from_secs(2);
/// The name that probes inspect. Nobody holds it.
const PROBED: &str = "lockkeeper/ready";

/// Shows every sample to the console, for ever.
pub(crate) async fn watch(app: Arc<App>, mut reader: Reader) {
    loop {
        let known = reader.next().await;
        match (known.outage, known.sample) {
            (Some(outage), _) => app.watched.console.fail(app.watched.clock.now(), &outage.message),
            (None, Some(sample)) => {
                // With very many locks it takes a while, in which renewals must not wait.
                let app = app.clone();
                drop(tokio::task::spawn_blocking(move || app.watched.observe(&sample)).await);
            }
            (None, None) => {}
        }
    }
}

/// Asks the store for something small again and again, for ever: listings may be rare, and may take long to fail.
pub(crate) async fn probe(keeper: &Keeper, watched: &Watched) {
    let mut last = watched.clock.now();
    loop {
        let limit = support::duration::show(PROBE_LIMIT);
        let silent = match tokio::time::timeout(PROBE_LIMIT, keeper.inspect(PROBED)).await {
            Ok(Ok(_)) => None,
            Ok(Err(error)) => Some(sentence::of(&error)),
            Err(_) => Some(format!("no answer within {limit}")),
        };
        let now = watched.clock.now();
        match silent {
            Some(why) => watched.console.silent(now, last, &why),
            None => {
                last = now;
                watched.console.answered(now);
            }
        }
        tokio::time::sleep(PROBE).await;
    }
}

/// Has the doctor look at the store now and then, for ever.
pub(crate) async fn ask_doctor(app: Arc<App>) {
    let store = if app.settings.demo { "memory:" } else { &app.settings.store };
    if !doctor::has_checks(store) {
        app.watched.console.not_checked();
        return;
    }
    loop {
        let pause = match doctor::examine(store).await {
            Ok(found) => {
                let finding =
                    |it: doctor::Finding| Finding { server: it.server, risk: it.risk, message: it.message };
                let findings = found.findings.into_iter().map(finding).collect();
                let diagnosis = Diagnosis { servers: found.servers, findings };
                app.watched.console.set_diagnosis(app.watched.clock.now(), diagnosis);
                DOCTOR
            }
            Err(error) => {
                app.watched.console.doctor_failed(&sentence::of(&error));
                DOCTOR_AGAIN
            }
        };
        tokio::time::sleep(pause).await;
    }
}

/// Reads the limits anew whenever their file changes, for ever.
pub(crate) async fn follow_alarms(app: Arc<App>, followed: Followed) {
    let Some(file) = app.settings.alarms.clone() else { return };
    let receiver = if app.settings.demo { Receiver::Nobody } else { Receiver::AsTold };
    let load = |attempt| match set_rules(&app.watched.console, &file, receiver) {
        Ok(()) => {
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

#[cfg(test)]
mod tests {
    use lockkeeper_console::Scope;
    use lockkeeper_testkit::{proxy::Proxy, servers::Redis};
    use tokio::time::Instant;

    use super::*;

    #[tokio::test]
    async fn a_store_that_falls_silent_is_an_alarm_within_seconds() {
        let redis = Redis::start().expect("a server");
        let proxy = Proxy::start(redis.address()).expect("a proxy");
        let builder = lockkeeper::builder(&format!("redis://{}/", proxy.address())).expect("a good URL");
        let keeper = builder.connect().await.expect("it is there");
        let watched = Watched::new(&keeper, None).expect("no file");
        let check = async {
            tokio::time::sleep(Duration::from_millis(1500)).await;
            proxy.pause(true);
            let (paused, started) = (watched.clock.now(), Instant::now());
            let alarm = loop {
                if let Some(alarm) = watched.console.alarms(Scope::all()).active.first() {
                    break alarm.clone();
                }
                assert!(started.elapsed() < Duration::from_secs(10), "no alarm");
                tokio::time::sleep(Duration::from_millis(50)).await;
            };
            assert!(alarm.since_ms.abs_diff(paused) < 2_000, "{alarm:?} {paused}");
            proxy.pause(false);
        };
        tokio::select! {
            () = probe(&keeper, &watched) => {}
            () = check => {}
        }
    }
}
