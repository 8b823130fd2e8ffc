//! Claims, leaves, renewals and evictions: each group is one transaction on the names that it could lock.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use lockkeeper_core::{
    KeeperId, Name, StoreError,
    store::{Answer, Answers, Evict, Evicted, Left, Renew, Renewed, Request, Verdict, Wake},
};
use lockkeeper_rows::{BadRow, NeededName, Needs, Outcome, Snapshot, Stored};
use tokio::time::Instant;
use tokio_postgres::Row;

use crate::{
    codec::{Parameters, ReadRows, name_from_bytes},
    connection::{After, Failure, Progress, Worked},
    flights::{self, Call, LockWait, Messages, unread},
    origin::Header,
    own::Own,
    positions,
    session::{Parameter, Session},
    statements::Statement,
    trouble, wakes,
};

/// How often rows that were missing are made before a group gives up: somebody may remove them again.
const TRIES: usize = 3;

/// One group on its way.
#[derive(Clone)]
pub(crate) struct Group {
    pub(crate) session: Arc<Session>,
    pub(crate) progress: Arc<Progress>,
    pub(crate) own: Own,
    /// For how long it waits if it has one name, which is busy.
    pub(crate) wait: LockWait,
}

/// The names that a group has locked, and the rows that it has read. The transaction is open.
struct Locked {
    rows: Vec<Row>,
    read: ReadRows,
    /// The names that may be stepped.
    names: Vec<Name>,
}

/// The outcome of a group.
struct Stepped<A> {
    outcome: Outcome<A>,
    /// Names with rows that cannot be used. Nothing was done for them.
    damaged: BTreeMap<Name, StoreError>,
}

impl Group {
    /// Does claims and leaves.
    pub(crate) async fn apply(self, group: Arc<[Request]>) -> Worked<Answers<Answer>> {
        let needs = Needs::of(&group);
        if group.is_empty() {
            return Ok(Answers { now: self.clock().await?, each: Vec::new() });
        }
        if group.iter().all(is_poll)
            && !self.own.positions.are_old(needs.contenders.iter().copied())
            && let Some(answers) = self.answer_polls(&needs, &group).await?
        {
            return Ok(answers);
        }
        match self.step(&needs, |snapshot| snapshot.apply(&group), is_granted).await {
            Ok(stepped) => {
                let Stepped { outcome, damaged } = self.once_more(&group, stepped).await?;
                let mut each = outcome.answers;
                for (answer, request) in each.iter_mut().zip(&*group) {
                    // A leave is asked again alone, and then fails with the reason.
                    if let (Answer::Claim(verdict), Some(error)) = (answer, damaged.get(request.name())) {
                        *verdict = Verdict::Refused(error.clone());
                    }
                }
                Ok(Answers { now: outcome.now, each })
            }
            // A lone name that others had locked for too long.
            Err(failure) if is_not_now(&failure) => {
                let now = self.clock().await?;
                let each = group.iter().map(|request| not_now(request, &failure.error)).collect();
                Ok(Answers { now, each })
            }
            Err(failure) => Err(failure),
        }
    }

    /// Does the requests that were left out because others had their names locked, in one more transaction: most of
    /// these are free by now. Two keepers that share many names would otherwise go on name by name. A request whose
    /// name is still locked is asked again alone.
    async fn once_more(&self, group: &[Request], mut stepped: Stepped<Answer>) -> Worked<Stepped<Answer>> {
        let left_out = |(answer, request): &(&Answer, &Request)| {
            matches!(answer, Answer::Claim(Verdict::NotNow(_)) | Answer::Leave(Left::NotNow))
                && !stepped.damaged.contains_key(request.name())
        };
        let places: Vec<usize> = (0..group.len())
            .filter(|place| left_out(&(&stepped.outcome.answers[*place], &group[*place])))
            .collect();
        let again: Vec<Request> = places.iter().map(|place| group[*place].clone()).collect();
        let needs = Needs::of(&again);
        // A lone name would be waited for, and the others with it.
        if needs.names.len() < 2 {
            return Ok(stepped);
        }
        match self.step(&needs, |snapshot| snapshot.apply(&again), is_granted).await {
            Ok(more) => {
                for (place, answer) in places.into_iter().zip(more.outcome.answers) {
                    stepped.outcome.answers[place] = answer;
                }
                stepped.damaged.extend(more.damaged);
                Ok(stepped)
            }
            Err(failure) if is_not_now(&failure) => Ok(stepped),
            Err(failure) if failure.error.maybe_applied() => Err(failure),
            // The first answers stand.
            Err(failure) => {
                tracing::debug!(error = %failure.error, "busy names were not served; they are asked again");
                if failure.session == After::Closed {
                    self.session.cut();
                }
                Ok(stepped)
            }
        }
    }

