//! Real processes on one store: a crew of worker processes that are killed, stopped and left without disk. The history
//! checker judges their records. Any store with a URL can be tested in this way.

mod crew;
mod disk;
mod event;
mod fenced;
mod worker;

use std::{path::PathBuf, time::Duration};

pub use crew::{Crew, WorkerFault, WorkerProcess};
pub use disk::DiskFault;
pub use event::Event;
pub use fenced::{FencedCounter, Seen};
pub use worker::work;

use crate::broken::Bug;

/// Permits of each semaphore.
pub const PERMITS: u32 = 3;

/// The orders for a worker process.
#[derive(Clone, Debug)]
pub struct Task {
    /// The store.
    pub url: String,
    /// The folder of the fenced counters.
    pub folder: PathBuf,
    /// The prefix of all names of this crew.
    pub prefix: String,
    /// How many resources there are. By number modulo 4: a mutex, a mutex with exact order, a
    /// read-write lock, a semaphore, or one more mutex where there are no semaphores.
    pub resources: u32,
    /// How many tasks each process has.
    pub tasks: u32,
    /// The lease of every lock.
    pub lease: Duration,
    /// Whether a section lasts until its worker ends.
    pub hold_for_ever: bool,
    /// Whether requests, replies and wakes get lost, doubled and late on the way.
    pub bad_network: bool,
    /// The planted bug of the store.
    pub bug: Bug,
    /// The seed of the worker's dice.
    pub seed: u64,
}

impl Task {
    /// The task as the words of a command.
    pub fn words(&self) -> [String; 10] {
        [
            self.url.clone(),
            self.folder.display().to_string(),
            self.prefix.clone(),
            self.resources.to_string(),
            self.tasks.to_string(),
            self.lease.as_millis().to_string(),
            u8::from(self.hold_for_ever).to_string(),
            u8::from(self.bad_network).to_string(),
            format!("{:?}", self.bug),
            self.seed.to_string(),
        ]
    }

    /// The task that these words say.
    ///
    /// # Errors
    /// If they say none.
    pub fn from_words(words: impl IntoIterator<Item = String>) -> Result<Self, String> {
        let words: Vec<String> = words.into_iter().collect();
        let [url, folder, prefix, resources, tasks, lease, hold_for_ever, bad_network, bug, seed] =
            &words[..]
        else {
            return Err(format!("expected ten words, got {words:?}"));
        };
        let number = |word: &String| word.parse::<u64>().map_err(|error| format!("{word}: {error}"));
        let small = |word: &String| word.parse::<u32>().map_err(|error| format!("{word}: {error}"));
        let bugs = Bug::ALL.into_iter().chain([Bug::None]);
        Ok(Self {
            url: url.clone(),
            folder: folder.into(),
            prefix: prefix.clone(),
            resources: small(resources)?,
            tasks: small(tasks)?,
            lease: Duration::from_millis(number(lease)?),
            hold_for_ever: hold_for_ever == "1",
            bad_network: bad_network == "1",
            bug: bugs.into_iter().find(|known| format!("{known:?}") == *bug).ok_or("no such bug")?,
            seed: number(seed)?,
        })
    }
}
