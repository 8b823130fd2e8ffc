//! Members that answer in another way than they would, and count their requests.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard},
};

use lockkeeper_core::{
    Capability, Name, StoreError, StoreErrorKind, Survives,
    store::{
        Admit, Admitted, Answer, Answers, BoxFuture, Connector, Count, Counted, Enrolment, Evict, Evicted,
        LatchPage, Left, ListQuery, Member, MemberAnswers, MemberState, Membership, Page, Renew, Renewed,
        Reply, Request, ResourceView, Store, Topic, Verdict, Watch,
    },
};

/// A member's mood towards a name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Mood {
    /// It can do nothing for now, as while somebody has locked its row.
    NotNow,
    /// It does not take claims for now, as while its replica is away.
    Fails,
    /// It does not take claims.
    Refuses,
}

/// The moods of one member. Clones are the same.
#[derive(Clone, Default, Debug)]
pub(crate) struct Moods(Arc<Mutex<State>>);

#[derive(Default, Debug)]
struct State {
    names: HashMap<String, Mood>,
    /// Whether it answers requests of all kinds with this.
    denies: Option<StoreErrorKind>,
    /// Whether it says that it keeps its data.
    keeps_data: bool,
    /// Whether it hangs on anything but an empty group.
    hangs: bool,
    /// Whether it is not there.
    is_down: bool,
    /// The server that it says to be, if not itself.
    server: Option<&'static str>,
    /// How often it has started again with its data.
    starts: u64,
    /// How many groups of claims and leaves it was asked for.
    groups: u64,
    /// The most requests that came together.
    largest: usize,
    /// The leaves that it was asked for.
    leaves: u64,
    /// The leaves with tombstones among them.
    tombstones: u64,
    /// The names that it was asked to renew.
    renewed: Vec<String>,
}

impl Moods {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().expect("not poisoned")
    }

    pub(crate) fn set(&self, name: &str, mood: Option<Mood>) {
        let mut state = self.state();
        match mood {
            Some(mood) => state.names.insert(name.into(), mood),
            None => state.names.remove(name),
        };
    }

    /// Makes every request fail like this from now on; `None` ends that.
    pub(crate) fn deny(&self, kind: Option<StoreErrorKind>) {
        self.state().denies = kind;
    }

    /// Tells clients that connect from now on that it keeps its data.
    pub(crate) fn keep_data(&self) {
        self.state().keeps_data = true;
    }

    /// Makes it answer only empty requests from now on, or all of them again.
    pub(crate) fn hang(&self, hangs: bool) {
        self.state().hangs = hangs;
    }

    /// Takes it away from now on, or brings it back.
    pub(crate) fn go_down(&self, is_down: bool) {
        self.state().is_down = is_down;
    }

    /// Makes it say that it is this server.
    pub(crate) fn be(&self, server: &'static str) {
        self.state().server = Some(server);
    }

    /// Starts it again with its data. Nobody can tell that it does.
    pub(crate) fn start_again(&self) {
        self.state().starts += 1;
    }

    /// Returns the membership that it shows: another incarnation with every start.
    fn shows(&self, membership: Membership) -> Membership {
        let starts = self.state().starts;
        let incarnation = format!("{starts}-{}", membership.incarnation).into();
        Membership { incarnation, ..membership }
    }

    /// The membership that the member itself knows, if this start is the one that it names.
    fn hides(&self, membership: &Membership) -> Option<Membership> {
        let starts = format!("{}-", self.state().starts);
        let incarnation = membership.incarnation.strip_prefix(&starts)?.into();
        Some(Membership { incarnation, ..membership.clone() })
    }

    pub(crate) fn groups(&self) -> u64 {
        self.state().groups
    }

    pub(crate) fn largest(&self) -> usize {
        self.state().largest
    }

    pub(crate) fn leaves(&self) -> u64 {
        self.state().leaves
    }

    pub(crate) fn tombstones(&self) -> u64 {
        self.state().tombstones
    }

    pub(crate) fn renewals_of(&self, name: &str) -> usize {
        self.state().renewed.iter().filter(|renewed| *renewed == name).count()
    }

    pub(crate) fn wrap(&self, connector: Connector) -> Connector {
        let moods = self.clone();
        Connector::new(move |context| {
            let (connecting, moods) = (connector.connect(context), moods.clone());
            async move {
                let inner = connecting.await?;
                let mut capability = inner.capability().clone();
                if moods.state().keeps_data {
                    capability.restart = Survives::Fully;
                }
                Ok(Arc::new(Moody { inner, capability, moods }) as Arc<dyn Store>)
            }
        })
    }

    /// Returns the answer that its mood gives to a request, if any.
    fn answer(&self, request: &Request) -> Option<Answer> {
        let mut state = self.state();
        if let Request::Leave(leave) = request {
            state.leaves += 1;
            state.tombstones += u64::from(leave.tombstone_until.is_some());
        }
        let mood = state.names.get(request.name().as_str())?;
        let error = |kind, text: &str| StoreError::new(kind, text).not_applied();
        match (mood, request) {
            (Mood::NotNow, Request::Claim(_)) => {
                Some(Answer::Claim(Verdict::NotNow(error(StoreErrorKind::Conflict, "its row is locked"))))
            }
            (Mood::NotNow, Request::Leave(_)) => Some(Answer::Leave(Left::NotNow)),
            (Mood::Fails, Request::Claim(_)) => {
                Some(Answer::Claim(Verdict::Refused(error(StoreErrorKind::Conflict, "its replica is away"))))
            }
            (Mood::Refuses, Request::Claim(_)) => {
                Some(Answer::Claim(Verdict::Refused(error(StoreErrorKind::Denied, "no right to this name"))))
            }
            (Mood::Fails | Mood::Refuses, Request::Leave(_)) => None,
        }
    }

    fn denied(&self) -> Result<(), StoreError> {
        if self.state().is_down {
            return Err(StoreError::new(StoreErrorKind::Unreachable, "nobody is there").not_applied());
        }
        match self.state().denies {
            Some(kind) => Err(StoreError::new(kind, "the password is wrong").not_applied()),
            None => Ok(()),
        }
    }
}