    /// Renews leases. Names that others had locked are renewed one by one, so that a busy name cannot starve them.
    pub(crate) async fn renew(self, leases: Arc<[Renew]>) -> Worked<Answers<Renewed>> {
        let needs = Needs::of_renewals(&leases);
        let stepped = self.step(&needs, |snapshot| snapshot.renew(&leases), is_held).await;
        let (now, mut each, damaged) = match stepped {
            Ok(Stepped { outcome, damaged }) => (outcome.now, outcome.answers, damaged),
            Err(failure) if is_not_now(&failure) => {
                (self.clock().await?, vec![Renewed::Unknown; leases.len()], BTreeMap::new())
            }
            Err(failure) => return Err(failure),
        };
        for (name, error) in &damaged {
            self.own.told.once(name, error);
        }
        if needs.names.len() > 1 {
            let busy = |(answer, renew): &(&mut Renewed, &Renew)| {
                **answer == Renewed::Unknown && !damaged.contains_key(&renew.name)
            };
            self.renew_busy(each.iter_mut().zip(&*leases).filter(busy).collect()).await;
        }
        Ok(Answers { now, each })
    }

    /// Renews leases of busy names one by one, for a part of the time that is left and only while no other renewals wait.
    /// Those that it does not come to stay unknown, and are asked again: the answers of all others must not get lost.
    async fn renew_busy(&self, mut busy: Vec<(&mut Renewed, &Renew)>) {
        let stop = self.progress.a_part_of_the_rest();
        // Another one is the first each time, so that names that stay locked do not use up the time of the others.
        let first = getrandom::u32().unwrap_or_default() as usize % busy.len().max(1);
        busy.rotate_left(first);
        for (answer, renew) in busy {
            if Instant::now() >= stop || self.progress.others_wait() {
                return;
            }
            let alone = std::slice::from_ref(renew);
            match self.step(&Needs::of_renewals(alone), |snapshot| snapshot.renew(alone), is_held).await {
                Ok(stepped) => {
                    *answer = stepped.outcome.answers.into_iter().next().unwrap_or(Renewed::Unknown);
                }
                Err(failure) => {
                    tracing::debug!(error = %failure.error, "a renewal of a busy name failed");
                    if failure.session == After::Closed {
                        // The others are renewed: their answers are worth more than this error.
                        self.session.cut();
                        return;
                    }
                }
            }
        }
    }

    /// Takes a hold back.
    pub(crate) async fn evict(self, order: Evict) -> Worked<Evicted> {
        let name = NeededName { name: order.name.clone(), must_exist: false };
        let needs = Needs { names: vec![name], contenders: Vec::new() };
        let stepped = self.step(&needs, |snapshot| snapshot.evict(&order), Option::is_some).await?;
        let evicted = stepped.outcome.answers.into_iter().next().flatten();
        evicted.ok_or_else(|| Failure::keeps(trouble::busy()))
    }

    /// The server's clock.
    async fn clock(&self) -> Worked<lockkeeper_core::store::StoreTime> {
        Ok(self.read_only(&[], &[]).await?.now.lease)
    }

    /// Reads without locking anything, at one moment.
    pub(crate) async fn read_only(&self, names: &[Name], contenders: &[String]) -> Worked<ReadRows> {
        let names = bytes_of(names);
        let rows = self.session.query(Statement::Read, &[&names, &contenders]).await.map_err(unread)?;
        ReadRows::new(&rows, &self.session.origin).map_err(Failure::closes)
    }

    /// Answers polls from a read without locks, if nothing has to be written for them and no replica may lack them.
    async fn answer_polls(&self, needs: &Needs, group: &[Request]) -> Worked<Option<Answers<Answer>>> {
        let names: Vec<Name> = needs.names.iter().map(|needed| needed.name.clone()).collect();
        let mut read = self.read_only(&names, &contenders_of(needs)).await?;
        if names.iter().any(|name| read.damage(name).is_some()) {
            return Ok(None);
        }
        let outcome = read.snapshot(names).apply(group).ok().filter(|outcome| outcome.writes.is_empty());
        let may_be_lacking = |outcome: &Outcome<Answer>| {
            read.header.waits_for_replicas && outcome.answers.iter().any(is_granted)
        };
        let outcome = outcome.filter(|outcome| !may_be_lacking(outcome));
        Ok(outcome.map(|outcome| Answers { now: outcome.now, each: outcome.answers }))
    }

