//! The caller of a request: checks the rights of its token, and keeps its connection open meanwhile.

use std::sync::{Arc, OnceLock};

use axum::{
    extract::FromRequestParts,
    http::{Method, request::Parts},
};

use crate::{
    connections::{Busy, Peer},
    count::OneOf,
    problem::{Code, Problem},
    tokens::Who,
};

/// The caller of a request: the owner of its token, and its address.
#[derive(Clone)]
pub(crate) struct Caller {
    pub(crate) who: Arc<Who>,
    /// The address, or `unix`.
    pub(crate) from: Arc<str>,
    pub(crate) peer: Arc<Peer>,
    /// Keeps the connection open while the request is worked on.
    busy: Arc<OnceLock<(Busy, OneOf)>>,
    /// How many requests of one token may be worked on at once.
    share: usize,
}

impl Caller {
    /// Makes a caller whose token may keep `share` connections busy.
    pub(crate) fn new(who: Arc<Who>, from: Arc<str>, peer: &Arc<Peer>, share: usize) -> Self {
        Self { who, from, peer: peer.clone(), busy: Arc::default(), share }
    }

    /// Begins the work on the request, once all of its body is there. Fails if its token keeps too many connections
    /// busy.
    pub(crate) fn begin(&self) -> Result<(), Problem> {
        let Some(one) = self.who.busy.one_of(self.share) else {
            let message = "this token keeps too many connections busy; the server's --connections says how many there are";
            return Err(Problem::new(Code::TooManyRequests, message));
        };
        self.busy.get_or_init(|| (self.peer.busy(), one));
        Ok(())
    }

    /// Refuses names that the token may not use.
    pub(crate) fn check_name(&self, name: &str) -> Result<(), Problem> {
        if self.who.may_use(name) {
            return Ok(());
        }
        let prefixes = self.who.prefixes.join(", ");
        let message = format!("your token is only for names that begin with {prefixes}");
        Err(Problem::new(Code::WrongPrefix, message))
    }

    /// Refuses a token that was taken out of the file while its request waited.
    pub(crate) fn check_current(&self) -> Result<(), Problem> {
        if self.who.is_revoked() {
            return Err(Problem::new(Code::WrongToken, "this token was replaced while the request waited"));
        }
        Ok(())
    }
}

impl<S: Sync> FromRequestParts<S> for Caller {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _state: &S) -> Result<Self, Problem> {
        let caller = parts.extensions.get::<Self>().cloned();
        let caller = caller.ok_or_else(|| Problem::new(Code::NoToken, "this needs a token"))?;
        if parts.method == Method::GET {
            caller.begin()?;
        }
        Ok(caller)
    }
}
