//! Writes the arguments of the scripts: see `apply.lua` and `renew.lua` for their order.

use std::{collections::HashSet, fmt::Write, time::Duration};

use lockkeeper_core::{
    ContenderId, Units,
    store::{Claim, Leave, Renew, Request, StoreTime},
};
use redis::Cmd;

use super::{details::push_details, rarities};

fn micros(length: Duration) -> u64 {
    u64::try_from(length.as_micros()).unwrap_or(u64::MAX)
}

/// The last time with 16 digits: scripts compare times as text.
const LAST_TIME: u64 = 9_999_999_999_999_999;
/// The last time until which something can be kept: keys last a minute longer, and scripts compute with doubles.
const LAST_END: u64 = (1 << 53) - 1 - 60_000_000;

/// Claims for grants with this number or more are rare enough for the long way, which keeps numbers below 2^53.
const HIGHEST_LEAST: u64 = 1 << 52;

/// The end of something that a script keeps, as an argument.
pub(crate) fn end(time: StoreTime) -> u64 {
    time.0.min(LAST_END)
}

/// The contenders that both leave and claim in one group, whose order then matters. Almost no group has any, so this looks
/// them up in a sorted list, which costs a fraction of a hash for each.
pub(crate) fn claims_and_leaves<'a>(group: impl Iterator<Item = &'a Request> + Clone) -> Vec<ContenderId> {
    let leaver = |request: &Request| match request {
        Request::Claim(_) => None,
        Request::Leave(leave) => Some(leave.contender),
    };
    let mut leavers: Vec<ContenderId> = group.clone().filter_map(leaver).collect();
    if leavers.is_empty() {
        return leavers;
    }
    leavers.sort_unstable();
    let both = |request: &Request| match request {
        Request::Claim(claim) => leavers.binary_search(&claim.contender).is_ok().then_some(claim.contender),
        Request::Leave(_) => None,
    };
    group.filter_map(both).collect()
}

/// Whether a request is a leave without a tombstone and without a shortest hold. Such leaves come first in a group.
pub(crate) fn is_plain_leave(request: &Request, ordered: &[ContenderId]) -> bool {
    matches!(request, Request::Leave(leave) if leave.tombstone_until.is_none() && leave.hold_at_least.is_zero()
        && !ordered.contains(&leave.contender))
}

/// Whether a request may need memory: it is a claim that is sent for the first time.
fn is_new(request: &Request) -> bool {
    matches!(request, Request::Claim(claim) if !claim.again)
}

/// Appends the arguments of `apply.lua` for a group, whose plain leaves come first.
///
/// With `must_write`, a grant that was made before is written again: `WAIT` counts from the last write of a connection.
pub(crate) fn push_group(command: &mut Cmd, group: &[&Request], must_write: bool) {
    let mut scratch = String::with_capacity(256);
    let ordered = claims_and_leaves(group.iter().copied());
    let plain = group.iter().take_while(|request| is_plain_leave(request, &ordered)).count();
    let new = group.iter().filter(|request| is_new(request)).count();
    let leaves = i64::try_from(plain).unwrap_or(i64::MAX);
    command.arg(if new == 0 || new == group.len() { leaves } else { -1 - leaves });
    for request in &group[..plain] {
        let (Request::Leave(Leave { contender, .. }) | Request::Claim(Claim { contender, .. })) = request;
        push_only_holder(command, *contender, &mut scratch);
    }
    let mut before: Option<(&Claim, Mode)> = None;
    for request in &group[plain..] {
        match request {
            Request::Claim(claim) => {
                // A claim that is sent again mostly belongs to a waiter.
                let by_one_set = !claim.again && !ordered.contains(&claim.contender);
                let mode = Mode { by_one_set, must_write };
                let alike = before.filter(|(before, same)| *same == mode && are_alike(before, claim));
                match alike {
                    Some((before, _)) if before.queue == claim.queue => {}
                    Some(_) => {
                        push_limit(claim, mode, &mut scratch);
                        command.arg("w").arg(&*scratch);
                    }
                    None => push_common(command, claim, mode, &mut scratch),
                }
                before = Some((claim, mode));
                scratch.clear();
                _ = write!(scratch, "{}", claim.contender);
                command.arg(&*scratch);
            }
            Request::Leave(Leave { contender, tombstone_until, hold_at_least, .. }) => {
                let until = tombstone_until.map_or_else(String::new, |until| end(until).to_string());
                command.arg("b").arg(contender.to_string()).arg(until).arg(micros(*hold_at_least));
            }
        }
    }
}

