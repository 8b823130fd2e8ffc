//! Reads the rows of a resource's key, whose format `resource.lua` describes, and the messages of grants.

use std::time::{Duration, SystemTime};

use lockkeeper_core::{
    Capacity, Name, Token,
    model::WAIT_LEASE,
    store::{GrantNotice, HolderView, ResourceView, StoreTime, WaiterView},
};

use super::{details::details, rarities};
use crate::layout::Keys;

/// The resource whose key has these elements: the head, the other rows, and two elements for each waiter.
pub(super) fn view(
    name: &Name,
    now: StoreTime,
    mut elements: impl Iterator<Item = String>,
) -> Option<ResourceView> {
    let head = elements.next()?;
    let mut words = head.splitn(4, ' ');
    let others = words.nth(2)?.parse().ok()?;
    let first = words.next()?.to_owned();
    let (mut in_use, mut holders) = (None, Vec::new());
    for row in std::iter::once(first).chain(elements.by_ref().take(others)) {
        let Some(row) = row.strip_prefix("h ").and_then(|row| holder(row, now)) else { continue };
        in_use = Some(row.capacity);
        if row.expires > now {
            holders.push(row.holder);
        }
    }
    // A number may have been raised past another.
    holders.sort_by_key(|holder| holder.token);
    let mut waiters = Vec::new();
    while let (Some(id), Some(claim)) = (elements.next(), elements.next()) {
        let asked_lately = |(asked, _): &(StoreTime, WaiterView)| asked.after(WAIT_LEASE) > now;
        waiters.extend(waiter(&id, &claim).filter(asked_lately).map(|(_, waiter)| waiter));
    }
    let capacity = in_use.filter(|_| !holders.is_empty() || !waiters.is_empty())?;
    Some(ResourceView { name: name.clone(), capacity, holders, waiters })
}

/// Whether a number can be part of a token.
pub(super) fn is_grant_number(number: u64) -> bool {
    (1..Token::NUMBER_LIMIT).contains(&number)
}

fn wall(micros: u64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_micros(micros)
}

/// The row of a holder.
struct HolderRow {
    capacity: Capacity,
    expires: StoreTime,
    holder: HolderView,
}

fn holder(row: &str, now: StoreTime) -> Option<HolderRow> {
    let mut words = row.splitn(10, ' ');
    let mut next = || words.next();
    let number = next()?.parse().ok().filter(|number| is_grant_number(*number))?;
    let since = wall(next()?.parse().ok()?);
    let expires = StoreTime(next()?.parse().ok()?);
    let flags = next()?;
    let contender = next()?.parse().ok()?;
    let capacity = next()?.parse().ok()?;
    let units = next()?.parse().ok()?;
    let lease = Duration::from_micros(next()?.parse().ok()?);
    let rarities = rarities::read(next()?);
    let details = details(next()?)?;
    let detached = flags.contains('d') || rarities.detached;
    let holder = HolderView {
        contender,
        token: Token::new(number, 0),
        units,
        details,
        since,
        lease,
        remaining: Some(expires.since(now)),
        renewed: !rarities.fixed && !detached,
        evicted: flags.contains('e'),
        detached,
    };
    Some(HolderRow { capacity, expires, holder })
}

/// A waiter, and when it last asked.
fn waiter(id: &str, claim: &str) -> Option<(StoreTime, WaiterView)> {
    let mut words = claim.splitn(8, ' ');
    let mut next = || words.next();
    let asked = StoreTime(next()?.parse().ok()?);
    let since = wall(next()?.parse().ok()?);
    let (_stamp, _capacity) = (next()?, next()?);
    let units = next()?.parse().ok()?;
    let (_lease, _rarities) = (next()?, next()?);
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