#[derive(Debug)]
struct Moody {
    inner: Arc<dyn Store>,
    capability: Capability,
    moods: Moods,
}

impl Moody {
    fn member_inside(&self) -> &dyn Member {
        self.inner.member().expect("a memory store may be a member")
    }
}

impl Store for Moody {
    fn capability(&self) -> &Capability {
        &self.capability
    }

    fn url(&self) -> &Arc<str> {
        self.inner.url()
    }

    fn id(&self) -> &str {
        self.inner.id()
    }

    fn apply<'a>(&'a self, group: &'a [Request]) -> Reply<'a, Answers<Answer>> {
        self.inner.apply(group)
    }

    fn renew<'a>(&'a self, leases: &'a [Renew]) -> Reply<'a, Answers<Renewed>> {
        self.inner.renew(leases)
    }

    fn watch<'a>(&'a self, topic: &'a Topic) -> Reply<'a, Option<Watch>> {
        self.inner.watch(topic)
    }

    fn inspect<'a>(&'a self, name: &'a Name) -> Reply<'a, Option<ResourceView>> {
        self.inner.inspect(name)
    }

    fn list<'a>(&'a self, query: &'a ListQuery) -> Reply<'a, Page> {
        self.inner.list(query)
    }

    fn latches<'a>(&'a self, query: &'a ListQuery) -> Reply<'a, LatchPage> {
        self.inner.latches(query)
    }

    fn evict<'a>(&'a self, order: &'a Evict) -> Reply<'a, Evicted> {
        self.inner.evict(order)
    }

    fn count<'a>(&'a self, count: &'a Count) -> Reply<'a, Answers<Counted>> {
        self.inner.count(count)
    }

    fn fence<'a>(&'a self, admit: &'a Admit) -> Reply<'a, Admitted> {
        self.inner.fence(admit)
    }

    fn member(&self) -> Option<&dyn Member> {
        Some(self)
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        self.inner.close()
    }
}

impl Member for Moody {
    fn apply<'a>(&'a self, group: &'a [Request]) -> Reply<'a, MemberAnswers<Answer>> {
        Box::pin(async move {
            {
                let mut state = self.moods.state();
                state.groups += u64::from(!group.is_empty());
                state.largest = state.largest.max(group.len());
            }
            if !group.is_empty() && self.moods.state().hangs {
                std::future::pending::<()>().await;
            }
            self.moods.denied()?;
            let own: Vec<Option<Answer>> = group.iter().map(|request| self.moods.answer(request)).collect();
            let passed = group.iter().zip(&own).filter(|(_, own)| own.is_none());
            let passed: Vec<Request> = passed.map(|(request, _)| request.clone()).collect();
            let mut answered = self.member_inside().apply(&passed).await?;
            let mut theirs = answered.answers.each.into_iter();
            answered.membership = self.moods.shows(answered.membership);
            answered.answers.each = own.into_iter().filter_map(|own| own.or_else(|| theirs.next())).collect();
            Ok(answered)
        })
    }

    fn renew<'a>(&'a self, leases: &'a [Renew]) -> Reply<'a, MemberAnswers<Renewed>> {
        Box::pin(async move {
            let names = leases.iter().map(|renew| renew.name.as_str().to_owned());
            self.moods.state().renewed.extend(names);
            self.moods.denied()?;
            let mut answered = self.member_inside().renew(leases).await?;
            answered.membership = self.moods.shows(answered.membership);
            Ok(answered)
        })
    }

    fn state(&self) -> Reply<'_, MemberState> {
        Box::pin(async move {
            self.moods.denied()?;
            let state = self.member_inside().state().await?;
            let server = self.moods.state().server.map_or(state.server, Arc::from);
            Ok(MemberState { membership: self.moods.shows(state.membership), server, ..state })
        })
    }

    fn enrol<'a>(&'a self, enrolment: &'a Enrolment) -> Reply<'a, bool> {
        Box::pin(async move {
            self.moods.denied()?;
            let Some(expected) = self.moods.hides(&enrolment.expected) else { return Ok(false) };
            self.member_inside().enrol(&Enrolment { expected, ..enrolment.clone() }).await
        })
    }
}
