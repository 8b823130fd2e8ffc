//! The doctor's findings at a store.

use lockkeeper::doctor::ServerState;

/// A risk for locks that the doctor found.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Finding {
    /// The server or member, if there are several.
    pub server: Option<String>,
    /// The kind of risk, as one word. It stays the same, while measured values may change the message.
    pub risk: String,
    /// The risk and the remedy.
    pub message: String,
}

impl Finding {
    /// Whether the finding is about this server; some are about several.
    pub(crate) fn is_of(&self, server: &str) -> bool {
        self.server.as_deref().is_some_and(|servers| servers.split(',').any(|one| one == server))
    }
}

/// The servers of a store, and the doctor's findings there.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Diagnosis {
    /// Its servers, if it has any.
    pub servers: Vec<ServerState>,
    /// Risks for locks.
    pub findings: Vec<Finding>,
}
