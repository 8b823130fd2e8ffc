//! Claims, leaves, renewals and evictions: each group is one transaction on the names that it could lock.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use lockkeeper_core::{
    Name, StoreError,
    store::{Answer, Answers, Evict, Evicted, Left, Renew, Renewed, Request, StoreTime, Verdict},
};
use lockkeeper_rows::{BadRow, NeededName, Needs, Outcome, Snapshot};
use tokio::time::Instant;

use crate::{
    codec::{ReadRows, name_of},
    connection::{After, Failure, Progress, Worked},
    flights::{self, FirstFlight},
    own::Own,
    session::Session,
    statements::{Busy, LockWait, Table},
    trouble,
};

/// How often rows that were missing are made before a group gives up: somebody may remove them again.
const TRIES: usize = 3;

/// How long renewals wait for names that others had locked, after all others of the group were renewed.
const PATIENCE: Duration = Duration::from_millis(200);

/// One group on its way.
#[derive(Clone)]
pub(crate) struct Group {
    pub(crate) session: Arc<Session>,
    pub(crate) progress: Arc<Progress>,
    pub(crate) own: Own,
    pub(crate) wait: LockWait,
}

/// The rows that a group has locked and read. The transaction is open.
struct Locked {
    flight: FirstFlight,
    read: ReadRows,
    /// The names that may be stepped.
    names: Vec<Name>,
}

/// The result of a step.
struct Stepped<A> {
    outcome: Outcome<A>,
    /// The rows as they were read, with the reasons why some names could not be stepped.
    read: ReadRows,
}

impl Group {
    /// Does claims and leaves.
    pub(crate) async fn apply(self, group: Arc<[Request]>) -> Worked<Answers<Answer>> {
        if group.is_empty() {
            return Ok(Answers { now: self.clock().await?, each: Vec::new() });
        }
        let answers = self.apply_all(&group).await?;
        self.own.waits.answered(&group, &answers.each);
        Ok(answers)
    }

    async fn apply_all(&self, group: &[Request]) -> Worked<Answers<Answer>> {
        let needs = Needs::of(group);
        if group.iter().all(|request| self.is_poll(request))
            && let Some(answers) = self.answer_polls(&needs, group).await?
        {
            return Ok(answers);
        }
        self.apply_free(&needs, group).await
    }

    /// Does the part that need not wait for others. A lone name is waited for, for a short time.
    async fn apply_free(&self, needs: &Needs, group: &[Request]) -> Worked<Answers<Answer>> {
        match self.step(needs, |snapshot| snapshot.apply(group), grants).await {
            Ok(Stepped { outcome, read }) => {
                // A leave was asked again alone, and is told the reason.
                if let [needed] = &needs.names[..]
                    && let Some(bad) = read.bad(&needed.name)
                    && group.iter().any(|request| matches!(request, Request::Leave(_)))
                {
                    return Err(Failure::keeps(bad_rows(bad, &needed.name)));
                }
                let mut each = outcome.answers;
                for (answer, request) in each.iter_mut().zip(group) {
                    if let (Some(bad), Answer::Claim(verdict)) = (read.bad(request.name()), &mut *answer) {
                        *verdict = Verdict::Refused(bad_rows(bad, request.name()));
                    }
                }
                Ok(Answers { now: outcome.now, each })
            }
            // Others had a lone name locked for too long.
            Err(failure) if lost_race(&failure) => {
                let now = self.clock().await?;
                let each = group.iter().map(|request| not_now(request, &failure.error)).collect();
                Ok(Answers { now, each })
            }
            Err(failure) => Err(failure),
        }
    }

    /// The answers so far are kept, and the session is not used for anything else.
    fn given_up(&self, failure: &Failure) {
        tracing::debug!(error = %failure.error, "a busy name could not be served; it is asked again");
        if failure.session == After::Closed {
            self.session.cut();
        }
    }

    /// Renews leases. Names that others had locked are renewed one by one for a while; the rest are asked again.
    pub(crate) async fn renew(self, leases: Arc<[Renew]>) -> Worked<Answers<Renewed>> {
        let mut answers = self.renew_free(&leases).await?;
        let until = Instant::now() + PATIENCE;
        let several = leases.iter().any(|renew| renew.name != leases[0].name);
        for (answer, renew) in answers.each.iter_mut().zip(&*leases) {
            if *answer != Renewed::Unknown || !several {
                continue;
            }
            if Instant::now() >= until || self.session.is_closed() {
                break;
            }
            match self.renew_free(std::slice::from_ref(renew)).await {
                Ok(alone) => *answer = alone.each.into_iter().next().unwrap_or(Renewed::Unknown),
                Err(failure) => self.given_up(&failure),
            }
        }
        Ok(answers)
    }

