//! How requests and answers are written: arguments of the scripts, lines of a resource, messages.

use std::{
    collections::HashSet,
    fmt::Write,
    sync::Arc,
    time::{Duration, SystemTime},
};

use lockkeeper_core::{
    Capacity, ContenderId, Name, StoreError, Token, Units,
    model::WAIT_LEASE,
    store::{
        Claim, CountState, Counted, Details, Grant, GrantNotice, HolderView, Kind, Leave, Left, ProcessInfo,
        Renew, Renewed, Request, ResourceView, StoreTime, Verdict, WaiterView,
    },
};
use redis::{Cmd, Value};

use crate::{
    layout::{Keys, push_escaped, unescape},
    servers::Answered,
    trouble,
};

fn micros(length: Duration) -> u64 {
    u64::try_from(length.as_micros()).unwrap_or(u64::MAX)
}

/// The last time that has 16 digits, and so can be compared as text.
const LAST_TIME: u64 = 9_999_999_999_999_999;
/// The last time until which something can be kept: a key lasts a minute longer, and scripts compute with doubles.
const LAST_END: u64 = (1 << 53) - 1 - 60_000_000;

/// Contenders that both leave and claim in one group, which is done in its order: nobody, in almost every group.
pub(crate) fn twice<'a>(group: impl Iterator<Item = &'a Request> + Clone) -> HashSet<ContenderId> {
    let leaver = |request: &Request| match request {
        Request::Claim(_) => None,
        Request::Leave(leave) => Some(leave.contender),
    };
    let leavers: HashSet<ContenderId> = group.clone().filter_map(leaver).collect();
    let both = |request: &Request| match request {
        Request::Claim(claim) => Some(claim.contender).filter(|contender| leavers.contains(contender)),
        Request::Leave(_) => None,
    };
    if leavers.is_empty() { leavers } else { group.filter_map(both).collect() }
}

/// Whether a request is a leave with nothing special about it: such come first in a group.
pub(crate) fn is_plain_leave(request: &Request, twice: &HashSet<ContenderId>) -> bool {
    matches!(request, Request::Leave(leave) if leave.tombstone_until.is_none() && leave.hold_at_least.is_zero()
        && !twice.contains(&leave.contender))
}

/// Whether a request may need memory: it is a claim that nobody has seen before.
fn is_new(request: &Request) -> bool {
    matches!(request, Request::Claim(claim) if !claim.again)
}

/// Appends the arguments of `apply.lua` for a group, whose plain leaves come first.
/// With `must_write` a grant that was made before is written again, so that replicas can be waited for.
pub(crate) fn push_group(command: &mut Cmd, group: &[&Request], must_write: bool) {
    let mut scratch = String::with_capacity(256);
    let twice = twice(group.iter().copied());
    let plain = group.iter().take_while(|request| is_plain_leave(request, &twice)).count();
    let new = group.iter().filter(|request| is_new(request)).count();
    let leaves = i64::try_from(plain).unwrap_or(i64::MAX);
    command.arg(if new == 0 || new == group.len() { leaves } else { -1 - leaves });
    for request in &group[..plain] {
        let (Request::Leave(Leave { contender, .. }) | Request::Claim(Claim { contender, .. })) = request;
        push_alone(command, *contender, &mut scratch);
    }
    let mut before: Option<(&Claim, bool)> = None;
    for request in &group[plain..] {
        match request {
            Request::Claim(claim) => {
                // Who asks again mostly waits.
                let at_once = !claim.again && !twice.contains(&claim.contender);
                if !before.is_some_and(|(before, same)| same == at_once && differ_only_in_id(before, claim)) {
                    push_common(command, claim, (at_once, must_write), &mut scratch);
                    before = Some((claim, at_once));
                }
                scratch.clear();
                _ = write!(scratch, "{}", claim.contender);
                command.arg(&*scratch);
            }
            Request::Leave(Leave { contender, tombstone_until, hold_at_least, .. }) => {
                let until =
                    tombstone_until.map_or_else(String::new, |until| until.0.min(LAST_END).to_string());
                command.arg("b").arg(contender.to_string()).arg(until).arg(micros(*hold_at_least));
            }
        }
    }
}

