//! Processes that hold or wait: each is kept once, however many holds it had.

use std::{collections::HashSet, sync::Arc};

use lockkeeper::store::Details;

/// A process with its label.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub(crate) struct Who {
    pub(crate) program: Box<str>,
    pub(crate) host: Box<str>,
    pub(crate) pid: u32,
    pub(crate) label: Option<Box<str>>,
}

impl Who {
    fn new(details: &Details) -> Self {
        let process = &details.process;
        Self {
            program: process.program.as_str().into(),
            host: process.host.as_str().into(),
            pid: process.pid,
            label: details.label.as_deref().map(Into::into),
        }
    }

    /// Returns program, process id and host, in the form of the command.
    pub(crate) fn text(&self) -> String {
        match self.pid {
            0 => format!("{}@{}", self.program, self.host),
            pid => format!("{}[{pid}]@{}", self.program, self.host),
        }
    }
}

/// All known processes.
#[derive(Debug, Default)]
pub(crate) struct Whos(HashSet<Arc<Who>>);

impl Whos {
    pub(crate) fn get(&mut self, details: &Details) -> Arc<Who> {
        let who = Who::new(details);
        if let Some(known) = self.0.get(&who) {
            return known.clone();
        }
        let who = Arc::new(who);
        self.0.insert(who.clone());
        who
    }

    /// Drops the processes that no hold or wait refers to any more.
    pub(crate) fn forget(&mut self) {
        self.0.retain(|who| Arc::strong_count(who) > 1);
    }
}