    async fn renew_free(&self, leases: &[Renew]) -> Worked<Answers<Renewed>> {
        if leases.is_empty() {
            return Ok(Answers { now: self.clock().await?, each: Vec::new() });
        }
        let held = |answer: &Renewed| matches!(answer, Renewed::Held(_));
        match self.step(&Needs::of_renewals(leases), |snapshot| snapshot.renew(leases), held).await {
            Ok(Stepped { outcome, .. }) => Ok(Answers { now: outcome.now, each: outcome.answers }),
            Err(failure) if lost_race(&failure) => {
                Ok(Answers { now: self.clock().await?, each: vec![Renewed::Unknown; leases.len()] })
            }
            Err(failure) => Err(failure),
        }
    }

    /// Takes a hold back.
    pub(crate) async fn evict(self, order: Evict) -> Worked<Evicted> {
        let name = NeededName { name: order.name.clone(), must_exist: false };
        let needs = Needs { names: vec![name], contenders: Vec::new() };
        let done = |evicted: &Option<Evicted>| evicted.is_some();
        let Stepped { outcome, read } = self.step(&needs, |snapshot| snapshot.evict(&order), done).await?;
        if let Some(bad) = read.bad(&order.name) {
            return Err(Failure::keeps(bad_rows(bad, &order.name)));
        }
        let evicted = outcome.answers.into_iter().next().flatten();
        evicted.ok_or_else(|| Failure::keeps(trouble::busy()))
    }

    /// Reads the server's clock.
    async fn clock(&self) -> Worked<StoreTime> {
        Ok(self.read_only(&[], &Needs::default()).await?.now.lease)
    }

    /// Reads without locking anything, at one moment.
    pub(crate) async fn read_only(&self, names: &[Name], needs: &Needs) -> Worked<ReadRows> {
        let read = self.session.statements.read(names, &needs.contenders);
        let rows = flights::rows(&self.session, &read).await?;
        ReadRows::new(&rows, &self.own.id).map_err(Failure::closes)
    }

    /// Returns when everything that this session has read so far is on disk: others see a commit before it is. So nobody
    /// acts on what a crash of the server takes back.
    pub(crate) async fn read_is_on_disk(&self) -> Worked<()> {
        let write = self.session.statements.write_for_nobody(self.own.keeper);
        let mut written = flights::lone(&self.session, &write).await;
        for _ in 1..TRIES {
            if !written.as_ref().is_err_and(lost_race) {
                break;
            }
            // A sweep was removing old rows beside it.
            written = flights::lone(&self.session, &write).await;
        }
        written.map(drop)
    }

    /// Answers polls from a read without locks, if nothing has to be written for them. A grant is no such answer:
    /// others see a commit before it is on disk.
    async fn answer_polls(&self, needs: &Needs, group: &[Request]) -> Worked<Option<Answers<Answer>>> {
        let names = names_of(needs);
        let mut read = self.read_only(&names, needs).await?;
        let Ok(outcome) = read.snapshot(names).apply(group) else { return Ok(None) };
        let kept = |answer: &Answer| matches!(answer, Answer::Claim(Verdict::Busy { .. }));
        let is_good = outcome.writes.is_empty() && outcome.answers.iter().all(kept);
        Ok(is_good.then(|| Answers { now: outcome.now, each: outcome.answers }))
    }

    /// Whether a waiter asks again: mostly nothing has to be written for it.
    fn is_poll(&self, request: &Request) -> bool {
        match request {
            Request::Claim(claim) => {
                claim.again && claim.queue && !self.own.waits.takes_grant(claim.contender)
            }
            Request::Leave(_) => false,
        }
    }

    /// Locks, reads, does a step of the model, writes the changes, and tells this keeper the news that concern it.
    /// `gives` says whether an answer must not be taken back by a crash of the server.
    async fn step<A>(
        &self,
        needs: &Needs,
        act: impl Fn(Snapshot) -> Result<Outcome<A>, BadRow>,
        gives: impl Fn(&A) -> bool,
    ) -> Worked<Stepped<A>> {
        let Locked { flight, mut read, names } = self.lock(needs).await?;
        let mut acted = act(read.snapshot(names.iter().cloned()));
        if acted.is_err() {
            // Some rows can be read, but make no sense. The others are served.
            let again = || self.read_in(&flight);
            match again().and_then(|closer| Ok((closer.look_closer(&names), again()?))) {
                Ok((found, anew)) => read = anew.without(found),
                Err(error) => return Err(flights::give_up(&self.session, error).await),
            }
            for absent in needs.names.iter().filter(|needed| !read.has(&needed.name)).collect::<Vec<_>>() {
                drop(read.stored(&absent.name));
            }
            acted = act(read.snapshot(names.iter().cloned()));
        }
        let outcome = match acted {
            Ok(outcome) => outcome,
            Err(bad) => return Err(flights::give_up(&self.session, bad.into()).await),
        };
        let mut writes = read.statements(&outcome.writes, &outcome.wakes, &self.own.prefix);
        if writes.is_empty() && outcome.answers.iter().any(gives) && !names.is_empty() {
            let now = read.now.wall.cast_signed();
            writes.push(self.session.statements.touch(Table::Resource, &names, now));
        }
        if writes.is_empty() {
            flights::roll_back(&self.session).await?;
        } else {
            flights::second(&self.session, &self.progress, &writes).await?;
        }
        let own = outcome.wakes.granted().filter(|(keeper, _)| *keeper == self.own.keeper);
        own.for_each(|(_, wake)| self.own.wakes.wake(wake));
        outcome.wakes.topics().for_each(|topic| self.own.waits.changed(topic, &self.own.wakes));
        Ok(Stepped { outcome, read })
    }