/// Whether what the arguments say of two claims is the same but for their ids, as it is for most claims of a group.
fn differ_only_in_id(a: &Claim, b: &Claim) -> bool {
    let Claim {
        name: _,
        contender: _,
        units,
        capacity,
        lease,
        queue,
        // Only the lease ends what the dead held, and that is no shorter.
        detachable: _,
        min_hold: _,
        not_after,
        stamp,
        again,
        details,
    } = a;
    (units, capacity, lease, queue, not_after, stamp, again, details)
        == (&b.units, &b.capacity, &b.lease, &b.queue, &b.not_after, &b.stamp, &b.again, &b.details)
}

/// Appends what comes before the first of claims that differ only in their ids.
fn push_common(command: &mut Cmd, claim: &Claim, (at_once, must_write): (bool, bool), scratch: &mut String) {
    let lease = micros(claim.lease);
    let not_after = claim.not_after.0.min(LAST_TIME);
    scratch.clear();
    let way = match (claim.queue, must_write) {
        (true, false) => 'q',
        (true, true) => 'Q',
        (false, false) => 't',
        (false, true) => 'T',
    };
    // Writing to a string cannot fail.
    _ = write!(scratch, "{not_after:016}{way}{:020}", claim.stamp);
    command.arg("s").arg(&*scratch).arg(lease);
    // A second more than a minute longer than the lease, as uncontended.lua writes it down.
    match claim.capacity.allows(claim.units) && at_once {
        true => command.arg(lease / 1000 + 61_001),
        false => command.arg(""),
    };
    scratch.clear();
    // The dash is room for words of later versions.
    _ = write!(scratch, " {} {} {lease} - ", claim.capacity, claim.units);
    push_details(scratch, &claim.details);
    command.arg(&*scratch);
}

/// The part of a holder's line that says that it holds alone, with nothing special about it.
fn push_alone(command: &mut Cmd, id: ContenderId, scratch: &mut String) {
    scratch.clear();
    _ = write!(scratch, "c--- {id} ");
    command.arg(&*scratch);
}

/// Appends the arguments of `renew.lua` for a group.
pub(crate) fn push_renewals(command: &mut Cmd, leases: &[&Renew]) {
    let mut scratch = String::with_capacity(64);
    let mut last = None;
    let mut before = HashSet::with_capacity(leases.len());
    for renew in leases {
        // The script reads all that are held alone before it does anything.
        let first = before.insert(renew.contender);
        let lease = micros(renew.lease);
        if last != Some(lease) {
            if last.is_some() {
                command.arg("s");
            }
            command.arg(lease);
            last = Some(lease);
        }
        // All is never less than what is held.
        let lower_to = renew.lower_to.and_then(|units| match units {
            Units::All => None,
            Units::Count(units) => Some(units.get()),
        });
        if lower_to.is_none() && !renew.detach && first {
            push_alone(command, renew.contender, &mut scratch);
        } else {
            command.arg("b").arg(renew.contender.to_string());
            command.arg(lower_to.map_or_else(String::new, |units| units.to_string()));
            command.arg(u8::from(renew.detach));
        }
    }
}

/// The details of a claim: words, with `%` before what would end them; `-` for what is not there.
fn push_details(text: &mut String, details: &Details) {
    let word = |text: &mut String, word: &str| push_escaped(text, word, |byte| byte <= b' ' || byte == b'%');
    let ProcessInfo { host, pid, program } = &*details.process;
    _ = write!(text, "{} {pid} ", details.kind.word());
    word(text, host);
    text.push(' ');
    word(text, program);
    for optional in [&details.label, &details.value] {
        text.push_str(if optional.is_some() { " =" } else { " -" });
        word(text, optional.as_deref().unwrap_or_default());
    }
}

fn details(text: &str) -> Option<Details> {
    let mut words = text.split(' ');
    let kind = Kind::from_word(words.next()?)?;
    let pid = words.next()?.parse().ok()?;
    let process = ProcessInfo { pid, host: unescape(words.next()?)?, program: unescape(words.next()?)? };
    let mut optional = || match words.next()?.strip_prefix('=') {
        Some(word) => unescape(word).map(|text| Some(Arc::from(text))),
        None => Some(None),
    };
    Some(Details { kind, process: Arc::new(process), label: optional()?, value: optional()? })
}

/// Reads a reply word by word.
pub(crate) struct Reader {
    words: String,
    at: usize,
    more: Value,
}

