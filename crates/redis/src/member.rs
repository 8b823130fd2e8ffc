//! The server as a member of a quorum: its record, and its incarnation.
//!
//! The record is a key. Scripts look at it in the same step as they answer. The incarnation is the run id of the server,
//! which is another one after every start. A connection ends with the process at its other end, so the run id is asked for
//! once for each connection.

use std::{sync::Arc, time::Instant};

use lockkeeper_core::{
    Name, StoreError, StoreErrorKind,
    store::{
        Answer, Answers, Enrolment, Left, Member, MemberAnswers, MemberState, Membership, Renew, Renewed,
        Reply, Request, StoreTime, Verdict,
    },
};
use redis::{Cmd, Value};

use crate::{
    calls::{ScriptReply, Source},
    codec::{self, Reader},
    groups::{Part, plain_leaves_first, read_answer},
    opener::checked,
    records::{Known, new_tag},
    replicas::Written,
    scripts::{Call, MEMBER, MEMBER_APPLY, MEMBER_RENEW, Script},
    servers::Priority,
    store::RedisStore,
    trouble,
};

/// How a group is asked for as a member.
struct Form<T, A> {
    script: &'static Script,
    priority: Priority,
    name: fn(&T) -> &Name,
    /// The answer to an entry that this user has no right to.
    denied: fn(&T, &StoreError) -> A,
}

/// The answers of all calls of a group so far.
struct Told<A> {
    /// The membership and the clock with the last answer.
    at: Option<(Membership, StoreTime)>,
    each: Vec<A>,
    /// The entries of each call that was done.
    written: Vec<Written>,
}

impl<A> Told<A> {
    fn add(&mut self, membership: Membership, part: Part<A>) -> Result<(), StoreError> {
        // The run of a server has its record until another one is written. So the last membership is as good for the
        // answers before, but only if all of them are of one run.
        let is_other = |(before, _): &(Membership, StoreTime)| before.incarnation != membership.incarnation;
        if self.at.as_ref().is_some_and(is_other) {
            let message = "the server started again while it answered a group";
            return Err(StoreError::new(StoreErrorKind::Unreachable, message));
        }
        let first = self.each.len();
        self.each.extend(part.answers);
        self.written.push(Written { entries: first..self.each.len(), source: part.source });
        self.at = Some((membership, part.now));
        Ok(())
    }

    fn answers(self) -> Result<MemberAnswers<A>, StoreError> {
        let (membership, now) = self.at.ok_or_else(|| trouble::nonsense("no membership"))?;
        Ok(MemberAnswers { membership, answers: Answers { now, each: self.each } })
    }
}

/// The answer of `member.lua`.
struct Kept {
    record: Option<Arc<str>>,
    source: Source,
    now: StoreTime,
    high_water: u64,
    changed: bool,
}

impl RedisStore {
    /// Calls a script in its form for members, and gives the replies and the memberships that came with them.
    async fn call_as_member<T: Sync, A>(
        &self,
        form: &Form<T, A>,
        group: &[&T],
        entries_per_call: usize,
        push: impl Fn(&mut Cmd, &[&T]) + Copy + Send + Sync,
    ) -> Vec<Result<(ScriptReply, Membership), StoreError>> {
        let (record, known) = (self.keys.member(), self.records.known());
        let with_record = |command: &mut Cmd, group: &[&T]| {
            push(command, group);
            command.arg(record).arg(known.tag());
        };
        let calls = self.calls(form.script, group, entries_per_call, form.name, with_record);
        let mut told = Vec::with_capacity(calls.len());
        for reply in self.servers.run(form.priority, &calls).await {
            told.push(match reply {
                Ok(reply) => self.with_membership(form.priority, reply, &known).await,
                Err(error) => Err(error),
            });
        }
        told
    }

    /// Takes the membership out of a reply, whose script was told of the record that is known.
    async fn with_membership(
        &self,
        priority: Priority,
        mut reply: ScriptReply,
        known: &Known,
    ) -> Result<(ScriptReply, Membership), StoreError> {
        let record = match std::mem::replace(&mut reply.more, Value::Nil) {
            Value::Nil => known.record(),
            kept => self.learn_record(kept),
        };
        let incarnation = self.run_id(priority, &reply.source).await.map_err(StoreError::perhaps_applied)?;
        Ok((reply, Membership { record, incarnation }))
    }