    /// Locks the names of a group, and reads the rows that a step needs. A lone name is waited for; of several names,
    /// those that are busy are left out. Rows that have to exist are made before.
    async fn lock(&self, needs: &Needs) -> Worked<Locked> {
        let names = names_of(needs);
        let busy = if names.len() == 1 { Busy::Awaited(self.wait) } else { Busy::Skipped };
        let statements = &self.session.statements;
        let lock = statements.lock_resources(&names, busy);
        let rest = statements.read_rest(&names, &needs.contenders);
        // Names that somebody else is making or removing just now.
        let mut unmade = BTreeSet::new();
        for _ in 0..TRIES {
            let flight = flights::first(&self.session, &lock, &rest).await?;
            let mut read = match self.read_in(&flight) {
                Ok(read) => read,
                Err(error) => return Err(Failure::closes(error)),
            };
            let locked: BTreeSet<Name> = flight.names().into_iter().collect();
            let skipped = self.skipped(&names, &locked, busy).await?;
            let is_missing =
                |needed: &&NeededName| !locked.contains(&needed.name) && !skipped.contains(&needed.name);
            let missing = needs.names.iter().filter(is_missing);
            let missing = missing.filter(|needed| !unmade.contains(&needed.name));
            let (to_make, absent): (Vec<_>, Vec<_>) = missing.partition(|needed| needed.must_exist);
            if to_make.is_empty() {
                for needed in &absent {
                    // Rows that are left of it belong to nobody.
                    drop(read.stored(&needed.name));
                }
                let steps = |needed: &&NeededName| locked.contains(&needed.name) || absent.contains(needed);
                let names = needs.names.iter().filter(steps).map(|needed| needed.name.clone()).collect();
                return Ok(Locked { flight, read, names });
            }
            // A row that was made is no trouble if nothing follows.
            let to_make: Vec<Name> = to_make.into_iter().map(|needed| needed.name.clone()).collect();
            let make = statements.make(Table::Resource, &to_make);
            match flights::lone(&self.session, &make).await {
                // The others do not wait for them.
                Err(failure) if lost_race(&failure) && to_make.len() < names.len() => unmade.extend(to_make),
                made => drop(made?),
            }
        }
        Err(Failure::keeps(trouble::busy()))
    }

    /// Returns the names whose rows others have locked. There are none if rows are waited for.
    async fn skipped(&self, names: &[Name], locked: &BTreeSet<Name>, busy: Busy) -> Worked<BTreeSet<Name>> {
        let others: Vec<&Name> = names.iter().filter(|name| !locked.contains(*name)).collect();
        if busy != Busy::Skipped || others.is_empty() {
            return Ok(BTreeSet::new());
        }
        let existing = self.session.statements.existing(others);
        let rows = flights::inside(&self.session, &existing).await?;
        Ok(rows.iter().filter_map(|row| name_of(row, 0).ok()).collect())
    }

    /// Reads the rows that the first flight brought.
    fn read_in(&self, flight: &FirstFlight) -> Result<ReadRows, StoreError> {
        ReadRows::new(&flight.read, &self.own.id)?.with_locked(&flight.locked)
    }
}

fn names_of(needs: &Needs) -> Vec<Name> {
    needs.names.iter().map(|needed| needed.name.clone()).collect()
}

/// Whether nothing was done for a reason that passes, and the session is good.
fn lost_race(failure: &Failure) -> bool {
    failure.session == After::Kept && failure.error.is_passing() && !failure.error.maybe_applied()
}

fn grants(answer: &Answer) -> bool {
    matches!(answer, Answer::Claim(Verdict::Granted(_)))
}

fn not_now(request: &Request, error: &StoreError) -> Answer {
    match request {
        Request::Claim(_) => Answer::Claim(Verdict::NotNow(error.clone())),
        Request::Leave(_) => Answer::Leave(Left::NotNow),
    }
}

pub(crate) fn bad_rows(bad: BadRow, name: &Name) -> StoreError {
    trouble::corrupt(format!("{bad}; remove the rows of {:?} from the tables of the store", name.as_str()))
}
