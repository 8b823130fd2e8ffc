//! The work of operators: to look at the members of a quorum, to have them vote, and to replace one.
//!
//! Each of these may be ended at any time and started again. Half-done work is in the members' records, and goes on
//! from there.

use std::{
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use lockkeeper_core::{
    StoreError, StoreErrorKind,
    deadline::margin,
    store::{Connector, Context},
    support::duration::show,
};

use crate::{
    connect::{Wanted, assemble, enter_all},
    entrance::{Entrance, Found},
    founding::context,
    member_ids::{Standing, standing},
    quorum::Quorum,
    record::{Identity, Record},
    settings::{Settings, config, plain},
    steward::Steward,
};

/// How often members are looked at.
const PAUSE: Duration = Duration::from_millis(500);

/// The state of a member of a quorum.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct MemberReport {
    /// Its place among the members, from 1.
    pub number: usize,
    /// Its URL without a password.
    pub url: String,
    /// Whether it answers.
    pub answers: bool,
    /// Whether it votes.
    pub votes: bool,
    /// If it does not vote: how long it will not, if a client watches it.
    pub votes_in: Option<Duration>,
    /// Its trouble in words, if it has any.
    pub trouble: Option<String>,
    /// How far its clock is from that of this machine, in microseconds; negative: behind.
    pub clock_offset: Option<i64>,
}

/// Looks at all members. It changes nothing.
pub(crate) async fn show_all(
    settings: &Settings,
    connectors: Vec<Connector>,
) -> Result<Vec<MemberReport>, StoreError> {
    let (context, connectors) = (context(), Arc::<[Connector]>::from(connectors));
    let entrance = Entrance::new(&connectors, &context);
    let (found, errors) = enter_all(&entrance, settings, &context, Wanted::Any).await?;
    let mut reports: Vec<MemberReport> = Vec::new();
    let identity = recorded(&found);
    for (member, url) in settings.members.iter().enumerate() {
        let error = errors.iter().find(|(failed, _)| *failed == member).map(|(_, error)| error.to_string());
        let mut report = MemberReport {
            number: member + 1,
            url: plain(url),
            answers: false,
            votes: false,
            votes_in: None,
            trouble: error,
            clock_offset: None,
        };
        if let Some(found) = found.iter().find(|found| found.member == member) {
            report.look_at(settings, identity.as_ref(), found);
        }
        reports.push(report);
    }
    for found in found {
        found.store.close().await;
    }
    Ok(reports)
}

/// Returns the identity of the quorum, as the members' records say.
fn recorded(found: &[Found]) -> Option<Identity> {
    let mut records = found.iter().filter_map(|found| Record::of(&found.state.membership));
    let mut identity = records.next()?.quorum;
    for record in records {
        if record.quorum.is_same_quorum(&identity) {
            identity.join(&record.quorum);
        }
    }
    Some(identity)
}

fn watch_time(max_lease: Duration) -> Duration {
    max_lease + margin(max_lease)
}

impl MemberReport {
    fn look_at(&mut self, settings: &Settings, identity: Option<&Identity>, found: &Found) {
        self.answers = true;
        self.url = found.store.url().to_string();
        let (state, wait) = (&found.state, watch_time(settings.max_lease));
        let here = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_micros();
        self.clock_offset = i64::try_from(i128::from(state.wall) - here.cast_signed()).ok();
        let Some(identity) = identity else {
            self.votes_in = Some(wait);
            self.trouble = Some("nobody has founded the quorum; do it with `lockkeeper quorum found`".into());
            return;
        };
        let named = Identity { max_lease: settings.max_lease, ..identity.clone() };
        match standing(&named, found.member, found.store.url(), &state.membership) {
            Standing::Votes(_) => self.votes = true,
            Standing::Watched => {
                let marked = Record::of(&state.membership).map_or(0, |record| record.since);
                let passed = Duration::from_micros(state.wall.saturating_sub(marked));
                self.votes_in = Some(wait.saturating_sub(passed));
            }
            Standing::Vacant => {
                self.votes_in = Some(wait);
                self.trouble = Some("it is new or may have lost its data, and waits to be watched".into());
            }
            Standing::Outdated => {
                self.votes_in = Some(3 * wait);
                self.trouble = Some("another server has taken its place".into());
            }
            Standing::Refused(why) => self.trouble = Some(why),
        }
    }
}