    /// Asks for a group with one call, or, if this user has no right to some of its names, for each entry with its own.
    async fn ask_as_member<T: Sync, A>(
        &self,
        form: Form<T, A>,
        group: &[&T],
        push: impl Fn(&mut Cmd, &[&T]) + Copy + Send + Sync,
        read: impl Fn(&mut Reader, &&T, StoreTime) -> Result<A, StoreError>,
    ) -> Result<Told<A>, StoreError> {
        let mut per_call = group.len().max(1);
        let mut replies = self.call_as_member(&form, group, per_call, push).await;
        let is_denied = matches!(&replies[..], [Err(error)] if trouble::is_denied(error));
        if is_denied && per_call > 1 {
            per_call = 1;
            replies = self.call_as_member(&form, group, per_call, push).await;
        }
        let mut told = Told { at: None, each: Vec::with_capacity(group.len()), written: Vec::new() };
        for (entries, reply) in group.chunks(per_call).zip(replies) {
            match reply {
                Ok((reply, membership)) => told.add(membership, Part::read(entries, reply, &read)?)?,
                // It says nothing about this server: others of its names may be served.
                Err(error) if is_denied && trouble::is_denied(&error) => {
                    told.each.extend(entries.iter().map(|entry| (form.denied)(entry, &error)));
                }
                Err(error) => {
                    return Err(if per_call < group.len() { error.perhaps_applied() } else { error });
                }
            }
        }
        if told.at.is_none() {
            // Nothing was done. A server that tells its record does serve this user.
            let kept = self.kept(None).await.map_err(StoreError::not_applied)?;
            let incarnation = self.run_id(Priority::Normal, &kept.source).await;
            let incarnation = incarnation.map_err(StoreError::not_applied)?;
            told.at = Some((Membership { record: kept.record, incarnation }, kept.now));
        }
        Ok(told)
    }

    /// Takes in the record that came with a reply.
    fn learn_record(&self, kept: Value) -> Option<Arc<str>> {
        let Value::BulkString(kept) = kept else { return None };
        self.records.learn(str::from_utf8(&kept).ok()?)
    }

    /// The run id of the server at the other end of the connection that a reply came over.
    async fn run_id(&self, priority: Priority, source: &Source) -> Result<Arc<str>, StoreError> {
        if let Some(run_id) = self.run_ids.at(priority, source.generation) {
            return Ok(run_id);
        }
        let mut info = redis::cmd("INFO");
        info.arg("server");
        let until = Instant::now() + self.servers.limit / 2;
        let connection = source.server.connection(priority);
        let answer = connection.send_on(source.generation, info, until).await?.map(checked).transpose();
        let answer = answer.map_err(|error| {
            let message =
                format!("this user may not ask which run of the server this is ({error}); allow INFO");
            StoreError::new(StoreErrorKind::Denied, message)
        })?;
        let text = match answer {
            Some(Value::BulkString(text)) => String::from_utf8_lossy(&text).into_owned(),
            Some(Value::VerbatimString { text, .. }) => text,
            _ => return Err(StoreError::new(StoreErrorKind::Unreachable, "the connection broke")),
        };
        let run_id = text.lines().find_map(|row| row.strip_prefix("run_id:")).map(str::trim);
        let run_id: Arc<str> = run_id.ok_or_else(|| trouble::nonsense("no run id"))?.into();
        self.run_ids.learn(priority, source.generation, run_id.clone());
        Ok(run_id)
    }

