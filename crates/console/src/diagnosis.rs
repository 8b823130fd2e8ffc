//! What the doctor found at a store.

use lockkeeper::doctor::ServerState;

/// Something that puts locks at risk, as the doctor found it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Finding {
    /// The server or member, if there are several.
    pub server: Option<String>,
    /// The kind of risk, as one word. It stays the same while the message may change with what was measured.
    pub risk: String,
    /// What it is and what to do.
    pub message: String,
}

impl Finding {
    /// Whether it is about this server; some are about several.
    pub(crate) fn is_of(&self, server: &str) -> bool {
        self.server.as_deref().is_some_and(|servers| servers.split(',').any(|one| one == server))
    }
}

/// What the doctor found at a store.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Diagnosis {
    /// Its servers, if it has any.
    pub servers: Vec<ServerState>,
    /// What puts locks at risk.
    pub findings: Vec<Finding>,
}