impl Reader {
    pub(crate) fn new(answered: Answered) -> Self {
        Self { words: answered.words, at: 0, more: answered.more }
    }

    fn word(&mut self) -> Result<&str, StoreError> {
        let rest = self.words.get(self.at..).filter(|rest| !rest.is_empty());
        let rest = rest.ok_or_else(|| trouble::nonsense("a missing word"))?;
        let word = rest.split(' ').next().unwrap_or(rest);
        self.at += word.len() + 1;
        Ok(word)
    }

    pub(crate) fn number(&mut self) -> Result<u64, StoreError> {
        self.word()?.parse().map_err(|_| trouble::nonsense("a number that is none"))
    }

    fn grant_number(&mut self) -> Result<u64, StoreError> {
        let number = self.number()?;
        if is_grant_number(number) { Ok(number) } else { Err(trouble::worn_out_mark()) }
    }

    fn length(&mut self) -> Result<Duration, StoreError> {
        self.number().map(Duration::from_micros)
    }

    pub(crate) fn time(&mut self) -> Result<StoreTime, StoreError> {
        self.number().map(StoreTime)
    }

    pub(crate) fn verdict(&mut self, claim: &Claim, now: StoreTime) -> Result<Verdict, StoreError> {
        Ok(match self.number()? {
            kind @ (0 | 9) => {
                let number = if kind == 0 { now.0 } else { self.grant_number()? };
                Verdict::Granted(Grant { number, floor: number, remaining: claim.lease })
            }
            1 => Verdict::Granted(Grant {
                number: self.grant_number()?,
                floor: self.grant_number()?,
                remaining: self.length()?,
            }),
            2 => Verdict::busy(u32::try_from(self.number()?).unwrap_or(u32::MAX), self.length()?),
            3 => Verdict::Stale,
            4 => {
                let in_use = capacity(self.word()?).ok_or_else(|| trouble::nonsense("a capacity"))?;
                Verdict::mismatch(in_use)
            }
            8 => Verdict::Refused(trouble::foreign()),
            _ => return Err(trouble::nonsense("a verdict")),
        })
    }

    pub(crate) fn left(&mut self) -> Result<Left, StoreError> {
        match self.number()? {
            5 => Ok(Left::Released),
            6 => Ok(Left::LeftQueue),
            7 => Ok(Left::NotThere),
            _ => Err(trouble::nonsense("an answer to a leave")),
        }
    }

    pub(crate) fn renewed(&mut self, renew: &Renew) -> Result<Renewed, StoreError> {
        match self.number()? {
            0 => Ok(Renewed::Held { remaining: renew.lease }),
            1 => Ok(Renewed::Held { remaining: self.length()? }),
            2 => Ok(Renewed::Gone),
            3 => Ok(Renewed::Evicted),
            _ => Err(trouble::nonsense("an answer to a renewal")),
        }
    }

    pub(crate) fn counted(&mut self) -> Result<Counted, StoreError> {
        let kind = self.number()?;
        if matches!(kind, 2 | 4) {
            return Ok(if kind == 2 { Counted::Missing } else { Counted::Stale });
        }
        let state = CountState {
            remaining: self.number()?,
            initial: self.number()?,
            opened: self.number()?,
            born: self.number()?,
        };
        Ok(if kind == 3 { Counted::Exists(state) } else { Counted::State(state) })
    }

    pub(crate) fn token(&mut self) -> Result<Token, StoreError> {
        self.word()?.parse().map_err(|_| trouble::nonsense("a token"))
    }

    /// The resource that a key tells of, without what has ended.
    pub(crate) fn view(&mut self, name: &Name) -> Result<Option<ResourceView>, StoreError> {
        let now = self.time()?;
        let Value::Array(elements) = std::mem::replace(&mut self.more, Value::Nil) else {
            return Err(trouble::nonsense("missing lines"));
        };
        // What is not one of ours is not a lock, and claims of it are refused.
        Ok(view(name, now, elements.into_iter().filter_map(text)))
    }
}

fn text(element: Value) -> Option<String> {
    match element {
        Value::BulkString(text) => String::from_utf8(text).ok(),
        _ => None,
    }
}

