//! Sends groups of claims, leaves and renewals, and reads their answers.

use lockkeeper_core::{
    Name, StoreError,
    model::WAIT_LEASE,
    store::{Answer, Answers, Left, Renew, Renewed, Request, StoreTime, Verdict},
};
use redis::Cmd;

use crate::{
    calls::{ScriptReply, Source},
    check,
    codec::{self, Reader},
    replicas::Written,
    scripts::{APPLY, Call, RENEW, Script},
    servers::Priority,
    store::RedisStore,
    trouble,
};

/// The answers of one call.
pub(crate) struct Part<T> {
    pub(crate) now: StoreTime,
    pub(crate) answers: Vec<T>,
    pub(crate) source: Source,
}

impl<T> Part<T> {
    pub(crate) fn read<R>(
        requests: &[R],
        reply: ScriptReply,
        read: impl Fn(&mut Reader, &R, StoreTime) -> Result<T, StoreError>,
    ) -> Result<Self, StoreError> {
        let source = reply.source.clone();
        let mut reader = Reader::new(reply);
        let now = reader.time()?;
        let answers =
            requests.iter().map(|request| read(&mut reader, request, now)).collect::<Result<_, _>>()?;
        Ok(Self { now, answers, source })
    }
}

pub(crate) fn read_answer(
    reader: &mut Reader,
    request: &&Request,
    now: StoreTime,
) -> Result<Answer, StoreError> {
    match request {
        Request::Claim(claim) => reader.verdict(claim, now).map(Answer::Claim),
        Request::Leave(_) => reader.left().map(Answer::Leave),
    }
}

/// Whether the contender of a request holds or waits after this answer.
fn holds_or_waits(request: &Request, answer: &Answer) -> bool {
    let Request::Claim(claim) = request else { return false };
    match answer {
        Answer::Claim(Verdict::Granted(_)) => true,
        Answer::Claim(Verdict::Busy { .. }) => claim.queue,
        _ => false,
    }
}

/// The answers of all calls of a group so far.
#[derive(Default)]
struct Applied {
    now: Option<StoreTime>,
    answers: Vec<Answer>,
    /// The entries of calls that granted something.
    granted: Vec<Written>,
    failed: Option<StoreError>,
}

impl Applied {
    fn add(&mut self, part: Part<Answer>) {
        self.now = Some(part.now);
        let first = self.answers.len();
        let grants = part.answers.iter().any(|answer| matches!(answer, Answer::Claim(Verdict::Granted(_))));
        self.answers.extend(part.answers);
        if grants {
            self.granted.push(Written { entries: first..self.answers.len(), source: part.source });
        }
    }

    /// Takes in a call that failed. If each entry of the group has a call of its own, and that did nothing, the failure is
    /// the answer of its entry, and does not concern the others. A leave is asked for again alone: then its error is told.
    fn add_failure(&mut self, requests: &[&Request], error: &StoreError, own_call: bool) {
        let did_nothing = own_call && !error.maybe_applied();
        for request in requests {
            self.answers.push(match request {
                Request::Claim(_) if did_nothing && error.is_passing() => {
                    Answer::Claim(Verdict::NotNow(error.clone()))
                }
                Request::Claim(_) if did_nothing => Answer::Claim(Verdict::Refused(error.clone())),
                Request::Leave(_) if did_nothing => Answer::Leave(Left::NotNow),
                _ => {
                    self.failed = Some(error.clone());
                    continue;
                }
            });
        }
    }
}

impl RedisStore {
    /// How many entries of a group share a call: all, or in a cluster one, since a script works in one slot. A user may have
    /// no right to the names of some entries. Then the server refuses the whole call, and each is asked for with its own.
    pub(crate) fn entries_per_call(&self, group: usize) -> usize {
        if self.keys.is_sharded() { 1 } else { group.max(1) }
    }