/// How a script may grant a claim.
#[derive(Clone, Copy, PartialEq)]
struct Mode {
    /// Whether it may try one `SET` of the key.
    by_one_set: bool,
    /// Whether it must write, also if it was granted before.
    must_write: bool,
}

/// Whether the arguments of two claims are the same but for their ids, and for whether they wait, as in most groups.
fn are_alike(a: &Claim, b: &Claim) -> bool {
    let Claim {
        name: _,
        contender: _,
        units,
        capacity,
        lease,
        // A claim at a quorum waits at one member and tries at the others.
        queue: _,
        attachment,
        // Nothing but the lease ends a grant whose keeper crashed.
        min_hold: _,
        renewed,
        at_least,
        not_after,
        stamp,
        again,
        details,
    } = a;
    (units, capacity, lease, not_after, stamp, again, details)
        == (&b.units, &b.capacity, &b.lease, &b.not_after, &b.stamp, &b.again, &b.details)
        && (attachment, renewed, at_least) == (&b.attachment, &b.renewed, &b.at_least)
}

/// Writes until when a claim may take effect, how it waits, its stamp, and the least number of its grant.
fn push_limit(claim: &Claim, mode: Mode, scratch: &mut String) {
    let not_after = claim.not_after.0.min(LAST_TIME);
    scratch.clear();
    let way = match (claim.queue, mode.must_write) {
        (true, false) => 'q',
        (true, true) => 'Q',
        (false, false) => 't',
        (false, true) => 'T',
    };
    // Writing to a string cannot fail.
    _ = write!(scratch, "{not_after:016}{way}{:020}", claim.stamp);
    if is_by_one_set(claim, mode) && claim.at_least > 0 {
        _ = write!(scratch, "{:016}", claim.at_least);
    }
}

fn is_by_one_set(claim: &Claim, mode: Mode) -> bool {
    claim.capacity.allows(claim.units) && mode.by_one_set && claim.at_least < HIGHEST_LEAST
}

/// Appends the arguments that come before the first of some claims that are alike.
fn push_common(command: &mut Cmd, claim: &Claim, mode: Mode, scratch: &mut String) {
    let (lease, by_one_set) = (micros(claim.lease), is_by_one_set(claim, mode));
    push_limit(claim, mode, scratch);
    command.arg("s").arg(&*scratch).arg(lease);
    // The lease, a minute, and a second and a bit, as alone.lua and uncontended.lua expect it.
    scratch.clear();
    if by_one_set {
        _ = write!(scratch, "{}", lease / 1000 + 61_001);
    }
    command.arg(&*scratch);
    scratch.clear();
    _ = write!(scratch, " {} {} {lease} ", claim.capacity, claim.units);
    rarities::push(scratch, claim);
    scratch.push(' ');
    push_details(scratch, &claim.details);
    command.arg(&*scratch);
}

/// Appends the flags and id of a row whose holder is confirmed, and neither evicted nor retired nor detached.
fn push_only_holder(command: &mut Cmd, id: ContenderId, scratch: &mut String) {
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
        // The script reads all keys before it changes any, so only the first renewal of a contender is plain.
        let first = before.insert(renew.contender);
        let lease = micros(renew.lease);
        if last != Some(lease) {
            if last.is_some() {
                command.arg("s");
            }
            command.arg(lease);
            last = Some(lease);
        }
        // `All` is never less than the units that are held.
        let lower_to = renew.lower_to.and_then(|units| match units {
            Units::All => None,
            Units::Count(units) => Some(units.get()),
        });
        if lower_to.is_none() && !renew.detach && renew.at_least == 0 && first {
            push_only_holder(command, renew.contender, &mut scratch);
        } else {
            command.arg("b").arg(renew.contender.to_string());
            command.arg(lower_to.map_or_else(String::new, |units| units.to_string()));
            command.arg(u8::from(renew.detach)).arg(renew.at_least);
        }
    }
}
