//! The server as a member of a quorum: its record, and its incarnation.
//!
//! The record is a key. Scripts look at it in the same step as they answer. The incarnation is the run id of the server,
//! which is another one after every start. A connection ends with the process at its other end, so the run id is asked for
//! once for each connection.

use std::{sync::Arc, time::Instant};

use lockkeeper_core::{
    StoreError, StoreErrorKind,
    store::{
        Answer, Answers, Enrolment, Member, MemberAnswers, MemberState, Membership, Renew, Renewed, Reply,
        Request, StoreTime,
    },
};
use redis::{Cmd, Value};

use crate::{
    calls::{ScriptReply, Source},
    codec::{self, Reader},
    groups::{Part, plain_leaves_first, read_answer},
    opener::checked,
    records::new_tag,
    replicas::Written,
    scripts::{Call, MEMBER, MEMBER_APPLY, MEMBER_RENEW, Script},
    servers::Priority,
    store::RedisStore,
    trouble,
};

/// The answer of `member.lua`.
struct Kept {
    record: Option<Arc<str>>,
    source: Source,
    now: StoreTime,
    high_water: u64,
    changed: bool,
}

impl RedisStore {
    /// Calls a script in its form for members, and gives the reply and the membership that came with it.
    async fn call_as_member<T: Sync>(
        &self,
        script: &'static Script,
        priority: Priority,
        group: &[&T],
        name: fn(&T) -> &lockkeeper_core::Name,
        push: impl Fn(&mut Cmd, &[&T]) + Copy + Send + Sync,
    ) -> Result<(ScriptReply, Membership), StoreError> {
        let (record, known) = (self.keys.member(), self.records.known());
        let with_record = |command: &mut Cmd, group: &[&T]| {
            push(command, group);
            command.arg(record).arg(known.tag());
        };
        let call = self.calls(script, group, name, with_record).pop();
        let call = call.ok_or_else(|| trouble::nonsense("no request"))?;
        let mut reply = self.servers.run_one(priority, call).await?;
        let record = match std::mem::replace(&mut reply.more, Value::Nil) {
            Value::Nil => known.record(),
            kept => self.learn_record(kept),
        };
        let incarnation = self.run_id(priority, &reply.source).await.map_err(StoreError::perhaps_applied)?;
        Ok((reply, Membership { record, incarnation }))
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
        let priority = self.priority_of(&sorted);
        let called = self.call_as_member(&MEMBER_APPLY, priority, &sorted, Request::name, push);
        let (reply, membership) = called.await?;
        self.check_listeners(&sorted);
        let mut part = Part::read(&sorted, reply, read_answer)?;
        part.source.server.open_urgent(&self.background);
        let written = Written { entries: 0..part.answers.len(), source: part.source };
        self.refuse_unreplicated(&sorted, &mut part.answers, vec![written]).await?;
        let mut answers: Vec<(usize, Answer)> = order.into_iter().zip(part.answers).collect();
        answers.sort_unstable_by_key(|(index, _)| *index);
        let each = answers.into_iter().map(|(_, answer)| answer).collect();
        Ok(MemberAnswers { membership, answers: Answers { now: part.now, each } })
    }

    async fn renew_as_member(&self, leases: &[Renew]) -> Result<MemberAnswers<Renewed>, StoreError> {
        let group: Vec<&Renew> = leases.iter().collect();
        let urgent = Priority::Urgent;
        let called =
            self.call_as_member(&MEMBER_RENEW, urgent, &group, |renew| &renew.name, codec::push_renewals);
        let (reply, membership) = called.await?;
        let mut part =
            Part::read(leases, reply, |reader: &mut Reader, renew: &Renew, _| reader.renewed(renew))?;
        let written = Written { entries: 0..part.answers.len(), source: part.source };
        self.doubt_unreplicated(&mut part.answers, vec![written]).await;
        Ok(MemberAnswers { membership, answers: Answers { now: part.now, each: part.answers } })
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
            Ok(MemberState { membership: Membership { record, incarnation }, wall: now.0, high_water })
        })
    }

    fn enrol<'a>(&'a self, enrolment: &'a Enrolment) -> Reply<'a, bool> {
        Box::pin(self.enrol_as_member(enrolment))
    }
}