/// Has all members vote that can be reached. `tell` hears the reasons for waiting.
pub(crate) async fn have_vote(
    settings: &Settings,
    connectors: Vec<Connector>,
    wanted: Wanted,
    tell: impl FnMut(&str),
) -> Result<(), StoreError> {
    let (context, connectors) = (context(), Arc::<[Connector]>::from(connectors));
    let entrance = Entrance::new(&connectors, &context);
    let (found, errors) = enter_all(&entrance, settings, &context, wanted).await?;
    let quorum = assemble(settings, &entrance, found, errors, &context)?;
    let done = tend(&quorum, Steward::new(entrance, &quorum), tell).await;
    close(&quorum).await;
    done
}

/// Has the server at `place` take it over. All members must be there, and all others must vote.
pub(crate) async fn replace(
    settings: &Settings,
    connectors: Vec<Connector>,
    place: usize,
    tell: impl FnMut(&str),
) -> Result<(), StoreError> {
    let (context, connectors) = (context(), Arc::<[Connector]>::from(connectors));
    let entrance = Entrance::new(&connectors, &context).replacing(place);
    let (found, errors) = enter_all(&entrance, settings, &context, Wanted::All).await?;
    let quorum = checked(settings, &entrance, found, errors, &context, place)?;
    let done = tend(&quorum, Steward::new(entrance, &quorum), tell).await;
    close(&quorum).await;
    done
}

/// Returns the quorum, if another server may take `place`.
fn checked(
    settings: &Settings,
    entrance: &Entrance,
    found: Vec<Found>,
    errors: Vec<(usize, StoreError)>,
    context: &Context,
    place: usize,
) -> Result<Arc<Quorum>, StoreError> {
    let others = found.iter().filter(|found| found.member != place);
    if others.filter_map(|found| Record::of(&found.state.membership)).next().is_none() {
        return Err(config(
            "nobody has founded the quorum; do it with the new server, by `lockkeeper quorum found`",
        ));
    }
    let quorum = assemble(settings, entrance, found, errors, context)?;
    let silent = quorum.links.iter().find(|link| link.index != place && !link.votes(&quorum.identity));
    match silent {
        None => Ok(quorum),
        Some(link) => {
            let message = format!(
                "{} does not vote, and a server is replaced only while all others vote; wait for it with `lockkeeper quorum \
                 rejoin`",
                link.shown()
            );
            Err(StoreError::new(StoreErrorKind::Unreachable, message).not_applied())
        }
    }
}

/// Looks after members until all vote that can be reached.
async fn tend(
    quorum: &Arc<Quorum>,
    mut steward: Steward,
    mut tell: impl FnMut(&str),
) -> Result<(), StoreError> {
    let mut told = Vec::new();
    loop {
        let done = steward.tend(quorum).await;
        let refused = quorum.links.iter().filter_map(|link| link.trouble()).find(|error| !error.is_passing());
        if let Some(error) = refused {
            return Err(error);
        }
        let mut waits = Vec::new();
        let mut missing = 0;
        for link in quorum.links.iter().filter(|link| !link.votes(&quorum.identity)) {
            if let Some(error) = link.trouble().filter(|_| link.store().is_none()) {
                missing += 1;
                waits.push(format!("member {}: {error}", link.index + 1));
            } else {
                let wait = show(quorum.watch_time());
                waits.push(format!("{} does not vote; it is watched for {wait}", link.shown()));
            }
        }
        for wait in waits.iter().filter(|wait| !told.contains(*wait)) {
            tell(wait);
        }
        let lags =
            quorum.links.iter().any(|link| link.votes(&quorum.identity) && link.lags(&quorum.identity));
        if done || (missing == waits.len() && !lags) {
            return Ok(());
        }
        told = waits;
        tokio::time::sleep(PAUSE).await;
    }
}

async fn close(quorum: &Quorum) {
    for store in quorum.links.iter().filter_map(|link| link.store()) {
        store.close().await;
    }
}
