//! Connects one member, and asks it for its state.

use std::sync::{Arc, OnceLock, Weak};

use lockkeeper_core::{
    StoreError,
    clock::BootTime,
    store::{Answer, Connector, Context, MemberAnswers, MemberState, Store, WakeSink},
};

use crate::{quorum::Quorum, record::Identity, settings::config};

/// A member that is connected, and its first answers.
pub(crate) struct Found {
    pub(crate) member: usize,
    pub(crate) store: Arc<dyn Store>,
    pub(crate) state: MemberState,
    /// Its answer to an empty group, which tells its clock.
    pub(crate) greeting: MemberAnswers<Answer>,
    pub(crate) received: BootTime,
}

/// The quorum that members wake, once there is one.
type Woken = Arc<OnceLock<Weak<Quorum>>>;

/// The way to connect a member.
#[derive(Clone)]
pub(crate) struct Entrance {
    connectors: Arc<[Connector]>,
    context: Context,
    woken: Woken,
    /// The place that an operator has given to another server.
    replaced: Option<usize>,
}

impl Entrance {
    pub(crate) fn new(connectors: &Arc<[Connector]>, context: &Context) -> Self {
        let (connectors, context) = (connectors.clone(), context.clone());
        Self { connectors, context, woken: Arc::default(), replaced: None }
    }

    /// Has the server at this place take it over from another one.
    pub(crate) fn replacing(self, place: usize) -> Self {
        Self { replaced: Some(place), ..self }
    }

    /// Returns the label that counts for the server at `place`, which is reached as `url`: that of the place's owner,
    /// if an operator said so.
    pub(crate) fn label(&self, identity: &Identity, place: usize, url: &str) -> Arc<str> {
        let id = identity.ids.get(place).filter(|_| self.replaced == Some(place));
        id.map_or_else(|| url.into(), |id| id.label.clone())
    }

    /// Has members wake this quorum from now on.
    pub(crate) fn leads_to(&self, quorum: &Arc<Quorum>) {
        // Nobody else sets it.
        drop(self.woken.set(Arc::downgrade(quorum)));
    }

    /// Connects a member, and asks it for its state.
    pub(crate) async fn enter(self, member: usize) -> Result<Found, StoreError> {
        let woken = self.woken.clone();
        let wakes = WakeSink::new(move |wake| {
            if let Some(quorum) = woken.get().and_then(Weak::upgrade) {
                quorum.pushed(wake);
            }
        });
        let clock = self.context.clock.clone();
        let context = Context { wakes, ..self.context };
        let store = self.connectors[member].connect(context).await?;
        let refused = || {
            let kind = store.capability().store;
            config(format!(
                "{} ({kind}) cannot be a member of a quorum; members are single servers of Redis, PostgreSQL, MariaDB or \
                 MySQL, and SQLite files",
                store.url()
            ))
        };
        let there = store.member().filter(|_| store.capability().may_be_member).ok_or_else(refused)?;
        let state = there.state().await?;
        let greeting = there.apply(&[]).await?;
        let received = clock.now();
        Ok(Found { member, store, state, greeting, received })
    }
}

/// The error if the URLs of two members lead to one server.
pub(crate) fn one_server(one: (usize, &str), other: (usize, &str)) -> StoreError {
    config(format!(
        "members {} and {} of the quorum are one server ({} and {}); each must be a server of its own, because several \
         namespaces, schemas or databases of one server fail together",
        one.0 + 1,
        other.0 + 1,
        one.1,
        other.1
    ))
}