    pub(crate) fn calls<'a, T: Sync>(
        &'a self,
        script: &'static Script,
        group: &'a [&'a T],
        entries_per_call: usize,
        name: fn(&T) -> &Name,
        push: impl Fn(&mut Cmd, &[&T]) + Copy + Send + Sync + 'a,
    ) -> Vec<Call<'a>> {
        let call = |entries: &'a [&'a T]| {
            Call::new(script, &self.keys, name(entries[0]), 1 + entries.len(), move |command, nonce| {
                command.arg(self.keys.high_water(name(entries[0])));
                for entry in entries {
                    command.arg(self.keys.resource(name(entry)));
                }
                command.arg(nonce);
                push(command, entries);
            })
        };
        group.chunks(entries_per_call).map(call).collect()
    }

    pub(crate) fn apply_calls<'a>(
        &'a self,
        group: &'a [&'a Request],
        entries_per_call: usize,
    ) -> Vec<Call<'a>> {
        let must_write = self.servers.settings().wait > 0;
        let push = move |command: &mut Cmd, group: &[&Request]| codec::push_group(command, group, must_write);
        self.calls(&APPLY, group, entries_per_call, Request::name, push)
    }

    /// Applies a group. The script expects plain leaves first, so they are moved there, and their answers back.
    pub(crate) async fn apply_group(&self, group: &[Request]) -> Result<Answers<Answer>, StoreError> {
        if let [only] = group {
            return self.apply_sorted(&[only]).await;
        }
        let order = plain_leaves_first(group);
        let sorted: Vec<&Request> = order.iter().map(|index| &group[*index]).collect();
        let Answers { now, each } = self.apply_sorted(&sorted).await?;
        let mut answers: Vec<(usize, Answer)> = order.into_iter().zip(each).collect();
        answers.sort_unstable_by_key(|(index, _)| *index);
        Ok(Answers { now, each: answers.into_iter().map(|(_, answer)| answer).collect() })
    }

    /// Once the program has dropped its last handle, nothing is renewed any more, and the renewals' connection is
    /// usually open: it is opened with the first hold or waiter. Opening another one may take longer than the end of a
    /// program waits. Claims stay where `WAIT` looks for them.
    pub(crate) fn priority_of(&self, group: &[&Request]) -> Priority {
        let only_leaves = || group.iter().all(|request| matches!(request, Request::Leave(_)));
        if self.servers.has_left_caller() && only_leaves() { Priority::Urgent } else { Priority::Normal }
    }

    /// A claim that asks again may have missed a message.
    pub(crate) fn check_listeners(&self, group: &[&Request]) {
        if group.iter().any(|request| matches!(request, Request::Claim(claim) if claim.again)) {
            self.listeners.check_runtime();
        }
    }

    async fn apply_sorted(&self, group: &[&Request]) -> Result<Answers<Answer>, StoreError> {
        for request in group {
            if let Request::Leave(leave) = request {
                self.servers.end_following(leave.contender);
            }
        }
        let (priority, mut per_call) = (self.priority_of(group), self.entries_per_call(group.len()));
        let mut calls = self.apply_calls(group, per_call);
        let mut replies = self.servers.run(priority, &calls).await;
        if per_call > 1 && is_denied(&replies) {
            per_call = 1;
            calls = self.apply_calls(group, per_call);
            replies = self.servers.run(priority, &calls).await;
        }
        self.check_listeners(group);
        let (mut applied, own_call) = (Applied::default(), calls.len() > 1);
        for (requests, reply) in group.chunks(per_call).zip(replies) {
            match reply.and_then(|reply| Part::read(requests, reply, read_answer)) {
                Ok(part) => {
                    if requests
                        .iter()
                        .zip(&part.answers)
                        .any(|(request, answer)| holds_or_waits(request, answer))
                    {
                        part.source.server.open_urgent(&self.background);
                    }
                    applied.add(part);
                }
                Err(error) => applied.add_failure(requests, &error, own_call),
            }
        }
        let Applied { now, mut answers, granted, failed } = applied;
        if let Some(error) = failed {
            return Err(if own_call { error.perhaps_applied() } else { error });
        }
        let now = match now {
            Some(now) => now,
            // Nothing was done: the answers say why, and only the time of their server is missing.
            None => {
                let slot = calls.first().map_or(0, |call| call.slot);
                let time = check::time(&self.servers, self.servers.map().of(slot)).await;
                time.map_err(StoreError::not_applied)?
            }
        };
        self.refuse_unreplicated(group, &mut answers, granted).await?;
        for (request, answer) in group.iter().zip(&answers) {
            if let (Request::Claim(claim), Answer::Claim(verdict)) = (request, answer) {
                match verdict {
                    Verdict::Granted(grant) => self.servers.follow_master(claim.contender, grant.remaining),
                    Verdict::Busy { .. } if claim.queue => {
                        self.servers.follow_master(claim.contender, WAIT_LEASE);
                    }
                    Verdict::NotNow(_) => {}
                    _ => self.servers.end_following(claim.contender),
                }
            }
        }
        Ok(Answers { now, each: answers })
    }

    /// Renews a group of leases. A lease whose call failed is [`Renewed::Unknown`]; if all failed, so does the group.
    pub(crate) async fn renew_group(&self, leases: &[Renew]) -> Result<Answers<Renewed>, StoreError> {
        let group: Vec<&Renew> = leases.iter().collect();
        let calls =
            |per_call| self.calls(&RENEW, &group, per_call, |renew| &renew.name, codec::push_renewals);
        let mut per_call = self.entries_per_call(leases.len());
        let mut replies = self.servers.run(Priority::Urgent, &calls(per_call)).await;
        if per_call > 1 && is_denied(&replies) {
            per_call = 1;
            replies = self.servers.run(Priority::Urgent, &calls(per_call)).await;
        }
        let (mut now, mut each) = (None, Vec::with_capacity(leases.len()));
        let (mut failed, mut written) = (None, Vec::new());
        for (leases, reply) in leases.chunks(per_call).zip(replies) {
            let read = |reader: &mut Reader, renew: &Renew, _| reader.renewed(renew);
            match reply.and_then(|reply| Part::read(leases, reply, read)) {
                Ok(part) => {
                    now = Some(part.now);
                    let first = each.len();
                    each.extend(part.answers);
                    written.push(Written { entries: first..each.len(), source: part.source });
                }
                Err(error) => {
                    each.extend(leases.iter().map(|_| Renewed::Unknown));
                    failed = Some(error);
                }
            }
        }
        if let (None, Some(error)) = (now, failed) {
            return Err(error);
        }
        self.doubt_unreplicated(&mut each, written).await;
        for (renew, renewed) in leases.iter().zip(&each) {
            match renewed {
                Renewed::Held(grant) if !renew.detach => {
                    self.servers.follow_master(renew.contender, grant.remaining);
                }
                // The watchdog asks again.
                Renewed::Unknown => {}
                _ => self.servers.end_following(renew.contender),
            }
        }
        Ok(Answers { now: now.unwrap_or(StoreTime(0)), each })
    }
}

/// Whether the only call of a group did nothing, because this user may not do it.
fn is_denied(replies: &[Result<ScriptReply, StoreError>]) -> bool {
    matches!(replies, [Err(error)] if trouble::is_denied(error))
}

/// The indexes of a group's requests with plain leaves first. A plain leave stays behind a leave with a tombstone of
/// the same resource, which may have granted what the plain one gives back.
pub(crate) fn plain_leaves_first(group: &[Request]) -> Vec<usize> {
    let mut special: Vec<&Name> = Vec::new();
    let ordered = codec::claims_and_leaves(group.iter());
    let (mut order, rest): (Vec<usize>, Vec<usize>) = (0..group.len()).partition(|index| {
        let request = &group[*index];
        let plain = codec::is_plain_leave(request, &ordered);
        if !plain && matches!(request, Request::Leave(_)) {
            special.push(request.name());
        }
        plain && !special.contains(&request.name())
    });
    order.extend(rest);
    order
}
