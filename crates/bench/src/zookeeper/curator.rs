//! The mutex of Apache Curator: a small Java program, compiled when it is needed, that gets its orders line by line.
//! Java and Curator come from Debian's packages.

use std::{
    fs,
    path::Path,
    process::Command,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use hdrhistogram::Histogram;
use lockkeeper::support;
use tempfile::TempDir;
use tokio::task::spawn_blocking;

use super::{CURATOR, peers};
use crate::{
    Failure,
    drain::Drain,
    judge::Limit,
    measure,
    processes::{ChildProcess, Dialogue},
    rounds::{BoxFuture, Contestant, Load, Round},
    workload::Workload,
};

const SOURCE: &str = include_str!("../../java/CuratorPeer.java");

const JARS: [&str; 6] =
    ["slf4j-nop", "curator-recipes", "curator-framework", "curator-client", "zookeeper", "guava"];

const HOW: &str =
    "on Debian: apt-get install -y --no-install-recommends default-jdk-headless libcurator-recipes-java";

/// The threads get this part of the waiting time to queue up before it begins.
const SETTLE_PART: u32 = 10;

/// The compiled program.
#[derive(Clone)]
pub(super) struct Program {
    folder: Arc<TempDir>,
    jars: String,
}

impl Program {
    /// Compiles it, or says why not.
    pub(super) fn compile() -> Result<Self, String> {
        let jars = JARS.map(|jar| format!("/usr/share/java/{jar}.jar"));
        if let Some(jar) = jars.iter().find(|jar| !Path::new(jar).is_file()) {
            return Err(format!("{jar} is not installed; {HOW}"));
        }
        let why = |error: std::io::Error| error.to_string();
        let folder = tempfile::Builder::new().prefix("lockkeeper-curator-").tempdir().map_err(why)?;
        let source = folder.path().join("CuratorPeer.java");
        fs::write(&source, SOURCE).map_err(why)?;
        let mut compiler = Command::new("javac");
        compiler.arg("-d").arg(folder.path()).args(["-cp", &jars.join(":")]).arg(source);
        match compiler.status() {
            Ok(status) if status.success() => Ok(Self { folder: Arc::new(folder), jars: jars.join(":") }),
            Ok(status) => Err(format!("javac failed: {status}")),
            Err(error) => Err(format!("javac: {error}; {HOW}")),
        }
    }

    /// Runs it. Many at once have little of a processor each, so that a compiler that is done soon serves
    /// them better than one that takes its time.
    pub(super) fn run(&self, servers: &str, one_of_many: bool) -> Result<Dialogue, Failure> {
        let mut command = Command::new("java");
        command.args(["-Xmx128m", "-XX:+UseSerialGC"]);
        if one_of_many {
            command.arg("-XX:TieredStopAtLevel=1");
        }
        let classes = format!("{}:{}", self.folder.path().display(), self.jars);
        command.args(["-cp", &classes, "CuratorPeer", servers]);
        Dialogue::new(ChildProcess::spawn(command)?)
    }
}

/// Curator in one process with one session for all of its threads.
#[derive(Clone)]
pub(super) struct Curator {
    program: Program,
    session: i64,
    dialogue: Arc<Mutex<Dialogue>>,
}

impl Curator {
    pub(super) fn start(program: Program, servers: &str) -> Result<Self, Failure> {
        let mut dialogue = program.run(servers, false)?;
        let ready = dialogue.receive()?;
        let session = ready.strip_prefix("ready ").ok_or("Curator is not ready")?.parse()?;
        Ok(Self { program, session, dialogue: Arc::new(Mutex::new(dialogue)) })
    }

    pub(super) fn session(&self) -> i64 {
        self.session
    }

    pub(super) fn program(&self) -> &Program {
        &self.program
    }

    /// Lets `work` use its dialogue, beside the tasks of this process.
    async fn with<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Dialogue) -> Result<T, Failure> + Send + 'static,
    ) -> Result<T, Failure> {
        let dialogue = self.dialogue.clone();
        spawn_blocking(move || work(&mut support::lock(&dialogue))).await?
    }

    pub(super) async fn ask(&self, order: String) -> Result<String, Failure> {
        self.with(move |dialogue| dialogue.ask(&order)).await
    }
}

impl Contestant for Curator {
    fn name(&self) -> &'static str {
        CURATOR
    }

    fn goal(&self, workload: Workload) -> Option<Limit> {
        peers::goal(workload)
    }

    fn takes_part(&self, _: Workload) -> bool {
        true
    }

    fn round<'a>(&'a self, load: &'a Load) -> BoxFuture<'a, Result<Round, Failure>> {
        let (tasks, names, millis) = (load.tasks, load.names.len(), load.length.as_millis());
        let order = format!("round {tasks} {names} {millis} /bench/curator/{}", load.workload.word());
        Box::pin(self.with(move |dialogue| {
            let before = dialogue.cpu()?;
            let answer = dialogue.ask(&order)?;
            round_of(&answer, dialogue.cpu()?.saturating_sub(before))
        }))
    }

    fn drain(&self, waiters: usize, wait: Duration) -> BoxFuture<'_, Result<Drain, Failure>> {
        Box::pin(self.with(move |dialogue| {
            let path = "/bench/curator/w4";
            dialogue.ask(&format!("hold {path}"))?;
            dialogue.ask(&format!("wait {waiters} {path}"))?;
            std::thread::sleep(wait / SETTLE_PART);
            let (before, asleep) = (dialogue.cpu()?, Instant::now());
            std::thread::sleep(wait);
            let waited = dialogue.cpu()?;
            let cpu_percent = measure::percent(waited.saturating_sub(before), asleep.elapsed());
            let drained = Duration::from_nanos(dialogue.ask("release")?.parse()?);
            Ok(Drain { cpu_percent, requests: None, drained, cpu: dialogue.cpu()?.saturating_sub(waited) })
        }))
    }
}

/// Reads the answer to a round: elapsed, passed, counted, shares, times.
fn round_of(answer: &str, cpu: Duration) -> Result<Round, Failure> {
    let mut words = answer.split(' ');
    let mut next = || words.next().ok_or("Curator answered too little");
    let (elapsed, passed, counted): (u64, u64, u64) = (next()?.parse()?, next()?.parse()?, next()?.parse()?);
    let shares = next()?.split(',').map(str::parse).collect::<Result<Vec<u64>, _>>()?;
    let mut times = Histogram::new_with_max(60_000_000_000, 3)?;
    for time in next()?.split(',') {
        times.saturating_record(time.parse()?);
    }
    let acquired: u64 = shares.iter().sum();
    if acquired != counted {
        return Err(
            format!("Curator: two threads held one lock: {acquired} acquired, {counted} counted").into()
        );
    }
    Ok(Round {
        elapsed: Duration::from_nanos(elapsed),
        cpu,
        shares,
        passed,
        requests: None,
        served: None,
        times,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_round_is_read_and_counted() {
        let round = round_of("2000000 3 5 2,3 10,20", Duration::ZERO).expect("a good answer");
        assert_eq!((round.shares.as_slice(), round.passed, round.times.len()), ([2, 3].as_slice(), 3, 2));
        let error = round_of("2000000 3 4 2,3 10,20", Duration::ZERO).expect_err("miscounted");
        assert!(error.to_string().contains("two threads held one lock"), "{error}");
        assert!(round_of("2000000 3", Duration::ZERO).is_err());
    }
}