    /// Locks, reads, does a step of the model, writes the rows that became different, and tells the keepers concerned.
    /// Names with rows that cannot be used are left out, unless there is no other name.
    ///
    /// Where commits wait for replicas, answers that `gives` names are told only after one of them did. What was read may
    /// come from a commit whose wait was cancelled, which a failover loses.
    async fn step<A>(
        &self,
        needs: &Needs,
        act: impl Fn(Snapshot) -> Result<Outcome<A>, BadRow>,
        gives: fn(&A) -> bool,
    ) -> Worked<Stepped<A>> {
        let Locked { rows, mut read, mut names } = self.lock(needs).await?;
        let made: Vec<Name> = names.iter().filter(|name| read.has(name)).cloned().collect();
        let mut damaged: BTreeMap<Name, StoreError> =
            names.iter().filter_map(|name| Some((name.clone(), read.damage(name)?.clone()))).collect();
        names.retain(|name| !damaged.contains_key(name));
        let mut acted = act(read.snapshot(names.iter().cloned()));
        if acted.is_err() {
            let again = || ReadRows::new(&rows, &self.session.origin);
            let closer = again().and_then(|closer| Ok((closer.look_closer(&names), again()?)));
            match closer {
                Ok((found, anew)) => (damaged, read) = (found, anew),
                Err(error) => return Err(flights::give_up(&self.session, error).await),
            }
            names.retain(|name| !damaged.contains_key(name));
            for absent in needs.names.iter().filter(|needed| !read.has(&needed.name)).collect::<Vec<_>>() {
                drop::<Stored>(read.stored(&absent.name));
            }
            acted = act(read.snapshot(names));
        }
        let outcome = match (acted, damaged.values().next()) {
            (Ok(_), Some(error)) if needs.names.len() == 1 => {
                return Err(flights::give_up(&self.session, error.clone()).await);
            }
            (Ok(outcome), _) => outcome,
            (Err(bad), _) => return Err(flights::give_up(&self.session, bad.into()).await),
        };
        let waits_for_replicas = read.header.waits_for_replicas && outcome.answers.iter().any(gives);
        if outcome.writes.is_empty() {
            if waits_for_replicas {
                let touch: [Parameter<'_>; 2] = [&bytes_of(&made), &read.now.wall.cast_signed()];
                let touch = Call { statement: Statement::Touch, parameters: &touch };
                flights::second(&self.session, &self.progress, touch, None).await?;
            } else {
                flights::roll_back(&self.session).await?;
            }
            return Ok(Stepped { outcome, damaged });
        }
        let mut parameters = read.parameters(&outcome.writes);
        parameters.may_be_lost &= !waits_for_replicas;
        let (own, others) = self.wakes(&read, &outcome);
        let messages = messages(others, &read.header);
        self.write(&parameters, messages).await?;
        self.own.positions.wrote(positions::in_writes(&outcome.writes));
        own.into_iter().for_each(|wake| self.own.wakes.wake(wake));
        Ok(Stepped { outcome, damaged })
    }

    /// Locks the names of a group, and reads the rows that a step needs. A lone name is waited for; of several names,
    /// those that are busy are left out. Rows that have to exist are made before.
    async fn lock(&self, needs: &Needs) -> Worked<Locked> {
        let names: Vec<Name> = needs.names.iter().map(|needed| needed.name.clone()).collect();
        let (bytes, contenders) = (bytes_of(&names), contenders_of(needs));
        let lock = if names.len() == 1 { Statement::Lock } else { Statement::LockFree };
        // Names that somebody else is making or removing just now.
        let mut unmade = BTreeSet::new();
        for _ in 0..TRIES {
            let flight = flights::first(
                &self.session,
                self.wait,
                Call { statement: lock, parameters: &[&bytes] },
                Call { statement: Statement::Read, parameters: &[&bytes, &contenders] },
                &[Statement::WriteRows, Statement::WriteAll, Statement::Touch, Statement::Notify],
            )
            .await?;
            let taken = ReadRows::new(&flight.read, &self.session.origin).and_then(|read| {
                let locked = flight.locked.iter().map(|row| name_from_bytes(crate::codec::get(row, 0)?));
                Ok((read, locked.collect::<Result<BTreeSet<Name>, StoreError>>()?))
            });
            let (mut read, locked) = match taken {
                Ok(taken) => taken,
                Err(error) => return Err(flights::give_up(&self.session, error).await),
            };
            self.progress.works_in(&read.header);
            let missing = needs.names.iter().filter(|needed| !read.has(&needed.name));
            let missing = missing.filter(|needed| !unmade.contains(&needed.name));
            let (to_make, absent): (Vec<_>, Vec<_>) = missing.partition(|needed| needed.must_exist);
            if to_make.is_empty() {
                for needed in &absent {
                    // Rows that are left of it belong to nobody.
                    drop::<Stored>(read.stored(&needed.name));
                }
                let steps = |needed: &&NeededName| locked.contains(&needed.name) || absent.contains(needed);
                let names = needs.names.iter().filter(steps).map(|needed| needed.name.clone()).collect();
                return Ok(Locked { rows: flight.read, read, names });
            }
            let to_make: Vec<Name> = to_make.into_iter().map(|needed| needed.name.clone()).collect();
            flights::roll_back(&self.session).await?;
            match self.make(&to_make).await {
                // The others do not wait for them.
                Err(failure) if is_not_now(&failure) && to_make.len() < names.len() => unmade.extend(to_make),
                made => made?,
            }
        }
        Err(Failure::keeps(trouble::busy()))
    }

    /// Makes rows that can be locked.
    async fn make(&self, names: &[Name]) -> Worked<()> {
        let names = bytes_of(names);
        // A row that was made is no trouble if nothing follows.
        self.session.query(Statement::Make, &[&names]).await.map_err(unread)?;
        Ok(())
    }

    async fn write(&self, p: &Parameters, messages: Option<Messages>) -> Worked<()> {
        let rows: [Parameter<'_>; 7] =
            [&p.names, &p.high_waters, &p.capacities, &p.ends, &p.holders, &p.used, &p.may_be_lost];
        let others: [Parameter<'_>; 6] =
            [&p.entry_names, &p.slots, &p.entry_ends, &p.entries, &p.contenders, &p.untils];
        let all: Vec<Parameter<'_>> = rows.into_iter().chain(others).collect();
        let write = if p.only_rows() {
            Call { statement: Statement::WriteRows, parameters: &rows }
        } else {
            Call { statement: Statement::WriteAll, parameters: &all }
        };
        flights::second(&self.session, &self.progress, write, messages).await
    }

    /// The wakes of this keeper, and those of others.
    fn wakes<A>(&self, read: &ReadRows, outcome: &Outcome<A>) -> (Vec<Wake>, Vec<(KeeperId, Wake)>) {
        let changes = outcome.wakes.changed.iter().zip(outcome.wakes.topics());
        let changes = changes.flat_map(|(name, topic)| {
            let watchers = read.watchers.get(name).map(Vec::as_slice).unwrap_or_default();
            watchers.iter().map(move |keeper| (*keeper, Wake::Changed(topic.clone())))
        });
        let all: Vec<_> = outcome.wakes.granted().chain(changes).collect();
        let (own, others): (Vec<_>, Vec<_>) =
            all.into_iter().partition(|(keeper, _)| *keeper == self.own.keeper);
        (own.into_iter().map(|(_, wake)| wake).collect(), others)
    }
}

/// The messages with these wakes, once the transaction of `header` is committed.
pub(crate) fn messages(wakes: Vec<(KeeperId, Wake)>, header: &Header) -> Option<Messages> {
    let transaction = header.transaction.clone()?;
    let (channels, texts) = wakes::texts(wakes);
    let waits_for_replicas = header.waits_for_replicas;
    (!channels.is_empty()).then_some(Messages { channels, texts, transaction, waits_for_replicas })
}

/// Whether this is a claim that asks again, and waits: mostly nothing has to be written for it.
fn is_poll(request: &Request) -> bool {
    matches!(request, Request::Claim(claim) if claim.again && claim.queue)
}

fn is_granted(answer: &Answer) -> bool {
    matches!(answer, Answer::Claim(Verdict::Granted(_)))
}

fn is_held(answer: &Renewed) -> bool {
    matches!(answer, Renewed::Held { .. })
}

/// Whether nothing was done for a reason that passes, and the session is good.
fn is_not_now(failure: &Failure) -> bool {
    failure.session == After::Kept && failure.error.is_passing() && !failure.error.maybe_applied()
}

fn not_now(request: &Request, error: &StoreError) -> Answer {
    match request {
        Request::Claim(_) => Answer::Claim(Verdict::NotNow(error.clone())),
        Request::Leave(_) => Answer::Leave(Left::NotNow),
    }
}

fn bytes_of(names: &[Name]) -> Vec<Vec<u8>> {
    names.iter().map(|name| name.as_str().as_bytes().to_vec()).collect()
}

fn contenders_of(needs: &Needs) -> Vec<String> {
    needs.contenders.iter().map(ToString::to_string).collect()
}
