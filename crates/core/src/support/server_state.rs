//! The state of one server of a store by its own account, for operators.

/// One server of a store.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ServerState {
    /// Its address.
    pub server: String,
    /// Whether it answers.
    pub answers: bool,
    /// Its role among the servers, such as `master` or `follower`; empty if it does not tell.
    pub role: String,
    /// Its version; empty if it does not tell.
    pub version: String,
}

impl ServerState {
    /// A server that does not answer.
    pub fn silent(server: impl Into<String>) -> Self {
        Self { server: server.into(), answers: false, role: String::new(), version: String::new() }
    }

    /// Its role, version and state, in a few words.
    pub fn words(&self) -> String {
        let version =
            if self.version.is_empty() { String::new() } else { format!("version {}", self.version) };
        let state = if self.answers { "" } else { "does not answer" };
        let words: Vec<&str> =
            [self.role.as_str(), &version, state].into_iter().filter(|word| !word.is_empty()).collect();
        if words.is_empty() { "answers".to_owned() } else { words.join(", ") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_is_told_in_words() {
        let mut state = ServerState::silent("a:1");
        assert_eq!(state.words(), "does not answer");
        state.answers = true;
        assert_eq!(state.words(), "answers");
        (state.role, state.version) = ("leader".into(), "3.8.0".into());
        assert_eq!(state.words(), "leader, version 3.8.0");
    }
}