/// The resource whose key has these elements: the head, the other lines, two for each who waits.
fn view(name: &Name, now: StoreTime, mut elements: impl Iterator<Item = String>) -> Option<ResourceView> {
    let head = elements.next()?;
    let mut words = head.splitn(4, ' ');
    let others = words.nth(2)?.parse().ok()?;
    let first = words.next()?.to_owned();
    let (mut in_use, mut holders) = (None, Vec::new());
    for line in std::iter::once(first).chain(elements.by_ref().take(others)) {
        let Some((capacity, expires, holder)) = line.strip_prefix("h ").and_then(|line| holder(line, now))
        else {
            continue;
        };
        in_use = Some(capacity);
        if expires > now {
            holders.push(holder);
        }
    }
    let mut waiters = Vec::new();
    while let (Some(id), Some(asks)) = (elements.next(), elements.next()) {
        waiters.extend(waiter(&id, &asks).filter(|(asked, _)| asked.after(WAIT_LEASE) > now));
    }
    let waiters: Vec<_> = waiters.into_iter().map(|(_, waiter)| waiter).collect();
    let capacity = in_use.filter(|_| !holders.is_empty() || !waiters.is_empty())?;
    Some(ResourceView { name: name.clone(), capacity, holders, waiters })
}

fn units(text: &str) -> Option<Units> {
    if text == "all" { Some(Units::All) } else { Units::count(text.parse().ok()?).ok() }
}

fn capacity(text: &str) -> Option<Capacity> {
    if text == "all" { Some(Capacity::All) } else { Capacity::count(text.parse().ok()?).ok() }
}

fn is_grant_number(number: u64) -> bool {
    (1..Token::NUMBER_LIMIT).contains(&number)
}

fn wall(micros: u64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_micros(micros)
}

fn holder(line: &str, now: StoreTime) -> Option<(Capacity, StoreTime, HolderView)> {
    let mut words = line.splitn(10, ' ');
    let mut next = || words.next();
    let number = next()?.parse().ok().filter(|number| is_grant_number(*number))?;
    let since = wall(next()?.parse().ok()?);
    let expires = StoreTime(next()?.parse().ok()?);
    let flags = next()?;
    let contender = next()?.parse().ok()?;
    let capacity = capacity(next()?)?;
    let units = units(next()?)?;
    let (_lease, _later) = (next()?, next()?);
    let details = details(next()?)?;
    let view = HolderView {
        contender,
        token: Token::new(number, 0),
        units,
        details,
        since,
        remaining: expires.since(now),
        evicted: flags.contains('e'),
        detached: flags.contains('d'),
    };
    Some((capacity, expires, view))
}

fn waiter(id: &str, asks: &str) -> Option<(StoreTime, WaiterView)> {
    let mut words = asks.splitn(8, ' ');
    let mut next = || words.next();
    let asked = StoreTime(next()?.parse().ok()?);
    let since = wall(next()?.parse().ok()?);
    let (_stamp, _capacity) = (next()?, next()?);
    let units = units(next()?)?;
    let (_lease, _later) = (next()?, next()?);
    let details = details(next()?)?;
    Some((asked, WaiterView { contender: id.parse().ok()?, units, details, since }))
}

/// The grant that a message tells of.
pub(crate) fn notice(keys: &Keys, message: &str) -> Option<(Name, GrantNotice)> {
    let mut words = message.splitn(7, ' ');
    let contender = words.next()?.parse().ok()?;
    let mut number = || words.next()?.parse::<u64>().ok();
    let (number, floor, stamp, waited, lease) = (number()?, number()?, number()?, number()?, number()?);
    if !is_grant_number(number) || !is_grant_number(floor) {
        return None;
    }
    let name = keys.name(words.next()?)?;
    let (waited, lease) = (Duration::from_micros(waited), Duration::from_micros(lease));
    Some((name, GrantNotice { contender, number, floor, stamp, waited, lease }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cards_survive_whatever_is_in_them() {
        let process = Arc::new(ProcessInfo { host: String::new(), pid: 7, program: "a b%\n".into() });
        for (label, value) in [(None, Some("")), (Some("=- ü\0\t"), None), (Some(" "), Some("%25"))] {
            let written = Details {
                kind: Kind::Election,
                process: process.clone(),
                label: label.map(Arc::from),
                value: value.map(Arc::from),
            };
            let mut text = String::new();
            push_details(&mut text, &written);
            assert!(!text.contains(['\0', '\n']));
            assert_eq!(details(&text), Some(written));
        }
    }
}