    async fn apply_as_member(&self, group: &[Request]) -> Result<MemberAnswers<Answer>, StoreError> {
        if group.is_empty() {
            let kept = self.kept(None).await?;
            let incarnation = self.run_id(Priority::Normal, &kept.source).await?;
            let answers = Answers { now: kept.now, each: Vec::new() };
            return Ok(MemberAnswers {
                membership: Membership { record: kept.record, incarnation },
                answers,
            });
        }
        let order = plain_leaves_first(group);
        let sorted: Vec<&Request> = order.iter().map(|index| &group[*index]).collect();
        let must_write = self.servers.settings().wait > 0;
        let push = move |command: &mut Cmd, group: &[&Request]| codec::push_group(command, group, must_write);
        let form = Form {
            script: &MEMBER_APPLY,
            priority: self.priority_of(&sorted),
            name: Request::name,
            denied: |request, error| match request {
                Request::Claim(_) => Answer::Claim(Verdict::Refused(error.clone())),
                Request::Leave(_) => Answer::Leave(Left::NotNow),
            },
        };
        let mut told = self.ask_as_member(form, &sorted, push, read_answer).await?;
        self.check_listeners(&sorted);
        for written in &told.written {
            written.source.server.open_urgent(&self.background);
        }
        self.refuse_unreplicated(&sorted, &mut told.each, std::mem::take(&mut told.written)).await?;
        let mut answers: Vec<(usize, Answer)> = order.into_iter().zip(told.each).collect();
        answers.sort_unstable_by_key(|(index, _)| *index);
        told.each = answers.into_iter().map(|(_, answer)| answer).collect();
        told.answers()
    }

    async fn renew_as_member(&self, leases: &[Renew]) -> Result<MemberAnswers<Renewed>, StoreError> {
        let group: Vec<&Renew> = leases.iter().collect();
        let form = Form {
            script: &MEMBER_RENEW,
            priority: Priority::Urgent,
            name: |renew: &Renew| &renew.name,
            denied: |_, _| Renewed::Unknown,
        };
        let read = |reader: &mut Reader, renew: &&Renew, _| reader.renewed(renew);
        let mut told = self.ask_as_member(form, &group, codec::push_renewals, read).await?;
        self.doubt_unreplicated(&mut told.each, std::mem::take(&mut told.written)).await;
        told.answers()
    }

    /// Reads the record, or changes it.
    async fn kept(&self, change: Option<&Enrolment>) -> Result<Kept, StoreError> {
        let (high_water, record) = (self.keys.shared_high_water(), self.keys.member());
        let call = Call::plain(&MEMBER, 2, move |command, nonce| {
            command.arg(high_water).arg(record).arg(nonce);
            if let Some(Enrolment { expected, record, high_water }) = change {
                command.arg(expected.record.as_deref().unwrap_or_default()).arg(&**record);
                command.arg(format!("{high_water:016}")).arg(new_tag());
            }
        });
        let mut reply = self.servers.run_one(Priority::Normal, call).await?;
        let (record, source) = (std::mem::replace(&mut reply.more, Value::Nil), reply.source.clone());
        let mut reader = Reader::new(reply);
        let record = self.learn_record(record);
        let (now, high_water, changed) = (reader.time()?, reader.number()?, reader.number()? == 1);
        Ok(Kept { record, source, now, high_water, changed })
    }

    async fn enrol_as_member(&self, enrolment: &Enrolment) -> Result<bool, StoreError> {
        // The connection that is open now must lead to the expected run, or be the one that changes nothing.
        let before = self.kept(None).await?;
        if self.run_id(Priority::Normal, &before.source).await? != enrolment.expected.incarnation {
            return Ok(false);
        }
        let after = self.kept(Some(enrolment)).await?;
        let run_id =
            self.run_id(Priority::Normal, &after.source).await.map_err(StoreError::perhaps_applied)?;
        Ok(after.changed && run_id == enrolment.expected.incarnation)
    }
}

impl Member for RedisStore {
    fn apply<'a>(&'a self, group: &'a [Request]) -> Reply<'a, MemberAnswers<Answer>> {
        Box::pin(self.apply_as_member(group))
    }

    fn renew<'a>(&'a self, leases: &'a [Renew]) -> Reply<'a, MemberAnswers<Renewed>> {
        Box::pin(self.renew_as_member(leases))
    }

    fn state(&self) -> Reply<'_, MemberState> {
        Box::pin(async {
            let Kept { record, source, now, high_water, .. } = self.kept(None).await?;
            let incarnation = self.run_id(Priority::Normal, &source).await?;
            let server = incarnation.clone();
            Ok(MemberState {
                membership: Membership { record, incarnation },
                wall: now.0,
                high_water,
                server,
            })
        })
    }

    fn enrol<'a>(&'a self, enrolment: &'a Enrolment) -> Reply<'a, bool> {
        Box::pin(self.enrol_as_member(enrolment))
    }
}
